"""Coverage study: how often each lower bound exceeds a true epsilon that is known exactly.

`mechanisms` and `canaries` define the simulated audits, `simulation` applies every estimator to
repetitions of them, `analysis` tests the violation rates, and `page` writes the tables. `command`
is the command line, `python -m audit.coverage_study`.
"""

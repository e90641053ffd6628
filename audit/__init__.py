"""Audits of differentially private hyper-parameter tuning.

The library floors `repetitions`, `protocols`, `accounting`, `upper_bounds` and `lower_bounds` need
only numpy and scipy; `python -m audit.run` plays the game and `python -m audit.bounds` accounts.
"""

__version__ = "0.2.0"

"""Audits of differentially private hyper-parameter tuning.

The library floors `repetitions`, `accounting`, `upper_bounds` and `lower_bounds` need only numpy,
scipy and statsmodels; `python -m audit.run` plays the game and `python -m audit.bounds` accounts.
"""

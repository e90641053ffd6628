"""Audits of differentially private hyper-parameter tuning.

The library floors `repetitions`, `protocols`, `accounting`, `upper_bounds` and `lower_bounds` need
only numpy and scipy; `python -m audit.run` plays the game and `python -m audit.bounds` accounts.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """`audit.check` and `audit.check_one_run`, imported where they are first used."""
    if name in ("check", "check_one_run"):
        return getattr(import_module("audit.own_training"), name)
    raise AttributeError(f"module 'audit' has no attribute {name!r}")

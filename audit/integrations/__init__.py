"""Adapters to other libraries: `opacus` reads its accountants, `optuna` its studies and objectives.

`random_allocation` has a sampler of batches for torch. All are imported at their first use, and
none imports the other library before that.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("opacus", "optuna", "random_allocation"):
        return import_module(f"audit.integrations.{name}")
    raise AttributeError(f"module 'audit.integrations' has no attribute {name!r}")

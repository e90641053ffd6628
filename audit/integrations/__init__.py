"""Adapters to other libraries: `opacus` reads its accountants, `optuna` its studies and objectives.

Both are imported at their first use, and neither imports the other library before that.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("opacus", "optuna"):
        return import_module(f"audit.integrations.{name}")
    raise AttributeError(f"module 'audit.integrations' has no attribute {name!r}")

"""What a dotted name that a user gives stands for."""

import importlib
from typing import Any


def imported(parameter: str, dotted: str) -> Any:
    """What a dotted name, package.module.name, stands for.

    Args:
        parameter: what the name is given for.
        dotted: the name.

    Raises:
        ValueError: no such module, or nothing of that name in it.
    """
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{parameter} must be a name that can be imported, got {dotted!r}: {error}"
        ) from error

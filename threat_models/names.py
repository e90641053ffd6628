"""Names that a user gives: checked, or looked up where they are dotted."""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


def check_choice(parameter: str, value: str, allowed: Iterable[str]) -> None:
    """Raises where a name is unknown.

    Args:
        parameter: what the name is given for.
        value: the name that came.
        allowed: the valid names.

    Raises:
        ValueError: naming the parameter, what is allowed, what came and the nearest valid name.
    """
    names = list(allowed)
    if value in names:
        return
    folded = {name.lower(): name for name in names}
    near = difflib.get_close_matches(str(value).lower(), folded, n=1, cutoff=0.4)
    hint = f"; did you mean {folded[near[0]]!r}?" if near else ""
    raise ValueError(f"{parameter} must be one of {', '.join(names)}, got {value!r}{hint}")


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

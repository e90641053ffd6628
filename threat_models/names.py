"""What a dotted name that a user gives stands for."""

import importlib
from collections.abc import Callable
from typing import Any

from audit import checks

_LONGEST = 300  # characters of another's message


def imported(parameter: str, dotted: str) -> Any:
    """What a dotted name, package.module.name, stands for.

    Args:
        parameter: what the name is given for.
        dotted: the name.

    Raises:
        ValueError: no such module, one that cannot be imported, or nothing of that name in it.
    """
    module, _, name = dotted.rpartition(".")
    try:
        if not all(part.isidentifier() for part in dotted.split(".")):
            raise ValueError("no package.module.name")
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # another's module may raise anything
        raise ValueError(
            f"{parameter} must be a name that can be imported, got {checks.in_line(dotted)}: "
            f"{in_line(error)}"
        ) from error


def called(parameter: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What another's function gives.

    Raises:
        ValueError: it raised, or ended the program.
    """
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:  # another's code may raise anything
        raise ValueError(f"{parameter} must give an answer, and raised {in_line(error)}") from error


def in_line(error: BaseException) -> str:
    """What another's code raised, in one line that is not too long."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:_LONGEST]}" if said else type(error).__name__

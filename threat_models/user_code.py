"""What a dotted name that a user gives stands for."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from audit import checks

_LONGEST = 300  # characters of another's message


def import_by_name(parameter: str, dotted: str) -> Any:
    """What a dotted name, package.module.name, stands for.

    Args:
        parameter: what the name is given for.
        dotted: the name.

    Raises:
        ValueError: no such module, one that cannot be imported, or nothing of that name in it.
    """
    module, _, name = dotted.rpartition(".")
    with errors_in_one_line(
        f"{parameter} must be a name that can be imported, got {checks.one_line(dotted)}"
    ):
        if not all(part.isidentifier() for part in dotted.split(".")):
            raise ValueError("no package.module.name")
        return getattr(importlib.import_module(module), name)


def call_user_code(parameter: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What another's function gives.

    Raises:
        ValueError: it raised, or ended the program.
    """
    with errors_in_one_line(f"{parameter} must give an answer, and raised", joint=" "):
        return function(*arguments)


@contextmanager
def errors_in_one_line(words: str, joint: str = ": ") -> Iterator[None]:
    """Another's code runs inside: whatever it raises is one line.

    Args:
        words: what was wrong, before what was raised.
        joint: between the two.

    Raises:
        ValueError: it raised, or ended the program. Ctrl-C and signals stay what they are.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of any class, SystemExit or one's own
        raise ValueError(f"{words}{joint}{format_error(error)}") from error


def format_error(error: BaseException) -> str:
    """What another's code raised, in one line that is not too long."""
    try:
        said = str(error).strip().splitlines()
    except Exception:  # another's class may not even say what it is
        said = []
    return f"{type(error).__name__}: {said[0][:_LONGEST]}" if said else type(error).__name__

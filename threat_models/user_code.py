"""Import and call of user code by dotted name, with errors in one line."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from audit import checks
from audit.errors import InvalidInput

_MAX_MESSAGE = 300  # characters of an error message from user code


def import_by_name(parameter: str, dotted: str) -> Any:
    """The object with a dotted name, package.module.name; errors name the parameter."""
    module, _, name = dotted.rpartition(".")
    with errors_in_one_line(
        f"{parameter} must be a name that can be imported, got {checks.one_line(dotted)}"
    ):
        if not all(identifier.isidentifier() for identifier in dotted.split(".")):
            raise InvalidInput("not of the form package.module.name")
        return getattr(importlib.import_module(module), name)


def call_user_code(parameter: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a user's function."""
    with errors_in_one_line(f"{parameter} must return a value, but it raised", separator=" "):
        return function(*arguments)


@contextmanager
def errors_in_one_line(message: str, separator: str = ": ") -> Iterator[None]:
    """Context manager that converts every exception of user code to an InvalidInput of one line.

    `message` precedes the exception's own. SystemExit is converted, KeyboardInterrupt is not.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # includes SystemExit and user-defined classes
        raise InvalidInput(f"{message}{separator}{format_error(error)}") from error


def format_error(error: BaseException) -> str:
    """The class and the first line of an exception, truncated to _MAX_MESSAGE characters."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # a user-defined __str__ may raise
        lines = []
    return f"{type(error).__name__}: {lines[0][:_MAX_MESSAGE]}" if lines else type(error).__name__

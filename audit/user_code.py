"""Code of the user: import by name, runs with seeded generators, and errors in one line.

Studies, checks of functions and of scripts, and audits all use this module. It decides how a run
seeds the global generators of Python, numpy and torch, which the user's function may draw from.
"""

import contextlib
import hashlib
import importlib
import io
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from audit import checks
from audit.errors import InvalidInput

IMPORTS = "modules that define your own protocols, separated by commas"
"""What the option `--imports` takes, for help texts."""

_MAX_MESSAGE = 300  # characters of an error message from user code
_MASK = 0xFFFFFFFF
_WORD = 32  # bits of a seed that numpy takes as one number
_GLOBAL = 0x5EED  # number of the trial whose seed the global generators of a check's run have


def import_by_name(parameter: str, dotted: str) -> Any:
    """The object with a dotted name, package.module.name; errors name the parameter."""
    module, _, name = dotted.rpartition(".")
    problem = f"{parameter} must be a name that can be imported, got {checks.one_line(dotted)}"
    if not module or not all(identifier.isidentifier() for identifier in dotted.split(".")):
        raise InvalidInput(f"{problem}: write module.name")
    with errors_in_one_line(problem):
        return getattr(importlib.import_module(module), name)


def import_modules(names: str) -> str:
    """Imports modules named in a text and returns the text without white space.

    They define protocols, bounds or mechanisms of the user. Defining a protocol registers it, so
    a command only has to import its module. Nothing imports a module because a file names it: the
    user names the modules on the command line or in settings.

    Raises:
        InvalidInput: a name is not that of a module, or its import raises an exception.
    """
    modules = [name.strip() for name in names.split(",") if name.strip()]
    for module in modules:
        problem = "it is not a name of the form package.module"
        if module.endswith(".py"):
            problem = "leave out .py, and give the name of the module"
        elif all(identifier.isidentifier() for identifier in module.split(".")):
            try:
                importlib.import_module(module)
                continue
            except Exception as error:
                problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise InvalidInput(
            f"imports must be modules that can be imported, got {checks.one_line(module)}: "
            f"{problem}"
        )
    return ",".join(modules)


def call_user_code(parameter: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a user's function."""
    with errors_in_one_line(f"{parameter} must return a value, but it raised", separator=" "):
        return function(*arguments)


@contextlib.contextmanager
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


@contextlib.contextmanager
def output_to(descriptor: int) -> Iterator[None]:
    """Sends everything that is printed to a descriptor, also by compiled code and by processes."""
    with contextlib.ExitStack() as stack:
        _flush()
        for standard in (1, 2):
            with contextlib.suppress(OSError):  # there may be none
                stack.callback(_restore_descriptor, os.dup(standard), standard)
                os.dup2(descriptor, standard)
        stack.callback(_flush)  # sends what is still buffered
        yield


def _restore_descriptor(saved: int, descriptor: int) -> None:
    os.dup2(saved, descriptor)
    os.close(saved)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
            stream.flush()  # type: ignore[union-attr]


# Seeds. A run has a seed that the user's function is given. The global generators get another one,
# derived from it: a generator that the function makes from its seed would otherwise repeat the
# numbers of a global one, such as those of the initial weights.


def secret_global_seed(seed: int) -> int:
    """The seed of 63 bits of the global generators in a run of a study.

    The noise of a private training may come from these generators. The seed of the run is secret,
    so this one must have as many bits and must not reveal it: it is a hash.

    Example:
        >>> secret_global_seed(0) != secret_global_seed(1)
        True
    """
    digest = hashlib.blake2b(seed.to_bytes(32, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def global_seed(seed: int) -> int:
    """The seed of 32 bits of the global generators in a run of a check, whose seed is public.

    It is a bijection of the run's seed, so that two runs never share it.
    """
    return run_seed(seed, _GLOBAL)


def run_seed(seed: int, trial: int, run: int = 0) -> int:
    """The seed of a run of a check: distinct for any 2^32 trials of one run each.

    A bijection of 32-bit words (the finaliser of MurmurHash3) of a counter, so that no two runs
    share their noise accidentally.
    """
    word = seed * 0x9E3779B1 + trial
    for mixed_in in (0, run * 0x85EBCA77):
        word = (word ^ mixed_in) & _MASK
        word = ((word ^ (word >> 16)) * 0x85EBCA6B) & _MASK
        word = ((word ^ (word >> 13)) * 0xC2B2AE35) & _MASK
        word ^= word >> 16
    return word


def seed_global_generators(seed: int) -> None:
    """Seeds the global generators of Python, numpy and torch, the latter on all devices.

    Args:
        seed: `global_seed` or `secret_global_seed` of the run's seed.
    """
    import numpy as np  # here, because commands that run no user code start faster without it

    random.seed(seed)
    np.random.seed(  # noqa: NPY002
        seed if seed < 2**_WORD else [seed >> _WORD, seed & (2**_WORD - 1)]
    )
    torch = sys.modules.get("torch")
    if torch is None:
        return
    # Without a device, torch.manual_seed queues calls and tracebacks for devices.
    torch.default_generator.manual_seed(seed)
    # The first run may be the one that puts a device in use: torch keeps the last seed until then.
    if torch.accelerator.is_available():
        torch.manual_seed(seed)


@contextlib.contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seeds the global generators for one run, and restores their former states on exit.

    Every run of a user's function is inside this context.

    Args:
        seed: as for `seed_global_generators`.
    """
    with restored_generators():
        seed_global_generators(seed)
        yield


@contextlib.contextmanager
def restored_generators() -> Iterator[None]:
    """Restores the states of the global generators on exit, of torch only if it is loaded."""
    import numpy as np

    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    on_processor = None if torch is None else torch.random.get_rng_state()
    on_gpus = []
    if torch is not None and torch.cuda.is_initialized():
        on_gpus = torch.cuda.get_rng_state_all()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.random.set_rng_state(on_processor)
            if on_gpus:
                torch.cuda.set_rng_state_all(on_gpus)

"""The global random generators of Python, numpy and torch, before and after a user's function."""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_WORD = 32  # bits of a seed that numpy takes as one number


def seed_global_generators(seed: int) -> None:
    """Seeds the global generators of Python, numpy and torch, the latter on all devices.

    Args:
        seed: not a number that the user's function is given. A generator that the function makes
            from that number would otherwise repeat the numbers of a global one, such as those of
            the initial weights.
    """
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


def derived_seed(seed: int) -> int:
    """A seed of 63 bits for the global generators of a run that has another seed.

    Example:
        >>> derived_seed(0) != derived_seed(1)
        True
    """
    digest = hashlib.blake2b(seed.to_bytes(32, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restores the states of the global generators on exit, of torch only if it is loaded."""
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

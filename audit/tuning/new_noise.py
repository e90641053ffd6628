"""New noise for a run that cannot continue with its former noise.

A step that is repeated with the same noise and another rounding reveals more than one step, and so
does one that is repeated with new noise and the same batch. The proof for repeated steps needs new
noise and new batches (docs/theory.md, "Interrupted runs"). So a run that is resumed in such a case
draws from new states of all generators that `load_state` restores.
"""

import random
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from audit.errors import InvalidInput

_SEED_BITS = 256
_TORCH_SEED_BITS = 63


def seed_global_generators() -> None:
    """Seeds the generators of Python, numpy and torch (on all devices) from secret entropy."""
    random.seed(secrets.randbits(_SEED_BITS))
    seed_numpy_state(np.random)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(secrets.randbits(_TORCH_SEED_BITS))


def seed_torch_generator(generator: Any) -> None:
    """Seeds a torch generator."""
    generator.manual_seed(secrets.randbits(_TORCH_SEED_BITS))


def seed_numpy_generator(generator: np.random.Generator) -> None:
    """Gives a numpy generator a new state of the same kind."""
    bits: Any = generator.bit_generator
    bits.state = type(bits)(np.random.SeedSequence(secrets.randbits(_SEED_BITS))).state


def seed_numpy_state(state: Any) -> None:
    """Seeds numpy's global state, or a `RandomState`."""
    state.seed([secrets.randbits(32) for _ in range(_SEED_BITS // 32)])


def seed_python_generator(generator: random.Random) -> None:
    """Seeds a generator of Python."""
    generator.seed(secrets.randbits(_SEED_BITS))


def with_new_keys(value: Any) -> Any:
    """The value with a new key of JAX in place of each key, at any depth.

    Raises:
        InvalidInput: it may hold a key of the old form, which looks like an array of integers.
    """
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return value
    if isinstance(value, jax.Array):
        return _new_key(jax, value)
    if isinstance(value, Mapping | list | tuple) or not jax.tree_util.all_leaves([value]):
        change: Callable[[Any], Any] = with_new_keys
        return jax.tree_util.tree_map(
            lambda leaf: change(leaf) if isinstance(leaf, jax.Array) else leaf, value
        )
    return value


def _new_key(jax: Any, array: Any) -> Any:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = secrets.randbits(32)
        fold = jax.random.fold_in
        return fold(array, data) if array.ndim == 0 else jax.vmap(fold, (0, None))(array, data)
    if array.dtype == jax.numpy.uint32 and array.ndim and array.shape[-1] in (2, 4):
        raise InvalidInput(
            "keys of JAX must be made by jax.random.key, so that a run that repeats steps can draw "
            "new noise, got an array that may be a key of jax.random.PRNGKey"
        )
    return array

"""Which numbers of a run follow from a random key of JAX.

A key is no state that moves: anyone who knows it can draw the same numbers again, and derive the
same further keys. So a returned key reveals the noise if the key of each draw was derived from it.
A key that is still unused reveals nothing. The calls of `jax.random` during a run show which keys
were used; calls within compiled functions are not seen.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit.loop.sources.trees import as_numbers, is_traced

NOISE, BATCHES = "noise", "batches"
_PURPOSES = {
    NOISE: ("normal", "multivariate_normal", "laplace"),
    BATCHES: ("bernoulli", "uniform", "choice", "permutation", "binomial", "randint"),
}
_OF_INDICES = ("choice", "permutation", "randint")
_DERIVATIONS = ("split", "fold_in", "clone")


@dataclass(frozen=True)
class Draw:
    """One call of a function that draws numbers.

    Attributes:
        function: its name in `jax.random`.
        key: the key that it was given.
        size: how many numbers it returned.
    """

    function: str
    key: bytes
    size: int


@dataclass
class KeyUses:
    """The calls of `jax.random` in a run.

    Attributes:
        parents: the key from which each further key was derived.
        draws: the draws, in their order.

    Example:
        >>> draws = [Draw("normal", b"child", 3), Draw("uniform", b"other", 3)]
        >>> uses = KeyUses({b"child": b"key"}, draws)
        >>> uses.revealed_by(b"key", 1), uses.revealed_by(b"child", 2)
        ({'noise'}, set())
    """

    parents: dict[bytes, bytes] = field(default_factory=dict)
    draws: list[Draw] = field(default_factory=list)

    def revealed_by(self, key: bytes, min_uses: int) -> set[str]:
        """Purposes whose draws, at least this number, all follow from a key."""
        revealed = set()
        for purpose in _PURPOSES:
            draws = self.draws_for(purpose)
            if len(draws) >= min_uses and all(self._follows(draw.key, key) for draw in draws):
                revealed.add(purpose)
        return revealed

    def draws_for(self, purpose: str) -> list[Draw]:
        """The draws by functions that are used for noise, or for batches."""
        return [draw for draw in self.draws if draw.function in _PURPOSES[purpose]]

    def choices_of_records(self, n: int) -> "KeyUses":
        """The draws that may choose a batch of n records: n numbers, or indices.

        Other uniform numbers are initial weights, or of an augmentation.
        """
        draws = self.draws_for(BATCHES)
        return KeyUses(
            self.parents, [draw for draw in draws if draw.size == n or draw.function in _OF_INDICES]
        )

    def _follows(self, key: bytes, ancestor: bytes) -> bool:
        seen: set[bytes] = set()
        while key != ancestor:
            if key in seen or key not in self.parents:
                return False
            seen.add(key)
            key = self.parents[key]
        return True


def keys_in(value: Any) -> list[bytes]:
    """The keys in an array of keys, or of the numbers that they hold.

    Example:
        >>> len(keys_in(np.zeros((3, 2), np.uint32))), keys_in(np.zeros(2))
        (3, [])
    """
    numbers = as_numbers(value)
    if numbers is None or numbers.dtype != np.uint32 or numbers.ndim == 0:
        return []
    return [row.tobytes() for row in numbers.reshape(-1, numbers.shape[-1])]


@contextlib.contextmanager
def recorded_keys(silent: Container[int] = ()) -> Iterator[KeyUses]:
    """Records the calls of `jax.random` whose key is known, if JAX is loaded.

    Args:
        silent: of the draws by functions that are used for noise, numbered from 0, those that
            return zeros.
    """
    uses = KeyUses()
    jax = sys.modules.get("jax")
    if jax is None:
        yield uses
        return
    drawing = [name for functions in _PURPOSES.values() for name in functions]
    before = {
        name: getattr(jax.random, name)
        for name in (*_DERIVATIONS, *drawing)
        if hasattr(jax.random, name)
    }
    for name, function in before.items():
        of_noise: Container[int] = silent if name in _PURPOSES[NOISE] else ()
        setattr(jax.random, name, _recorded(uses, name, function, of_noise))
    try:
        yield uses
    finally:
        for name, function in before.items():
            setattr(jax.random, name, function)


def _recorded(
    uses: KeyUses, name: str, function: Callable[..., Any], silent: Container[int]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        key = args[0] if args else kwargs.get("key")
        if is_traced((key, result)):
            return result
        number = len(uses.draws_for(NOISE))
        for used in keys_in(key):
            if name in _DERIVATIONS:
                uses.parents |= dict.fromkeys((k for k in keys_in(result) if k != used), used)
            else:
                uses.draws.append(Draw(name, used, int(np.size(result))))
        return 0 * result if number in silent else result

    return recorded

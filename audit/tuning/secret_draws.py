"""Secret random draws of a study: all follow from one key, through SHAKE-256.

numpy's generators are not ciphers: from enough of their output, such as released candidates and
scores, the rest can be computed. Here every draw has its own stream of SHAKE-256, so one draw
reveals nothing about the others without the key.
"""

import hashlib
import math
from typing import Any

import numpy as np

_MERSENNE_BYTES = 2496  # the state of numpy's MT19937: 624 words of 32 bits
_DROPPED_BITS = 11  # of 64; a double in [0, 1) holds 53


def _stream(key: int, *place: int) -> Any:
    return hashlib.shake_256(":".join(["study", f"{key:x}", *map(str, place)]).encode())


def secret_integer(bits: int, key: int, *place: int) -> int:
    """Uniform integer in [0, 2^bits), the same for the same key and place; 8 divides `bits`."""
    return int.from_bytes(_stream(key, *place).digest(bits // 8), "little")


class Draws(np.random.Generator):
    """numpy's `Generator` over bits from SHAKE-256, the same for the same key and place.

    `random` takes all its bits from SHAKE-256. The other methods take their first 19,968 bits from
    it, which is more than one draw of K, or of a score's noise, needs; the Mersenne twister then
    extends them.
    """

    def __init__(self, key: int, *place: int) -> None:
        bits = np.random.MT19937(0)
        words = np.frombuffer(_stream(key, *place).digest(_MERSENNE_BYTES), dtype="<u4")
        bits.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 0}}
        super().__init__(bits)
        self._place, self._calls = (key, *place), 0

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        """Uniform numbers in [0, 1), [size]."""
        self._calls += 1
        shape = () if size is None else size
        count = math.prod(shape) if isinstance(shape, tuple) else int(shape)
        # Every call has its own place, with one coordinate more than any other draw.
        taken = _stream(*self._place, -1, self._calls).digest(8 * count)
        uniform = (np.frombuffer(taken, dtype="<u8") >> _DROPPED_BITS) * 2.0**-53
        return float(uniform[0]) if size is None else uniform.reshape(size)

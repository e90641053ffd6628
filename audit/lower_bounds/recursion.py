"""What the exact recursions over order statistics share."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_DIRECT = 300_000


def convolve(a: Array, b: Array) -> Array:
    """Convolution of two non-negative sequences, [n] and [m] to [n + m - 1]."""
    if len(a) * len(b) < _DIRECT:
        return np.convolve(a, b)
    size = 1 << (len(a) + len(b) - 2).bit_length()
    product = np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size), size)
    return np.maximum(product[: len(a) + len(b) - 1], 0.0)

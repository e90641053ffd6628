"""Types of the arrays that functions take and return, and products of arrays by one thread."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolArray", "ComplexArray", "FloatArray", "IntArray", "dot", "matrix_product"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
ComplexArray = NDArray[np.complex128]

# OpenBLAS starts threads for matrix products of more multiplications than this.
_OF_ONE_THREAD = 1 << 18


def dot(first: FloatArray, second: FloatArray) -> FloatArray:
    """The sums [...] of products over the last axis of [..., n] and of [n], by one thread.

    From 10,000 numbers on, the product of numpy starts threads. On a busy machine, each of them
    waits for the others and spends processor time: more than ten times what the product takes.
    """
    return np.asarray(np.einsum("...i,i->...", first, second))


def matrix_product(first: FloatArray, second: FloatArray) -> FloatArray:
    """The product of matrices [n, k] and [k, m] by one thread, in blocks of rows; see `dot`."""
    rows = max(_OF_ONE_THREAD // second.size, 1)
    if rows >= len(first):
        return np.asarray(first @ second)
    return np.concatenate([first[at : at + rows] @ second for at in range(0, len(first), rows)])

"""Products of arrays by one thread."""

import numpy as np
import pytest

from audit.numerics import dot, matrix_product


@pytest.mark.parametrize("shape", [(0,), (5,), (40_000,), (3, 12_000), (2, 3, 7)])
def test_dot_is_the_product_of_numpy(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    first, second = random.random(shape), random.random(shape[-1])
    np.testing.assert_allclose(dot(first, second), first @ second, rtol=1e-12)


@pytest.mark.parametrize("shape", [(5, 4, 3), (700, 300, 40), (3, 2000, 500), (0, 4, 3)])
def test_blocks_of_rows_are_the_whole_product(shape: tuple[int, int, int]) -> None:
    random = np.random.default_rng(0)
    first, second = random.random(shape[:2]), random.random(shape[1:])
    np.testing.assert_allclose(matrix_product(first, second), first @ second, rtol=1e-12)

"""Largest contribution of one record to each released gradient, from coupled runs.

The accountant assumes that the record adds at most C to a step, so that two records differ by at
most 2C. Half of the largest distance between two coupled runs is a lower bound on the largest
contribution of one record, whatever the gradients are divided by.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.numerics import FloatArray


@dataclass(frozen=True)
class Contributions:
    """The largest contributions that a pool of canaries shows.

    Attributes:
        largest: [T], of every step; 0 where no canary was in the batch.
        by_tensor: [T, tensors], the largest contributions to each tensor of parameters.
        pairs: [T, 2], the two canaries that differ most; -1 is an absent record.
        of_pair: [T], half the distance of the two canaries of `best_pair`.
        best_pair: the two canaries that differ most over all steps together.
        rounding: [T], distances that floating-point rounding alone may cause.
        distances: [P, P], half the largest distance of two canaries over the steps.
    """

    largest: FloatArray
    by_tensor: FloatArray
    pairs: NDArray[np.int64]
    of_pair: FloatArray
    best_pair: tuple[int, int]
    rounding: FloatArray
    distances: FloatArray


def contributions(
    gradients: Sequence[FloatArray],
    slices: Sequence[slice],
    epsilon_of_type: float,
    absent: FloatArray | None = None,
) -> Contributions:
    """Largest contributions of one record over a pool of coupled runs.

    Args:
        gradients: [T, D] for every canary, all coupled to one reference.
        slices: the coordinates of every tensor.
        epsilon_of_type: spacing of the floating-point type that the gradients had.
        absent: [T, D] of a run without the record that draws the same noise, or None.

    Example:
        >>> pool = [np.array([[0.0, 0.0]]), np.array([[2.0, 0.0]])]
        >>> float(contributions(pool, [slice(0, 2)], 0.0).largest[0])
        1.0
    """
    steps = min(len(g) for g in gradients)
    count = len(gradients)
    largest, by_tensor = np.zeros(steps), np.zeros((steps, len(slices)))
    pairs, rounding = np.full((steps, 2), -1), np.zeros(steps)
    total = np.zeros((count, count))
    distances = np.zeros((steps, count, count))
    for t in range(steps):
        values = np.stack([g[t] for g in gradients])
        finite = np.isfinite(values).all(axis=1)
        shifted = np.where(finite[:, None], values - values[np.argmax(finite)], 0.0)
        squares = np.zeros((count, count))
        for index, columns in enumerate(slices):
            squared_distances = _squared_distances(shifted[:, columns])
            squares += squared_distances
            by_tensor[t, index] = np.sqrt(squared_distances.max()) / 2
        distances[t] = np.sqrt(squares) / 2
        total += squares
        best = np.unravel_index(np.argmax(squares), squares.shape)
        largest[t], pairs[t] = distances[t][best], best
        norms = np.linalg.norm(values[finite], axis=1)
        rounding[t] = 8 * epsilon_of_type * float(norms.max(initial=0.0))
        if absent is not None and t < len(absent) and np.isfinite(absent[t]).all():
            gap = np.where(finite[:, None], values - absent[t], 0.0)
            # Compared with its absence, a record changes a step by its whole contribution.
            reach = np.linalg.norm(gap, axis=1)
            if reach.max() > largest[t]:
                largest[t], pairs[t] = reach.max(), (int(np.argmax(reach)), -1)
            for index, columns in enumerate(slices):
                reach_of_tensor = np.linalg.norm(gap[:, columns], axis=1).max()
                by_tensor[t, index] = max(by_tensor[t, index], reach_of_tensor)
    row, other_index = np.unravel_index(np.argmax(total), total.shape)
    best_pair = int(row), int(other_index)
    of_pair = distances[:, row, other_index]
    over_steps = distances.max(axis=0)
    return Contributions(largest, by_tensor, pairs, of_pair, best_pair, rounding, over_steps)


def _squared_distances(values: FloatArray) -> FloatArray:
    """[P, P] squared Euclidean distances of the rows."""
    products = values @ values.T
    squares = np.diag(products)
    distances: FloatArray = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
    # The difference of large squares loses digits that a direct difference keeps.
    best = np.unravel_index(np.argmax(distances), distances.shape)
    distances[best] = distances[best[::-1]] = np.square(values[best[0]] - values[best[1]]).sum()
    return distances

"""The scores of a finished game."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# Splits are the dearer and the more alike the more trials there are.
_SPLITS, _SPLITS_OF_MANY, _MANY = 21, 7, 20_000


def checked(name: str, scores: ArrayLike) -> Array:
    """Scores [n] as numbers, or a ValueError that names them: NaN is refused and counted."""
    try:
        if np.iscomplexobj(scores):
            raise TypeError("complex")
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a list of numbers, got {type(scores).__name__}"
        ) from error
    except OverflowError as error:
        raise ValueError(
            f"{name} must be numbers that a float can hold, got larger ones"
        ) from error
    if values.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {values.shape}")
    missing = int(np.count_nonzero(np.isnan(values)))
    if missing:
        raise ValueError(f"{name} must not be NaN, got {missing} NaN among {len(values)} scores")
    return values


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the trials without the record [n0] and with it [n1], in the order of the trials.

    High scores speak for the record. Ties and infinities are allowed, NaN is not; either side may
    be empty.
    """

    without: Array
    with_record: Array

    @classmethod
    def of(cls, scores_without: ArrayLike, scores_with: ArrayLike) -> "Scores":
        """Checks what a user passes in.

        Raises:
            ValueError: an argument is not a list of numbers, or has NaN in it.
        """
        return cls(checked("scores_without", scores_without), checked("scores_with", scores_with))

    @cached_property
    def sorted_without(self) -> Array:
        """Scores without the record, ascending."""
        return np.sort(self.without)

    @cached_property
    def sorted_with(self) -> Array:
        """Scores with the record, ascending."""
        return np.sort(self.with_record)

    @property
    def mirrored(self) -> "Scores":
        """The same game for an adversary who takes low scores to speak for the record."""
        return Scores(-self.without, -self.with_record)

    @cached_property
    def even_and_odd(self) -> tuple["Scores", "Scores"]:
        """The trials of even and of odd place on each side."""
        return (
            Scores(self.without[0::2], self.with_record[0::2]),
            Scores(self.without[1::2], self.with_record[1::2]),
        )

    @cached_property
    def random_halves(self) -> list[tuple["Scores", "Scores"]]:
        """Splits of the trials at random, the same ones every time.

        They go by the order of the trials: by the order of the scores, a fixed choice would make
        the halves depend on each other.
        """
        rng = np.random.default_rng(0)
        n0, n1 = len(self.without), len(self.with_record)
        halves = []
        for _ in range(_SPLITS if n0 + n1 < _MANY else _SPLITS_OF_MANY):
            first, second = rng.permutation(n0) % 2 == 0, rng.permutation(n1) % 2 == 0
            halves.append(
                (
                    Scores(self.without[first], self.with_record[second]),
                    Scores(self.without[~first], self.with_record[~second]),
                )
            )
        return halves

    def false_positives(self, thresholds: Array) -> Counts:
        """How many scores without the record are above each threshold."""
        below = np.searchsorted(self.sorted_without, thresholds, side="right")
        return np.asarray(len(self.without) - below, dtype=np.int64)

    def false_negatives(self, thresholds: Array) -> Counts:
        """How many scores with the record are not above each threshold."""
        return np.asarray(
            np.searchsorted(self.sorted_with, thresholds, side="right"), dtype=np.int64
        )

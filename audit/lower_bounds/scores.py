"""The scores of a finished audit."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import FloatArray, IntArray


def checked(name: str, scores: ArrayLike) -> FloatArray:
    """Scores [n] as an array of floats. An error starts with `name`."""
    try:
        if _is_text(scores):
            raise TypeError("text")
        values = checks.to_floats(scores)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{name} must be a list of numbers, got {checks.one_line(scores)}"
        ) from error
    except OverflowError as error:
        raise InvalidInput(
            f"{name} must be numbers that a float can hold, got larger ones"
        ) from error
    if values.ndim != 1:
        raise InvalidInput(f"{name} must have one dimension, got shape {values.shape}")
    missing = int(np.count_nonzero(np.isnan(values)))
    if missing:
        raise InvalidInput(f"{name} must not be NaN, got {missing} NaN among {len(values)} scores")
    return values


def checked_nonempty(name: str, scores: ArrayLike) -> FloatArray:
    """Scores [n], n > 0, as an array of floats. An error starts with `name`."""
    values = checked(name, scores)
    if not len(values):
        raise InvalidInput(f"{name} must have at least one score, got none")
    return values


def _is_text(scores: ArrayLike) -> bool:
    """Whether scores are text or bytes, of which numpy would make numbers."""
    if isinstance(scores, bytes | bytearray | memoryview):
        return True
    array = np.asarray(scores)
    if array.dtype.kind in "SUV":
        return True
    return array.dtype == object and any(isinstance(item, str | bytes) for item in array.flat)


def checked_canaries(
    name: str, scores: ArrayLike, included: ArrayLike
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Scores [m] of the canaries of one run, and whether each was included, [m]."""
    values, coins = checked(name, scores), np.asarray(included)
    if coins.shape != values.shape or coins.dtype != np.bool_:
        raise InvalidInput(
            f"included must be one true or false per score, got {coins.dtype} of shape "
            f"{coins.shape} for {values.shape}"
        )
    return values, coins


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the trials in their order; high scores indicate the record. NaN is refused."""

    out_scores: FloatArray
    in_scores: FloatArray

    @classmethod
    def of(cls, out_scores: ArrayLike, in_scores: ArrayLike) -> "Scores":
        """Scores from user input, which must be lists of numbers without NaN."""
        return cls(checked("out_scores", out_scores), checked("in_scores", in_scores))

    @cached_property
    def sorted_out(self) -> FloatArray:
        """Scores without the record, ascending."""
        return np.sort(self.out_scores)

    @cached_property
    def sorted_in(self) -> FloatArray:
        """Scores with the record, ascending."""
        return np.sort(self.in_scores)

    @property
    def mirrored(self) -> "Scores":
        """The negated scores, for an adversary who expects low scores with the record."""
        return Scores(-self.out_scores, -self.in_scores)

    @cached_property
    def even_and_odd(self) -> tuple["Scores", "Scores"]:
        """The trials at even and at odd positions of each side."""
        return (
            Scores(self.out_scores[0::2], self.in_scores[0::2]),
            Scores(self.out_scores[1::2], self.in_scores[1::2]),
        )

    def false_positives(self, thresholds: FloatArray) -> IntArray:
        """Number of scores without the record above each threshold."""
        below = np.searchsorted(self.sorted_out, thresholds, side="right")
        return np.asarray(len(self.out_scores) - below, dtype=np.int64)

    def false_negatives(self, thresholds: FloatArray) -> IntArray:
        """Number of scores with the record at or below each threshold."""
        return np.asarray(np.searchsorted(self.sorted_in, thresholds, side="right"), dtype=np.int64)

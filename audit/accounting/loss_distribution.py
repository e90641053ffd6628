"""A mechanism given by its privacy loss distribution."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.accounting.mechanism import GIVEN, Mechanism
from audit.accounting.pairs import DominatingPair, LossPair, PrivacyLossPmf
from audit.arrays import FloatArray
from audit.errors import InvalidInput
from audit.numerics import safe_log

_ROUNDING = 1e-6  # allowed error of a sum of 1e5 masses


@dataclass(frozen=True, eq=False)
class LossDistribution(Mechanism):
    """Any mechanism that is dominated by a privacy loss with finitely many values.

    A loss log(P/P') with P-probability p has P'-probability p e^-loss. The remaining mass of P'
    belongs to outputs that occur only under P'. So one direction determines its mirror image, which
    bounds the other direction. A second distribution can only tighten the result.

    Attributes:
        losses: [n] finite, strictly increasing.
        probabilities: [n] under P.
        infinite: P-probability of an infinite loss.
        reverse: the other direction; None for the mirror image of this one. Pass the same
            distribution if it bounds both directions.
        directed: whether P is known to be the data set with the record.

    Raises:
        InvalidInput: the losses do not increase, or the masses are not probabilities under P and
            P'.

    Example:
        >>> one = LossDistribution([-1.0, 1.0], [0.2689414, 0.7310586])
        >>> round(one.epsilon(1e-6), 3)  # randomised response of epsilon 1
        1.0
        >>> skewed = LossDistribution([-4.60517, 0.10436], [0.001, 0.999])
        >>> round(skewed.epsilon(0.01), 2)  # the mirror image has the larger losses
        4.5
    """

    losses: FloatArray
    probabilities: FloatArray
    infinite: float = 0.0
    reverse: "LossDistribution | None" = None
    directed: bool = False

    def __post_init__(self) -> None:
        losses, masses = (
            _numbers("losses", self.losses),
            _numbers("probabilities", self.probabilities),
        )
        if np.any(np.diff(losses) <= 0.0):
            raise InvalidInput("losses must increase strictly, got some that do not")
        if masses.shape != losses.shape or np.any(masses < 0.0):
            raise InvalidInput(
                f"probabilities must be {losses.size} numbers >= 0, got {checks.one_line(masses)}"
            )
        infinite = checks.interval(
            "infinite", self.infinite, 0.0, 1.0, closed_low=True, closed_high=True
        )
        checks.validate(self, "directed", checks.flag)
        total, total_of_other = masses.sum() + infinite, self._masses_of_other(losses, masses).sum()
        if abs(total - 1.0) > _ROUNDING or total_of_other > 1.0 + _ROUNDING:
            raise InvalidInput(
                "probabilities must sum to 1, and to at most 1 under the other data set, "
                f"got {total:.9g} and {total_of_other:.9g}"
            )
        checks.store_validated(self, losses=losses, probabilities=masses, infinite=infinite)

    @staticmethod
    def _masses_of_other(losses: FloatArray, masses: FloatArray) -> FloatArray:
        return np.exp(safe_log(masses) - losses)

    @cached_property
    def _pair(self) -> LossPair:
        log_mass = safe_log(self.probabilities)
        is_possible = log_mass > -np.inf
        lacking = 1.0 - float(self._masses_of_other(self.losses, self.probabilities).sum())
        # If rounding leaves a sum below 1, the difference counts as infinite loss.
        leak = max(self.infinite, 1.0 - float(self.probabilities.sum()))
        return LossPair(
            PrivacyLossPmf(self.losses[is_possible], log_mass[is_possible], leak, max(lacking, 0.0))
        )

    @property
    def pairs(self) -> tuple[DominatingPair, ...]:
        if self.reverse is None:
            return self._pair, self._pair.mirrored
        return (self._pair,) if self._is_own_reverse else (self._pair, self.reverse._pair)

    @cached_property
    def _is_own_reverse(self) -> bool:
        reverse = self.reverse
        return (
            reverse is not None
            and np.array_equal(self.losses, reverse.losses)
            and np.array_equal(self.probabilities, reverse.probabilities)
            and self.infinite == reverse.infinite
        )

    @property
    def is_directed(self) -> bool:
        return self.directed or self._is_own_reverse

    @property
    def description(self) -> str:
        return f"a privacy loss distribution of {len(self.losses)} losses; {GIVEN}"


def _numbers(name: str, values: ArrayLike) -> FloatArray:
    numbers = checks.numbers(name, values)
    if numbers.ndim != 1 or numbers.size == 0 or not np.isfinite(numbers).all():
        raise InvalidInput(
            f"{name} must be finite numbers in one dimension, got {checks.one_line(numbers)}"
        )
    return numbers

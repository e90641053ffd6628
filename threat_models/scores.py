"""Score functions g: which of the runs is called the best.

A score maps the released output of R runs to R numbers, higher is better. The adversary of NTCV and
ETCV picks any score; in NTNV it is the loss on honest validation data (Xiang et al. 2024, table 2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from canaries import InputCanary
from threat_models.datasets import Records

Array = NDArray[np.float64]
Features = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Observation:
    """The released output of R runs, as far as a score looks at it.

    Attributes:
        first_displacement: [R], (w_0 - w_N)[0].
        standardised_sum: [R], sum_i (p_i - s_i)[0] / (C sigma sqrt(N)), where s_i is the sum of the
            clipped gradients of the training set, which the adversary knows. With the Dirac canary
            and sampling rate 1 it is N(0, 1) without the canary and N(sqrt(N) / sigma, 1) with it.
    """

    first_displacement: Array
    standardised_sum: Array

    def parameters(self) -> Array:
        """The flat parameters of every final model, [R, d]."""
        raise ValueError("this engine keeps no model: take the batched engine for this score")

    def loss(self, features: Features, labels: NDArray[np.int64]) -> Array:
        """The sum of every final model's cross-entropy over n records.

        Args:
            features: [n, ...] records.
            labels: [n] classes.

        Returns:
            [R] sums, in nats.
        """
        raise ValueError("this engine keeps no model: take the batched engine for this score")


class Score(Protocol):
    """A score function; any object with these three may be one."""

    @property
    def name(self) -> str:
        """What settings and reports call it."""
        ...

    @property
    def needs_model(self) -> bool:
        """Whether it looks at more than the first coordinate."""
        ...

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R], higher is better."""
        ...


@dataclass(frozen=True)
class FirstCoordinate:
    """(w_0 - w_N)[0], the paper's score for the Dirac canary (table 2)."""

    name: str = "first-coordinate"
    needs_model: bool = False

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R]."""
        return observation.first_displacement


def worst_order_key(
    x: Array,
    bottom: float,
    top: float,
    mirrored: bool = False,
    ascending: tuple[bool, bool, bool] = (False, False, True),
) -> Array:
    """The rank of x in a split order of the line, as one number: larger is better.

    The line falls into three blocks, from worst to best: the middle [bottom, top], the low x <
    bottom, the top x > top. The key is ``block * 1e6 + inner`` with block 0, 1, 2 and inner = x or
    -x; it orders rightly where |x| < 5e5.

    Args:
        x: standardised sums, any shape.
        bottom: where the low block ends.
        top: where the top block begins, >= bottom.
        mirrored: take -x for x throughout, so that the best are x < -top.
        ascending: for the middle, low and top block, whether a larger x is better inside it. By
            default the smaller x is better everywhere below top: the split order of the theory,
            in which bottom plays no part.

    Returns:
        Keys, of the shape of x.
    """
    x = -x if mirrored else x
    block = np.where(x > top, 2, np.where(x < bottom, 1, 0))
    sign = np.where(ascending, 1.0, -1.0)
    return np.asarray(block * 1e6 + sign[block] * x)


@dataclass(frozen=True)
class WorstOrder:
    """A split order of the standardised sum, which leaks more than any continuous score can.

    See `worst_order_key`; the thresholds come from the theory of the order (upper_bounds).

    Raises:
        ValueError: bottom above top, or NaN. Infinite thresholds make blocks empty.
    """

    bottom: float
    top: float
    mirrored: bool = False
    ascending: tuple[bool, bool, bool] = (False, False, True)
    name: str = "worst-order"
    needs_model: bool = False

    def __post_init__(self) -> None:
        if not self.bottom <= self.top:
            raise ValueError(f"worst_order must have bottom <= top, got {self.bottom}, {self.top}")
        if len(self.ascending) != 3:
            raise ValueError(f"worst_order ascending must have 3 entries, got {self.ascending}")

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R]."""
        x = observation.standardised_sum
        return worst_order_key(x, self.bottom, self.top, self.mirrored, self.ascending)


@dataclass(frozen=True, eq=False)
class CanaryLoss:
    """Minus the loss on the canary itself (table 2, NTCV 1-3 and ETCV 1-3)."""

    canary: InputCanary
    name: str = "canary-loss"
    needs_model: bool = True

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R]."""
        return -observation.loss(self.canary.features[None], np.array([self.canary.label]))


@dataclass(frozen=True, eq=False)
class ValidationLoss:
    """Minus the sum of the losses over a validation set (table 2, NTNV)."""

    records: Records
    name: str = "validation-loss"
    needs_model: bool = True

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R]."""
        return -observation.loss(self.records.features, self.records.labels)


@dataclass(frozen=True)
class UserScore:
    """A score function of one's own.

    Attributes:
        function: takes an `Observation` of R runs, gives [R] numbers, higher is better.
        name: what reports call it.
        needs_model: False where it looks at the first coordinate alone.
    """

    function: Callable[[Observation], Array]
    name: str = "user"
    needs_model: bool = True

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R]."""
        return self.function(observation)

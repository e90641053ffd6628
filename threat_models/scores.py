"""Score functions g: which of the runs is called the best.

A score maps the released output of R runs to R numbers, higher is better. The adversary of NTCV and
ETCV picks any score; in NTNV it is the loss on honest validation data (Xiang et al. 2024, table 2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from audit.orders import SplitOrder
from canaries import InputCanary
from threat_models.datasets import Records
from threat_models.user_code import errors_in_one_line

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

    Example:
        >>> import numpy as np
        >>> Observation(np.array([0.5, 2.0]), np.zeros(2)).first_displacement.tolist()
        [0.5, 2.0]
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
    """A score function; any object with these three may be one.

    Example:
        >>> score: Score = FirstCoordinate()
        >>> score.name, score.needs_model
        ('first-coordinate', False)
    """

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
    """(w_0 - w_N)[0], the paper's score for the Dirac canary (table 2).

    Example:
        >>> import numpy as np
        >>> FirstCoordinate()(Observation(np.array([0.5, 2.0]), np.zeros(2))).tolist()
        [0.5, 2.0]
    """

    name: str = "first-coordinate"
    needs_model: bool = False

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R]."""
        return observation.first_displacement


@dataclass(frozen=True)
class WorstOrder:
    """A split order of the standardised sum x, which leaks more than any increasing score can.

    x > top is best, the larger the better; below it the smaller the better. So a small x, which
    speaks against the canary, is released only if no run exceeds top, which does so too. What it
    leaks, and where to split, is the theory's (`audit.upper_bounds.worst_order`).

    Attributes:
        top: where the order splits, in standard deviations; may be infinite.

    Raises:
        ValueError: top is NaN.

    Example:
        >>> import numpy as np
        >>> WorstOrder(2.0)(Observation(np.zeros(2), np.array([3.0, -1.0]))).argmax()
        np.int64(0)
    """

    top: float
    name: str = "worst-order"
    needs_model: bool = False

    def __post_init__(self) -> None:
        if np.isnan(self.top):
            raise ValueError(f"worst_order must be a number, got {self.top}")

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R]."""
        return SplitOrder(self.top).rank(observation.standardised_sum)


@dataclass(frozen=True)
class TwoTails:
    """1 where the standardised sum x is in one of two tails, else 0: what is worth releasing.

    The worst score of protocols that run until a run is accepted: one tail speaks for the canary
    and the other against it, so that each is released the less often the likelier the other is.

    Attributes:
        low: below it a run is accepted, in standard deviations.
        high: above it a run is accepted.

    Raises:
        ValueError: a limit is NaN.

    Example:
        >>> import numpy as np
        >>> TwoTails(-1.0, 1.0)(Observation(np.zeros(3), np.array([-2.0, 0.0, 2.0]))).tolist()
        [1.0, 0.0, 1.0]
    """

    low: float
    high: float
    name: str = "worst-order"
    needs_model: bool = False

    def __post_init__(self) -> None:
        if np.isnan(self.low) or np.isnan(self.high):
            raise ValueError(f"worst_order must be numbers, got {self.low} and {self.high}")

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R]."""
        x = observation.standardised_sum
        return np.asarray((x < self.low) | (x > self.high), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class CanaryLoss:
    """Minus the loss on the canary itself (table 2, NTCV 1-3 and ETCV 1-3).

    Example:
        >>> import numpy as np
        >>> CanaryLoss(InputCanary(np.zeros((1, 8, 8), np.float32), 3)).needs_model
        True
    """

    canary: InputCanary
    name: str = "canary-loss"
    needs_model: bool = True

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R]."""
        return -observation.loss(self.canary.features[None], np.array([self.canary.label]))


@dataclass(frozen=True, eq=False)
class ValidationLoss:
    """Minus the sum of the losses over a validation set (table 2, NTNV).

    Example:
        >>> import numpy as np
        >>> ValidationLoss(Records(np.zeros((1, 4), np.float32), np.array([0]), 10, "mine")).name
        'validation-loss'
    """

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

    Example:
        >>> import numpy as np
        >>> mine = UserScore(lambda observation: -abs(observation.first_displacement), "small")
        >>> mine(Observation(np.array([0.5, -2.0]), np.zeros(2))).tolist()
        [-0.5, -2.0]
    """

    function: Callable[[Observation], Array]
    name: str = "user"
    needs_model: bool = True

    def __call__(self, observation: Observation) -> Array:
        """The scores of R runs, [R].

        Raises:
            ValueError: the function raises, or gives anything else.
        """
        with errors_in_one_line(f"score {self.name} must give numbers"):
            given = np.asarray(self.function(observation))
            if np.iscomplexobj(given):
                raise TypeError("complex numbers have no order")
            scores = given.astype(np.float64)
        runs = observation.first_displacement.shape
        if scores.shape != runs:
            raise ValueError(
                f"score {self.name} must give one number per run, got shape {scores.shape} for "
                f"{runs[0]} runs"
            )
        return scores

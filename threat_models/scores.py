"""Score functions g, which determine the best run.

A score maps the outputs of R runs to R numbers; higher is better. In NTCV and ETCV the adversary
chooses the score. In NTNV the score is the validation loss (Xiang et al. 2024, table 2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from audit.numerics import FloatArray
from audit.orders import SplitOrder
from audit.user_code import errors_in_one_line
from canaries import InputCanary
from threat_models.datasets.records import Records

Features = NDArray[np.float32] | NDArray[np.float64]

_NO_MODEL = "score must not use the model, which this engine does not train; use the batched engine"


@dataclass(frozen=True, eq=False)
class Observation:
    """The outputs of R runs, as input of a score.

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

    first_displacement: FloatArray
    standardised_sum: FloatArray

    def parameters(self) -> FloatArray:
        """The flat parameters of every final model, [R, d].

        Raises:
            InvalidInput: the engine trains no model.
        """
        raise InvalidInput(_NO_MODEL)

    def loss(self, features: Features, labels: NDArray[np.int64]) -> FloatArray:
        """The sum of every final model's cross-entropy over n records.

        Args:
            features: [n, ...] records.
            labels: [n] classes.

        Returns:
            [R] sums, in nats.

        Raises:
            InvalidInput: the engine trains no model.
        """
        raise InvalidInput(_NO_MODEL)


class Score(Protocol):
    """A score function: any object with these two attributes that can be called.

    Example:
        >>> score: Score = FirstCoordinate()
        >>> score.name, score.needs_model
        ('first-coordinate', False)
    """

    @property
    def name(self) -> str:
        """The score's name in settings and reports."""
        ...

    @property
    def needs_model(self) -> bool:
        """Whether it uses more than the first coordinate."""
        ...

    def __call__(self, observation: Observation) -> FloatArray:
        """The scores of R runs, [R]; higher is better."""
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

    def __call__(self, observation: Observation) -> FloatArray:
        return observation.first_displacement


@dataclass(frozen=True)
class WorstOrder:
    """A split order of the standardised sum x, which can leak more than every increasing score.

    Values above `top` rank highest, larger ones first. Below `top`, smaller values rank higher. A
    small x, which is evidence against the canary, is released only if no run exceeds `top`, which
    is also evidence against it. `audit.attacks.worst_case_split_order` computes the split with the
    largest epsilon.

    Attributes:
        top: the split, in standard deviations; may be infinite.

    Raises:
        InvalidInput: `top` is NaN.

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
            raise InvalidInput(f"worst_order must be a number, got {self.top}")

    def __call__(self, observation: Observation) -> FloatArray:
        return SplitOrder(self.top).rank(observation.standardised_sum)


@dataclass(frozen=True)
class TwoTails:
    """1 if the standardised sum x is in one of two tails, else 0.

    This is the worst-case score of protocols that stop at the first accepted run. One tail is
    evidence for the canary and the other against it; a run in one tail is released less often if
    the other tail is more likely.

    Attributes:
        low: runs below it are accepted, in standard deviations.
        high: runs above it are accepted, in standard deviations.

    Raises:
        InvalidInput: a limit is NaN.

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
            raise InvalidInput(f"worst_order must be numbers, got {self.low} and {self.high}")

    def __call__(self, observation: Observation) -> FloatArray:
        x = observation.standardised_sum
        return np.asarray((x < self.low) | (x > self.high), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class CanaryLoss:
    """Minus the loss on the canary (table 2, NTCV 1-3 and ETCV 1-3).

    Example:
        >>> import numpy as np
        >>> CanaryLoss(InputCanary(np.zeros((1, 8, 8), np.float32), 3)).needs_model
        True
    """

    canary: InputCanary
    name: str = "canary-loss"
    needs_model: bool = True

    def __call__(self, observation: Observation) -> FloatArray:
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

    def __call__(self, observation: Observation) -> FloatArray:
        return -observation.loss(self.records.features, self.records.labels)


@dataclass(frozen=True)
class UserScore:
    """A user-defined score function.

    Attributes:
        function: maps an `Observation` of R runs to [R] numbers; higher is better.
        name: its name in reports.
        needs_model: False if it uses only the first coordinate.

    Example:
        >>> import numpy as np
        >>> mine = UserScore(lambda observation: -abs(observation.first_displacement), "small")
        >>> mine(Observation(np.array([0.5, -2.0]), np.zeros(2))).tolist()
        [-0.5, -2.0]
    """

    function: Callable[[Observation], FloatArray]
    name: str = "user"
    needs_model: bool = True

    def __call__(self, observation: Observation) -> FloatArray:
        with errors_in_one_line(f"score {self.name} must return numbers"):
            values = np.asarray(self.function(observation))
            if np.iscomplexobj(values):
                raise TypeError("complex numbers have no order")
            scores = values.astype(np.float64)
        runs = observation.first_displacement.shape
        if scores.shape != runs:
            raise InvalidInput(
                f"score {self.name} must return one number per run, got shape {scores.shape} for "
                f"{runs[0]} runs"
            )
        return scores

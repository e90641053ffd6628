"""The class `ThreatModel`, and the three threat models of table 2."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from canaries import Canary, InputCanary
from threat_models.datasets.records import Records
from threat_models.scores import Score, ValidationLoss


@dataclass(frozen=True, eq=False)
class ThreatModel:
    """A threat model: the neighbouring data sets, the score and the proxies (table 2).

    Attributes:
        name: "NTNV", "NTCV" or "ETCV".
        training_set: X, or None if X is empty.
        validation_set: the validation records, which the adversary does not control, or None.
        canary: z, with X' = X plus z.
        score: g; the tuning releases the run with the highest score.
        proxy_sign: s of lambda_b = lambda_a + s g: -1 in NTNV, +1 in NTCV and ETCV.
        record_shape: shape of one record as the model sees it.
        classes: number of classes.

    Raises:
        InvalidInput: the canary does not fit the records.

    Example:
        >>> from threat_models import build
        >>> build("ETCV", "dirac").name
        'ETCV'
    """

    name: str
    training_set: Records | None
    validation_set: Records | None
    canary: Canary
    score: Score
    proxy_sign: int
    record_shape: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        for records in (self.training_set, self.validation_set):
            if records is not None and records.features.shape[1:] != self.record_shape:
                raise InvalidInput(
                    f"records of {records.name} must have shape {self.record_shape}, "
                    f"got {records.features.shape[1:]}"
                )
        if isinstance(self.canary, InputCanary):
            if self.canary.features.shape != self.record_shape:
                raise InvalidInput(
                    f"canary {self.canary.name} must have shape {self.record_shape} "
                    f"to fit the data set, got {self.canary.features.shape}"
                )
            if self.canary.label >= self.classes:
                raise InvalidInput(
                    f"canary label must be in [0, {self.classes - 1}], got {self.canary.label}"
                )

    def lambda_b(
        self, lambda_a: NDArray[np.float64], scores: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Proxy lambda_b, which combines lambda_a and the score (Xiang et al. 2024, equation 10).

        Args:
            lambda_a: base proxies, any shape.
            scores: scores g(y) of the same runs.

        Returns:
            lambda_a - g in NTNV, lambda_a + g in NTCV and ETCV.
        """
        return lambda_a + self.proxy_sign * scores


def ntnv(training_set: Records, validation_set: Records, canary: Canary) -> ThreatModel:
    """NTNV: normal training, normal validation (table 2, first row).

    The score is minus the validation loss, which the adversary cannot choose. lambda_b is
    lambda_a - g: a canary that harms the model lowers its score.

    Args:
        training_set: X, with X' = X plus z.
        validation_set: the validation records.
        canary: z, the inserted record or gradient.

    Example:
        >>> from canaries import DiracCanary
        >>> from threat_models import datasets
        >>> digits = datasets.load("DIGITS", True, None, 5)
        >>> ntnv(digits, digits, DiracCanary()).score.name
        'validation-loss'
    """
    score, shape = ValidationLoss(validation_set), training_set.features.shape[1:]
    return ThreatModel(
        "NTNV", training_set, validation_set, canary, score, -1, shape, training_set.classes
    )


def ntcv(
    training_set: Records, validation_set: Records | None, canary: Canary, score: Score
) -> ThreatModel:
    """NTCV: normal training, controlled score (table 2, second row); lambda_b is lambda_a + g.

    Args:
        training_set: X, with X' = X plus z.
        validation_set: validation records, for scores that use them.
        canary: z, the inserted record or gradient.
        score: g, which the adversary chooses.

    Example:
        >>> from canaries import DiracCanary
        >>> from threat_models import FirstCoordinate, datasets
        >>> digits = datasets.load("DIGITS", True, None, 5)
        >>> ntcv(digits, digits, DiracCanary(), FirstCoordinate()).name
        'NTCV'
    """
    shape = training_set.features.shape[1:]
    return ThreatModel(
        "NTCV", training_set, validation_set, canary, score, 1, shape, training_set.classes
    )


def etcv(canary: Canary, score: Score, record_shape: tuple[int, ...], classes: int) -> ThreatModel:
    """ETCV: empty training set, controlled score (table 2, last row); lambda_b is lambda_a + g.

    X is empty and X' = {z}. This is the strongest adversary, because no other gradient hides the
    canary's.

    Args:
        canary: z, the inserted record or gradient.
        score: g, which the adversary chooses.
        record_shape: shape of one record as the model sees it.
        classes: number of classes.

    Example:
        >>> from canaries import DiracCanary
        >>> from threat_models import FirstCoordinate
        >>> model = etcv(DiracCanary(), FirstCoordinate(), (1, 8, 8), classes=10)
        >>> model.training_set is None
        True
    """
    return ThreatModel("ETCV", None, None, canary, score, 1, record_shape, classes)

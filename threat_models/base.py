"""The class `ThreatModel`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from canaries import Canary, InputCanary
from threat_models.datasets import Records
from threat_models.scores import Score


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
        ValueError: the canary does not fit the records.

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
                raise ValueError(
                    f"records of {records.name} must have shape {self.record_shape}, "
                    f"got {records.features.shape[1:]}"
                )
        if isinstance(self.canary, InputCanary):
            if self.canary.features.shape != self.record_shape:
                raise ValueError(
                    f"canary {self.canary.name} must have shape {self.record_shape} "
                    f"to fit the data set, got {self.canary.features.shape}"
                )
            if self.canary.label >= self.classes:
                raise ValueError(
                    f"canary label must be in [0, {self.classes - 1}], got {self.canary.label}"
                )

    def lambda_b(
        self, lambda_a: NDArray[np.float64], scores: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The proxy lambda_b, which combines lambda_a with the score (Xiang et al. 2024, eq. 10).

        Args:
            lambda_a: base proxies, any shape.
            scores: scores g(y) of the same runs.

        Returns:
            lambda_a - g in NTNV, lambda_a + g in NTCV and ETCV.
        """
        return lambda_a + self.proxy_sign * scores

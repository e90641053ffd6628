"""NTCV: normal training, controlled score (table 2, second row)."""

from canaries import Canary
from threat_models.base import ThreatModel
from threat_models.datasets import Records
from threat_models.scores import Score


def ntcv(
    training_set: Records,
    validation_set: Records | None,
    canary: Canary,
    score: Score,
) -> ThreatModel:
    """The threat model NTCV.

    Args:
        training_set: X.
        validation_set: validation records, for scores that use them.
        canary: z.
        score: g, which the adversary chooses.

    Returns:
        The threat model with X, X' = X plus z and lambda_b = lambda_a + g.

    Example:
        >>> from canaries import DiracCanary
        >>> from threat_models import FirstCoordinate, datasets
        >>> digits = datasets.load("DIGITS", True, None, 5)
        >>> ntcv(digits, digits, DiracCanary(), FirstCoordinate()).name
        'NTCV'
    """
    return ThreatModel(
        "NTCV",
        training_set,
        validation_set,
        canary,
        score,
        1,
        training_set.features.shape[1:],
        training_set.classes,
    )

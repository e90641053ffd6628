"""ETCV: empty training set, controlled score (table 2, last row).

X is empty and X' = {z}. This is the strongest adversary, because no other gradient hides the
canary's.
"""

from canaries import Canary
from threat_models.base import ThreatModel
from threat_models.scores import Score


def etcv(canary: Canary, score: Score, record_shape: tuple[int, ...], classes: int) -> ThreatModel:
    """The threat model ETCV.

    Args:
        canary: z.
        score: g, which the adversary chooses.
        record_shape: shape of one record as the model sees it.
        classes: number of classes.

    Returns:
        The threat model with X = {}, X' = {z} and lambda_b = lambda_a + g.

    Example:
        >>> from canaries import DiracCanary
        >>> from threat_models import FirstCoordinate
        >>> model = etcv(DiracCanary(), FirstCoordinate(), (1, 8, 8), classes=10)
        >>> model.training_set is None
        True
    """
    return ThreatModel("ETCV", None, None, canary, score, 1, record_shape, classes)

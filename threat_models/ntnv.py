"""NTNV: normal training, normal validation (table 2, first row)."""

from canaries import Canary
from threat_models.base import ThreatModel
from threat_models.datasets import Records
from threat_models.scores import ValidationLoss


def ntnv(training_set: Records, validation_set: Records, canary: Canary) -> ThreatModel:
    """The threat model NTNV: the score is the validation loss, which the adversary cannot choose.

    Args:
        training_set: X.
        validation_set: the validation records.
        canary: z.

    Returns:
        The threat model with X, X' = X plus z, g = minus the validation loss and
        lambda_b = lambda_a - g: a canary that harms the model lowers its score.

    Example:
        >>> from canaries import DiracCanary
        >>> from threat_models import datasets
        >>> digits = datasets.load("DIGITS", True, None, 5)
        >>> ntnv(digits, digits, DiracCanary()).score.name
        'validation-loss'
    """
    return ThreatModel(
        "NTNV",
        training_set,
        validation_set,
        canary,
        ValidationLoss(validation_set),
        -1,
        training_set.features.shape[1:],
        training_set.classes,
    )

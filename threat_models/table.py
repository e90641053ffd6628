"""From names to a threat model: the rows of the paper's table 2 and their kin."""

from canaries import DiracCanary, InputCanary
from threat_models import datasets
from threat_models.base import ThreatModel
from threat_models.etcv import etcv
from threat_models.names import check_choice
from threat_models.ntcv import ntcv
from threat_models.ntnv import ntnv
from threat_models.scores import (
    CanaryLoss,
    FirstCoordinate,
    Score,
    ValidationLoss,
    WorstOrder,
)

# The scores of each threat and canary; the first is the paper's.
SCORES: dict[str, dict[str, tuple[str, ...]]] = {
    "NTNV": {"input": ("validation-loss",), "dirac": ("validation-loss",)},
    "NTCV": {
        "input": ("canary-loss", "first-coordinate", "validation-loss"),
        "dirac": ("first-coordinate", "worst-order", "validation-loss"),
    },
    "ETCV": {
        "input": ("canary-loss", "first-coordinate"),
        "dirac": ("first-coordinate", "worst-order"),
    },
}
THREATS = tuple(SCORES)
CANARIES = ("dirac", "input")


def build(
    threat: str,
    canary: str,
    score: str | None = None,
    dataset: str | None = None,
    data_root: str | None = None,
    canary_index: int = 0,
    train_size: int = 5000,
    validation_size: int = 10000,
    worst_order: tuple[float, float, bool] | WorstOrder | None = None,
) -> ThreatModel:
    """The threat model that the names stand for (Xiang et al. 2024, table 2).

    Args:
        threat: "NTNV", "NTCV" or "ETCV".
        canary: "dirac" or "input". In NTNV and NTCV the input canary is a record of another data
            set (`datasets.foreign_canary`), in ETCV a record of `dataset` itself.
        score: one of SCORES[threat][canary]; None takes the first, the paper's.
        dataset: FASHION, MNIST, CIFAR10, SVHN or DIGITS; None takes DIGITS. With the Dirac canary
            and an empty training set only the shape of its records is used, no file is read.
        data_root: folder of the data sets (see `datasets.load`).
        canary_index: I, which record is the canary.
        train_size: how many training records, at most.
        validation_size: how many validation records, at most.
        worst_order: thresholds of the worst-order score, (bottom, top, mirrored) or the score;
            needed by it alone.

    Returns:
        The threat model.

    Raises:
        ValueError: an unknown name (with the nearest valid one), a canary or score that does not
            fit the threat, or an index or size out of range.
        FileNotFoundError: data that is absent and cannot be downloaded.
    """
    check_choice("threat", threat, THREATS)
    check_choice("canary", canary, CANARIES)
    allowed = SCORES[threat][canary]
    score = allowed[0] if score is None else score
    check_choice(f"score for {threat} with canary {canary}", score, allowed)
    dataset = "DIGITS" if dataset is None else dataset
    datasets.check_name(dataset)

    z = _canary(threat, canary, dataset, canary_index, data_root)
    if threat == "ETCV":
        shape, classes = datasets.RECORD_SHAPES[dataset], datasets.CLASSES
        return etcv(z, _score(score, z, None, worst_order), shape, classes)
    training_set = datasets.load(dataset, True, data_root, train_size)
    validation_set = datasets.load(dataset, False, data_root, validation_size)
    if threat == "NTNV":
        return ntnv(training_set, validation_set, z)
    return ntcv(training_set, validation_set, z, _score(score, z, validation_set, worst_order))


def _canary(
    threat: str, canary: str, dataset: str, index: int, data_root: str | None
) -> DiracCanary | InputCanary:
    if canary == "dirac":
        return DiracCanary()
    if threat == "ETCV":
        return datasets.canary(dataset, index, data_root)
    return datasets.foreign_canary(dataset, index, data_root)


def _score(
    name: str,
    canary: DiracCanary | InputCanary,
    validation_set: datasets.Records | None,
    worst_order: tuple[float, float, bool] | WorstOrder | None,
) -> Score:
    if name == "first-coordinate":
        return FirstCoordinate()
    if name == "worst-order":
        if worst_order is None:
            raise ValueError(
                "worst_order must be given with the score worst-order: "
                "(bottom, top, mirrored), got None"
            )
        return worst_order if isinstance(worst_order, WorstOrder) else WorstOrder(*worst_order)
    if name == "canary-loss":
        assert isinstance(canary, InputCanary)
        return CanaryLoss(canary)
    assert validation_set is not None
    return ValidationLoss(validation_set)

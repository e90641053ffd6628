"""The threat models of table 2, also by name: `ThreatModel`, NTNV, NTCV and ETCV."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput
from audit.user_code import errors_in_one_line, import_by_name
from canaries import Canary, DiracCanary, InputCanary
from threat_models import datasets
from threat_models.datasets.records import Records
from threat_models.scores import (
    CanaryLoss,
    FirstCoordinate,
    Score,
    TwoTails,
    UserScore,
    ValidationLoss,
    WorstOrder,
)


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


# The scores for each threat model and canary; the first is the paper's.
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
    worst_order: float | tuple[float, float] | None = None,
) -> ThreatModel:
    """The threat model with these names, in upper or lower case (Xiang et al. 2024, table 2).

    Args:
        threat: "NTNV", "NTCV" or "ETCV".
        canary: "dirac", "input", or the dotted name of an `InputCanary` or of a function without
            arguments that returns one. In NTNV and NTCV the input canary is a record of another
            data set (`datasets.foreign_canary`: CIFAR10 also needs the files of SVHN), in ETCV a
            record of `dataset`.
        score: one of SCORES[threat][canary]; None selects the first, the paper's. NTCV and ETCV
            also accept the dotted name of a function from an `Observation` of R runs to [R] scores.
        dataset: FASHION, MNIST, CIFAR10, SVHN or DIGITS; None selects DIGITS. With the Dirac canary
            and an empty training set only the shape of its records is used, and no file is read.
        data_root: folder of the data sets (see `datasets.load`).
        canary_index: index I of the canary's record.
        train_size: maximum number of training records.
        validation_size: maximum number of validation records.
        worst_order: the split of the worst-order score, or the two limits of the tails that it
            accepts; required with that score only.

    Returns:
        The threat model.

    Raises:
        InvalidInput: a name is unknown (the message suggests the nearest one), the canary or score
            does not fit the threat model, or an index or size is out of range.
        FileNotFoundError: data is missing and cannot be downloaded.

    Example:
        >>> build("NTCV", "dirac", dataset="DIGITS", train_size=5, validation_size=5).name
        'NTCV'
    """
    threat = checks.one_of("threat", threat, THREATS)
    canary = checks.one_of("canary", canary, CANARIES, dotted=True)
    score = check_names(threat, canary, score)
    dataset = datasets.check_name("DIGITS" if dataset is None else dataset)

    # Checks all files before reading any: the canary's data set may be a different one.
    datasets.require(_splits(threat, canary, dataset), data_root)
    z = _canary(threat, canary, dataset, canary_index, data_root)
    if threat == "ETCV":
        shape, classes = datasets.RECORD_SHAPES[dataset], datasets.CLASSES
        return etcv(z, _score(score, z, None, worst_order), shape, classes)
    training_set = datasets.load(dataset, True, data_root, train_size)
    validation_set = datasets.load(dataset, False, data_root, validation_size)
    if threat == "NTNV":
        return ntnv(training_set, validation_set, z)
    return ntcv(training_set, validation_set, z, _score(score, z, validation_set, worst_order))


def check_names(threat: str, canary: str, score: str | None) -> str:
    """The name of a score that is valid for a threat model and a canary.

    Args:
        threat: see `build`.
        canary: see `build`.
        score: see `build`; None selects the paper's score.

    Returns:
        The score's name.

    Raises:
        InvalidInput: a name is unknown, or the score does not fit the threat model and canary.

    Example:
        >>> check_names("ETCV", "dirac", None)
        'first-coordinate'
    """
    threat = checks.one_of("threat", threat, THREATS)
    canary = checks.one_of("canary", canary, CANARIES, dotted=True)
    allowed = SCORES[threat]["input" if "." in canary else canary]
    score = allowed[0] if score is None else score
    words = f"score for {threat} with canary {canary}"
    return checks.one_of(words, score, allowed, dotted=threat != "NTNV")


def _splits(threat: str, canary: str, dataset: str) -> list[tuple[str, bool]]:
    """The splits that the records and the canary are read from."""
    records = [] if threat == "ETCV" else [(dataset, True), (dataset, False)]
    if canary != "input":
        return records
    out_dataset = dataset if threat == "ETCV" else datasets.FOREIGN[dataset]
    return [*records, (out_dataset, True)] if out_dataset in datasets.FILES else records


def _canary(threat: str, canary: str, dataset: str, index: int, data_root: str | None) -> Canary:
    if canary == "dirac":
        return DiracCanary()
    if "." in canary:
        function = import_by_name("canary", canary)
        with errors_in_one_line(f"canary {canary} must return an InputCanary"):
            canary_of_user = function() if callable(function) else function
        if not isinstance(canary_of_user, InputCanary):
            raise InvalidInput(
                f"canary {canary} must return an InputCanary, got {canary_of_user!r}"
            )
        return canary_of_user
    if threat == "ETCV":
        return datasets.canary(dataset, index, data_root)
    return datasets.foreign_canary(dataset, index, data_root)


def _score(
    name: str,
    canary: Canary,
    validation_set: datasets.Records | None,
    worst_order: float | tuple[float, float] | None,
) -> Score:
    if name == "first-coordinate":
        return FirstCoordinate()
    if name == "worst-order":
        if worst_order is None:
            raise InvalidInput("worst_order is required with the score worst-order, got None")
        return TwoTails(*worst_order) if isinstance(worst_order, tuple) else WorstOrder(worst_order)
    if "." in name:
        function = import_by_name("score", name)
        if not callable(function):
            raise InvalidInput(f"score must be a function, got {function!r} from {name}")
        return UserScore(function, name)
    if name == "canary-loss":
        assert isinstance(canary, InputCanary)
        return CanaryLoss(canary)
    assert validation_set is not None
    return ValidationLoss(validation_set)

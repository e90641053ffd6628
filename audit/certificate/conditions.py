"""The conditions of a certificate, computed from the study's own statements.

The author declares what verification cannot recompute. Every sentence of a condition is part of the
format: verification recomputes and compares all sentences, so a condition cannot be removed or
reworded. A changed sentence requires a new `FORMAT`.
"""

import decimal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Annotated, Any, Literal, Self

from audit import checks
from audit.accounting import (
    NEIGHBOURS,
    Composition,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    Mixture,
    RandomAllocation,
    WorstOf,
    group_size,
    relations,
)
from audit.errors import InvalidInput
from audit.numerics import format_exact
from audit.protocols import Protocol
from audit.typed_json import OPTIONAL, Keywords, NonNegative, Positive, Sha256, Text, read_typed

PRIVATE = "private"
"""Value of `Declaration.records` if the number of records must stay secret."""
NOT_STATED = "not stated"
CLIPPING_NORM = "Clipping norm"  # title of a row
_MAX_TEXT = 1000
_MAX_SPENDINGS = 1000
_MAX_PER_PERSON = 10**6
DeclaredText = Annotated[str, Keywords(minLength=1, maxLength=_MAX_TEXT)]
_MAX_NAMES = 10_000
_Names = Annotated[tuple[Text, ...], Keywords(uniqueItems=True)]
AS_STATED = "base mechanism"
"""The relation of a mechanism that does not state one."""
_RELATION_CONDITIONS = {
    "add-remove": "the divisor of the noisy sums, the noise, the sampling rate and the number of "
    "steps were not computed from the number of records, and nothing else in a run depends on it",
    "zero-out": "the number of records is public",
}
_CHECKS = {
    "steps": "no run took more steps than stated",
    "noise_multiplier": "no run used less noise than stated",
    "sampling_rate": "no run used a higher sampling rate than stated",
    "poisson_sampling": "batches were drawn by Poisson sampling",
    "divisor": "every run released its noisy sums undivided, or divided by {divisor}",
    "constants": "every run used exactly the stated noise, sampling rate and number of steps",
    "count_of_records": "every run had as many records as the study allowed",
}
"""Conditions that a study can check in every run."""
_OF_DP_SGD = {
    "clipping": "gradients are clipped record by record, to the clipping norm",
    "noise": "noise of the stated multiplier is added to their sum, independently in every step "
    "and in every run",
    "released": "a run returns nothing else that it computed from private records",
}
_SCORE_OF_PUBLIC = "scores are computed from the output of a run and public records alone"
_REPRESENTATIVE = (
    "the training function treats the private records, and every candidate, as it treated the "
    "records and the candidate of the test; since the test, no function of another file that it "
    "calls, and no object that it holds or refers to, has changed"
)
TESTED_ON = {
    "synthetic": "synthetic records of the same shape",
    "given": "synthetic or public records that the author chose",
}
"""The records of the differential test, by the value of `StudyFacts.tested_on`."""
_OF_RANDOM_ALLOCATION = (
    "every record drew its batches as stated, independently of all other records; noise was added "
    "to every batch, also to an empty one, and sums were divided by a public constant"
)


@dataclass(frozen=True)
class Spending:
    """An earlier release from the same private records.

    Attributes:
        release: description of the release.
        epsilon: its epsilon, >= 0.
        delta: its delta, in [0, 1).

    Example:
        >>> Spending("table of counts, 2024", 0.5, 0.0).epsilon
        0.5
    """

    release: DeclaredText
    epsilon: NonNegative
    delta: Annotated[float, Keywords(minimum=0, exclusiveMaximum=1)]

    def __post_init__(self) -> None:
        checks.validate(self, "release", _text)
        checks.validate(self, "epsilon", checks.interval, 0.0, closed_low=True)
        checks.validate(self, "delta", checks.interval, 0.0, 1.0, closed_low=True)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Statements of the author that a reader needs before signing off; None means not stated.

    Attributes:
        responsible: the person who is responsible for these statements.
        dataset: name and version of the private data set.
        records: its number of records, or `private` if the number must stay secret.
        unit: the unit of privacy, as one entry of the data set: `one record`, `one patient`.
        records_per_person: the largest number of records that belong to one person, >= 1. The
            certificate then states epsilon for a group of this size.
        max_grad_norm: the clipping norm, > 0.
        normalizer: the divisor of the sum of clipped gradients, and whether it depends on the
            number of records.
        pretraining: models from which training started, and their training data.
        preprocessing: steps that read the private data before training, such as scaling.
        earlier_spending: earlier releases from the same records; an empty sequence means none.

    Example:
        >>> Declaration(dataset="Digits 1.0", records=1797).not_stated[:2]
        ('responsible', 'records_per_person')
    """

    responsible: DeclaredText | None = None
    dataset: DeclaredText | None = None
    records: Annotated[int, Keywords(minimum=1)] | Literal["private"] | None = None
    unit: DeclaredText = "one record"
    records_per_person: Annotated[int, Keywords(minimum=1, maximum=_MAX_PER_PERSON)] | None = None
    max_grad_norm: Positive | None = None
    normalizer: DeclaredText | None = None
    pretraining: DeclaredText | None = None
    preprocessing: DeclaredText | None = None
    earlier_spending: Annotated[Sequence[Spending], Keywords(maxItems=_MAX_SPENDINGS)] | None = None

    def __post_init__(self) -> None:
        texts = "responsible", "dataset", "unit", "normalizer", "pretraining", "preprocessing"
        for name in texts:
            if name == "unit" or getattr(self, name) is not None:
                checks.validate(self, name, _text)
        if isinstance(self.records, str):
            if self.records != PRIVATE:
                raise InvalidInput(
                    f"records must be a whole number or {PRIVATE!r}, got "
                    f"{checks.one_line(self.records)}"
                )
        elif self.records is not None:
            checks.validate(self, "records", checks.integer, 1, 2**53)
        if self.records_per_person is not None:
            checks.validate(self, "records_per_person", checks.integer, 1, _MAX_PER_PERSON)
        if self.max_grad_norm is not None:
            checks.validate(self, "max_grad_norm", checks.interval, 0.0)
        if self.earlier_spending is not None:
            checks.store_validated(self, earlier_spending=_spendings(self.earlier_spending))

    @property
    def not_stated(self) -> tuple[str, ...]:
        """Names of the statements that the author has not made."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is None)

    def total(self, epsilon: float, delta: float) -> tuple[float, float] | None:
        """(epsilon, delta) of all stated releases and this one, by basic composition, rounded up.

        None if earlier spending is not stated.
        """
        if self.earlier_spending is None:
            return None
        return (
            _sum([epsilon, *(spending.epsilon for spending in self.earlier_spending)]),
            min(_sum([delta, *(spending.delta for spending in self.earlier_spending)]), 1.0),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Reads the values that `dataclasses.asdict` returned.

        Raises:
            InvalidInput: a statement is unknown or has the wrong type.
        """
        if not isinstance(values, Mapping):
            raise InvalidInput(f"declaration must be a mapping, got {checks.one_line(values)}")
        field_names = {field.name for field in fields(cls)}
        statements = {
            checks.one_of("statement", name, field_names): statement
            for name, statement in values.items()
        }
        earlier = statements.get("earlier_spending")
        if earlier is not None:
            rows = checks.items("earlier_spending", earlier, "releases")
            statements["earlier_spending"] = [
                read_typed(Spending, row, "earlier_spending") for row in rows
            ]
        return cls(**statements)

    def in_words(self) -> tuple[tuple[str, str], ...]:
        """Titles and texts of all statements; quotes mark the author's own words."""

        def own(text: str | None) -> str:
            return NOT_STATED if text is None else checks.quoted(text)

        def number(value: float | str | None) -> str:
            if value is None:
                return NOT_STATED
            return format_exact(value) if isinstance(value, float) else str(value)

        # One row each, with the numbers first: text written from right to left would move them.
        title = "Earlier spending on the same records"
        earlier = [(title, NOT_STATED if self.earlier_spending is None else "none")]
        if self.earlier_spending:
            spent = [
                f"({format_exact(spending.epsilon)}, {format_exact(spending.delta)})-DP: "
                f"{own(spending.release)}"
                for spending in self.earlier_spending
            ]
            earlier = [(title, words) for words in spent]
        return (
            ("Responsible person", own(self.responsible)),
            ("Data set", own(self.dataset)),
            ("Number of records", number(self.records)),
            ("Unit of privacy", own(self.unit)),
            ("Records per person, at most", number(self.records_per_person)),
            (CLIPPING_NORM, number(self.max_grad_norm)),
            ("Divisor of the noisy sum", own(self.normalizer)),
            ("Pre-training", own(self.pretraining)),
            ("Preprocessing that read private data", own(self.preprocessing)),
            *earlier,
        )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_TEXT:
        raise InvalidInput(
            f"{name} must be a text of 1 to {_MAX_TEXT} characters, got {checks.one_line(value)}"
        )
    return value


def _sum(values: Sequence[float]) -> float:
    """Sum of the decimal representations, rounded up: 1e-5 and 1e-6 give 1.1e-5."""
    up = decimal.Context(prec=50, rounding=decimal.ROUND_CEILING)
    total = decimal.Decimal(0)
    for value in values:
        total = up.add(total, decimal.Decimal(repr(float(value))))
    rounded = float(total)
    return rounded if decimal.Decimal(repr(rounded)) >= total else math.nextafter(rounded, math.inf)


def _spendings(values: Any) -> tuple[Spending, ...]:
    try:
        spendings = tuple(values)
    except TypeError:
        spendings = (None,)
    if len(spendings) > _MAX_SPENDINGS or not all(
        isinstance(spending, Spending) for spending in spendings
    ):
        raise InvalidInput(
            f"earlier_spending must be a sequence of at most {_MAX_SPENDINGS} Spending(release, "
            f"epsilon, delta), got {checks.one_line(values)}"
        )
    return spendings


class Ground(Enum):
    """The basis on which the author states a condition.

    Example:
        >>> [ground.value for ground in Ground]
        ['by construction', 'checked', 'tested', 'on trust', 'broken']
    """

    BY_CONSTRUCTION = "by construction"
    CHECKED = "checked"
    TESTED = "tested"
    ON_TRUST = "on trust"
    BROKEN = "broken"


@dataclass(frozen=True)
class Condition:
    """One condition of the claim.

    Attributes:
        name: identifier of the condition.
        words: the condition as a sentence.
        ground: the basis on which the author states it.

    Example:
        >>> Condition("space", "the search space is public", Ground.ON_TRUST).ground.value
        'on trust'
    """

    name: Text
    words: Text
    ground: Ground


@dataclass(frozen=True)
class Private:
    """The score reads private records, and noise is added to it.

    `train` returns the statistic without noise, and the study adds N(0, noise_std^2) to it. A score
    on private records without noise has no guarantee.

    Attributes:
        noise_std: standard deviation of the noise, > 0, in units of the score.
        sensitivity: largest difference of the score between neighbouring data sets, > 0.
        disjoint: whether no record is used for both training and scoring. A run then costs the
            larger of the two; otherwise both compose.

    Example:
        >>> Private(noise_std=0.01, sensitivity=0.002).mechanism
        GaussianMechanism(mu=0.2)
    """

    noise_std: Positive
    sensitivity: Positive
    disjoint: bool = True

    def __post_init__(self) -> None:
        try:
            checks.validate(self, "noise_std", checks.interval, 0.0)
        except ValueError as error:
            raise InvalidInput(
                f"{error}: a score with no noise on private records has no guarantee"
            ) from None
        checks.validate(self, "sensitivity", checks.interval, 0.0)
        checks.validate(self, "disjoint", checks.flag)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of one noisy score."""
        return GaussianMechanism(self.sensitivity / self.noise_std)

    def with_training(self, training: Mechanism) -> Mechanism:
        """The mechanism of one run: training and noisy score."""
        # Several records of one person may be split between training and scoring.
        if self.disjoint and group_size(training) == 1:
            return WorstOf((training, self.mechanism))
        return Composition((training, self.mechanism))


@dataclass(frozen=True)
class StudyFacts:
    """Statements of a study about itself, which a file cannot prove.

    Attributes:
        prior: distribution of the candidates, by name.
        checked: names from `checkable` that were checked in every run that could win.
        seeded: whether a given seed determines the random draws.
        key_kept: whether the key of the random draws stays on disk.
        settings: SHA-256 of the settings of the study.
        expected_batch_size: the constant divisor of the noisy sums; None if it is not stated.
        tested: names from `testable` that the differential test of the training function supports.
        tested_on: the records of the test, of `TESTED_ON`; empty without a test.
        tested_with: the version of this package that tested; empty without a test.
        tested_steps: number of steps of a run that were tested; 0 if it is not stated.

    Example:
        >>> StudyFacts({"lr": "uniform in [0.0, 1.0]"}).seeded
        False
    """

    prior: Annotated[Mapping[str, str], Keywords(maxProperties=_MAX_NAMES)]
    checked: _Names = ()
    seeded: bool = False
    key_kept: bool = False
    settings: Sha256 = ""
    expected_batch_size: Positive | None = None
    tested: _Names = ()
    tested_on: Annotated[str, Keywords(enum=["", *TESTED_ON])] = ""
    tested_with: str = ""
    # Certificates of earlier versions do not state it.
    tested_steps: Annotated[int, Keywords(minimum=0)] = field(default=0, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        checks.validate(self, "seeded", checks.flag)
        checks.validate(self, "key_kept", checks.flag)
        checks.validate(self, "tested_on", checks.one_of, ("", *TESTED_ON))
        if self.expected_batch_size is not None:
            checks.validate(self, "expected_batch_size", checks.interval, 0.0)
        if len(self.prior) > _MAX_NAMES:
            raise InvalidInput(f"prior must have at most {_MAX_NAMES} names, got {len(self.prior)}")


@dataclass(frozen=True)
class Setting:
    """Scope of the claim.

    Attributes:
        trust_model: who has access to the data and to the results.
        unit: the unit of privacy.
        relation: name of the neighbouring relation, of `accounting.NEIGHBOURS`, or `base
            mechanism` if the mechanism names none.
        neighbours: the neighbouring relation in words.
        touched: the records that each part of the tuning reads.
        released: the published items.
        withheld: the items that must stay secret.

    Example:
        >>> from audit.accounting import DpSgd
        >>> from audit.protocols import parse_protocol
        >>> setting(DpSgd(1.0, 10), parse_protocol("fixed:1"), None, "one record").relation
        'add-remove'
    """

    trust_model: Text
    unit: DeclaredText
    relation: Annotated[str, Keywords(enum=[*NEIGHBOURS, AS_STATED])]
    neighbours: Text
    touched: Mapping[str, Text]
    released: Annotated[tuple[Text, ...], Keywords(minItems=1)]
    withheld: Annotated[tuple[Text, ...], Keywords(minItems=1)]


def check_score(protocol: Protocol, score: Private | None) -> None:
    """Refuses a score that reads its own records in every run while the runs read a subset.

    The bound of a subset assumes that every record is read by the runs of the tuning or by the
    final run. A record that is scored but never trained on is read by all runs.
    """
    if protocol.trains_on_subset and score is not None and score.disjoint:
        raise InvalidInput(
            f"scored_on must be public, or private with disjoint=False, with {protocol.spec}: a "
            "record that is scored and not trained on is read by every run, which no bound covers"
        )


def bases_of(training: Mechanism, score: Private | None) -> list[Mechanism]:
    """Possible mechanisms of one run, given its training and its score.

    If training is one of several mechanisms, the score may be inside or outside of the choice.
    """
    if score is None:
        return [training]
    bases = [score.with_training(training)]
    if isinstance(training, WorstOf | Mixture):
        inside = tuple(map(score.with_training, training.candidates))
        if isinstance(training, Mixture):
            bases.append(Mixture(inside, training.chances))
        else:
            bases.append(type(training)(inside))
    return bases


def relation_of(training: Mechanism) -> str:
    """Name of the neighbouring relation that a training states."""
    stated = relations(training)
    if len(stated) == 1 and all(isinstance(mechanism, DpSgd) for mechanism in _parts(training)):
        return next(iter(stated))
    return AS_STATED


def records_of(training: Mechanism) -> str:
    """The records that a training protects together, in words."""
    size = group_size(training)
    return "one record" if size == 1 else f"up to {size} records of one person"


def checkable(training: Mechanism, protocol: Protocol) -> tuple[str, ...]:
    """Names of the conditions that a study can check in every run."""
    names: list[str] = []
    mechanisms = _parts(training)
    if all(isinstance(mechanism, DpSgd) for mechanism in mechanisms):
        names += ["steps", "noise_multiplier", "sampling_rate"]
        if any(
            isinstance(mechanism, DpSgd) and mechanism.sampling_rate < 1.0
            for mechanism in mechanisms
        ):
            names.append("poisson_sampling")
        if "add-remove" in relations(training):
            names += ["divisor", "constants"]
    if protocol.trains_on_subset:
        names.append("count_of_records")
    return tuple(names)


def testable(training: Mechanism, score: Private | None) -> tuple[str, ...]:
    """Names of the conditions that the differential test of a training function can support."""
    mechanisms = _parts(training)
    if not all(isinstance(mechanism, DpSgd) for mechanism in mechanisms):
        return ()
    names = [*_OF_DP_SGD]
    if any(
        isinstance(mechanism, DpSgd) and mechanism.sampling_rate < 1.0 for mechanism in mechanisms
    ):
        names.append("poisson_sampling")
    if "add-remove" in relations(training):
        names.append("relation add-remove")
    return (*names, "score") if score is None else tuple(names)


def most_steps(training: Mechanism) -> int:
    """Largest number of steps of a run of DP-SGD; 0 for other mechanisms."""
    steps = (mechanism.steps for mechanism in _parts(training) if isinstance(mechanism, DpSgd))
    return max(steps, default=0)


def how_tested(facts: StudyFacts) -> str:
    """The records, the version and the steps of the differential test, in words."""
    steps = f" in {facts.tested_steps} steps of a run" if facts.tested_steps else ""
    return f"tested on {TESTED_ON[facts.tested_on]} with dp-tuning-audit {facts.tested_with}{steps}"


def conditions(
    training: Mechanism, protocol: Protocol, score: Private | None, facts: StudyFacts
) -> tuple[Condition, ...]:
    """All conditions of the claim; those on trust come last."""
    listed = [
        *_by_construction(protocol, score, facts),
        *_of_runs(training, protocol, facts),
        *_on_trust(protocol, score),
    ]
    tested = set(facts.tested) & set(testable(training, score))
    if tested:
        how = f" ({how_tested(facts)})"
        listed = [
            Condition(condition.name, condition.words + how, Ground.TESTED)
            if condition.ground is Ground.ON_TRUST and condition.name in tested
            else condition
            for condition in listed
        ]
        listed.append(Condition("test", _REPRESENTATIVE, Ground.ON_TRUST))
    order = (
        Ground.BROKEN, Ground.BY_CONSTRUCTION, Ground.CHECKED, Ground.TESTED, Ground.ON_TRUST
    )  # fmt: skip
    return tuple(sorted(listed, key=lambda condition: order.index(condition.ground)))


def setting(training: Mechanism, protocol: Protocol, score: Private | None, unit: str) -> Setting:
    """Scope of the claim."""
    words = protocol.statement
    validation = "public records only"
    if score is not None:
        whose = "other private records" if score.disjoint else "private records, also trained on"
        validation = (
            f"{whose}, through a statistic of sensitivity {format_exact(score.sensitivity)} with "
            f"Gaussian noise of standard deviation {format_exact(score.noise_std)}"
        )
    relation = relation_of(training)
    neighbours = "the pairs of data sets for which the parameters of the base mechanism hold"
    if relation != AS_STATED:
        neighbours = NEIGHBOURS[relation].format(records=records_of(training))
    size = group_size(training)
    return Setting(
        trust_model="central: the curator who runs the tuning holds the data and is trusted, and "
        "everyone else sees the released items only",
        unit=unit if size == 1 else f"up to {size} of: {unit}",
        relation=relation,
        neighbours=neighbours,
        touched={
            **words.records,
            "the score": validation,
            "the choice of the best run": "scores alone",
        },
        released=(words.released, "this certificate"),
        withheld=(
            f"{words.secret}, and how long they took" if words.secret else "how long the runs took",
            "every other run: its candidate, its score and its output",
            "the key of the random draws",
        ),
    )


def void_if(protocol: Protocol, score: Private | None) -> tuple[str, ...]:
    """Events that make the certificate void."""
    secret = protocol.statement.secret
    runs = f"{secret}, a losing run" if secret else "a rejected run"
    reasons = [
        f"{runs}, its score or the key of the random draws becomes known",
        "the study was repeated or restarted until its result was favourable",
        "another release from the same private records is not counted in addition to this one",
    ]
    reasons += protocol.statement.void_if
    if score is None:
        reasons.append("a score used a private record")
    return tuple(reasons)


def _parts(training: Mechanism) -> tuple[Mechanism, ...]:
    return training.candidates if isinstance(training, WorstOf | Mixture) else (training,)


def _by_construction(
    protocol: Protocol, score: Private | None, facts: StudyFacts
) -> list[Condition]:
    if facts.seeded:
        draws = "a seed was given, and anyone who knows it knows all random draws"
    else:
        draws = "the study drew all random choices once, from 256 bits of entropy (SHAKE-256)"
    words = protocol.statement
    by_name = {
        "candidates": words.candidates,
        "number_of_runs": words.runs,
        "failures": "a run that fails or diverges counts as a run, and loses",
    }
    if score is not None:
        by_name["score_noise"] = words.score_noise
    return [
        Condition("draws", draws, Ground.BROKEN if facts.seeded else Ground.BY_CONSTRUCTION),
        *(Condition(name, wording, Ground.BY_CONSTRUCTION) for name, wording in by_name.items()),
    ]


def _of_runs(training: Mechanism, protocol: Protocol, facts: StudyFacts) -> list[Condition]:
    size = facts.expected_batch_size
    divisor = "one constant" if size is None else format_exact(size)
    required = [
        Condition(
            name,
            _CHECKS[name].format(divisor=divisor),
            Ground.CHECKED if name in facts.checked else Ground.ON_TRUST,
        )
        for name in checkable(training, protocol)
    ]
    trusted: dict[str, str] = {}
    if all(isinstance(mechanism, DpSgd) for mechanism in _parts(training)):
        trusted |= _OF_DP_SGD
    else:
        trusted["mechanism"] = "every run is the stated base mechanism"
    if any(isinstance(mechanism, RandomAllocation) for mechanism in _parts(training)):
        trusted["random_allocation"] = _OF_RANDOM_ALLOCATION
    for relation in sorted(relations(training)):
        if relation in _RELATION_CONDITIONS:
            trusted[f"relation {relation}"] = _RELATION_CONDITIONS[relation]
    if protocol.trains_on_subset:
        trusted["records"] = "every run read those records only that the study allowed"
    return [
        *required,
        *(Condition(name, wording, Ground.ON_TRUST) for name, wording in trusted.items()),
    ]


def _on_trust(protocol: Protocol, score: Private | None) -> list[Condition]:
    words = _SCORE_OF_PUBLIC
    if score is not None:
        words = (
            f"the score of two neighbouring data sets differs by at most "
            f"{format_exact(score.sensitivity)}"
        )
        if score.disjoint:
            words += ", and no record is both scored and trained on"
    by_name = {
        "score": words,
        "space": "the search space and the protocol were chosen without looking at the data",
        "preprocessing": "pre-training and preprocessing used no private record, or their privacy "
        "cost is counted in addition",
        "once": "the study was done once, and no one sees its folder, its run time or losing runs",
        "randomness": "pseudo-random noise is as good as random noise, and rounding of "
        "floating-point numbers reveals nothing",
    }
    if acceptance := protocol.statement.acceptance:
        by_name["acceptance"] = acceptance
    return [Condition(name, wording, Ground.ON_TRUST) for name, wording in by_name.items()]

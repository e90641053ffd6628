"""The certificate of a private tuning: its content, and its issue, completion, storage and reading.

Everything that follows from the fields of a content is computed here, also their JSON Schema, from
the classes whose fields a certificate holds. The module `presentation` presents a content.
"""

import contextlib
import datetime
import hashlib
import json
import math
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Self

from audit import checks
from audit.accounting import (
    Mechanism,
    group_size,
    mechanism_from_dict,
    mechanism_to_dict,
    relations,
)
from audit.accounting.formats import MECHANISMS
from audit.certificate import conditions as derived
from audit.certificate import presentation
from audit.certificate.conditions import (
    PRIVATE,
    Condition,
    Declaration,
    Ground,
    Private,
    Setting,
    StudyFacts,
)
from audit.certificate.numbers import GROUPS, Numbers, compute
from audit.errors import InvalidInput
from audit.lower_bounds.scores import upper_limit
from audit.numerics import format_exact, rounded_up
from audit.protocols import Protocol, parse_protocol
from audit.typed_json import (
    Chance,
    Keywords,
    NonNegative,
    Schema,
    Sha256,
    Share,
    Text,
    closed_object,
    read_typed,
    schema_of,
)
from audit.version import __version__

NAMESPACE = "private-tuning-certificate"
"""Name of the format, without its version."""
FORMAT = f"{NAMESPACE}/2"
"""Name and version of the json; docs/certificate_format.md describes its fields."""

_OLD_FORMATS = (f"{NAMESPACE}/1",)
_LIBRARIES = ("numpy", "scipy", "opacus", "torch")
_N_IS_PUBLIC = ("zero-out", "replace-one")
_Names = Annotated[tuple[Text, ...], Keywords(uniqueItems=True)]
_MECHANISM = {"$ref": "#/$defs/mechanism"}


@dataclass(frozen=True)
class Evidence:
    """A lower bound on epsilon from a finished audit of the tuning.

    It is shown next to the upper bound and never replaces it.

    Attributes:
        epsilon_lower: the lower bound, >= 0.
        confidence: confidence of the bound, in (0, 1).
        games_without: trials without the record.
        games_with: trials with the record.

    Example:
        >>> Evidence(1.2, 0.95, games_without=1000, games_with=1000).epsilon_lower
        1.2
    """

    epsilon_lower: NonNegative
    confidence: Chance
    games_without: Annotated[int, Keywords(minimum=1)]
    games_with: Annotated[int, Keywords(minimum=1)]

    def __post_init__(self) -> None:
        checks.validate(self, "epsilon_lower", checks.interval, 0.0, closed_low=True)
        checks.validate(self, "confidence", checks.interval, 0.0, 1.0)
        checks.validate(self, "games_without", checks.integer, 1)
        checks.validate(self, "games_with", checks.integer, 1)

    def ceiling(self, delta: float) -> float:
        """The epsilon at delta that an attack without errors would show at a fixed threshold.

        A scan over thresholds can show slightly more or less. It is log((1 - delta - u) / v), the
        larger of both directions, where u and v are the Clopper-Pearson limits for no error in n
        trials.
        """
        alpha = 0.5 * (1.0 - self.confidence)
        without = float(upper_limit(0, self.games_without, alpha))
        with_record = float(upper_limit(0, self.games_with, alpha))
        best = max((1.0 - delta - without) / with_record, (1.0 - delta - with_record) / without)
        return math.log(best) if best > 1.0 else 0.0


@dataclass(frozen=True)
class Made:
    """The origin of a certificate: its date, and the versions of the software that issued it."""

    version: Text
    date: Annotated[str, Keywords(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    python: Text
    libraries: Mapping[str, Text]


@dataclass(frozen=True)
class Content:
    """The fields of a `Certificate`, which describes them, and all that follows from them."""

    base: Mechanism
    training: Mechanism
    protocol: Protocol
    delta: float
    numbers: Numbers
    score: Private | None
    study: StudyFacts
    made: Made
    model_hash: str | None = None
    declaration: Declaration = field(default_factory=Declaration)
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        checks.validate(self, "delta", checks.interval, 0.0, 1.0)
        hashes = {"model_hash": self.model_hash, "settings": self.study.settings or None}
        for name, digits in hashes.items():
            if digits is not None and not re.fullmatch("[0-9a-f]{64}", digits):
                raise InvalidInput(
                    f"{name} must be 64 hexadecimal digits, got {checks.one_line(digits)}"
                )
        if self.declaration.records == PRIVATE and self.setting.relation in _N_IS_PUBLIC:
            raise InvalidInput(
                f"records must be public with {self.setting.relation} neighbours, which have the "
                f"same number of records, got {PRIVATE!r}"
            )

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All conditions of the claim."""
        return derived.conditions(self.training, self.protocol, self.score, self.study)

    @property
    def on_trust(self) -> tuple[Condition, ...]:
        """The conditions that were not checked."""
        return tuple(
            condition for condition in self.conditions if condition.ground is Ground.ON_TRUST
        )

    @property
    def setting(self) -> Setting:
        """Scope of the claim."""
        return derived.setting(self.training, self.protocol, self.score, self.declaration.unit)

    @property
    def void_if(self) -> tuple[str, ...]:
        """Events that make the certificate void."""
        return derived.void_if(self.protocol, self.score)

    @property
    def void(self) -> tuple[str, ...]:
        """Conditions that are known to be broken."""
        return tuple(
            condition.words for condition in self.conditions if condition.ground is Ground.BROKEN
        )

    @property
    def statement(self) -> str:
        """The claim in one line."""
        return self.claim("on trust")

    def claim(self, which: str) -> str:
        """The claim in one line; `which` describes its conditions: `on trust` or `below`."""
        claimed = self.protocol.statement.claimed
        claim = (
            f"Releasing {claimed} is ({rounded_up(self.numbers.epsilon)}, "
            f"{format_exact(self.delta)})-differentially private{self._relation}, if "
            f"{self.required(which)} hold."
        )
        return f"VOID: {'; '.join(self.void)}. Otherwise: {claim}" if self.void else claim

    def required(self, which: str) -> str:
        """The number of conditions in words; `which` describes those on trust."""
        tested = sum(condition.ground is Ground.TESTED for condition in self.conditions)
        more = f" and the {tested} tested ones" if tested else ""
        return f"the {len(self.on_trust)} conditions {which}{more}"

    @property
    def groups(self) -> tuple[tuple[int, float | None], ...]:
        """Sizes of groups of records, and the epsilon of each at `delta`; None if none follows."""
        curve = self.numbers.curve
        size = group_size(self.training)
        runs_of_person = math.ceil((self.declaration.records_per_person or 1) / size)
        times = sorted({*GROUPS, runs_of_person} - {1})
        return tuple((size * count, curve.group_epsilon(count, self.delta)) for count in times)

    @property
    def _relation(self) -> str:
        """Neighbouring relations of the base mechanism, in words."""
        stated = sorted(relations(self.base))
        return f" for {' and '.join(stated)} neighbours" if stated else ""

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values, with the hash over them."""
        total = self.declaration.total(self.numbers.epsilon, self.delta)
        values: dict[str, Any] = {
            "format": FORMAT,
            "statement": self.statement,
            "base": mechanism_to_dict(self.base) | {"description": self.base.description},
            "training": mechanism_to_dict(self.training),
            "score": None if self.score is None else asdict(self.score),
            "protocol": self.protocol.spec,
            "protocol_in_words": self.protocol.statement.summary,
            "delta": self.delta,
            "numbers": asdict(self.numbers),
            "groups": [{"records": size, "epsilon": epsilon} for size, epsilon in self.groups],
            "setting": asdict(self.setting),
            "study": asdict(self.study),
            "conditions": [
                {"name": condition.name, "words": condition.words, "ground": condition.ground.value}
                for condition in self.conditions
            ],
            "void_if": self.void_if,
            "model_hash": self.model_hash,
            "declaration": asdict(self.declaration),
            "not_stated": self.not_stated,
            "total": None if total is None else {"epsilon": total[0], "delta": total[1]},
            "made": asdict(self.made),
            "evidence": None
            if self.evidence is None
            else asdict(self.evidence) | {"ceiling": self.evidence.ceiling(self.delta)},
        }
        # Tuples become lists, so that the values equal those read from a file.
        values = json.loads(json.dumps(values))
        return values | {"hash": hash_of(values)}

    @property
    def not_stated(self) -> tuple[str, ...]:
        """Names of the statements that are missing for a sign-off."""
        missing = ("model_hash",) if self.model_hash is None else ()
        return (*missing, *self.stated.not_stated)

    @property
    def stated(self) -> Declaration:
        """The author's statements, with the divisor that the author stated to the study."""
        divisor = self.study.expected_batch_size
        if divisor is None or self.declaration.normalizer is not None:
            return self.declaration
        return replace(self.declaration, normalizer=f"{format_exact(divisor)}, a constant")


@dataclass(frozen=True)
class Certificate(Content):
    """Privacy claim of a tuning, with its numbers and conditions.

    The conditions, the scope and all other sentences are computed from the fields, so none of them
    can be missing.

    Attributes:
        base: mechanism of one run, including its score.
        training: mechanism of one run without its score.
        protocol: the tuning protocol.
        delta: delta of the tuning.
        numbers: computed from base, protocol and delta.
        score: noise of the score; None if the score reads public records only.
        study: statements of the study about itself.
        made: version of this package, date, versions of Python and libraries.
        model_hash: `model_hash` of the released model, or of the list of them, best first; None if
            unknown or nothing was released.
        declaration: statements of the author.
        evidence: result of an audit of this tuning, if there was one.
    """

    @classmethod
    def issue(
        cls,
        base: Mechanism,
        training: Mechanism,
        protocol: Protocol,
        delta: float,
        score: Private | None,
        study: StudyFacts,
        model_hash: str | None = None,
    ) -> Self:
        """Computes the numbers and issues a certificate with the current date."""
        numbers = compute(base, protocol, delta)
        checkable = derived.checkable(training, protocol)
        study = replace(
            study,
            checked=tuple(name for name in checkable if name in study.checked),
            tested=tuple(n for n in derived.testable(training, score) if n in study.tested),
        )
        if not study.tested:
            study = replace(study, tested_on="", tested_with="", tested_steps=0)
        return cls(
            base,
            training,
            protocol,
            delta,
            numbers,
            score,
            study,
            _current_provenance(),
            model_hash,
        )

    def declare(self, **statements: Any) -> Self:
        """Returns the certificate with additional statements of its author.

        Args:
            statements: fields of `Declaration`; earlier statements are kept.

        Raises:
            InvalidInput: a statement has the wrong type.

        Example:
            >>> from audit import tuning
            >>> from audit.accounting import GaussianMechanism
            >>> study = tuning.Study({"lr": [1]}, "fixed:1", base=GaussianMechanism(1.0),
            ...                      folder=None)
            >>> _ = study.run(lambda trial: tuning.Outcome(1.0))
            >>> study.certificate.declare(dataset="Digits").declaration.dataset
            'Digits'
        """
        names = {field.name for field in fields(Declaration)}
        for name in statements:
            checks.one_of("statement", name, names)
        return replace(self, declaration=replace(self.declaration, **statements))

    def with_evidence(
        self, epsilon_lower: float, confidence: float, games_without: int, games_with: int
    ) -> Self:
        """Returns the certificate with the result of an audit of the tuning.

        Raises:
            InvalidInput: the audit shows more than the certified epsilon.
        """
        evidence = Evidence(epsilon_lower, confidence, games_without, games_with)
        if evidence.epsilon_lower > self.numbers.epsilon:
            raise InvalidInput(
                "epsilon_lower must be at most the certified epsilon, "
                f"{self.numbers.epsilon!r}, got {epsilon_lower!r}: one of them is wrong"
            )
        return replace(self, evidence=evidence)

    def save(self, path: str | Path) -> None:
        """Writes the certificate as json, text or html, according to the suffix of the path.

        With the suffix `.yaml`, it writes a draft for the Differential Privacy Deployments
        Registry. Fields that do not follow from the certificate are blank.

        Raises:
            InvalidInput: the path has another ending or cannot be written, or the certificate is
                void and the ending is `.yaml`.
        """
        if not isinstance(path, str | Path):
            raise InvalidInput(f"path must be the path of a file, got {checks.one_line(path)}")
        path = Path(path)
        ending = checks.one_of("path's ending", path.suffix, (".json", ".txt", ".html", ".yaml"))
        if ending == ".json":
            # ASCII makes letters visible that look like others.
            content = json.dumps(self.as_dict(), indent=2) + "\n"
        elif ending == ".txt":
            content = f"{self}\n"
        elif ending == ".yaml":
            content = presentation.deployment_record(self)
        else:
            content = presentation.html(self)
        try:
            path.write_text(content, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidInput(
                "path must be a file that can be written, got "
                f"{checks.one_line(str(path))}: {checks.reason_of(error)}"
            ) from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Reads the values that `as_dict` returned, without verification.

        Raises:
            InvalidInput: the values are not a certificate of this format.
        """
        format_name = values.get("format") if isinstance(values, Mapping) else None
        if isinstance(format_name, str) and format_name in _OLD_FORMATS:
            raise InvalidInput(
                f"certificate must be of format {FORMAT!r}, got {format_name!r}, whose conditions "
                "cannot be verified: issue it again from its study"
            )
        if format_name != FORMAT:
            raise InvalidInput(
                f"certificate must be of format {FORMAT!r}, got {checks.one_line(format_name)}"
            )
        certificate: Self = read_typed(cls, values, "certificate", _READERS)
        derived.check_score(certificate.protocol, certificate.score)
        return certificate

    def __str__(self) -> str:
        return presentation.full_text(self)


def _current_provenance() -> Made:
    libraries = {}
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Made(__version__, today, platform.python_version(), libraries)


_READERS = {
    Mechanism: lambda values: mechanism_from_dict(
        # The description of a base is only for readers.
        {name: value for name, value in values.items() if name != "description"}
        if isinstance(values, Mapping)
        else values
    ),
    Protocol: lambda value: parse_protocol(read_typed(str, value, "protocol")),
    Declaration: Declaration.from_dict,
}
"""Functions that read fields whose classes are not dataclasses of plain values."""


def hash_of(values: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical json of all fields except the hash."""
    hashed = {name: value for name, value in values.items() if name != "hash"}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


_FIELDS: dict[str, tuple[Any, str]] = {
    "format": (Annotated[str, Keywords(const=FORMAT)], "Name and version of this schema."),
    "statement": (Text, "The claim in one line; begins with VOID if a condition is broken."),
    "base": (_MECHANISM, "One run, its score included."),
    "training": (_MECHANISM, "One run without its score."),
    "score": (Private | None, "Noise of the score; null if it reads public records only."),
    "protocol": (Text, "How the best run is chosen, and the distribution of the number of runs."),
    "protocol_in_words": (Text, "The protocol as sentences."),
    "delta": (Chance, "Of the whole tuning."),
    "numbers": (Numbers, "Computed from base, protocol and delta."),
    "groups": (
        {
            "type": "array",
            "items": closed_object(
                {
                    "records": schema_of(Annotated[int, Keywords(minimum=2)]),
                    "epsilon": schema_of(NonNegative | None),
                }
            ),
        },
        "Epsilon at delta of a group of records; null if none follows from the profile.",
    ),
    "setting": (Setting, "What the claim is about."),
    "study": (StudyFacts, "What the study states about itself."),
    "conditions": (
        Annotated[tuple[Condition, ...], Keywords(minItems=1)],
        "All conditions that base, protocol and score require.",
    ),
    "void_if": (
        Annotated[tuple[Text, ...], Keywords(minItems=1)],
        "Events that make the certificate void.",
    ),
    "model_hash": (Sha256 | None, "SHA-256 of the values of the released model."),
    "declaration": (Declaration, "Statements of the author; null means not stated."),
    "not_stated": (_Names, "Names of what a sign-off needs and the file lacks."),
    "total": (
        {
            **closed_object(
                {
                    "epsilon": schema_of(NonNegative),
                    "delta": schema_of(Share),
                }
            ),
            "type": ["object", "null"],
        },
        "Cost of this and all earlier releases by basic composition; null if earlier spending is "
        "not stated.",
    ),
    "made": (Made, "When and with what."),
    "evidence": (Evidence | None, "Result of an audit of this tuning."),
    "hash": (
        Sha256,
        "SHA-256 of all other fields as json with sorted names and Python's default separators.",
    ),
}
"""The type, or the schema, and the meaning of each field of the file."""


def schema() -> dict[str, Any]:
    """JSON Schema of the format.

    Example:
        >>> schema()["properties"]["format"]["const"]
        'private-tuning-certificate/2'
    """
    properties = {
        name: {"description": words} | (kind if isinstance(kind, dict) else schema_of(kind))
        for name, (kind, words) in _FIELDS.items()
    }
    # The largest epsilon that the trials could show follows from the evidence and delta.
    evidence = properties["evidence"]
    evidence["properties"]["ceiling"] = schema_of(NonNegative)
    evidence["required"].append("ceiling")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Certificate of a private tuning, format {FORMAT}",
        "description": "A file of this shape can still state wrong numbers or lack a condition: "
        "python -m audit.verify recomputes both.",
        **closed_object(properties),
        "$defs": {"mechanism": _mechanism()},
    }


def _mechanism() -> Schema:
    return {
        "type": "object",
        "required": ["mechanism"],
        "properties": {"mechanism": {"enum": sorted(MECHANISMS)}},
        "description": "A class of audit.accounting and its parameters.",
    }

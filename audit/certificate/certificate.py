"""The certificate of a private tuning: issued, completed by its author, saved and read."""

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
from typing import Any, Self

from audit import __version__, checks
from audit.accounting import (
    Mechanism,
    group_size,
    mechanism_from_dict,
    mechanism_to_dict,
    relations,
)
from audit.certificate import conditions as derived
from audit.certificate import deployment, page, text
from audit.certificate.conditions import Condition, Ground, Private, Setting, StudyFacts
from audit.certificate.declaration import PRIVATE, Declaration
from audit.certificate.evidence import Evidence
from audit.certificate.numbers import GROUPS, Numbers, TradeOff, compute, rounded_up
from audit.certificate.wording import describe
from audit.errors import InvalidInput
from audit.numerics import format_exact
from audit.protocols import Protocol, parse_protocol
from audit.typed_json import read_typed

NAMESPACE = "private-tuning-certificate"
"""Name of the format, without its version."""

FORMAT = f"{NAMESPACE}/2"
"""Name and version of the json; docs/certificate.md describes its fields."""

_OLD = (f"{NAMESPACE}/1",)
_LIBRARIES = ("numpy", "scipy", "opacus", "torch")
_N_IS_PUBLIC = ("zero-out", "replace-one")


@dataclass(frozen=True)
class Made:
    """The origin of a certificate: its date, and the versions of the software that issued it."""

    version: str
    date: str
    python: str
    libraries: Mapping[str, str]


@dataclass(frozen=True)
class Certificate:
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
        known = derived.checkable(training, protocol)
        study = replace(
            study,
            checked=tuple(name for name in known if name in study.checked),
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
        names = {one.name for one in fields(Declaration)}
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
            content = deployment.record(self)
        else:
            content = page.html(self)
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
        given = values.get("format") if isinstance(values, Mapping) else None
        if isinstance(given, str) and given in _OLD:
            raise InvalidInput(
                f"certificate must be of format {FORMAT!r}, got {given!r}, whose conditions cannot "
                "be verified: issue it again from its study"
            )
        if given != FORMAT:
            raise InvalidInput(
                f"certificate must be of format {FORMAT!r}, got {checks.one_line(given)}"
            )
        found: Self = read_typed(cls, values, "certificate", _READERS)
        derived.check_score(found.protocol, found.score)
        return found

    def __str__(self) -> str:
        return text.paragraph(self)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All conditions of the claim."""
        return derived.conditions(self.training, self.protocol, self.score, self.study)

    @property
    def on_trust(self) -> tuple[Condition, ...]:
        """The conditions that were not checked."""
        return tuple(one for one in self.conditions if one.ground is Ground.ON_TRUST)

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
        return tuple(one.words for one in self.conditions if one.ground is Ground.BROKEN)

    @property
    def statement(self) -> str:
        """The claim in one line."""
        return self.claim("on trust")

    def claim(self, which: str) -> str:
        """The claim in one line; `which` describes its conditions: `on trust` or `below`."""
        what = describe(self.protocol).claimed
        claim = (
            f"Releasing {what} is ({rounded_up(self.numbers.epsilon)}, "
            f"{format_exact(self.delta)})-differentially private{self._relation}, if "
            f"{self.required(which)} hold."
        )
        return f"VOID: {'; '.join(self.void)}. Otherwise: {claim}" if self.void else claim

    def required(self, which: str) -> str:
        """The number of conditions in words; `which` describes those on trust."""
        tested = sum(one.ground is Ground.TESTED for one in self.conditions)
        more = f" and the {tested} tested ones" if tested else ""
        return f"the {len(self.on_trust)} conditions {which}{more}"

    @property
    def groups(self) -> tuple[tuple[int, float | None], ...]:
        """Sizes of groups of records, and the epsilon of each at `delta`; None if none follows."""
        curve = TradeOff(self.numbers.profile)
        each = group_size(self.training)
        own = math.ceil((self.declaration.records_per_person or 1) / each)
        times = sorted({*GROUPS, own} - {1})
        return tuple((each * count, curve.group_epsilon(count, self.delta)) for count in times)

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
            "protocol_in_words": describe(self.protocol).summary,
            "delta": self.delta,
            "numbers": asdict(self.numbers),
            "groups": [{"records": size, "epsilon": epsilon} for size, epsilon in self.groups],
            "setting": asdict(self.setting),
            "study": asdict(self.study),
            "conditions": [
                {"name": one.name, "words": one.words, "ground": one.ground.value}
                for one in self.conditions
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
        {name: one for name, one in values.items() if name != "description"}
        if isinstance(values, Mapping)
        else values
    ),
    Protocol: lambda value: parse_protocol(read_typed(str, value, "protocol")),
    Declaration: Declaration.from_dict,
}
"""Functions that read fields whose classes are not dataclasses of plain values."""


def hash_of(values: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical json of all fields except the hash."""
    rest = {name: one for name, one in values.items() if name != "hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()

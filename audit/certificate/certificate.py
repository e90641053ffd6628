"""The certificate of a private tuning: its fields, its json format, and its renderings."""

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

from audit import __version__, checks, protocols
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
from audit.certificate.numbers import (
    GROUPS,
    Numbers,
    TradeOff,
    compute,
    rounded_up,
)
from audit.certificate.wording import in_words
from audit.errors import InvalidInput
from audit.numerics import format_exact
from audit.protocols import BestRuns, BudgetSchedule, Protocol, Subset
from audit.typed_json import read_typed

NAMESPACE = "private-tuning-certificate"
"""Name of the format, without its version."""

FORMAT = f"{NAMESPACE}/2"
"""Name and version of the json; docs/certificate.md describes its fields."""

_OLD = (f"{NAMESPACE}/1",)
_LIBRARIES = ("numpy", "scipy", "opacus", "torch")
_N_IS_PUBLIC = ("zero-out", "replace-one")
_MAX_TEXT = 1_000_000  # a prior lists all candidates of a grid
_MAX_NAMES = 10_000
_MAX_ROWS = 100


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

    Example:
        >>> import inspect
        >>> list(inspect.signature(Certificate).parameters)[:4]
        ['base', 'training', 'protocol', 'delta']
    """

    base: Mechanism
    training: Mechanism
    protocol: Protocol
    delta: float
    numbers: Numbers
    score: Private | None
    study: StudyFacts
    made: Mapping[str, Any] = field(default_factory=dict)
    model_hash: str | None = None
    declaration: Declaration = field(default_factory=Declaration)
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
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
        return cls(base, training, protocol, delta, numbers, score, study, _made_now(), model_hash)

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
        """The claim in one line.

        Args:
            which: where a reader finds the conditions: `on trust`, `below`.
        """
        what = "the best run of this tuning"
        if isinstance(self.protocol, Subset):
            what = "the final run of this tuning, and the candidate chosen,"
        if isinstance(self.protocol, BestRuns):
            what = f"the best {self.protocol.released} runs of this tuning"
        if isinstance(self.protocol, BudgetSchedule):
            what = "the accepted run of this tuning, and its step,"
        claim = (
            f"Releasing {what} is ({rounded_up(self.numbers.epsilon)}, "
            f"{format_exact(self.delta)})-differentially private{self._relation}, if "
            f"{self.required(which)} hold."
        )
        return f"VOID: {'; '.join(self.void)}. Otherwise: {claim}" if self.void else claim

    def required(self, which: str) -> str:
        """The conditions that the claim depends on, in words.

        Args:
            which: where a reader finds those on trust.
        """
        tested = sum(one.ground is Ground.TESTED for one in self.conditions)
        more = f" and the {tested} tested ones" if tested else ""
        return f"the {len(self.on_trust)} conditions {which}{more}"

    @property
    def groups(self) -> tuple[tuple[int, float | None], ...]:
        """Group sizes with their epsilon at `delta`, or None if no epsilon follows.

        If the claim itself is about groups, these are groups of such groups.
        """
        curve = TradeOff(self.numbers.profile)
        each = group_size(self.training)
        own = math.ceil((self.declaration.records_per_person or 1) / each)
        times = sorted({*GROUPS, own} - {1})
        return tuple((each * count, curve.group_epsilon(count, self.delta)) for count in times)

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

    @property
    def _relation(self) -> str:
        """Neighbouring relations of the base mechanism, in words."""
        stated = sorted(relations(self.base))
        return f" for {' and '.join(stated)} neighbours" if stated else ""

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
            InvalidInput: the path has another ending, or a void certificate would be registered.
        """
        path = Path(path)
        ending = checks.one_of("path's ending", path.suffix, (".json", ".txt", ".html", ".yaml"))
        if ending == ".json":
            # ASCII makes letters visible that look like others.
            content = json.dumps(self.as_dict(), indent=2) + "\n"
        elif ending == ".txt":
            content = text.paragraph(self)
        elif ending == ".yaml":
            content = deployment.record(self)
        else:
            content = page.html(self)
        path.write_text(content, encoding="utf-8")

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
            "protocol_in_words": in_words(self.protocol),
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
            "declaration": self.declaration.as_dict(),
            "not_stated": self.not_stated,
            "total": None if total is None else {"epsilon": total[0], "delta": total[1]},
            "made": dict(self.made),
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
        return (*missing, *self.declaration.not_stated)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Reads the values that `as_dict` returned, without verification.

        Raises:
            InvalidInput: the values are not a certificate of this format.
        """
        came = values.get("format") if isinstance(values, Mapping) else None
        if isinstance(came, str) and came in _OLD:
            raise InvalidInput(
                f"certificate must be of format {FORMAT!r}, got {came!r}, whose conditions cannot "
                "be verified: issue it again from its study"
            )
        if came != FORMAT:
            raise InvalidInput(
                f"certificate must be of format {FORMAT!r}, got {checks.one_line(came)}"
            )
        try:
            base = {name: one for name, one in values["base"].items() if name != "description"}
            return cls(
                base=mechanism_from_dict(base),
                training=mechanism_from_dict(values["training"]),
                protocol=_protocol(values["protocol"]),
                delta=checks.interval("delta", values["delta"], 0.0, 1.0),
                numbers=_numbers(values["numbers"]),
                score=read_typed(Private | None, values["score"], "score"),
                study=_facts(values["study"]),
                made=_made(values["made"]),
                model_hash=_digits("model_hash", values["model_hash"]),
                declaration=Declaration.from_dict(values["declaration"]),
                evidence=read_typed(Evidence | None, values["evidence"], "evidence"),
            )
        except (KeyError, TypeError, AttributeError, ArithmeticError, IndexError) as error:
            raise InvalidInput(
                "certificate must have the fields of its format, got "
                f"{type(error).__name__}: {checks.one_line(str(error))}"
            ) from None


def _made_now() -> dict[str, Any]:
    libraries = {}
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    return {
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "libraries": libraries,
    }


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise InvalidInput(f"{name} must be a text, got {checks.one_line(value)}")
    return value


def _protocol(value: Any) -> Protocol:
    found = protocols.parse_protocol(_text("protocol", value))
    if not isinstance(found, derived.PROTOCOLS):
        names = ", ".join(kind.name for kind in derived.PROTOCOLS)
        raise InvalidInput(
            f"protocol must be one whose conditions are known ({names}), got {found}"
        )
    return found


def _texts(name: str, values: Any) -> dict[str, str]:
    """Validates a mapping from names to texts."""
    if not isinstance(values, Mapping) or len(values) > _MAX_NAMES:
        raise InvalidInput(f"{name} must be texts by name, got {checks.one_line(values)}")
    return {_text(name, key): _text(f"{name}.{key}", one) for key, one in values.items()}


def _digits(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)):
        raise InvalidInput(f"{name} must be 64 hexadecimal digits, got {checks.one_line(value)}")
    return value


def _facts(values: Mapping[str, Any]) -> StudyFacts:
    _texts("study.prior", values["prior"])
    found: StudyFacts = read_typed(StudyFacts, values, "study")
    if _digits("study.settings", found.settings) is None:
        raise InvalidInput("study.settings must be 64 hexadecimal digits, got none")
    if found.expected_batch_size is not None:
        checks.interval("study.expected_batch_size", found.expected_batch_size, 0.0)
    checks.one_of("study.tested_on", found.tested_on, ("", *derived.TESTED_ON))
    return found


def _made(values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping) or set(values) != {"version", "date", "python", "libraries"}:
        raise InvalidInput(
            "made must have version, date, python and libraries, got "
            f"{checks.one_line(list(values) if isinstance(values, Mapping) else values)}"
        )
    found: dict[str, Any] = _texts(
        "made", {name: one for name, one in values.items() if name != "libraries"}
    )
    return found | {"libraries": _texts("made.libraries", values["libraries"])}


def _numbers(values: Mapping[str, Any]) -> Numbers:
    """Reads the numbers; the limit of rows comes first, because large files must fail quickly."""
    for name in ("bounds", "profile", "trade_off"):
        if len(values[name]) > _MAX_ROWS:
            raise InvalidInput(
                f"numbers.{name} must have at most {_MAX_ROWS} entries, got {len(values[name])}"
            )
    found: Numbers = read_typed(Numbers, values, "numbers")
    if not found.bounds:
        raise InvalidInput("numbers.bounds must name the bounds that were computed, got none")
    return found


def hash_of(values: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical json of all fields except the hash."""
    rest = {name: one for name, one in values.items() if name != "hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()

"""The certificate of a private tuning: issued, completed by its author, saved and read."""

import contextlib
import datetime
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from audit import __version__, checks, protocols
from audit.accounting import Mechanism, mechanism_from_dict
from audit.certificate import conditions as derived
from audit.certificate import deployment, page, text
from audit.certificate.conditions import Private, StudyFacts
from audit.certificate.contents import FORMAT, NAMESPACE, CertificateContents, Made
from audit.certificate.declaration import Declaration
from audit.certificate.evidence import Evidence
from audit.certificate.numbers import Numbers, compute
from audit.errors import InvalidInput
from audit.protocols import Protocol
from audit.typed_json import read_typed

_OLD = (f"{NAMESPACE}/1",)
_LIBRARIES = ("numpy", "scipy", "opacus", "torch")
_MAX_ROWS = 100
_MAX_NAMES = 10_000
_FIELDS = tuple(each.name for each in fields(CertificateContents))


@dataclass(frozen=True)
class Certificate(CertificateContents):
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
        known = derived.checkable(training, protocol)
        study = replace(
            study,
            checked=tuple(name for name in known if name in study.checked),
            tested=tuple(n for n in derived.testable(training, score) if n in study.tested),
        )
        if not study.tested:
            study = replace(study, tested_on="", tested_with="", tested_steps=0)
        return cls(base, training, protocol, delta, numbers, score, study, _made_now(), model_hash)

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
            InvalidInput: the path has another ending or cannot be written, or a void certificate
                would be registered.
        """
        if not isinstance(path, str | Path):
            raise InvalidInput(f"path must be the path of a file, got {checks.one_line(path)}")
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
        if missing := [name for name in _FIELDS if name not in values]:
            raise InvalidInput(
                f"certificate must have the fields of its format, got none named {missing[0]}"
            )
        base = dict(_mapping("base", values["base"]))
        base.pop("description", None)
        found = cls(
            base=mechanism_from_dict(base),
            training=mechanism_from_dict(_mapping("training", values["training"])),
            protocol=_protocol(values["protocol"]),
            delta=checks.interval("delta", values["delta"], 0.0, 1.0),
            numbers=_numbers(_mapping("numbers", values["numbers"])),
            score=read_typed(Private | None, values["score"], "score"),
            study=_facts(_mapping("study", values["study"])),
            made=read_typed(Made, values["made"], "made"),
            model_hash=_digits("model_hash", values["model_hash"]),
            declaration=Declaration.from_dict(values["declaration"]),
            evidence=read_typed(Evidence | None, values["evidence"], "evidence"),
        )
        derived.check_score(found.protocol, found.score)
        return found


def _made_now() -> Made:
    libraries = {}
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Made(__version__, today, platform.python_version(), libraries)


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be a mapping, got {checks.one_line(value)}")
    return value


def _protocol(value: Any) -> Protocol:
    found = protocols.parse_protocol(read_typed(str, value, "protocol"))
    if not isinstance(found, derived.PROTOCOLS):
        names = ", ".join(kind.name for kind in derived.PROTOCOLS)
        raise InvalidInput(
            f"protocol must be one whose conditions are known ({names}), got {found}"
        )
    return found


def _digits(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)):
        raise InvalidInput(f"{name} must be 64 hexadecimal digits, got {checks.one_line(value)}")
    return value


def _facts(values: Mapping[str, Any]) -> StudyFacts:
    prior = _mapping("study.prior", values.get("prior"))
    if len(prior) > _MAX_NAMES:
        raise InvalidInput(f"study.prior must have at most {_MAX_NAMES} names, got {len(prior)}")
    found: StudyFacts = read_typed(StudyFacts, values, "study")
    if _digits("study.settings", found.settings) is None:
        raise InvalidInput("study.settings must be 64 hexadecimal digits, got none")
    if found.expected_batch_size is not None:
        checks.interval("study.expected_batch_size", found.expected_batch_size, 0.0)
    checks.one_of("study.tested_on", found.tested_on, ("", *derived.TESTED_ON))
    return found


def _numbers(values: Mapping[str, Any]) -> Numbers:
    """Reads the numbers; the limit of rows comes first, because large files must fail quickly."""
    for name in ("bounds", "profile", "trade_off"):
        rows = values.get(name)
        if not isinstance(rows, list | tuple):
            raise InvalidInput(f"numbers.{name} must be a list, got {checks.one_line(rows)}")
        if len(rows) > _MAX_ROWS:
            raise InvalidInput(
                f"numbers.{name} must have at most {_MAX_ROWS} entries, got {len(rows)}"
            )
    found: Numbers = read_typed(Numbers, values, "numbers")
    if not found.bounds:
        raise InvalidInput("numbers.bounds must name the bounds that were computed, got none")
    return found

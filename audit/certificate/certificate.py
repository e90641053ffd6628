"""The certificate of a private tuning: issued, completed by its author, saved and read."""

import contextlib
import datetime
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from audit import checks
from audit.accounting import Mechanism, mechanism_from_dict
from audit.certificate import conditions as derived
from audit.certificate import deployment, page, text
from audit.certificate.conditions import Declaration, Private, StudyFacts
from audit.certificate.content import FORMAT, NAMESPACE, Content, Evidence, Made
from audit.certificate.numbers import compute
from audit.errors import InvalidInput
from audit.protocols import Protocol, parse_protocol
from audit.typed_json import read_typed
from audit.version import __version__

_OLD = (f"{NAMESPACE}/1",)
_LIBRARIES = ("numpy", "scipy", "opacus", "torch")


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
        format_name = values.get("format") if isinstance(values, Mapping) else None
        if isinstance(format_name, str) and format_name in _OLD:
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
        return text.document(self)


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

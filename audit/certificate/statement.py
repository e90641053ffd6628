"""What a certificate says: one result object, and its plain values."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Self

from audit import checks, protocols
from audit.accounting import Mechanism, mechanism_from_dict, mechanism_to_dict, relations
from audit.certificate.evidence import Evidence
from audit.certificate.numbers import Numbers, PrivacyPoint, compute, rounded_up
from audit.numerics import format_exact
from audit.protocols import Protocol, Subset

__all__ = ["FORMAT", "Condition", "Ground", "Setting", "Statement", "hash_of"]

FORMAT = "private-tuning-certificate/1"
"""Name and version of the json; what a version says is in docs/certificate.md."""


class Ground(Enum):
    """Why a condition is taken to be true.

    Example:
        >>> [ground.value for ground in Ground]
        ['by construction', 'checked', 'on trust', 'broken']
    """

    BY_CONSTRUCTION = "by construction"
    CHECKED = "checked"
    ON_TRUST = "on trust"
    BROKEN = "broken"


@dataclass(frozen=True)
class Condition:
    """One thing that must be true for the claim to be.

    Attributes:
        words: what.
        ground: why it is taken to be true.

    Example:
        >>> Condition("only the best run is released", Ground.ON_TRUST).ground.value
        'on trust'
    """

    words: str
    ground: Ground


@dataclass(frozen=True)
class Setting:
    """What the claim is about.

    Attributes:
        trust_model: who sees what.
        unit: whose privacy: what one record is.
        neighbours: which data sets are neighbours.
        touched: which records are read, by what.
        released: what is published.
        withheld: what must not be.
        prior: over candidates, by name.

    Example:
        >>> import inspect
        >>> list(inspect.signature(Setting).parameters)[:3]
        ['trust_model', 'unit', 'neighbours']
    """

    trust_model: str
    unit: str
    neighbours: str
    touched: Mapping[str, str]
    released: tuple[str, ...]
    withheld: tuple[str, ...]
    prior: Mapping[str, str]


@dataclass(frozen=True)
class Statement:
    """What a tuning keeps, why, and what would make it void; all that a rendering shows.

    Attributes:
        base: one run.
        protocol: how the best run is chosen.
        delta: of the whole.
        numbers: what follows from the three above.
        setting: what it is about.
        conditions: what must be true, and why it is taken to be.
        void_if: what would make it void.
        made: versions, date, the policy of seeds and the hash of the settings.
        evidence: what a game against it has shown, if one was played.

    Example:
        >>> import inspect
        >>> list(inspect.signature(Statement).parameters)[:4]
        ['base', 'protocol', 'delta', 'numbers']
    """

    base: Mechanism
    protocol: Protocol
    delta: float
    numbers: Numbers
    setting: Setting
    conditions: tuple[Condition, ...]
    void_if: tuple[str, ...]
    made: Mapping[str, Any] = field(default_factory=dict)
    evidence: Evidence | None = None

    @classmethod
    def issue(
        cls,
        base: Mechanism,
        protocol: Protocol,
        delta: float,
        setting: Setting,
        conditions: tuple[Condition, ...],
        void_if: tuple[str, ...],
        made: Mapping[str, Any],
    ) -> Self:
        """Computes the numbers and states what they are about."""
        numbers = compute(base, protocol, delta)
        return cls(base, protocol, delta, numbers, setting, conditions, void_if, made)

    @property
    def void(self) -> tuple[str, ...]:
        """What is broken already; a guarantee has none."""
        return tuple(one.words for one in self.conditions if one.ground is Ground.BROKEN)

    @property
    def statement(self) -> str:
        """The claim in one line."""
        what = "the best run of this tuning"
        if isinstance(self.protocol, Subset):
            what = "the final run of this tuning, and the candidate chosen,"
        claim = (
            f"Releasing {what} is ({rounded_up(self.numbers.epsilon)}, "
            f"{format_exact(self.delta)})-differentially private{self._relation}."
        )
        return f"VOID: {'; '.join(self.void)}. Else: {claim}" if self.void else claim

    @property
    def _relation(self) -> str:
        """The neighbouring relation, where the base states one."""
        stated = sorted(relations(self.base))
        return f" for {' and '.join(stated)} neighbours" if stated else ""

    def with_evidence(
        self, epsilon_lower: float, confidence: float, games_without: int, games_with: int
    ) -> Self:
        """The same, and what a game against the tuning has shown.

        Raises:
            ValueError: the game shows more than the certificate allows.
        """
        evidence = Evidence(epsilon_lower, confidence, games_without, games_with)
        if evidence.epsilon_lower > self.numbers.epsilon:
            raise ValueError(
                "epsilon_lower must be at most what is certified, "
                f"{self.numbers.epsilon!r}, got {epsilon_lower!r}: one of them is wrong"
            )
        return replace(self, evidence=evidence)

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, with the hash over the rest."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "statement": self.statement,
            "base": mechanism_to_dict(self.base) | {"description": self.base.description},
            "protocol": self.protocol.spec,
            "delta": self.delta,
            "numbers": asdict(self.numbers),
            "setting": asdict(self.setting),
            "conditions": [
                {"words": one.words, "ground": one.ground.value} for one in self.conditions
            ],
            "void_if": list(self.void_if),
            "made": dict(self.made),
            "evidence": None
            if self.evidence is None
            else asdict(self.evidence) | {"ceiling": self.evidence.ceiling(self.delta)},
        }
        # Tuples become lists here already, so that what is read again is the same.
        values = json.loads(json.dumps(values))
        return values | {"hash": hash_of(values)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `as_dict` wrote; nothing is recomputed, and the hash is not looked at.

        Raises:
            ValueError: it is no certificate of this format.
        """
        came = values.get("format") if isinstance(values, Mapping) else None
        if came != FORMAT:
            raise ValueError(f"certificate must be of format {FORMAT!r}, got {came!r}")
        try:
            base = {name: one for name, one in values["base"].items() if name != "description"}
            evidence = values["evidence"]
            if evidence is not None:
                evidence = Evidence(
                    **{name: one for name, one in evidence.items() if name != "ceiling"}
                )
            return cls(
                base=mechanism_from_dict(base),
                protocol=protocols.parse_protocol(values["protocol"]),
                delta=checks.interval("delta", values["delta"], 0.0, 1.0),
                numbers=_numbers(values["numbers"]),
                setting=_setting(values["setting"]),
                conditions=tuple(
                    Condition(one["words"], Ground(one["ground"])) for one in values["conditions"]
                ),
                void_if=tuple(values["void_if"]),
                made=dict(values["made"]),
                evidence=evidence,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"certificate must have the fields of its format, got {error}"
            ) from None


def _numbers(values: Mapping[str, Any]) -> Numbers:
    """Numbers read from plain values: what was a tuple is one again."""
    found = Numbers(**values)
    return replace(
        found,
        profile=tuple(PrivacyPoint(**one) for one in values["profile"]),
        trade_off=tuple((rate, least) for rate, least in values["trade_off"]),
        true_positives=tuple(values["true_positives"]),
        bounds=tuple(values["bounds"]),
    )


def _setting(values: Mapping[str, Any]) -> Setting:
    found = Setting(**values)
    return replace(found, released=tuple(found.released), withheld=tuple(found.withheld))


def hash_of(values: Mapping[str, Any]) -> str:
    """SHA-256 over everything but the hash itself, in one canonical form."""
    rest = {name: one for name, one in values.items() if name != "hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()

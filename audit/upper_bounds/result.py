"""The result of a bound: a number, its assumptions and its source."""

from dataclasses import dataclass, field
from typing import Any

from audit.claims import Claim, Kind
from audit.numerics import format_places

FAILURE_TOO_LIKELY = (
    "delta must be above the probability that one of the K runs fails, about E[K] delta_base"
)
"""Why bounds through pure DP do not apply to a base with a large delta of its own."""


@dataclass(frozen=True)
class UpperBound:
    """An upper bound on the cost of a tuning, or the reason why it does not apply.

    Attributes:
        name: the bound's name.
        epsilon: the value, rounded to the safe side; infinite if the bound does not apply.
        claim: the kind of the number, its assumptions and its source.
        error: the exact value of the bound lies in [epsilon - error, epsilon] (for an attained
            value, in [epsilon, epsilon + error]).
        reason: the reason why the bound does not apply; empty if it applies.
        attains: an epsilon that some score is known to attain; 0 if none is known.
        statement: the cost as one sentence with all its premises, as `tuning_cost` states it;
            empty for a single bound of a table.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import region
        >>> str(region(GaussianMechanism(0.25), "fixed:10", 1e-5)).split("; ")[0]
        'epsilon <= 3.048 by region: any score'
    """

    name: str
    epsilon: float
    claim: Claim
    error: float = 0.0
    reason: str = ""
    attains: float = 0.0
    statement: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        if not self.applies:
            return f"{self.name} {self.assumes}"
        if self.statement:
            return f"{self.statement} (Bound: {self.name}.)"
        sign = "about" if self.approximate else ">=" if self.attained else "<="
        epsilon = format_places(self.epsilon, up=not self.attained)
        return f"epsilon {sign} {epsilon} by {self.name}: {self.assumes}"

    @property
    def applies(self) -> bool:
        """Whether the bound applies and has a value."""
        return not self.reason

    @property
    def assumes(self) -> str:
        """The assumptions of the value in one line, or the reason why the bound does not apply."""
        return f"does not apply: {self.reason}" if self.reason else self.claim.words

    @property
    def source(self) -> str:
        """The paper and theorem."""
        return self.claim.source

    @property
    def attained(self) -> bool:
        """Whether the value is attained by an attack, and so is not an upper bound."""
        return self.claim.kind is Kind.ATTAINED

    @property
    def approximate(self) -> bool:
        """Whether the value is an approximation, and so is not a bound."""
        return self.claim.kind is Kind.APPROXIMATION

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values, for json and tables."""
        row: dict[str, Any] = {
            "name": self.name,
            "epsilon": self.epsilon if self.applies else None,
            "assumes": self.claim.words,
            "source": self.source,
            "error": self.error,
            "attained": self.attained,
            "approximate": self.approximate,
        }
        return row | ({"reason": self.reason} if self.reason else {})

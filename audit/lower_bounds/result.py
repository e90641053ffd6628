"""The result of an estimator: a lower bound, with its assumptions and the counts behind it."""

from dataclasses import dataclass, fields
from typing import Any

from audit.claims import Claim, Validity
from audit.numerics import format_places


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon, with its assumptions and the counts behind it.

    Attributes:
        name: the estimator, for instance "clopper-pearson".
        rule: how the threshold was chosen, for instance "split".
        epsilon: the bound, at least 0; rounding errors can only make it smaller.
        confidence: probability, before the audit, that the bound does not exceed the true epsilon.
        claim: the assumptions of the bound.
        verdict: whether the bound is valid for this audit.
        threshold: the threshold behind the bound, on the scale of the scores; None if there is no
            single threshold, or no score to place it at.
        direction: "higher" if scores above the threshold indicate the record, else "lower".
        false_positives: trials without the record on the side that indicates it.
        false_negatives: trials with the record on the other side.
        trials_without: number of trials without the record that were counted.
        trials_with: number of trials with the record that were counted.

    Example:
        >>> from audit.lower_bounds import lower_bound
        >>> bound = lower_bound(out_scores=range(500), in_scores=range(400, 900), delta=1e-5)
        >>> print(str(bound).partition(": ")[0])
        epsilon >= 4.612 with 0.95 confidence by scan (valid)
    """

    name: str
    rule: str
    epsilon: float
    confidence: float
    claim: Claim
    verdict: Validity
    threshold: float | None = None
    direction: str = "higher"
    false_positives: int | None = None
    false_negatives: int | None = None
    trials_without: int = 0
    trials_with: int = 0

    def __str__(self) -> str:
        epsilon = format_places(self.epsilon, up=False)
        return (
            f"epsilon >= {epsilon} with {self.confidence:g} confidence by {self.name} "
            f"({self.label}): {self.assumes}"
        )

    @property
    def key(self) -> str:
        """Estimator and rule as one word, unique in `all_lower_bounds`."""
        return f"{self.name}:{self.rule}"

    @property
    def valid(self) -> bool:
        """Whether the confidence holds for this audit, as far as the known facts show."""
        return self.verdict.valid

    @property
    def label(self) -> str:
        """Status of the bound in a few words, such as "valid" or "uncorrected"."""
        return self.verdict.label

    @property
    def assumes(self) -> str:
        """The assumptions, in one line."""
        return self.claim.words

    @property
    def source(self) -> str:
        """Paper and theorem."""
        return self.claim.source

    def as_dict(self) -> dict[str, Any]:
        """Every field and property as a plain value, by name: one row of a table."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        del row["claim"], row["verdict"]
        properties = ("key", "valid", "label", "assumes", "source")
        return {**row, **{name: getattr(self, name) for name in properties}}

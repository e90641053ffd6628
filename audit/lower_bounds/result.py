"""The result of an estimator."""

from dataclasses import dataclass, fields
from typing import Any

from audit.claims import Claim, Validity


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon, with what stands behind it.

    Attributes:
        name: the estimator, for instance "clopper-pearson".
        rule: how the threshold was chosen, for instance "split".
        epsilon: the bound, at least 0; rounding errors only make it smaller.
        confidence: chance, before the game, that the bound does not exceed the truth.
        claim: what it needs to be true.
        verdict: what it is worth in the game at hand.
        threshold: the threshold behind the value, on the scale of the scores; None where there is
            no single one, or no score to put it on.
        direction: "higher" if scores above the threshold speak for the record, else "lower".
        false_positives: trials without the record on the side that speaks for it.
        false_negatives: trials with the record on the other side.
        trials_without: number of trials without the record that were counted.
        trials_with: number of trials with the record that were counted.
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

    @property
    def key(self) -> str:
        """Estimator and rule as one word, unique in `all_bounds`."""
        return f"{self.name}:{self.rule}"

    @property
    def valid(self) -> bool:
        """Whether the confidence is true for this game, as far as is known of it."""
        return self.verdict.valid

    @property
    def label(self) -> str:
        """One word or two about the kind of claim: "valid", "uncorrected", "Bayesian", ..."""
        return self.verdict.label

    @property
    def assumes(self) -> str:
        """What has to be true, in one line."""
        return self.claim.words

    @property
    def source(self) -> str:
        """Paper and theorem."""
        return self.claim.source

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, by name, for tables."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        del row["claim"], row["verdict"]
        told = ("key", "valid", "label", "assumes", "source")
        return {**row, **{name: getattr(self, name) for name in told}}

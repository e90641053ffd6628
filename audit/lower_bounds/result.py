"""The result of an estimator."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon, with what stands behind it.

    Attributes:
        name: the estimator, for instance "clopper-pearson".
        rule: how the threshold was chosen, for instance "split".
        epsilon: the bound, at least 0; rounding errors only make it smaller.
        confidence: chance, before the game, that the bound does not exceed the truth.
        valid: whether that confidence is true for the output of a tuning, under `assumes`.
        assumes: what has to be true, in one line.
        label: one word or two about the kind of claim: "valid", "uncorrected", "Bayesian",
            "asymptotic", "not valid for tuned outputs".
        source: paper and theorem.
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
    valid: bool
    assumes: str
    label: str
    source: str
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

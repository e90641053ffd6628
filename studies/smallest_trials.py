"""Lower bounds at the smallest number of trials: `python -m studies.smallest_trials`.

`trials_needed` returns the smallest number of trials per side with which a perfect attack proves an
epsilon. The program audits randomised response with this epsilon as often as `--audits` says, and
counts the bounds that exceed the true epsilon.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from audit.lower_bounds import lower_bound, max_detectable_epsilon, trials_needed

DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class SmallestAudit:
    """Audits of randomised response with the smallest number of trials.

    Attributes:
        epsilon: the true epsilon.
        trials: the number of trials per side.
        perfect: the bound of a perfect attack.
        with_one_less: the same with one trial less.
        bounds: the bounds of all audits.
    """

    epsilon: float
    trials: int
    perfect: float
    with_one_less: float
    bounds: tuple[float, ...]

    @property
    def too_large(self) -> int:
        """The number of bounds above the true epsilon."""
        return sum(bound > self.epsilon for bound in self.bounds)

    @property
    def row(self) -> str:
        """The row of the markdown table."""
        audits = len(self.bounds)
        interval = stats.binomtest(self.too_large, audits).proportion_ci(0.95)
        return (
            f"| {self.epsilon:g} | {self.trials} | {self.perfect:.4f} | {self.with_one_less:.4f} | "
            f"{np.mean(self.bounds):.2f} | {self.too_large / audits:.2%} "
            f"({interval.low:.2%} to {interval.high:.2%}) |"
        )


def smallest_audit(epsilon: float, audits: int, seed: int = 7) -> SmallestAudit:
    """Audits randomised response with the number of trials that a perfect attack needs.

    Example:
        >>> smallest_audit(2.0, audits=5).trials
        20
    """
    trials = trials_needed(epsilon, DELTA)
    rng = np.random.default_rng([seed, round(10 * epsilon)])
    truth = 1.0 / (1.0 + math.exp(-epsilon))
    bounds = []
    for _ in range(audits):
        without, with_record = (
            (rng.random(trials) < chance).astype(float) for chance in (1.0 - truth, truth)
        )
        bounds.append(lower_bound(out_scores=without, in_scores=with_record, delta=DELTA).epsilon)
    perfect, with_one_less = (
        max_detectable_epsilon(count, count, DELTA) for count in (trials, trials - 1)
    )
    return SmallestAudit(epsilon, trials, perfect, with_one_less, tuple(bounds))


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--audits", type=int, default=2000)
    audits = parser.parse_args(argv).audits
    print("| epsilon | trials | perfect attack | one trial less | mean bound | too large |")
    print("|---|---|---|---|---|---|")
    for epsilon in EPSILONS:
        print(smallest_audit(epsilon, audits).row, flush=True)


if __name__ == "__main__":
    main()

"""Lower bounds from runs that share initial weights: `python -m studies.correlated_runs`.

A run's score is a shift that it shares with other runs, plus a normal number, plus mu if the record
is in the data. The shift represents initial weights or an order of the data, which shift the score.
DP-SGD is as private for any of them, so the true epsilon is that of a known shift. Runs are
grouped in four ways:

- alone: every run has a shift of its own, as if nothing were shared;
- repeats: the trials of a repeat, half of them with the record, share a shift;
- trials: the runs of a trial share a shift, and no other run has it;
- sides: all trials with the record share a shift, and all others share another one.

The bounds count each run or trial as independent of the others. Given the shifts, the runs are
independent. If both sides have the same shifts, the mean rates of errors satisfy the guarantee as
those of each shift do, because the guarantee is linear in them, and counts of unequal events vary
less than binomial ones. In the last two groupings, the sides have different shifts.

Of 2,000 audits of each kind with 100 trials per side, at most 2.5 % of the bounds were too large
for repeats and for trials. For sides, 35 % of the curve's bounds and 42 % of the pooled curve's
were: two data sets must not have initial weights of their own that many trials share. The page on
coverage of all estimators, docs/coverage_tables.md, has the table.
"""

import argparse
import csv
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from scipy import stats

from audit.accounting import GaussianMechanism
from audit.lower_bounds import all_estimators, pooled_bounds
from audit.lower_bounds.scores import Scores
from audit.numerics import FloatArray
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds import reduced_exact

COMMITTED = Path(__file__).parents[1] / "docs" / "correlated-runs.csv"
DELTA, CONFIDENCE, ALPHA = 1e-5, 0.95, 0.05
GROUPINGS = ("alone", "repeats", "trials", "sides")
REPEATS = 20
"""Repeats of an audit whose trials share a shift."""
_ROWS = ("clopper-pearson:fixed", "gaussian-curve:rank-sum")
_POOLED_ROWS = ("pooled:scan", "pooled-gaussian-curve:rank-sum")


@dataclass(frozen=True)
class Coverage:
    """How often a bound exceeds the true epsilon.

    Attributes:
        grouping: which runs share a shift.
        bound: the bound.
        audits: number of audits.
        violations: number of bounds above the true epsilon.
        mean: mean bound.
        truth: the true epsilon.
    """

    grouping: str
    bound: str
    audits: int
    violations: int
    mean: float
    truth: float

    @property
    def fails(self) -> bool:
        """Whether significantly more than 5 % of the bounds are too large (error: 0.1 %)."""
        p_value = stats.binom.sf(self.violations - 1, self.audits, ALPHA)
        return bool(p_value < 1e-3)

    @property
    def row(self) -> str:
        """The row of the markdown table."""
        rate = f"{self.violations / self.audits:.1%}"
        rate = f"**{rate}**" if self.fails else rate
        interval = stats.binomtest(self.violations, self.audits).proportion_ci(0.95)
        return (
            f"| {self.grouping} | {self.bound} | {self.truth:.2f} | {self.mean:.2f} | {rate} "
            f"({interval.low:.1%} to {interval.high:.1%}) |"
        )


def trials_of(
    rng: np.random.Generator, grouping: str, trials: int, mu: float, spread: float
) -> tuple[FloatArray, FloatArray]:
    """Scores of `trials` trials of one run without the record, and as many with it.

    Args:
        rng: the source of randomness.
        grouping: one of `GROUPINGS`; "trials" equals "alone", because a trial has one run.
        trials: number of trials of each side, a multiple of `REPEATS`.
        mu: how much the record adds.
        spread: standard deviation of the shifts.
    """
    sides = rng.normal(size=(2, trials)) + mu * np.array([[0.0], [1.0]])
    if grouping == "repeats":
        sides += spread * np.repeat(rng.normal(size=REPEATS), trials // REPEATS)
    elif grouping == "sides":
        sides += spread * rng.normal(size=(2, 1))
    else:
        sides += spread * rng.normal(size=(2, trials))
    return sides[0], sides[1]


def runs_of(
    rng: np.random.Generator,
    grouping: str,
    trials: int,
    mu: float,
    spread: float,
    repetitions: Repetitions,
) -> tuple[FloatArray, FloatArray]:
    """Scores of all runs of `trials` trials without the record, and of as many with it."""
    of_repeats = np.repeat(rng.normal(size=REPEATS), trials // REPEATS)
    sides = []
    for mean in (0.0, mu):
        runs = repetitions.sample(rng, trials)
        shifts = {
            "repeats": np.repeat(of_repeats, runs),
            "trials": np.repeat(rng.normal(size=trials), runs),
            "sides": np.full(runs.sum(), rng.normal()),
            "alone": rng.normal(size=runs.sum()),
        }[grouping]
        sides.append(mean + spread * shifts + rng.normal(size=runs.sum()))
    return sides[0], sides[1]


def coverage(
    audits: int,
    trials: int = 100,
    spread: float = 0.5,
    spec: str = "tnb:0,0.1",
    mu: float = 1.0,
    groupings: Sequence[str] = GROUPINGS,
    seed: int = 1,
) -> Iterator[Coverage]:
    """The coverage of bounds on one run, and of pooled bounds on a tuning.

    Args:
        audits: number of audits of each grouping.
        trials: number of trials of each side.
        spread: standard deviation of the shifts; that of a run's score with a known shift is 1.
        spec: distribution of the number of runs of the tuning.
        mu: how much the record adds; a run with a known shift is a Gaussian mechanism.
        groupings: which runs share a shift.
        seed: seed of the simulation.
    """
    repetitions, base = parse_repetitions(spec), GaussianMechanism(mu)
    tuned = reduced_exact(base, repetitions, DELTA)
    estimators = [
        estimator
        for estimator in all_estimators(None, mu, 0.5 * mu)
        if f"{estimator.name}:{estimator.rule_name}" in _ROWS
    ]
    truths = dict.fromkeys(_ROWS, base.epsilon(DELTA)) | dict.fromkeys(
        _POOLED_ROWS, tuned.epsilon - tuned.error
    )
    for grouping in groupings:
        rng = np.random.default_rng([seed, GROUPINGS.index(grouping)])
        epsilons: dict[str, list[float]] = defaultdict(list)
        for _ in range(audits):
            of_trials = Scores.of(*trials_of(rng, grouping, trials, mu, spread))
            of_runs = runs_of(rng, grouping, trials, mu, spread, repetitions)
            bounds = [
                *(estimator.bound(of_trials, DELTA, CONFIDENCE) for estimator in estimators),
                *pooled_bounds(
                    out_scores=of_runs[0],
                    in_scores=of_runs[1],
                    protocol=repetitions,
                    delta=DELTA,
                    confidence=CONFIDENCE,
                ),
            ]
            for bound in bounds:
                if bound.key in truths:
                    epsilons[bound.key].append(bound.epsilon)
        for name, truth in truths.items():
            values = np.array(epsilons[name])
            too_large = int(np.sum(values > truth))
            yield Coverage(grouping, name, audits, too_large, float(values.mean()), truth)


def committed() -> list[Coverage]:
    """The rows of the page on coverage, docs/correlated-runs.csv."""
    with COMMITTED.open(newline="") as file:
        return [
            Coverage(
                row["grouping"],
                row["bound"],
                int(row["audits"]),
                int(row["violations"]),
                float(row["mean"]),
                float(row["truth"]),
            )
            for row in csv.DictReader(file)
        ]


def main() -> None:
    """Prints the table, and writes it as CSV if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--audits", type=int, default=200)
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--groupings", nargs="+", choices=GROUPINGS, default=GROUPINGS)
    parser.add_argument("--out", type=Path, help="a CSV file for the table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of sides whose shifts reverse their order
    print("| shared by | bound | true epsilon | mean bound | too large |")
    print("|---|---|---|---|---|")
    results = []
    for result in coverage(options.audits, spread=options.spread, groupings=options.groupings):
        print(result.row, flush=True)
        results.append(result)
    if options.out:
        with options.out.open("w", newline="") as file:
            names = [field.name for field in fields(Coverage)]
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, results))


if __name__ == "__main__":
    main()

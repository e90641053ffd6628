"""Audits of complete studies with a worst-case base mechanism.

`python -m benchmarks.studies` runs 10,000 studies of every protocol that `audit.Study` supports,
half of them with the record, with the study's own code, and prints a section of docs/attacks.md.
The base is the worst case for its mu: one number, N(mu, 1) with the record and N(0, 1) without. The
score is a function of this number. The test on the winner is fixed in advance.

A lower bound above the certified cost refutes the certificate. The Clopper-Pearson limits hold
together with confidence 99.9 %: even if the cost is attained, a row is refuted in at most one of
1,000 repetitions.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats

from audit import attacks, protocols, repetitions, upper_bounds
from audit.accounting import DiscreteMechanism, GaussianMechanism, Mechanism
from audit.report.text import rounded_down, rounded_up
from audit.tuning import Best, Outcome, Trial
from audit.tuning.journal import Memory
from audit.tuning.plan import Plan
from audit.tuning.play import play
from audit.tuning.space import Space

MU, DELTA, ALPHA = 1.0, 0.01, 0.001


@dataclass(frozen=True)
class Attack:
    """A protocol, a base, a score, and a test on the winner.

    Attributes:
        name: the attack's name in tables.
        protocol: the protocol that the study runs.
        run: draws a run's output, a number, given a random source and whether the record is read.
        score: the score of a candidate and a number.
        rejects: whether the test on a released candidate and number decides against the record.
        accept: whether a number is accepted, for protocols that stop at the first accepted run.
        claimed: the protocol whose cost is claimed; the actual one if empty.
        base: the base mechanism of the claim.
        delta: the delta of the claim.
        levels: the number of candidates.
    """

    name: str
    protocol: str
    run: Callable[[np.random.Generator, bool], float]
    score: Callable[[int, float], float]
    rejects: Callable[[int, float], bool]
    accept: Callable[[float], bool] | None = None
    claimed: str = ""
    base: Mechanism = field(default_factory=lambda: GaussianMechanism(MU))
    delta: float = DELTA
    levels: int = 4

    @property
    def cost(self) -> float:
        """The claimed cost of the tuning."""
        return float(
            upper_bounds.tuning_cost(self.base, self.claimed or self.protocol, self.delta).epsilon
            or 0.0
        )

    def leaked(self, studies: int) -> float:
        """A lower bound on epsilon from `studies` studies with the record and as many without."""
        against = []
        for included in (False, True):
            best = [self._played(2 * key + included, included) for key in range(studies)]
            against.append(
                sum(
                    one.candidate is not None
                    and one.model is not None
                    and self.rejects(one.candidate["level"], one.model)
                    for one in best
                )
            )
        low = stats.beta.ppf(ALPHA / 2, against[0], studies - against[0] + 1)
        high = stats.beta.isf(ALPHA / 2, against[1] + 1, studies - against[1])
        return math.log(max(low - self.delta, 1e-9) / high)

    def _played(self, key: int, included: bool) -> Best:
        def train(trial: Trial) -> Outcome:
            # The record is the whole data set. On a subset without it, a run reads no record.
            read = bool(trial.records(1)[0]) and included
            number = self.run(np.random.default_rng(trial.seed), read)
            return Outcome(self.score(trial.candidate["level"], number), number)

        plan = Plan(
            protocols.parse_protocol(self.protocol),
            Space.parse({"level": list(range(self.levels))}),
            lambda candidate: self.base,
        )
        good_enough = self.accept
        accept = None if good_enough is None else lambda outcome: good_enough(outcome.model)
        return play(plan, key, plan.runs(key), train, Memory(), accept=accept).best


def gaussian(rng: np.random.Generator, read: bool) -> float:
    """The output of the worst-case base with this mu."""
    return float(rng.normal(MU * read))


def _split(name: str, protocol: str, runs: str, studies: int, **settings: Any) -> Attack:
    """An attack with the split order that proves the largest epsilon for a distribution of K."""
    order, threshold = attacks.attack_order(
        MU, repetitions.parse_repetitions(runs), DELTA, studies, 1.0 - ALPHA
    )

    def score(level: int, number: float) -> float:
        return float(order.rank(np.array(number)))

    return Attack(
        name,
        protocol,
        gaussian,
        score,
        lambda level, number: number <= threshold,
        **settings,
    )


def _best_of_thirty(studies: int) -> Attack:
    """An attack in which each run is the best of thirty runs."""
    attack = _split("each run is the best of thirty", "tnb:1,0.95", "fixed:30", studies)

    def run(rng: np.random.Generator, read: bool) -> float:
        numbers = [gaussian(rng, read) for _ in range(30)]
        return max(numbers, key=lambda number: attack.score(0, number))

    return replace(attack, run=run)


def _until(protocol: str) -> Attack:
    top, bottom = stats.norm.isf(0.05), stats.norm.ppf(0.05)
    return Attack(
        "accepts only the tails",
        protocol,
        gaussian,
        lambda level, number: number,
        lambda level, number: number < bottom,
        accept=lambda number: number > top or number < bottom,
    )


def _subset(protocol: str) -> Attack:
    """The test uses the candidate and the final run's number, which depend on different records."""
    return Attack(
        "candidate and final run",
        protocol,
        gaussian,
        lambda level, number: number if level >= 2 else -number,
        lambda level, number: number + (level >= 2) * MU < -0.5,
    )


def _adaptive(protocol: str) -> Attack:
    """Large numbers score highest for half of the candidates, small ones for the others."""
    return Attack(
        "learned density",
        protocol,
        gaussian,
        lambda level, number: number if level >= 2 else -number,
        lambda level, number: level < 2 and number < -0.8,
    )


def honest(studies: int) -> list[Attack]:
    """Attacks on studies that run the claimed protocol."""
    return [
        *(
            _split("split order", runs, runs, studies)
            for runs in ("tnb:1,0.4", "poisson:2", "fixed:3")
        ),
        _split("split order", "grid:4", "fixed:4", studies),
        _split("split order", "grid:4,0.5", "binomial:4,0.5", studies),
        _adaptive("adaptive:0.75,1.33/tnb:1,0.4"),
        _subset("subset:0.5/fixed:3"),
        _subset("subset:0.5,all/fixed:3"),
        _until("until:0.1"),
        _until("stopping:0.2"),
    ]


_ROLES = ((2, 1), (1, 0), (0, 1), (2, 0), (1, 1), (0, 0))
"""The ranking of (candidate, output), best first."""
_WITHOUT, _WITH = (0.5, 0.5), (0.1, 0.9)


def _without_replacement() -> Attack:
    """Draws without replacement from three candidates, although independent draws are claimed."""
    base = DiscreteMechanism(_WITHOUT, _WITH)
    return Attack(
        "draws without replacement",
        "grid:3",
        lambda rng, read: float(rng.random() < (_WITH if read else _WITHOUT)[1]),
        lambda level, number: -float(_ROLES.index((level, int(number)))),
        lambda level, number: number == 0.0,
        claimed="fixed:3",
        base=base,
        delta=0.15,
        levels=3,
    )


def broken(studies: int) -> list[Attack]:
    """Attacks on studies that violate their claim; each must be refuted."""
    return [
        _split("fixed K", "fixed:30", "fixed:30", studies, claimed="tnb:1,0.95"),
        _best_of_thirty(studies),
        _without_replacement(),
    ]


def table(attacks: list[Attack], studies: int) -> list[str]:
    """The lines of a table with one row per attack."""
    rows = [
        "| protocol | claimed | attack | lower bound | certified | result |",
        "|---|---|---|---|---|---|",
    ]
    for one in attacks:
        leaked, cost = max(one.leaked(studies), 0.0), one.cost
        result = "consistent" if leaked <= cost else "refuted"
        claimed = one.claimed or one.protocol
        rows.append(
            f"| `{one.protocol}` | `{claimed}` | {one.name} | {rounded_down(leaked)} | "
            f"{rounded_up(cost)} | {result} |"
        )
    return rows


def main() -> None:
    """Prints a section of docs/attacks.md."""
    parser = argparse.ArgumentParser(
        description="Audits studies with a worst-case base mechanism.", allow_abbrev=False
    )
    parser.add_argument("--studies", type=int, default=5000, help="studies with, and without")
    studies = parser.parse_args().studies
    print("## Complete studies\n")
    print(
        "This section compares the certified cost of complete studies with the lower bounds that\n"
        f"attacks prove. `python -m benchmarks.studies --studies {studies}` prints it. Each row "
        f"uses\n{2 * studies:,} studies of `audit.Study`, half with the record and half without. "
        f"One run\noutputs a number from N({MU:g}, 1) with the record and from N(0, 1) without. "
        f"Epsilons are\nat delta = {DELTA:g}. The lower bounds use only the winners and hold with "
        f"{100 * (1 - ALPHA):g} %\nconfidence.\n"
    )
    print("\n".join(table(honest(studies), studies)))
    fewer = max(studies * 2 // 5, 1)
    print(
        "\nThe next studies violate their claim on purpose, and the attack must refute it.\n"
        f"Each row uses {2 * fewer:,} studies (the last row at delta = 0.15, with a base of two\n"
        "outputs).\n"
    )
    print("\n".join(table(broken(fewer), fewer)))


if __name__ == "__main__":
    main()

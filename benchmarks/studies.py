"""Whole studies against a mechanism that leaks all it may: do winners leak more than is certified?

`python -m benchmarks.studies` plays 10,000 studies of every protocol that runs live, half of them
with the record, through the code of `tuning.Study` itself, and prints docs/studies.md. The base is
the worst that its mu allows: one number, N(mu, 1) with the record and N(0, 1) without, and a score
that is any function of it. What is read off a winner was settled before.

A certificate is refuted where the lower bound lies above it. Clopper-Pearson limits at 99.9 %
together: of a row whose cost is attained one page in a thousand shows a refutation.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit import attacks, protocols, repetitions, upper_bounds
from audit.accounting import DiscreteMechanism, GaussianMechanism, Mechanism
from audit.tuning import Best, Outcome, Trial
from audit.tuning.journal import Memory
from audit.tuning.play import Plan, play
from audit.tuning.space import Space

MU, DELTA, ALPHA = 1.0, 0.01, 0.001

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """A protocol, a base and a score, and what of a winner speaks against the record.

    Attributes:
        name: in tables.
        protocol: what the study plays.
        run: one number, from a source and whether the record is in.
        score: of a candidate and the number.
        speaks_against: whether a released candidate and number say "without the record".
        accept: whether a number is good enough, where the protocol runs until one is.
        claimed: whose cost is claimed; the protocol's own if empty.
        base: of the claim.
        delta: of the claim.
        levels: how many candidates there are.
    """

    name: str
    protocol: str
    run: Callable[[np.random.Generator, bool], float]
    score: Callable[[int, float], float]
    speaks_against: Callable[[int, float], bool]
    accept: Callable[[float], bool] | None = None
    claimed: str = ""
    base: Mechanism = field(default_factory=lambda: GaussianMechanism(MU))
    delta: float = DELTA
    levels: int = 4

    @property
    def cost(self) -> float:
        """What the tuning is said to cost."""
        return float(
            upper_bounds.tuning_cost(self.base, self.claimed or self.protocol, self.delta).epsilon
            or 0.0
        )

    def leaked(self, studies: int) -> float:
        """A lower bound on epsilon from so many studies a side."""
        against = []
        for included in (False, True):
            best = [self._played(2 * key + included, included) for key in range(studies)]
            against.append(
                sum(
                    one.candidate is not None
                    and one.model is not None
                    and self.speaks_against(one.candidate["level"], one.model)
                    for one in best
                )
            )
        low = stats.beta.ppf(ALPHA / 2, against[0], studies - against[0] + 1)
        high = stats.beta.isf(ALPHA / 2, against[1] + 1, studies - against[1])
        return math.log(max(low - self.delta, 1e-9) / high)

    def _played(self, key: int, included: bool) -> Best:
        def train(trial: Trial) -> Outcome:
            # The only record there is; a run that may not read it is a run without it.
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
    """The worst base of that mu."""
    return float(rng.normal(MU * read))


def _split(name: str, protocol: str, law: str, studies: int, **settings: Any) -> Attack:
    """An attack by the split order that shows most of a law of K in so many studies a side."""
    order, threshold = attacks.attack_order(
        MU, repetitions.parse_repetitions(law), DELTA, studies, 1.0 - ALPHA
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
    """Every run is itself the best of thirty."""
    attack = _split("every run the best of thirty", "tnb:1,0.95", "fixed:30", studies)

    def run(rng: np.random.Generator, read: bool) -> float:
        numbers = [gaussian(rng, read) for _ in range(30)]
        return max(numbers, key=lambda number: attack.score(0, number))

    return replace(attack, run=run)


def _until(protocol: str) -> Attack:
    top, bottom = stats.norm.isf(0.05), stats.norm.ppf(0.05)
    return Attack(
        "accepted where it speaks loudest",
        protocol,
        gaussian,
        lambda level, number: number,
        lambda level, number: number < bottom,
        accept=lambda number: number > top or number < bottom,
    )


def _subset(protocol: str) -> Attack:
    """The candidate tells what the tuning saw, the final number what it did not."""
    return Attack(
        "candidate and final run",
        protocol,
        gaussian,
        lambda level, number: number if level >= 2 else -number,
        lambda level, number: number + (level >= 2) * MU < -0.5,
    )


def _adaptive(protocol: str) -> Attack:
    """Half of the candidates are chosen by large numbers, the others by small ones."""
    return Attack(
        "density that learns",
        protocol,
        gaussian,
        lambda level, number: number if level >= 2 else -number,
        lambda level, number: level < 2 and number < -0.8,
    )


def honest(studies: int) -> list[Attack]:
    """Attacks on studies that do what they claim, chosen for so many a side."""
    return [
        *(
            _split("split order", law, law, studies)
            for law in ("tnb:1,0.4", "poisson:2", "fixed:3")
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
"""Of (candidate, output), the most preferred first: a role for each candidate."""
_WITHOUT, _WITH = (0.5, 0.5), (0.1, 0.9)


def _without_replacement() -> Attack:
    """Three candidates, each drawn once, where draws anew are claimed."""
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
    """Attacks on studies that do something else than they claim: each must be refuted."""
    return [
        _split("K fixed", "fixed:30", "fixed:30", studies, claimed="tnb:1,0.95"),
        _best_of_thirty(studies),
        _without_replacement(),
    ]


def table(attacks: list[Attack], studies: int) -> list[str]:
    """Rows of a table, one an attack."""
    rows = [
        "| protocol played | claimed | attack | leaked, at least | certified | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for one in attacks:
        leaked, cost = max(one.leaked(studies), 0.0), one.cost
        verdict = "kept" if leaked <= cost else "refuted"
        claimed = one.claimed or one.protocol
        rows.append(
            f"| `{one.protocol}` | `{claimed}` | {one.name} | {leaked:.3f} | {cost:.3f} | "
            f"{verdict} |"
        )
    return rows


def main() -> None:
    """Prints docs/studies.md."""
    parser = argparse.ArgumentParser(
        description="Plays whole studies against a worst mechanism.", allow_abbrev=False
    )
    parser.add_argument("--studies", type=int, default=5000, help="a side, of every protocol")
    studies = parser.parse_args().studies
    print("# Studies against a mechanism that leaks all it may\n")
    print(
        f"Made by `python -m benchmarks.studies --studies {studies}`: {2 * studies:,} studies a "
        "row, half with\nthe record and half without, played by the code that `tuning.Study` "
        f"runs. One run is a number,\nN({MU:g}, 1) with the record and N(0, 1) without; epsilon at "
        f"delta = {DELTA:g}. `leaked` is what the\nwinners show at "
        f"least, at {100 * (1 - ALPHA):g} % confidence.\n"
    )
    print("\n".join(table(honest(studies), studies)))
    fewer = max(studies * 2 // 5, 1)
    print(
        f"\nPositive controls, {2 * fewer:,} studies a row that do something else than they claim "
        "(the last at\ndelta = 0.15, a base of two outputs). Each must be refuted.\n"
    )
    print("\n".join(table(broken(fewer), fewer)))


if __name__ == "__main__":
    main()

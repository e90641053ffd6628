"""How far the cost of a tuning is from what an attack attains: `python -m studies.gaps`.

Prints a markdown table of twelve tunings on DP-SGD at noise 0.6 to 2 and rates 1e-4 to 0.05. The
attack on a random search and on a grid is the worst order of equally many draws. The attack on the
best m of K runs prefers a front of outputs with large likelihood ratios, then outputs with small
ones, and detects that at least i released outputs are of the second kind. Adaptive search is
attacked as random search, which it may always be, and so its gap is an upper bound.
"""

import argparse
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from audit.accounting import DominatingPair, DpSgd, Mechanism, RandomAllocation
from audit.numerics import FloatArray, format_rounded, safe_log
from audit.protocols import Adaptive, BestRuns, Grid, Protocol, parse_protocol
from audit.repetitions import Repetitions
from audit.upper_bounds import costs_of, find, tuning_cost, worst_order
from audit.upper_bounds.best_runs import log_derivative

DELTA = 1e-5
# Bounds that version 0.2 did not have.
NEW_BOUNDS = ("best-folds", "grid-levels")
# Events at both ends of the likelihood ratio that the attack on the best m runs tries.
_EVENTS = 160

_SAMPLED = DpSgd(1.0, 2000, 0.01)
_RARE = DpSgd(0.8, 1000, 0.001)
_ALLOCATION = RandomAllocation(1.0, 100, 10)
SETTINGS: tuple[tuple[Mechanism, str], ...] = (
    (_SAMPLED, "tnb:1,0.05"),
    (_SAMPLED, "grid:20"),
    (_SAMPLED, "best:3/tnb:1,0.05"),
    (_SAMPLED, "adaptive:0.75,1.33/tnb:1,0.05"),
    (_RARE, "grid:30"),
    (_RARE, "grid:100"),
    (_RARE, "best:3/tnb:0,0.01"),
    (DpSgd(0.6, 3000, 0.0005), "grid:30"),
    (DpSgd(1.0, 10_000, 1e-4), "grid:20"),
    (DpSgd(2.0, 1000, 0.05), "grid:10"),
    (DpSgd(2.0, 1000, 0.05), "best:5/tnb:1,0.05"),
    (_ALLOCATION, "grid:20"),
)
"""Tunings that people run."""


@dataclass(frozen=True)
class Gap:
    """The cost of a tuning, compared with what an attack attains.

    Attributes:
        base: one run.
        protocol: the protocol.
        before: the smallest bound without those that version 0.2 did not have.
        cost: the smallest bound.
        attained: the epsilon that an attack attains.
    """

    base: Mechanism
    protocol: Protocol
    before: float
    cost: float
    attained: float

    @property
    def row(self) -> str:
        """The row of the markdown table."""
        before, cost = (format_rounded(x, up=True, digits=4) for x in (self.before, self.cost))
        attained = format_rounded(self.attained, up=False, digits=4)
        share = 100.0 * (self.cost / self.attained - 1.0)
        base = _described(self.base)
        return f"| {base} | {self.protocol.spec} | {before} | {cost} | {attained} | {share:.0f} % |"


def _described(base: Mechanism) -> str:
    if isinstance(base, DpSgd):
        return f"{base.noise_multiplier:g}, {base.sampling_rate:g}, {base.steps:,}"
    if isinstance(base, RandomAllocation):
        return f"{base.noise_multiplier:g}, 1 of {base.batches}, {base.epochs} epochs"
    return str(base)


def best_runs_attack(base: Mechanism, protocol: BestRuns, delta: float) -> float:
    """The largest epsilon that the attack on the best m of K runs attains.

    Args:
        base: one run.
        protocol: the best m of K.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> best = BestRuns("tnb:0,0.1", released=1)
        >>> round(best_runs_attack(GaussianMechanism(0.24721), best, 1e-5), 2)
        1.17
    """
    return max(
        _attained(pair, protocol.repetitions, protocol.released, detected, delta)
        for pair in base.pairs
        for detected in range(1, protocol.released + 1)
    )


def _attained(
    pair: DominatingPair, repetitions: Repetitions, released: int, detected: int, delta: float
) -> float:
    t = np.linspace(*pair.event_range, 4 * _EVENTS)
    left, left_with = np.exp(pair.events(t))  # of the outputs with the smaller ratios
    # Probabilities of the front and of the detected outputs, without and with the record.
    front = np.stack([1.0 - left, 1.0 - left_with])[:, left > 0.5][:, -_EVENTS * 2 :: 2]
    front = np.concatenate([np.zeros((2, 1)), front], axis=1)
    rare = np.stack([left, left_with])[:, left < 0.5]
    chances = [
        _chance(repetitions, released, detected, f[:, None], a[None, :])
        for f, a in zip(front, rare, strict=True)
    ]
    possible = front[0][:, None] + rare[0][None, :] < 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilon = np.log((chances[0] - delta) / np.maximum(chances[1], 1e-13))
    epsilon = np.where(possible & (chances[0] > delta) & (chances[1] > 1e-11), epsilon, 0.0)
    return float(epsilon.max(initial=0.0))


def _chance(
    repetitions: Repetitions, released: int, detected: int, front: FloatArray, rare: FloatArray
) -> FloatArray:
    """Probability that at least `detected` of the released runs are rare ones.

    That happens if at least `detected` runs are rare and at most `released - detected` are in the
    front, which comes first.
    """

    def derivative(order: int, x: FloatArray) -> FloatArray:
        log_x = safe_log(np.maximum(x, 0.0))
        if order == 0:
            return np.asarray(np.exp(repetitions.log_phi_at(log_x)))
        return np.asarray(np.exp(log_derivative(repetitions, order, log_x)))

    total = np.zeros(np.broadcast_shapes(front.shape, rare.shape))
    for ahead in range(released - detected + 1):
        term = derivative(ahead, 1.0 - front) * np.ones_like(total)
        for rare_runs in range(detected):
            term -= (
                rare**rare_runs
                / math.factorial(rare_runs)
                * derivative(ahead + rare_runs, 1.0 - front - rare)
            )
        total += front**ahead / math.factorial(ahead) * term
    return total


def attained(base: Mechanism, protocol: Protocol, delta: float) -> float:
    """The epsilon that the attack on a protocol attains."""
    if isinstance(protocol, Grid):
        return _worst_order(base, f"fixed:{protocol.candidates}", delta)
    if isinstance(protocol, BestRuns):
        # The best of the released runs is that of a random search.
        best = _worst_order(base, protocol.repetitions.spec, delta)
        return max(best, best_runs_attack(base, protocol, delta))
    if isinstance(protocol, Adaptive):
        return _worst_order(base, protocol.repetitions.spec, delta)
    return _worst_order(base, protocol.spec, delta)


def _worst_order(base: Mechanism, repetitions: str, delta: float) -> float:
    """The epsilon of the worst order of random search, which `tight` equals up to its error."""
    order = worst_order(base, repetitions, delta)
    if order.applies:
        return order.epsilon
    exact = find("tight").function(base, repetitions, delta)
    return exact.epsilon - exact.error


def gaps(
    settings: Iterable[tuple[Mechanism, str]] = SETTINGS, delta: float = DELTA
) -> Iterator[Gap]:
    """The gaps of some tunings.

    Args:
        settings: (base, protocol) of each.
        delta: in (0, 1).
    """
    for base, text in settings:
        protocol = parse_protocol(text)
        cost = tuning_cost(base, protocol, delta).epsilon
        earlier = base
        if isinstance(base, RandomAllocation):  # accounted as full batches
            earlier = DpSgd(base.noise_multiplier, base.epochs)
        before = costs_of(earlier, protocol, delta).smallest_except(NEW_BOUNDS)
        yield Gap(
            base,
            protocol,
            math.inf if before is None else before.epsilon,
            cost,
            attained(base, protocol, delta),
        )


def main() -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| noise, rate, steps | protocol | before | cost | attained | gap |")
    print("|---|---|---|---|---|---|")
    for gap in gaps():
        print(gap.row, flush=True)


if __name__ == "__main__":
    main()

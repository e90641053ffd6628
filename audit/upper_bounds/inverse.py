"""What a budget for the whole tuning affords: how little noise, how many runs, which law of K."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from audit import checks, protocols
from audit import repetitions as laws
from audit.accounting import DpSgd, GaussianMechanism, Mechanism, Unreachable, parse_mechanism
from audit.numerics import TINY, bracket_near, safe_root
from audit.protocols import Adaptive, Protocol, RandomSearch
from audit.repetitions import Poisson, Repetitions, TruncatedNegativeBinomial
from audit.upper_bounds.region import region_curve
from audit.upper_bounds.registry import Bound, Entry, Tuning, find, row, tuning_cost
from audit.upper_bounds.result import UpperBound
from audit.upper_bounds.tight import TightCurve, tight

_SMALLEST_MU, _LARGEST_MU = 1e-4, 100.0
# Of log(mu): a mu too small by that is too small by less than a report shows.
_TOLERANCE = 1e-7
# Of the logarithm of noise or runs where one evaluation composes many steps.
_SAMPLED_TOLERANCE = 1e-6
# The same for the tight bound, whose evaluations take longest.
_TIGHT = 1e-5
# The tight bound affords up to about so much more than the region bound, measured.
_NEAR = 1e-3
MIN_NOISE = 0.06
"""No smaller noise is sought for sampled batches."""
_MAX_RUNS = 1e7
_POINTS = 1 << 14
# What the region bound's own rounding may add to log(delta): ten times `PROFILE_ACCURACY`.
_MARGIN = 1e-8


def excess(
    base: Mechanism, law: Tuning, target: float, delta: float, bound: Bound | None = None
) -> float:
    """By how much a bound misses (target, delta)-DP: at most 0 where the tuning keeps it.

    For random search without a bound this is the region bound's log(delta_A(target) / delta), from
    few points on the curve of events: no less safe, and fast. The same for the tight bound, from
    its own curve. For others, log(epsilon / target); the default of other protocols is the smallest
    bound that they have.

    Raises:
        ValueError: the bound does not apply to this base and protocol.
    """
    protocol = protocols.parse_protocol(law)
    if bound in (None, tight) and isinstance(protocol, RandomSearch):
        search = protocol.repetitions
        curves = (
            region_curve(pair, search, _POINTS)
            if bound is None
            else TightCurve.at(pair, search, delta)
            for pair in base.pairs
        )
        reached = max(curve.delta(target) for curve in curves)
        return math.log(max(reached, TINY)) - math.log(delta) + _MARGIN
    try:
        answer = (bound or tuning_cost)(base, protocol, delta)
    except Unreachable:
        return math.inf
    if answer.epsilon is None:
        raise ValueError(f"bound {answer.name!r} {answer.assumes}, got {protocol.spec}")
    return math.log(max(answer.epsilon, TINY) / target)


def _by_the_smallest(
    solve: Callable[[Bound], float],
    base_at: Callable[[float], Mechanism],
    guess: float,
    law: Tuning,
    delta: float,
) -> float:
    """What the smallest bound of a protocol affords, by following one bound at a time.

    The bound that is smallest near the answer is the one to follow: others that are larger there
    afford less.
    """
    protocol, followed, answer = protocols.parse_protocol(law), set(), guess
    while (name := tuning_cost(base_at(answer), protocol, delta).name) not in followed:
        followed.add(name)
        entry = find(name, type(protocol))

        def bound(base: Mechanism, law: Tuning, delta: float, entry: Entry = entry) -> UpperBound:
            found = row(entry, base, protocol, delta)
            if found.epsilon is None:
                raise Unreachable(found.reason)
            return found

        answer = solve(bound)
    return answer


def _tight_keeps(base: Mechanism, protocol: Protocol, target: float, delta: float) -> bool:
    """Whether the tight bound, as `cost` reports it, keeps the target; not where it fails."""
    found = row(find("tight"), base, protocol, delta)
    return found.epsilon is not None and found.epsilon <= target


def _around(
    missed: Callable[[float], float], guess: float, start: float, end: float
) -> tuple[float, float]:
    """As `around`, with a first step as far as the target is missed at a far guess."""
    far = abs(missed(guess))
    return bracket_near(missed, guess, max(far, _NEAR) if math.isfinite(far) else 1.0, start, end)


def calibrate_mu_for_tuning(
    target: float, law: Tuning, delta: float, bound: Bound | None = None, name: str = ""
) -> float:
    """The largest mu of a Gaussian base at which the whole tuning is (target, delta)-DP.

    Args:
        target: epsilon allowed for the tuning, > 0.
        law: the protocol, or the law of K of a random search.
        delta: in (0, 1).
        bound: the bound that keeps it; by default the one that `cost` reports.
        name: what the bound is called in an error.

    Returns:
        mu, rounded down so that the bound keeps the target.

    Raises:
        ValueError: the bound does not apply to the law, or no mu in (1e-4, 100) meets the target.

    Example:
        >>> round(calibrate_mu_for_tuning(2.0, "tnb:0,0.1", 1e-5), 4)
        0.4035
    """
    target = checks.interval("target-epsilon", target, 0.0, 1e4)
    protocol, guess = protocols.parse_protocol(law), 0.0
    if isinstance(protocol, RandomSearch | Adaptive):
        # What the region bound affords is near what others do, and costs little.
        with contextlib.suppress(ValueError):
            guess = math.log(_mu_by(None, target, protocol.repetitions, delta))
    if bound is not None:
        return _mu_by(bound, target, protocol, delta, guess, name)
    if isinstance(protocol, RandomSearch):
        mu = _mu_by(tight, target, protocol, delta, guess)
        if _tight_keeps(GaussianMechanism(mu), protocol, target, delta):
            return mu
        return _mu_by(None, target, protocol, delta, guess)
    return _by_the_smallest(
        lambda one: _mu_by(one, target, protocol, delta, guess),
        GaussianMechanism,
        math.exp(guess),
        law,
        delta,
    )


def _tolerance(bound: Bound | None, usual: float) -> float:
    return max(usual, _TIGHT) if bound is tight else usual


def _mu_by(
    bound: Bound | None,
    target: float,
    law: Tuning,
    delta: float,
    guess: float | None = None,
    name: str = "",
) -> float:
    """The largest mu that one bound affords, from a guess of its logarithm."""

    @cache
    def missed(log_mu: float) -> float:
        return excess(GaussianMechanism(math.exp(log_mu)), law, target, delta, bound)

    low, high = math.log(_SMALLEST_MU), math.log(_LARGEST_MU)
    if guess is not None:
        low, high = _around(missed, guess, low, high)
    if missed(low) > 0.0 or missed(high) <= 0.0:
        raise ValueError(
            f"target-epsilon must be what some mu in ({_SMALLEST_MU:g}, {_LARGEST_MU:g}) gives "
            f"by {name or 'the bound'} at delta={delta:g} with {protocols.parse_protocol(law)}, "
            f"got {target!r}"
        )
    return math.exp(safe_root(missed, low, high, _tolerance(bound, _TOLERANCE)))


def calibrate_noise(
    target: float,
    law: Tuning,
    delta: float,
    steps: int,
    sampling_rate: float = 1.0,
    neighbours: str = "add-remove",
    bound: Bound | None = None,
    group_size: int = 1,
) -> float:
    """The least noise multiplier at which tuning DP-SGD is (target, delta)-DP.

    Args:
        target: epsilon allowed for the tuning, > 0.
        law: the protocol, or the law of K of a random search.
        delta: in (0, 1).
        steps: of one run.
        sampling_rate: of one step, in (0, 1].
        neighbours: `add-remove`, `zero-out` or `replace-one`.
        bound: the bound that keeps it; by default the one that `tuning_cost` reports.
        group_size: number of records of one person, protected together.

    Returns:
        sigma, rounded up by less than 1e-5 of itself.

    Raises:
        ValueError: the bound does not apply, or the target is out of reach.

    Example:
        >>> round(calibrate_noise(2.0, "tnb:0,0.1", 1e-5, steps=300), 2)
        42.92
    """
    target = checks.interval("target-epsilon", target, 0.0, 1e4)

    # A full batch is a Gaussian base, and bounds the noise that sampled batches ask for.
    distance = DpSgd(1.0, 1, 1.0, neighbours, group_size).distance
    root = distance * math.sqrt(checks.integer("steps", steps, 1))
    if sampling_rate == 1.0:
        return root / calibrate_mu_for_tuning(target, law, delta, bound)

    def base_at(noise: float) -> Mechanism:
        return DpSgd(noise, steps, sampling_rate, neighbours, group_size)

    def misses(bound: Bound | None) -> Callable[[float], float]:
        return cache(lambda x: excess(base_at(math.exp(-x)), law, target, delta, bound))

    protocol = protocols.parse_protocol(law)

    def by_region() -> float:
        # The noise shrinks by the sampling rate at most, but for the loss of one single step.
        full_batch = root / _mu_by(None, target, law, delta)
        low, high = -math.log(full_batch), -math.log(max(full_batch * sampling_rate, MIN_NOISE))
        return math.exp(-safe_root(misses(None), low, max(low, high), _SAMPLED_TOLERANCE))

    if isinstance(protocol, RandomSearch):
        guess = by_region()
    else:
        # Many small steps are like one Gaussian of mu = q sqrt(T (e^(1/sigma^2) - 1)).
        search = protocol.repetitions if isinstance(protocol, Adaptive) else protocol
        ratio = calibrate_mu_for_tuning(target, search, delta) / (sampling_rate * root)
        guess = max(1.0 / math.sqrt(math.log1p(ratio**2)), MIN_NOISE)

    def solve(bound: Bound) -> float:
        missed = misses(bound)
        most, least = -math.log(1e3 * guess), -math.log(min(guess, MIN_NOISE))
        low, high = _around(missed, -math.log(guess), most, least)
        if missed(low) > 0.0:
            raise ValueError(
                f"target-epsilon must be what some noise multiplier gives at delta={delta:g} with "
                f"{law}, got {target!r}"
            )
        return math.exp(-safe_root(missed, low, high, _tolerance(bound, _SAMPLED_TOLERANCE)))

    if bound is not None:
        return solve(bound)
    if isinstance(protocol, RandomSearch):
        noise = solve(tight)
        return noise if _tight_keeps(base_at(noise), protocol, target, delta) else guess
    return _by_the_smallest(solve, base_at, guess, law, delta)


def calibrate_runs(
    target: float, base: Mechanism, law: str | Repetitions, delta: float, bound: Bound | None = None
) -> Repetitions:
    """The law of the same family with the most expected runs for which (target, delta)-DP holds.

    Args:
        target: epsilon allowed for the tuning, > 0.
        base: one run.
        law: names the family, as in `Repetitions.with_mean`.
        delta: in (0, 1).
        bound: the bound that keeps it; by default the one that `cost` reports.

    Raises:
        ValueError: not even one expected run keeps the target.

    Returns:
        The law; where `most_runs` keep the target it has these.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> law = calibrate_runs(2.0, GaussianMechanism(0.25), "tnb:1,0.1", 1e-5)
        >>> round(law.mean)
        154
    """
    base, law = parse_mechanism(base), laws.parse_repetitions(law)
    target = checks.interval("target-epsilon", target, 0.0, 1e4)
    if bound is not None:
        return _runs_by(bound, target, base, law, delta)
    found = _runs_by(tight, target, base, law, delta)
    if _tight_keeps(base, RandomSearch(found), target, delta):
        return found
    return _runs_by(None, target, base, law, delta)


def _runs_by(
    bound: Bound | None, target: float, base: Mechanism, law: Repetitions, delta: float
) -> Repetitions:
    """The law with the most expected runs that one bound affords."""
    least, most = max(law.means[0], 1.0), most_runs(law)

    @cache
    def missed(log_mean: float) -> float:
        return excess(base, law.with_mean(math.exp(log_mean)), target, delta, bound)

    low, high = math.log(least), math.log(most)
    if missed(low) > 0.0:
        raise ValueError(
            f"target-epsilon must be one that {least:g} expected runs keep with {law.spec}, "
            f"got {target!r}"
        )
    if bound is not None:
        try:
            guess = math.log(_runs_by(None, target, base, law, delta).mean)
        except ValueError:
            guess = low
        low, high = bracket_near(missed, min(max(guess, low), high), 0.01, low, high)
    tolerance = _tolerance(bound, _SAMPLED_TOLERANCE)
    return law.with_mean(math.exp(safe_root(missed, low, high, tolerance)))


def most_runs(law: Repetitions) -> float:
    """The most expected runs that `solve_runs` asks about: 10^7, or what the family has."""
    return min(law.means[1], _MAX_RUNS)


def with_mean(law: str | Repetitions, mean: float) -> Repetitions:
    """`law.with_mean(mean)`, under its first name.

    Example:
        >>> round(with_mean("tnb:1,0.5", 20.0).mean, 6)
        20.0
    """
    return laws.parse_repetitions(law).with_mean(mean)


@dataclass(frozen=True)
class AffordableRepetitions:
    """A law of K within the budget.

    Attributes:
        law: the law of K.
        expected_quantile: of the best candidate found, 1 - int phi (Papernot & Steinke, sec. 3.6).

    Example:
        >>> from audit.repetitions import parse_repetitions
        >>> law = parse_repetitions("tnb:0,0.1")
        >>> round(AffordableRepetitions(law, law.expected_quantile()).expected_quantile, 3)
        0.677
    """

    law: Repetitions
    expected_quantile: float


def best_repetitions(
    target: float, base: Mechanism, delta: float, bound: Bound | None = None
) -> list[AffordableRepetitions]:
    """The laws of K within the budget, the one with the highest expected quantile first.

    Truncated negative binomial laws over a range of eta, refined around the best, and Poisson. By
    default they are compared by the region bound, which is fast, and the best one then has as many
    runs as the bound that `cost` reports affords.

    Args:
        target: epsilon allowed for the tuning, > 0.
        base: one run.
        delta: in (0, 1).
        bound: the bound that keeps it; by default the one that `cost` reports.

    Raises:
        ValueError: no law keeps the target.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> found = best_repetitions(2.0, GaussianMechanism(0.25), 1e-5)
        >>> found[0].expected_quantile > found[-1].expected_quantile
        True
    """
    base, target = parse_mechanism(base), checks.interval("target-epsilon", target, 0.0, 1e4)
    found: dict[float, AffordableRepetitions] = {}

    def afford(eta: float) -> float:
        if eta not in found:
            family: Repetitions = Poisson(1.0)
            if math.isfinite(eta):
                family = TruncatedNegativeBinomial(eta, 0.5)
            try:
                law = _runs_by(bound, target, base, family, delta)
                found[eta] = AffordableRepetitions(law, law.expected_quantile())
            except ValueError:
                return -math.inf
        return found[eta].expected_quantile

    etas = [-0.75, -0.5, -0.25, 0.0, 0.5, 1.0, 2.0, 5.0, 20.0]
    best = max(etas, key=afford)
    afford(math.inf)
    place = etas.index(best)
    low, high = etas[max(place - 1, 0)], etas[min(place + 1, len(etas) - 1)]
    for eta in np.linspace(low, high, 7).tolist():
        afford(eta)
    if not found:
        raise ValueError(f"target-epsilon must be one that some law of K keeps, got {target!r}")
    several = sorted(found.values(), key=lambda one: -one.expected_quantile)
    if bound is None:
        law = calibrate_runs(target, base, several[0].law, delta)
        if law.mean > several[0].law.mean:
            several[0] = AffordableRepetitions(law, law.expected_quantile())
    return several

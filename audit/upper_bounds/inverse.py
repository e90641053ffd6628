"""The least noise, the most runs and the best distribution of K within a privacy budget."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from audit import _deprecated, checks
from audit.accounting import DeltaUnreachable, DpSgd, GaussianMechanism, Mechanism, parse_mechanism
from audit.errors import InvalidInput
from audit.numerics import TINY, bracket_near, safe_root
from audit.protocols import Adaptive, Protocol, RandomSearch, parse_protocol
from audit.repetitions import Poisson, Repetitions, TruncatedNegativeBinomial, parse_repetitions
from audit.upper_bounds.region import region_curve
from audit.upper_bounds.registry import Bound, Entry, ProtocolLike, find, row, tuning_cost
from audit.upper_bounds.result import UpperBound
from audit.upper_bounds.tight import TightCurve, tight

MIN_NOISE = 0.06
"""The smallest noise multiplier that the search for sampled batches tries."""

_MIN_MU, _MAX_MU = 1e-4, 100.0
_MAX_RUNS = 1e7
_MAX_TARGET = 1e4
# Points on the curve of events of the region bound.
_POINTS = 1 << 14
# What rounding in the region bound may add to log(delta): ten times `PROFILE_ACCURACY`.
_LOG_DELTA_MARGIN = 1e-8

# Tolerances of the searches, on the logarithm of mu, of the noise or of the mean number of runs.
# Closed forms cost little; reports show fewer digits than this leaves.
_MU_TOLERANCE = 1e-7
# Each evaluation composes many steps.
_SAMPLED_TOLERANCE = 1e-6
# Each evaluation computes the tight bound, the most expensive one.
_TIGHT_TOLERANCE = 1e-5
# First step of a search that starts at the region bound's answer; the tight bound affords about
# this much more, as measured.
_FIRST_STEP = 1e-3
# The same for the number of runs.
_FIRST_STEP_RUNS = 0.01


def excess(
    base: Mechanism, protocol: Protocol, target: float, delta: float, bound: Bound | None = None
) -> float:
    """How far a bound misses (target, delta)-DP: at most 0 where the tuning satisfies it.

    For random search without a bound, this is log(delta_A(target) / delta) by the region bound,
    from few points on its curve of events: as safe as with more, and fast. For the tight bound it
    is the same by its own curve. For other bounds it is log(epsilon / target). For other protocols
    the default is their smallest bound.
    """
    if bound in (None, tight) and isinstance(protocol, RandomSearch):
        repetitions = protocol.repetitions
        curves = (
            region_curve(pair, repetitions, _POINTS)
            if bound is None
            else TightCurve.at(pair, repetitions, delta)
            for pair in base.pairs
        )
        reached = max(curve.delta(target) for curve in curves)
        return math.log(max(reached, TINY)) - math.log(delta) + _LOG_DELTA_MARGIN
    try:
        answer = (bound or tuning_cost)(base, protocol, delta)
    except DeltaUnreachable:
        return math.inf
    if not answer.applies:
        raise InvalidInput(f"bound {answer.name!r} {answer.assumes}, got {protocol.spec}")
    return math.log(max(answer.epsilon, TINY) / target)


T = TypeVar("T", float, Repetitions)


def _solve(
    solve: Callable[[Bound | None], T],
    base_and_protocol: Callable[[T], tuple[Mechanism, Protocol]],
    guess: T,
    target: float,
    delta: float,
) -> T:
    """The answer by the smallest bound, from solutions for one bound at a time; None is `region`.

    For random search `tight` is the smallest bound, unless its numbers fail. For other protocols it
    is enough to solve for the bound that is smallest near the answer: bounds that are larger there
    afford less.
    """
    base, protocol = base_and_protocol(guess)
    if isinstance(protocol, RandomSearch):
        answer = solve(tight)
        reported = row(find("tight"), *base_and_protocol(answer), delta)
        return answer if reported.epsilon <= target else solve(None)
    solved, answer = set(), guess
    while (name := tuning_cost(base, protocol, delta).name) not in solved:
        solved.add(name)
        answer = solve(_only(find(name, type(protocol))))
        base, protocol = base_and_protocol(answer)
    return answer


def _only(entry: Entry) -> Bound:
    """A bound whose reason, where it does not apply, is that it does not reach delta."""

    def bound(base: Mechanism, protocol: ProtocolLike, delta: float) -> UpperBound:
        assert isinstance(protocol, Protocol)
        found = row(entry, base, protocol, delta)
        if not found.applies:
            raise DeltaUnreachable(found.reason)
        return found

    return bound


def _bracket(
    missed: Callable[[float], float], guess: float, start: float, end: float
) -> tuple[float, float]:
    """`bracket_near` with a first step as large as the target is missed at the guess."""
    far = abs(missed(guess))
    return bracket_near(
        missed, guess, max(far, _FIRST_STEP) if math.isfinite(far) else 1.0, start, end
    )


def _tolerance(bound: Bound | None, usual: float) -> float:
    return max(usual, _TIGHT_TOLERANCE) if bound is tight else usual


def _checked_target(target_epsilon: float, target_delta: float) -> tuple[float, float]:
    return (
        checks.interval("target_epsilon", target_epsilon, 0.0, _MAX_TARGET),
        checks.interval("target_delta", target_delta, 0.0, 1.0),
    )


def calibrate_mu_for_tuning(
    protocol: ProtocolLike,
    *,
    target_epsilon: float,
    target_delta: float,
    bound: Bound | None = None,
) -> float:
    """The largest mu of a Gaussian base for which the whole tuning meets the target.

    Args:
        protocol: the protocol, or the distribution of K of a random search; an object or text.
        target_epsilon: epsilon allowed for the tuning, > 0.
        target_delta: delta allowed for the tuning, in (0, 1).
        bound: the bound that must meet the target; by default the one that `tuning_cost` reports.

    Returns:
        mu, rounded down so that the bound meets the target.

    Raises:
        InvalidInput: the bound does not apply, or no mu in (1e-4, 100) meets the target.

    Example:
        >>> mu = calibrate_mu_for_tuning("tnb:0,0.1", target_epsilon=2.0, target_delta=1e-5)
        >>> round(mu, 4)
        0.4035
    """
    target, delta = _checked_target(target_epsilon, target_delta)
    protocol = parse_protocol(protocol)
    return _largest_mu(protocol, target, delta, bound)


def _largest_mu(protocol: Protocol, target: float, delta: float, bound: Bound | None) -> float:
    guess = 0.0
    if isinstance(protocol, RandomSearch | Adaptive):
        # The region bound's answer is near the others and costs little.
        with contextlib.suppress(ValueError):
            guess = math.log(_mu_by(None, target, RandomSearch(protocol.repetitions), delta))
    if bound is not None:
        return _mu_by(bound, target, protocol, delta, guess)
    return _solve(
        lambda one: _mu_by(one, target, protocol, delta, guess),
        lambda mu: (GaussianMechanism(mu), protocol),
        math.exp(guess),
        target,
        delta,
    )


def _mu_by(
    bound: Bound | None,
    target: float,
    protocol: Protocol,
    delta: float,
    guess: float | None = None,
) -> float:
    """The largest mu that one bound affords; `guess` is near its logarithm."""

    @cache
    def missed(log_mu: float) -> float:
        return excess(GaussianMechanism(math.exp(log_mu)), protocol, target, delta, bound)

    low, high = math.log(_MIN_MU), math.log(_MAX_MU)
    if guess is not None:
        low, high = _bracket(missed, guess, low, high)
    if missed(low) > 0.0 or missed(high) <= 0.0:
        raise InvalidInput(
            f"target_epsilon must be what some mu in ({_MIN_MU:g}, {_MAX_MU:g}) gives "
            f"by the bound at delta={delta:g} with {protocol}, got {checks.one_line(target)}"
        )
    return math.exp(safe_root(missed, low, high, _tolerance(bound, _MU_TOLERANCE)))


def calibrate_noise(
    protocol: ProtocolLike,
    *,
    target_epsilon: float,
    target_delta: float,
    steps: int,
    sampling_rate: float = 1.0,
    neighbours: str = "add-remove",
    bound: Bound | None = None,
    group_size: int = 1,
) -> float:
    """The smallest noise multiplier for which tuning DP-SGD meets the target.

    Args:
        protocol: the protocol, or the distribution of K of a random search; an object or text.
        target_epsilon: epsilon allowed for the tuning, > 0.
        target_delta: delta allowed for the tuning, in (0, 1).
        steps: of one run.
        sampling_rate: of one step, in (0, 1].
        neighbours: `add-remove`, `zero-out` or `replace-one`.
        bound: the bound that must meet the target; by default the one that `tuning_cost` reports.
        group_size: number of records of one person, protected together.

    Returns:
        The noise multiplier, rounded up by less than a relative 1e-5.

    Raises:
        InvalidInput: the bound does not apply, or the target is out of reach.

    Example:
        >>> noise = calibrate_noise(
        ...     "tnb:0,0.1", target_epsilon=2.0, target_delta=1e-5, steps=300
        ... )
        >>> round(noise, 2)
        42.92
    """
    target, delta = _checked_target(target_epsilon, target_delta)
    protocol = parse_protocol(protocol)
    rate = checks.interval("sampling_rate", sampling_rate, 0.0, 1.0, closed_high=True)
    # Full batches are a Gaussian base; sampled batches need no more noise.
    distance = DpSgd(1.0, 1, 1.0, neighbours, group_size).distance
    root = distance * math.sqrt(checks.integer("steps", steps, 1))
    if rate == 1.0:
        return root / _largest_mu(protocol, target, delta, bound)

    def base_at(noise: float) -> Mechanism:
        return DpSgd(noise, steps, rate, neighbours, group_size)

    def misses(bound: Bound | None) -> Callable[[float], float]:
        return cache(lambda x: excess(base_at(math.exp(-x)), protocol, target, delta, bound))

    def by_region() -> float:
        # Sampling shrinks the noise by the sampling rate at most, but for the loss of one step.
        full_batch = root / _mu_by(None, target, protocol, delta)
        low, high = -math.log(full_batch), -math.log(max(full_batch * rate, MIN_NOISE))
        return math.exp(-safe_root(misses(None), low, max(low, high), _SAMPLED_TOLERANCE))

    if isinstance(protocol, RandomSearch):
        guess = by_region()
    else:
        # Many small steps are like one Gaussian of mu = q sqrt(T (e^(1/sigma^2) - 1)).
        full_batch: Protocol = protocol
        if isinstance(protocol, Adaptive):
            full_batch = RandomSearch(protocol.repetitions)
        ratio = _largest_mu(full_batch, target, delta, None) / (rate * root)
        guess = max(1.0 / math.sqrt(math.log1p(ratio**2)), MIN_NOISE)

    def solve(bound: Bound | None) -> float:
        if bound is None:
            return guess
        missed = misses(bound)
        most, least = -math.log(1e3 * guess), -math.log(min(guess, MIN_NOISE))
        low, high = _bracket(missed, -math.log(guess), most, least)
        if missed(low) > 0.0:
            raise InvalidInput(
                f"target_epsilon must be what some noise multiplier gives at delta={delta:g} with "
                f"{protocol}, got {checks.one_line(target)}"
            )
        return math.exp(-safe_root(missed, low, high, _tolerance(bound, _SAMPLED_TOLERANCE)))

    if bound is not None:
        return solve(bound)
    return _solve(solve, lambda noise: (base_at(noise), protocol), guess, target, delta)


def calibrate_runs(
    base: Mechanism,
    repetitions: str | Repetitions,
    *,
    target_epsilon: float,
    target_delta: float,
    bound: Bound | None = None,
) -> Repetitions:
    """The distribution of K of a family with the most expected runs that meets the target.

    Args:
        base: one run.
        repetitions: a member of the family, as in `Repetitions.with_mean`.
        target_epsilon: epsilon allowed for the tuning, > 0.
        target_delta: delta allowed for the tuning, in (0, 1).
        bound: the bound that must meet the target; by default the one that `tuning_cost` reports.

    Returns:
        The distribution of K; it has `most_runs` expected runs if these meet the target.

    Raises:
        InvalidInput: not even one expected run meets the target.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> base = GaussianMechanism(0.25)
        >>> found = calibrate_runs(base, "tnb:1,0.1", target_epsilon=2.0, target_delta=1e-5)
        >>> round(found.mean)
        154
    """
    base, repetitions = parse_mechanism(base), parse_repetitions(repetitions)
    return _most_runs(repetitions, base, *_checked_target(target_epsilon, target_delta), bound)


def _most_runs(
    repetitions: Repetitions, base: Mechanism, target: float, delta: float, bound: Bound | None
) -> Repetitions:
    if bound is not None:
        return _runs_by(bound, target, base, repetitions, delta)
    return _solve(
        lambda one: _runs_by(one, target, base, repetitions, delta),
        lambda found: (base, RandomSearch(found)),
        repetitions,
        target,
        delta,
    )


def _runs_by(
    bound: Bound | None, target: float, base: Mechanism, repetitions: Repetitions, delta: float
) -> Repetitions:
    """The distribution with the most expected runs that one bound affords."""
    least, most = max(repetitions.means[0], 1.0), most_runs(repetitions)

    @cache
    def missed(log_mean: float) -> float:
        protocol = RandomSearch(repetitions.with_mean(math.exp(log_mean)))
        return excess(base, protocol, target, delta, bound)

    low, high = math.log(least), math.log(most)
    if missed(low) > 0.0:
        raise InvalidInput(
            f"target_epsilon must allow {least:g} expected runs with {repetitions.spec}, "
            f"got {checks.one_line(target)}"
        )
    if bound is not None:
        try:
            guess = math.log(_runs_by(None, target, base, repetitions, delta).mean)
        except ValueError:
            guess = low
        guess = min(max(guess, low), high)
        low, high = bracket_near(missed, guess, _FIRST_STEP_RUNS, low, high)
    tolerance = _tolerance(bound, _SAMPLED_TOLERANCE)
    return repetitions.with_mean(math.exp(safe_root(missed, low, high, tolerance)))


def most_runs(repetitions: Repetitions) -> float:
    """The largest mean that `calibrate_runs` tries: 10^7, or the largest of the family."""
    return min(repetitions.means[1], _MAX_RUNS)


@dataclass(frozen=True)
class AffordableRepetitions:
    """A distribution of K within the budget.

    Attributes:
        repetitions: the distribution of K.
        expected_quantile: of the best candidate found, 1 - int phi (Papernot & Steinke, sec. 3.6).

    Example:
        >>> from audit.repetitions import parse_repetitions
        >>> repetitions = parse_repetitions("tnb:0,0.1")
        >>> one = AffordableRepetitions(repetitions, repetitions.expected_quantile())
        >>> round(one.expected_quantile, 3)
        0.677
    """

    repetitions: Repetitions
    expected_quantile: float

    @property
    def law(self) -> Repetitions:
        """Deprecated name of `repetitions`."""
        _deprecated.warn("AffordableRepetitions.law", "AffordableRepetitions.repetitions")
        return self.repetitions


def best_repetitions(
    base: Mechanism, *, target_epsilon: float, target_delta: float, bound: Bound | None = None
) -> list[AffordableRepetitions]:
    """Distributions of K within the budget, the highest expected quantile first.

    The search covers truncated negative binomial distributions over a range of eta, refined around
    the best, and Poisson. By default the region bound compares them, which is fast; the best one
    then has as many runs as the bound of `tuning_cost` affords.

    Args:
        base: one run.
        target_epsilon: epsilon allowed for the tuning, > 0.
        target_delta: delta allowed for the tuning, in (0, 1).
        bound: the bound that must meet the target; by default the one that `tuning_cost` reports.

    Raises:
        InvalidInput: no distribution meets the target.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> base = GaussianMechanism(0.25)
        >>> found = best_repetitions(base, target_epsilon=2.0, target_delta=1e-5)
        >>> found[0].expected_quantile > found[-1].expected_quantile
        True
    """
    base, (target, delta) = parse_mechanism(base), _checked_target(target_epsilon, target_delta)
    found: dict[float, AffordableRepetitions] = {}

    def quantile(eta: float) -> float:
        if eta not in found:
            family: Repetitions = Poisson(1.0)
            if math.isfinite(eta):
                family = TruncatedNegativeBinomial(eta, 0.5)
            try:
                affordable = _runs_by(bound, target, base, family, delta)
            except ValueError:
                return -math.inf
            found[eta] = AffordableRepetitions(affordable, affordable.expected_quantile())
        return found[eta].expected_quantile

    etas = [-0.75, -0.5, -0.25, 0.0, 0.5, 1.0, 2.0, 5.0, 20.0]
    best = max(etas, key=quantile)
    quantile(math.inf)
    place = etas.index(best)
    low, high = etas[max(place - 1, 0)], etas[min(place + 1, len(etas) - 1)]
    for eta in np.linspace(low, high, 7).tolist():
        quantile(eta)
    if not found:
        raise InvalidInput(
            "target_epsilon must be one that some distribution of K meets, got "
            f"{checks.one_line(target)}"
        )
    several = sorted(found.values(), key=lambda one: -one.expected_quantile)
    if bound is None:
        more = _most_runs(several[0].repetitions, base, target, delta, None)
        if more.mean > several[0].repetitions.mean:
            several[0] = AffordableRepetitions(more, more.expected_quantile())
    return several

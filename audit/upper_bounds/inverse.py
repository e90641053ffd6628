"""The smallest noise, the most runs and the best distribution of K within a privacy budget."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from audit import checks
from audit.accounting import DeltaUnreachable, DpSgd, GaussianMechanism, Mechanism, parse_mechanism
from audit.errors import InvalidInput
from audit.numerics import TINY, bracket_root, safe_root
from audit.protocols import Protocol, RandomSearch, parse_protocol
from audit.repetitions import Poisson, Repetitions, TruncatedNegativeBinomial, parse_repetitions
from audit.upper_bounds.costs import costs_of, tuning_cost
from audit.upper_bounds.region import region_curve
from audit.upper_bounds.registry import Bound, Entry, ProtocolLike, UpperBound, find, row
from audit.upper_bounds.tight import TightCurve, tight

MIN_NOISE = 0.06
"""The smallest noise multiplier that the search for sampled batches tries."""
DEFAULT_MAX_RUNS = 100.0
"""The largest expected number of runs that `best_repetitions` recommends by default."""

_MIN_MU, _MAX_MU = 1e-4, 100.0
_MAX_NOISE = 1e6  # the largest multiplier at which one run is tried
_MAX_RUNS = 1e7
_MIN_MAX_RUNS = 2.0
_MAX_TARGET = 1e4
# Margin of log(delta) for rounding in the region bound: ten times `PROFILE_ACCURACY`.
_LOG_DELTA_MARGIN = 1e-8

# Tolerances of the searches, on the logarithm of mu, of the noise or of the mean number of runs.
# Closed forms are cheap; reports show fewer digits than this tolerance leaves.
_MU_TOLERANCE = 1e-7
# Each evaluation composes many steps.
_SAMPLED_TOLERANCE = 1e-6
# Each evaluation computes the tight bound, the most expensive one.
_TIGHT_TOLERANCE = 1e-5
# First step of a search that starts at the region bound's answer: the measured distance to the
# answer of the tight bound.
_FIRST_STEP = 1e-3
# The same for the number of runs.
_FIRST_STEP_RUNS = 0.01


def excess(
    base: Mechanism, protocol: Protocol, target: float, delta: float, bound: Bound | None = None
) -> float:
    """Logarithmic distance of a bound from (target, delta)-DP; at most 0 if the tuning meets it.

    For random search it is log(delta_A(target) / delta), by the region bound (the default, which is
    fast) or by the tight bound. For other bounds it is log(epsilon / target). For other protocols
    the default is their smallest bound.
    """
    repetitions = protocol.search_repetitions
    try:
        if bound in (None, tight) and repetitions is not None:
            curves = (
                region_curve(pair, repetitions)
                if bound is None
                else TightCurve.at(pair, repetitions, delta)
                for pair in base.pairs
            )
            reached = max(curve.delta(target) for curve in curves)
            return math.log(max(reached, TINY)) - math.log(delta) + _LOG_DELTA_MARGIN
        answer = (bound or tuning_cost)(base, protocol, delta)
    except DeltaUnreachable:
        return math.inf
    if not isinstance(answer, UpperBound):
        raise InvalidInput(f"bound must return an UpperBound, got {checks.one_line(answer)}")
    if not answer.applies:
        raise InvalidInput(f"bound {answer.name!r} {answer.assumes}, got {protocol.spec}")
    return math.log(max(answer.epsilon, TINY) / target)


@dataclass(frozen=True)
class _Search:
    """A search for the largest x whose tuning meets the target; the cost grows with x."""

    tuning: Callable[[float], tuple[Mechanism, Protocol]]  # the base and the protocol at x
    start: float  # the smallest x
    end: float  # the largest x
    target: float
    delta: float
    tolerance: float  # of x
    refusal: str  # the requirement on the target, for the error if the smallest x misses it
    longest_step: float = 1.0  # the longest first step away from a guess

    def by(self, bound: Bound | None, guess: float | None = None) -> float:
        """The largest x by one bound (see `excess`); `guess` is near it."""

        @cache
        def missed(x: float) -> float:
            return excess(*self.tuning(x), self.target, self.delta, bound)

        start, end = self.start, self.end
        if guess is not None:
            guess = min(max(guess, start), end)
            step = min(max(abs(missed(guess)), _FIRST_STEP), self.longest_step)
            start, end = bracket_root(missed, guess, step, start, end)
        if missed(start) > 0.0:
            raise InvalidInput(
                f"target_epsilon must {self.refusal}, got {checks.one_line(self.target)}"
            )
        tolerance = max(self.tolerance, _TIGHT_TOLERANCE) if bound is tight else self.tolerance
        # The result is on the side of `start`, where the tuning meets the target.
        return safe_root(missed, start, end, tolerance)

    def by_smallest(self, guess: float) -> float:
        """The largest x by the bound that `tuning_cost` reports.

        For random search `tight` is the smallest bound, unless its computation fails. For other
        protocols it is enough to solve for the bound that is smallest near the answer: larger
        bounds give a smaller x.
        """
        base, protocol = self.tuning(guess)
        if protocol.search_repetitions is not None:
            x = self.by(tight, guess)
            reported = row(find("tight"), *self.tuning(x), self.delta)
            return x if reported.epsilon <= self.target else self.by(None, guess)
        solved, x = set(), guess
        while (name := tuning_cost(base, protocol, self.delta).name) not in solved:
            solved.add(name)
            x = self.by(_only(find(name, type(protocol))), guess)
            base, protocol = self.tuning(x)
        return x


def _only(entry: Entry) -> Bound:
    """The function of a bound; where it cannot be computed, that of the smallest other bound."""

    def bound(base: Mechanism, protocol: ProtocolLike, delta: float) -> UpperBound:
        assert isinstance(protocol, Protocol)
        named = row(entry, base, protocol, delta)
        return named if named.applies else tuning_cost(base, protocol, delta)

    return bound


def _checked_target(
    target_epsilon: float, target_delta: float, bound: Bound | None
) -> tuple[float, float]:
    if bound is not None:
        checks.function("bound", bound, "base", "protocol", "delta")
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
        bound: the bound that must meet the target; by default, the bound of `tuning_cost`.

    Returns:
        mu, rounded down so that the bound meets the target.

    Raises:
        InvalidInput: the bound does not apply, or no mu in (1e-4, 100) meets the target.

    Example:
        >>> mu = calibrate_mu_for_tuning("tnb:0,0.1", target_epsilon=2.0, target_delta=1e-5)
        >>> round(mu, 4)
        0.4035
    """
    target, delta = _checked_target(target_epsilon, target_delta, bound)
    return _largest_mu(parse_protocol(protocol), target, delta, bound)


def _largest_mu(
    protocol: Protocol,
    target: float,
    delta: float,
    bound: Bound | None,
    base_of: Callable[[float], Mechanism] = GaussianMechanism,
) -> float:
    search = _search_of_mu(protocol, target, delta, base_of)
    guess = 0.0
    if protocol.similar_search is not None:
        # The region bound's answer is near the others and costs little.
        with contextlib.suppress(ValueError):
            guess = _search_of_mu(RandomSearch(protocol.similar_search), target, delta).by(None)
    log_mu = search.by_smallest(guess) if bound is None else search.by(bound, guess)
    if log_mu == search.end:
        raise InvalidInput(f"target_epsilon must {search.refusal}, got {checks.one_line(target)}")
    return math.exp(log_mu)


def _search_of_mu(
    protocol: Protocol,
    target: float,
    delta: float,
    base_of: Callable[[float], Mechanism] = GaussianMechanism,
) -> _Search:
    """The search for the logarithm of the mu of a Gaussian base; `base_of` maps mu to the base."""
    return _Search(
        lambda x: (base_of(math.exp(x)), protocol),
        start=math.log(_MIN_MU),
        end=math.log(_MAX_MU),
        target=target,
        delta=delta,
        tolerance=_MU_TOLERANCE,
        refusal="be the cost with some noise, between that of full batches with mu "
        f"{_MIN_MU:g} and {_MAX_MU:g}, by the bound, at "
        f"delta={delta:g} with {protocol}",
    )


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
        steps: number of steps of one run.
        sampling_rate: probability that a record is in a batch, in (0, 1].
        neighbours: `add-remove`, `zero-out` or `replace-one`.
        bound: the bound that must meet the target; by default, the bound of `tuning_cost`.
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
    return least_noise(
        lambda noise: DpSgd(noise, steps, sampling_rate, neighbours, group_size),
        protocol,
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        bound=bound,
    )


def least_noise(
    base_of: Callable[[float], Mechanism],
    protocol: ProtocolLike,
    *,
    target_epsilon: float,
    target_delta: float,
    bound: Bound | None = None,
) -> float:
    """The smallest noise multiplier for which tuning any mechanism meets the target.

    Args:
        base_of: one run as a function of its noise multiplier. More noise never costs more. It may
            raise `InvalidInput` if the noise is too small for the accounting.
        protocol: the protocol, or the distribution of K of a random search; an object or text.
        target_epsilon: epsilon allowed for the tuning, > 0.
        target_delta: delta allowed for the tuning, in (0, 1).
        bound: the bound that must meet the target; by default, the bound of `tuning_cost`.

    Returns:
        The noise multiplier, rounded up by less than a relative 1e-5.

    Raises:
        InvalidInput: the bound does not apply, or the target is out of reach.

    Example:
        >>> from audit.accounting import Composition, DpSgd, GaussianMechanism
        >>> private_score = GaussianMechanism(0.1)
        >>> noise = least_noise(
        ...     lambda noise: Composition((DpSgd(noise, 300), private_score)),
        ...     "tnb:0,0.1",
        ...     target_epsilon=2.0,
        ...     target_delta=1e-5,
        ... )
        >>> round(noise, 2)
        44.31
    """
    target, delta = _checked_target(target_epsilon, target_delta, bound)
    protocol = parse_protocol(protocol)
    _, run = next(_runs_by_noise(base_of), (1.0, None))
    if run is None:
        run = base_of(1.0)  # raises the reason
    if isinstance(run, DpSgd) and run.sampling_rate == 1.0:
        # Full batches are a Gaussian base, whose mu is inversely proportional to the noise. The
        # bounds of some protocols depend on the neighbours and the group, not only on mu.
        root = run.distance * math.sqrt(run.steps)
        return root / _largest_mu(protocol, target, delta, bound, lambda mu: base_of(root / mu))
    if isinstance(run, DpSgd):
        noise = _noise_of_similar_gaussian(run, protocol, target, delta)
    else:
        noise = _noise_of_one_run(base_of, protocol, target, delta)
    search = _Search(
        lambda x: (_base_at(base_of, math.exp(-x)), protocol),
        start=-math.log(1e3 * noise),
        end=-math.log(MIN_NOISE),
        target=target,
        delta=delta,
        tolerance=_SAMPLED_TOLERANCE,
        refusal=f"be the cost at some noise multiplier at delta={delta:g} with {protocol}",
    )
    guess = -math.log(noise)
    if protocol.search_repetitions is not None:
        guess = search.by(None, guess)
    return math.exp(-(search.by_smallest(guess) if bound is None else search.by(bound, guess)))


def _runs_by_noise(base_of: Callable[[float], Mechanism]) -> Iterator[tuple[float, Mechanism]]:
    """One run at each tried noise, from 1 on, that is enough for the accounting."""
    noise = 1.0
    while noise < _MAX_NOISE:
        with contextlib.suppress(ValueError):  # more steps need more noise
            run = base_of(noise)
            yield noise, run
        noise *= 8.0


def _base_at(base_of: Callable[[float], Mechanism], noise: float) -> Mechanism:
    """One run with a noise multiplier; `DeltaUnreachable` if the noise is too small for it."""
    try:
        return base_of(noise)
    except ValueError as error:
        raise DeltaUnreachable(str(error)) from error


def _noise_of_similar_gaussian(
    run: DpSgd, protocol: Protocol, target: float, delta: float
) -> float:
    """The noise at which the tuning costs about the target, by a central limit theorem.

    Many small steps resemble one Gaussian mechanism of mu = q sqrt(T (e^(1/sigma^2) - 1)).
    """
    alike = protocol
    if protocol.similar_search is not None:
        alike = RandomSearch(protocol.similar_search)
    mu = math.exp(_search_of_mu(alike, target, delta).by(None, 0.0))
    ratio = mu / (run.sampling_rate * run.distance * math.sqrt(run.steps))
    return max(1.0 / math.sqrt(math.log1p(ratio**2)), MIN_NOISE)


def _noise_of_one_run(
    base_of: Callable[[float], Mechanism], protocol: Protocol, target: float, delta: float
) -> float:
    """A noise at which one run alone, which costs less than the tuning, meets the target.

    It is at most eight times as large as needed for one run.
    """
    for noise, run in _runs_by_noise(base_of):
        with contextlib.suppress(ValueError):  # too little noise for delta
            if run.epsilon(delta) <= target:
                return noise
    costs_of(base_of(noise), protocol, delta).smallest  # noqa: B018  # raises if no bound applies
    raise InvalidInput(
        f"target_epsilon must be reachable with {protocol.spec} at some noise, got "
        f"{checks.one_line(target)}; a private score alone may cost more"
    )


def calibrate_runs(
    base: Mechanism,
    repetitions: str | Repetitions,
    *,
    target_epsilon: float,
    target_delta: float,
    bound: Bound | None = None,
) -> Repetitions:
    """The distribution of K, within a family, with the most expected runs that meets the target.

    Args:
        base: one run.
        repetitions: a member of the family, as in `Repetitions.with_mean`.
        target_epsilon: epsilon allowed for the tuning, > 0.
        target_delta: delta allowed for the tuning, in (0, 1).
        bound: the bound that must meet the target; by default, the bound of `tuning_cost`.

    Returns:
        The distribution of K; it has `most_runs` expected runs if these meet the target.

    Raises:
        InvalidInput: not even one expected run meets the target.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> base = GaussianMechanism(0.25)
        >>> found = calibrate_runs(base, "tnb:1,0.1", target_epsilon=1.5, target_delta=1e-5)
        >>> round(found.mean)
        14
    """
    base, repetitions = parse_mechanism(base), parse_repetitions(repetitions)
    target, delta = _checked_target(target_epsilon, target_delta, bound)
    return _most_runs(repetitions, base, target, delta, bound)


def _most_runs(
    repetitions: Repetitions,
    base: Mechanism,
    target: float,
    delta: float,
    bound: Bound | None,
    max_runs: float = _MAX_RUNS,
) -> Repetitions:
    search = _search_of_runs(repetitions, base, target, delta, max_runs)
    try:
        guess = search.by(None)
    except ValueError:
        guess = search.start
    log_mean = search.by_smallest(guess) if bound is None else search.by(bound, guess)
    return repetitions.with_mean(math.exp(log_mean))


def _search_of_runs(
    repetitions: Repetitions,
    base: Mechanism,
    target: float,
    delta: float,
    max_runs: float = _MAX_RUNS,
) -> _Search:
    """The search for the logarithm of the expected number of runs, up to `max_runs`."""
    smallest_mean = max(repetitions.means[0], 1.0)
    return _Search(
        lambda x: (base, RandomSearch(repetitions.with_mean(math.exp(x)))),
        start=math.log(smallest_mean),
        end=math.log(min(most_runs(repetitions), max_runs)),
        target=target,
        delta=delta,
        tolerance=_SAMPLED_TOLERANCE,
        refusal=f"be at least the cost of {smallest_mean:g} expected runs with {repetitions.spec} "
        "and this noise",
        longest_step=_FIRST_STEP_RUNS,
    )


def most_runs(repetitions: Repetitions) -> float:
    """The largest mean that `calibrate_runs` tries: 10^7, or the largest of the family."""
    return min(repetitions.means[1], _MAX_RUNS)


@dataclass(frozen=True)
class AffordableRepetitions:
    """A distribution of K within the budget.

    Attributes:
        repetitions: the distribution of K.
        expected_quantile: expected quantile of the best of K runs, 1 - int phi (Papernot & Steinke
            2022, section 3.6).

    Example:
        >>> from audit.repetitions import parse_repetitions
        >>> repetitions = parse_repetitions("tnb:0,0.1")
        >>> one = AffordableRepetitions(repetitions, repetitions.expected_quantile())
        >>> round(one.expected_quantile, 3)
        0.677
    """

    repetitions: Repetitions
    expected_quantile: float


def best_repetitions(
    base: Mechanism,
    *,
    target_epsilon: float,
    target_delta: float,
    bound: Bound | None = None,
    max_runs: float = DEFAULT_MAX_RUNS,
) -> list[AffordableRepetitions]:
    """Distributions of K within the budget, the highest expected quantile first.

    The search covers truncated negative binomial distributions over a range of eta, refined around
    the best, and the Poisson distribution. By default the region bound compares them, which is
    fast; the best one then gets as many runs as the bound of `tuning_cost` allows.

    Args:
        base: one run.
        target_epsilon: epsilon allowed for the tuning, > 0.
        target_delta: delta allowed for the tuning, in (0, 1).
        bound: the bound that must meet the target; by default, the bound of `tuning_cost`.
        max_runs: the largest expected number of runs, in [2, 1e7]. Without a limit, a large budget
            leads to distributions whose runs no one can train.

    Raises:
        InvalidInput: no distribution meets the target.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> base = GaussianMechanism(0.25)
        >>> found = best_repetitions(base, target_epsilon=1.5, target_delta=1e-5)
        >>> found[0].expected_quantile > found[-1].expected_quantile
        True
    """
    base = parse_mechanism(base)
    target, delta = _checked_target(target_epsilon, target_delta, bound)
    limit = checks.interval(
        "max_runs", max_runs, _MIN_MAX_RUNS, _MAX_RUNS, closed_low=True, closed_high=True
    )
    by_eta: dict[float, AffordableRepetitions] = {}

    def quantile(eta: float) -> float:
        if eta not in by_eta:
            family: Repetitions = Poisson(1.0)
            if math.isfinite(eta):
                family = TruncatedNegativeBinomial(eta, 0.5)
            try:
                if bound is None:
                    mean = math.exp(_search_of_runs(family, base, target, delta, limit).by(None))
                    affordable = family.with_mean(mean)
                else:
                    affordable = _most_runs(family, base, target, delta, bound, limit)
            except ValueError:
                return -math.inf
            by_eta[eta] = AffordableRepetitions(affordable, affordable.expected_quantile())
        return by_eta[eta].expected_quantile

    etas = [-0.75, -0.5, -0.25, 0.0, 0.5, 1.0, 2.0, 5.0, 20.0]
    best = max(etas, key=quantile)
    quantile(math.inf)
    place = etas.index(best)
    low, high = etas[max(place - 1, 0)], etas[min(place + 1, len(etas) - 1)]
    for eta in np.linspace(low, high, 7).tolist():
        quantile(eta)
    if not by_eta:
        raise InvalidInput(
            "target_epsilon must be one that some distribution of K meets, got "
            f"{checks.one_line(target)}"
        )
    choices = sorted(by_eta.values(), key=lambda choice: -choice.expected_quantile)
    if bound is None:
        more = _most_runs(choices[0].repetitions, base, target, delta, None, limit)
        if more.mean > choices[0].repetitions.mean:
            choices[0] = AffordableRepetitions(more, more.expected_quantile())
    return choices

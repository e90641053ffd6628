"""Koskela, Redberg & Wang 2024: bounds by privacy profile, noisy max and many candidates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from audit import checks
from audit.accounting import (
    Composition,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PrivacyProfile,
    WorstOf,
    renyi_to_epsilon,
    solve_epsilon,
)
from audit.arrays import FloatArray
from audit.claims import Claim, Kind
from audit.errors import NotApplicable
from audit.numerics import PROFILE_ACCURACY, double_until, last_integer, safe_log
from audit.protocols import NoisyMax
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds.published.papernot_steinke import power_law
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.result import UpperBound

_SOURCE = "Koskela, Redberg & Wang 2024"
_NOISES = ("gaussian", "laplace")


@bound(
    "profile",
    60,
    _SOURCE,
    about=("any base",),
    title=r"$\varepsilon_U$ profile (any score)",
)
def profile(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """delta_A(eps) <= E[K] delta(eps - penalty), the penalty minimised over epsilon_1 >= 0.

    Theorem 5.2 for truncated negative binomial K, 5.7 for binomial, corollary 5.8 for Poisson. The
    penalty does not depend on epsilon, so it is minimised once.

    Args:
        base: the base mechanism, through its privacy profile.
        repetitions: the distribution of K.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(profile(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.408
    """
    theorem = repetitions.profile_theorem
    if theorem is None:
        raise NotApplicable(
            "K must be truncated negative binomial, binomial with p < 1, or Poisson"
        )
    penalty = _smallest_penalty(base, theorem.penalty)

    def tuned(epsilon: float) -> float:
        return repetitions.mean * float(base.delta(epsilon - penalty))

    return BoundValue(solve_epsilon(tuned, delta), source=theorem.source)


def _smallest_penalty(
    base: Mechanism, penalty: Callable[[FloatArray, FloatArray], FloatArray]
) -> float:
    """Minimises over epsilon_1 on a grid refined three times; any epsilon_1 is valid."""
    left, right = math.log(1e-12), math.log(700.0)
    values = np.empty(0)
    for _ in range(4):
        grid = np.linspace(left, right, 513)
        epsilon_1 = np.exp(grid)
        values = penalty(epsilon_1, base.delta(epsilon_1) * (1.0 + PROFILE_ACCURACY))
        best = int(np.argmin(values))
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return float(values.min())


def corollary_6_2(
    epsilon_1: float, delta_1: float, epsilon_hat: float, repetitions: str | Repetitions
) -> float:
    """Epsilon of tuning over candidates that all keep two points of a privacy profile.

    If each is (epsilon_1, delta_1)- and (epsilon_hat, d)-DP, tuning is (epsilon, E[K] d)-DP with
    epsilon = epsilon_hat + (eta+1) log(e^epsilon_1 + ((1-gamma)/gamma) delta_1) (Koskela, Redberg
    & Wang 2024, corollary 6.2).

    Example:
        >>> round(corollary_6_2(0.5, 1e-8, 1.0, "tnb:0,0.1"), 9)
        1.500000055
    """
    repetitions = parse_repetitions(repetitions)
    epsilon_1 = checks.interval("epsilon_1", epsilon_1, 0.0, closed_low=True)
    delta_1 = checks.interval("delta_1", delta_1, 0.0, 1.0, closed_low=True, closed_high=True)
    epsilon_hat = checks.interval("epsilon_hat", epsilon_hat, 0.0, closed_low=True)
    law = power_law(repetitions)
    log_odds = math.log1p(-law.gamma) - math.log(law.gamma)
    inside = float(np.logaddexp(epsilon_1, log_odds + safe_log(delta_1)))
    return epsilon_hat + (law.eta + 1.0) * inside


def many_candidates(
    candidates: Sequence[Mechanism], repetitions: str | Repetitions, delta: float
) -> UpperBound:
    """Corollary 6.2 at its best epsilon_1, for runs that each draw one of several candidates.

    Args:
        candidates: the mechanisms that a run may choose from, in any way.
        repetitions: the distribution of K.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> both = [GaussianMechanism(0.2), GaussianMechanism(0.25)]
        >>> round(many_candidates(both, "tnb:0,0.1", 1e-5).epsilon, 3)
        1.408
    """
    found = profile(WorstOf(tuple(candidates)), repetitions, delta)
    claim = replace(found.claim, source="Koskela, Redberg & Wang 2024, corollary 6.2")
    return replace(found, name="many-candidates", claim=claim)


def largest_steps(
    noise_multiplier: float,
    sampling_rate: float,
    thresholds: Sequence[tuple[float, float]],
    most: int = 1 << 20,
) -> int:
    """The largest number of steps for which DP-SGD satisfies every threshold; 0 if none.

    Args:
        noise_multiplier: sigma of the candidate.
        sampling_rate: of its batches.
        thresholds: pairs (epsilon, delta) that all candidates satisfy.
        most: the largest number of steps tried.

    Example:
        >>> largest_steps(50.0, 1.0, [(1.0, 1e-5)])
        179
    """

    def keeps(steps: int) -> bool:
        base = DpSgd(noise_multiplier, steps, sampling_rate)
        return all(float(base.delta(epsilon)) <= delta for epsilon, delta in thresholds)

    if not keeps(1):
        return 0
    low, high = double_until(lambda steps: not keeps(int(steps)), 2.0, most, start=1.0)
    return int(last_integer(lambda steps: keeps(int(steps)), low, min(high, most + 1.0)))


def propose_test_release(
    released: Mechanism, test_epsilon: float, test_delta: float, failure: float
) -> PrivacyProfile:
    """A generalised propose-test-release step, to be tuned like any base.

    (eps + test_epsilon, delta(eps) + test_delta + failure)-DP for every eps (Koskela, Redberg &
    Wang 2024, theorem 6.1, after Redberg et al. 2023).

    Args:
        released: what is released when the test passes, as private as the test promises.
        test_epsilon: epsilon of the test, >= 0.
        test_delta: delta of the test, in [0, 1).
        failure: chance that the test passes wrongly, in [0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> released = propose_test_release(GaussianMechanism(0.25), 1.0, 1e-6, 1e-7)
        >>> round(released.epsilon(1e-4), 3)
        1.774
    """
    test_epsilon = checks.interval("test_epsilon", test_epsilon, 0.0, closed_low=True)
    test_delta = checks.interval("test_delta", test_delta, 0.0, 1.0, closed_low=True)
    failure = checks.interval("failure", failure, 0.0, 1.0, closed_low=True)
    epsilons = released.profile_grid()
    deltas = np.minimum(released.delta(epsilons) + test_delta + failure, 1.0)
    return PrivacyProfile(epsilons + test_epsilon, deltas)


def _one_release(noise: str, scale: float, monotone: bool) -> Mechanism:
    """The additive noise at sensitivity 2, or 1 if all queries move in the same direction."""
    noise = checks.one_of("noise", noise, _NOISES)
    scale = checks.interval("scale", scale, 0.0)
    moved = scale if monotone else scale / 2.0
    return GaussianMechanism(1.0 / moved) if noise == "gaussian" else LaplaceMechanism(moved)


def noisy_max(
    candidates: int,
    scale: float,
    delta: float,
    noise: str = "gaussian",
    monotone: bool = False,
    rounds: int = 1,
) -> UpperBound:
    """delta(eps) <= m^k times the profile of k noisy releases at sensitivity 2.

    Args:
        candidates: m, number of queries, each of sensitivity 1.
        scale: standard deviation (gaussian) or scale (laplace) of the noise.
        delta: in (0, 1).
        noise: `gaussian` or `laplace`.
        monotone: whether all queries move in one direction between neighbours (sensitivity 1).
        rounds: k, how often the mechanism is run, adaptively.

    Example:
        >>> round(noisy_max(10, scale=4.0, delta=1e-6).epsilon, 3)
        2.49
    """
    candidates = checks.integer("candidates", candidates, 1)
    one = _one_release(noise, scale, monotone)
    rounds = checks.integer("rounds", rounds, 1)
    source = f"Koskela, Redberg & Wang 2024, theorem {'3.2' if rounds == 1 else '3.3'}"
    claim = Claim(Kind.BOUND, source, (NoisyMax,), is_upper=True)
    return UpperBound("noisy-max", _many(one, candidates, rounds, delta), claim)


@bound(
    "noisy-max",
    10,
    "Koskela, Redberg & Wang 2024, theorems 3.2 and 3.3",
    about=("Gaussian or Laplace noise",),
    protocol=NoisyMax,
)
def noisy_max_of(base: Mechanism, protocol: NoisyMax, delta: float) -> BoundValue:
    """m^k times the profile of k noisy values at sensitivity 2, or 1 if all move in one direction.

    Args:
        base: one noisy value of sensitivity 1.
        protocol: how many values, how often.
        delta: in (0, 1).
    """
    if protocol.candidates == 1:
        return BoundValue(0.0)  # the index is known
    distance = 1.0 if protocol.monotone else 2.0
    mu = base.gaussian_mu
    if mu is not None:
        one: Mechanism = GaussianMechanism(distance * mu)
    elif isinstance(base, LaplaceMechanism):
        one = LaplaceMechanism(base.scale / distance)
    else:
        raise NotApplicable("the noise must be Gaussian or Laplace")
    return BoundValue(_many(one, protocol.candidates, protocol.rounds, delta))


def _many(one: Mechanism, candidates: int, rounds: int, delta: float) -> float:
    base = Composition((one,) * rounds) if rounds > 1 else one
    log_factor = rounds * math.log(candidates)

    def profile(epsilon: float) -> float:
        # As logarithms: a million candidates, sixty times over, overflow.
        log_delta = float(safe_log(base.delta(epsilon)))
        return math.exp(min(log_delta + log_factor, 1.0))

    return solve_epsilon(profile, delta)


def noisy_max_closed_form(candidates: int, scale: float, delta: float) -> float:
    """Epsilon for Gaussian noise, 2/sigma^2 + (2/sigma) sqrt(2 log(m/delta)) (corollary 3.4).

    Example:
        >>> round(noisy_max_closed_form(10, scale=4.0, delta=1e-6), 2)
        2.96
    """
    candidates = checks.integer("candidates", candidates, 1)
    scale = checks.interval("scale", scale, 0.0)
    delta = checks.interval("delta", delta, 0.0, 1.0)
    return 2.0 / scale**2 + 2.0 / scale * math.sqrt(2.0 * math.log(candidates / delta))


def noisy_max_renyi(
    candidates: int, scale: float, delta: float, noise: str = "gaussian", monotone: bool = False
) -> float:
    """Epsilon by Renyi divergences, D_alpha + log(m)/(alpha-1) (theorem 3.1 there).

    Example:
        >>> round(noisy_max_renyi(10, scale=4.0, delta=1e-6), 2)
        2.65
    """
    candidates = checks.integer("candidates", candidates, 1)
    base = _one_release(noise, scale, monotone)
    return renyi_to_epsilon(
        lambda alpha: base.renyi(alpha) + np.log(candidates) / (alpha - 1.0), delta
    )

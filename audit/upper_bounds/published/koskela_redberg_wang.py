"""Koskela, Redberg & Wang 2024: bounds by privacy profile, noisy max, and tested releases."""

import math
from collections.abc import Callable

import numpy as np

from audit import checks
from audit.accounting import (
    Composition,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PrivacyProfile,
    solve_epsilon,
)
from audit.errors import NotApplicable
from audit.numerics import PROFILE_ACCURACY, FloatArray, safe_log
from audit.protocols import NoisyMax, ProposeTestRelease
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds.published.papernot_steinke import power_law
from audit.upper_bounds.registry import BoundValue, bound, find

_SOURCE = "Koskela, Redberg & Wang 2024"


@bound(
    "profile",
    60,
    _SOURCE,
    about=("any base",),
    title=r"$\varepsilon_U$ profile (any score)",
)
def profile(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    r"""Smallest epsilon that the generic profile bound gives at delta.

    .. math:: \delta_A(\varepsilon) \le \mathbb{E}[K]\, \delta(\varepsilon - \text{penalty}),

    with the penalty minimised over :math:`\varepsilon_1 \ge 0`: theorem 5.2 for truncated negative
    binomial K, 5.7 for binomial, corollary 5.8 for Poisson. The penalty does not depend on epsilon,
    so it is minimised once.

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
    """Epsilon of tuning over candidates that all satisfy two points of a privacy profile.

    If each is (epsilon_1, delta_1)- and (epsilon_hat, d)-DP, tuning is (epsilon, E[K] d)-DP with
    epsilon = epsilon_hat + (eta+1) log(e^epsilon_1 + ((1-gamma)/gamma) delta_1) (Koskela, Redberg
    & Wang 2024, corollary 6.2). `profile` of `WorstOf` optimises over both points.

    Example:
        >>> round(corollary_6_2(0.5, 1e-8, 1.0, "tnb:0,0.1"), 9)
        1.500000055
    """
    epsilon_1 = checks.interval("epsilon_1", epsilon_1, 0.0, closed_low=True)
    delta_1 = checks.interval("delta_1", delta_1, 0.0, 1.0, closed_low=True, closed_high=True)
    epsilon_hat = checks.interval("epsilon_hat", epsilon_hat, 0.0, closed_low=True)
    law = power_law(parse_repetitions(repetitions))
    log_odds = math.log1p(-law.gamma) - math.log(law.gamma)
    return epsilon_hat + (law.eta + 1.0) * float(
        np.logaddexp(epsilon_1, log_odds + safe_log(delta_1))
    )


def propose_test_release(
    released: Mechanism, test_epsilon: float, test_delta: float, failure: float
) -> PrivacyProfile:
    """A generalised propose-test-release step, to be tuned like any base.

    (eps + test_epsilon, delta(eps) + test_delta + failure)-DP for every eps (Koskela, Redberg &
    Wang 2024, theorem 6.1, after Redberg et al. 2023).

    Args:
        released: the mechanism that runs if the test passes.
        test_epsilon: epsilon of the test, >= 0.
        test_delta: delta of the test, in [0, 1).
        failure: probability that the test passes wrongly, in [0, 1).

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


@bound(
    "noisy-max",
    10,
    "Koskela, Redberg & Wang 2024, theorems 3.2 and 3.3",
    about=("Gaussian or Laplace noise",),
    protocol=NoisyMax,
)
def noisy_max(base: Mechanism, protocol: NoisyMax, delta: float) -> BoundValue:
    """m^k times the profile of k noisy values at sensitivity 2, or 1 if they are monotone.

    The base is one noisy value of sensitivity 1.

    Example:
        >>> round(noisy_max(GaussianMechanism(0.25), "noisy-max:10", 1e-6).epsilon, 3)
        2.49
    """
    if protocol.candidates == 1:
        return BoundValue(0.0)  # the index is known
    distance = 1.0 if protocol.monotone else 2.0
    mu = base.gaussian_mu
    if mu is not None:
        round_cost: Mechanism = GaussianMechanism(distance * mu)
    elif isinstance(base, LaplaceMechanism):
        round_cost = LaplaceMechanism(base.scale / distance)
    else:
        raise NotApplicable("the noise must be Gaussian or Laplace")
    together = Composition((round_cost,) * protocol.rounds) if protocol.rounds > 1 else round_cost
    log_factor = protocol.rounds * math.log(protocol.candidates)

    def reached(epsilon: float) -> float:
        # In logarithms, because m^k overflows for large m and k.
        return math.exp(min(float(safe_log(together.delta(epsilon))) + log_factor, 1.0))

    return BoundValue(solve_epsilon(reached, delta))


def _register_tested(name: str, place: float, theorem: str) -> None:
    @bound(
        name,
        place,
        f"Koskela, Redberg & Wang 2024, theorem 6.1 {theorem}",
        about=("any base",),
        protocol=ProposeTestRelease,
    )
    def tested(base: Mechanism, protocol: ProposeTestRelease, delta: float) -> BoundValue:
        test = protocol.test_epsilon, protocol.test_delta, protocol.failure
        run = propose_test_release(base, *test)
        value = find(name).body(run, protocol.repetitions, delta)
        return BoundValue(value.epsilon, value.error)


_register_tested("profile", 60, "with 5.2, 5.7 or 5.8")
_register_tested("region", 100, "and the region bound")
_register_tested("tight", 110, "and the tight bound")

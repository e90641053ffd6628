"""Candidates that differ in what one run costs, and candidates that test before they release."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from audit import checks
from audit import repetitions as laws
from audit.accounting import DpSgd, Mechanism, PrivacyProfile, WorstOf
from audit.numerics import double_until, last_integer, safe_log
from audit.protocols import ProposeTestRelease
from audit.repetitions import Repetitions
from audit.upper_bounds.profile import profile
from audit.upper_bounds.region import region
from audit.upper_bounds.registry import Bound, BoundValue, bound
from audit.upper_bounds.renyi import power_law
from audit.upper_bounds.result import NotApplicable, UpperBound
from audit.upper_bounds.tight import tight

_TESTED = "Koskela, Redberg & Wang 2024, theorem 6.1"


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
    repetitions = laws.parse_repetitions(repetitions)
    checks.interval("epsilon_1", epsilon_1, 0.0, closed_low=True)
    checks.interval("delta_1", delta_1, 0.0, 1.0, closed_low=True, closed_high=True)
    checks.interval("epsilon_hat", epsilon_hat, 0.0, closed_low=True)
    law = power_law(repetitions)
    log_odds = math.log1p(-law.gamma) - math.log(law.gamma)
    inside = float(np.logaddexp(epsilon_1, log_odds + safe_log(delta_1)))
    return epsilon_hat + (law.eta + 1.0) * inside


def many_candidates(
    candidates: Sequence[Mechanism], repetitions: str | Repetitions, delta: float
) -> UpperBound:
    """Corollary 6.2 at its best epsilon_1, for runs that each draw one of several candidates.

    Args:
        candidates: the mechanisms among which a run may choose, in any way.
        repetitions: the law of K.
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
    """The most steps for which DP-SGD stays (epsilon, delta)-DP at every threshold; 0 if none.

    Args:
        noise_multiplier: sigma of the candidate.
        sampling_rate: of its batches.
        thresholds: pairs (epsilon, delta) that all candidates keep.
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
    checks.interval("test_epsilon", test_epsilon, 0.0, closed_low=True)
    checks.interval("test_delta", test_delta, 0.0, 1.0, closed_low=True)
    checks.interval("failure", failure, 0.0, 1.0, closed_low=True)
    epsilons = released.profile_grid()
    deltas = np.minimum(released.delta(epsilons) + test_delta + failure, 1.0)
    return PrivacyProfile(epsilons + test_epsilon, deltas)


@bound(
    "profile",
    60,
    f"{_TESTED} with 5.2, 5.7 or 5.8",
    about=("any base",),
    protocol=ProposeTestRelease,
)
def tested_profile(base: Mechanism, protocol: ProposeTestRelease, delta: float) -> BoundValue:
    """The generic bound by profile, of runs that test before they release.

    Args:
        base: what a run releases when its test passes.
        protocol: the law of K, and the test.
        delta: in (0, 1).
    """
    return _tested(profile, base, protocol, delta)


@bound(
    "region",
    100,
    f"{_TESTED} and the region bound",
    about=("any base",),
    protocol=ProposeTestRelease,
)
def tested_region(base: Mechanism, protocol: ProposeTestRelease, delta: float) -> BoundValue:
    """The region bound, of runs that test before they release.

    Args:
        base: what a run releases when its test passes.
        protocol: the law of K, and the test.
        delta: in (0, 1).
    """
    return _tested(region, base, protocol, delta)


@bound(
    "tight", 110, f"{_TESTED} and the tight bound", about=("any base",), protocol=ProposeTestRelease
)
def tested_tight(base: Mechanism, protocol: ProposeTestRelease, delta: float) -> BoundValue:
    """The tight bound, of runs that test before they release.

    Args:
        base: what a run releases when its test passes.
        protocol: the law of K, and the test.
        delta: in (0, 1).
    """
    return _tested(tight, base, protocol, delta)


def _tested(
    bound_of: Bound, base: Mechanism, protocol: ProposeTestRelease, delta: float
) -> BoundValue:
    test = protocol.test_epsilon, protocol.test_delta, protocol.failure
    found = bound_of(propose_test_release(base, *test), protocol.repetitions, delta)
    if found.epsilon is None:
        raise NotApplicable(found.reason)
    return BoundValue(found.epsilon, found.error)

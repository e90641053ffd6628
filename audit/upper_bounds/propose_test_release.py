"""Bounds for tuning runs that test a condition before they release their output."""

from audit.accounting import Mechanism
from audit.errors import NotApplicable
from audit.protocols import ProposeTestRelease
from audit.upper_bounds.published.koskela_redberg_wang import profile, propose_test_release
from audit.upper_bounds.region import region
from audit.upper_bounds.registry import Bound, BoundValue, bound
from audit.upper_bounds.tight import tight

_TESTED = "Koskela, Redberg & Wang 2024, theorem 6.1"


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
        protocol: the distribution of K, and the test.
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
        protocol: the distribution of K, and the test.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> protocol = "ptr:0.5,1e-7,1e-7/tnb:0,0.1"
        >>> round(tested_region(GaussianMechanism(0.25), protocol, 1e-5).epsilon, 3)
        1.999
    """
    return _tested(region, base, protocol, delta)


@bound(
    "tight", 110, f"{_TESTED} and the tight bound", about=("any base",), protocol=ProposeTestRelease
)
def tested_tight(base: Mechanism, protocol: ProposeTestRelease, delta: float) -> BoundValue:
    """The tight bound, of runs that test before they release.

    Args:
        base: what a run releases when its test passes.
        protocol: the distribution of K, and the test.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> protocol = "ptr:0.5,1e-7,1e-7/tnb:0,0.1"
        >>> round(tested_tight(GaussianMechanism(0.25), protocol, 1e-5).epsilon, 3)
        1.999
    """
    return _tested(tight, base, protocol, delta)


def _tested(
    bound_of: Bound, base: Mechanism, protocol: ProposeTestRelease, delta: float
) -> BoundValue:
    test = protocol.test_epsilon, protocol.test_delta, protocol.failure
    found = bound_of(propose_test_release(base, *test), protocol.repetitions, delta)
    if not found.applies:
        raise NotApplicable(found.reason)
    return BoundValue(found.epsilon, found.error)

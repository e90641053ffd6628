"""Bounds for tuning runs that test a condition before they release their output."""

from audit.accounting import Mechanism
from audit.errors import NotApplicable
from audit.protocols import ProposeTestRelease
from audit.upper_bounds.published.koskela_redberg_wang import profile, propose_test_release
from audit.upper_bounds.region import region
from audit.upper_bounds.registry import Bound, BoundValue, bound
from audit.upper_bounds.tight import tight


def _register(name: str, place: float, theorem: str, of_random_search: Bound) -> None:
    """Registers a bound for random search over runs that test before they release."""

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
        found = of_random_search(run, protocol.repetitions, delta)
        if not found.applies:
            raise NotApplicable(found.reason)
        return BoundValue(found.epsilon, found.error)


_register("profile", 60, "with 5.2, 5.7 or 5.8", profile)
_register("region", 100, "and the region bound", region)
_register("tight", 110, "and the tight bound", tight)

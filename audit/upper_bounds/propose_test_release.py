"""Bounds for tuning runs that test a condition before they release their output."""

from audit.accounting import Mechanism
from audit.protocols import ProposeTestRelease
from audit.upper_bounds.published.koskela_redberg_wang import propose_test_release
from audit.upper_bounds.registry import BoundValue, bound, find


def _register(name: str, place: float, theorem: str) -> None:
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


_register("profile", 60, "with 5.2, 5.7 or 5.8")
_register("region", 100, "and the region bound")
_register("tight", 110, "and the tight bound")

"""One thread per test process, set before torch starts; random examples that stay the same."""

import collections
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from audit import numerics
from audit.certificate import numbers
from audit.lower_bounds import monte_carlo, pooled_scan, rank_sum
from audit.upper_bounds import registry

settings.register_profile("same examples", derandomize=True, deadline=None)
settings.load_profile("same examples")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases = collections.Counter[str]()
    for item in items:
        thin = item.get_closest_marker("thin")
        if thin and not item.get_closest_marker("slow"):
            of = item.nodeid.split("[")[0]
            if cases[of] % thin.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[of] += 1


@pytest.fixture(scope="session", autouse=True)
def bounds_asked_before() -> Iterator[None]:
    """A row of a table that was asked before, of equal arguments, is not computed again."""
    known = numerics.memoize(100_000)(registry.row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "row", known)
        patch.setattr(numbers, "row", known)
        yield


@pytest.fixture(scope="module")
def quick_reports() -> Iterator[None]:
    """For tests of games: pictures are not painted.

    Rank sums are compared with fewer simulated audits, which is as valid.
    """

    def save(figure: object, path: Path, dpi: int = 150) -> None:
        path.write_bytes(b"\x89PNG")

    def forget() -> None:
        for cached in (
            monte_carlo.max_exceedances,
            rank_sum._simulated_audits,
            pooled_scan._simulated_order_statistics,
        ):
            cached.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("audit.report.pictures.save", save)
        patch.setattr(monte_carlo, "SIMULATIONS", 299)
        forget()
        yield
    forget()

"""Fixtures of all tests. One thread per process (set before torch starts), and fixed examples."""

import collections
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from audit import numerics
from audit.certificate import numbers
from audit.lower_bounds import pooled_scan, rank_sum, reference_games
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


_cached_row = numerics.memoize(100_000)(registry.row)


@pytest.fixture(scope="module")
def cached_bounds() -> Iterator[None]:
    """For tests of tables: bounds with equal arguments are computed only once per process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "row", _cached_row)
        patch.setattr(numbers, "row", _cached_row)
        yield


@pytest.fixture(scope="module")
def quick_reports(cached_bounds: None) -> Iterator[None]:
    """For tests of audits: figures are not drawn, and bounds are cached.

    Rank sums are compared with fewer reference games, which is also valid.
    """

    def save(figure: object, path: Path, dpi: int = 150) -> None:
        path.write_bytes(b"\x89PNG")

    def clear_caches() -> None:
        for cached in (reference_games.allowed, rank_sum._reference_games, pooled_scan._games):
            cached.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("audit.report.pictures.save", save)
        patch.setattr(reference_games, "GAMES", 299)
        clear_caches()
        yield
    clear_caches()

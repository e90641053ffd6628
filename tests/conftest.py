"""One thread per test process, set before torch starts; random examples that stay the same."""

import functools
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from audit import upper_bounds

settings.register_profile("same examples", derandomize=True, deadline=None)
settings.load_profile("same examples")

bounds_asked_before = functools.lru_cache(maxsize=64)(upper_bounds.all_bounds)


@pytest.fixture
def quick_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of games: the same bounds are computed once, and pictures are not painted."""

    def save(figure: object, path: Path, dpi: int = 150) -> None:
        path.write_bytes(b"\x89PNG")

    monkeypatch.setattr(upper_bounds, "all_bounds", bounds_asked_before)
    monkeypatch.setattr("audit.report.pictures.save", save)

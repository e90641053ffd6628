"""Fixtures of all tests. One thread per process (set before torch starts), and fixed examples."""

import collections
import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from audit import accounting, console, numerics, tuning
from audit.certificate import Certificate, compute
from audit.lower_bounds import monte_carlo
from audit.upper_bounds import costs, registry, tuning_cost

settings.register_profile("same examples", derandomize=True, deadline=None)
settings.load_profile("same examples")


# Files with tests of several seconds come first, so that no long test starts when all else is done.
_FIRST = (
    "test_differential.py",
    "test_examples.py",
    "test_check.py",
    "test_run_command.py",
    "test_arrays.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in _FIRST)
    cases = collections.Counter[str]()
    for item in items:
        if "studies" in item.path.relative_to(item.config.rootpath).parts[:-1]:
            item.add_marker(pytest.mark.studies)
        thin = item.get_closest_marker("thin")
        if thin and not item.get_closest_marker("slow"):
            of = item.nodeid.split("[")[0]
            if cases[of] % thin.args[0]:
                item.add_marker(thin.kwargs.get("otherwise", "slow"))
            cases[of] += 1


def pytest_collection_finish(session: pytest.Session) -> None:
    # statsmodels collects garbage in every correction for many tests, which took 0.3 s each time
    # among the objects of all modules and tests. They live until the end.
    gc.freeze()


_LITTLE_WORK = 400.0
_region_alone = numerics.memoize(1000)(lambda *given: compute(*given, ["region"]))

_cached_row = numerics.memoize(100_000)(registry.row)


@pytest.fixture(autouse=True)
def unwrapped_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Error messages take one line; `test_widths.py` tests that commands wrap them."""
    monkeypatch.setattr(console, "_columns_of_errors", lambda: 10_000)


@pytest.fixture(scope="module")
def cached_bounds() -> Iterator[None]:
    """For tests of tables: bounds with equal arguments are computed only once per process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "row", _cached_row)
        yield


@pytest.fixture(scope="module")
def quick_reports(cached_bounds: None) -> Iterator[None]:
    """For tests of audits: figures are not drawn, and bounds are cached.

    Rank sums are compared with fewer reference games, which is also valid.
    """

    def save(figure: object, path: Path, dpi: int = 150) -> None:
        path.write_bytes(b"\x89PNG")

    def clear_caches() -> None:
        for cached in (
            monte_carlo.max_exceedances,
            monte_carlo._simulated_audits,
            monte_carlo._simulated_order_statistics,
        ):
            cached.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("audit.report.pictures.save", save)
        patch.setattr(monte_carlo, "SIMULATIONS", 299)
        clear_caches()
        yield
    clear_caches()


@pytest.fixture
def little_work(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick tests of training loops do less work than users, with a third of the runs.

    Slow tests, and those with the marker `full_work`, do all of it.
    """
    if request.node.get_closest_marker("slow") or request.node.get_closest_marker("full_work"):
        return
    from audit.loop.premises import check_premises, experiment  # not in the plain installation

    def check_of(*arguments: Any) -> Any:
        *others, max_work = arguments
        return experiment.check_of(*others, min(max_work, _LITTLE_WORK))

    monkeypatch.setattr(check_premises, "check_of", check_of)


@pytest.fixture
def region_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are issued with one bound, which is fast, and computed once for equal inputs."""
    monkeypatch.setattr("audit.certificate.certificate.compute", _region_alone)


@pytest.fixture(scope="session")
def certificate() -> Certificate:
    """A certificate with one bound, which is fast to recompute."""
    study = tuning.Study(
        {"lr": tuning.LogUniform(0.01, 1.0), "hidden": [16, "<b>"]},
        "tnb:1,0.5",
        base=accounting.DpSgd(20.0, 100),
        folder=None,
    )
    study.run(lambda trial: tuning.Outcome(trial.candidate["lr"], "model"))
    found = study.certificate
    numbers = compute(found.base, found.protocol, found.delta, ["region"])
    assert numbers.epsilon <= 1.01 * found.numbers.epsilon
    return replace(found, numbers=numbers)


@pytest.fixture(scope="session")
def epsilon_of_ten_runs() -> float:
    """The cost of a list of ten runs of noise 1.1, batches of 100 of 10,000 records, 5 epochs."""
    base = accounting.DpSgd(1.1, 500, 0.01, neighbours="zero-out")
    return tuning_cost(base, "grid:10", delta=1e-5).epsilon


@pytest.fixture(scope="module")
def plain(certificate: Certificate) -> dict[str, Any]:
    """The certificate as plain values."""
    return certificate.with_evidence(0.1, 0.95, 100, 200).as_dict()


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ssh key."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    path = tmp_path_factory.mktemp("keys") / "key"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True)
    return path

"""What follows a release: numbers that depend on a record for some released values alone.

Laplace noise never reaches the private range of the records here in 4,000 runs, so that no run at
the usual values shows a clamp to it.
"""

from typing import Any

import numpy as np
import pytest

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises

RECORDS = np.random.default_rng(3).normal(size=(60, 3)).clip(-2, 2)


def noisy_mean(records: Any, seed: int, watch: Any) -> Any:
    noise = 6.0 * np.random.default_rng(seed).laplace(size=3)
    watch.claim(1.0)
    total = np.asarray(records.features).clip(-2, 2).sum(axis=0)
    return watch.release(total + noise, epsilon=1.0) / 60


def report_of(train: Any, features: Any = RECORDS) -> Any:
    records = TrainingSet.of((np.asarray(features), np.zeros(len(features), np.int64)))
    return check_premises(train, records, relation="zero-out").report


@pytest.mark.parametrize("bound", ["min", "max"])
def test_a_clamp_to_the_private_range_is_found(bound: str) -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        mean = noisy_mean(records, seed, watch)
        end = getattr(records.features, bound)(axis=0)
        return np.maximum(mean, end) if bound == "min" else np.minimum(mean, end)

    report = report_of(train)
    assert [finding.premise for finding in report.findings] == ["released numbers"], str(report)


def test_a_clamp_to_a_public_range_is_not_accused() -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        return noisy_mean(records, seed, watch).clip(-2, 2)

    report = report_of(train)
    assert not report.broken, str(report)
    assert "released numbers" in report.tested


def test_a_clamp_among_equal_records_is_a_finding_and_not_an_unused_release() -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        mean = noisy_mean(records, seed, watch)
        return mean.clip(records.features.min(axis=0), records.features.max(axis=0))

    report = report_of(train, np.ones((60, 3)))
    assert [finding.premise for finding in report.findings] == ["released numbers"], str(report)


def test_a_release_that_nothing_uses_is_refused() -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        noisy_mean(records, seed, watch)
        return np.zeros(3)

    with pytest.raises(ValueError, match=r"must use the value that watch\.release returns"):
        report_of(train)

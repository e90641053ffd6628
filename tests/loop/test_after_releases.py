"""What follows a release: numbers that depend on a record for some released values alone.

Laplace noise never reaches the private range of the records here in 4,000 runs, so that no run at
the usual values shows a clamp to it.
"""

from typing import Any

import numpy as np
import pytest
import torch

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.loop.premises.mechanisms import _shift

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


def noisy_sum(records: Any, generator: Any, watch: Any) -> Any:
    total = np.asarray(records.features)[:, 0].clip(-1, 1).sum()
    return watch.release(total + generator.laplace(), epsilon=1.0)


def repeat_until_small(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    generator = np.random.default_rng(seed)
    watch.claim(5.0)
    mean = 0.0
    for _ in range(5):
        change = noisy_sum(records, generator, watch)
        mean += change / 60
        if abs(change) < 200:
            break
    return mean


def more_releases_for_small_values(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    generator = np.random.default_rng(seed)
    watch.claim(2.0)
    total = noisy_sum(records, generator, watch)
    return noisy_sum(records, generator, watch) if total < -500 else total


@pytest.mark.parametrize("train", [repeat_until_small, more_releases_for_small_values])
def test_releases_that_only_far_values_cause_are_not_accused(train: Any) -> None:
    report = report_of(train)
    assert not report.broken, str(report)
    assert "released numbers" in report.tested


def test_what_follows_releases_that_only_far_values_cause_is_compared() -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        total = more_releases_for_small_values(records, candidate, seed, watch)
        further = len(watch.recorded.further) > 1
        return total + np.asarray(records.features)[:, 1].sum() if further else total

    report = report_of(train)
    assert [finding.premise for finding in report.findings] == ["released numbers"], str(report)


def test_a_clamp_of_large_numbers_is_found() -> None:
    """The released sum is 60 million below the clamp, so that a shift by 1,000 shows nothing."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        total = 1e6 * (80 + np.asarray(records.features)[:, 0].clip(-1, 1).sum())
        noise = 1e6 * np.random.default_rng(seed).laplace()
        return min(watch.release(total + noise, epsilon=1.0), 1e6 * np.abs(records.features).sum())

    assert np.abs(RECORDS).sum() > 140
    report = report_of(train)
    assert [finding.premise for finding in report.findings] == ["released numbers"], str(report)


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.int64])
def test_counts_of_any_type_are_not_accused(kind: Any) -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        generator = np.random.default_rng(seed)
        counts = np.histogram(np.asarray(records.features)[:, 0], bins=[-3, -0.1, 0.1, 3])[0]
        share = 1 - np.exp(-0.5)
        noise = generator.geometric(share, 3) - generator.geometric(share, 3)
        return watch.release(np.clip(counts + 20 + noise, 0, 255).astype(kind), epsilon=0.5)

    assert not report_of(train).broken


def test_a_threshold_with_one_outcome_far_above_is_used() -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        return noisy_sum(records, np.random.default_rng(seed), watch) > -500

    assert not report_of(train).broken


@pytest.mark.parametrize(
    ("value", "above", "below"),
    [
        (5, 1005, -995),
        (np.uint8(5), 255, 0),
        (np.uint64(2**64 - 1), 2**64 - 1, 2**64 - 1001),
        (np.int64(-(2**63)), -(2**63) + 1000, -(2**63)),
        (True, True, False),
        (np.array([True, False]), np.array([True, True]), np.array([False, False])),
        ("text", "text", "text"),
        (torch.tensor([5.0]), torch.tensor([1005.0]), torch.tensor([-995.0])),
        (torch.tensor([5, 6]), torch.tensor([1005, 1131]), torch.tensor([-995, -1119])),
        (np.float32(5), np.float32(1005), np.float32(-995)),
        (np.float32([5, 6]), np.float32([1005, 1131]), np.float32([-995, -1119])),
        (np.array([np.inf, 6]), np.array([np.inf, 1131]), np.array([np.inf, -1119])),
    ],
)
def test_forced_values_stay_within_their_type(value: Any, above: Any, below: Any) -> None:
    for by, expected in ((1000, above), (-1000, below)):
        shifted = _shift(value, by)
        assert np.array_equal(shifted, expected)
        assert type(shifted) is type(value)
        assert getattr(shifted, "dtype", None) == getattr(value, "dtype", None)


@pytest.mark.parametrize("leaks", [False, True])
def test_a_function_that_needs_the_order_of_its_edges_is_compared_far_below(leaks: bool) -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        column = np.asarray(records.features)[:, 0].clip(-1, 1)
        noise = np.random.default_rng(seed).laplace(size=3)
        public = np.array([-200.0, 0.0, 200.0])
        edges = watch.release(public + column.sum() / 3 + noise, epsilon=1.0)
        if not np.array_equal(edges, np.sort(edges)):
            raise ValueError("the edges of bins must increase")
        return edges + column.sum() if leaks and edges[0] < -500 else edges

    report = report_of(train)
    assert [finding.premise for finding in report.findings] == ["released numbers"] * leaks


def test_a_function_that_fails_on_other_records_after_its_steps_is_not_testable() -> None:
    generator = np.random.default_rng(5)
    data = TrainingSet(generator.normal(size=(30, 3)), np.arange(30) % 2)

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        noise, weights = np.random.default_rng(seed), np.zeros(3)
        watch.account(noise_multiplier=2.0, sampling_rate=1.0, steps=2)
        lengths = np.linalg.norm(records.features, axis=1, keepdims=True)
        total = (records.features / np.maximum(lengths, 1.0)).sum(axis=0)
        for _ in range(2):
            weights = weights - watch.step(total + 2.0 * noise.normal(size=3), weights)
        if not np.array_equal(records.features, data.features):
            raise ValueError("a report on these records is not possible")
        return weights

    report = check_premises(train, data).report
    assert not report.findings, report.findings
    assert report.inconclusive
    assert "a report on these records" in report.untested["released numbers"]

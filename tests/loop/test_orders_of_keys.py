"""The order of the keys of dictionaries, which a function declares or returns."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.loop.runs.released_numbers import differences, numbers_of

CLASSES = 3
DATA = TrainingSet(
    np.random.default_rng(0).normal(size=(40, 4)), np.array([0] * 21 + [1] * 13 + [2] * 6)
)
Train = Callable[..., Any]


def counts_of(records: Any) -> dict[str, int]:
    return {f"class {k}": int((records.labels == k).sum()) for k in range(CLASSES)}


def by_exact_count(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noise is drawn in a public order, and the keys are in that of the exact counts."""
    generator = np.random.default_rng(seed)
    watch.claim(1.0)
    counts = counts_of(records)
    noisy = {k: count + generator.laplace() for k, count in counts.items()}
    return watch.release({k: noisy[k] for k in sorted(counts, key=counts.__getitem__)}, epsilon=1.0)


def two_by_exact_count(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Two keys are always sorted one way or the other, and here not the same way for all seeds."""
    generator = np.random.default_rng(seed)
    watch.claim(1.0)
    counts = {"first": int((records.labels == 0).sum()), "others": int((records.labels > 0).sum())}
    noisy = {k: count + generator.laplace() for k, count in counts.items()}
    return watch.release({k: noisy[k] for k in sorted(counts, key=counts.__getitem__)}, epsilon=1.0)


def two_by_noisy_count(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: two keys in the order of the noisy counts."""
    generator = np.random.default_rng(seed)
    watch.claim(1.0)
    counts = {"first": int((records.labels == 0).sum()), "others": int((records.labels > 0).sum())}
    noisy = {k: count + generator.laplace() for k, count in counts.items()}
    return watch.release({k: noisy[k] for k in sorted(noisy, key=noisy.__getitem__)}, epsilon=1.0)


def by_noisy_count(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the keys are in the order of the noisy counts."""
    generator = np.random.default_rng(seed)
    watch.claim(1.0)
    noisy = {k: count + generator.laplace() for k, count in counts_of(records).items()}
    return watch.release(dict(sorted(noisy.items(), key=lambda item: -item[1])), epsilon=1.0)


def by_noisy_distance(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the keys are in the order of the distances of noisy counts from a public number."""
    generator = np.random.default_rng(seed)
    watch.claim(1.0)
    noisy = {k: count + generator.laplace() for k, count in counts_of(records).items()}
    near = sorted(noisy, key=lambda k: abs(noisy[k] - 10.3))
    return watch.release({k: noisy[k] for k in near}, epsilon=1.0)


def returned_by_exact_count(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The declared values are in a public order, and the returned ones are not."""
    generator = np.random.default_rng(seed)
    watch.claim(1.0)
    counts = counts_of(records)
    noisy = {k: count + generator.laplace() for k, count in counts.items()}
    noisy = watch.release(noisy, epsilon=1.0)
    return {k: noisy[k] for k in sorted(counts, key=counts.__getitem__)}


def returned_by_noisy_count(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the returned values are in the order of the released ones."""
    generator = np.random.default_rng(seed)
    watch.claim(1.0)
    noisy = {k: count + generator.laplace() for k, count in counts_of(records).items()}
    noisy = watch.release(noisy, epsilon=1.0)
    return dict(sorted(noisy.items(), key=lambda item: item[1]))


def black_box_by_exact_count(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    generator = np.random.default_rng(seed)
    counts = counts_of(records)
    noisy = {k: count + generator.laplace() for k, count in counts.items()}
    return {k: noisy[k] for k in sorted(counts, key=counts.__getitem__)}


def in_loop(is_public: bool) -> Train:
    """A loop that declares noisy counts in the order of exact ones, or in a public order."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        generator = np.random.default_rng(seed)
        counts = counts_of(records)
        noisy = {k: count + 4.0 * generator.normal() for k, count in counts.items()}
        order = counts if is_public else sorted(counts, key=counts.__getitem__)
        watch.release({k: noisy[k] for k in order}, noise_multiplier=4.0)
        watch.account(noise_multiplier=1.0, sampling_rate=1.0, steps=3)
        weights = np.zeros(records.features.shape[1])
        for _ in range(3):
            rows = np.asarray(records.features, dtype=float)
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
            noisy_sum = rows.sum(axis=0) + generator.normal(size=len(weights))
            weights = weights - 0.1 * watch.step(noisy_sum, weights)
        return weights

    return train


@pytest.mark.parametrize(
    ("train", "is_broken"),
    [
        (by_exact_count, True),
        (two_by_exact_count, True),
        (two_by_noisy_count, False),
        (by_noisy_count, False),
        (by_noisy_distance, False),
        (returned_by_exact_count, True),
        (returned_by_noisy_count, False),
        (in_loop(is_public=False), True),
        (in_loop(is_public=True), False),
    ],
)
def test_orders_of_keys(train: Train, is_broken: bool) -> None:
    report = check_premises(train, DATA).report
    found = [f.message for f in report.findings if f.premise == "released numbers"]
    assert bool(found) == is_broken, report.findings
    assert not is_broken or "order" in found[0]


def test_a_black_box_releases_the_order_of_its_keys() -> None:
    data = TrainingSet(DATA.features[:40], np.arange(40) % 2)
    report = check_premises(black_box_by_exact_count, data, claim=1.0).report
    assert any("order of keys" in finding.message for finding in report.findings)


def test_only_orders_of_equal_keys_differ() -> None:
    first = numbers_of({"a": 1.0, "b": {"c": 2.0, "d": 3.0}})
    assert not differences(first, numbers_of({"a": 1.0, "b": {"c": 2.0, "d": 3.0}}))
    reordered = numbers_of({"a": 1.0, "b": {"d": 3.0, "c": 2.0}})
    assert list(differences(first, reordered)) == ["b.order of keys"]
    assert list(differences(first, numbers_of({"a": 1.0, "b": {"c": 2.0}}))) == ["b.d"]


def test_gaussian_values_sorted_by_themselves_are_not_accused() -> None:
    def by_noisy_count(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        generator = np.random.default_rng(seed)
        watch.claim(3.0)
        counts = np.array([(records.labels == 0).sum(), (records.labels > 0).sum()])
        noisy = counts + 4.0 * generator.normal(size=2)
        values = {str(place): float(noisy[place]) for place in np.argsort(-noisy)}
        return watch.release(values, noise_multiplier=4.0)

    report = check_premises(by_noisy_count, DATA).report
    assert not report.findings, report.findings


def test_the_noise_of_values_after_the_last_step_is_said_to_be_untested() -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        generator, weights = np.random.default_rng(seed), np.zeros(4)
        watch.account(noise_multiplier=2.0, sampling_rate=1.0, steps=3)
        norms = np.linalg.norm(records.features, axis=1, keepdims=True)
        total = (records.features / np.maximum(norms, 1.0)).sum(axis=0)
        for _ in range(3):
            weights = weights - watch.step(total + 2.0 * generator.normal(size=4), weights)
        count = float((records.labels > 0).sum() + 5.0 * generator.normal())
        return weights, watch.release(count, noise_multiplier=5.0)

    report = check_premises(train, DATA).report
    assert not report.findings, report.findings
    assert any("not tested: the noise of declared values 1" in note for note in report.notes)

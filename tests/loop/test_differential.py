"""The differential test: what it measures, what it finds, and whom it does not accuse.

Its statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

import contextlib
import gc
import itertools
import json
import logging
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from opacus.schedulers import ExponentialGradClip
from scipy import stats
from torch import nn

import audit
from audit import lower_bounds
from audit.loop import PrivacyLeak, TrainingSet
from audit.loop.attack.white_box import cross_entropy
from audit.loop.premises import check_premises as check_premises_module
from audit.loop.premises import experiment, noise, number_of_records
from audit.loop.premises.batches import (
    _chance_of_pure,
    batches_of,
    dependence_on_size,
    even_inclusions,
    inclusions_by_lag,
    poisson_tests,
)
from audit.loop.premises.canary_pool import PoolRecord, canary_pool, gradient_of, opposite_pair
from audit.loop.premises.canary_runs import OthersChange
from audit.loop.premises.check_premises import FAMILY_ERROR, check_premises
from audit.loop.premises.contributions import contributions
from audit.loop.premises.equal_records import _quiet_record
from audit.loop.premises.experiment import replace_one
from audit.loop.premises.noise import (
    batches_in_noise,
    estimate_noise,
    flat_noise,
    independence,
    length_of_noise,
    noise_again,
    noise_along,
    one_more_record,
    rank_of_noise,
    scale_by_batch,
    scale_p_value,
    shape_of_noise,
)
from audit.loop.premises.size_of_noise import groups_of_steps, noise_of_all_steps
from audit.loop.premises.verdicts import SHORTFALL, Verdicts, detectable_scale, significant
from audit.loop.runs.coupled_runs import CoupledRuns
from audit.loop.runs.optimizer_hooks import hooks_of_steps
from audit.loop.runs.released_numbers import differences, numbers_of
from audit.loop.runs.work import CpuLimit
from benchmarks.training_loops import broken, loops
from benchmarks.training_loops.__main__ import completed
from benchmarks.training_loops.broken import BROKEN
from benchmarks.training_loops.correct import CORRECT
from benchmarks.training_loops.further import FURTHER
from benchmarks.training_loops.loops import Loop
from benchmarks.training_loops.opacus_loops import OpacusLoop
from benchmarks.training_loops.second_tester import SECOND_TESTER

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("little_work")
DATA = TrainingSet.of(loops.dense())


def report(train: Any, data: Any = DATA, **options: Any) -> Any:
    return check_premises(train, data, **options).report


def test_an_interrupted_benchmark_continues_with_the_missing_rows(tmp_path: Path) -> None:
    out, made = tmp_path / "rows.jsonl", []

    def run(name: Any) -> Any:
        made.append(name)
        return {"found": name == "b"}

    names = [{"name": name} for name in "abc"]
    assert len(list(completed(names[:2], run, out))) == 2
    with out.open("a") as file:
        file.write('{"name": "c", "fo')  # killed while it wrote
    rows = list(completed(names, run, out))
    assert made == ["a", "b", "c"]
    assert [row["found"] for row in rows] == [False, True, False]
    assert len(out.read_text().splitlines()) == 3


# --- what is measured ---


def test_coupled_runs_differ_by_the_clipped_gradients_alone() -> None:
    # By hand: (clip(g(z)) - clip(g(z'))) / 10, whatever the noise; and nothing at the end.
    runs = CoupledRuns(Loop(steps=3, noise_multiplier=50.0), None)
    base = runs.run(DATA, 7)
    features, labels = DATA.features.copy(), DATA.labels.copy()
    features[-1] *= -3
    other = runs.run(TrainingSet(features, labels), 7, like=base)
    model = loops.mlp()
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(base.initial[f"optimizer {i}"])
    state = loops.State(model=model, clip=0.5)
    sums = [
        torch.cat([g.flatten() for g in loops.clipped_sum(state, each)])
        for each in (
            loops.each_gradient(state, torch.from_numpy(x[-1:]), torch.from_numpy(DATA.labels[-1:]))
            for x in (DATA.features, features)
        )
    ]
    expected = ((sums[1] - sums[0]) / 10).numpy()
    found = other.gradients[0] - base.gradients[0]
    # Float32 sums with noise of standard deviation 2.5 round to about 2e-7.
    np.testing.assert_allclose(found, expected, atol=3e-6)
    assert np.linalg.norm(expected) > 0.01
    assert not differences(base.released, other.released)


@pytest.mark.parametrize("name", loops.MODELS)
def test_gradients_of_records_by_layers_are_those_of_vmap(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, data = loops.MODELS[name]
    torch.manual_seed(5)
    state = loops.State(model=build())
    with torch.no_grad():  # some weights start at 0
        for p in state.model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    x, y = (torch.from_numpy(each[:5]) for each in data())
    found = loops.each_gradient(state, x, y)
    monkeypatch.setattr(loops, "_LINEAR", set())
    for ours, expected in zip(found, loops.each_gradient(state, x, y), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_contributions_are_the_largest_half_distances_and_full_distances_from_absence() -> None:
    pool = [np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]), np.array([[1.0, 0.0]])]
    found = contributions(pool, [slice(0, 1), slice(1, 2)], 0.0)
    assert found.largest[0] == pytest.approx(2.5)
    np.testing.assert_allclose(found.by_tensor[0], [1.5, 2.0])
    with_absent = contributions(pool, [slice(0, 2)], 0.0, np.array([[0.0, 0.0]]))
    assert with_absent.largest[0] == pytest.approx(5.0)


def test_batch_sizes_are_exact_whatever_the_divisor() -> None:
    rng = np.random.default_rng(0)
    runs, steps, n, rate = 12, 5, 30, 0.3
    inside = rng.random((runs, steps, n)) < rate
    a, b = rng.normal(size=(2, steps, 9)) / 7
    noise = rng.normal(size=(runs, steps, 9))
    k = inside.sum(2)[:, :, None]
    last = inside[:, :, -1, None]
    found = batches_of(k * a + noise, k * b + noise, k * a + last * (b - a) + noise, np.zeros(5))
    known = ~np.isnan(found.counts)
    assert known.mean() > 0.9  # a step is unknown where the record was in no run's batch
    np.testing.assert_array_equal(found.counts[known], inside.sum(2)[known])
    np.testing.assert_array_equal(found.included, inside[:, :, -1])
    assert found.constant
    assert found.unit_spread < 1e-6


def test_the_scale_of_noise_is_unbiased_where_batches_are_regressed_out() -> None:
    # Chi-square with the stated degrees of freedom, by Kolmogorov and Smirnov (false alarm 1e-3).
    rng = np.random.default_rng(1)
    values = []
    for _ in range(200):
        k = rng.binomial(20, 0.3, size=(8, 1)).astype(float)
        drawn = 5.0 * k[:, :, None] + rng.normal(size=(8, 1, 6))
        noise = estimate_noise(drawn, k, [slice(0, 6)], 1e-12)
        values.append(scale_p_value(noise.squares[0, 0], noise.degrees[0] * 6, 1.0))
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_poisson_samples_pass_and_every_other_sampling_is_named() -> None:
    rng = np.random.default_rng(2)
    runs, steps, n, rate = 40, 6, 24, 0.3

    def kinds(inside: Any, rate: float = rate) -> Any:
        tests = poisson_tests(inside.sum(2).astype(float), inside[:, :, -1], n, [rate] * steps)
        return {t.kind for t in tests if t.matters and t.p_value < 1e-7}

    poisson = rng.random((runs, steps, n)) < rate
    assert not kinds(poisson)
    assert not kinds(poisson, 2 * rate)  # a larger rate is accounted for
    assert not kinds(poisson & False, rate)
    fixed = np.argsort(rng.random((runs, steps, n)), axis=2) < 7
    assert "fixed batches" in kinds(fixed)
    assert "repeated batches" in kinds(np.repeat(poisson[:, :1], steps, axis=1))
    assert "mean of batches" in kinds(rng.random((runs, steps, n)) < 2 * rate)
    blocks = np.repeat(rng.random((runs, steps, 1)) < rate, n, axis=2)
    assert "uneven batches" in kinds(blocks)
    cut = poisson & (np.cumsum(poisson, axis=2) <= 9)  # the mean is 7.2
    assert "limited batches" in kinds(cut)
    always = poisson.copy()
    always[:, :, -1] = True
    assert "inclusion rate" in kinds(always)


@pytest.mark.slow
def test_shuffled_batches_with_a_smaller_last_one_are_named() -> None:
    def shuffled(state: Any, n: int) -> torch.Tensor:
        if state.step % 4 == 0:
            state.order = torch.randperm(n)
        return state.order[7 * (state.step % 4) :][:7]

    findings = report(Loop(batch=shuffled, sampling_rate=0.25, steps=8)).findings
    assert "last batch is smaller" in findings[0].cause
    assert not any("microbatches" in finding.cause for finding in findings)


def test_records_that_are_dealt_out_are_named() -> None:
    rng = np.random.default_rng(3)
    p_values = [
        each.p_value
        for _ in range(200)
        for each in even_inclusions([rng.random((50, 8)) < 0.25 for _ in range(2)], 0.25)
    ]
    assert 1e-4 < min(p_values) < 0.1
    dealt = np.zeros((2, 50, 8), np.bool_)  # of 24 records, in batches of binomial size
    for run in range(50):
        left: list[int] = []
        for step in range(8):
            size = rng.binomial(24, 0.25)
            left = left if len(left) >= size else rng.permutation(24).tolist()
            dealt[:, run, step] = 0 in left[:size], 23 in left[:size]
            left = left[size:]
    assert [each.p_value < 1e-6 for each in even_inclusions(list(dealt), 0.25)] == [True]


def test_independent_noise_passes_and_dependence_is_named() -> None:
    rng = np.random.default_rng(3)
    drawn = rng.normal(size=(20, 4, 60))
    parts, names, shapes = [slice(0, 40), slice(40, 60)], ["a", "b"], [(8, 5), (20,)]

    def kinds(values: Any) -> Any:
        noise = estimate_noise(values, None, parts, 1e-12)
        tests = independence(noise, names, shapes, True)
        return {t.kind for t in tests if t.matters and t.p_value < 1e-7}

    assert not kinds(drawn)
    assert kinds(np.repeat(drawn[:, :1], 4, axis=1)) >= {"steps"}
    shared = drawn.copy()
    shared[:, :, 40:] = shared[:, :, :20]
    assert kinds(shared) == {"tensors"}
    rows = drawn.copy()
    rows[:, :, :40] = np.repeat(rows[:, :, :8], 5, axis=2)
    assert "coordinates" in kinds(rows)
    long = rng.normal(size=(20, 16, 60))
    assert not kinds(long)
    long[:, 14] = long[:, 2]  # one repetition, after 12 steps
    assert kinds(long) == {"steps"}


def test_noise_on_a_sphere_or_in_a_subspace_is_named() -> None:
    rng = np.random.default_rng(1)
    slices = [slice(0, 30), slice(30, 50)]

    def p_values(drawn: Any) -> dict[str, float]:
        noise = estimate_noise(drawn, None, slices, 1e-7)
        tests = [*flat_noise(noise), *length_of_noise(noise)]
        return {each.kind: each.p_value for each in tests if each.matters}

    smallest = 1.0
    for _ in range(40):
        drawn = rng.normal(size=(60, 4, 50))
        assert not p_values(drawn)
        for each in length_of_noise(estimate_noise(drawn, None, slices, 1e-7)):
            smallest = min(smallest, each.p_value)
    assert 1e-4 < smallest < 0.3
    on_sphere = drawn / np.linalg.norm(drawn, axis=2, keepdims=True)
    assert p_values(on_sphere)["length"] < 1e-20
    summing_to_zero = drawn - drawn.mean(axis=2, keepdims=True)
    assert p_values(summing_to_zero)["flat"] < 1e-6


def test_noise_that_comes_back_elsewhere_is_named() -> None:
    rng = np.random.default_rng(5)
    parts, names, shapes = [slice(0, 30), slice(30, 60)], ["a", "b"], [(30,), (30,)]

    def kinds(values: Any) -> Any:
        noise = estimate_noise(values, None, parts, 1e-12)
        tests = independence(noise, names, shapes, True)
        return {t.kind for t in tests if t.matters and t.p_value < 1e-7}

    drawn = rng.normal(size=(30, 6, 60))
    assert not kinds(drawn)
    once = drawn[:, 0]
    permuted = np.stack([once[:, rng.permutation(60)] for _ in range(6)], axis=1)
    assert "shared noise" in kinds(permuted)
    overlapping = drawn.copy()  # the seed of a tensor is its place plus the step
    overlapping[:, 1:, :30] = overlapping[:, :-1, 30:]
    assert "tensors" in kinds(overlapping)


@pytest.mark.parametrize("next_step", [False, True])
@pytest.mark.parametrize("magnitude", [False, True])
def test_noise_that_depends_on_the_batch_is_named(magnitude: bool, next_step: bool) -> None:
    rng = np.random.default_rng(7)
    part = slice(0, 40)
    for same_key in (True, False):
        drawn = rng.normal(size=(40, 6, 40))
        own = drawn[:, :, 5] if same_key else rng.normal(size=(40, 6))
        inside = np.abs(own) < 0.5 if magnitude else own < -0.5
        if next_step:
            inside = np.roll(inside, 1, axis=1)  # the first step's batch is that of no noise
        noise = estimate_noise(drawn, None, [part], 1e-12)
        tests = list(batches_in_noise(noise, (inside, inside[:20])))
        assert len(tests) == 8
        assert any(t.matters and t.p_value < 1e-9 for t in tests) is same_key
        assert same_key or min(t.p_value for t in tests) > 1e-3


@pytest.mark.parametrize(("length", "found"), [(1.0, False), (1.25, True)])
def test_what_every_record_adds_alike_is_found(length: float, found: bool) -> None:
    rng = np.random.default_rng(6)
    sigma, width = 1.5, 60
    direction = rng.normal(size=width)
    added = length * direction / np.linalg.norm(direction)
    p_values = []
    for _ in range(20):
        counts = rng.binomial(30, 0.3, size=(80, 6)).astype(float)
        released = counts[..., None] * added + sigma * rng.normal(size=(80, 6, width))
        noise = estimate_noise(released, counts, [slice(0, 20), slice(20, width)], 1e-12)
        (test,) = one_more_record(released, counts, noise, np.full(6, sigma))
        assert test.numbers["ratio"] == pytest.approx(length, abs=0.15)
        p_values.append(test.p_value)
    assert max(p_values) < 1e-5 if found else min(p_values) > 0.01


@pytest.mark.slow
def test_weight_decay_for_each_record_of_a_batch_is_found() -> None:
    def decayed(state: Any, each: Any) -> Any:
        total, count = loops.clipped_sum(state, each), len(state.taken)
        return [g + 0.3 * count * p.detach() for g, p in zip(total, state.parameters, strict=True)]

    (found,) = report(Loop(total=decayed, sampling_rate=0.4, steps=6)).findings
    assert "One more record in a batch changes a step" in found.message


def test_a_contribution_that_depends_on_the_size_of_its_batch_is_named() -> None:
    rng = np.random.default_rng(8)
    inside = rng.random((60, 5, 30)) < 0.3
    k = np.maximum(inside.sum(2), 1)
    last = inside[:, :, -1, None]

    def p_values(single: Any) -> list[float]:
        whole = k[:, :, None] * single
        found = batches_of(0 * whole, whole, last * single, np.zeros(5))
        tests = dependence_on_size(whole, last * single, found, np.zeros(5))
        return [t.p_value for t in tests if t.matters]

    directions = rng.normal(size=(60, 5, 9))  # of the same random augmentation in all records
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    (p_value,) = p_values(directions / k[:, :, None])
    assert p_value < 1e-9
    assert min(p_values(directions * rng.uniform(1, 2, size=(60, 5, 1))), default=1.0) > 1e-3
    # Each record has an augmentation of its own: the sum is not parallel to one contribution.
    whole = directions + rng.normal(size=directions.shape)
    found = batches_of(0 * whole, whole, last * directions, np.zeros(5))
    assert list(dependence_on_size(whole, last * directions, found, np.zeros(5))) == []


def test_a_contribution_that_is_clipped_in_small_batches_alone_is_found() -> None:
    # As if gradients of a mean loss were clipped: they fall below C in batches of more than 12.
    rng = np.random.default_rng(11)
    p_values = []
    for _ in range(20):
        inside = rng.random((60, 6, 40)) < 0.25
        k = inside.sum(2)
        last = inside[:, :, -1, None]
        direction = rng.normal(size=(1, 6, 9))
        single = direction * np.minimum(1.0, 12.0 / np.maximum(k, 1))[:, :, None]
        found = batches_of(0 * single, k[..., None] * single, last * single, np.zeros(6))
        (test,) = (
            t
            for t in dependence_on_size(k[..., None] * single, last * single, found, np.zeros(6))
            if t.kind == "another batch size"
        )
        p_values.append(test.p_value)
    assert max(p_values) < 1e-6


def test_the_chance_of_equal_contributions_is_that_of_all_permutations() -> None:
    rng = np.random.default_rng(12)
    for _ in range(30):
        sizes = rng.integers(0, 4, size=7)
        classes = np.unique(rng.integers(0, 3, size=4)[sizes], return_inverse=True)[1]
        labels = set(itertools.permutations(classes.tolist()))
        pure = sum(
            all(
                len({c for c, s in zip(label, sizes, strict=True) if s == size}) == 1
                for size in set(sizes.tolist())
            )
            for label in labels
        )
        assert _chance_of_pure(classes, sizes) == pytest.approx(pure / len(labels))
    assert _chance_of_pure(np.array([0, 1, 1]), np.array([5, 5, 6])) is None


@pytest.mark.thorough
def test_discrete_augmentation_is_no_dependence_on_the_batch_size() -> None:
    # Two contributions, independent of the batch size: fails by chance with at most 100 * 1e-4.
    rng = np.random.default_rng(13)
    # In small batches, equal sizes have one contribution in many steps by chance.
    for runs, steps in [(12, 3), (8, 100)] * 50:
        k = rng.binomial(30 if runs == 12 else 4, 0.3, size=(runs, steps)) + 1
        flips = rng.integers(0, 2, size=(runs, steps))
        single = np.stack([1.0 + flips, 2.0 - flips], axis=2)
        found = batches_of(0 * single, k[..., None] * single, single, np.zeros(steps))
        tests = dependence_on_size(k[..., None] * single, single, found, np.zeros(steps))
        assert all(t.p_value > 1e-4 for t in tests if t.kind == "another batch size")


def test_dependent_inclusions_are_seen_at_any_distance() -> None:
    rng = np.random.default_rng(31)
    groups = rng.integers(0, 3, size=(40, 1))
    turns = (rng.random((40, 12)) < 0.6) & (groups == np.arange(12) % 3)
    cycle = np.tile(rng.random((40, 4)) < 0.3, (1, 3))
    for drawn, multiple in ((turns, 3), (cycle, 4)):
        (test,) = inclusions_by_lag([drawn, drawn[::-1]], float(drawn.mean()))
        assert test.p_value < 1e-8
        assert test.matters
        assert (int(test.numbers["lag"]) % multiple == 0) == (test.numbers["ratio"] > 1)


@pytest.mark.slow
def test_independent_batches_and_unused_records_show_no_dependence() -> None:
    # 60 tests at a level of 1e-4: one is below by chance with probability at most 0.006.
    rng = np.random.default_rng(32)
    for rate, steps in ((0.02, 20), (0.3, 6), (0.9, 8)):
        for _ in range(20):
            drawn = rng.random((60, steps)) < rate
            drawn[::3] &= rate > 0.5  # a part of the records is never drawn
            (test,) = inclusions_by_lag([drawn], rate)
            assert test.p_value > 1e-4


def test_a_contribution_as_short_as_its_rounding_shows_no_division() -> None:
    # As with dropout in a model whose gradients have vanished: lengths of 2 and 12 roundings, in
    # directions that are not the same. A division by the batch size has the longer lengths below.
    rounding = np.array([2e-7])
    short = np.array([[[12.0, 0.0, 0.0]], [[0.0, 2.0, 0.0]], [[1.0, 0.0, 1.5]]]) * rounding
    assert batches_of(0 * short, short, short, rounding).unit_spread == 0
    divided = np.array([1.0, 0.5, 0.25])[:, None, None] * [[[1e-3, 0.0, 2e-3]]]
    divided += 1e-7 * np.random.default_rng(3).normal(size=divided.shape)
    assert batches_of(0 * divided, divided, divided, rounding).unit_spread == pytest.approx(
        3.0, abs=0.01
    )


@pytest.mark.slow
def test_a_record_that_overflows_is_named_and_an_error_is_noted() -> None:
    def overflowing(records: Any, *others: Any) -> Any:
        large = np.abs(records.features).max() > 100
        features = np.where(large & (records.features != 0), np.nan, records.features)
        return Loop()(TrainingSet(features, records.labels), *others)

    finding = next(f for f in report(overflowing).findings if f.premise == "contribution")
    assert "make a released gradient infinite or not a number" in finding.message

    def refusing(records: Any, *others: Any) -> Any:
        if np.abs(records.features).max() > 100:
            raise ValueError("features must be at most 100")
        return Loop()(records, *others)

    found = report(refusing)
    assert not found.findings
    assert any("raised an error" in note and "at most 100" in note for note in found.notes)


@pytest.mark.slow
def test_released_numbers_are_compared_on_wholly_different_records() -> None:
    def rounded(records: Any, *others: Any) -> Any:
        mean = round(float((records.labels == 1).mean()), 1)
        return {"model": Loop(steps=2)(records, *others), "share": mean}

    findings = report(rounded).findings
    assert ["`share` depends" in f.message for f in findings] == [True]


def test_batch_sizes_that_only_the_exchanged_record_reveals_do_not_bias_the_tests() -> None:
    # A size is known only at steps at which some run drew the exchanged record, so that known
    # batches are larger: 0.47 instead of 0.24 records here. Without correction, checks of a correct
    # loop with 650 such steps reported them.
    rng = np.random.default_rng(7)
    runs, steps, n = 4, 400, 8

    def p_values(rate: float, drawn: float) -> Any:
        found = []
        for _ in range(200):
            inside = rng.random((runs, steps, n)) < drawn
            counts = np.where(inside[:, :, -1].any(axis=0), inside.sum(2), np.nan)
            tests = list(poisson_tests(counts, inside[:, :, -1], n, [rate] * steps))
            found.append(next(t.p_value for t in tests if t.kind == "mean of batches"))
        return np.array(found)

    correct = p_values(0.03, 0.03)
    # At most uniform: 5 % below 0.05, and an error of 1e-4 for 24 or more of 200.
    assert np.sum(correct < 0.05) < 24
    assert correct.min() > 1e-6  # an error of 2e-4
    assert np.median(p_values(0.03, 0.06)) < 1e-6


def test_noise_of_the_only_run_with_another_batch_is_left_out() -> None:
    # The regression fits this run exactly, and rounding left it a share below 0.
    rng = np.random.default_rng(8)
    for _ in range(50):
        counts = np.zeros((6, 1))
        counts[0] = rng.uniform(0.1, 3.0)
        noise = estimate_noise(rng.normal(size=(6, 1, 3)), counts, [slice(0, 3)], 1e-12)
        assert noise.residual_share.min() >= 0.0
        assert all(np.isfinite(t.p_value) for t in flat_noise(noise))


@pytest.mark.slow
def test_few_runs_of_few_coordinates_do_not_make_gaussian_noise_suspicious() -> None:
    # Residuals over a scale of m degrees of freedom have an excess kurtosis of -6 / (m + 2), and
    # the inverse of this variance is m / (m - 2) times too large. Checks of correct loops with four
    # parameters and 500 steps reported noise that is not Gaussian, and with two parameters slopes.
    rng = np.random.default_rng(9)
    runs, steps, width = 5, 1200, 3
    ones = np.ones(steps)
    for _ in range(3):
        counts = rng.binomial(24, 0.2, size=(runs, steps)).astype(float)
        noise_values = rng.normal(size=(runs, steps, width))
        noise = estimate_noise(noise_values, counts, [slice(0, width)], 1e-12)
        tests = [*shape_of_noise(noise), *one_more_record(noise_values, counts, noise, ones)]
        smallest = min(t.p_value for t in tests if t.matters)  # three tests, each with error 1e-5
        assert smallest > 1e-5, [(t.kind, t.p_value) for t in tests if t.p_value < 1e-5]
    uniform = rng.uniform(-1.0, 1.0, size=(runs, steps, width))
    noise = estimate_noise(uniform, counts, [slice(0, width)], 1e-12)
    assert min(t.p_value for t in shape_of_noise(noise) if t.matters) < 1e-8


@pytest.mark.thorough
def test_the_slope_of_steps_with_enough_noise_is_exact() -> None:
    # One record adds exactly 1.05 C, the largest slope that is allowed, or 1.5 C.
    rng = np.random.default_rng(10)
    runs, steps, width = 12, 40, 5
    p_values = []
    for size in (1.05, 1.5):
        for _ in range(60):
            counts = rng.binomial(24, 0.2, size=(runs, steps)).astype(float)
            values = rng.normal(size=(runs, steps, width))
            values[:, :, 0] += size * counts
            noise = estimate_noise(values, counts, [slice(0, width)], 1e-12)
            (result,) = one_more_record(values, counts, noise, np.ones(steps))
            p_values.append(result.p_value)
    assert stats.kstest(p_values[:60], "uniform").pvalue > 1e-3  # false alarm 1e-3
    assert max(p_values[60:]) < 1e-8


def test_slopes_of_two_steps_are_combined_as_independent_p_values() -> None:
    # P[U V <= x] = x (1 - log x) for independent uniform U and V. One F distribution for the sum
    # of both statistics has a lighter tail than this sum, and gave p-values that were too small.
    rng = np.random.default_rng(11)
    runs, width = 8, 5

    def p_value(steps: slice) -> float:
        noise = estimate_noise(values[:, steps], counts[:, steps], [slice(0, width)], 1e-12)
        ones = np.ones(values[:, steps].shape[1])
        (result,) = one_more_record(values[:, steps], counts[:, steps], noise, ones)
        return result.p_value

    for size in (1.05, 1.5, 3.0):
        counts = rng.binomial(24, 0.2, size=(runs, 2)).astype(float)
        values = rng.normal(size=(runs, 2, width))
        values[:, :, 0] += size * counts
        product = p_value(slice(0, 1)) * p_value(slice(1, 2))
        expected = product * (1.0 - np.log(product))
        assert p_value(slice(0, 2)) == pytest.approx(expected, rel=1e-6)


def test_records_that_are_drawn_in_pairs_are_named() -> None:
    rng = np.random.default_rng(6)
    rates = [0.3] * 8

    def kinds(inside: Any) -> Any:
        tests = poisson_tests(inside.sum(2).astype(float), inside[:, :, -1], 40, rates)
        return {t.kind for t in tests if t.matters and t.p_value < 1e-7}

    assert not kinds(rng.random((40, 8, 40)) < 0.3)
    pairs = np.repeat(rng.random((40, 8, 20)) < 0.3, 2, axis=2)
    assert kinds(pairs) == {"uneven batches", "gaps in batches"}
    # Nearly all batches are empty: a few records less than expected prove nothing.
    rare = rng.random((25, 8, 2)) < 0.01
    rare[:] = False
    found = poisson_tests(rare.sum(2).astype(float), rare[:, :, -1], 2, [0.01] * 8)
    assert all(t.p_value > 1e-3 for t in found)


@pytest.mark.slow
def test_steps_after_those_that_time_allows_are_tested_by_fewer_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experiment, "number_of_steps", lambda *_: 6)

    def silent_at_the_end(state: Any, total: list[Any]) -> list[Any]:
        return total if state.step == 15 else loops.gaussian(state, total)

    def wide() -> torch.nn.Module:  # with more coordinates, fewer runs show the noise
        layers = torch.nn.Linear(8, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3)
        return torch.nn.Sequential(*layers)

    found = report(Loop(wide, steps=16, noise=silent_at_the_end))
    (finding,) = found.findings
    assert "(steps 16)" in finding.message
    assert any("steps 7 to 16 were tested by fewer runs" in note for note in found.notes)
    correct = report(Loop(wide, steps=16, sampling_rate=0.3))
    assert not correct.findings
    assert any("steps 7 to 16 were tested by fewer runs" in note for note in correct.notes)


def _p_values(gradients: Any, counts: Any) -> dict[str, float]:
    width = gradients.shape[2]
    slices = [slice(0, width // 2), slice(width // 2, width)]
    noise = estimate_noise(gradients, counts, slices, 1e-7)
    update = gradients.mean(axis=0)
    update /= np.linalg.norm(update, axis=1, keepdims=True)
    tests = [
        *noise_along(gradients, counts, update, noise, noise.scales_by_tensor),
        *noise_again(gradients, noise),
        *rank_of_noise(gradients, counts, slices, 1e-7),
        *(() if counts is None else scale_by_batch(noise, counts)),
    ]
    return {each.kind: each.p_value for each in tests if each.matters}


def test_directions_rank_and_repetitions_of_the_noise() -> None:
    rng = np.random.default_rng(11)
    update = rng.normal(size=40)
    drawn = rng.normal(size=(12, 5, 40))
    along = drawn @ update / (update @ update)
    orthogonal = drawn - along[..., None] * update + 3 * update
    assert _p_values(orthogonal, None)["direction"] < 1e-30
    low = rng.normal(size=(12, 5, 20)) @ rng.normal(size=(20, 40))
    assert _p_values(low + update, None)["rank"] < 1e-8
    assert _p_values(np.concatenate([drawn, drawn[:1]]) + update, None)["runs"] < 1e-30
    counts = rng.binomial(20, 0.4, size=(12, 5)).astype(float)
    scaled = counts[:, :, None] * update + np.sqrt(counts / 8)[:, :, None] * drawn
    assert _p_values(scaled, counts)["scale by batch"] < 1e-6
    # Independent noise, with and without batches, is accused as rarely as the level says.
    for run in range(100):
        fresh = rng.normal(size=(8 + run % 5, 4, 30))
        k = rng.binomial(20, 0.3, size=fresh.shape[:2]).astype(float) if run % 2 else None
        shift = 2 * update[:30] if k is None else k[:, :, None] * update[:30]
        assert all(p > 1e-4 for p in _p_values(fresh + shift, k).values())


def _augmented(state: Any, x: Any, y: Any) -> Any:
    return loops.each_gradient(state, x + 0.3 * torch.randn_like(x), y)


@pytest.mark.slow
def test_causes_of_a_record_that_changes_too_many_steps() -> None:
    # A wrong rate, with gradients that are random themselves.
    loop = Loop(gradients=_augmented, sampling_rate=0.4, steps=6, history=broken.half_rate)
    (rate,) = report(loop).findings
    assert rate.message.startswith("One record changes")
    assert rate.cause.startswith("The accounted rate is too small")
    # Gradients of all records enter each step: the scales of the noise are a consequence.
    cases = SECOND_TESTER["layers scaled by gradient norms without noise (LARS)"]
    first, second = report(cases.train).findings
    assert first.cause.startswith("Something that is computed from more records than the batch")
    assert second.cause.startswith("An earlier finding may explain this")


@pytest.mark.slow
def test_a_batch_drawn_by_a_hash_is_named() -> None:
    # The batch follows from the values of the records, and not from the key of the noise.
    (drawn,) = report(
        SECOND_TESTER["each record drawn according to a hash of its content"].train
    ).findings
    assert "a hash of the record" in drawn.cause


@pytest.mark.slow
def test_outputs_counted_in_the_private_labels_are_named() -> None:
    def counted(records: Any, *others: Any) -> Any:
        classes = int(records.labels.max()) + 1
        gradients = loops.each_gradient

        def small(state: Any, x: Any, y: Any) -> Any:
            return [0.1 * g for g in gradients(state, x, y)]

        return Loop(lambda: nn.Linear(8, classes), gradients=small)(records, *others)

    found = report(counted)
    assert "The shape of `weight`, `bias` depends" in found.findings[0].message
    assert "number of steps" not in str(found)


def _clamped(state: Any, total: Any) -> Any:
    return [
        g + state.noise_multiplier * state.clip * torch.randn_like(g).clamp(-2, 2) for g in total
    ]


def _with_replacement(state: Any, n: int) -> torch.Tensor:
    return torch.randint(n, (int((torch.rand(n) < state.sampling_rate).sum()),))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "cause"),
    [
        (Loop(noise=_clamped, sampling_rate=0.4, steps=6), "cut off at a largest size (clamp)"),
        (
            Loop(batch=_with_replacement, sampling_rate=0.4, steps=6),
            "A record is in a batch several times (drawn with replacement",
        ),
    ],
)
def test_clamped_noise_and_records_drawn_with_replacement_are_named(loop: Any, cause: str) -> None:
    assert cause in report(loop).findings[0].cause


def _mean_without_clipping(state: Any, each: Any) -> Any:
    return [8 * g.mean(0) if len(g) else g.sum(0) for g in each]


@pytest.mark.slow
def test_a_mean_gradient_without_clipping_is_named_as_a_cause() -> None:
    # Ghost clipping without the criterion of make_private: backward() leaves this mean in p.grad.
    found = report(Loop(total=_mean_without_clipping, sampling_rate=0.4, steps=6)).findings
    (varies,) = (each for each in found if "differs by a factor of" in each.message)
    assert "used without clipping (with ghost clipping: the loss is not the crit" in varies.cause


@pytest.mark.slow
def test_labels_that_the_function_maps_to_others_are_no_error() -> None:
    # The loss of the gradient ascent raises IndexError for labels that the model does not have.
    data = TrainingSet(DATA.features, DATA.labels + 1)
    assert not report(Loop(prepare=lambda state, x, y: (x, y - 1)), data).findings


def test_equal_records_have_the_class_of_the_canary_if_draws_depend_on_it() -> None:
    # A function that copies the records of class 1 draws more numbers for them.
    def coupled(data: TrainingSet, seed: int) -> Any:
        step = SimpleNamespace(generators=(int(data.labels.sum()),))
        return SimpleNamespace(steps=[step], gradients=np.zeros((1, 1)))

    canary = PoolRecord(np.ones(2), 1, 1.0, "own")
    zeros = PoolRecord(np.zeros(2), 0, 0.0, "zeros")
    three_records: Any = SimpleNamespace(
        pool=[zeros, canary],
        records=DATA.first_records(3),
        coupled=coupled,
        exchange=replace_one,
        seed_of=lambda number: number,
        ended_early=lambda trace: False,
        steps=1,
    )
    quiet = _quiet_record(three_records, SimpleNamespace(pair=(canary, zeros)), [])  # type: ignore[arg-type]
    assert quiet is not None
    assert (quiet.features.tolist(), quiet.label) == ([0.0, 0.0], 1)


@pytest.mark.slow
def test_a_small_effect_on_other_records_is_noted() -> None:
    def by_frequency(state: Any, each: list[Any]) -> list[Any]:
        share = torch.bincount(state.y, minlength=3)[state.y] / len(state.y)
        factor = (1 - share) * (state.clip / loops.norms(each)).clamp(max=1.0)
        return [torch.einsum("i,i...->...", factor, g) for g in each]

    found = report(Loop(total=by_frequency), relation="zero-out")
    assert not found.findings
    assert any("changes what other records contribute" in note for note in found.notes)
    assert not any("other records" in note for note in report(Loop()).notes)


def test_everything_on_a_returned_object_is_compared() -> None:
    model: Any = loops.mlp()
    model.history = {"loss": [0.5]}
    model._scale = 2.0
    model.register_buffer("center", torch.ones(2), persistent=False)

    class Slots:
        __slots__ = ("loss", "model")

    result: Any = Slots()
    result.loss, result.model = 0.25, model
    found = numbers_of(result)
    assert found["loss"] == 0.25
    assert found["model.history.loss"].tolist() == [0.5]
    assert found["model._scale"] == 2.0
    assert found["model.center"].tolist() == [1.0, 1.0]
    assert not [name for name in found if "hook" in name]


@pytest.mark.slow
@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("noise orthogonal to the update", "Along the update"),
        ("noise from one of four seeds", "Two runs with different seeds"),
        ("noise scaled by the root of the batch size", "size of the noise and that of the batch"),
        ("near-duplicate records removed", "one record changes"),
    ],
)
def test_mistakes_that_the_test_was_not_built_around(name: str, words: str) -> None:
    control = FURTHER[name]
    findings = report(control.train, TrainingSet.of(control.data())).findings
    assert words in findings[0].message


@pytest.mark.thin(8)
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("each tensor clipped to C", "each tensor (layer) is clipped to C separately"),
        ("features standardised by private records", "changes what other records contribute"),
        ("threshold set to the median norm of the batch", "changes what other records contribute"),
        ("features centered by the batch mean", "changes what other records contribute"),
        ("momentum of gradients without noise", "momentum"),
        ("two copies of each record", "several copies"),
        ("learning rate from gradients without noise", "The learning rate"),
        ("sum divided by the size of the drawn batch", "divided by the size of the batch"),
    ],
)
def test_the_likely_cause_is_the_true_one(name: str, cause: str) -> None:
    control = BROKEN[name]
    found = report(control.train, TrainingSet.of(control.data()), relation=control.relation)
    assert cause in found.findings[0].cause


def _relu_with_dropout(share: float) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(share), nn.Linear(8, 3))


def _clipped_with_another_mask(state: Any, each: Any) -> Any:
    factor = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0)
    other = loops.each_gradient(state, state.x[state.taken], state.y[state.taken])
    return [(factor @ g.flatten(1)).reshape(g.shape[1:]) for g in other]


def _clipped_by_factors_of_before(state: Any, each: Any) -> Any:
    factors = state.__dict__.setdefault("factors", torch.ones(len(state.y)))
    total = [(factors[state.taken] @ g.flatten(1)).reshape(g.shape[1:]) for g in each]
    factors[state.taken] = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0)
    return total


def _mean_gradient_without_clipping(state: Any, each: Any) -> Any:
    return [g.sum(0) / max(len(g), 1) for g in each]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("total", "dropout"),
    [
        (_clipped_with_another_mask, 0.5),
        (_clipped_by_factors_of_before, 0.0),
        (_mean_gradient_without_clipping, 0.0),
    ],
)
def test_gradients_that_are_not_clipped_are_the_first_finding(total: Any, dropout: Any) -> None:
    """Their residuals correlate, and their contributions vary: these are consequences."""

    def model() -> nn.Module:
        return _relu_with_dropout(dropout)

    found = report(Loop(model=model, total=total, sampling_rate=0.4, steps=6)).findings
    assert "one record changes" in found[0].message, found
    assert "its gradient is not clipped" in found[0].cause, found
    assert all(each.cause.startswith("An earlier finding may explain") for each in found[1:])


@pytest.mark.slow
def test_the_first_record_is_exchanged_too() -> None:
    def with_hold_out(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        held_out = float(np.asarray(records.features[:4], dtype=float).mean())
        rest = TrainingSet(records.features[4:], records.labels[4:])
        return {"model": Loop(steps=2)(rest, candidate, seed, watch), "held out": held_out}

    (finding,) = [f for f in report(with_hold_out).findings if f.premise == "released numbers"]
    assert "`held out` depends on the record" in finding.message


@pytest.mark.parametrize("runs", [3, 8, 64])
def test_gaussian_noise_passes_and_another_distribution_is_named(runs: int) -> None:
    rng = np.random.default_rng(4)
    counts = rng.binomial(20, 0.3, size=(runs, 4)).astype(float)

    def tests(values: Any) -> Any:
        values = values + 5.0 * counts[:, :, None]
        noise = estimate_noise(values, counts, [slice(0, 2000)], 1e-12)
        return {t.kind: t for t in shape_of_noise(noise)}

    drawn = rng.normal(size=(runs, 4, 2000))
    assert not any(t.matters and t.p_value < 1e-4 for t in tests(drawn).values())
    if runs == 64:  # the residuals of three runs are mixtures, which are closer to the Gaussian
        rounded = tests(np.round(drawn))["distance"]
        # The largest step of the distribution function is the probability of 0, 0.383.
        assert 0.03 < rounded.numbers["distance"] < 0.192
        assert rounded.p_value < 1e-50
        assert rounded.matters
        clamped = tests(np.clip(drawn, -3.0, 3.0))["tails"]
        assert clamped.numbers["seen"] < 0.2 * clamped.numbers["expected"]
        assert clamped.p_value < 1e-50
        laplace = tests(rng.laplace(size=drawn.shape))["distribution"]
        assert laplace.numbers["kurtosis"] == pytest.approx(3.0, abs=0.3)
        assert laplace.p_value < 1e-50


def test_every_released_number_is_compared() -> None:
    class Holder:
        def __init__(self, value: Any) -> None:
            self.coef_, self.log = np.array([1.0, value]), [{"loss": value}]

    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    names = numbers_of({"m": model, "h": Holder(2.0), "t": "text"})
    assert {"m.0.running_mean", "h.coef_", "h.log[0].loss", "t"} <= set(names)
    found = differences(numbers_of(Holder(2.0)), numbers_of(Holder(3.0)))
    assert found == {"coef_": 1.0, "log[0].loss": 1.0}
    assert differences({"x": math.nan}, {"x": math.nan}) == {}
    assert differences({"x": 1.0}, {}) == {"x": math.inf}


def test_the_pool_has_all_sizes_signs_and_labels_and_tokens_stay_tokens() -> None:
    pool = canary_pool(DATA, None)
    sizes = {record.size for record in pool}
    assert {1.0, 30.0, 1000.0} <= sizes
    assert {int(record.label) for record in pool} == {0, 1, 2}
    features, _ = loops.tokens()
    for record in canary_pool(TrainingSet.of(loops.tokens()), None):
        assert record.features.dtype == features.dtype
        assert features.min() <= record.features.min() <= record.features.max() <= features.max()


def test_a_pair_of_labels_on_one_boundary_differs_by_twice_the_threshold() -> None:
    """Gradients of two labels with probability 1/2 are opposite: their distance is nearly 2C."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    start = next(each for each in canary_pool(DATA, None) if each.family == "own")
    before, parameters = start.features.copy(), list(model.parameters())
    one, other = opposite_pair(model, cross_entropy, start, parameters[0], [0, 1, 2])
    assert np.array_equal(start.features, before)
    assert one.label != other.label
    gradients = [gradient_of(model, cross_entropy, each, parameters) for each in (one, other)]
    cosine = torch.nn.functional.cosine_similarity(*gradients, dim=0)
    assert cosine < -0.98


@pytest.mark.slow
def test_the_noise_of_few_poisson_batches_is_measured_within_two_percent() -> None:
    found = report(Loop(sampling_rate=0.3, steps=8, noise_multiplier=1.2))
    assert found.measured["effective noise multiplier"] == pytest.approx(1.2, rel=0.02)


@pytest.mark.slow
def test_a_run_that_never_ends_leaves_the_check_without_a_verdict() -> None:
    def at_least_four(state: Any, n: int) -> Any:
        while len(taken := loops.poisson(state, n)) < 4:
            pass
        return taken

    found = report(Loop(batch=at_least_four, sampling_rate=0.4, steps=6), cpu=CpuLimit(60.0))
    assert found.inconclusive
    assert not found.findings
    assert "could not finish within 60 CPU seconds" in found.summary


# --- what is found ---


# `python -m benchmarks.training_loops` runs all of them, with the attack.
@pytest.mark.slow
@pytest.mark.thin(100)
@pytest.mark.parametrize("name", [name for name in BROKEN if "black box" not in name])
def test_a_broken_loop_is_found_at_the_default_settings(name: str) -> None:
    control = BROKEN[name]
    found = report(control.train, TrainingSet.of(control.data()), relation=control.relation)
    assert found.broken, str(found)


@pytest.mark.parametrize(
    ("name", "premise", "words"),
    [
        pytest.param(
            "no noise on biases and normalisation layers",
            "noise",
            "`0.bias`, `1.weight`, `1.bias`, `3.bias`",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "Opacus, no clipping",
            "contribution",
            r"the clipped sum by [\de+.]+ C; the accountant",
            marks=pytest.mark.slow,
        ),
        ("training loss returned", "released numbers", "`training_loss` depends on"),
        (
            "sum divided by the number of records",
            "number of records",
            "divided by 24 for 24 records and by 23 for 23",
        ),
        pytest.param(
            "one step recorded per epoch",
            "accountant",
            "recorded 2 steps; the optimizer took 8",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_finding_names_the_premise_and_the_numbers(name: str, premise: str, words: str) -> None:
    control = BROKEN[name]
    found = report(control.train, TrainingSet.of(control.data()))
    first = found.findings[0]
    assert first.premise == premise
    import re

    assert re.search(words, first.message), first.message
    assert first.cause
    assert first.fix


@pytest.mark.thin(18)
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_loop_is_not_accused(name: str) -> None:
    control = CORRECT[name]
    found = report(control.train, TrainingSet.of(control.data()), relation=control.relation)
    assert not found.broken, str(found)
    assert not found.inconclusive


@pytest.mark.slow
def test_records_that_contribute_alike_do_not_hide_the_batch_sizes() -> None:
    """With this seed, the first quiet record and the canary have one label."""
    control = CORRECT["label frequencies, Poisson"]
    found = report(control.train, TrainingSet.of(control.data()), seed=2)
    assert not found.broken, str(found)
    assert "noise" in found.tested


@pytest.mark.slow
def test_a_divisor_that_is_rounded_is_compared_when_little_work_is_allowed() -> None:
    # 24 and 23 records have the same divisor, and 12 another one.
    found = report(Loop(divide=lambda state, taken: len(taken) // 5), max_work=1000.0)
    assert [each.premise for each in found.findings] == ["number of records"]


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_few_steps_that_use_the_record_are_tested(seed: int) -> None:
    """Of 30 steps, 4 are tested; a batch holds a tenth of the records."""
    loop = Loop(steps=30, sampling_rate=0.1)
    found = check_premises(loop, DATA, seed=seed, max_work=640.0).report
    assert "contribution" in found.tested, found.untested
    assert not found.broken, str(found)


@pytest.mark.slow
@pytest.mark.full_work
@pytest.mark.thin(2)
@pytest.mark.parametrize("share", [1.0, 0.95])
def test_five_percent_of_the_noise_are_not_too_little_to_miss(share: float) -> None:
    def noise(state: Any, total: Any) -> Any:
        return [g + share * state.clip * torch.randn_like(g) for g in total]

    found = report(Loop(noise=noise))
    assert found.broken == (share < 1), str(found)
    effective = found.measured["effective noise multiplier"]
    assert effective == pytest.approx(share, abs=0.02)
    assert bool(found.power) == (share == 1)
    if found.power:
        assert 0.95 < found.measured["detectable noise scale"] < 0.99
        assert found.power in str(found)


def test_a_shortfall_of_the_noise_is_found_as_often_as_stated() -> None:
    degrees, tests = 20_000.0, 600
    share = detectable_scale(degrees, tests)
    drawn = share**2 * np.random.default_rng(8).chisquare(degrees, 2_000)
    found = [tests * scale_p_value(total, degrees, 1.0) < FAMILY_ERROR for total in drawn]
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)  # 4.5 standard errors
    # With many numbers, the smallest shortfall that is reported limits the power.
    drawn = detectable_scale(1e8, tests) * np.sqrt(
        np.random.default_rng(9).chisquare(1e8, 2_000) / 1e8
    )
    assert np.mean(drawn < 1 - SHORTFALL) == pytest.approx(0.8, abs=0.04)


class Claims:
    """A watch of a loop that claims an epsilon and has no accountant."""

    def __init__(self, watch: Any, epsilon: Any) -> None:
        self.watch, self.epsilon = watch, epsilon

    def __call__(self, optimizer: Any, model: Any, accountant: Any) -> None:
        self.watch(optimizer, model)
        self.watch.claim(self.epsilon)


def claiming(loop: Any, epsilon: Any) -> Any:
    """A loop that claims an epsilon."""
    return lambda records, c, seed, watch: loop(records, c, seed, Claims(watch, epsilon))


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_claim_without_an_accountant_is_compared_with_what_noise_and_steps_imply(
    sampled: bool,
) -> None:
    loop = Loop(sampling_rate=0.4, steps=6) if sampled else Loop()
    base = audit.accounting.DpSgd(1.0, 6, 0.4) if sampled else audit.accounting.DpSgd(1.0, 4)
    exact = base.epsilon(1e-5)
    assert not report(claiming(loop, exact)).broken
    less = (0.6 if sampled else 0.7) * exact
    assert report(claiming(loop, less)).findings[0].premise == "accountant"


@pytest.mark.thorough
@pytest.mark.full_work
def test_the_claim_of_a_schedule_of_noise_is_not_that_of_its_smallest_noise() -> None:
    multipliers = np.linspace(1.4, 0.9, 6)

    def noise(state: Any, total: Any) -> Any:
        size = float(multipliers[state.step]) * state.clip
        return [g + size * torch.randn_like(g) for g in total]

    loop = Loop(noise=noise, sampling_rate=0.4, steps=6)
    steps = [audit.accounting.DpSgd(float(m), 1, 0.4) for m in multipliers]
    exact = audit.accounting.Composition(steps).epsilon(1e-5)
    found = report(claiming(loop, exact))
    assert not found.broken, str(found)
    # Six steps of the smallest noise would cost more, and the claim would be accused.
    assert audit.accounting.DpSgd(0.9, 6, 0.4).epsilon(1e-5) > 1.2 * exact
    assert report(claiming(loop, 0.6 * exact)).findings[0].premise == "accountant"


def test_a_step_that_rarely_draws_the_record_costs_nothing_at_a_larger_delta() -> None:
    # The step with little noise draws the record with probability delta, so that it costs nothing.
    multipliers, rate, delta = np.array([0.2, 5.0, 5.0, 5.0]), 1e-3, 1e-3
    of_all = noise_of_all_steps(multipliers, np.full(4, 1e12))
    assert audit.accounting.DpSgd(of_all, 4, rate).epsilon(delta) > 0.04
    groups = groups_of_steps(multipliers, of_all)
    np.testing.assert_allclose(groups, [(0.2, 1), (5.0, 3)], rtol=1e-4)
    parts = tuple(audit.accounting.DpSgd(noise, count, rate) for noise, count in groups)
    assert audit.accounting.Composition(parts).epsilon(delta) < 1e-3
    np.testing.assert_allclose(groups_of_steps(np.ones(9), 1.25), [(1.25, 9)])


def test_the_noise_of_all_steps_is_rarely_below_the_truth() -> None:
    # By chance, all 3,000 estimates are above with probability 0.97.
    rng, error = np.random.default_rng(3), {}
    for steps, degrees in ((125, 40.0), (8, 100.0), (125, 1000.0)):
        drawn = np.sqrt(rng.chisquare(degrees, (1000, steps)) / degrees)
        estimates = [noise_of_all_steps(row, np.full(steps, degrees)) for row in drawn]
        assert min(estimates) >= 1
        error[steps, degrees] = np.mean(estimates) - 1
    assert error[125, 1000.0] < 0.01 < error[125, 40.0] < 0.06
    # Without chance, it is the noise of the Gaussian mechanism of the same cost.
    multipliers = np.array([0.5, 1.0, 2.0])
    exact = audit.accounting.GaussianMechanism(float(np.linalg.norm(1 / multipliers)))
    equal = audit.accounting.DpSgd(noise_of_all_steps(multipliers, np.full(3, 1e12)), 3)
    assert equal.epsilon(1e-5) == pytest.approx(exact.epsilon(1e-5), rel=1e-4)


@pytest.mark.slow
@pytest.mark.thin(8)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("four workers, but only a quarter of the rate recorded", "n = 24 implies 2.4"),
        ("half of the previous sum added again", "by different amounts for different seeds"),
        # Others with the same findings as here and in the next test.
        pytest.param(
            "labels from a teacher trained without privacy",
            "by different amounts for different seeds",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "ActNorm initialised by the first batch",
            "The weights before the first step depend",
            marks=pytest.mark.slow,
        ),
        ("returned function uses the training mean", "`mean` depends on the record"),
        (
            "token counts weighted by private document frequencies",
            "One record changes 96 of 96 steps",
        ),
        # Canaries of the minority change the number of records, and so that of random draws.
        (
            "synthetic records between minority records (SMOTE)",
            "one record changes the released gradient",
        ),
    ],
)
def test_the_first_finding_names_the_mistake(name: str, words: str) -> None:
    control = SECOND_TESTER[name]
    found = report(control.train, TrainingSet.of(control.data()))
    assert words in found.findings[0].message, str(found)


@pytest.mark.slow
def test_first_weights_that_depend_on_sampled_records_are_the_only_finding() -> None:
    def shift(state: Any) -> None:
        if state.step == 0:
            state.parameters[0].data += state.x.mean()

    # No step can be compared then; warnings are errors.
    found = report(Loop(before=shift, sampling_rate=0.4, steps=6))
    (finding,) = found.findings
    assert "The weights before the first step depend" in finding.message


def _loss(state: Any) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(state.model(state.x), state.y))


def _stops_at_a_larger_loss(state: Any) -> None:
    before = state.__dict__.get("loss", math.inf)
    state.loss = _loss(state)
    state.stop = state.loss > before


def _lowers_the_rate(state: Any) -> None:
    if "plateau" not in state.__dict__:
        state.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(state.optimizer, patience=0)
    state.plateau.step(_loss(state))


@pytest.mark.thorough
@pytest.mark.full_work
@pytest.mark.parametrize(
    ("after", "words"),
    [
        (_stops_at_a_larger_loss, "The number of steps depends on the record"),
        pytest.param(_lowers_the_rate, "The weights before step", marks=pytest.mark.slow),
    ],
)
def test_a_decision_by_the_training_loss_is_the_only_finding(after: Any, words: str) -> None:
    (finding,) = report(Loop(after=after, sampling_rate=0.25, steps=6, rate=0.5)).findings
    assert words in finding.message


def test_contributions_that_change_a_little_with_every_record_are_named() -> None:
    def at_size(_: Any, __: Any, ___: Any, m: int) -> Any:
        return number_of_records._AtSize(np.array([1 + 2e-5 * m]), np.zeros(1), 4, None, None)

    of_48: Any = SimpleNamespace(
        records=range(48), verdicts=Verdicts(), relation="add-remove", work_left=lambda: True
    )
    equal: Any = SimpleNamespace(varying=False, others=lambda: OthersChange(True, False))
    with mock.patch.object(number_of_records, "_at_size", at_size):
        number_of_records.compare_numbers_of_records(of_48, None, equal, False)
    (finding,) = of_48.verdicts.findings
    assert finding.message.startswith(
        "Gradients are 0.99988 times as large for 42 records as for 48"
    )
    assert finding.cause.startswith("The record changes what other records contribute")


@pytest.mark.slow
def test_an_average_that_leaves_small_batches_out_is_found() -> None:
    def average(state: Any) -> None:
        if state.step == 0 or len(state.taken) >= 8:
            state.kept = [p.detach().clone() for p in state.parameters]

    loop = Loop(after=average, sampling_rate=0.4, steps=6, result=lambda s, x, y: s.kept)
    with mock.patch.object(check_premises_module, "run_equal_records", return_value=None):
        found = report(loop)
    assert "depend on the record" in str(found)


@pytest.mark.slow
def test_a_noise_schedule_is_the_likely_cause() -> None:
    control = SECOND_TESTER["cosine schedule of the noise, but only its mean recorded"]
    finding = report(control.train, TrainingSet.of(control.data())).findings[0]
    assert "a schedule lowers the noise" in finding.cause


# --- what cannot be tested ---


@pytest.mark.slow
def test_untested_premises_are_never_read_as_nothing_found() -> None:
    """Nothing is known about the noise where all copies of a record contribute alike."""

    def nothing_alone(state: Any, each: Any) -> Any:
        factor = float(len(state.y.unique()) > 1)
        return [factor * g for g in loops.clipped_sum(state, each)]

    loop = Loop(total=nothing_alone, sampling_rate=0.4, steps=3)
    result = audit.check(loop, loops.dense(), trials=20, jobs=1)
    assert result.premises is not None
    assert {"noise", "batches"} <= set(result.premises.untested)
    assert result.exit_code == 2
    assert result.words.startswith("not testable: noise, batches")


def test_randomness_that_no_seed_controls_is_not_testable() -> None:
    def noise(state: Any, total: Any) -> Any:
        random = np.random.default_rng(int.from_bytes(os.urandom(8)))
        return [g + torch.from_numpy(random.normal(0, 0.5, g.shape).astype("f")) for g in total]

    found = audit.check(Loop(noise=noise), loops.dense(), trials=20, jobs=1)
    assert found.exit_code == 2
    assert not found
    assert "runs cannot be coupled" in str(found)
    with pytest.raises(ValueError, match=r"not testable: .*: runs cannot be coupled") as error:
        found.raise_if_broken()
    assert str(error.value).count("cannot be coupled") == 1
    assert str(found).count("cannot be coupled") == 1


@pytest.mark.slow
def test_log_lines_of_the_function_are_not_repeated_in_every_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger, right = logging.getLogger("training"), Loop()

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        logger.warning("an empty batch")
        logger.error("%d records", len(records.features))
        return right(records, candidate, seed, watch)

    audit.check(train, loops.dense(), attack=False)
    assert {each.levelname for each in caplog.records} == {"ERROR"}
    logger.warning("afterwards")
    assert caplog.records[-1].message == "afterwards"


@pytest.mark.parametrize("alike", [False, True])
def test_layers_that_take_turns_are_not_testable_but_attacked(alike: bool) -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        layers = nn.Linear(8, 8), nn.Linear(8, 8)
        model = nn.Sequential(*layers) if alike else loops.mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(optimizer, model)
        watch.claim(3.0)
        for step in range(4):
            for number, parameter in enumerate(model.parameters()):
                parameter.requires_grad_((number < 2) == (step % 2 == 0))
                parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
            optimizer.step()
        return model

    result = audit.check(train, DATA, trials=20, jobs=1)
    assert result.exit_code == 2
    assert result.premises is not None
    assert "not the same in every step" in str(result.premises)


def test_an_optimizer_without_steps_is_named_as_the_reason() -> None:
    result = audit.check(Loop(steps=0), loops.dense(), trials=20, jobs=1)
    assert result.exit_code == 2
    assert "not testable: contribution, noise, batches" in result.words
    assert result.premises is not None
    assert "took no step" in result.premises.untested["noise"]


@pytest.mark.slow
def test_a_random_number_of_steps_is_not_accused() -> None:
    def stop(state: Any) -> None:
        state.stop = state.step >= np.random.default_rng(state.seed).integers(8)

    assert report(Loop(steps=8, after=stop)).findings == ()

    def stop_by_noise(state: Any) -> None:
        state.stop = state.step > 2 and float(state.parameters[0].grad.sum()) > 0

    found = report(Loop(steps=8, after=stop_by_noise), seed=2)  # the first run is a longer one
    assert not found.broken
    assert "noise" in found.tested


@pytest.mark.thorough
def test_noise_on_the_weights_instead_of_gradients_is_not_accused() -> None:
    def after(state: Any) -> None:
        with torch.no_grad():
            for p in state.parameters:
                p.add_(0.05 * torch.randn_like(p))

    found = report(Loop(noise=lambda state, total: total, after=after))
    assert not found.broken
    assert found.inconclusive
    assert "noise is added after the step" in found.untested["contribution"]


@pytest.mark.slow
def test_further_accounted_releases_must_be_declared_to_be_tested() -> None:
    control = CORRECT["threshold by a noisy quantile"]

    class Silent:
        def __init__(self, watch: Any) -> None:
            self.watch = watch

        def __call__(self, *watched: Any) -> None:
            self.watch(*watched)

        def release(self, value: Any) -> Any:
            return value

    hidden = report(lambda r, c, s, watch: control.train(r, c, s, Silent(watch)))
    assert not hidden.broken
    assert "watch.release" in hidden.untested["contribution"]
    assert not report(control.train).inconclusive


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("closure", [False, True])
def test_an_optimizer_may_call_the_step_of_its_parent(closure: bool) -> None:
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # torch wraps SGD.step at its first use

    class Projected(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            for p in self.param_groups[0]["params"]:
                p.clamp_(-1.0, 1.0)
            return result

    loop = Loop(optimizer=lambda p, lr: Projected(p, lr=lr), closure=closure)
    found = report(loop)
    assert not found.findings
    assert not found.untested
    result = audit.check(loop, loops.dense(), premises=False, trials=4, jobs=1)
    assert "lambda_a" in result.bounds


def test_a_step_after_one_that_raised_is_recorded() -> None:
    class Refusing(torch.optim.SGD):
        steps = 0

        def step(self, closure: Any = None) -> Any:
            self.steps += 1
            if self.steps == 2:
                raise FloatingPointError
            return super().step(closure)

    parameter = nn.Parameter(torch.zeros(1))
    optimizer = Refusing([parameter], 0.1)
    read, after = [], []
    hooks_of_steps(optimizer, lambda: read.append(1), lambda: after.append(1))
    for _ in range(5):
        parameter.grad = torch.ones(1)
        with contextlib.suppress(FloatingPointError):
            optimizer.step()
    assert len(read) == 5
    assert len(after) == 4


@pytest.mark.slow
def test_a_schedule_may_change_the_threshold_between_steps() -> None:
    schedules: list[Any] = []

    def schedule(model: Any, optimizer: Any, step: int) -> None:
        if step == 0:
            schedules[:] = [ExponentialGradClip(optimizer, gamma=0.8)]
        schedules[0].step()

    for loop in (OpacusLoop(after=schedule), OpacusLoop(after=schedule, sampling_rate=0.5)):
        found = report(loop)
        assert not found.findings
        assert not found.untested


# --- the verdict ---


def test_steps_with_a_closure_are_attacked() -> None:
    result = audit.check(Loop(closure=True), loops.dense(), premises=False, trials=4, jobs=1)
    assert "lambda_a" in result.bounds


@pytest.mark.full_work
def test_a_broken_premise_ends_the_check_and_raises() -> None:
    found = audit.check(Loop(total=broken.raw_momentum), loops.dense())
    assert found.exit_code == 1
    assert found.trials == 0
    assert not found
    assert "no attack was made" in str(found)
    with pytest.raises(PrivacyLeak, match="broken premise: Step 2: one record changes"):
        found.raise_if_broken()
    read = json.loads(found.to_json())
    assert read["exit_code"] == 1
    assert read["premises"]["findings"][0]["premise"] == "contribution"
    assert read["premises"]["findings"][0]["numbers"]["step"] == 2


@pytest.mark.slow
def test_a_correct_loop_is_attacked_and_the_verdict_states_the_power() -> None:
    found = audit.check(Loop(), loops.dense(), trials=40, jobs=1)
    assert found.exit_code == 0
    assert found.raise_if_broken() is found
    assert found.detectable is None or 0 < found.detectable < 1
    assert "no broken premise found" in str(found)
    assert "claims (10.73, 1e-05)" in found.words


def test_detectable_noise_is_found_as_often_as_stated() -> None:
    from audit.loop.attack.attack import detectable_noise

    claim, error, trials = 2.0, 0.01, 400
    share = detectable_noise(claim, 1e-5, trials, error, True)
    mu = audit.accounting.calibrate_mu(claim, 1e-5, "exact") / share
    rng = np.random.default_rng(99)
    estimator = lower_bounds.GaussianCurve(rule=lower_bounds.RankSum())
    scores = [[rng.normal(mean, 1, trials // 2) for mean in (0, mu)] for _ in range(60)]
    hits = [estimator(*pair, 1e-5, 1 - error).epsilon > claim for pair in scores]
    # At 80 % in truth, fewer than 33 of 60 have probability 1e-5; the grid has steps of 0.05.
    assert sum(hits) >= 33


@pytest.mark.slow
def test_too_little_noise_on_sampled_batches_is_found_as_often_as_stated() -> None:
    from audit.loop.attack.attack import detectable_noise

    sigma, rate, steps, error, trials = 2.0, 0.3, 20, 0.01, 2000
    claim = 3.3732  # the cost of these steps at delta 1e-5
    share = detectable_noise(claim, 1e-5, trials, error, False, ((sigma, rate, steps),))
    assert share is not None
    assert share < 0.5
    rng = np.random.default_rng(98)

    def scores(share: float, present: bool) -> Any:
        """The sum of released gradients, in units of C, step by step."""
        noise = share * sigma * rng.normal(size=(trials // 2, steps))
        return ((rng.random(noise.shape) < rate) * present + noise).sum(1)

    def shown(share: float) -> int:
        pairs = [[scores(share, present) for present in (False, True)] for _ in range(60)]
        return sum(lower_bounds.Scan()(*each, 1e-5, 1 - error).epsilon > claim for each in pairs)

    # At 80 % in truth, fewer than 33 of 60 have probability 1e-5; the grid has steps of 0.05.
    assert shown(share) >= 33
    assert shown(share + 0.1) < 55


def test_a_revealing_output_is_found_as_often_as_stated() -> None:
    from audit.loop.attack.attack import detectable_chance

    chance = detectable_chance(1.0, 1e-5, 400, 0.05)
    assert chance is not None
    rng = np.random.default_rng(4)
    outputs = [(rng.random(200) < chance).astype(float) for _ in range(100)]
    bounds = [lower_bounds.Scan()(np.zeros(200), each, 1e-5, 0.95) for each in outputs]
    # At 80 % in truth, fewer than 61 or more than 95 of 100 have probability 1e-5.
    assert 61 <= sum(bound.epsilon > 1.0 for bound in bounds) <= 95
    assert detectable_chance(1.0, 1e-5, 4, 0.05) is None


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (([[math.nan]], [0]), "records must be finite, got 1 features"),
        (([[math.inf]], [0]), "records must be finite"),
        (([[1j]], [0]), "features of records must be real numbers, got complex128"),
        (([["a"]], [0]), "records must hold real numbers, got features of type <U1"),
        (([[1.0]], ["a"]), "records must hold real numbers, got labels"),
        ((["a"], [0]), "records must hold real numbers, got features of type <U1: encode text"),
        (
            {"text": ["a"], "label": [0]},
            "records must hold real numbers, got text of type <U1: encode text",
        ),
        (
            ({"text": ["a"]}, [0]),
            "records must be arrays of numbers, got features as a dict with the keys ['text']",
        ),
    ],
)
def test_records_that_are_no_numbers_are_one_line(records: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        audit.check(lambda *_: 0.0, records, claim=1.0)
    assert "\n" not in str(raised.value)


def _leaves(records: Any, candidate: Any, seed: Any, watch: Any) -> None:
    os._exit(1)


def _dies(records: Any, candidate: Any, seed: Any, watch: Any) -> None:
    os.kill(os.getpid(), 9)


@pytest.mark.thorough
@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("name", "words"), [("_dies", "signal SIGKILL"), ("_leaves", "ended (exit code 1)")]
)
def test_a_process_that_dies_is_never_a_leak(
    name: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from audit import run

    options = ["--train", f"test_differential.{name}", "--records", "broken_trainings.data"]
    assert run.main(options) == 2
    written = capfd.readouterr()
    assert words in written.err
    assert "Traceback" not in written.err + written.out


def test_help_needs_no_function(capsys: pytest.CaptureFixture[str]) -> None:
    from audit import run

    with pytest.raises(SystemExit) as ended:
        run.main(["--train", "--help"])
    assert ended.value.code == 0
    assert "--relation" in capsys.readouterr().out


def test_a_dirac_canary_without_a_watch_is_refused() -> None:
    from canaries import DiracCanary

    with pytest.raises(ValueError, match="never calls watch with its optimizer"):
        audit.check(lambda r, c, s, w: float(s), loops.dense(), DiracCanary(), trials=4, claim=1.0)


def test_significance_is_the_closed_test_of_bonferroni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holm: rejected is what Bonferroni rejects in every set of hypotheses that contains it."""
    monkeypatch.setattr(gc, "collect", lambda: 0)  # statsmodels collects garbage in every call
    rng = np.random.default_rng(9)
    seen = set()
    for size in (1, 2, 3, 5):
        sets = [s for k in range(size) for s in itertools.combinations(range(size), k + 1)]
        for _ in range(40):
            p_values = rng.beta(0.3, 1.0, size) * 0.2
            kept = {i for s in sets if p_values[[*s]].min() > 0.05 / len(s) for i in s}
            found = significant(p_values, 0.05)
            assert set(found) == set(range(size)) - kept
            assert list(p_values[found]) == sorted(p_values[found])
            seen.add(len(found) / size)
    assert {0.0, 0.4, 1.0} <= seen


@pytest.mark.parametrize(("p_value", "reported"), [(0.5, False), (0.05, False), (0.01, True)])
def test_a_test_that_was_not_collected_counts_among_all(p_value: float, reported: bool) -> None:
    """A test that is made only for suspicious numbers could have been made for others."""
    verdicts = Verdicts()
    numbers: dict[str, float | int | str] = {"lag": 2, "correlation": 0.5, "bound": 0.1}
    verdicts.collect(noise.TestResult(p_value * FAMILY_ERROR, "steps", numbers))
    verdicts.judge()
    assert bool(verdicts.findings) == reported


@pytest.mark.slow
def test_steps_that_the_accountant_records_for_some_records_only_are_found() -> None:
    def unless_records_are_large(loop: Any, state: Any) -> Any:
        return [(1.0, 1.0, loop.steps - int(state.x.abs().max() > 50))]

    found = report(Loop(history=unless_records_are_large))
    assert [each.premise for each in found.findings] == ["accountant"]
    assert found.findings[0].message == "The accountant recorded 3 steps; the optimizer took 4."
    assert found.findings[0].cause.startswith("Whether a step is recorded depends on the records")


@pytest.mark.slow
def test_a_contribution_of_several_tensors_above_c_is_not_that_of_clipped_layers() -> None:
    def weighted(state: Any, each: list[Any]) -> list[Any]:
        """Gradients of one class count three times after they were clipped."""
        weights = torch.where(state.y[state.taken] == 2, 3.0, 1.0)
        factor = weights * (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0)
        return [(factor @ g.flatten(1)).reshape(g.shape[1:]) for g in each]

    (found,) = report(Loop(total=weighted)).findings
    assert "clipped to C separately" not in found.cause


@pytest.mark.slow
def test_the_cost_for_replaced_records_is_noted() -> None:
    """Full batches are a Gaussian mechanism: a replaced record moves it twice as far."""
    loop = Loop()
    found = report(loop, relation="replace-one")
    assert not found.broken, found
    mu = 2.0 * math.sqrt(loop.steps) / loop.noise_multiplier
    cost = audit.GaussianMechanism(mu).epsilon(1e-5)
    (note,) = (each for each in found.notes if "replaces another" in each)
    shown = float(note.partition("(")[2].partition(",")[0])
    assert cost <= shown == pytest.approx(cost, rel=1e-3)
    assert not [each for each in report(loop).notes if "replaces another" in each]

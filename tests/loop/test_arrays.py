"""Loops of arrays and declared noisy values: conversions, verdicts, and refusals."""

import importlib.util
import runpy
import sys
import types
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import audit
from audit.errors import InvalidInput
from audit.loop.premises.check_premises import check_premises
from audit.loop.premises.mechanisms import compare_declared_of_steps
from audit.loop.runs.coupled_runs import DeclaredNoise, RecordingWatch
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.released_numbers import numbers_of
from audit.loop.runs.watch import StatedAccountant, Watch
from audit.loop.sources.trees import Tree

pytestmark = pytest.mark.usefixtures("little_work")

EXAMPLES = Path(__file__).parents[2] / "examples"
LABELS = np.arange(18) % 3
FEATURES = np.random.default_rng(0).normal(size=(18, 4)) + 2 * np.eye(3, 4)[LABELS]
NEEDS = {
    "arrays_jax.py": ("jax", "optax"),
    "arrays_jax_privacy.py": ("jax_privacy", "dp_accounting"),
}


def loop(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    scale: float = 1.0,
    ignores: bool = False,
    batches: float = 1.0,
) -> Any:
    """Noisy sums of clipped features; one generator draws batches and noise."""
    random = np.random.default_rng(seed)
    weights = np.zeros((4, 3))
    watch.account(noise_multiplier=2.0, sampling_rate=batches, steps=5)
    for _ in range(5):
        chosen = random.random(len(records)) < batches
        x, y = records.features[chosen], records.labels[chosen]
        each = np.einsum("ni,nj->nij", x, np.tanh(x @ weights) - np.eye(3)[y])
        norms = np.linalg.norm(each.reshape(len(each), 12), axis=1)
        total = np.tensordot(1.0 / np.maximum(norms, 1.0), each, 1)
        noisy = total + 2.0 * scale * random.normal(size=weights.shape)
        used = watch.step(noisy, weights)
        weights = weights - 0.1 * (noisy if ignores else used)
    return weights


def report(train: Any, **options: Any) -> Any:
    return check_premises(train, TrainingSet(FEATURES, LABELS), **options).report


def test_trees_keep_libraries_types_and_order() -> None:
    named = types.SimpleNamespace()
    value = {"b": np.ones((2, 1), np.float16), "a": [np.float32(2.0), None, (3, np.arange(2))]}
    tree = Tree.of(value)
    assert [leaf.name for leaf in tree.leaves] == ["b", "a[0]", "a[2][0]", "a[2][1]"]
    new = tree.with_values([leaf.values + 1.0 for leaf in tree.leaves])
    assert new["b"].dtype == np.float16
    assert isinstance(new["a"][0], np.float32)
    assert new["a"][1] is None
    assert new["a"][2][0] == 4
    assert isinstance(new["a"][2], tuple)
    refused: list[Any] = ["text", {}, np.ones(1) * 1j, [named], np.array([True])]
    for bad in refused:
        with pytest.raises(InvalidInput, match="noisy must"):
            Tree.of(bad)


def test_tensorflow_arrays_are_read_by_their_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        """The part of a tensor of TensorFlow that is used."""

        def __init__(self, values: Any) -> None:
            self.values, self.dtype, self.shape = values, values.dtype, values.shape

        def numpy(self) -> Any:
            return self.values

    Tensor.__module__ = "tensorflow.python.framework.ops"
    library = types.ModuleType("tensorflow")
    library.convert_to_tensor = lambda values, dtype: Tensor(np.asarray(values, dtype))
    monkeypatch.setitem(sys.modules, "tensorflow", library)
    tree = Tree.of([Tensor(np.ones(3, np.float32))])
    (new,) = tree.with_values([np.full(3, 2.0)])
    assert isinstance(new, Tensor)
    assert new.values.tolist() == [2.0] * 3
    assert numbers_of({"w": Tensor(np.ones(2))})["w"].tolist() == [1.0, 1.0]


def test_tensors_and_variables_of_tensorflow() -> None:
    tensorflow = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    half = tensorflow.fill([2], tensorflow.cast(1.5, tensorflow.bfloat16))
    variable = tensorflow.Variable([[0.5, 1.0]])
    numbers = numbers_of({"w": tensorflow.ones(2), "half": half, "v": variable})
    assert {name: value.tolist() for name, value in numbers.items()} == {
        "order of keys": ["w", "half", "v"],
        "w": [1.0, 1.0],
        "half": [1.5, 1.5],
        "v": [[0.5, 1.0]],
    }
    tree = Tree.of({"w": tensorflow.ones(2), "half": half})
    new = tree.with_values([leaf.values + 1 for leaf in tree.leaves])
    assert all(isinstance(value, tensorflow.Tensor) for value in new.values())
    assert new["half"].dtype == tensorflow.bfloat16
    assert new["half"].numpy().tolist() == [2.5, 2.5]


def test_jax_arrays_and_keys_are_released_numbers() -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    numbers = numbers_of(
        {
            "w": jax.numpy.ones(2),
            "half": jax.numpy.full(2, 1.5, jax.numpy.bfloat16),
            "key": jax.random.key(3),
        }
    )
    assert {name: value.tolist() for name, value in numbers.items()} == {
        "order of keys": ["w", "half", "key"],
        "w": [1.0, 1.0],
        "half": [1.5, 1.5],
        "key": [0, 3],
    }
    leaf = Tree.of(jax.numpy.full(2, 1.5, jax.numpy.bfloat16)).leaves[0]
    assert leaf.restore(np.array([2.0, 3.0])).dtype == jax.numpy.bfloat16


def test_correct_loop_of_one_generator_is_not_accused() -> None:
    found = report(partial(loop, batches=0.3))
    assert not found.broken, str(found)
    assert not found.inconclusive, str(found)
    assert 1.8 < found.measured["effective noise multiplier"] < 2.4


def test_too_little_noise_is_found_and_measured() -> None:
    found = report(partial(loop, scale=0.5))
    assert found.findings[0].premise == "noise"
    assert 0.9 < float(found.findings[0].numbers["effective noise multiplier"]) < 1.1


def test_a_loop_that_ignores_the_returned_value_is_told() -> None:
    with pytest.raises(InvalidInput, match=r"write noisy = watch.step\(noisy\)"):
        report(partial(loop, ignores=True))


@pytest.mark.thorough
def test_encoder_measures_correlated_noise() -> None:
    steps, coefficients = 6, np.array([1.0, 0.5])
    encoder = np.eye(steps) + np.diag(np.full(steps - 1, 0.5), -1)
    sensitivity = float(np.linalg.norm(coefficients))  # a record is in one batch

    def train(records: Any, candidate: Any, seed: int, watch: Any, scale: float = 1.0) -> Any:
        random = np.random.default_rng(seed)
        independent = 2.0 * scale * sensitivity * random.normal(size=(steps, 4))
        noise = np.linalg.solve(encoder, independent)
        weights = np.zeros(4)
        watch.account(noise_multiplier=2.0, steps=1)
        for step in range(steps):
            x = records.features[step::steps]
            total = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)).sum(0)
            weights = weights - watch.step(total + noise[step], weights, encoder=encoder)
        return weights

    right = report(train)
    assert not right.broken, str(right)
    # The last batch is in one encoded row alone, so that its records contribute less.
    assert 1.85 < right.measured["effective noise multiplier"] < 2.5
    assert report(partial(train, scale=0.6)).broken


@pytest.mark.slow
def test_traced_steps_find_the_watch_of_the_run() -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    seen: list[Any] = []

    @jax.jit
    def compiled(x: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            noisy = audit.step(row.sum())
            return total + noisy, noisy

        return jax.lax.scan(body, 0.0, x)[0]

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        seen.append(watch)
        return np.asarray(compiled(records.features.astype(np.float32)))

    found = report(train)
    assert found.watched
    assert len(seen) > 2
    assert float(compiled(np.ones((3, 2), np.float32))) == 6.0  # outside of a check


def test_account_takes_events_and_refuses_others() -> None:
    accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    accountant = StatedAccountant()
    step = accounting.PoissonSampledDpEvent(0.1, accounting.GaussianDpEvent(1.5))
    accountant.add_event(accounting.SelfComposedDpEvent(step, 20))
    assert accountant.history == [(1.5, 0.1, 20)]
    with pytest.raises(InvalidInput, match="must compose"):
        accountant.add_event(accounting.LaplaceDpEvent(1.0))
    watch = Watch(None, np.array([True]))
    with pytest.raises(InvalidInput, match="steps must be given"):
        watch.account(noise_multiplier=1.0)
    with pytest.raises(InvalidInput, match="sampling_rate must be in"):
        watch.account(noise_multiplier=1.0, sampling_rate=1.5, steps=3)


def noisy_sum(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    scale: float = 1.0,
    law: str = "laplace",
    ignores: bool = False,
    claim: float = 0.5,
) -> Any:
    """The sum of a feature that is clipped to [-1, 1]."""
    random = np.random.default_rng(seed)
    watch.claim(claim)
    total = np.clip(records.features[:, 0], -1, 1).sum()
    noisy = total + getattr(random, law)(0, 2.0 * scale)
    released = watch.release(noisy, epsilon=0.5)
    return noisy if ignores else released


def test_declared_values() -> None:
    right = report(noisy_sum)
    assert not right.broken, str(right)
    assert not right.inconclusive
    # Known truth: Laplace noise of scale 2 on a sum of sensitivity 1 costs epsilon 0.5.
    assert abs(right.measured["implied epsilon"] - 0.5) < 0.06
    findings = report(partial(noisy_sum, scale=0.5)).findings
    half = next(finding for finding in findings if "measured" in finding.numbers)
    assert abs(float(half.numbers["measured"]) - 1.0) < 0.12
    assert report(partial(noisy_sum, claim=0.2)).findings[-1].premise == "accountant"
    with pytest.raises(InvalidInput, match=r"write value = watch.release\(value\)"):
        report(partial(noisy_sum, ignores=True))


def _symmetric(records: Any, candidate: Any, seed: int, watch: Any, scale: float = 2.0) -> Any:
    """A matrix of products, and the mean of a noise matrix and its transpose."""
    x = records.features / np.maximum(np.linalg.norm(records.features, axis=1, keepdims=True), 1.0)
    noise = scale * np.random.default_rng(seed).normal(size=(4, 4))
    return watch.release(x.T @ x + (noise + noise.T) / 2, noise_multiplier=2.0)


@pytest.mark.slow
def test_coordinates_with_other_scales_are_not_pooled() -> None:
    # Numbers off the diagonal have less noise and change less: the multiplier is 2 in all.
    assert not report(_symmetric).broken
    (finding,) = report(partial(_symmetric, scale=1.2)).findings
    assert finding.premise == "noise"


def _counting_loop(
    records: Any, candidate: Any, seed: int, watch: Any, scale: float = 5.0, rate: float = 1.0
) -> Any:
    """DP-SGD with a noisy count of records in each step, whose noise multiplier is stated."""
    random = np.random.default_rng(seed)
    watch.account(noise_multiplier=1.0, sampling_rate=rate, steps=3)
    params = np.zeros(4)
    for _ in range(3):
        x = records.features[random.random(len(records.features)) < rate]
        large = float((np.linalg.norm(x, axis=1) > 2.0).sum())
        count = watch.release(large + scale * random.normal(), noise_multiplier=5.0)
        each = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
        noisy = watch.step(each.sum(0) + random.normal(size=4), params)
        params = params - 0.01 * noisy * (1.0 if count > 0 else 0.5)
    return params


@pytest.mark.thorough
@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_the_noise_of_values_that_a_loop_declares_is_tested(rate: float) -> None:
    assert not report(partial(_counting_loop, rate=rate)).broken
    found = report(partial(_counting_loop, scale=0.2, rate=rate)).findings
    assert found[0].message.startswith("Declared value")


@pytest.mark.parametrize(("first", "second"), [(9, 12), (12, 9), (5, 12), (12, 0)])
def test_declared_values_whose_shape_depends_on_the_records_are_compared_while_equal(
    first: int, second: int
) -> None:
    rng = np.random.default_rng(5)

    def rows(count: int, change: float) -> list[list[DeclaredNoise]]:
        shapes = [3 if i < count else 2 for i in range(12)]
        return [[DeclaredNoise(change + rng.normal(size=d), 1.0, None)] for d in shapes]

    runs, exchanged = rows(first, 0.0), rows(second, 100.0)
    results: list[Any] = []
    verdicts = SimpleNamespace(
        findings=[], notes=[], collect=lambda test, words: results.append(test)
    )
    base = SimpleNamespace(declared=runs[0])
    checked: Any = SimpleNamespace(base=base, relation="replace-one", verdicts=verdicts)
    compare_declared_of_steps(checked, runs, exchanged)
    assert [test.p_value < 1e-9 for test in results] == ([True] if first > 8 and second else [])


def test_declared_arrays_of_jax_are_kept() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    watch = RecordingWatch(None, None)
    assert watch.release(jnp.ones(3), noise_multiplier=1.0).tolist() == [1.0] * 3


@pytest.mark.thorough
def test_choices_are_not_additive() -> None:
    def choose(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        counts = np.bincount(records.labels, minlength=3)
        gumbel = np.random.default_rng(seed).gumbel(size=3)
        return watch.release(int(np.argmax(counts + 2 * gumbel)), epsilon=1.0)

    found = report(choose)
    assert not found.broken, str(found)
    assert found.inconclusive
    assert "exponential mechanism" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "arrays_numpy.py",
        "arrays_jax.py",
        "arrays_jax_privacy.py",
        "noisy_histogram.py",
        "noisy_sums_diffprivlib.py",
    ],
)
def test_examples(name: str) -> None:
    for library in NEEDS.get(name, ()):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    try:
        example = runpy.run_path(str(EXAMPLES / name))
    except ImportError as error:  # diffprivlib 0.6.6 does not fit scikit-learn 1.9
        pytest.skip(f"the example's library cannot be imported: {error}")
    right = next(example[key] for key in ("train", "histogram", "squares") if key in example)
    data = TrainingSet.of(example["DATA"])
    assert not check_premises(right, data).report.broken
    assert check_premises(example["broken"], data).report.broken

"""Values that a function keeps from its first call: runs begin as the first one did."""

import functools
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

import audit
from audit.loop.runs.kept_values import KeptValues

pytestmark = pytest.mark.usefixtures("little_work")

SCALES: dict[str, Any] = {}
COUNTS: list[int] = []
FIRST: Any = None
BUFFER = np.zeros(3)


def records() -> tuple[Any, Any]:
    generator = np.random.default_rng(3)
    return generator.normal(size=(30, 3)), np.arange(30) % 2


def trained(x: Any, seed: int, watch: Any) -> Any:
    """Correct steps on features, without an accountant of their scale."""
    generator, weights = np.random.default_rng(seed), np.zeros(3)
    watch.account(noise_multiplier=2.0, sampling_rate=1.0, steps=3)
    for _ in range(3):
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        clipped = x / np.maximum(lengths, 1.0)
        noisy = watch.step(clipped.sum(axis=0) + 2.0 * generator.normal(size=3), weights)
        weights = weights - 0.01 * noisy
    return weights


def with_dictionary(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    if "scale" not in SCALES:
        SCALES["scale"] = data.features.std(axis=0)
    return trained(0.1 * data.features / SCALES["scale"], seed, watch)


def with_global(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    global FIRST
    if FIRST is None:
        FIRST = data.features.std(axis=0)
    return trained(0.1 * data.features / FIRST, seed, watch)


def with_buffer(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    if not BUFFER.any():
        BUFFER[:] = data.features.std(axis=0)
    return trained(0.1 * data.features / BUFFER, seed, watch)


def with_attribute(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    if not hasattr(with_attribute, "scale"):
        with_attribute.scale = data.features.std(axis=0)  # type: ignore[attr-defined]
    return trained(0.1 * data.features / with_attribute.scale, seed, watch)  # type: ignore[attr-defined]


def with_closure() -> Callable[..., Any]:
    scale: list[Any] = []

    def train(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
        if not scale:
            scale.append(data.features.std(axis=0))
        return trained(0.1 * data.features / scale[0], seed, watch)

    return train


class Trainer:
    """A function with a state."""

    scale: Any = None

    def __call__(self, data: Any, candidate: Any, seed: int, watch: Any) -> Any:
        if self.scale is None:
            self.scale = data.features.std(axis=0)
        return trained(0.1 * data.features / self.scale, seed, watch)


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("scale",)


NAMES, SLOTTED, QUEUE = SimpleNamespace(), Slotted(), deque[Any](maxlen=1)
SCALER, NORM = StandardScaler(), nn.BatchNorm1d(3, momentum=1.0, affine=False)
SPARSE = torch.eye(5).to_sparse()


def with_namespace(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    if not hasattr(NAMES, "scale"):
        NAMES.scale = data.features.std(axis=0)
    return trained(0.1 * data.features / NAMES.scale, seed, watch)


def with_slots(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    if not hasattr(SLOTTED, "scale"):
        SLOTTED.scale = data.features.std(axis=0)
    return trained(0.1 * data.features / SLOTTED.scale, seed, watch)


def with_queue(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    if not QUEUE:
        QUEUE.append(data.features.std(axis=0))
    return trained(0.1 * data.features / QUEUE[0], seed, watch)


def with_scaler(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    if not hasattr(SCALER, "scale_"):
        SCALER.fit(data.features)
    return trained(0.1 * data.features / SCALER.scale_, seed, watch)


def with_normalisation(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    if NORM.num_batches_tracked == 0:
        NORM(torch.as_tensor(data.features, dtype=torch.float32))
    return trained(0.1 * NORM.eval()(torch.as_tensor(data.features).float()).numpy(), seed, watch)


def keeping(statistic: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function that divides by a statistic of the records of its first call."""
    values: dict[Any, Any] = dict.fromkeys(range(2_500))

    def train(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
        if "scale" not in values:
            values["scale"] = np.asarray(statistic(data.features)).max()
        return trained(0.3 * data.features / values["scale"], seed, watch)

    return train


@functools.cache
def public_scale() -> Any:
    return np.ones(3)


def with_public_values(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
    COUNTS.append(seed)
    return trained(0.1 * data.features / public_scale(), seed, watch)


@pytest.fixture(autouse=True)
def nothing_is_kept() -> None:
    """Every test begins as a new process does."""
    global FIRST
    FIRST = None
    SCALES.clear()
    COUNTS.clear()
    BUFFER[:] = 0.0
    vars(with_attribute).pop("scale", None)
    vars(NAMES).clear()
    QUEUE.clear()
    NORM.reset_running_stats()
    if hasattr(SLOTTED, "scale"):
        del SLOTTED.scale


KEEPING = {
    "dictionary": with_dictionary,
    "global": with_global,
    "buffer": with_buffer,
    "attribute": with_attribute,
    "closure": with_closure(),
    "object": Trainer(),
    "namespace": with_namespace,
    "slots": with_slots,
    "queue": with_queue,
    "estimator": with_scaler,
    "normalisation": with_normalisation,
    "largest value": keeping(np.max),
}


@pytest.mark.parametrize("train", KEEPING.values(), ids=KEEPING)
def test_a_statistic_of_the_first_call_is_found(train: Any) -> None:
    checked = audit.check(train, records(), attack=False)
    assert not checked, str(checked)
    assert "keeps values between its calls" in str(checked)
    # The scale that another record gives is not that of the records.
    assert checked.exit_code == 1


@pytest.mark.parametrize(
    "statistic",
    [lambda x: np.quantile(np.abs(x), 0.9), lambda x: np.linalg.norm(x, axis=1).min()],
    ids=["quantile", "smallest norm"],
)
def test_values_that_few_records_move_are_restored(statistic: Callable[[Any], Any]) -> None:
    # The noise hides how far one record moves them; without the restoration nothing moves them.
    checked = audit.check(keeping(statistic), records(), attack=False)
    assert "keeps values between its calls" in str(checked)


def test_public_values_that_are_kept_are_no_leak() -> None:
    checked = audit.check(with_public_values, records(), attack=False)
    assert checked.exit_code == 0, str(checked)
    assert "keeps values" not in str(checked)


def test_everything_that_was_kept_is_restored() -> None:
    functions = [with_dictionary, with_global, with_buffer, with_attribute, Trainer()]

    class Silent:
        def account(self, **_: Any) -> None: ...

        def step(self, noisy: Any, _: Any) -> Any:
            return noisy

    class Records:
        features = records()[0]

    for function in functions:
        kept = KeptValues(function)
        assert kept.changed() == []
        function(Records(), None, 0, Silent())
        assert kept.changed()
        kept.restore()
        assert kept.changed() == []
    assert "scale" not in SCALES
    assert FIRST is None
    assert not BUFFER.any()
    assert not hasattr(with_attribute, "scale")

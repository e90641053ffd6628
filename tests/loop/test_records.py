"""Records in other forms than a pair of arrays, and functions that ignore them."""

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.errors import InvalidInput
from audit.loop.runs.records import TrainingSet
from audit.loop.sources.records import adapt_records

pytestmark = pytest.mark.usefixtures("little_work")

FEATURES = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
LABELS = np.arange(12) % 2


def keep(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    return records


class Items:
    """A data set of dictionaries."""

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> Any:
        return {"pixels": torch.from_numpy(FEATURES[index]), "label": int(LABELS[index])}


@pytest.mark.parametrize(
    "records",
    [
        (FEATURES, LABELS),
        {"x": FEATURES, "y": LABELS},
        TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS)),
        DataLoader(TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS)), 4),
        Items(),
        [(x, int(y)) for x, y in zip(FEATURES, LABELS, strict=True)],
    ],
)
def test_forms_hold_the_same_records(records: Any) -> None:
    train, pair, _ = adapt_records(keep, records, None)
    training_set = TrainingSet.of(pair)
    assert train is keep
    assert np.array_equal(training_set.features, FEATURES)
    assert np.array_equal(training_set.labels, LABELS)


def test_missing_labels_are_zero() -> None:
    for records in (FEATURES, (FEATURES, None), TensorDataset(torch.from_numpy(FEATURES))):
        _, pair, _ = adapt_records(keep, records, None)
        assert np.array_equal(TrainingSet.of(pair).labels, np.zeros(12))


def test_targets_of_several_numbers_come_back() -> None:
    targets = np.arange(24.0).reshape(12, 2)
    train, pair, canary = adapt_records(keep, (FEATURES, targets), (FEATURES[0], targets[3]))
    seen = train(TrainingSet.of(pair), None, 0, None)
    assert np.array_equal(seen.features, FEATURES)
    assert seen.features.dtype == np.float32
    assert np.array_equal(seen.labels, targets)
    assert np.array_equal(canary[0], [*FEATURES[0], 6.0, 7.0])


class _Keyed:
    """Items by name and not by number."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, name: str) -> Any:
        return {"first": 0, "second": 1}[name]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({"a": FEATURES, "b": FEATURES, "y": LABELS}, "one array of features"),
        ([(FEATURES[0], 1, 2)] * 3, "got 3 parts"),
        ([(np.zeros(i + 1), 0) for i in range(3)], "equal shapes"),
        (iter([1, 2]), "a length and an index"),
        ({"x": ["a", "b"], "y": [0, 1]}, "encode text"),
        (pandas.DataFrame({"x": [1.0, 2.0], "label": [0, 1]}), "which columns are features"),
        (None, "got None"),
        (_Keyed(), "an item for each number from 0"),
    ],
)
def test_other_forms_are_refused_with_advice(records: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        adapt_records(keep, records, None)


@pytest.mark.slow
def test_regression_with_two_targets_is_tested() -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any, clip: bool = True) -> Any:
        random = np.random.default_rng(seed)
        weights = np.zeros((3, 2))
        watch.account(noise_multiplier=2.0, steps=4)
        for _ in range(4):
            errors = records.features @ weights - records.labels
            each = np.einsum("ni,nj->nij", records.features, errors)
            norm = np.linalg.norm(each.reshape(len(each), -1), axis=1)
            factors = 1 / np.maximum(norm, 1.0) if clip else np.full(len(each), 0.1)
            noisy = np.tensordot(factors, each, 1) + 2.0 * random.normal(size=(3, 2))
            weights = weights - 0.1 * watch.step(noisy, weights)
        return weights

    targets = np.random.default_rng(1).normal(size=(12, 2))
    premises = audit.check(train, (FEATURES, targets), trials=2).premises
    assert premises is not None
    assert not premises.broken
    assert not premises.inconclusive

    def unclipped(*arguments: Any) -> Any:
        return train(*arguments, clip=False)

    assert audit.check(lambda r, c, s, w: unclipped(r, c, s, w), (FEATURES, targets)).broken


@pytest.mark.slow
def test_a_function_that_ignores_its_records_is_told() -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watch(optimizer, model)
        watch.claim(1.0)
        for _ in range(3):
            optimizer.zero_grad()
            scores = model(torch.from_numpy(FEATURES))
            nn.functional.cross_entropy(scores, torch.from_numpy(LABELS)).backward()
            optimizer.step()
        return model

    result = audit.check(train, (FEATURES, LABELS), trials=20)
    assert result.exit_code == 2
    assert "use records.features and records.labels" in str(result)

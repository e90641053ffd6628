"""Records in the forms that people have: loaders, data sets, dictionaries, vector targets.

The test exchanges single records, which are rows of an array of features and one number as a label.
Other forms are converted to it, and the training function gets records in which features and labels
have their own shapes again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit import checks
from audit.errors import InvalidInput
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.training_runs import Train
from audit.loop.sources.trees import as_numbers

MAX_ITEMS = 20_000
"""Largest number of records that are read from a data set or a loader."""

_ADVICE = "pass a pair (features, labels) of arrays"


@dataclass(frozen=True)
class ShapedRecords:
    """Records as a training function gets them.

    Attributes:
        features: [n, ...].
        labels: [n, ...], of any shape.
    """

    features: Any
    labels: Any

    def __len__(self) -> int:
        """Number of records."""
        return len(self.features)


@dataclass(frozen=True)
class _WithVectorTargets:
    """A training function whose records have several numbers as a target."""

    train: Train
    shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    types: tuple[Any, Any]

    def __call__(self, records: TrainingSet, candidate: Any, seed: int, watch: Any) -> Any:
        count = math.prod(self.shape)
        rows = records.features
        features = rows[:, :count].reshape(len(rows), *self.shape).astype(self.types[0])
        targets = rows[:, count:].reshape(len(rows), *self.target_shape).astype(self.types[1])
        shaped: Any = ShapedRecords(features, targets)
        return self.train(shaped, candidate, seed, watch)


def adapt_records(train: Train, records: Any, canary: Any) -> tuple[Train, Any, Any]:
    """Converts records to a pair of arrays, and the function and the canary with them.

    Args:
        train: the training function.
        records: a pair (features, labels); features alone; a dictionary of two arrays; a torch
            `Dataset` or `DataLoader` (its data set is read, not its batches); labels may be
            missing (None) or have several numbers each.
        canary: the canary of the caller, or None.

    Returns:
        The function, the records and the canary in the form of `TrainingSet`. If labels are
        missing, all are 0.

    Raises:
        InvalidInput: the records are of another form, with advice.

    Example:
        >>> def train(records, candidate, seed, watch):
        ...     return records.labels.shape
        >>> targets = np.zeros((4, 2))
        >>> changed, pair, _ = adapt_records(train, (np.ones((4, 3)), targets), None)
        >>> pair[0].shape, changed(TrainingSet(*pair), None, 0, None)
        ((4, 5), (4, 2))
    """
    if isinstance(records, TrainingSet) or hasattr(records, "features"):
        return train, records, canary
    features, labels = _features_and_labels(records)
    if labels is None:
        array = _array("features", features)
        if isinstance(canary, Sequence) and len(canary) == 2 and canary[1] is None:
            canary = (canary[0], 0)
        return train, (array, np.zeros(len(array), np.int64)), canary
    targets = _array("labels", labels)
    if targets.ndim < 2:
        return train, (features, labels), canary
    array = _array("features", features)
    if len(array) != len(targets) or array.dtype.kind not in "fiub":
        return train, (features, labels), canary  # refused with the usual message
    types = (array.dtype, targets.dtype)
    changed = _WithVectorTargets(train, array.shape[1:], targets.shape[1:], types)
    return changed, *_joined(array, targets, canary)


def _joined(features: Any, targets: Any, canary: Any) -> tuple[Any, Any]:
    """Features and targets as the numbers of one row, and the canary likewise."""
    kind = np.result_type(features.dtype, targets.dtype, np.float32)

    def rows(x: Any, y: Any) -> Any:
        return np.concatenate([x.reshape(len(x), -1), y.reshape(len(y), -1)], 1).astype(kind)

    if isinstance(canary, Sequence) and len(canary) == 2:
        single = (np.asarray(checks.detached(value))[None] for value in canary)
        canary = (rows(*single)[0], 0)
    return (rows(features, targets), np.zeros(len(features), np.int64)), canary


def _features_and_labels(records: Any) -> tuple[Any, Any]:
    """The two parts of the records; labels are None where there are none."""
    if isinstance(records, Mapping):
        return _of_mapping(records)
    if isinstance(records, list | tuple) and len(records) == 2:
        return records[0], records[1]
    if hasattr(records, "columns") and hasattr(records, "to_numpy"):
        raise InvalidInput(
            "records must say which columns are features, got a table: pass the pair "
            '(table.drop(columns="label").to_numpy(), table["label"].to_numpy())'
        )
    if records is None:
        raise InvalidInput(f"records must be the data of the function, got None: {_ADVICE}")
    dataset = records
    if hasattr(records, "dataset") and hasattr(records, "batch_size"):
        dataset = records.dataset
    if as_numbers(records) is not None:
        return records, None
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        if isinstance(dataset, str | bytes):
            raise InvalidInput(f"records must be arrays of numbers, got text: {_ADVICE}")
        return _of_items(dataset)
    if hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__"):
        raise InvalidInput(
            f"records must have a length and an index, got {checks.kind_of(dataset)}: {_ADVICE}"
        )
    return records, ()  # refused with the usual message


def _of_items(dataset: Any) -> tuple[Any, Any]:
    """Features and labels of a data set whose items are records."""
    count = len(dataset)
    if not 1 <= count <= MAX_ITEMS:
        raise InvalidInput(
            f"records must hold between 1 and {MAX_ITEMS:,} items, got {count:,}: pass a part of "
            "them, such as torch.utils.data.Subset(dataset, range(200))"
        )
    try:
        items = [dataset[i] for i in range(count)]
    except (LookupError, TypeError) as error:
        raise InvalidInput(
            f"records must give an item for each number from 0, got {type(error).__name__} from "
            f"{checks.kind_of(dataset)}: {_ADVICE}"
        ) from error
    first = items[0]
    if isinstance(first, Mapping):
        return _of_mapping({key: [item[key] for item in items] for key in first})
    if isinstance(first, list | tuple):
        if len(first) not in (1, 2):
            raise InvalidInput(
                f"records must have items (features, label), got {len(first)} parts: {_ADVICE}"
            )
        names = ("features", "labels")
        columns = [
            _array(name, [item[i] for item in items]) for i, name in enumerate(names[: len(first)])
        ]
        return columns[0], columns[1] if len(columns) == 2 else None
    return items, None


def _of_mapping(records: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Features and labels of a dictionary of arrays: the label has one number per record."""
    arrays = {key: _array(str(key), value) for key, value in records.items()}
    scalars = [key for key, array in arrays.items() if array.ndim == 1]
    multidimensional = [key for key, array in arrays.items() if array.ndim > 1]
    if len(arrays) == 1:
        return next(iter(arrays.values())), None
    if len(scalars) == 1 and len(multidimensional) == 1:
        return arrays[multidimensional[0]], arrays[scalars[0]]
    shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
    raise InvalidInput(
        "records must have one array of features and one of labels (one number each), got "
        f"{shapes}: {_ADVICE}, and let train join them with the others"
    )


def _array(name: str, values: Any) -> Any:
    try:
        if isinstance(values, list | tuple):
            values = [
                item if (converted := as_numbers(item)) is None else converted for item in values
            ]
        array = np.asarray(checks.detached(values))
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            f"records must have items of equal shapes, got {name} that differ: {error}"
        ) from None
    if array.dtype.kind not in "fiub" and array.dtype.kind != "c":
        raise InvalidInput(
            f"records must hold real numbers, got {name} of type {array.dtype}: encode text and "
            "categories as whole numbers, and images as arrays (ToTensor)"
        )
    return array

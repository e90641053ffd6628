"""Exchanged records in the arrays from which a script's data set reads.

The loader of a run gets other records. A script may also read its arrays past the loader: for the
mean of `data.features`, or for logits of the tensor that it put into a `TensorDataset`. So the rows
of these arrays are exchanged, too, in the runs whose saved files are compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from audit.loop.runs.records import TrainingSet
from audit.loop.sources.script_items import ItemForm

_MAX_DEPTH = 4


@dataclass
class StoredRecords:
    """The rows of a data set's arrays that hold the records of the test.

    Args:
        form: the records, as items of the data set.
        dataset: the data set of the script's loader.
        places: the place of each record in the data set.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
        >>> form = ItemForm.of([data[0], data[2]])
        >>> rows = StoredRecords(form, data, [0, 2])
        >>> rows.exchange(TrainingSet(np.full((2, 2), 7.0), np.array([1, 1])))
        >>> data.tensors[0].tolist()
        [[7.0, 7.0], [0.0, 0.0], [7.0, 7.0]]
        >>> rows.restore()
        >>> data.tensors[0].sum().item()
        0.0
    """

    form: ItemForm
    dataset: Any
    places: Sequence[int]
    _before: list[tuple[Any, int, Any]] = field(default_factory=list)

    def exchange(self, records: TrainingSet) -> None:
        """Writes the records into the arrays that hold the features or the labels.

        An array is one of them if it holds the same numbers as the items, in the same order.
        """
        original = self.form.records()
        exchanged = [(original.features, records.features)]
        if self.form.label is not None:
            exchanged.append((original.labels, records.labels))
        for array, rows in _arrays_of(self.dataset, list(self.places), 0):
            for old, new in exchanged:
                if _holds(array, rows, old):
                    self._write(array, rows, new)

    def restore(self) -> None:
        """Writes back what the arrays held: a module that stays imported may keep them."""
        for array, row, value in reversed(self._before):
            with torch.no_grad():
                array[row] = value
        self._before.clear()

    def _write(self, array: Any, rows: Sequence[int], values: np.ndarray) -> None:
        for row, value in zip(rows, values, strict=False):
            new: Any = np.asarray(value).reshape(tuple(array.shape[1:]))
            if isinstance(array, torch.Tensor):
                before: Any = array[row].detach().clone()
                new = torch.as_tensor(new).to(array.dtype)
            else:
                before, new = np.array(array[row]), new.astype(array.dtype)
            self._before.append((array, row, before))
            with torch.no_grad():
                array[row] = new


def _arrays_of(dataset: Any, rows: list[int], depth: int) -> Iterator[tuple[Any, list[int]]]:
    """Arrays with one row for each item of a data set, and the rows of the records."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(dataset, torch.utils.data.Subset):
        below = [int(dataset.indices[row]) for row in rows]
        yield from _arrays_of(dataset.dataset, below, depth + 1)
        return
    count = len(dataset) if hasattr(dataset, "__len__") else 0
    for value in getattr(dataset, "__dict__", {}).values():
        for array in value if isinstance(value, list | tuple) and len(value) < 8 else [value]:
            if _is_writable(array) and len(array) == count:
                yield array, rows


def _is_writable(array: Any) -> bool:
    if isinstance(array, torch.Tensor):
        # Rows of an expanded tensor share their memory.
        return array.ndim > 0 and array.stride(0) > 0 and not array.is_inference()
    return isinstance(array, np.ndarray) and array.ndim > 0 and bool(array.flags.writeable)


def _holds(array: Any, rows: Sequence[int], values: np.ndarray) -> bool:
    """Whether the rows of an array hold the values, up to their shape and type."""
    stored = array[list(rows)]
    stored = stored.detach().cpu().numpy() if isinstance(stored, torch.Tensor) else stored
    if stored.dtype.kind not in "fiub" or stored.size != values.size:
        return False
    return bool(np.array_equal(stored.reshape(values.shape), values))

"""Records of a script: items of its data set, and the arrays from which the data set reads.

Items are taken apart and put together again. The loader of a run gets other records. A script may
also read its arrays past the loader: for the mean of `data.features`, or for logits of the tensor
that it put into a `TensorDataset`. So the rows of these arrays are exchanged, too, in runs whose
saved files are compared.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from audit.errors import InvalidInput
from audit.loop.runs.records import TrainingSet
from audit.loop.sources.trees import as_numbers

_MAX_DEPTH = 8
Path = tuple[Any, ...]
_MAX_DEPTH_OF_ARRAYS = 4
# Of this many rows without a record of the test, one keeps what it holds.
_KEPT_ROW = 8
# Arrays of more bytes keep the rows that hold no record of the test.
_MAX_BYTES_OF_ARRAY = 2e8
# Features of more numbers are not looked for among the columns of a data frame.
_MAX_COLUMNS = 256


@dataclass(frozen=True)
class ItemForm:
    """How a record is made of an item of the script's data set.

    Attributes:
        items: the items that became records.
        features: path of the part that is exchanged as features.
        label: path of the part that is exchanged as label, or None.
        length: number of entries to which features are padded, or None.
        words: all words of items that hold texts in place of arrays, whose features are places in
            this list, from 1; empty for arrays.
    """

    items: Sequence[Any]
    features: Path
    label: Path | None
    length: int | None
    words: Sequence[str] = ()

    @classmethod
    def of(cls, items: Sequence[Any]) -> "ItemForm":
        """Chooses the parts of the items that are exchanged.

        The features are the part with the most numbers; among whole numbers, the one with the most
        different values, so that a mask is not taken for tokens. The label is a part with one
        number that is not the same for all items. Of items without arrays, the features are the
        words of the longest text.

        Raises:
            InvalidInput: the items hold neither arrays of numbers nor texts.
        """
        leaves = [dict(_leaves(item, ())) for item in items]
        paths = [path for path in leaves[0] if all(path in item_leaves for item_leaves in leaves)]
        arrays = {path: [item_leaves[path] for item_leaves in leaves] for path in paths}
        wide = {path: column for path, column in arrays.items() if max(a.size for a in column) > 1}
        if not wide:
            return cls._of_texts(items, arrays)

        def rank(path: Path) -> tuple[bool, int, int]:
            column = wide[path]
            values = len(np.unique(np.concatenate([a.ravel() for a in column])))
            real = column[0].dtype.kind == "f"
            return real, max(a.size for a in column) if real else 0, values

        features = max(wide, key=rank)
        label = _label_of(arrays, features)
        shapes = {a.shape for a in wide[features]}
        length = None
        if len(shapes) > 1:
            if any(len(shape) != 1 for shape in shapes):
                raise InvalidInput(
                    f"the data set must have items of equal shape, got {sorted(shapes)[:3]}: crop "
                    "or resize them in its transforms"
                )
            length = max(shape[0] for shape in shapes)
        return cls(items, features, label, length)

    @classmethod
    def _of_texts(cls, items: Sequence[Any], arrays: Mapping[Path, list[Any]]) -> "ItemForm":
        """The form of items that hold texts, which the script turns into numbers later."""
        by_item = [dict(_texts(item, ())) for item in items]
        paths = [path for path in by_item[0] if all(path in texts for texts in by_item)]
        lengths = {path: sum(len(texts[path].split()) for texts in by_item) for path in paths}
        features = max(lengths, key=lambda path: lengths[path], default=None)
        if features is None or lengths[features] <= len(items):
            raise InvalidInput(
                "the data set must have items with an array of numbers or a text, got "
                f"{type(items[0]).__name__} without any: apply the transforms in the data set"
            )
        columns = [texts[features].split() for texts in by_item]
        words = sorted({word for column in columns for word in column})
        length = max(map(len, columns))
        return cls(items, features, _label_of(arrays, features), length, words)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The place of each word in `words`, from 1."""
        return {word: place for place, word in enumerate(self.words, 1)}

    @cached_property
    def _own_texts(self) -> dict[tuple[int, ...], str]:
        """The texts of the items by the places of their words; the first one of several."""
        texts: dict[tuple[int, ...], str] = {}
        for item in self.items:
            text = dict(_texts(item, ()))[self.features]
            texts.setdefault(tuple(self._places(text)), text)
        return texts

    def _places(self, text: str) -> Any:
        """The places of the words of a text in `words`, padded."""
        numbers = [self._numbers[word] for word in text.split()]
        return self._padded(np.array(numbers, dtype=np.int64))

    def _text_of(self, places: Any) -> str:
        """The text of an item with these words, or else the words with blanks between them."""
        own = self._own_texts.get(tuple(places))
        if own is not None:
            return own
        return " ".join(self.words[int(place) - 1] for place in places if place > 0)

    def _padded(self, values: Any) -> Any:
        return values if self.length is None else np.pad(values, (0, self.length - len(values)))

    def records(self) -> TrainingSet:
        """The records; labels are 0 where there are none."""
        features, labels = [], []
        for item in self.items:
            leaves = dict(_leaves(item, ()))
            if self.words:
                features.append(self._places(dict(_texts(item, ()))[self.features]))
            else:
                features.append(self._padded(leaves[self.features]))
            labels.append(0 if self.label is None else leaves[self.label].item())
        return TrainingSet(np.stack(features), np.asarray(labels))

    def items_of(self, records: TrainingSet) -> list[Any]:
        """Items that hold these records; all other parts are those of the script's items."""
        items = []
        for i, (features, label) in enumerate(zip(records.features, records.labels, strict=True)):
            item = self.items[i % len(self.items)]
            value = self._text_of(features) if self.words else features
            item = _with(item, self.features, value)
            if self.label is not None:
                item = _with(item, self.label, label)
            items.append(item)
        return items

    @property
    def unchanged_parts(self) -> list[str]:
        """Names of the parts of an item that are never exchanged."""
        item = self.items[0]
        paths = [path for path, _ in [*_leaves(item, ()), *_texts(item, ())]]
        return [_name(path) for path in paths if path not in (self.features, self.label)]


def _name(path: Path) -> str:
    return ".".join(map(str, path)) or "item"


def _leaves(item: Any, path: Path) -> list[tuple[Path, Any]]:
    if len(path) > _MAX_DEPTH:
        return []
    if isinstance(item, bool | int | float):
        return [(path, np.asarray(item))]
    numbers = as_numbers(item)
    if numbers is not None:
        return [(path, numbers)] if numbers.dtype.kind in "fiub" else []
    if isinstance(item, Mapping):
        return [leaf for key, member in item.items() for leaf in _leaves(member, (*path, key))]
    if isinstance(item, list | tuple):
        if isinstance(item, list) and item and all(isinstance(v, int | float) for v in item):
            return [(path, np.asarray(item))]
        return [leaf for key, member in enumerate(item) for leaf in _leaves(member, (*path, key))]
    return []


def _texts(item: Any, path: Path) -> list[tuple[Path, str]]:
    if len(path) > _MAX_DEPTH:
        return []
    if isinstance(item, str):
        return [(path, item)]
    if isinstance(item, Mapping):
        return [leaf for key, member in item.items() for leaf in _texts(member, (*path, key))]
    if isinstance(item, list | tuple):
        return [leaf for key, member in enumerate(item) for leaf in _texts(member, (*path, key))]
    return []


def _label_of(arrays: Mapping[Path, list[Any]], features: Path) -> Path | None:
    """The first part with one number, if possible one that is not the same for all items."""
    single = [p for p, column in arrays.items() if p != features and column[0].size == 1]
    varied = [p for p in single if len({a.item() for a in arrays[p]}) > 1]
    return next(iter([*varied, *single]), None)


def _with(item: Any, path: Path, values: Any) -> Any:
    """A copy of an item with another value at a path."""
    if not path:
        return _like(item, values)
    key, *below = path
    if isinstance(item, Mapping):
        new = copy.copy(item)
        new[key] = _with(item[key], tuple(below), values)  # type: ignore[index]
        return new
    members = list(item)
    members[key] = _with(members[key], tuple(below), values)
    if hasattr(item, "_fields"):
        return type(item)(*members)
    return type(item)(members)


def _like(old: Any, values: Any) -> Any:
    """The values in the type of an old part."""
    if isinstance(old, str):
        return str(values)
    if isinstance(old, bool | int | float):
        return type(old)(np.asarray(values).item())
    new, shape = np.asarray(values), np.shape(old)
    # A label may be a column of one number, which a scalar would broadcast over a batch.
    new = new.reshape(shape) if new.size == math.prod(shape) else new
    if isinstance(old, list):
        return new.tolist()
    if hasattr(old, "detach"):
        import torch

        return torch.tensor(new, dtype=old.dtype)
    new = new.astype(np.asarray(old).dtype)
    # An array without dimensions has no hash, with which a script may look up its class.
    return new[()] if isinstance(old, np.generic) else new


@dataclass(frozen=True)
class _Part:
    """The features, one column of them, or the labels."""

    is_label: bool = False
    column: int | None = None

    def of(self, records: TrainingSet) -> Any:
        """This part of records."""
        if self.is_label:
            return records.labels
        return records.features if self.column is None else records.features[:, self.column]


@dataclass(frozen=True)
class _FrameColumn:
    """A column of a data frame of pandas, as an array whose rows can be written."""

    frame: Any
    position: int

    @property
    def dtype(self) -> Any:
        return self.frame.dtypes.iloc[self.position]

    @property
    def shape(self) -> tuple[int]:
        return (len(self.frame),)

    @property
    def nbytes(self) -> int:
        return len(self.frame) * int(self.dtype.itemsize)

    def __getitem__(self, rows: list[int]) -> Any:
        return self.frame.iloc[rows, self.position].to_numpy(copy=True)

    def __setitem__(self, rows: list[int], values: Any) -> None:
        self.frame.iloc[rows, self.position] = values


@dataclass
class StoredRecords:
    """The rows of a data set's arrays that hold the records of the test.

    Most other rows get these records again. A choice by all rows then differs between data sets of
    few records, too. A chain of neighbours leads from one data set to the other, so that some
    record changes the choice. The rest keeps all classes.

    Args:
        form: the records, as items of the data set.
        dataset: the data set of the script's loader.
        places: the place of each record in the data set.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))
        >>> form = ItemForm.of([data[0], data[3]])
        >>> rows = StoredRecords(form, data, [0, 3])
        >>> rows.exchange(TrainingSet(np.full((2, 2), 7.0), np.array([1, 1])))
        >>> data.tensors[0].tolist()
        [[7.0, 7.0], [0.0, 0.0], [7.0, 7.0], [7.0, 7.0]]
        >>> rows.restore()
        >>> data.tensors[0].sum().item()
        0.0
    """

    form: ItemForm
    dataset: Any
    places: Sequence[int]
    _before: list[tuple[Any, list[int], Any]] = field(default_factory=list)

    def exchange(self, records: TrainingSet) -> None:
        """Writes the records into the arrays that hold the features or the labels.

        An array is one of them if it holds the same numbers as the items, in the same order.
        """
        for array, rows, filled, part in self._arrays_of_records():
            new = part.of(records)
            repeated = [i % len(new) for i in range(len(filled))]
            is_small = array.nbytes <= _MAX_BYTES_OF_ARRAY
            self._write(array, rows[: len(new)], new)
            if is_small:
                self._write(array, filled, new[repeated])

    def holds_features(self) -> bool:
        """Whether arrays of the data set hold the features."""
        return any(not part.is_label for *_, part in self._arrays_of_records())

    def _arrays_of_records(self) -> Iterator[tuple[Any, list[int], list[int], "_Part"]]:
        """Arrays of a part of the records, with the rows of the records and the rows to fill."""
        original = self.form.records()
        parts = [_Part(), *([] if self.form.label is None else [_Part(is_label=True)])]
        columns = []
        if original.features.ndim == 2 and original.features.shape[1] <= _MAX_COLUMNS:
            columns = [_Part(column=column) for column in range(original.features.shape[1])]
        # Columns of a frame may be constants that have nothing to do with this feature.
        columns = [part for part in columns if np.ptp(part.of(original)) > 0]
        row_lists = list(self.places), self._rows_to_fill()
        of_places, of_fills = (list(_arrays_of(self.dataset, rows, 0)) for rows in row_lists)
        for (array, rows), (_, filled) in zip(of_places, of_fills, strict=True):
            for part in [*columns, *parts[1:]] if isinstance(array, _FrameColumn) else parts:
                if _holds(array, rows, part.of(original)):
                    yield array, rows, filled, part
                    break

    def restore(self) -> None:
        """Writes back what the arrays held: a module that stays imported may keep them."""
        for array, rows, values in reversed(self._before):
            with torch.no_grad():
                array[rows] = values
        self._before.clear()

    def _rows_to_fill(self) -> list[int]:
        places = set(self.places)
        free_rows = [row for row in range(len(self.dataset)) if row not in places]
        return [row for number, row in enumerate(free_rows) if number % _KEPT_ROW]

    def _write(self, array: Any, rows: list[int], values: np.ndarray) -> None:
        new: Any = values[: len(rows)].reshape((-1, *array.shape[1:]))
        if isinstance(array, torch.Tensor):
            before: Any = array[rows].detach().clone()
            new = torch.as_tensor(new).to(array.dtype)
        else:
            before, new = np.array(array[rows]), new.astype(array.dtype)
        self._before.append((array, rows, before))
        with torch.no_grad():
            array[rows] = new


def have_equal_numbers(items: Sequence[Any], compared_items: Sequence[Any]) -> bool:
    """Whether items hold the same arrays in the same parts, or the same texts.

    Example:
        >>> have_equal_numbers([(torch.zeros(2), 1)], [(torch.zeros(2), 1)])
        True
        >>> have_equal_numbers([(torch.zeros(2), 1)], [(torch.zeros(2), 0)])
        False
    """

    def parts(item: Any) -> dict[Path, Any]:
        return {**dict(_texts(item, ())), **dict(_leaves(item, ()))}

    if len(items) != len(compared_items):
        return False
    for by_path, compared in zip(map(parts, items), map(parts, compared_items), strict=True):
        if by_path.keys() != compared.keys():
            return False
        if not all(np.array_equal(by_path[path], compared[path]) for path in by_path):
            return False
    return True


def _arrays_of(dataset: Any, rows: list[int], depth: int) -> Iterator[tuple[Any, list[int]]]:
    """Arrays with one row for each item of a data set, and the rows of the records."""
    if depth > _MAX_DEPTH_OF_ARRAYS:
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
            elif type(array).__name__ == "DataFrame" and len(array) == count:
                for position, dtype in enumerate(array.dtypes):
                    if isinstance(dtype, np.dtype) and dtype.kind in "fiub":
                        yield _FrameColumn(array, position), rows


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
    if stored.dtype.kind == values.dtype.kind == "f":
        stored = stored.astype(values.dtype)  # items may be rounded to another precision
    return bool(np.array_equal(stored.reshape(values.shape), values))

"""The rows of a script's own arrays that are exchanged with the records of its loader."""

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from audit.loop.runs.records import TrainingSet
from audit.loop.sources import script_items
from audit.loop.sources.script_items import ItemForm, StoredRecords

PLACES = [1, 3, 4]


class Table(Dataset[Any]):
    """A data set that keeps its records in two arrays of numpy."""

    def __init__(self, scale: float = 1.0) -> None:
        self.x = np.arange(12, dtype=np.float32).reshape(6, 2)
        self.y = np.array([[0], [1], [0], [1], [0], [1]])
        self.names = ["a"] * 6
        self.public = np.arange(6.0)
        self.scale = scale

    def __len__(self) -> int:
        return 6

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": torch.from_numpy(self.scale * self.x[row]), "y": self.y[row]}


def rows_of(data: Any, count: int = 3) -> StoredRecords:
    rows = StoredRecords(ItemForm.of([data[place] for place in PLACES]), data, PLACES)
    rows.exchange(TrainingSet(np.full((count, 2), 9.0), np.full(count, 5)))
    return rows


def test_rows_of_a_table_are_exchanged_and_restored() -> None:
    data = Table()
    tensor = torch.from_numpy(data.x)  # of the same memory, as a script may hold it
    rows = rows_of(data)
    # Of the rows without a record, the first one keeps what it holds.
    assert np.flatnonzero((data.x == 9).all(1)).tolist() == [1, 2, 3, 4, 5]
    assert tensor[PLACES].unique().tolist() == [9.0]
    assert data.y.ravel().tolist() == [0, 5, 5, 5, 5, 5]
    assert data.public.tolist() == list(range(6))
    rows.restore()
    assert np.array_equal(data.x, Table().x)
    assert np.array_equal(data.y, Table().y)


def test_fewer_records_leave_the_later_rows() -> None:
    data = Table()
    rows_of(data, count=2)
    assert np.flatnonzero((data.x == 9).all(1)).tolist() == [1, 2, 3, 5]


def test_large_arrays_keep_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_items, "_MAX_BYTES_OF_ARRAY", 47)
    data = Table()
    rows_of(data)
    assert np.flatnonzero((data.x == 9).all(1)).tolist() == PLACES


def test_rows_of_a_subset_are_those_of_its_indices() -> None:
    tensors = torch.arange(16.0).reshape(8, 2), torch.arange(8) % 2
    data = Subset(TensorDataset(*tensors), [7, 6, 5, 4, 3])
    rows = rows_of(data)
    assert torch.nonzero((tensors[0] == 9).all(1)).ravel().tolist() == [3, 4, 5, 6]
    rows.restore()
    assert torch.equal(tensors[0], torch.arange(16.0).reshape(8, 2))


@pytest.mark.parametrize("form", ["transformed", "expanded", "not writable"])
def test_other_arrays_stay(form: str) -> None:
    data: Any = Table(2.0 if form == "transformed" else 1.0)
    if form == "expanded":  # all rows share their memory
        data = TensorDataset(torch.ones(1, 2).expand(6, 2), torch.arange(6))
    if form == "not writable":
        data.x.flags.writeable = False
    before = data.tensors[0].clone() if form == "expanded" else data.x.copy()
    rows_of(data)
    assert np.array_equal(np.asarray(data.tensors[0] if form == "expanded" else data.x), before)


@pytest.mark.parametrize(
    "label",
    [
        torch.tensor([3.0]),
        torch.tensor([[3.0]]),
        np.array([3], np.int16),
        [3],
        torch.tensor(3),
        np.float32(3.0),
        3,
    ],
)
def test_an_exchanged_label_keeps_its_shape_and_type(label: Any) -> None:
    """A scalar in place of a column of one number is broadcast to a matrix by a loss."""
    form = ItemForm.of([(torch.zeros(2), label), (torch.ones(2), label)])
    exchanged = form.items_of(TrainingSet(np.full((1, 2), 7.0), np.array([5])))
    _, new = exchanged[0]
    assert np.shape(new) == np.shape(label)
    assert np.asarray(new).item() == 5
    assert type(new) is type(label)
    if hasattr(label, "dtype"):
        assert new.dtype == label.dtype


class Frame(Dataset[Any]):
    """Items of single precision from a data frame of double precision."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.frame = pandas.DataFrame(rng.normal(size=(6, 2)), columns=["a", "b"])
        self.frame["label"], self.frame["constant"] = [0, 1, 1, 0, 1, 0], 0.0

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        row = self.frame.iloc[place]
        return row[["b", "a"]].to_numpy(dtype=np.float32), int(row["label"])


def test_columns_of_a_data_frame_are_exchanged_and_restored() -> None:
    data, own = Frame(), Frame().frame
    rows = StoredRecords(ItemForm.of([data[place] for place in PLACES]), data, PLACES)
    assert rows.holds_features()
    rows.exchange(TrainingSet(np.array([[7.0, 8.0]] * 3), np.array([1, 1, 1])))
    assert data.frame.iloc[1:].to_numpy().tolist() == [[8.0, 7.0, 1.0, 0.0]] * 5
    assert data.frame.iloc[:1].equals(own.iloc[:1])
    rows.restore()
    assert data.frame.equals(own)


def test_arrays_of_double_precision_hold_items_of_single_precision() -> None:
    data = Table()
    data.x = data.x.astype(np.float64) + 0.1
    form = ItemForm.of([(np.float32(data.x[place]), 0) for place in PLACES])
    assert StoredRecords(form, data, PLACES).holds_features()


def test_files_hold_no_rows() -> None:
    data = Table()
    form = ItemForm.of([(data.x[place] / 255, 0) for place in PLACES])
    assert not StoredRecords(form, data, PLACES).holds_features()

"""Readers of the official formats, with generated files and, if available, the real ones."""

import collections
import gzip
import logging
import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from real_data import DATA_ROOT

import threat_models
from audit.numerics import FloatArray, IntArray
from threat_models import Records, datasets
from threat_models.datasets import loading, plain_pickle


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables downloads, as on a machine without a network."""
    import pooch

    def refuse(*args: str, **kwargs: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    monkeypatch.delenv("AUDIT_DATA_ROOT", raising=False)


def write_idx(path: Path, array: np.ndarray, compressed: bool = True) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if compressed else content)


def test_failed_download_reports_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pooch

    said = []

    class Keep(logging.Handler):
        def emit(self, record: Any) -> None:
            said.append(record.getMessage())

    def retrieve(*args: str, progressbar: bool, path: Path, **kwargs: Any) -> None:
        path.mkdir(parents=True)
        pooch.get_logger().info("Downloading data")
        said.extend(["a bar"] if progressbar else [])
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.setattr(pooch.get_logger(), "handlers", [Keep()])
    pooch.get_logger().setLevel(logging.INFO)
    with pytest.raises(FileNotFoundError, match="OSError: no network"):
        datasets.load("MNIST", True, str(tmp_path / "new" / "data"))
    assert not said
    assert not list(tmp_path.iterdir())
    (tmp_path / "old").mkdir()
    with pytest.raises(FileNotFoundError, match="OSError: no network"):
        datasets.load("MNIST", True, str(tmp_path / "old"))
    assert [one.name for one in tmp_path.rglob("*")] == ["old"]


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(("name", "folder"), [("MNIST", "MNIST"), ("FASHION", "FashionMNIST")])
def test_idx(
    tmp_path: Path,
    offline: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    folder: str,
    compressed: bool,
) -> None:
    pixels = np.arange(3 * 28 * 28).reshape(3, 28, 28) % 256
    suffix = ".gz" if compressed else ""
    raw = tmp_path / folder / "raw"
    write_idx(raw / f"train-images-idx3-ubyte{suffix}", pixels, compressed)
    write_idx(raw / f"train-labels-idx1-ubyte{suffix}", np.array([4, 0, 9]), compressed)
    monkeypatch.setenv("AUDIT_DATA_ROOT", str(tmp_path))
    records = datasets.load(name, train=True)
    assert records.features.shape == (3, *datasets.RECORD_SHAPES[name])
    assert records.features.dtype == np.float32
    np.testing.assert_allclose(records.features[:, 0] * 255, pixels, atol=1e-4)
    assert records.labels.tolist() == [4, 0, 9]
    with pytest.raises(FileNotFoundError, match=rf"{folder}/raw/t10k-images.*, {folder}/raw/t10k-"):
        datasets.load(name, train=False)


def test_damaged_idx_files_are_rejected(tmp_path: Path, offline: Any) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw / "train-images-idx3-ubyte.gz", np.zeros((2, 28, 28)))
    write_idx(raw / "train-labels-idx1-ubyte.gz", np.zeros(2))
    path = raw / "train-images-idx3-ubyte.gz"
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content[:-1]))
    with pytest.raises(ValueError, match="must contain 1568 bytes, got 1567"):
        datasets.load("MNIST", True, str(tmp_path))
    path.write_bytes(gzip.compress(b"\0\0\x0d\x01" + content[4:]))
    with pytest.raises(ValueError, match="must be an IDX file of bytes"):
        datasets.load("MNIST", True, str(tmp_path))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-20],
        lambda content: content[:40] + bytes([content[40] ^ 255]) + content[41:],
        lambda content: b"no archive",
        lambda content: gzip.compress(gzip.decompress(content)[:6]),
    ],
    ids=["cut", "flipped", "foreign", "header"],
)
def test_damaged_archives_are_rejected(
    tmp_path: Path, offline: Any, damage: Callable[..., Any]
) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw / "train-images-idx3-ubyte.gz", np.arange(2 * 784).reshape(2, 28, 28))
    write_idx(raw / "train-labels-idx1-ubyte.gz", np.zeros(2))
    path = raw / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"^file \S*images-idx3-ubyte\.gz must be complete"):
        datasets.load("MNIST", True, str(tmp_path))


def write_cifar(path: Path, pixels: np.ndarray, labels: list[int], old_names: bool) -> None:
    content = {b"data": pixels, b"labels": labels, b"batch_label": b"toy"}
    raw = pickle.dumps(content, protocol=2)
    old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
    raw = raw.replace(new, old) if old_names else raw
    assert (old in raw) == old_names
    path.write_bytes(raw)


@pytest.mark.parametrize("old_names", [True, False])
def test_cifar(tmp_path: Path, offline: Any, old_names: bool) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    for i in range(1, 6):
        write_cifar(folder / f"data_batch_{i}", pixels + i, [i, 9], old_names)
    records = datasets.load("CIFAR10", True, str(tmp_path))
    assert records.features.shape == (10, 3, 32, 32)
    np.testing.assert_allclose(
        records.features[2].ravel() * 255, (pixels + np.uint8(2))[0], atol=1e-4
    )
    assert records.labels.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py/test_batch"):
        datasets.load("CIFAR10", False, str(tmp_path))


class Shell:
    """An object whose pickle would run code."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (os.system, ("exit 1",))


@pytest.mark.parametrize(
    "content",
    [Shell(), collections.OrderedDict(a=1), np.float64(1), {"data": [Shell()]}, eval, {1, 2}],
)
def test_hostile_pickles_are_rejected(content: Any) -> None:
    for protocol in range(6):
        with pytest.raises(ValueError, match="refused: the pickle"):
            plain_pickle.load(pickle.dumps(content, protocol=protocol))


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Shell()), pickle.dumps([1]), pickle.dumps({"data": 1}), b"", b"hello"],
    ids=["hostile", "list", "key", "empty", "text"],
)
def test_damaged_cifar_files_are_rejected(tmp_path: Path, offline: Any, content: bytes) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=r"^file \S*test_batch must be complete"):
        datasets.load("CIFAR10", False, str(tmp_path))


def test_damaged_svhn_files_are_rejected(tmp_path: Path, offline: Any) -> None:
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(b"no mat" * 100)
    with pytest.raises(ValueError, match=r"^file \S*test_32x32\.mat must be complete"):
        datasets.load("SVHN", False, str(tmp_path))
    scipy.io.savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(ValueError, match=r"^file \S*test_32x32\.mat must be complete"):
        datasets.load("SVHN", False, str(tmp_path))


def test_svhn(tmp_path: Path, offline: Any) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(32, 32, 3, 4), dtype=np.uint8)
    scipy.io.savemat(tmp_path / "train_32x32.mat", {"X": pixels, "y": [[1], [10], [9], [2]]})
    records = datasets.load("SVHN", True, str(tmp_path))
    assert records.features.shape == (4, 3, 32, 32)
    assert records.features[2, 1, 5, 7] == np.float32(pixels[5, 7, 1, 2]) / np.float32(255)
    assert records.labels.tolist() == [1, 0, 9, 2]


def test_downloads_are_stored_at_the_expected_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pooch

    asked = []

    def retrieve(url: str, known_hash: str, path: Path, fname: str, progressbar: bool) -> str:
        asked.append((url, known_hash, progressbar))
        array = np.zeros((1, 28, 28)) if "images" in fname else np.zeros(1)
        write_idx(Path(path) / fname, array)
        return str(Path(path) / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(datasets.load("MNIST", False, str(tmp_path))) == 1
    assert [a[1] for a in asked] == [
        "md5:9fb629c4189551a2d022fa330f9573f3", "md5:ec29112dd5afa0611ce80d1b7f02629c",
    ]  # fmt: skip
    assert not any(a[2] for a in asked)  # progress bars are shown only in terminals


def test_an_archive_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tarfile

    import pooch

    source = tmp_path / "source"
    source.mkdir()
    write_cifar(source / "test_batch", np.zeros((1, 3072), np.uint8), [3], False)

    def retrieve(url: str, known_hash: str, path: Path, fname: str, progressbar: bool) -> str:
        Path(path).mkdir(exist_ok=True)
        with tarfile.open(Path(path) / fname, "w:gz") as tar:
            tar.add(source / "test_batch", "cifar-10-batches-py/test_batch")
        return str(Path(path) / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert datasets.load("CIFAR10", False, str(tmp_path / "root")).labels.tolist() == [3]


def test_digits_split_and_size(caplog: Any) -> None:
    train, validation = (datasets.load("DIGITS", train=part) for part in (True, False))
    assert (len(train), len(validation)) == (1437, 360)
    assert 0 <= train.features.min() < train.features.max() == 1
    with caplog.at_level(logging.INFO):
        assert len(datasets.load("DIGITS", train=True, size=100)) == 100
        assert not caplog.records
        assert len(datasets.load("DIGITS", train=True, size=5000)) == 1437
    assert "DIGITS has 1437 records, not 5000" in caplog.text


def test_foreign_canary_of_digits_is_a_photograph_patch() -> None:
    first, second = (datasets.foreign_canary("DIGITS", i) for i in (0, 1))
    assert first.features.shape == (1, 8, 8)
    assert (first.label, second.label) == (0, 1)
    assert not np.array_equal(first.features, second.features)
    assert 0 <= first.features.min() < first.features.max() <= 1


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros((0, 2)), [], "must have at least one record, got none"),
        (np.zeros((2, 2)), [0], "1 labels for 2 records"),
        (np.full((1, 2), np.nan), [0], "must be finite"),
        (np.zeros((1, 2)), [3], r"labels of TOY must be in \[0, 2\], got 3 to 3"),
        (np.zeros((1, 2)), [-1], "labels of TOY"),
    ],
)
def test_invalid_records_are_rejected(
    features: FloatArray, labels: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Records(features.astype(np.float32), np.array(labels, np.int64), 3, "TOY")


@pytest.mark.parametrize("name", ["MNIST", "FASHION", "CIFAR10", "SVHN"])
def test_real_files(name: str) -> None:
    if not all((DATA_ROOT / file.path).exists() for file in datasets.FILES[name]):
        pytest.skip(f"no files of {name} under AUDIT_DATA_ROOT")
    for train in (True, False):
        records = datasets.load(name, train, str(DATA_ROOT))
        assert records.features.shape[1:] == datasets.RECORD_SHAPES[name]
        assert set(records.labels) == set(range(10))
        assert records.features.max() == 1
        # Neighbouring pixels are similar in every data set, unless axes are swapped.
        rows = records.features[:200]
        steps = np.abs(np.diff(rows, axis=-1)).mean(), np.abs(np.diff(rows, axis=-2)).mean()
        assert max(steps) < 0.5 * rows.std()
    if name == "MNIST":
        assert datasets.load(name, True, str(DATA_ROOT)).labels[:5].tolist() == [5, 0, 4, 1, 9]


def write_mnist(root: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    raw = root / "MNIST" / "raw"
    write_idx(raw / "train-images-idx3-ubyte.gz", pixels)
    write_idx(raw / "train-labels-idx1-ubyte.gz", labels)


@pytest.mark.parametrize(
    ("pixels", "labels", "file", "message"),
    [
        ((150, 28, 28), np.zeros(149), "labels", "one label for each of 150 images, got 149"),
        ((5, 28, 28), np.full(5, 10), "labels", r"labels must be whole .* \[0, 9\], got 10"),
        ((5, 28, 28), np.zeros((5, 1)), "labels", "in 1 dimensions, got magic 00000802"),
        ((5, 28, 29), np.zeros(5), "images", r"images of shape \(28, 28\), got .*\(5, 28, 29\)"),
        ((5, 784), np.zeros(5), "images", "in 3 dimensions, got magic 00000802"),
        ((0, 28, 28), np.zeros(0), "images", "it must contain images"),
    ],
)
@pytest.mark.parametrize("size", [None, 3])
def test_idx_files_are_checked_completely(
    tmp_path: Path,
    offline: Any,
    pixels: Any,
    labels: FloatArray | IntArray,
    file: str,
    message: str,
    size: int | None,
) -> None:
    # Errors anywhere in a file are reported, even if only its first records are used.
    write_mnist(tmp_path, np.zeros(pixels), labels)
    with pytest.raises(
        ValueError, match=rf"^file \S*train-{file}-\S* must be complete .*{message}"
    ):
        datasets.load("MNIST", True, str(tmp_path), size)


PIXELS = np.arange(4 * 3072, dtype=np.uint8).reshape(4, 3072)


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (PIXELS, [1, 2, 3], "one label for each of 4 images, got 3"),
        (PIXELS, [1, 2, 3, -1], r"labels must be whole numbers in \[0, 9\], got -1"),
        (PIXELS, [1, 2, 3, 256], r"in \[0, 9\], got 256"),
        (PIXELS, [1, 2, 3.7, 4], r"in \[0, 9\], got 3.7"),
        (PIXELS, [1, 2, 3, None], "labels must be numbers, got NoneType"),
        (PIXELS, [[1], [2], [3], [4]], "labels must be numbers, got list"),
        (PIXELS, np.ones((4, 1), np.int64), r"one number per image, got an array \(4, 1\)"),
        (PIXELS, "1234", "labels must be an array of numbers, got a str"),
        (PIXELS, ((1, 2), (3, 4)), "labels must be an array of numbers, got a tuple"),
        (PIXELS, [1, 2, 3, 10**30], "labels must be an array of numbers, got one of object"),
        (PIXELS.astype(np.float64) + 300.5, [1, 2, 3, 4], r"pixels .* \[0, 255\], got 300.5"),
        (np.where(PIXELS == 7, np.nan, PIXELS), [1, 2, 3, 4], r"\[0, 255\], got nan"),
        (PIXELS.astype(np.int64) - 1, [1, 2, 3, 4], r"in \[0, 255\], got -1"),
        (PIXELS[:, :3071], [1, 2, 3, 4], r"shape \(3072,\), got an array \(4, 3071\)"),
        (PIXELS > 3, [1, 2, 3, 4], "refused: the pickle holds an array of 'b1'"),
        (3, [1, 2, 3, 4], "images must be an array of numbers, got an int"),
        ([[0] * 3072] * 4, [1, 2, 3, 4], "images must be an array of numbers, got a list"),
    ],
)
def test_cifar_batches_are_checked_completely(
    tmp_path: Path, offline: Any, data: Any, labels: Any, message: str
) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for i in (1, 2, 4, 5):
        write_cifar(folder / f"data_batch_{i}", PIXELS, [0, 1, 2, 3], old_names=False)
    content = pickle.dumps({"data": data, "labels": labels}, protocol=2)
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^file \S*data_batch_3 must be complete .*{message}"):
        datasets.load("CIFAR10", True, str(tmp_path), size=1)


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4"])
def test_pixels_may_have_any_numeric_type(
    tmp_path: Path, offline: Any, protocol: int, dtype: str
) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    data = np.asfortranarray(PIXELS.astype(dtype))
    content = {"data": data, "labels": np.array([9, 0, 4, 2])}
    (folder / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol))
    records = datasets.load("CIFAR10", False, str(tmp_path))
    np.testing.assert_allclose(records.features.reshape(4, -1) * 255, PIXELS, atol=1e-4)
    assert records.labels.tolist() == [9, 0, 4, 2]


def array_of(shape: bytes, dtype: bytes, raw: bytes) -> bytes:
    """A pickle (protocol 2) of an array with this shape, dtype and content."""
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01" + shape + b"cnumpy\ndtype\nU" + bytes([len(dtype)]) + dtype + b"K\x00K\x01\x87R"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + raw + b"tb."
    )


HUGE = b"\x8a\x06" + (10**12).to_bytes(6, "little")
NESTED = b"(K\x01K\x02tq\x00" + b"h\x00h\x00\x86q\x00" * 60


@pytest.mark.thorough
@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(array_of(HUGE + b"\x85", b"u1", b"U\x01x"), id="shape"),
        pytest.param(array_of(HUGE + b"\x85", b"O8", b"]"), id="objects"),
        pytest.param(array_of(b"K\x01\x85", b"V999999999", b"U\x01x"), id="itemsize"),
        pytest.param(b"cnumpy\nndarray\n" + HUGE + b"\x85R.", id="call"),
        # Encodes a megabyte of text a thousand times.
        pytest.param(
            b"c_codecs\nencode\nq\x00X\x00\x00\x10\x00" + b"a" * (1 << 20) + b"q\x01"
            b"X\x06\x00\x00\x00latin1q\x02]" + b"h\x00h\x01h\x02\x86Ra" * 1000 + b".",
            id="encode",
        ),
        # Hashes pairs nested sixty deep.
        pytest.param(b"}" + NESTED + b"K\x01s.", id="hash"),
        pytest.param(b"(" + b"}" * 300_000 + b"t.", id="dictionaries"),
    ],
)
def test_pickles_that_exhaust_memory_or_time_are_rejected(raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, LookupError, TypeError)):
            plain_pickle.load(raw)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 3e8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((3, 1))}, "each of 4 images"),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.full((4, 1), 11)}, "got 11"),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((2, 2))}, r"got .* \(2, 2\)"),
        ({"X": np.full((32, 32, 3, 4), 300.5), "y": np.ones((4, 1))}, "got 300.5"),
        ({"X": np.full((32, 32, 3, 4), np.nan), "y": np.ones((4, 1))}, "got nan"),
        ({"X": np.zeros((32, 32, 4), np.uint8), "y": np.ones((4, 1))}, r"got .* \(32, 32, 4\)"),
        (
            {"X": np.array([["a", 1.0]], object), "y": np.ones((4, 1))},
            "X must be numbers, got cell",
        ),
        ({"y": np.ones((4, 1))}, "it must contain 'X'"),
    ],
)
def test_svhn_files_are_checked_completely(
    tmp_path: Path, offline: Any, content: dict[str, Any], message: str
) -> None:
    scipy.io.savemat(tmp_path / "train_32x32.mat", content)
    with pytest.raises(
        ValueError, match=rf"^file \S*train_32x32\.mat must be complete .*{message}"
    ):
        datasets.load("SVHN", True, str(tmp_path), size=1)


def test_archives_that_unpack_to_gigabytes_are_rejected(
    tmp_path: Path, offline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MAX_BYTES", 1 << 16)
    write_mnist(tmp_path, np.zeros((100, 28, 28)), np.zeros(100))
    with pytest.raises(
        ValueError, match=r"must contain at most 65536 bytes, got .*\[100, 28, 28\]"
    ):
        datasets.load("MNIST", True, str(tmp_path))
    content = {"X": np.zeros((32, 32, 3, 40), np.uint8), "y": np.ones((40, 1))}
    scipy.io.savemat(tmp_path / "train_32x32.mat", content, do_compression=True)
    assert (tmp_path / "train_32x32.mat").stat().st_size < 1 << 12
    with pytest.raises(ValueError, match="must unpack to at most 65536 bytes, got more"):
        datasets.load("SVHN", True, str(tmp_path))


@pytest.mark.parametrize("threat", ["NTNV", "NTCV"])
def test_all_missing_files_are_reported_at_once(tmp_path: Path, offline: Any, threat: str) -> None:
    # CIFAR10's input canary is a record of SVHN; the error comes before any file is read.
    with pytest.raises(FileNotFoundError, match="CIFAR10 and SVHN") as raised:
        threat_models.build(threat, "input", dataset="cifar10", data_root=str(tmp_path))
    for name in ("data_batch_1", "data_batch_5", "test_batch", "train_32x32.mat"):
        assert name in str(raised.value)
    assert "test_32x32.mat" not in str(raised.value)


def test_files_of_unneeded_data_sets_are_not_required(tmp_path: Path, offline: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"data of CIFAR10 must be in") as raised:
        threat_models.build("NTNV", "dirac", dataset="CIFAR10", data_root=str(tmp_path))
    assert "32x32" not in str(raised.value)
    with pytest.raises(FileNotFoundError, match=r"data of CIFAR10 must be in") as raised:
        threat_models.build("ETCV", "input", dataset="CIFAR10", data_root=str(tmp_path))
    assert "test_batch" not in str(raised.value)


def test_complex_features_are_refused() -> None:
    features = np.ones((2, 1, 2, 2), np.complex64)
    with pytest.raises(ValueError, match="features of mine must be real numbers, got complex64"):
        Records(features, np.array([0, 1]), 2, "mine")

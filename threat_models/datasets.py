"""FASHION, MNIST, CIFAR10, SVHN and DIGITS as arrays.

Files lie under a data root in torchvision's folder layout. Pixels are scaled to [0, 1] by a
constant, so that no statistic of the records enters the training unaccounted.
"""

import gzip
import io
import logging
import os
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from canaries import InputCanary

Bytes = NDArray[np.uint8]

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records.

    Attributes:
        features: [n, channels, height, width] or [n, ...], finite.
        labels: [n] classes in [0, classes).
        classes: number of classes.
        name: what reports call them.

    Raises:
        ValueError: no records, features that are not finite, labels out of range, or lengths that
            differ.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: int
    name: str

    def __post_init__(self) -> None:
        if len(self.features) == 0:
            raise ValueError(f"data set {self.name} must have records, got none")
        if len(self.features) != len(self.labels):
            raise ValueError(
                f"data set {self.name} must have one label per record, got "
                f"{len(self.labels)} labels for {len(self.features)} records"
            )
        if not np.all(np.isfinite(self.features)):
            raise ValueError(f"features of {self.name} must be finite, got NaN or infinity")
        if self.labels.min() < 0 or self.labels.max() >= self.classes:
            raise ValueError(
                f"labels of {self.name} must be in [0, {self.classes - 1}], got "
                f"{self.labels.min()} to {self.labels.max()}"
            )

    def __len__(self) -> int:
        """Number of records."""
        return len(self.labels)

    def canary(self, index: int) -> InputCanary:
        """Record `index` as a canary, the paper's notation M[I]."""
        if not 0 <= index < len(self):
            raise ValueError(
                f"canary_index must be in [0, {len(self) - 1}] for {self.name}, got {index}"
            )
        return InputCanary(self.features[index], int(self.labels[index]), f"{self.name}[{index}]")


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set: where it lies under the root, and where it comes from.

    `checksum` is the md5 of the download; `is_archived` tells that the download is a tar archive,
    unpacked into the root.
    """

    path: str
    url: str
    checksum: str
    is_archived: bool = False


def _idx(
    folder: str, base_url: str, checksums: tuple[str, str, str, str]
) -> tuple[RemoteFile, ...]:
    names = [
        f"{split}-{kind}-ubyte.gz"
        for split in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]
    return tuple(
        RemoteFile(f"{folder}/raw/{name}", base_url + name, checksum)
        for name, checksum in zip(names, checksums, strict=True)
    )


_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_CIFAR_NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

FILES: dict[str, tuple[RemoteFile, ...]] = {
    "FASHION": _idx(
        "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "MNIST": _idx(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "CIFAR10": tuple(
        RemoteFile(
            f"cifar-10-batches-py/{name}",
            _CIFAR_URL,
            "c58f30108f718f92721af3b95e74349a",
            is_archived=True,
        )
        for name in _CIFAR_NAMES
    ),
    "SVHN": (
        RemoteFile(
            "train_32x32.mat",
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            "e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
        RemoteFile(
            "test_32x32.mat",
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "eb5a983be6a315427106f1b164d9cef3",
        ),
    ),
    "DIGITS": (),
}
"""The files of every data set, the training split first."""

RECORD_SHAPES: dict[str, tuple[int, int, int]] = {
    "FASHION": (1, 28, 28),
    "MNIST": (1, 28, 28),
    "CIFAR10": (3, 32, 32),
    "SVHN": (3, 32, 32),
    "DIGITS": (1, 8, 8),
}
"""Shape of one record of every data set."""

CLASSES = 10
"""All five data sets have ten classes."""

FOREIGN = {
    "FASHION": "MNIST",
    "MNIST": "FASHION",
    "CIFAR10": "SVHN",
    "SVHN": "CIFAR10",
    "DIGITS": "PATCHES",
}
"""Where the input canary of a training set comes from (`foreign_canary`)."""


def load(name: str, train: bool, data_root: str | None = None, size: int | None = None) -> Records:
    """One split of a data set.

    Args:
        name: FASHION, MNIST, CIFAR10, SVHN or DIGITS.
        train: the training split, else the test split, which serves as validation set.
        data_root: folder of the files; None takes the environment variable AUDIT_DATA_ROOT, else
            a folder of the user's cache. Files that are absent are downloaded and checked.
        size: how many records, the first ones; None takes all. Where there are fewer, a warning is
            logged and all are taken.

    Returns:
        Its records.

    Raises:
        ValueError: an unknown name, a size below 1, or a damaged file.
        FileNotFoundError: files that are absent and cannot be downloaded; the message lists them.
    """
    name = check_name(name)
    if size is not None and size < 1:
        raise ValueError(f"size of {name} must be >= 1, got {size}")
    if name == "DIGITS":
        pixels, labels = _digits(train)
    else:
        root = _root(data_root)
        files = _split_files(name, train)
        if not all(_local(root, file).exists() for file in files):
            _download(name, files, root)
        pixels, labels = _read(name, [_local(root, file) for file in files])
    if size is not None and size > len(labels):
        log.warning("%s has %d records, not %d: taking all", name, len(labels), size)
    whole = np.float32(16 if name == "DIGITS" else 255)
    features = np.ascontiguousarray(pixels[:size], dtype=np.float32) / whole
    return Records(features, labels[:size].astype(np.int64), CLASSES, name)


def canary(name: str, index: int, data_root: str | None = None) -> InputCanary:
    """Record `index` of a training split; see `load` and `Records.canary`."""
    size = index + 1 if index >= 0 else None
    return load(name, train=True, data_root=data_root, size=size).canary(index)


def foreign_canary(name: str, index: int, data_root: str | None = None) -> InputCanary:
    """The canary for a training set: a record of another data set (table 2, NTNV 1-3).

    MNIST for FASHION and the reverse, SVHN for CIFAR10 and the reverse; for DIGITS a patch of a
    natural image.

    Args:
        name: the data set trained on.
        index: I, the number of the record or patch.
        data_root: as for `load`.

    Returns:
        The record.
    """
    name = check_name(name)
    if name == "DIGITS":
        return _natural_patches().canary(index)
    return canary(FOREIGN[name], index, data_root)


def check_name(name: str) -> str:
    """The data set that `name` is in any case; raises ValueError where it is none of ours."""
    return checks.one_of("dataset", name, tuple(FILES))


def _root(data_root: str | None) -> Path:
    root = data_root or os.environ.get("AUDIT_DATA_ROOT")
    return Path(root) if root else Path.home() / ".cache" / "dp-tuning-audit"


def _local(root: Path, file: RemoteFile) -> Path:
    """Where a file lies; unpacked where only that is there."""
    path = root / file.path
    unpacked = path.with_suffix("")
    return unpacked if path.suffix == ".gz" and unpacked.exists() else path


def _split_files(name: str, train: bool) -> tuple[RemoteFile, ...]:
    files = FILES[name]
    test = 2 if len(files) == 4 else 1
    return files[:-test] if train else files[-test:]


def _download(name: str, files: tuple[RemoteFile, ...], root: Path) -> None:
    """Fetches what is absent of one split, checked by its md5.

    Raises:
        FileNotFoundError: where nothing can be fetched, saying which files go where.
    """
    try:
        import pooch

        for file in files:
            target = root / file.path
            if _local(root, file).exists():
                continue
            fetched = pooch.retrieve(
                file.url,
                known_hash=f"md5:{file.checksum}",
                progressbar=True,
                path=root if file.is_archived else target.parent,
                fname=file.url.rsplit("/", 1)[1] if file.is_archived else target.name,
            )
            if file.is_archived:
                _unpack(Path(fetched), [f.path for f in files], root)
    except Exception as error:
        wanted = ", ".join(file.path for file in files)
        raise FileNotFoundError(
            f"data set {name} is not under {root} and cannot be downloaded "
            f"({type(error).__name__}: {error}); put these files there: {wanted}"
        ) from error


def _unpack(archive: Path, members: list[str], root: Path) -> None:
    import tarfile

    with tarfile.open(archive) as tar:
        for member in members:
            tar.extract(member, root, filter="data")


def _read(name: str, paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Pixels and labels of one split, with a clear error where its files are damaged."""
    try:
        return _READERS[name](paths)
    except (*_DAMAGE, OSError) as error:
        files = ", ".join(map(str, paths))
        raise ValueError(
            f"files of {name} must be whole and in the official format, got {files}: {error}"
        ) from error


def _read_idx(path: Path) -> Bytes:
    """An IDX file of unsigned bytes: magic 00 00 08 ndim, big-endian dimensions, data."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path} must be an IDX file of bytes, got magic {raw[:4].hex()}")
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    data = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if data.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path} must hold {np.prod(shape)} bytes, got {data.size}")
    return data.reshape(shape)


def _read_idx_pair(paths: list[Path]) -> tuple[Bytes, Bytes]:
    images, labels = (_read_idx(path) for path in paths)
    return images[:, None], labels


class PlainUnpickler(pickle.Unpickler):
    """Reads pickles of numpy arrays and plain containers, and refuses everything else.

    Raises:
        pickle.UnpicklingError: from `load`, on any other global.
    """

    def find_class(self, module: str, name: str) -> Any:
        """The few callables an array needs, under the old and new names of numpy's modules."""
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if module == "_codecs" and name == "encode":
            return _encode_latin1  # how Python 3 writes bytes in protocol 2
        raise pickle.UnpicklingError(f"refused: the pickle asks for {module}.{name}")


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"refused: the pickle asks for the encoding {encoding}")
    return text.encode("latin1")


def _read_cifar(paths: list[Path]) -> tuple[Bytes, Bytes]:
    batches = []
    for path in paths:
        batch = PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        # Keys are bytes in the official files, and text where a tool wrote them again.
        batches.append(
            {key if isinstance(key, str) else key.decode(): value for key, value in batch.items()}
        )
    pixels = np.concatenate([np.asarray(batch["data"], np.uint8) for batch in batches])
    labels = np.concatenate([np.asarray(batch["labels"], np.uint8) for batch in batches])
    return pixels.reshape(-1, 3, 32, 32), labels


def _read_svhn(paths: list[Path]) -> tuple[Bytes, Bytes]:
    from scipy.io import loadmat

    content = loadmat(paths[0])
    # The files call the digit 0 class 10.
    return content["X"].transpose(3, 2, 0, 1), content["y"].ravel() % 10


# What readers of damaged files raise: a key, attribute, type or index of what is something else.
_DAMAGE = (
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    EOFError,
    zlib.error,
    pickle.UnpicklingError,
)
_READERS: dict[str, Callable[[list[Path]], tuple[Bytes, Bytes]]] = {
    "FASHION": _read_idx_pair,
    "MNIST": _read_idx_pair,
    "CIFAR10": _read_cifar,
    "SVHN": _read_svhn,
}


def _digits(train: bool) -> tuple[Bytes, Bytes]:
    """scikit-learn's 1,797 digits of 8x8 pixels: the first 1,437 train, the last 360 validate."""
    from sklearn.datasets import load_digits

    content = load_digits()
    part = slice(None, 1437) if train else slice(1437, None)
    return content.images[part, None].astype(np.uint8), content.target[part].astype(np.uint8)


def _natural_patches() -> Records:
    """Grey 8x8 thumbnails of the 64x64 tiles of scikit-learn's photograph of a flower.

    A tile is no digit; it is given the label (its number) mod 10.
    """
    from sklearn.datasets import load_sample_image

    grey = load_sample_image("flower.jpg").mean(axis=2) / 255
    rows, columns = (side // 64 for side in grey.shape)
    pixels = grey[: rows * 64, : columns * 64].reshape(rows, 8, 8, columns, 8, 8)
    tiles = pixels.mean(axis=(2, 5)).transpose(0, 2, 1, 3).reshape(-1, 1, 8, 8)
    return Records(tiles.astype(np.float32), np.arange(len(tiles)) % CLASSES, CLASSES, "PATCHES")

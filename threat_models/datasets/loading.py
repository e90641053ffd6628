"""Splits of data sets, and single records, by name; the formats of their files.

MNIST and FASHION are IDX files, CIFAR10 pickles that are not unpickled, and SVHN files of MATLAB.
"""

import gzip
import logging
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from audit import checks
from audit.errors import InvalidInput
from canaries import InputCanary
from threat_models.datasets import plain_pickle
from threat_models.datasets.catalogue import CLASSES, FOREIGN, check_name, paths_of
from threat_models.datasets.records import (
    MAX_BYTES,
    Bytes,
    Records,
    labels_of,
    pixels_of,
    read_bytes,
    reading,
)


def read_idx_pair(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Pixels [n, 1, 28, 28] and labels [n] from a file of images and one of labels."""
    images, labels = paths
    with reading(images):
        pixels = pixels_of(_read_idx(images, 3), (28, 28))
    with reading(labels):
        return pixels[:, None], labels_of(_read_idx(labels, 1), len(pixels))


def _read_idx(path: Path, dimensions: int) -> Bytes:
    """The array in an IDX file: magic 00 00 08 ndim, big-endian dimensions, unsigned bytes."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        magic = file.read(4)
        if magic != bytes((0, 0, 8, dimensions)):
            raise InvalidInput(
                f"it must be an IDX file of bytes in {dimensions} dimensions, got magic "
                f"{magic.hex() or 'none'}"
            )
        shape = np.frombuffer(file.read(4 * dimensions), ">u4", count=dimensions).tolist()
        size = math.prod(shape)
        if size > MAX_BYTES:
            raise InvalidInput(f"it must contain at most {MAX_BYTES} bytes, got dimensions {shape}")
        data = file.read(size + 1)
    if len(data) != size:
        count = "more" if len(data) > size else str(len(data))
        raise InvalidInput(f"it must contain {size} bytes, got {count}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def read_cifar(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Pixels [n, 3, 32, 32] and labels [n] from all batches of a split."""
    pixels, labels = [], []
    for path in paths:
        with reading(path):
            batch = plain_pickle.load(read_bytes(path))
            if not isinstance(batch, dict):
                raise InvalidInput(f"it must contain a dictionary, got {type(batch).__name__}")
            # Keys are bytes in the official files, and text in files that a tool rewrote.
            batch = {k if isinstance(k, str) else k.decode(): v for k, v in batch.items()}
            for key in ("data", "labels"):
                if key not in batch:
                    raise InvalidInput(f"it must contain {key!r}")
            pixels.append(pixels_of(batch["data"], (3072,)))
            labels.append(labels_of(batch["labels"], len(pixels[-1])))
    return np.concatenate(pixels).reshape(-1, 3, 32, 32), np.concatenate(labels)


_HEADER = 128
_COMPRESSED = 15  # the type of a zlib-compressed element
_CHUNK = 1 << 20
_NUMBERS = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "single",
    "double",
)


def read_svhn(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Pixels [n, 3, 32, 32] and labels [n] from one file."""
    from scipy.io import loadmat, whosmat

    (path,) = paths
    with reading(path):
        _check_size(read_bytes(path))
        for name, shape, kind in whosmat(path):  # loading a cell array allocates its claimed size
            if name in ("X", "y") and (kind not in _NUMBERS or math.prod(shape) > MAX_BYTES):
                raise InvalidInput(f"{name} must be numbers, got {kind} of shape {shape}")
        content = loadmat(path, variable_names=["X", "y"])
        for key in ("X", "y"):
            if key not in content:
                raise InvalidInput(f"it must contain {key!r}")
        images = content["X"]
        if images.ndim != 4:
            raise InvalidInput(
                f"it must contain images [32, 32, 3, n], got an array {images.shape}"
            )
        pixels = pixels_of(images.transpose(3, 2, 0, 1), (3, 32, 32))
        column = content["y"]
        if column.shape not in ((len(pixels), 1), (1, len(pixels))):
            raise InvalidInput(
                f"it must contain one label for each of {len(pixels)} images, got an array "
                f"{column.shape}"
            )
        # The official files label the digit 0 as class 10; some rewritten files use 0.
        return pixels, labels_of(column.ravel(), len(pixels), 0, 10) % 10


def _check_size(raw: bytes) -> None:
    """Checks, without storing its content, that a file unpacks to at most MAX_BYTES."""
    order = ">" if raw[126:128] == b"MI" else "<"
    at, total = _HEADER, 0
    while at + 8 <= len(raw):
        kind, size = struct.unpack_from(order + "II", raw, at)
        if kind == _COMPRESSED:
            unpack, packed = zlib.decompressobj(), raw[at + 8 : at + 8 + size]
            while packed and not unpack.eof:
                total += len(unpack.decompress(packed, _CHUNK))
                packed = unpack.unconsumed_tail
                if total > MAX_BYTES:
                    raise InvalidInput(f"it must unpack to at most {MAX_BYTES} bytes, got more")
        at += 8 + size


log = logging.getLogger(__name__)

_READERS: dict[str, Callable[[list[Path]], tuple[Bytes, Bytes]]] = {
    "FASHION": read_idx_pair,
    "MNIST": read_idx_pair,
    "CIFAR10": read_cifar,
    "SVHN": read_svhn,
}


def load(name: str, train: bool, data_root: str | None = None, size: int | None = None) -> Records:
    """One split of a data set.

    Args:
        name: FASHION, MNIST, CIFAR10, SVHN or DIGITS.
        train: True for the training split, False for the test split, which is used for validation.
        data_root: folder of the files; None uses the environment variable AUDIT_DATA_ROOT, else a
            folder in the user's cache. Missing files are downloaded and checked.
        size: number of records, from the first; None takes all. If there are fewer, a message is
            logged and all are returned.

    Returns:
        The split's records.

    Raises:
        InvalidInput: the name is unknown, the size is below 1, or a file is damaged. Files are
            checked completely for every size.
        FileNotFoundError: files are missing and cannot be downloaded; the message lists them.
    """
    name, train = check_name(name), checks.flag("train", train)
    if size is not None:
        size = checks.integer(f"size of {name}", size, 1)
    if name == "DIGITS":
        pixels, labels = digits(train)
    else:
        pixels, labels = _READERS[name](paths_of(name, train, data_root))
    if size is not None and size > len(labels):
        log.info("%s has %d records, not %d: taking all", name, len(labels), size)
    white = np.float32(16 if name == "DIGITS" else 255)
    features = np.ascontiguousarray(pixels[:size], dtype=np.float32) / white
    return Records(features, labels[:size].astype(np.int64), CLASSES, name)


def canary(name: str, index: int, data_root: str | None = None) -> InputCanary:
    """Record `index` of a training split; see `load` and `Records.canary`."""
    size = index + 1 if index >= 0 else None
    return load(name, train=True, data_root=data_root, size=size).canary(index)


def foreign_canary(name: str, index: int, data_root: str | None = None) -> InputCanary:
    """The input canary for a training set: a record of another data set (table 2, NTNV 1-3).

    FASHION and MNIST use each other's records, as do CIFAR10 and SVHN. DIGITS uses a patch of a
    photograph.
    """
    name = check_name(name)
    if name == "DIGITS":
        return natural_patches().canary(index)
    return canary(FOREIGN[name], index, data_root)


def digits(train: bool) -> tuple[Bytes, Bytes]:
    """scikit-learn's 1,797 digits of 8x8 pixels: the first 1,437 train, the last 360 validate."""
    from sklearn.datasets import load_digits

    content = load_digits()
    rows = slice(None, 1437) if train else slice(1437, None)
    return content.images[rows, None].astype(np.uint8), content.target[rows].astype(np.uint8)


def natural_patches() -> Records:
    """Grey 8x8 thumbnails of the 64x64 tiles of scikit-learn's photograph of a flower.

    Tiles have no classes; tile i gets the label i mod 10.
    """
    from sklearn.datasets import load_sample_image

    grey = load_sample_image("flower.jpg").mean(axis=2) / 255
    rows, columns = (side // 64 for side in grey.shape)
    pixels = grey[: rows * 64, : columns * 64].reshape(rows, 8, 8, columns, 8, 8)
    tiles = pixels.mean(axis=(2, 5)).transpose(0, 2, 1, 3).reshape(-1, 1, 8, 8)
    return Records(tiles.astype(np.float32), np.arange(len(tiles)) % CLASSES, CLASSES, "PATCHES")

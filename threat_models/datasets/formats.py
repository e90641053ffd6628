"""Reads the files of MNIST and FASHION (IDX), CIFAR10 (pickles, not unpickled), SVHN (MATLAB)."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from audit.errors import InvalidInput
from threat_models.datasets import plain_pickle
from threat_models.datasets.records import (
    MAX_BYTES,
    Bytes,
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

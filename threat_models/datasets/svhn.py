"""Reads the MATLAB files of SVHN."""

import math
import struct
import zlib
from pathlib import Path

from audit.errors import InvalidInput
from threat_models.datasets.records import (
    MAX_BYTES,
    Bytes,
    labels_of,
    pixels_of,
    read_bytes,
    reading,
)

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

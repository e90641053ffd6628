"""Reads the IDX files of MNIST and FASHION."""

import gzip
import math
from pathlib import Path

import numpy as np

from audit.errors import InvalidInput
from threat_models.datasets.records import MAX_BYTES, Bytes, labels_of, pixels_of, reading


def read_idx_pair(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Pixels [n, 1, 28, 28] and labels [n] from a file of images and one of labels."""
    images, labels = paths
    with reading(images):
        pixels = pixels_of(_read(images, 3), (28, 28))
    with reading(labels):
        return pixels[:, None], labels_of(_read(labels, 1), len(pixels))


def _read(path: Path, dimensions: int) -> Bytes:
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

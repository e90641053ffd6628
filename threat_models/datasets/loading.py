"""Splits of data sets, and single records, by name."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from audit import checks
from canaries import InputCanary
from threat_models.datasets.catalogue import CLASSES, FOREIGN, check_name, paths_of
from threat_models.datasets.formats import read_cifar, read_idx_pair, read_svhn
from threat_models.datasets.records import Bytes, Records

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

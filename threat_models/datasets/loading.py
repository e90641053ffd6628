"""A split of a data set, or one record of it, by name."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from canaries import InputCanary
from threat_models.datasets.bundled import digits, natural_patches
from threat_models.datasets.catalogue import CLASSES, FOREIGN, check_name
from threat_models.datasets.cifar import read_cifar
from threat_models.datasets.contents import Bytes
from threat_models.datasets.files import paths_of
from threat_models.datasets.idx import read_idx_pair
from threat_models.datasets.records import Records
from threat_models.datasets.svhn import read_svhn

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
        train: the training split, else the test split, which serves as validation set.
        data_root: folder of the files; None takes the environment variable AUDIT_DATA_ROOT, else
            a folder of the user's cache. Files that are absent are downloaded and checked.
        size: how many records, the first ones; None takes all. Where there are fewer, a warning is
            logged and all are taken.

    Returns:
        Its records.

    Raises:
        ValueError: an unknown name, a size below 1, or a file that is not what it should be, which
            is looked at whole whatever the size.
        FileNotFoundError: files that are absent and cannot be downloaded; the message lists them.
    """
    name = check_name(name)
    if size is not None and size < 1:
        raise ValueError(f"size of {name} must be >= 1, got {size}")
    if name == "DIGITS":
        pixels, labels = digits(train)
    else:
        pixels, labels = _READERS[name](paths_of(name, train, data_root))
    if size is not None and size > len(labels):
        log.info("%s has %d records, not %d: taking all", name, len(labels), size)
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
        return natural_patches().canary(index)
    return canary(FOREIGN[name], index, data_root)

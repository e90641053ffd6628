"""Splits of data sets, and single records, by name."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from audit import checks
from canaries import InputCanary
from threat_models.datasets.bundled import digits, natural_patches
from threat_models.datasets.catalogue import CLASSES, FOREIGN, check_name, paths_of
from threat_models.datasets.cifar import read_cifar
from threat_models.datasets.idx import read_idx_pair
from threat_models.datasets.records import Bytes, Records
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

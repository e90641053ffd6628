"""The data sets: their files and where to find them, record shapes, and data sets of canaries."""

import contextlib
import logging
import os
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from audit import checks

_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_CIFAR_NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
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
"""The data set of the input canary for each training set (`foreign_canary`)."""


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set: its path in the data folder, its URL, and the md5 of the download.

    An archived file is in a tar archive, which is unpacked into the data folder.
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


def check_name(name: str) -> str:
    """The name of a known data set, given in upper or lower case."""
    return checks.one_of("dataset", name, tuple(FILES))


def split_files(name: str, train: bool) -> tuple[RemoteFile, ...]:
    """The files of one split; the test split is the last two files of four, else the last file."""
    files = FILES[name]
    test = 2 if len(files) == 4 else 1
    return files[:-test] if train else files[-test:]


def folder_of(data_root: str | None) -> Path:
    """The data folder: `data_root`, else AUDIT_DATA_ROOT, else a folder in the user's cache."""
    root = data_root or os.environ.get("AUDIT_DATA_ROOT")
    return Path(root) if root else Path.home() / ".cache" / "dp-tuning-audit"


def require(splits: Sequence[tuple[str, bool]], data_root: str | None = None) -> None:
    """Downloads and checks the missing files of several splits, pairs of data set and `train`.

    A FileNotFoundError lists the missing files of all splits.
    """
    root = folder_of(data_root)
    missing: list[str] = []
    reason: Exception | None = None
    for name, train in splits:
        files = split_files(name, train)
        if all(local(root, file).exists() for file in files):
            continue
        folders = {folder for file in files for folder in (root / file.path).parents}
        absent = [folder for folder in folders if not folder.exists()]
        try:
            _download(files, root)
        except Exception as error:  # networks, disks and servers raise many classes
            reason = error
            _remove_if_empty(absent)
            missing += [f.path for f in files if not local(root, f).exists()]
    if reason is not None:
        names = dict.fromkeys(name for name, _ in splits)
        raise FileNotFoundError(
            f"data of {' and '.join(names)} must be in {root}, and missing files cannot be "
            f"downloaded ({type(reason).__name__}: {reason}); add: {', '.join(missing)}"
        ) from reason


def paths_of(name: str, train: bool, data_root: str | None) -> list[Path]:
    """The paths of one split's files, after downloading missing ones."""
    require([(name, train)], data_root)
    return [local(folder_of(data_root), file) for file in split_files(name, train)]


def local(root: Path, file: RemoteFile) -> Path:
    """The path of a file; of the unpacked file if it exists."""
    path = root / file.path
    unpacked = path.with_suffix("")
    return unpacked if path.suffix == ".gz" and unpacked.exists() else path


def _remove_if_empty(folders: Sequence[Path]) -> None:
    """Removes the empty ones of these folders, which a failed download created."""
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _download(files: tuple[RemoteFile, ...], root: Path) -> None:
    """Downloads the missing files of one split and checks their md5."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # the progress bar shows the downloads
    for file in files:
        target = root / file.path
        if local(root, file).exists():
            continue
        fetched = pooch.retrieve(
            file.url,
            known_hash=f"md5:{file.checksum}",
            progressbar=sys.stderr.isatty(),
            path=root if file.is_archived else target.parent,
            fname=file.url.rsplit("/", 1)[1] if file.is_archived else target.name,
        )
        if file.is_archived:
            with tarfile.open(fetched) as tar:
                for member in files:
                    tar.extract(member.path, root, filter="data")

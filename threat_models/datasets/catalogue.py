"""The data sets: their files, record shapes, and the data sets of their canaries."""

from dataclasses import dataclass

from audit import checks


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
"""The data set of the input canary for each training set (`foreign_canary`)."""


def check_name(name: str) -> str:
    """The name of a known data set, given in upper or lower case."""
    return checks.one_of("dataset", name, tuple(FILES))


def split_files(name: str, train: bool) -> tuple[RemoteFile, ...]:
    """The files of one split; the test split is the last two files of four, else the last file."""
    files = FILES[name]
    test = 2 if len(files) == 4 else 1
    return files[:-test] if train else files[-test:]

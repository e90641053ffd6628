"""The class `Records`, labelled records, and the checks of file contents that all readers share.

Errors about a content name the file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput
from canaries import InputCanary

Bytes = NDArray[np.uint8]
MAX_BYTES = 1 << 28
"""Maximum size of a file and of its unpacked content; the largest official one has 225 MB."""


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records.

    Attributes:
        features: [n, channels, height, width] or [n, ...], finite.
        labels: [n] classes in [0, classes).
        classes: number of classes.
        name: the name in reports.

    Raises:
        InvalidInput: there are no records, features are not finite, labels are not classes, or the
            numbers of features and labels differ.

    Example:
        >>> import numpy as np
        >>> Records(np.zeros((3, 1, 8, 8), np.float32), np.array([0, 1, 9]), 10, "mine").name
        'mine'
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: int
    name: str

    def __post_init__(self) -> None:
        if len(self.features) == 0:
            raise InvalidInput(f"data set {self.name} must have at least one record, got none")
        if self.labels.ndim != 1 or self.labels.dtype.kind not in "iu":
            raise InvalidInput(
                f"labels of {self.name} must be whole numbers, one per record, got shape "
                f"{self.labels.shape} of {self.labels.dtype}"
            )
        if len(self.features) != len(self.labels):
            raise InvalidInput(
                f"data set {self.name} must have one label per record, got "
                f"{len(self.labels)} labels for {len(self.features)} records"
            )
        if np.iscomplexobj(self.features):
            raise InvalidInput(
                f"features of {self.name} must be real numbers, got {self.features.dtype}"
            )
        if not np.all(np.isfinite(self.features)):
            raise InvalidInput(f"features of {self.name} must be finite, got NaN or infinity")
        if self.labels.min() < 0 or self.labels.max() >= self.classes:
            raise InvalidInput(
                f"labels of {self.name} must be in [0, {self.classes - 1}], got "
                f"{self.labels.min()} to {self.labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def canary(self, index: int) -> InputCanary:
        """Record `index` as a canary, written M[I] in the paper.

        Raises:
            InvalidInput: the index is out of range.
        """
        if not 0 <= index < len(self):
            raise InvalidInput(
                f"canary_index must be in [0, {len(self) - 1}] for {self.name}, got {index}"
            )
        return InputCanary(self.features[index], int(self.labels[index]), f"{self.name}[{index}]")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context that adds the file's name to every error while it is read."""
    try:
        if not checks.is_stored_file(path):
            raise InvalidInput("it is missing, empty or not an ordinary file")
        yield
    except Exception as error:  # a damaged file can cause almost any exception
        lines = str(error).splitlines() or [type(error).__name__]
        raise InvalidInput(
            f"file {path} must be complete and in the official format: {lines[0]}"
        ) from error


def read_bytes(path: Path) -> bytes:
    """The bytes of a file of at most MAX_BYTES."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise InvalidInput(f"it must have at most {MAX_BYTES} bytes, got {size}")
    return path.read_bytes()


def pixels_of(values: Any, shape: tuple[int, ...]) -> Bytes:
    """Pixels, whole numbers in [0, 255], of an array of images of this shape, as bytes."""
    array = _numbers("images", values)
    if array.ndim == 0 or array.shape[1:] != shape or len(array) == 0:
        raise InvalidInput(f"it must contain images of shape {shape}, got an array {array.shape}")
    return _whole_numbers("pixels", array, 0, 255)


def labels_of(values: Any, count: int, low: int = 0, high: int = 9) -> Bytes:
    """Labels, whole numbers in [low, high], of an array or list with one per image, as bytes."""
    if isinstance(values, list):
        kinds = {type(value).__name__ for value in values} - {"int", "float"}
        if kinds:  # checked first, because numpy would traverse nested lists
            raise InvalidInput(f"labels must be numbers, got {', '.join(sorted(kinds))}")
        values = np.asarray(values)
    array = _numbers("labels", values)
    if array.ndim != 1:
        raise InvalidInput(f"labels must be one number per image, got an array {array.shape}")
    if len(array) != count:
        raise InvalidInput(
            f"it must contain one label for each of {count} images, got {len(array)}"
        )
    return _whole_numbers("labels", array, low, high)


def _numbers(name: str, values: Any) -> NDArray[Any]:
    if not isinstance(values, np.ndarray):  # numpy could traverse nested tuples for hours
        raise InvalidInput(
            f"{name} must be an array of numbers, got {checks.with_article(type(values).__name__)}"
        )
    if values.dtype.kind not in "uif":
        raise InvalidInput(f"{name} must be an array of numbers, got one of {values.dtype}")
    return values


def _whole_numbers(name: str, array: NDArray[Any], low: int, high: int) -> Bytes:
    if array.dtype != np.uint8 or low > 0 or high < 255:
        # NaN fails this comparison.
        good = (array >= low) & (array <= high) & (array == np.floor(array))
        if not good.all():
            wrong = array[~good].flat[0]
            raise InvalidInput(f"{name} must be whole numbers in [{low}, {high}], got {wrong}")
    return np.asarray(array, dtype=np.uint8)

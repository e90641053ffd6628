"""The records that a user's training function trains on, and the canary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput
from canaries import InputCanary

# Canaries are 1,000 times as long as records, and squares of larger ones would overflow.
_LARGEST = 1e100


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Labelled records, as they are passed to `train`; there may be none.

    Attributes:
        features: [n, ...], real numbers.
        labels: [n], classes or real targets.

    Raises:
        InvalidInput: the numbers of features and labels differ, or numbers are complex.

    Example:
        >>> import numpy as np
        >>> records = TrainingSet(np.zeros((3, 2)), np.array([0, 1, 1]))
        >>> records.without_last().labels.tolist()
        [0, 1]
    """

    features: NDArray[Any]
    labels: NDArray[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", np.asarray(self.features))
        object.__setattr__(self, "labels", np.asarray(self.labels))
        _check_shapes("records", self.features, self.labels)
        for name, values in (("features", self.features), ("labels", self.labels)):
            if np.iscomplexobj(values):
                raise InvalidInput(
                    f"{name} of records must be real numbers, got {values.dtype}: pass real and "
                    "imaginary parts as separate features"
                )

    @classmethod
    def of(cls, records: Any, name: str = "records") -> "TrainingSet":
        """From a pair (features, labels), or anything with attributes of these names.

        Args:
            records: the records.
            name: name of the parameter in error messages.

        Raises:
            InvalidInput: the records are something else, or not finite.
        """
        if isinstance(records, cls):
            return _real_numbers(name, records)
        if isinstance(records, Sequence) and len(records) == 2 and not isinstance(records, str):
            features, labels = records
        else:
            try:
                features, labels = records.features, records.labels
            except AttributeError:
                raise InvalidInput(
                    f"{name} must be a pair (features, labels) of arrays of numbers, got "
                    f"{_kind_and_keys(records)}"
                ) from None
        arrays = _array(name, "features", features), _array(name, "labels", labels)
        _check_shapes(name, *arrays)
        return _real_numbers(name, cls(*arrays))

    def __len__(self) -> int:
        """Number of records."""
        return len(self.labels)

    def without_last(self) -> "TrainingSet":
        """All records but the last, if there is any."""
        return self.first_records(max(len(self) - 1, 0))

    def first_records(self, count: int) -> "TrainingSet":
        """The first `count` records, or all if there are fewer."""
        return TrainingSet(self.features[:count], self.labels[:count])

    def with_record(self, record: "TrainingSet") -> "TrainingSet":
        """These records followed by others, which are converted to the types of these."""
        features = record.features.astype(self.features.dtype, copy=False)
        labels = record.labels.astype(self.labels.dtype, copy=False)
        return TrainingSet(
            np.concatenate([self.features, features]), np.concatenate([self.labels, labels])
        )


def _check_shapes(parameter: str, features: NDArray[Any], labels: NDArray[Any]) -> None:
    if features.ndim < 2 or labels.shape != features.shape[:1]:
        raise InvalidInput(
            f"{parameter} must be features [n, ...] with one label each, got features of shape "
            f"{features.shape} and labels of shape {labels.shape}"
        )


def _array(parameter: str, name: str, values: Any) -> NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray):
        raise InvalidInput(f"{parameter} must be arrays of numbers, got a masked array")
    if isinstance(values, Mapping):
        raise InvalidInput(
            f"{parameter} must be arrays of numbers, got {name} as {_kind_and_keys(values)}"
        )
    try:
        array = np.asarray(checks.detached(values))
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            f"{parameter} must be arrays of numbers, got {type(values).__name__}: {error}"
        ) from None
    _check_type(parameter, name, array)
    return array


def _kind_and_keys(value: Any) -> str:
    keys = f" with the keys {checks.one_line([*value])}" if isinstance(value, Mapping) else ""
    return f"{checks.kind_of(value)}{keys}"


def _check_type(parameter: str, name: str, values: NDArray[Any]) -> None:
    if values.dtype.kind not in "fiubc":  # complex numbers have an error of their own
        raise InvalidInput(
            f"{parameter} must hold real numbers, got {name} of type {values.dtype}: encode "
            "text and categories as whole numbers"
        )


def _real_numbers(parameter: str, records: TrainingSet) -> TrainingSet:
    """The records, if all of their numbers are real and finite."""
    for name, values in (("features", records.features), ("labels", records.labels)):
        _check_type(parameter, name, values)
        if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
            bad = int(np.size(values) - np.isfinite(values).sum())
            raise InvalidInput(
                f"{parameter} must be finite, got {bad} {name} that are NaN or infinite"
            )
        largest = max(abs(float(v)) for v in (values.max(initial=0), values.min(initial=0)))
        if largest > _LARGEST:
            raise InvalidInput(
                f"{parameter} must be at most {_LARGEST:g} in size, so that norms do not overflow, "
                f"got {name} of size {largest:.3g}"
            )
    return records


def one_record(record: Any) -> TrainingSet:
    """A single record, to be added to others.

    Args:
        record: an `InputCanary`, or a pair (features, label).

    Raises:
        InvalidInput: the record is something else, or not finite.
    """
    if isinstance(record, InputCanary):
        return TrainingSet(record.features[None], np.array([record.label]))
    if isinstance(record, Sequence) and len(record) == 2:
        features, label = (
            _array("canary", "features", record[0]),
            _array("canary", "label", record[1]),
        )
        return _real_numbers("canary", TrainingSet(features[None], label[None]))
    raise InvalidInput(
        "canary must be an InputCanary, a DiracCanary or a pair (features, label), "
        f"got {type(record).__name__}"
    )

"""Canaries and their validation."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from canaries import DiracCanary, InputCanary, crafted


def test_dirac_canaries_are_equal() -> None:
    assert DiracCanary() == DiracCanary()
    assert DiracCanary().name == "dirac"


def test_input_canary_stores_its_record() -> None:
    pixels = np.ones((1, 2, 2), np.float32)
    canary = InputCanary(pixels, 3, "TOY[0]")
    assert canary.features is pixels
    assert (canary.label, canary.name) == (3, "TOY[0]")


def test_input_canaries_compare_features_and_labels() -> None:
    pixels = np.ones((1, 2, 2), np.float32)
    canary = InputCanary(pixels, 3, "one")
    same = InputCanary(pixels.copy(), 3, "two")
    assert canary == same
    assert hash(canary) == hash(same)
    assert canary not in (InputCanary(pixels, 4), InputCanary(0 * pixels, 3), DiracCanary())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_input_canary_rejects_nonfinite_features(value: float) -> None:
    with pytest.raises(ValueError, match=r"canary features must be finite .* \(1, 2, 2\)"):
        InputCanary(np.full((1, 2, 2), value, np.float32), 0)


def test_input_canary_rejects_empty_features_and_negative_labels() -> None:
    with pytest.raises(ValueError, match="not empty"):
        InputCanary(np.zeros((0,), np.float32), 0)
    with pytest.raises(ValueError, match="canary label must be a whole number >= 0, got -1"):
        InputCanary(np.zeros((1,), np.float32), -1)


@pytest.mark.parametrize("label", [3.7, np.nan, "three"])
def test_input_canary_rejects_labels_that_are_not_whole_numbers(label: float | str) -> None:
    with pytest.raises(ValueError, match="canary label must be a whole number >= 0, got"):
        InputCanary(np.zeros((1,), np.float32), label)


def test_input_canary_converts_numpy_labels_to_int() -> None:
    assert type(InputCanary(np.zeros((1,), np.float32), np.int64(3)).label) is int


@pytest.mark.parametrize("features", [[[1.0]], np.ones(1, complex), np.array(["a"]), None])
def test_input_canary_rejects_features_that_are_not_real_arrays(features: Any) -> None:
    with pytest.raises(ValueError, match="canary features must be a numpy array of real numbers"):
        InputCanary(features, 0)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int16])
def test_a_crafted_record_of_whole_numbers_uses_a_value_of_the_records(kind: type) -> None:
    """An index outside a vocabulary raises an error, and a negative number wraps in uint8."""
    words: NDArray[Any] = np.array([[3, 3, 9], [3, 9, 7], [8, 7, 3]], kind)
    canary = crafted(words, np.array([0, 1, 1]))
    assert canary.features.tolist() == [8, 8, 8]
    assert canary.features.dtype == kind
    assert canary.label == 0


def test_a_crafted_record_of_a_table_stays_within_the_range_of_each_column() -> None:
    """Each column may have another vocabulary, whose indices end at its largest value."""
    table: NDArray[Any] = np.array([[0, 5, 20], [1, 5, 21], [1, 6, 20], [0, 6, 21], [0, 5, 22]])
    canary = crafted(table, np.zeros(5, np.int64))
    assert canary.features.tolist() == [1, 6, 22]
    assert crafted(table > 5, np.zeros(5, np.int64)).features.tolist() == [False, True, True]

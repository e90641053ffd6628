"""Today's code computes the frozen values; see the package for how to store new ones."""

import pytest

from .entries import Entry, read
from .families import FAMILIES

ENTRIES = {family: entries() for family, entries in FAMILIES.items()}
CASES = [(family, name) for family, entries in ENTRIES.items() for name in entries]
QUICK = [case for case in CASES if ENTRIES[case[0]][case[1]].is_quick]


def check(family: str, name: str) -> None:
    entry, frozen = ENTRIES[family][name], read(family)[name]
    moved = entry.differences(name, frozen, entry.value())
    assert not moved, "\n".join(f"{family} | {line}" for line in moved)


@pytest.mark.thin(4, otherwise="thorough")
@pytest.mark.parametrize(("family", "name"), QUICK)
def test_quick_values_are_frozen(family: str, name: str) -> None:
    check(family, name)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [case for case in CASES if case not in QUICK])
def test_other_values_are_frozen(family: str, name: str) -> None:
    check(family, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_entry_is_frozen(family: str) -> None:
    assert list(read(family)) == list(ENTRIES[family])


def test_a_moved_value_is_named_with_both_values() -> None:
    entry = Entry(lambda: {"epsilon": 2.0 * (1.0 + 2e-9), "bound": "tight", "new": 1})
    frozen = {"epsilon": 2.0, "bound": "region"}
    value = entry.value()
    assert entry.differences("cost", frozen, value) == [
        "cost | epsilon: frozen 2.0, computed 2.000000004",
        'cost | bound: frozen "region", computed "tight"',
    ]
    assert not entry.differences("cost", {"epsilon": 2.000000003, "bound": "tight"}, value)
    refused = {"refused": "InvalidInput"}
    assert entry.differences("cost", refused, value)
    assert entry.differences("cost", frozen, refused)
    assert entry.differences("cost", [1.0], [1.0, 2.0])
    assert entry.differences("cost", True, 1.0)

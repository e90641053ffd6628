"""One place for each kind of finding."""

import importlib

import pytest

from audit.loop import finding_kinds
from audit.loop.finding_kinds import KINDS, LAST
from audit.loop.findings import PREMISES


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_finding_names_its_test_and_what_it_explains(name: str) -> None:
    kind = KINDS[name]
    assert kind.premise in PREMISES
    module, _, function = kind.test.rpartition(".")
    found = importlib.import_module(f"audit.loop.premises.{module}")
    assert callable(getattr(found, function))
    assert set(kind.explains) <= set(KINDS) - {name}
    assert (kind.rank == LAST) == (kind.premise == "number of records")


def test_no_two_kinds_have_one_name() -> None:
    assert len(finding_kinds._ALL) == len(KINDS)


def test_no_decision_is_taken_by_a_sentence() -> None:
    import audit.loop.premises as package

    folder = importlib.resources.files(package)
    for file in folder.iterdir():
        if file.name.endswith(".py"):
            assert ".message.startswith" not in file.read_text()
            assert ".message.split" not in file.read_text()

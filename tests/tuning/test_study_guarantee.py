"""The input and settings of a study, and audits of its certified cost."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from light_runs import noisy
from study_helpers import BASE, study

from audit import accounting, protocols, tuning
from audit.tuning.journal import Journal
from benchmarks import studies


@pytest.mark.thin(4, otherwise="thorough")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"space": {}}, "space must name at least one hyperparameter"),
        ({"space": 5}, "space must be a mapping from names to values, or a list"),
        ({"space": {1: [1, 2]}}, "space must name hyperparameters by text, got 1"),
        ({"space": {"": [1, 2]}}, "space must name every hyperparameter, got an empty name"),
        ({"folder": 5}, "folder must be a path or None, got 5"),
        (
            {"space": {"lr": range(10**12)}},
            r"space\['lr'\]: values must be a list of one to 100000",
        ),
        ({"space": itertools.repeat({"lr": 1})}, "values must be a list of one to 100000, got mor"),
        ({"space": {"lr": set(range(10**4))}}, r"space\['lr'\] must be .* got {.{,200}\.\.\.$"),
        ({"space": {"lr": 0.1}}, r"space\['lr'\] must be a list of values, Uniform"),
        ({"space": [1, 2]}, "space must be a mapping from names to values, or a list"),
        (
            {"space": {"f": [noisy]}, "folder": ""},
            r"space\[\'f\'\] must hold values with the same text",
        ),
        ({"protocol": "noisy-max:3"}, "protocol must be one that a study can run"),
        ({"protocol": "grid:3"}, "space must have the 3 candidates of grid:3, got 4"),
        (
            {"base": None, "epsilon": 1.0, "steps": 9, "protocol": "subset:0.1/fixed:2"}
            | {"neighbours": "replace-one"},
            "neighbours must be add-remove or zero-out with subset",
        ),
        ({"scored_on": "validation"}, "a score with no noise on private records"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"base": None}, "epsilon and steps, or base, must be given"),
        ({"steps": 10}, "neighbours and group_size must not be given with base"),
        (
            {"epsilon": 0.1, "protocol": "grid:4"},
            "epsilon must be at least .* the cost of this base with grid:4, got 0.1",
        ),
        ({"space": {"steps": [1, 2]}}, "space must not name steps"),
        (
            {"base": None, "epsilon": 1.0, "steps": 9, "space": {"noise_multiplier": [1, 2]}},
            "space must state budgets as lists .* got 'noise_multiplier': the study computes",
        ),
        (
            {"base": None, "epsilon": 1.0, "steps": 9, "protocol": "fixed:2"}
            | {"space": [{"lr": 1}, {"lr": 2, "epochs": 3}]},
            "space must state budgets as lists .* got 'epochs'",
        ),
        (
            {"base": None, "epsilon": 1.0, "space": {"steps": tuning.Uniform(1, 9)}},
            "space must name budgets as lists",
        ),
        (
            {"base": None, "epsilon": 1.0, "steps": 9, "scored_on": tuning.Private(0.01, 1.0)},
            "a private score alone may cost more",
        ),
    ],
)
def test_bad_input_is_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        study(**settings)
    assert "\n" not in str(caught.value)


def test_accept_is_refused_where_no_run_is_accepted() -> None:
    for method in ("run", "rehearse"):
        with pytest.raises(ValueError, match=r"\(until, stopping, schedule\), got fixed:2"):
            getattr(study(protocol="fixed:2"), method)(noisy, accept=lambda outcome: True)


@pytest.mark.thorough
def test_bad_arguments_of_run_are_one_line() -> None:
    with pytest.raises(ValueError, match=r"accept must be given with protocol until:0.5"):
        study(protocol="until:0.5").run(noisy, rehearse=False)
    with pytest.raises(ValueError, match="jobs must be 1 with protocol adaptive"):
        study(protocol="adaptive:0.5,2/tnb:1,0.5").run(noisy, jobs=2)
    with pytest.raises(ValueError, match="train must be a function, got None"):
        study().run(None)
    with pytest.raises(ValueError, match=r"function of \(trial\), got one of \(\)"):
        study().run(lambda: None)
    with pytest.raises(ValueError, match=r"function of \(trial, records\), got one of \(trial\)"):
        study().run(lambda trial: None, records=[1.0])
    with pytest.raises(ValueError, match=r"accept must be a function, got 0\.9"):
        study(protocol="until:0.5").run(noisy, accept=0.9)
    with pytest.raises(ValueError, match="save and load must be given together"):
        study().run(noisy, save=print)
    with pytest.raises(ValueError, match=r"noise_std must be in .* no guarantee"):
        tuning.Private(0.0, 1.0)


ONE_OF_EACH = {
    type(protocols.parse_protocol(one.protocol)): one for one in reversed(studies.honest(200))
}


@pytest.mark.thorough
@pytest.mark.thin(3)
@pytest.mark.parametrize("attack", list(ONE_OF_EACH.values()), ids=lambda one: one.protocol)
def test_winners_leak_at_most_the_certified_epsilon(attack: Any) -> None:
    learns = attack.protocol.startswith("adaptive")  # a Gaussian process a run: slow
    leaked = attack.leaked(40 if learns else 200)
    assert leaked <= attack.cost
    # The attack detects leakage; on a subset, it needs the 5,000 studies of the test below.
    assert learns or attack.protocol.startswith("subset") or leaked > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("attack", studies.honest(5_000), ids=lambda one: one.protocol)
def test_winners_of_ten_thousand_studies_leak_at_most_the_certified_epsilon(attack: Any) -> None:
    assert 0.0 < attack.leaked(5_000) <= attack.cost


# The control that fails after the smallest number of studies comes first: others are slow.
BROKEN = sorted(
    zip(studies.broken(250), (250, 400, 1500), strict=True), key=lambda one: one[1] != 400
)


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize(("attack", "number"), BROKEN)
def test_studies_that_violate_their_claim_are_refuted(attack: Any, number: int) -> None:
    assert attack.leaked(number) > attack.cost


def test_a_user_defined_mechanism_need_not_be_hashable() -> None:
    class Own(accounting.Mechanism):
        pairs = BASE.pairs
        __hash__ = None

    assert isinstance(study(base=Own()).base, Own)
    shared = study(base=Own(), scored_on=tuning.Private(2.0, 1.0))
    assert float(shared.base.delta(1.0)) == float(BASE.delta(1.0))


def test_settings_are_plain_values() -> None:
    text = json.dumps(study(scored_on=tuning.Private(1.0, 1.0)).settings)
    assert "noise_std" in text


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:

    journal = Journal(tmp_path)
    (tmp_path / journal._records_path.name).write_text('{"point": 3}\n')
    with pytest.raises(ValueError, match=r"edited or damaged, got runs.jsonl without it"):
        journal.records()

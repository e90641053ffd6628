"""Conditions of certificates, descriptions of protocols, and the html and text forms."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from certificate_helpers import ONE_RUN, forged, set_at
from html_page import Page

from audit import accounting, protocols, tuning, verify
from audit.accounting import GaussianMechanism, PureDp
from audit.accounting.combinations import Candidates, WorstOf
from audit.certificate import Certificate, Ground, StudyFacts, schema
from audit.certificate.conditions import Private, bases_of, conditions
from audit.numerics import rounded_up
from audit.tuning.outcome import Outcome, Trial

SCORE = Private(1.0, 0.2, disjoint=False)


@pytest.mark.thorough
@pytest.mark.usefixtures("region_alone")
@pytest.mark.parametrize(
    ("space", "disjoint"),
    [
        ({"lr": [1]}, True),
        ({"lr": [1]}, False),
        pytest.param({"lr": [1], "steps": [5, 10]}, False, marks=pytest.mark.slow),
    ],
)
def test_noisy_scores_are_part_of_the_base(
    tmp_path: Path, disjoint: bool, space: dict[str, list[int]]
) -> None:
    steps = None if "steps" in space else 5
    study = tuning.Study(
        space,
        "fixed:1",
        50.0,
        steps=steps,
        scored_on=tuning.Private(0.1, 0.02, disjoint=disjoint),
        folder=None,
    )
    study.run(lambda trial: tuning.Outcome(1.0))
    found = study.certificate
    assert found.score == Private(0.1, 0.02, disjoint)
    assert found.base in bases_of(found.training, found.score)
    jsonschema.Draft202012Validator(schema()).validate(found.as_dict())
    if "steps" not in space:  # else it takes seconds
        found.save(tmp_path / "c.json")
        assert verify.main([str(tmp_path / "c.json")]) == 0
    assert verify.main(forged(found.as_dict(), set_at(["score"], None), tmp_path / "c.json")) == 1


@pytest.mark.slow
def test_certificate_of_a_subset_has_no_score_of_other_records() -> None:
    honest = tuning.Study(
        {"lr": [1]},
        "fixed:1",
        base=GaussianMechanism(0.1),
        scored_on=tuning.Private(1.0, 0.2),
        folder=None,
    )
    honest.run(lambda trial: tuning.Outcome(1.0))
    values = honest.certificate.as_dict() | {"protocol": "subset:0.1/fixed:1"}
    with pytest.raises(ValueError, match="is read by every run"):
        Certificate.from_dict(values)


@pytest.mark.parametrize("kind", [accounting.WorstOf, accounting.Candidates])
def test_score_of_a_run_that_is_one_of_several(kind: type[Candidates] | type[WorstOf]) -> None:
    one, other, noise = GaussianMechanism(0.1), GaussianMechanism(0.3), GaussianMechanism(0.2)
    both = [accounting.Composition((each, noise)) for each in (one, other)]
    several = kind((one, other))
    assert bases_of(several, SCORE) == [accounting.Composition((several, noise)), kind(tuple(both))]
    drawn = accounting.Mixture((one, other), (0.5, 0.5))
    assert accounting.Mixture(tuple(both), (0.5, 0.5)) in bases_of(drawn, SCORE)
    assert bases_of(drawn, None) == [drawn]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("fixed:5", "exactly 5 runs"),
        ("tnb:0,0.2", r"logarithmic distribution with parameter gamma = 0.2; 2.485 on average"),
        ("geometric:0.1", r"geometric distribution with stopping probability 0.1; 10 on average"),
        ("tnb:0.5,0.1", "negative binomial distribution without 0, with shape eta = 0.5"),
        ("poisson:3", "Poisson distribution with mean 3; 3 on average"),
        ("binomial:10,0.5", "binomial distribution of 10 trials with probability 0.5"),
        ("two-point:0.5,11", "two values, 1 with probability 0.5 and 11 otherwise"),
        ("tnb:0,0.2@7", "gamma = 0.2, given that there are at most 7 runs"),
        ("grid:20", "fixed list of 20 candidates, trains each of them once"),
        ("grid:20,0.5", "each of them with probability 0.5"),
        ("adaptive:0.5,2/fixed:3", "to between 0.5 and 2 times the prior"),
        ("subset:0.1/fixed:3", r"\(0.1 of them on average\).*on all other records"),
        ("until:0.1", "A run is good enough with probability at least 0.1"),
        ("stopping:0.1", "gives up with probability 0.1"),
        ("schedule:4,2,1", "each of 3 steps, with 4, 2, 1 times the noise"),
        ("best:3/fixed:5", "exactly 5 runs.*releases the best 3, or all if there are fewer"),
    ],
)
def test_protocols_in_words(spec: str, words: str) -> None:
    assert protocols.parse_protocol(spec).can_be_studied()
    assert re.search(words, protocols.parse_protocol(spec).statement.summary)


def test_an_unfinished_study_has_no_certificate() -> None:
    study = tuning.Study({"lr": [1, 2]}, "tnb:1,0.5", base=GaussianMechanism(0.5), folder=None)
    with pytest.raises(ValueError, match="certificate needs a study that was run to its end"):
        study.certificate  # noqa: B018


def test_a_certificate_lists_the_checks_of_runs() -> None:
    class Recorded:
        history = ((1.0, 0.1, 10),)

    def grounds(check: bool) -> dict[str, Ground]:
        def train(trial: Trial) -> Outcome:
            if check:
                trial.check(Recorded())
            return tuning.Outcome(1.0)

        base = accounting.DpSgd(1.0, 10, 0.1)
        study = tuning.Study({"lr": [1]}, "fixed:3", base=base, folder=None)
        study.run(train)
        facts = StudyFacts({}, tuple(study._played.checked))
        found = conditions(base, study.protocol, None, facts)
        return {one.name: one.ground for one in found}

    seen = grounds(True)
    assert {seen[name] for name in ("steps", "noise_multiplier", "sampling_rate", "constants")} == {
        Ground.CHECKED
    }
    # Poisson sampling needs the loader, the divisor the optimizer; no check covers clipping, and
    # how the constants were found.
    unseen = ("poisson_sampling", "divisor", "clipping", "noise", "released", "relation add-remove")
    assert {seen[name] for name in unseen} == {Ground.ON_TRUST}
    assert {grounds(False)[name] for name in ("steps", "constants")} == {Ground.ON_TRUST}


def test_add_remove_conditions_name_the_constant_divisor() -> None:
    base = accounting.DpSgd(1.0, 10, 0.1)
    facts = StudyFacts({}, ("divisor",), expected_batch_size=240.0)
    found = {one.name: one for one in conditions(base, ONE_RUN, None, facts)}
    assert found["divisor"].ground is Ground.CHECKED
    assert found["divisor"].words.endswith("divided by 240")
    zero_out = replace(base, neighbours="zero-out")
    names = {one.name for one in conditions(zero_out, ONE_RUN, None, facts)}
    assert "relation zero-out" in names
    assert not names & {"divisor", "constants", "relation add-remove"}


@pytest.mark.slow
@pytest.mark.usefixtures("region_alone")
def test_certificate_of_a_group_of_records() -> None:
    one, three = accounting.DpSgd(20.0, 100), accounting.DpSgd(20.0, 100, group_size=3)
    facts = StudyFacts({}, settings="0" * 64)
    single, group = (
        Certificate.issue(each, each, ONE_RUN, 1e-5, None, facts) for each in (one, three)
    )
    assert single.numbers.run_epsilon == pytest.approx(GaussianMechanism(0.5).epsilon(1e-5))
    assert group.numbers.run_epsilon == pytest.approx(GaussianMechanism(1.5).epsilon(1e-5))
    assert "up to 3 records of one person" in group.setting.neighbours
    assert group.setting.unit == "up to 3 of: one record"
    assert "-differentially private for add-remove neighbours, if" in group.statement
    # Groups of two such groups are six records; four such groups hold ten records.
    assert [records for records, _ in group.groups][:2] == [6, 9]
    assert 21 not in dict(group.groups)
    assert 21 in dict(group.declare(records_per_person=19).groups)
    assert dict(group.groups)[6] >= GaussianMechanism(3.0).epsilon(1e-5)


def test_score_and_training_compose_for_a_group_of_records() -> None:
    score = Private(noise_std=1.0, sensitivity=0.5, disjoint=True)
    run = accounting.DpSgd(20.0, 100, group_size=3)
    assert isinstance(score.with_training(run), accounting.Composition)
    assert isinstance(score.with_training(replace(run, group_size=1)), accounting.WorstOf)


@pytest.mark.thorough
def test_html_is_self_contained(certificate: Certificate, tmp_path: Path) -> None:
    certificate.save(tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert "url(http" not in text
    assert "<script" not in text
    assert text.count("<svg") == 2
    assert "&lt;b&gt;" in text  # a candidate's value is escaped
    for word in ("Membership advantage", "on trust", "Events that make it void"):
        assert word in text
    # The number on the banner is that of the table below it.
    banner = re.search(r'class="claim">[^<]*if the (\d+) conditions below hold', text)
    assert text.count('class="ground on-trust"') == int(banner[1]) == 14  # type: ignore[index]
    assert "The 14 conditions</h2>" in text
    assert "drawn from the geometric distribution with stopping probability 0.5" in text


def test_text_is_a_summary_and_a_paragraph(certificate: Certificate, tmp_path: Path) -> None:
    certificate.save(tmp_path / "c.txt")
    text = (tmp_path / "c.txt").read_text()
    assert text == f"{certificate}\n"
    summary, paragraph = text.split("\n\n")
    rows = [line for line in summary.splitlines() if not line.startswith(" ")]
    assert len(rows) == 9
    epsilon = rounded_up(certificate.numbers.epsilon)
    assert rows[0] == f"Cost of the release: epsilon = {epsilon} at delta = 1e-05"
    assert all(one.words in " ".join(summary.split()) for one in certificate.on_trust)
    title, statement = paragraph.split("\n", 1)
    assert title == "EVERYTHING IN ONE PARAGRAPH"
    assert statement.startswith(certificate.statement[:60])
    assert max(map(len, text.splitlines())) <= 88
    words = " ".join(text.split())
    for one in ("Read by the score: public records only", '"lr: log-uniform in [0.01, 1.0]"'):
        assert one in words
    assert f"dp-tuning-audit {certificate.made.version}, Python" in words
    assert "Random draws: 256 bits of entropy" in words
    with pytest.raises(ValueError, match=r"path's ending must be one of .json, .txt, .html"):
        certificate.save(tmp_path / "c.pdf")


@pytest.mark.parametrize(
    "base",
    [
        accounting.DpSgd(1.0, 10, 0.1, "replace-one"),
        accounting.Composition((GaussianMechanism(0.1), PureDp(0.2))),
        accounting.Mixture((GaussianMechanism(0.1), GaussianMechanism(0.3)), (0.25, 0.75)),
        accounting.WorstOf((accounting.LaplaceMechanism(2.0), accounting.ZeroConcentratedDp(0.1))),
        accounting.RandomisedResponse(1.0, 3),
        accounting.ApproximateDp(1.0, 1e-6),
    ],
)
def test_mechanisms_round_trip_through_plain_values(base: Any) -> None:
    plain = json.loads(json.dumps(accounting.mechanism_to_dict(base)))
    assert accounting.mechanism_from_dict(plain) == base


def test_curves_round_trip_through_plain_values() -> None:
    curve = accounting.RenyiCurve(np.array([2.0, 4.0]), np.array([0.1, 0.3]))
    again = accounting.mechanism_from_dict(
        json.loads(json.dumps(accounting.mechanism_to_dict(curve)))
    )
    np.testing.assert_array_equal(again.orders, curve.orders)
    with pytest.raises(ValueError, match=r"mechanism must be one of .* got 'Gaussian'"):
        accounting.mechanism_from_dict({"mechanism": "Gaussian"})
    with pytest.raises(ValueError, match="mechanism PureDp must have epsilon_0, got none"):
        accounting.mechanism_from_dict({"mechanism": "PureDp", "mu": 1.0})
    with pytest.raises(ValueError, match="parameter of PureDp must be one of epsilon_0, got 'mu'"):
        accounting.mechanism_from_dict({"mechanism": "PureDp", "epsilon_0": 1.0, "mu": 1.0})


def test_a_random_choice_of_mechanisms_costs_their_mean() -> None:
    parts = (GaussianMechanism(0.2), GaussianMechanism(1.0))
    mixed = accounting.Mixture(parts, (0.75, 0.25))
    epsilons = np.linspace(0, 4, 9)
    mean = 0.75 * parts[0].delta(epsilons) + 0.25 * parts[1].delta(epsilons)
    np.testing.assert_allclose(mixed.delta(epsilons), mean, rtol=1e-12)
    # A pair on a grid is never below, and far below the largest.
    through = mixed.pairs[0].profile(epsilons)
    assert (through >= mean * (1 - 1e-9)).all()
    assert (through <= mean * 1.01 + 1e-12).all()
    orders = np.array([2.0, 8.0])
    assert (mixed.renyi(orders) <= parts[1].renyi(orders)).all()
    moment = sum(
        chance * np.exp((orders - 1) * part.renyi(orders))
        for chance, part in zip((0.75, 0.25), parts, strict=True)
    )
    np.testing.assert_allclose(mixed.renyi(orders), np.log(moment) / (orders - 1), rtol=1e-12)

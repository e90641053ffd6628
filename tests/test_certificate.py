"""Certificates: numbers against known truths, three renderings, and what verification finds."""

import json
import re
import shutil
import subprocess
import time
from dataclasses import replace
from decimal import Decimal

import jsonschema
import numpy as np
import pytest
import torch
from html_page import Page
from scipy import special

from audit import accounting, protocols, tuning, verify
from audit.accounting import GaussianMechanism, PureDp
from audit.certificate import (
    Certificate,
    Declaration,
    Evidence,
    Ground,
    Numbers,
    Spending,
    StudyFacts,
    check_signature,
    compute,
    model_hash,
    schema,
    sign,
)
from audit.certificate.certificate import FORMAT, hash_of
from audit.certificate.conditions import AS_STATED, PROTOCOLS, Private, bases_of, conditions
from audit.certificate.numbers import TradeOff
from audit.certificate.verification import _differences
from audit.certificate.wording import in_words

ONE_RUN = protocols.parse_protocol("fixed:1")


@pytest.fixture
def region_alone(monkeypatch):
    """Certificates are issued with one bound, which is fast."""
    monkeypatch.setattr(
        "audit.certificate.certificate.compute", lambda *given: compute(*given, ["region"])
    )


@pytest.fixture(scope="module")
def certificate():
    study = tuning.Study(
        {"lr": tuning.LogUniform(0.01, 1.0), "hidden": [16, "<b>"]},
        "tnb:1,0.5",
        base=accounting.DpSgd(20.0, 100),
        folder=None,
    )
    study.run(lambda trial: tuning.Outcome(trial.candidate["lr"], "model"))
    found = study.certificate
    # One bound alone, which is fast: tests compute it anew many times.
    numbers = compute(found.base, found.protocol, found.delta, ["region"])
    assert numbers.epsilon <= 1.01 * found.numbers.epsilon
    return replace(found, numbers=numbers)


def gaussian_curve(mu, rate):
    return special.ndtr(-special.ndtri(rate) - mu)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_numbers_of_one_gaussian_run_are_the_known_ones(mu):
    numbers = compute(GaussianMechanism(mu), ONE_RUN, 1e-5, ["region"])
    assert numbers.epsilon == pytest.approx(GaussianMechanism(mu).epsilon(1e-5), rel=1e-3)
    # A table of points lies below the curve, never above, and not by much.
    advantage = 2 * special.ndtr(mu / 2) - 1
    assert advantage <= numbers.advantage <= 1.15 * advantage
    for found, rate in zip(numbers.true_positives, (0.01, 0.001), strict=True):
        true = 1 - gaussian_curve(mu, rate)
        assert true <= found <= 1.35 * true
    assert mu <= numbers.mu <= 1.2 * mu
    assert 0.0 <= numbers.mu_regret < 0.03
    for rate, least in numbers.trade_off:
        assert least <= gaussian_curve(mu, rate) + 1e-12


def test_numbers_of_pure_dp_are_the_known_ones():
    epsilon = 1.2
    numbers = compute(PureDp(epsilon), ONE_RUN, 1e-5, ["region"])
    # Randomised response: f(a) = max(1 - e^eps a, e^-eps (1 - a)), advantage tanh(eps / 2).
    assert numbers.advantage == pytest.approx(np.tanh(epsilon / 2), rel=2e-2)
    assert numbers.advantage >= np.tanh(epsilon / 2)
    assert numbers.true_positives[0] == pytest.approx(0.01 * np.exp(epsilon), rel=0.02)
    assert numbers.mu_regret > 0.01  # no Gaussian curve says what randomised response is


def test_mu_is_the_least_whose_curve_lies_below():
    slack = 1e-5
    curve = TradeOff(compute(GaussianMechanism(1.0), ONE_RUN, slack, ["region"]).profile)
    rates = np.concatenate([np.geomspace(1e-12, 0.01, 500), np.linspace(0.01, 1, 2000)])
    reached = curve.false_negatives(rates) + slack
    mu = curve.mu(slack)
    assert (gaussian_curve(mu, rates) <= reached + 1e-12).all()
    assert not (gaussian_curve(0.99 * mu, rates) <= reached).all()
    regret = curve.regret(mu)
    shifted = curve.false_negatives(np.minimum(rates + regret, 1.0)) - regret
    assert (shifted <= gaussian_curve(mu, rates) + 1e-9).all()


def test_ceiling_is_what_a_game_without_errors_shows():
    # No error in n games bounds its rate by 1 - (alpha/2)^(1/n).
    rate = 1 - 0.025 ** (1 / 1000)
    expected = np.log((1 - 1e-5 - rate) / rate)
    assert Evidence(0.0, 0.95, 1000, 1000).ceiling(1e-5) == pytest.approx(expected, rel=1e-6)
    assert Evidence(0.0, 0.95, 1, 1).ceiling(1e-5) == 0.0


def test_evidence_above_the_bound_is_refused(certificate):
    assert certificate.with_evidence(0.1, 0.95, 100, 100).evidence.epsilon_lower == 0.1
    with pytest.raises(ValueError, match="epsilon_lower must be at most the certified epsilon"):
        certificate.with_evidence(99.0, 0.95, 100, 100)


def test_json_comes_back_as_it_was(certificate, tmp_path):
    certificate = certificate.with_evidence(0.1, 0.95, 100, 200)
    certificate.save(tmp_path / "c.json")
    values = json.loads((tmp_path / "c.json").read_text())
    again = Certificate.from_dict(values)
    assert again == certificate
    assert again.as_dict() == values
    assert isinstance(again.numbers, Numbers)


def test_correct_certificate(certificate, tmp_path, capsys):
    certificate.with_evidence(0.1, 0.95, 100, 200).save(tmp_path / "c.json")
    assert verify.main([str(tmp_path / "c.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"correct: \([\d.]+, 1e-05\)-DP by region, if the 14 conditions on trust hold", lines[0]
    )
    assert lines[1] == "numbers: recomputed and correct"
    assert "18 that this tuning requires are present; stated by the author, not" in lines[2]
    assert sum(line.startswith("  on trust: ") for line in lines) == 14
    assert any(line.startswith("not stated: responsible, dataset,") for line in lines)


def _set(path, value):
    def change(values):
        *way, last = path
        for key in way:
            values = values[key]
        values[last] = value

    return change


CHANGES = [
    (_set(["numbers", "epsilon"], 0.5), "numbers.epsilon is 0.5"),
    (_set(["numbers", "advantage"], 0.01), "numbers.advantage is 0.01"),
    (_set(["numbers", "profile", 3, "epsilon"], 0.1), r"numbers.profile\[3\].epsilon is 0.1"),
    (_set(["numbers", "trade_off", 2, 1], 1.0), r"numbers.trade_off\[2\]\[1\] is 1.0"),
    (_set(["numbers", "mu"], 0.1), "numbers.mu is 0.1"),
    (_set(["numbers", "attained"], None), "numbers.attained is None"),
    (_set(["groups", 0, "epsilon"], 0.1), r"groups\[0\].epsilon is 0.1"),
    (_set(["evidence", "ceiling"], 9.0), "evidence.ceiling is 9.0"),
    (_set(["evidence", "epsilon_lower"], 9.0), "an audit shows epsilon >= 9"),
    (_set(["protocol"], "tnb:1,0.1"), "protocol_in_words is"),
    (_set(["base", "steps"], 400), "base is not training with its score"),
    (_set(["training", "steps"], 50), "base is not training with its score"),
    (_set(["delta"], 1e-6), "evidence.ceiling is"),
    (_set(["delta"], "1e-05"), r"delta is '1e-05'"),
    (_set(["statement"], "(0.1, 1e-5)-DP"), "statement is"),
    (_set(["protocol_in_words"], "It trains once."), "protocol_in_words is 'It trains once.'"),
    (_set(["base", "description"], "a mechanism"), "base.description is 'a mechanism'"),
    (_set(["conditions"], []), r"conditions\[0\] is 'missing', must be .*'draws'"),
    (lambda values: values["conditions"].pop(), r"conditions\[17\] is 'missing'"),
    (lambda values: values["conditions"].append(values["conditions"][0]), "must be 'absent'"),
    (_set(["conditions", 4, "ground"], "checked"), r"conditions\[4\].ground is 'checked'"),
    (_set(["conditions", 4, "words"], "all is well"), r"conditions\[4\].words is 'all is well'"),
    (_set(["void_if"], []), r"void_if\[0\] is 'missing'"),
    (_set(["setting", "released", 0], "all runs"), r"setting.released\[0\] is 'all runs'"),
    (_set(["setting", "unit"], "one person"), "setting.unit is 'one person'"),
    (_set(["setting", "relation"], "replace-one"), "setting.relation is 'replace-one'"),
    (_set(["study", "checked"], ["mechanism"]), r"study.checked is \['mechanism'\]"),
    (
        _set(["study", "checked"], ["steps"]),
        r"conditions\[4\].ground is 'on trust', must be 'checked'",
    ),
    (_set(["not_stated"], []), r"not_stated\[0\] is 'missing'"),
    (_set(["total"], {"epsilon": 1.0, "delta": 0.1}), "total is"),
    (_set(["score"], {"noise_std": 1.0, "sensitivity": 1.0, "disjoint": True}), "base is not"),
    (_set(["made", "date"], "1999-01-01"), "made.date is '1999-01-01'"),
    (_set(["made", "date"], "2999-01-01"), "made.date is '2999-01-01'"),
    (_set(["made", "date"], "today"), "made.date is 'today'"),
    (_set(["made", "version"], "0.2\x1b[2J"), r"made.version is '0.2\\x1b\[2J'"),
    (_set(["more"], "\u202e"), r"more is '\\u202e', must be 'absent'"),
    (_set(["a\nright: (0.1, 1e-05)-DP"], 1), r"'a\\nright: .*, must be 'absent'"),
]


@pytest.fixture(scope="module")
def plain(certificate):
    return certificate.with_evidence(0.1, 0.95, 100, 200).as_dict()


def forged(values, change, path):
    """Changes a certificate and its hash, as a forger would."""
    values = json.loads(json.dumps(values))
    change(values)
    path.write_text(json.dumps(values | {"hash": hash_of(values)}))
    return [str(path)]


def test_hash_detects_damage(plain, tmp_path, capsys):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(plain | {"delta": 1e-4}))
    assert verify.main([str(path)]) == 1
    assert capsys.readouterr().out == "wrong: the hash is not that of the other fields\n"


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_forged_field_is_named_although_its_hash_fits(plain, tmp_path, capsys, change, words):
    assert verify.main(forged(plain, change, tmp_path / "c.json")) == 1
    out = capsys.readouterr().out
    assert re.search(f"^wrong: .*({words})", out)
    assert out.splitlines()[0].isprintable()
    assert out.isascii()


def test_no_ground_can_be_made_better(plain, tmp_path, capsys):
    def change(values):
        for one in values["conditions"]:
            one["ground"] = "checked"
        values["made"]["date"] = "1999-01-01"
        values["statement"] = values["statement"].replace("10 conditions", "0 conditions")

    assert verify.main(forged(plain, change, tmp_path / "c.json")) == 1
    assert "conditions[0].ground is 'checked', must be 'by construction'" in capsys.readouterr().out


def test_every_field_but_statements_of_the_author_is_recomputed(plain, tmp_path):
    # The forgery of every text and number, one by one; what passes is named here.
    stated = {("made", "version"), ("made", "python"), ("study", "settings")}
    path = tmp_path / "c.json"

    def leaves(value, way=()):
        if isinstance(value, dict | list):
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                yield from leaves(one, (*way, key))
        else:
            yield way, value

    passed = set()
    tried = 0
    for way, value in leaves(plain):
        if way[0] in ("numbers", "groups", "hash", "format"):
            continue  # numbers: see above
        tried += 1
        other = {str: "0" * 64 if way == ("study", "settings") else "3.1"}.get(type(value), 0.37)
        if isinstance(value, bool):
            other = not value
        try:
            code = verify.main(forged(plain, _set(way, other), path))
        except AssertionError:
            raise AssertionError(way) from None
        if code == 0:
            passed.add(way)
    assert tried > 70
    stated |= {way for way in passed if way[:2] == ("made", "libraries")}
    stated |= {way for way in passed if way[0] == "declaration" or way[:2] == ("study", "prior")}
    # The author's statements are not verified, and the output says so.
    assert passed <= stated | {("study", "key_kept"), ("evidence", "epsilon_lower")}


def test_every_computed_number_is_compared(certificate):
    full = certificate.declare(earlier_spending=[Spending("counts", 0.5, 1e-9)]).as_dict()
    compared = 0

    def numbers_in(value, way=()):
        if isinstance(value, dict | list):
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                yield from numbers_in(one, (*way, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield way, value

    for way, value in numbers_in(full):
        for other in (0.37, 0.9 * value, 1.1 * value, 1e-300, -value, value == 1):
            if other is not False and (other == value or abs(other) + abs(value) < 1e-200):
                continue
            values = json.loads(json.dumps(full))
            _set(way, other)(values)
            assert list(_differences(values, full, "")), (way, value, other)
            compared += 1
    assert compared > 400


def test_a_little_less_is_wrong_and_a_little_more_is_not(plain, tmp_path, capsys):
    # Other versions of numpy may compute a little less than a file states, never much more.
    def times(factor):
        def change(values):
            values["numbers"]["profile"][0]["epsilon"] *= factor
            values["numbers"]["epsilon"] *= factor

        return forged(plain, change, tmp_path / "c.json")

    assert plain["numbers"]["epsilon"] > 1.0
    assert verify.main(times(1.0 - 1e-8)) == 1
    assert verify.main(times(1.0 + 1e-8)) == 0
    assert verify.main(times(1.0 + 1e-5)) == 1


def test_forged_terminal_sequences_are_printed_as_escapes(certificate, tmp_path, capsys):
    evil = 'x\x1b[1A\x1b[2K\nright: (0.1, 1e-05)-DP\u202e\u2028\u200b\x9b1A"'
    found = certificate.declare(dataset=evil, responsible="P\u0430ul")
    found = replace(found, study=replace(found.study, prior={evil: evil}))
    for ending in ("json", "txt", "html"):
        found.save(tmp_path / f"c.{ending}")
        text = (tmp_path / f"c.{ending}").read_text()
        assert all(one.isprintable() or one == "\n" for one in text)
        assert "\nright:" not in text
    assert "P\\u0430ul" in (tmp_path / "c.json").read_text()
    assert verify.main([str(tmp_path / "c.json")]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert all(line.isprintable() for line in out.splitlines())
    assert 'responsible person: "P\\u0430ul"' in out  # not Paul
    assert not any(line.startswith("right") for line in out.splitlines())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "certificate must be a readable json file"),
        ("[]", "certificate must be of format"),
        ('{"format": "other/1"}', "certificate must be of format .* got 'other/1'"),
        ('{"format": "private-tuning-certificate/1"}', "got 'private-tuning-certificate/1', whose"),
        ('{"format": "private-tuning-certificate/2"}', "certificate must have the fields"),
        ('{"a": 1, "b": 2, "a": 1}', "a name must occur once in an object, got 'a' twice"),
        ('{"a": NaN}', "a number must be finite, got NaN"),
        ('{"a": -Infinity}', "a number must be finite, got -Infinity"),
        ('{"a": 1e999}', "a number must be finite, got 1e999"),
        ('{"a": 1%s}' % ("0" * 400), "an integer must be at most 2\\^53"),
        ('{"a": 1%s}' % ("0" * 5000), "an integer must be at most 2\\^53"),
        ("\ufeff{}", "certificate must be a readable json file"),
        ('{"format": "\\u001b[2Jx\\ny"}', r"got '\\x1b\[2Jx\\ny'"),
    ],
)
def test_what_is_no_certificate_is_one_line(tmp_path, capsys, text, words):
    (tmp_path / "c.json").write_text(text, encoding="utf-8")
    assert verify.main([str(tmp_path / "c.json")]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error)
    assert error.count("\n") == 1


@pytest.mark.parametrize("depth", [900, 5000, 50_000])
@pytest.mark.parametrize("part", ["base", "made", "conditions"])
def test_what_is_nested_too_deeply_is_no_certificate(plain, tmp_path, capsys, part, depth):
    inside = '{"mechanism": "Composition", "parts": [' * depth + "1" + "]}" * depth
    text = json.dumps({**plain, part: "@"}).replace('"@"', inside)
    (tmp_path / "c.json").write_text(text)
    assert verify.main([str(tmp_path / "c.json")]) in (1, 2)
    assert capsys.readouterr().err.count("\n") <= 1


HOSTILE = [
    _set(["conditions", 0, "words"], None),
    _set(["conditions", 0, "words"], ["a"]),
    _set(["conditions", 0], None),
    _set(["conditions"], None),
    _set(["void_if", 0], {}),
    _set(["setting"], []),
    _set(["statement"], 3),
    _set(["delta"], None),
    _set(["delta"], True),
    _set(["protocol"], "noisy-max:10"),
    _set(["numbers", "profile"], [{"delta": 0.1, "epsilon": 1.0 * n} for n in range(20_000)]),
    _set(["protocol"], ["tnb:1,0.5"]),
    _set(["numbers", "bounds"], ["region"] * 100_000),
    _set(["numbers", "bounds"], [str(n) for n in range(100_000)]),
    _set(["numbers", "bounds"], []),
    _set(["numbers"], dict.fromkeys(map(str, range(100_000)), 1.0)),
    _set(["study", "prior"], dict.fromkeys(map(str, range(100_000)), "")),
    _set(["training"], dict.fromkeys(map(str, range(100_000)), 1.0)),
    _set(["base", "mechanism"], "D" * 1_000_000),
    _set(["base", "noise_multiplier"], 1e300),
    _set(["base", "noise_multiplier"], []),
    _set(["numbers", "epsilon"], "9"),
    _set(["declaration"], None),
    _set(["declaration", "earlier_spending"], [None]),
    _set(["declaration", "dataset"], "x" * 100_000),
    _set(["made", "libraries"], {"numpy": None}),
    _set(["evidence"], 7),
    _set(["score"], {"noise_std": 0.0, "sensitivity": 1.0, "disjoint": 1}),
    lambda values: values.pop("conditions"),
    lambda values: values["setting"].pop("released"),
]


@pytest.mark.parametrize("change", HOSTILE)
def test_hostile_values_are_refused_soon_and_in_one_line(plain, tmp_path, capsys, change):
    command = forged(plain, change, tmp_path / "c.json")
    began = time.process_time()
    assert verify.main(command) == 2
    assert time.process_time() - began < 5.0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert len(captured.err) < 1100


def test_large_file_is_not_read_to_its_end(tmp_path, capsys):
    with open(tmp_path / "c.json", "wb") as file:
        file.truncate(90_000_000)
    assert verify.main([str(tmp_path / "c.json")]) == 2
    assert "at most 10000000 bytes" in capsys.readouterr().err
    assert verify.main([str(tmp_path / "none.json")]) == 2
    assert verify.main([str(tmp_path)]) == 2


def test_verification_has_a_time_limit(plain, tmp_path, capsys, monkeypatch):
    command = forged(plain, lambda values: None, tmp_path / "c.json")

    def forever(*_):
        while True:
            try:
                time.sleep(10.0)
            except Exception:  # no handler of errors swallows the end
                continue

    monkeypatch.setattr("audit.certificate.verification.compute", forever)
    assert verify.main([*command, "--seconds", "0.2"]) == 2
    assert "--seconds raises the limit" in capsys.readouterr().err


def test_seed_makes_it_void(certificate, tmp_path, capsys):
    void = replace(certificate, study=replace(certificate.study, seeded=True))
    assert void.statement.startswith("VOID: a seed was given")
    void.save(tmp_path / "c.json")
    assert verify.main([str(tmp_path / "c.json")]) == 3
    out = capsys.readouterr().out
    assert out.startswith("void: a seed was given")
    assert "numbers: recomputed and correct" in out
    void.save(tmp_path / "c.html")
    assert '<body class="void">' in (tmp_path / "c.html").read_text()
    # Without its seed, the same file is void no longer only if every sentence is changed, too.
    change = _set(["study", "seeded"], False)
    assert verify.main(forged(void.as_dict(), change, tmp_path / "c.json")) == 1


@pytest.mark.parametrize("mu", [0.2, 0.5, 1.0])
def test_groups_of_a_gaussian_have_the_known_epsilon(mu):
    delta = 1e-5
    curve = TradeOff(compute(GaussianMechanism(mu), ONE_RUN, delta, ["region"]).profile)
    assert curve.group_epsilon(1, delta) == pytest.approx(GaussianMechanism(mu).epsilon(delta))
    for size in (2, 3):  # of k records: mu is k times as large
        true = GaussianMechanism(size * mu).epsilon(delta)
        assert true <= curve.group_epsilon(size, delta) <= 1.04 * true
    assert curve.group_epsilon(100, delta) is None
    assert curve.group_epsilon(101, delta) is None


def test_groups_of_pure_dp_cost_their_size():
    curve = TradeOff(compute(PureDp(0.5), ONE_RUN, 1e-5, ["region"]).profile)
    for size in (2, 5, 10):
        assert 0.999 * size * 0.5 <= curve.group_epsilon(size, 1e-5) <= size * 0.5 + 1e-6


def test_group_curve_is_the_chain_of_curves():
    # Independent of the bends: the supremum over a fine grid of rates.
    delta = 1e-5
    curve = TradeOff(compute(GaussianMechanism(0.5), ONE_RUN, delta, ["region"]).profile)
    rates = np.geomspace(1e-9, 1.0, 200_000)
    chain = rates
    for _ in range(3):
        chain = 1.0 - curve.false_negatives(chain)
    found = np.log(np.max((chain - delta) / rates))
    assert found <= curve.group_epsilon(3, delta) <= found + 1e-3


def test_declared_statements(certificate, tmp_path):
    found = certificate.declare(
        responsible="A. Person",
        dataset="Digits 1.0",
        records="private",
        records_per_person=4,
        max_grad_norm=1.0,
        normalizer="120, a constant",
        pretraining="none",
        preprocessing="none",
        earlier_spending=[Spending("counts", 0.5, 1e-6), Spending("means", 0.25, 0.0)],
    )
    assert found.not_stated == ()
    assert found.declare(records=7).declaration.dataset == "Digits 1.0"
    assert [size for size, _ in found.groups] == [2, 3, 4, 5, 10]
    values = found.as_dict()
    assert values["total"]["epsilon"] == pytest.approx(found.numbers.epsilon + 0.75)
    exact_sum = Decimal(repr(found.numbers.epsilon)) + Decimal("0.75")
    assert Decimal(repr(values["total"]["epsilon"])) >= exact_sum
    assert values["total"]["delta"] == 1.1e-5
    assert Certificate.from_dict(values) == found
    found.save(tmp_path / "c.json")
    assert verify.main([str(tmp_path / "c.json")]) == 0
    assert certificate.not_stated[0] == "responsible"
    alone = certificate.declare(earlier_spending=()).as_dict()["total"]
    assert alone == {"epsilon": certificate.numbers.epsilon, "delta": 1e-5}


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ({"dataset": ""}, "dataset must be a text of 1 to 1000 characters, got ''"),
        ({"unit": None}, "unit must be a text"),
        ({"records": "many"}, "records must be a whole number or 'private', got 'many'"),
        ({"records": 0}, "records must be a whole number"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be in"),
        ({"earlier_spending": 3}, "earlier_spending must be a sequence"),
        ({"data_set": "x"}, "statement must be one of .* did you mean 'dataset'"),
    ],
)
def test_wrong_statements_are_refused(certificate, statements, words):
    with pytest.raises(ValueError, match=words):
        certificate.declare(**statements)


def test_zero_out_neighbours_have_a_public_number_of_records(certificate, monkeypatch):
    def relations(_):
        return frozenset({"zero-out"})

    monkeypatch.setattr("audit.certificate.conditions.relations", relations)
    found = certificate.declare(records=100)
    assert found.setting.relation == "zero-out"
    words = {one.name: one.words for one in found.conditions}
    assert words["relation zero-out"] == "the number of records is public"
    assert "relation add-remove" not in words
    with pytest.raises(ValueError, match="records must be public with zero-out neighbours"):
        certificate.declare(records="private")


def test_hash_of_a_model():
    layer = torch.nn.Linear(3, 2)
    found = model_hash(layer)
    assert found == model_hash(layer.state_dict())
    arrays = {name: one.detach().numpy() for name, one in layer.named_parameters()}
    assert found == model_hash(arrays)
    with torch.no_grad():
        layer.bias[0] += 1e-3
    different = [layer, arrays["weight"], arrays["weight"].T, [1, 2], [[1], 2], ["12"], b"12"]
    hashes = [model_hash(one) for one in [*different, 1, 1.0, True, "1", (), {}]]
    assert found not in hashes
    assert len(set(hashes)) == len(hashes)
    assert None not in hashes
    for unknown in (None, object(), {"a": object()}, np.array([object()])):
        assert model_hash(unknown) is None
    assert model_hash(torch.zeros(2, dtype=torch.bfloat16)) is not None


def test_certificate_has_the_hash_of_the_released_model(certificate):
    assert certificate.model_hash == model_hash("model")


@pytest.mark.usefixtures("region_alone")
def test_certificate_of_an_objective_has_the_hash_of_its_model():
    optuna = pytest.importorskip("audit.integrations.optuna")
    study = optuna.PrivateStudy("fixed:1", base=GaussianMechanism(0.5), folder=None)

    def objective(trial):
        trial.set_user_attr("model", {"weight": 2.0})
        return trial.suggest_float("x", 0.0, 1.0)

    best = study.optimize(objective)
    assert study.certificate.model_hash == model_hash(best.model) == model_hash({"weight": 2.0})


def test_schema_describes_certificates(certificate, plain):
    validator = jsonschema.Draft202012Validator(schema())
    validator.check_schema(schema())
    full = certificate.declare(
        responsible="A", records="private", earlier_spending=[Spending("x", 1.0, 0.0)]
    )
    for values in (plain, full.as_dict()):
        validator.validate(values)
    assert schema()["properties"]["format"]["const"] == FORMAT
    relations = schema()["properties"]["setting"]["properties"]["relation"]["enum"]
    assert relations == [*accounting.NEIGHBOURS, AS_STATED]
    statements = schema()["properties"]["declaration"]["properties"]
    assert set(statements) == set(Declaration().as_dict())
    for change in (
        _set(["more"], 1),
        _set(["delta"], "1e-5"),
        _set(["conditions", 0, "words"], None),
        _set(["conditions", 0, "ground"], "proven"),
        _set(["numbers", "epsilon"], None),
        lambda values: values.pop("void_if"),
    ):
        values = json.loads(json.dumps(plain))
        change(values)
        assert not validator.is_valid(values)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "certificate must be given"),
        (["c.json", "--sign", "k", "--check-signature", "s"], "--sign must not be given with"),
        (["c.json", "--signature", "s"], "--signature must be given with"),
    ],
)
def test_options_that_do_not_fit_are_refused(capsys, options, words):
    with pytest.raises(SystemExit, match="2"):
        verify.main(options)
    assert words in capsys.readouterr().err


def test_schema_is_printed(capsys):
    assert verify.main(["--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    path = tmp_path_factory.mktemp("keys") / "key"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def test_signature_of_a_certificate(certificate, tmp_path, capsys, key):
    path, signers = tmp_path / "c.json", tmp_path / "signers"
    certificate.save(path)
    public = key.with_suffix(".pub").read_text()
    signers.write_text(f"alice@example.org {public}")
    assert verify.main([str(path), "--sign", str(key)]) == 0
    assert (tmp_path / "c.json.sig").read_text().startswith("-----BEGIN SSH SIGNATURE-----")
    assert verify.main([str(path), "--check-signature", str(signers)]) == 0
    assert "signature: valid, by 'alice@example.org'" in capsys.readouterr().out
    # A second signature would overwrite the first.
    assert verify.main([str(path), "--sign", str(key)]) == 2
    assert "signature must not exist yet" in capsys.readouterr().err
    # A correct certificate, but another one.
    certificate.declare(dataset="another").save(path)
    assert verify.main([str(path)]) == 0
    capsys.readouterr()
    assert verify.main([str(path), "--check-signature", str(signers)]) == 1
    assert capsys.readouterr().out.startswith("wrong: the signature is not that of an allowed")


def test_signature_by_somebody_else_is_none(certificate, tmp_path, key):
    content = json.dumps(certificate.as_dict()).encode()
    signature, signers = tmp_path / "s", tmp_path / "signers"
    signature.write_bytes(sign(content, key))
    other = tmp_path / "other"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)]
    subprocess.run(command, check=True)
    signers.write_text(f"mallory {other.with_suffix('.pub').read_text()}")
    assert check_signature(content, signature, signers) is None
    signers.write_text(f"alice {key.with_suffix('.pub').read_text()}")
    assert check_signature(content, signature, signers) == "alice"
    assert check_signature(content + b" ", signature, signers) is None
    # Signatures of the same key for another purpose are none of this.
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "file"]
    done = subprocess.run(command, input=content, capture_output=True, check=True)
    signature.write_bytes(done.stdout)
    assert check_signature(content, signature, signers) is None
    with pytest.raises(ValueError, match="signature must be a file"):
        check_signature(content, tmp_path / "none", signers)
    with pytest.raises(ValueError, match="key must be an ssh key that can sign"):
        sign(content, signers)


def test_wrong_certificate_is_not_signed(plain, tmp_path, capsys, key):
    path = tmp_path / "c.json"
    command = forged(plain, _set(["delta"], 1e-4), path)
    assert verify.main([*command, "--sign", str(key)]) == 1
    assert not (tmp_path / "c.json.sig").exists()
    assert "signature: not made" in capsys.readouterr().out


def test_page_is_rendered_from_what_was_verified(certificate, plain, tmp_path, capsys):
    certificate.save(tmp_path / "c.json")
    certificate.save(tmp_path / "c.txt")
    page = tmp_path / "again.txt"
    assert verify.main([str(tmp_path / "c.json"), "--render", str(page)]) == 0
    assert page.read_text() == (tmp_path / "c.txt").read_text()
    page.unlink()
    command = forged(plain, _set(["delta"], 1e-4), tmp_path / "c.json")
    assert verify.main([*command, "--render", str(page)]) == 1
    assert not page.exists()


SCORE = Private(1.0, 0.2, disjoint=False)


@pytest.mark.usefixtures("region_alone")
@pytest.mark.parametrize(
    ("space", "disjoint"),
    [
        ({"lr": [1]}, True),
        ({"lr": [1]}, False),
        pytest.param({"lr": [1], "steps": [5, 10]}, False, marks=pytest.mark.slow),
    ],
)
def test_noisy_scores_are_part_of_the_base(tmp_path, disjoint, space):
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
    assert verify.main(forged(found.as_dict(), _set(["score"], None), tmp_path / "c.json")) == 1


@pytest.mark.parametrize("kind", [accounting.WorstOf, accounting.Candidates])
def test_score_of_a_run_that_is_one_of_several(kind):
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
    ],
)
def test_protocols_in_words(spec, words):
    assert isinstance(protocols.parse_protocol(spec), PROTOCOLS)
    assert re.search(words, in_words(protocols.parse_protocol(spec)))


def test_there_is_none_before_the_study_is_over():
    study = tuning.Study({"lr": [1, 2]}, "tnb:1,0.5", base=GaussianMechanism(0.5), folder=None)
    with pytest.raises(ValueError, match="certificate needs a study that was run to its end"):
        study.certificate  # noqa: B018


def test_checks_of_runs_stand_in_the_certificate():
    class Recorded:
        history = ((1.0, 0.1, 10),)

    def grounds(check):
        def train(trial):
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


def test_add_remove_conditions_name_the_constant_divisor():
    base = accounting.DpSgd(1.0, 10, 0.1)
    facts = StudyFacts({}, ("divisor",), expected_batch_size=240.0)
    found = {one.name: one for one in conditions(base, ONE_RUN, None, facts)}
    assert found["divisor"].ground is Ground.CHECKED
    assert found["divisor"].words.endswith("divided by 240")
    zero_out = replace(base, neighbours="zero-out")
    names = {one.name for one in conditions(zero_out, ONE_RUN, None, facts)}
    assert "relation zero-out" in names
    assert not names & {"divisor", "constants", "relation add-remove"}


@pytest.mark.usefixtures("region_alone")
def test_certificate_of_a_group_of_records():
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


def test_score_and_training_compose_for_a_group_of_records():
    score = Private(noise_std=1.0, sensitivity=0.5, disjoint=True)
    run = accounting.DpSgd(20.0, 100, group_size=3)
    assert isinstance(score.with_training(run), accounting.Composition)
    assert isinstance(score.with_training(replace(run, group_size=1)), accounting.WorstOf)


def test_html_stands_alone(certificate, tmp_path):
    certificate.save(tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert "url(http" not in text
    assert "<script" not in text
    assert text.count("<svg") == 2
    assert "&lt;b&gt;" in text  # a candidate's value is no markup
    for word in ("Membership advantage", "on trust", "Events that make it void"):
        assert word in text
    # The number on the banner is that of the table below it.
    banner = re.search(r'class="claim">[^<]*if the (\d+) conditions below hold', text)
    assert text.count('class="ground on-trust"') == int(banner[1]) == 14
    assert "The 14 conditions</h2>" in text
    assert "drawn from the geometric distribution with stopping probability 0.5" in text


def test_text_is_a_paragraph(certificate, tmp_path):
    certificate.save(tmp_path / "c.txt")
    text = (tmp_path / "c.txt").read_text()
    assert text.startswith(certificate.statement[:60])
    assert "\n\n" not in text
    assert max(map(len, text.splitlines())) <= 88
    words = " ".join(text.split())
    for one in ("by the score: public records only", '"lr: log-uniform in [0.01, 1.0]"'):
        assert one in words
    made = f"dp-tuning-audit {certificate.made['version']}"
    assert f"{made}. Random draws: 256 bits of entropy" in words
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
def test_mechanisms_come_back_from_plain_values(base):
    plain = json.loads(json.dumps(accounting.mechanism_to_dict(base)))
    assert accounting.mechanism_from_dict(plain) == base


def test_curves_come_back_from_plain_values():
    curve = accounting.RenyiCurve(np.array([2.0, 4.0]), np.array([0.1, 0.3]))
    again = accounting.mechanism_from_dict(
        json.loads(json.dumps(accounting.mechanism_to_dict(curve)))
    )
    np.testing.assert_array_equal(again.orders, curve.orders)
    with pytest.raises(ValueError, match=r"mechanism must be one of .* got 'Gaussian'"):
        accounting.mechanism_from_dict({"mechanism": "Gaussian"})
    with pytest.raises(ValueError, match="mechanism PureDp must have its parameters"):
        accounting.mechanism_from_dict({"mechanism": "PureDp", "mu": 1.0})


def test_one_of_several_drawn_is_their_mean():
    parts = (GaussianMechanism(0.2), GaussianMechanism(1.0))
    mixed = accounting.Mixture(parts, (0.75, 0.25))
    epsilons = np.linspace(0, 4, 9)
    mean = 0.75 * parts[0].delta(epsilons) + 0.25 * parts[1].delta(epsilons)
    np.testing.assert_allclose(mixed.delta(epsilons), mean, rtol=1e-12)
    # A pair made of a grid of points lies above, never below; and far below the largest.
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

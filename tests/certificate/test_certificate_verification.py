"""Verification of correct certificates, forgeries, and hostile files."""

import json
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificate_helpers import forged, set_at

from audit import verify
from audit.certificate import (
    Certificate,
    Numbers,
    Spending,
    verification,
)
from audit.certificate.numbers import derived
from audit.certificate.verification import _differences
from audit.commands import verify as commands_verify
from audit.errors import InvalidInput
from audit.numerics import rounded_up
from audit.upper_bounds import costs_of


def test_a_certificate_round_trips_through_json(certificate: Certificate, tmp_path: Path) -> None:
    certificate = certificate.with_evidence(0.1, 0.95, 100, 200)
    certificate.save(tmp_path / "c.json")
    values = json.loads((tmp_path / "c.json").read_text())
    again = Certificate.from_dict(values)
    assert again == certificate
    assert again.as_dict() == values
    assert isinstance(again.numbers, Numbers)


def unwrapped(out: str) -> list[str]:
    """The lines of an answer before they were wrapped at the width of the terminal."""
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("wrong: "))
    return re.sub(r"\n {4,}", " ", out).splitlines()


def test_correct_certificate(
    certificate: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate.with_evidence(0.1, 0.95, 100, 200).save(tmp_path / "c.json")
    assert verify.main([str(tmp_path / "c.json")]) == 0
    lines = unwrapped(capsys.readouterr().out)
    assert re.fullmatch(
        r"correct: \([\d.]+, 1e-05\)-DP by region, if the 14 conditions on trust hold", lines[0]
    )
    assert lines[1] == "numbers: recomputed and correct"
    assert "18 that this tuning requires are present; stated by the author, not" in lines[2]
    assert sum(line.startswith("  on trust: ") for line in lines) == 14
    assert any(line.startswith("not stated: responsible, dataset,") for line in lines)


def test_a_verdict_has_a_dozen_lines_beside_the_conditions(
    certificate: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = certificate.declare(
        responsible="A. Person",
        dataset="Digits 1.0",
        earlier_spending=[Spending("counts", 0.5, 1e-6)],
    ).with_evidence(0.1, 0.95, 100, 200)
    replace(stated, model_hash=None).save(tmp_path / "c.json")
    shown = []
    for options in ([], ["--all"]):
        assert verify.main([str(tmp_path / "c.json"), *options]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        lines = unwrapped(out)
        assert lines[0].startswith("correct: ")
        of_conditions = [line for line in lines if line.startswith("  on trust: ")]
        assert len(of_conditions) == 14
        assert "released model: hash not stated" in lines
        assert "an audit that shows epsilon >= 0.1" in out
        assert 'earlier release: (0.5, 1e-06)-DP, "counts"' in " ".join(out.split()) or options
        shown.append(out)
    short, complete = shown
    beside = re.sub(r"(?m)^  on trust: .*\n(      .*\n)*", "", short)
    assert len(beside.splitlines()) <= 13  # an audit and an earlier release take one each
    assert "A. Person" not in short
    assert "A. Person" in complete


CHANGES = [
    (set_at(["numbers", "epsilon"], 0.5), "numbers.epsilon is 0.5"),
    (set_at(["numbers", "advantage"], 0.01), "numbers.advantage is 0.01"),
    (set_at(["numbers", "profile", 3, "epsilon"], 0.1), r"numbers.profile\[3\].epsilon is 0.1"),
    (set_at(["numbers", "trade_off", 2, 1], 1.0), r"numbers.trade_off\[2\]\[1\] is 1.0"),
    (set_at(["numbers", "trade_off", 2, 0], 0.001 * (1 - 1e-10)), r"trade_off\[2\]\[0\] is 0.0009"),
    (set_at(["groups", 0, "records"], 2.0000000001), r"groups\[0\].records is 2.0000000001"),
    (set_at(["numbers", "mu"], 0.1), "numbers.mu is 0.1"),
    (set_at(["numbers", "attained"], None), "numbers.attained is None"),
    (set_at(["groups", 0, "epsilon"], 0.1), r"groups\[0\].epsilon is 0.1"),
    (set_at(["evidence", "ceiling"], 9.0), "evidence.ceiling is 9.0"),
    (set_at(["evidence", "epsilon_lower"], 9.0), "an audit shows epsilon >= 9"),
    (set_at(["protocol"], "tnb:1,0.1"), "protocol_in_words is"),
    (set_at(["base", "steps"], 400), "base is not training with its score"),
    (set_at(["training", "steps"], 50), "base is not training with its score"),
    (set_at(["delta"], 1e-6), "evidence.ceiling is"),
    (set_at(["statement"], "(0.1, 1e-5)-DP"), "statement is"),
    (set_at(["protocol_in_words"], "It trains once."), "protocol_in_words is 'It trains once.'"),
    (set_at(["base", "description"], "a mechanism"), "base.description is 'a mechanism'"),
    (set_at(["conditions"], []), r"conditions\[0\] is 'missing', must be .*'draws'"),
    (lambda values: values["conditions"].pop(), r"conditions\[17\] is 'missing'"),
    (lambda values: values["conditions"].append(values["conditions"][0]), "must be 'absent'"),
    (set_at(["conditions", 4, "ground"], "checked"), r"conditions\[4\].ground is 'checked'"),
    (set_at(["conditions", 4, "words"], "all is well"), r"conditions\[4\].words is 'all is well'"),
    (set_at(["void_if"], []), r"void_if\[0\] is 'missing'"),
    (set_at(["setting", "released", 0], "all runs"), r"setting.released\[0\] is 'all runs'"),
    (set_at(["setting", "unit"], "one person"), "setting.unit is 'one person'"),
    (set_at(["setting", "relation"], "replace-one"), "setting.relation is 'replace-one'"),
    (set_at(["study", "checked"], ["mechanism"]), r"study.checked is \['mechanism'\]"),
    (
        set_at(["study", "checked"], ["steps"]),
        r"conditions\[4\].ground is 'on trust', must be 'checked'",
    ),
    (set_at(["not_stated"], []), r"not_stated\[0\] is 'missing'"),
    (set_at(["total"], {"epsilon": 1.0, "delta": 0.1}), "total is"),
    (set_at(["score"], {"noise_std": 1.0, "sensitivity": 1.0, "disjoint": True}), "base is not"),
    (set_at(["made", "date"], "1999-01-01"), "made.date is '1999-01-01'"),
    (set_at(["made", "date"], "2999-01-01"), "made.date is '2999-01-01'"),
    (set_at(["made", "date"], "today"), "made.date is 'today'"),
    (set_at(["made", "version"], "0.2\x1b[2J"), r"made.version is '0.2\\x1b\[2J'"),
    (set_at(["more"], "\u202e"), r"more is '\\u202e', must be 'absent'"),
    (set_at(["a\nright: (0.1, 1e-05)-DP"], 1), r"'a\\nright: .*, must be 'absent'"),
]


def test_hash_detects_damage(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(plain | {"delta": 1e-4}))
    assert verify.main([str(path)]) == 1
    assert capsys.readouterr().out == "wrong: the hash is not that of the other fields\n"


@pytest.mark.thorough
@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_forged_field_is_named_even_with_a_correct_hash(
    plain: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[..., Any],
    words: str,
) -> None:
    assert verify.main(forged(plain, change, tmp_path / "c.json")) == 1
    out = capsys.readouterr().out
    assert re.search(f"^wrong: .*({words})", out)
    assert out.splitlines()[0].isprintable()
    assert out.isascii()


def test_no_ground_of_a_condition_can_be_improved(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(values: dict[str, Any]) -> None:
        for one in values["conditions"]:
            one["ground"] = "checked"
        values["made"]["date"] = "1999-01-01"
        values["statement"] = values["statement"].replace("10 conditions", "0 conditions")

    assert verify.main(forged(plain, change, tmp_path / "c.json")) == 1
    assert "conditions[0].ground is 'checked', must be 'by construction'" in capsys.readouterr().out


@pytest.mark.slow
def test_every_field_except_the_authors_statements_is_recomputed(
    plain: dict[str, Any], tmp_path: Path
) -> None:
    # Every text and number is forged, one at a time; the fields that are not verified are listed.
    stated = {("made", "version"), ("made", "python"), ("study", "settings")}
    path = tmp_path / "c.json"

    def leaves(value: Any, way: Any = ()) -> Iterator[Any]:
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
            code = verify.main(forged(plain, set_at(way, other), path))
        except AssertionError:
            raise AssertionError(way) from None
        if code == 0:
            passed.add(way)
    assert tried > 70
    stated |= {way for way in passed if way[:2] == ("made", "libraries")}
    stated |= {way for way in passed if way[0] == "declaration" or way[:2] == ("study", "prior")}
    # The author's statements are not verified, as the output states.
    assert passed <= stated | {("study", "key_kept"), ("evidence", "epsilon_lower")}


def test_every_computed_number_is_compared(certificate: Certificate) -> None:
    full = certificate.declare(earlier_spending=[Spending("counts", 0.5, 1e-9)]).as_dict()
    compared = 0

    def numbers_in(value: Any, way: Any = ()) -> Iterator[Any]:
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
            set_at(way, other)(values)
            assert list(_differences(values, full, "")), (way, value, other)
            compared += 1
    assert compared > 400


def test_slightly_smaller_costs_are_wrong_and_slightly_larger_ones_are_not(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other versions of numpy may compute a little less than a file states, never much more.
    def times(factor: float) -> list[str]:
        def change(values: dict[str, Any]) -> None:
            values["numbers"]["profile"][0]["epsilon"] *= factor
            values["numbers"]["epsilon"] *= factor

        return forged(plain, change, tmp_path / "c.json")

    assert plain["numbers"]["epsilon"] > 1.0
    assert verify.main(times(1.0 - 1e-8)) == 1
    assert verify.main(times(1.0 + 1e-8)) == 0
    assert verify.main(times(1.0 + 1e-5)) == 1


def larger_costs(
    certificate: Certificate, factor: float, run: float = 1.0, attained: float = 1.0
) -> dict[str, Any]:
    """The certificate that a version with larger bounds would have issued, as plain values."""
    numbers = certificate.numbers
    assert numbers.run_epsilon is not None
    assert numbers.attained is not None
    profile = tuple(
        replace(point, epsilon=point.epsilon * factor + 1e-3 * (factor - 1.0))
        for point in numbers.profile
    )
    old = replace(
        numbers,
        run_epsilon=run * numbers.run_epsilon,
        attained=attained * numbers.attained,
        **derived(profile, certificate.delta),
    )
    return replace(certificate, numbers=old).as_dict()


@pytest.mark.slow
@pytest.mark.parametrize(("run", "attained"), [(1.0, 1.0), (1.001, 0.99)])
def test_a_certificate_of_larger_bounds_stays_correct(
    certificate: Certificate,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    run: float,
    attained: float,
) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(larger_costs(certificate, 1.2, run, attained)))
    assert verify.main([str(path)]) == 0
    lines = unwrapped(capsys.readouterr().out)
    today = costs_of(certificate.base, certificate.protocol, certificate.delta).smallest
    bound = re.escape(rounded_up(today.epsilon))
    words = rf"correct; today's bound is {bound}: \([\d.]+, 1e-05\)-DP by {today.name}"
    assert re.match(words, lines[0])
    assert float(lines[0].split("(")[1].split(",")[0]) > 1.19 * certificate.numbers.epsilon
    weaker = ["epsilon", "attained", "profile"] if attained < 1.0 else ["epsilon", "profile"]
    weaker = ["run_epsilon", *weaker] if run > 1.0 else weaker
    assert lines[1] == (
        f"numbers: recomputed; correct, but weaker than today's: {', '.join(weaker)}"
    )
    # The rendered page has the stated cost.
    assert verify.main([str(path), "--render", str(tmp_path / "page.txt")]) == 0
    assert (
        rounded_up(1.2 * certificate.numbers.epsilon, 3)[:3] in (tmp_path / "page.txt").read_text()
    )


@pytest.mark.slow
def test_a_cost_between_the_smallest_bound_and_the_named_one_is_correct_at_other_deltas(
    certificate: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The named bound is the region bound, and `tight` is smaller at every delta.
    tuning, delta = (certificate.base, certificate.protocol), certificate.delta

    def verified(factor: float) -> tuple[int, str]:
        profile = tuple(
            point
            if point.delta == delta  # there, the named bound must prove the cost
            else replace(point, epsilon=costs_of(*tuning, point.delta).smallest.epsilon * factor)
            for point in certificate.numbers.profile
        )
        numbers = replace(certificate.numbers, **derived(profile, delta))
        values = replace(certificate, numbers=numbers).as_dict()
        (tmp_path / "c.json").write_text(json.dumps(values))
        return verify.main([str(tmp_path / "c.json")]), capsys.readouterr().out

    code, printed = verified(1.0 + 1e-12)
    assert (code, printed.split(":")[0]) == (0, "correct")
    code, printed = verified(1.0 - 1e-6)
    assert code == 1
    assert re.match(r"wrong: (statement|numbers\.\w+(\[\d+\])?(\.\w+)?) is ", printed)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("run_epsilon", lambda numbers: replace(numbers, run_epsilon=1e6)),
        ("attained", lambda numbers: replace(numbers, attained=0.0)),
        (
            "profile",
            lambda numbers: replace(
                numbers,
                **derived(
                    tuple(
                        replace(point, epsilon=point.epsilon + 50.0 * (point.delta != 1e-5))
                        for point in numbers.profile
                    ),
                    1e-5,
                ),
            ),
        ),
    ],
)
def test_weaker_numbers_are_named(
    certificate: Certificate,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    field: str,
    change: Callable[[Numbers], Numbers],
) -> None:
    values = replace(certificate, numbers=change(certificate.numbers)).as_dict()
    (tmp_path / "c.json").write_text(json.dumps(values))
    assert verify.main([str(tmp_path / "c.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"numbers: recomputed; correct, but weaker than today's: {field}"


def test_a_negative_attained_epsilon_and_a_false_source_are_wrong(
    certificate: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = certificate.numbers
    for changed in (
        replace(numbers, attained=-5.0),
        replace(numbers, bounds=("liu-talwar",), source="Liu & Talwar 2019"),
    ):
        values = replace(certificate, numbers=changed).as_dict()
        (tmp_path / "c.json").write_text(json.dumps(values))
        assert verify.main([str(tmp_path / "c.json")]) == 1
        assert capsys.readouterr().out.startswith("wrong: ")


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "change",
    [
        # A smaller cost, at the certificate's delta or at another one.
        set_at(["numbers", "epsilon"], 0.5),
        set_at(["numbers", "profile", 3, "epsilon"], 0.1),
        # Limits that do not follow from the stated costs.
        set_at(["numbers", "advantage"], 0.01),
        set_at(["numbers", "trade_off", 2, 1], 1.0),
        set_at(["numbers", "true_positives", 0], 0.01),
        set_at(["numbers", "mu"], 0.1),
        set_at(["groups", 0, "epsilon"], 0.1),
        set_at(["numbers", "run_epsilon"], 0.1),
        set_at(["numbers", "attained"], 9.0),
        # Words of another bound.
        set_at(["numbers", "assumes"], "nothing"),
        set_at(["numbers", "source"], "a theorem"),
        lambda values: values["numbers"]["profile"].insert(4, {"delta": 0.07, "epsilon": 9.0}),
    ],
)
def test_a_certificate_of_larger_bounds_cannot_be_forged(
    certificate: Certificate,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[..., Any],
) -> None:
    values = larger_costs(certificate, 1.2)
    assert verify.main(forged(values, change, tmp_path / "c.json")) == 1
    assert capsys.readouterr().out.startswith("wrong: ")


def test_a_certificate_with_smaller_numbers_throughout_is_wrong(
    certificate: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = larger_costs(certificate, 0.9)
    (tmp_path / "c.json").write_text(json.dumps(values))
    assert verify.main([str(tmp_path / "c.json")]) == 1
    assert re.match(r"wrong: (statement|numbers\.epsilon) is ", capsys.readouterr().out)


@pytest.mark.thorough
def test_forged_terminal_sequences_are_printed_as_escapes(
    certificate: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = 'x\x1b[1A\x1b[2K\nright: (0.1, 1e-05)-DP\u202e\u2028\u200b\x9b1A"'
    found = certificate.declare(dataset=evil, responsible="P\u0430ul")
    found = replace(found, study=replace(found.study, prior={evil: evil}))
    for ending in ("json", "txt", "html"):
        found.save(tmp_path / f"c.{ending}")
        text = (tmp_path / f"c.{ending}").read_text()
        assert all(one.isprintable() or one == "\n" for one in text)
        assert "\nright:" not in text
    assert "P\\u0430ul" in (tmp_path / "c.json").read_text()
    assert verify.main([str(tmp_path / "c.json"), "--all"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert all(line.isprintable() for line in out.splitlines())
    assert 'responsible person: "P\\u0430ul"' in out  # not Paul
    assert not any(line.startswith("right") for line in out.splitlines())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "certificate must be a readable json file"),
        (" \n", "certificate must be the json file, got an empty file"),
        ("[]", "certificate must be of format"),
        ("<!DOCTYPE html>", r"got an HTML page: verify the \.json file"),
        ('{"format": "other/1"}', "certificate must be of format .* got 'other/1'"),
        ('{"format": "private-tuning-certificate/1"}', "got 'private-tuning-certificate/1', whose"),
        ('{"format": "private-tuning-certificate/2"}', "certificate must have base"),
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
def test_a_file_without_a_certificate_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (tmp_path / "c.json").write_text(text, encoding="utf-8")
    assert verify.main([str(tmp_path / "c.json")]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error)
    assert error.count("\n") == 1


@pytest.mark.parametrize("depth", [900, 5000, 50_000])
@pytest.mark.parametrize("part", ["base", "made", "conditions"])
def test_deeply_nested_files_are_refused(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, depth: int
) -> None:
    inside = '{"mechanism": "Composition", "parts": [' * depth + "1" + "]}" * depth
    text = json.dumps({**plain, part: "@"}).replace('"@"', inside)
    (tmp_path / "c.json").write_text(text)
    assert verify.main([str(tmp_path / "c.json")]) in (1, 2)
    assert capsys.readouterr().err.count("\n") <= 1


HOSTILE = [
    set_at(["conditions", 0, "words"], None),
    set_at(["conditions", 0, "words"], ["a"]),
    set_at(["conditions", 0], None),
    set_at(["conditions"], None),
    set_at(["void_if", 0], {}),
    set_at(["setting"], []),
    set_at(["statement"], 3),
    set_at(["delta"], None),
    set_at(["delta"], True),
    set_at(["delta"], "1e-05"),
    set_at(["protocol"], "noisy-max:10"),
    set_at(["numbers", "profile"], [{"delta": 0.1, "epsilon": 1.0 * n} for n in range(20_000)]),
    set_at(["protocol"], ["tnb:1,0.5"]),
    set_at(["numbers", "bounds"], ["region"] * 100_000),
    set_at(["numbers", "bounds"], [str(n) for n in range(100_000)]),
    set_at(["numbers", "bounds"], []),
    set_at(["numbers"], dict.fromkeys(map(str, range(100_000)), 1.0)),
    set_at(["study", "prior"], dict.fromkeys(map(str, range(100_000)), "")),
    set_at(["training"], dict.fromkeys(map(str, range(100_000)), 1.0)),
    set_at(["base", "mechanism"], "D" * 1_000_000),
    set_at(["base", "noise_multiplier"], 1e300),
    set_at(["base", "noise_multiplier"], []),
    set_at(["numbers", "epsilon"], "9"),
    set_at(["declaration"], None),
    set_at(["declaration", "earlier_spending"], [None]),
    set_at(["declaration", "dataset"], "x" * 100_000),
    set_at(["made", "libraries"], {"numpy": None}),
    set_at(["evidence"], 7),
    set_at(["score"], {"noise_std": 0.0, "sensitivity": 1.0, "disjoint": 1}),
    set_at(["base", "mechanism"], "WorstOf"),
    set_at(["base"], {"mechanism": "Composition", "runs": []}),
    set_at(
        ["training"],
        {
            "mechanism": "Candidates",
            "candidates": [{"mechanism": "GaussianMechanism", "mu": 0.5}] * 2,
            "chances": [[], 0.5],
        },
    ),
    set_at(["base"], {"mechanism": "Composition", "parts": [1, None]}),
    set_at(["base"], {"mechanism": "RenyiCurve", "orders": [], "divergences": []}),
    set_at(["base"], {"mechanism": "DiscreteMechanism", "p": [[1.0]], "q": None}),
    set_at(["base"], {"mechanism": "LossDistribution", "losses": [], "probabilities": []}),
    set_at(["training"], None),
    set_at(["model_hash"], ""),
    set_at(["study"], []),
    set_at(["study", "prior"], None),
    set_at(["study", "seeded"], "no"),
    set_at(["numbers"], None),
    set_at(["numbers", "profile"], None),
    set_at(["declaration", "earlier_spending"], [{"release": "a"}]),
    set_at(["declaration", "earlier_spending"], {"release": "a"}),
    set_at(["declaration", "other"], 1),
    lambda values: values.pop("numbers"),
    lambda values: values["base"].pop("noise_multiplier"),
    lambda values: values["numbers"].pop("profile"),
    lambda values: values["study"].pop("prior"),
    lambda values: values["made"].pop("date"),
    lambda values: values.pop("conditions"),
    lambda values: values["setting"].pop("released"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("change", HOSTILE)
def test_hostile_values_are_refused_quickly_in_one_line(
    plain: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[..., Any],
) -> None:
    command = forged(plain, change, tmp_path / "c.json")
    began = time.process_time()
    assert verify.main(command) == 2
    assert time.process_time() - began < 5.0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    # The output contains no words of Python's own errors.
    assert not re.search(
        r"Error\b|NoneType|object (has|is)|subscript|index|__|argument|array element", captured.err
    )
    assert len(captured.err) < 1100


@pytest.mark.parametrize(
    "error", [ZeroDivisionError, OverflowError, KeyError, IndexError, TypeError, AttributeError]
)
def test_an_error_while_numbers_are_computed_again_is_one_line(
    plain: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    # No known file leads to such an error, and no unknown one may end in a traceback.
    def compute(*given: Any) -> None:
        raise error("secret of the library")

    monkeypatch.setattr(verification, "with_stated_costs", compute)
    assert verify.main(forged(plain, lambda values: None, tmp_path / "c.json")) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: certificate must have inputs whose cost can be computed")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("path", [None, 3, b"c.json", ["c.json"]])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"^certificate must be the path of a file, got .{1,12}$"
    ):
        verification.verify(path)


def test_large_file_is_not_read_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(tmp_path / "c.json", "wb") as file:
        file.truncate(90_000_000)
    tracemalloc.start()
    try:
        assert verify.main([str(tmp_path / "c.json")]) == 2
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()
    assert "at most 10000000 bytes" in capsys.readouterr().err
    assert verify.main([str(tmp_path / "none.json")]) == 2
    assert verify.main([str(tmp_path)]) == 2


def test_a_page_that_cannot_be_written_is_refused_before_the_verdict(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = forged(plain, lambda values: None, tmp_path / "c.json")
    assert verify.main([*command, "--render", str(tmp_path / "missing" / "page.html")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: --render must be a file in a folder that exists, got ")
    assert captured.err.count("\n") == 1


def test_the_schema_is_printed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "object"
    page = str(tmp_path / "page.html")
    for argv, named in (
        (["c.json", "--render", page], "certificate, --render"),
        (["--sign", "key", "--seconds", "3"], "--sign, --seconds"),
    ):
        with pytest.raises(SystemExit) as ended:
            verify.main(["--schema", *argv])
        assert ended.value.code == 2
        assert f"--schema must be given alone, got {named} (" in capsys.readouterr().err


def test_verification_has_a_time_limit(
    plain: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = forged(plain, lambda values: None, tmp_path / "c.json")

    def forever(*_: Any) -> None:
        while True:
            try:
                sum(range(10**5))
            except Exception:  # no error handler catches the end
                continue

    monkeypatch.setattr("audit.certificate.verification.with_stated_costs", forever)
    for seconds in ("0.2", "1e-9"):  # the second passes while the alarm is set
        assert verify.main([*command, "--seconds", seconds]) == 2
        assert "--seconds raises the limit" in capsys.readouterr().err


def test_a_verification_that_only_waits_is_not_refused(
    plain: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = forged(plain, lambda values: None, tmp_path / "c.json")
    made = commands_verify.verdict_of

    def wait(content: bytes) -> Any:
        verdict = made(content)  # what it computes is in the caches of the next call
        before = time.process_time()
        with commands_verify._limited(0.2):
            time.sleep(0.5)  # as on a busy machine, or after Ctrl-Z
        assert time.process_time() - before < 0.2
        return verdict

    monkeypatch.setattr(commands_verify, "verdict_of", wait)
    assert verify.main(command) == 0
    assert capsys.readouterr().out.startswith("correct")

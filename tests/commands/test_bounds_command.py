"""The accountant, `python -m audit.bounds`."""

import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from audit import checks, console, repetitions, upper_bounds
from audit.accounting import DpSgd, GaussianMechanism
from audit.commands import bounds
from audit.commands.bounds_options import make_parser
from audit.protocols import RandomSearch, parse_protocol
from audit.repetitions import Fixed
from audit.report.cost import draw_cost
from audit.upper_bounds.registry import answered

pytestmark = pytest.mark.usefixtures("cached_bounds")
NAMES = ["base", "base-renyi", *(one.name for one in upper_bounds.entries() if not one.is_special)]


def run(capsys: pytest.CaptureFixture[str], *argv: Any) -> Any:
    code = bounds.main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_has_every_bound_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "--repetitions", "tnb:0,0.01", "--delta", "1e-5", "--mu", "0.24721", "--json"
    )
    answer = json.loads(out)
    assert code == 0
    assert (answer["delta"], answer["repetitions"]) == (1e-5, "tnb:0,0.01")
    assert [bound["name"] for bound in answer["bounds"]] == NAMES
    for bound in answer["bounds"]:
        assert bound["epsilon"] > 0
        assert bound["assumes"]
        assert bound["source"]
    assert answer["base"]["epsilon_rdp"] == pytest.approx(1.0, rel=1e-4)
    assert answer["base"]["epsilon_exact"] < answer["base"]["epsilon_rdp"]


def test_bounds_that_do_not_apply_are_null_with_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run(capsys, "--repetitions", "two-point:0.01,100", "--mu", "1", "--json")
    answer = {bound["name"]: bound for bound in json.loads(out)["bounds"]}
    for name in ("liu-talwar", "renyi", "profile"):
        assert answer[name]["epsilon"] is None
        assert "K must be" in answer[name]["reason"]
    assert answer["region"]["epsilon"] > answer["reduced-exact"]["epsilon"]


def test_ways_to_name_the_base_agree(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for base in (
        ["--gaussian-epsilon", "1", "--accounting", "rdp", "--steps", "100"],
        ["--noise-multiplier", str(10 / 0.24721082), "--steps", "100"],
        ["--mu", "0.24721082"],
    ):
        _, out, _ = run(capsys, *base, "--protocol", "noisy-max:10", "--json")
        answers.append([bound["epsilon"] for bound in json.loads(out)["bounds"]])
    assert answers[0] == pytest.approx(answers[1], rel=1e-6)
    assert answers[0] == pytest.approx(answers[2], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("accounting", ["rdp", "exact"])
def test_gaussian_epsilon_is_named_by_its_accounting(
    capsys: pytest.CaptureFixture[str], accounting: str
) -> None:
    _, out, _ = run(capsys, "--gaussian-epsilon", "2", "--accounting", accounting, "--json")
    answer = json.loads(out)
    assert answer["base"]["accounting"] == accounting
    assert answer["base"][f"epsilon_{accounting}"] == pytest.approx(2.0, rel=1e-6)
    rows = {bound["name"]: bound["epsilon"] for bound in answer["bounds"]}
    named = {"rdp": "base-renyi", "exact": "base"}[accounting]
    assert rows[named] == pytest.approx(2.0, rel=1e-6)
    assert rows["base"] < rows["base-renyi"]


@pytest.mark.thorough
def test_one_run_has_its_exact_epsilon_and_that_of_the_papers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2) = delta; min over alpha by hand.
    _, out, _ = run(capsys, "--mu", "0.5", "--delta", "1e-6", "--json")
    rows = {bound["name"]: bound for bound in json.loads(out)["bounds"]}
    assert rows["base"]["epsilon"] == pytest.approx(2.254, abs=5e-4)
    assert rows["base-renyi"]["epsilon"] == pytest.approx(2.419, abs=5e-4)
    for name in ("base", "base-renyi"):
        assert "a single run, not the tuning" in rows[name]["assumes"]


def test_one_run_without_a_finite_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--base", "approximate:1,0.001", "--json")
    rows = {bound["name"]: bound for bound in json.loads(out)["bounds"]}
    for name in ("base", "base-renyi"):
        assert rows[name]["epsilon"] is None
        assert rows[name]["reason"]
    assert "which no epsilon removes" in rows["base"]["reason"]
    assert rows["base-renyi"]["reason"] == "infinite by Renyi divergences, the eps_B of the papers"


@pytest.mark.slow
def test_names_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--accounting", "EXACT", "--solve", "Noise", "--bound", "Profile", "--json"]
    told = ["--target-epsilon", "2", "--steps", "400", "--neighbours", "Zero-Out"]
    _, upper_case, _ = run(capsys, *told, "--repetitions", "TNB:0,0.01", *asked)
    asked = ["--accounting", "exact", "--bound", "profile", "--json"]
    _, plain, _ = run(capsys, *told[:4], "--repetitions", "tnb:0,0.01", *asked)
    assert upper_case == plain


@pytest.mark.thorough
def test_zero_out_neighbours_have_the_numbers_of_add_remove(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--noise-multiplier", "40", "--steps", "20", "--protocol", "grid:3", "--json"]
    reports = [
        json.loads(run(capsys, *asked, "--neighbours", relation)[1])
        for relation in ("add-remove", "zero-out")
    ]
    words = [one["base"].pop("description") for one in reports]
    assert words[1] == words[0].replace("add-remove", "zero-out") != words[0]
    statements = [one.pop("statement") for one in reports]
    assert "for add-remove neighbours (one data set has one record more" in statements[0]
    assert "for zero-out neighbours (both data sets have the same" in statements[1]
    assert reports[0] == reports[1]
    code, _, error = run(capsys, *asked, "--neighbours", "zero")
    assert code == 2
    assert "neighbours must be one of add-remove, zero-out, replace-one, got 'zero'" in error


def test_groups_of_records_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--noise-multiplier", "40", "--steps", "20", "--json"]
    report = json.loads(run(capsys, *asked, "--group-size", "3")[1])
    assert report["base"]["mu"] == pytest.approx(3 * math.sqrt(20) / 40)
    assert "groups of 3 records" in report["base"]["description"]
    code, _, error = run(capsys, "--mu", "1", "--group-size", "3")
    assert code == 2
    assert "--group-size does not apply to --mu" in error


@pytest.mark.thorough
def test_table_names_every_bound_and_its_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--gaussian-epsilon", "1", "--steps", "300", "--all")
    assert code == 0
    for name in NAMES:
        assert f"\n{name} " in out
    assert "noise multiplier" in out
    assert "any score" in out
    assert "Renyi divergences" in out


SAMPLED = ["--noise-multiplier", "1.1", "--sampling-rate", "0.01", "--steps", "2000"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "first", "conditions"),
    [
        (
            [*SAMPLED, "--protocol", "grid:20"],
            "epsilon = 8.3142 for the tuning; 2.1598 for one run alone",
            7,
        ),
        (
            ["--target-epsilon", "2", "--steps", "400"],
            "noise multiplier = ",
            7,
        ),
        (["--mu", "0.24721"], "epsilon = 1.4488 for the tuning; 0.91501 for one run alone", 5),
    ],
)
def test_the_answer_comes_first_within_the_width_of_the_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    first: str,
    conditions: int,
) -> None:
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, out, _ = run(capsys, *argv)
        assert code == 0
        lines = out.splitlines()
        assert lines[0].startswith(first)
        assert max(map(len, lines)) <= columns
        assert sum(line.startswith("- ") for line in lines) == conditions
    _, everything, _ = run(capsys, *argv, "--all")
    assert max(map(len, everything.splitlines())) <= 60
    assert len(everything.splitlines()) > len(lines)


@pytest.mark.thorough
@pytest.mark.thin(3)
@pytest.mark.parametrize("bound", ["region", "renyi", "profile", "liu-talwar", "reduced-exact"])
@pytest.mark.parametrize("target", [0.05, 2.0, 30.0])
def test_target_epsilon_is_attained_and_not_exceeded(bound: str, target: float) -> None:
    law = repetitions.parse_repetitions("tnb:0,0.01")
    mu = upper_bounds.calibrate_mu_for_tuning(
        law, target_epsilon=target, target_delta=1e-5, bound=upper_bounds.find(bound).function
    )
    spent = upper_bounds.find(bound).function(GaussianMechanism(mu), law, 1e-5).epsilon
    assert target * (1 - 1e-6) <= spent <= target


@pytest.mark.slow
def test_target_epsilon_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--target-epsilon", "2", "--steps", "400", "--json")
    answer = json.loads(out)
    base = answer["base"]
    assert base["noise_multiplier"] == pytest.approx(math.sqrt(400) / base["mu"])
    assert 2.0 * (1.0 - 1e-4) < answer["cost"]["epsilon"] <= 2.0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--mu", "1", "--delta", "1.5"], "delta must be in (0, 1), got 1.5"),
        (["--mu", "1", "--repetitions", "tnb:0,2"], "gamma must be in (0, 1), got 2"),
        (["--mu", "1", "--repetitions", "geometrik:0.1"], "did you mean 'geometric'?"),
        (["--mu", "-1"], "mu must be in [1e-12, 1000], got -1.0"),
        (["--mu", "nan"], "mu must be in [1e-12, 1000], got nan"),
        ([], "exactly one of --noise-multiplier"),
        (["--mu", "1", "--epsilon-base", "1"], "got --epsilon-base, --mu"),
        (
            ["--noise-multiplier", "5"],
            "steps (or epochs) must be given with --noise-multiplier, got none",
        ),
        (
            ["--noise-multiplier", "-5", "--steps", "10"],
            "noise_multiplier must be in (0, inf), got -5.0",
        ),
        (["--gaussian-epsilon", "0"], "gaussian-epsilon must be in (0, inf), got 0.0"),
        (["--epsilon-base", "0"], "epsilon-base must be in (0, inf), got 0.0"),
        (["--target-epsilon", "1", "--steps", "9", "--bound", "regoin"], "did you mean 'region'?"),
        (["--target-epsilon", "1", "--steps", "9", "--bound", "worst-order"], "bound must be one"),
        (
            [
                "--target-epsilon",
                "1",
                "--steps",
                "9",
                "--bound",
                "renyi",
                "--repetitions",
                "fixed:3",
            ],
            "does not apply: K must be",
        ),
        (["--mu", "1", "--accounting", "pld"], "accounting must be one of rdp, exact, got 'pld'"),
        (["--mu", "1", "--solve", "runs"], "target-epsilon must be given with --solve runs"),
        (["--mu", "1", "--solve", "walk"], "solve must be one of noise, runs, distribution"),
        (["--mu", "1", "--sampling-rate", "0.1"], "--sampling-rate does not apply to --mu"),
        (["--base", "pure:-1"], "epsilon_0 must be in"),
        (["--mu", "1", "--tunings", "0"], "tunings must be a whole number in [1, 1000000]"),
        (["--mu", "1", "--bound", "region"], "target-epsilon must be given with --bound"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_json_has_the_cost_of_any_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--mu", "0.24721", "--json")
    answer = json.loads(out)
    assert answer["protocol"] == "tnb:0,0.01"
    any_score = {
        row["epsilon"]: row["name"]
        for row in answer["bounds"]
        if row["assumes"].startswith("any score") and row["epsilon"] is not None
    }
    assert answer["cost"]["epsilon"] == min(any_score)
    assert answer["cost"]["name"] == any_score[min(any_score)] == "tight"
    _, out, _ = run(capsys, "--mu", "0.24721", "--protocol", "until:0.1", "--json")
    answer = json.loads(out)
    assert answer["protocol"] == "until:0.1"
    assert "independent runs until one is accepted" in answer["cost"]["assumes"]
    assert "tight" not in [row["name"] for row in answer["bounds"]]


@pytest.mark.slow
def test_the_cost_of_two_tunings_is_their_total(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--mu", "0.1", "--tunings", "2", "--json")
    answer = json.loads(out)
    rows = {row["name"]: row["epsilon"] for row in answer["bounds"]}
    assert answer["cost"]["name"] == "total"
    assert rows["tight"] < answer["cost"]["epsilon"] <= 2 * rows["region"] * (1 + 1e-9)


def test_target_epsilon_under_another_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--target-epsilon", "2", "--steps", "100", "--protocol", "noisy-max:10"]
    _, out, _ = run(capsys, *told, "--json")
    answer = json.loads(out)
    assert answer["protocol"] == "noisy-max:10"
    assert 2.0 * (1 - 1e-6) <= answer["cost"]["epsilon"] <= 2.0


@pytest.mark.slow
def test_costs_of_protocols_with_the_same_number_of_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run(capsys, "--mu", "0.24721", "--compare", "10", "--json")
    compared = {one["title"]: one for one in json.loads(out)["compared"]}
    # The values of docs/theory.md: a fixed number of runs costs more than a random one.
    assert compared["random search, fixed K"]["epsilon"] == pytest.approx(2.7276, abs=2e-3)
    order = [one["epsilon"] for one in compared.values() if one["epsilon"] is not None]
    assert order == sorted(order)
    assert next(iter(compared)) == "random search, logarithmic K"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--protocol", "gird:3"], "did you mean 'grid'?"),
        (["--protocol", "grid:3", "--repetitions", "tnb:0,0.1"], "repetitions must not be given"),
        (["--protocol", "until:2"], "acceptance must be in (0, 1], got 2\n"),
        (["--protocol", "until:0.5", "--final-run"], "add the epsilons and the deltas"),
        (["--compare", "1"], "compare must be in [2, 1e+06], got 1.0"),
        (["--plot", "/no/such/folder/x.png"], "plot must be a file"),
        (["--plot", "/proc/x.png"], "plot must be a file in a"),
    ],
)
def test_bad_protocols_are_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    code, _, err = run(capsys, "--mu", "0.2", *argv)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_printed_bounds_are_rounded_to_the_safe_side(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--mu", "0.24721", "--repetitions", "tnb:0,0.01"]
    assert bounds.main([*arguments, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["bounds"]}
    assert bounds.main([*arguments, "--all"]) == 0
    printed = {}
    for line in capsys.readouterr().out.splitlines():
        words = line.split()
        if not line.startswith(" ") and words and words[0] in rows and words[1] != "-":
            printed[words[0]] = float(words[1])
    assert len(printed) > 10
    for name, value in printed.items():
        row = rows[name]
        assert value <= row["epsilon"] if row["attained"] else value >= row["epsilon"]
        assert value == pytest.approx(row["epsilon"], rel=1e-4)


@pytest.mark.slow
def test_the_printed_noise_satisfies_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = ["--repetitions", "tnb:0,0.01", "--steps", "100"]
    assert bounds.main([*common, "--target-epsilon", "2"]) == 0
    noise = capsys.readouterr().out.splitlines()[0].removeprefix("noise multiplier = ")
    assert bounds.main([*common, "--noise-multiplier", noise, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["bounds"]}
    assert 1.9999 < rows["tight"]["epsilon"] <= 2.0


@pytest.mark.slow
def test_the_search_for_runs_states_where_it_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--mu", "0.0005", "--target-epsilon", "5", "--solve", "runs", "--repetitions")
    _, out, _ = run(capsys, *argv, "binomial:50,0.5", "--json")
    notes = json.loads(out)["notes"]
    assert notes == ["the search for more runs stopped at 50: the budget allows more"]
    base, law = GaussianMechanism(0.1), Fixed(10_000_000)
    assert bounds._ends_of_search(base, RandomSearch(law), "runs", 100.0)
    assert not bounds._ends_of_search(base, RandomSearch(law), None, 100.0)
    assert bounds._ends_of_search(DpSgd(0.06, 5, 0.5), RandomSearch(law), "noise", 100.0)


@pytest.mark.parametrize("error", [MemoryError(), OverflowError("too large"), ValueError("x\ny")])
def test_a_bound_that_fails_does_not_affect_other_rows(error: Any) -> None:
    entry = upper_bounds.entries()[0]

    def fails() -> None:
        raise error

    row = answered(entry.name, entry.claim, fails)
    assert not row.applies
    assert row.reason.startswith("its computation failed numerically: ")
    assert "\n" not in row.reason


# The lines about one run.

RARELY_SAMPLED = ["--noise-multiplier", "0.8", "--sampling-rate", "0.001", "--steps", "1000"]


def cost_of(capsys: pytest.CaptureFixture[str], *argv: Any) -> Any:
    code, out, err = run(capsys, *argv, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)["cost"]["epsilon"]


@pytest.mark.thorough
def test_an_epsilon_of_one_run_is_not_taken_for_a_gaussian_mechanism(
    capsys: pytest.CaptureFixture[str],
) -> None:
    law = ["--repetitions", "tnb:0,0.02"]
    known = cost_of(capsys, *RARELY_SAMPLED, *law)
    assert known >= 0.519  # what an attack attains
    one = DpSgd(0.8, 1000, 0.001)
    assert one.epsilon(1e-5) == pytest.approx(0.304, abs=5e-4)
    # As a Gaussian mechanism it would cost less than its leakage: only that option assumes it.
    assert cost_of(capsys, "--gaussian-epsilon", "0.304", *law) == pytest.approx(0.4687, abs=1e-4)
    # An epsilon of a Renyi accountant belongs to a smaller mu.
    renyi = cost_of(capsys, "--gaussian-epsilon", "0.304", "--accounting", "rdp", *law)
    assert renyi == pytest.approx(0.4257, abs=1e-4)
    # (epsilon, delta)-DP of one run with the tuning's delta has no bound for several runs.
    code, out, err = run(capsys, "--epsilon-base", "0.304", *law)
    assert (code, out) == (2, "")
    assert "delta-base must be far below delta = 1e-05" in err
    assert "--noise-multiplier" in err
    # `--help` leaves out --accounting, so the option itself names it.
    assert "add --accounting rdp" in " ".join(make_parser().format_help().split())
    assert err.count("\n") == 1
    # Where its delta is known: it equals --base approximate:, and is at least the exact cost.
    at = one.epsilon(1e-8)
    stated = cost_of(capsys, "--epsilon-base", str(at), "--delta-base", "1e-8", *law)
    assert stated >= known
    assert stated == cost_of(capsys, "--base", f"approximate:{at},1e-8", *law)


@pytest.mark.slow
@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("size", "records", "epochs", "steps"),
    [(256, 60000, 10, 2344), (100, 1000, 3, 30), (7, 10, 0.5, 1), (1, 3, 1, 3), (3, 10, 0.3, 1)],
)
def test_batches_and_epochs_are_a_rate_and_steps(
    capsys: pytest.CaptureFixture[str], size: int, records: int, epochs: float, steps: int
) -> None:
    told = ["--batch-size", str(size), "--records", str(records), "--epochs", str(epochs)]
    code, out, _ = run(capsys, "--noise-multiplier", "2", *told, "--protocol", "grid:2", "--json")
    answer = json.loads(out)
    assert code == 0
    base = DpSgd(2.0, steps, size / records, "zero-out")
    assert answer["base"]["description"] == base.description
    assert f"sampling rate {size / records:.3g}"[:18] in answer["notes"][0]
    assert f"{steps} steps = {epochs:g} epochs" in answer["notes"][0]


def _unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_a_rate_computed_from_the_number_of_records_names_the_relation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--protocol", "noisy-max:3", "--noise-multiplier", "40", "--steps", "20"]
    alone, asked = asked, [*asked, "--batch-size", "1", "--records", "100"]
    default = _unwrapped(run(capsys, *asked)[1])
    assert "depends on the number of records (public with zero-out neighbours)" in default
    assert _unwrapped(run(capsys, *asked, "--neighbours", "zero-out")[1]) == default
    stated = _unwrapped(run(capsys, *asked, "--neighbours", "add-remove")[1])
    assert "but add-remove neighbours need a rate that does not depend on it" in stated
    assert "zero-out neighbours" in run(capsys, *alone)[1]  # numbers of Opacus hold for public n


def test_a_delta_above_one_over_the_number_of_records_is_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = ["--mu", "0.3", "--protocol", "noisy-max:3", "--records"]
    code, out, _ = run(capsys, *base, "100001")
    assert code == 0
    assert "note: delta = 1e-05 exceeds 1 / records = 9.99e-06" in out
    _, out, _ = run(capsys, *base, "100000")
    assert "exceeds" not in out
    _, out, _ = run(capsys, *base[:-1], "--delta", "0.3")
    assert "note: delta = 0.3 exceeds 1 / records for more than 3 records" in _unwrapped(out)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--mu", "1", "--chosen", "grid"], "unrecognized arguments: --chosen grid"),
        (["--mu", "1", "--cap", "1"], "unrecognized arguments: --cap 1"),
        (["--mu", "1", "--neighbours", "replace-one"], "--neighbours does not apply to --mu"),
        (["--base", "pure:1", "--steps", "9"], "--steps does not apply to --base"),
        (["--mu", "1", "--delta-base", "0"], "--delta-base does not apply to --mu"),
        (["--epsilon-base", "1", "--steps", "3"], "--steps does not apply to --epsilon-base"),
        (["--target-epsilon", "1", "--mu", "1"], "--mu must not be given with --target-epsilon"),
        (
            ["--target-epsilon", "1", "--steps", "3", "--tunings", "2"],
            "--tunings does not apply to --target-epsilon",
        ),
        (
            [
                "--mu",
                ".1",
                "--target-epsilon",
                "1",
                "--solve",
                "distribution",
                "--repetitions",
                "fixed:2",
            ],
            "--repetitions does not apply to --solve distribution",
        ),
        (["--noise-multiplier", "1", "--batch-size", "2"], "batch-size must be given with records"),
        (
            ["--noise-multiplier", "1", "--batch-size", "2", "--records", "1"],
            "batch-size must be a whole number in [1, 1], got 2",
        ),
        (
            ["--noise-multiplier", "1", "--steps", "2", "--epochs", "1"],
            "steps and epochs must not be given together",
        ),
        (["--mu", "1", "--tuning", "2"], "unrecognized arguments: --tuning 2"),
        (["--epsilon", "3"], "unrecognized arguments: --epsilon 3"),
    ],
)
def test_options_that_do_not_apply_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    try:
        code = bounds.main(argv)
    except SystemExit as ended:
        code = ended.code
    err = capsys.readouterr().err
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["final-run", "plot", "protocol", "compare"])
def test_a_finished_tuning_is_passed_on_to_its_own_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    file = tmp_path / "trials.csv"
    file.write_text("gdp_mu\n0.1\n0.1\n")
    code, out, _ = run(capsys, "--trials", str(file), "--chosen", "grid")
    assert code == 0
    assert "2 trials, chosen: grid" in out
    with pytest.raises(SystemExit):
        bounds.main(["--trials", str(file), "--chosen", "grid", f"--{option}", "2"])
    assert f"unrecognized arguments: --{option}" in capsys.readouterr().err


@pytest.mark.slow
def test_solved_distributions_have_seven_digits_and_satisfy_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--mu", "0.3", "--target-epsilon", "2", "--solve", "runs"]
    for law, least in (("geometric:0.1", 20), ("poisson:3", 5)):
        found, rows = answer(capsys, *argv, "--repetitions", law)
        spec = found["repetitions"]
        assert not re.search(r"[1-9][\d.]{8,}", spec)
        again = upper_bounds.tuning_cost(GaussianMechanism(0.3), spec, 1e-5).epsilon
        assert 1.999 < again <= 2.0 * (1 + 1e-9)
        assert rows["tight"] == again
        assert repetitions.parse_repetitions(spec).mean > least


@pytest.mark.slow
def test_no_message_has_seventeen_digits(capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("x", 0.1 + 0.2), ("x", 1e17 / 3), ("x", -1.0000000000000002)):
        with pytest.raises(ValueError, match="x must be in") as caught:
            checks.interval(name, value, -1.0, 0.0)
        if value > 0:
            assert not re.search(r"\d{8}", str(caught.value))
        else:  # a rounded number would look allowed
            assert "-1.0000000000000002" in str(caught.value)
    for solve in ("runs", "noise", "distribution"):
        argv = ["--steps", "10"] if solve == "noise" else ["--mu", "3"]
        argv += ["--solve", solve, "--target-epsilon", "1.2345678901234567e-9"]
        code, _, error_line = run(capsys, *argv)
        assert code == 2
        assert "got 1.23457e-09" in error_line


@pytest.mark.parametrize("command", ["run", "bounds", "compare", "coverage_study", "verify"])
def test_no_option_may_be_abbreviated(command: str) -> None:
    parsers = []

    class ParsedError(BaseException):
        pass

    def parse_args(self: Any, *_: Any) -> None:
        parsers.append(self)
        raise ParsedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console.Parser, "parse_args", parse_args)
        with pytest.raises(ParsedError):
            importlib.import_module(f"audit.{command}").main([])
    assert [one.allow_abbrev for one in parsers] == [False]


# --- solving for runs, noise and distributions of K ---


def answer(capsys: pytest.CaptureFixture[str], *argv: Any) -> Any:
    code, out, err = run(capsys, *argv, "--json")
    assert code == 0, err
    found = json.loads(out)
    return found, {bound["name"]: bound["epsilon"] for bound in found["bounds"]}


@pytest.mark.slow
def test_the_command_accounts_for_sampled_batches(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--noise-multiplier", "1", "--steps", "500", "--sampling-rate", "0.01"]
    found, rows = answer(capsys, *argv, "--tunings", "2", "--final-run")
    base = DpSgd(1.0, 500, 0.01)
    law = repetitions.parse_repetitions("tnb:0,0.01")
    assert rows["region"] == pytest.approx(upper_bounds.region(base, law, 1e-5).epsilon)
    assert found["base"]["description"].endswith("zero-out neighbours")
    assert found["base"]["epsilon_rdp"] == pytest.approx(1.6527, abs=1e-3)
    assert rows["region"] < rows["total"] < 2 * rows["region"] + found["base"]["epsilon_exact"]
    assert rows["reduced-exact"] < rows["region"]
    reasons = {row["name"]: row["assumes"] for row in found["bounds"]}
    assert "not a bound" in reasons["reduced-G"]
    replaced = upper_bounds.region(DpSgd(1.0, 500, 0.01, "replace-one"), law, 1e-5)
    assert replaced.epsilon > rows["region"]


@pytest.mark.slow
def test_the_command_solves_for_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--mu", "0.3", "--target-epsilon", "2"]
    found, _ = answer(capsys, *argv, "--solve", "runs", "--repetitions", "tnb:0,0.5")
    best, rows = answer(capsys, *argv, "--solve", "law")
    assert rows["tight"] <= 2.0
    assert best["expected_quantile"] >= found["expected_quantile"]
    assert best["affordable"][0]["repetitions"] == best["repetitions"]


@pytest.mark.slow
def test_the_recommended_distribution_has_at_most_the_given_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Without a limit, this budget leads to thousands of runs.
    argv = ["--mu", "0.25", "--target-epsilon", "3", "--solve", "distribution"]
    for options, limit in (([], 100.0), (["--max-runs", "20"], 20.0)):
        found, rows = answer(capsys, *argv, *options)
        assert rows["tight"] <= 3.0
        means = [
            repetitions.parse_repetitions(option["repetitions"]).mean
            for option in found["affordable"]
        ]
        assert max(means) <= limit * (1 + 1e-9)
        assert max(means) == pytest.approx(limit, rel=1e-3)
        assert [option["mean_runs"] for option in found["affordable"]] == pytest.approx(means)
        stopped = means[0] > limit * (1 - 1e-5)
        assert stopped == (limit == 20.0)  # with 100 runs, the quantile is best below the limit
        assert ("the budget allows more (--max-runs)" in str(found["notes"])) == stopped
    for options, listed in ([], 6), (["--all"], len(means)):  # the best five, and a hint
        code, out, _ = run(capsys, *argv, "--max-runs", "20", *options)
        assert code == 0
        _, rows = out.split("mean K  quantile of the best run\n")
        rows, _ = rows.split("\n\n", 1)
        assert len(rows.splitlines()) == listed
    code, _, error = run(capsys, *argv, "--max-runs", "1")
    assert code == 2
    assert "max_runs must be in [2, 1e+07], got 1" in error
    code, _, error = run(capsys, *argv[:-1], "runs", "--max-runs", "9")
    assert code == 2
    assert "--max-runs does not apply to --solve runs" in error


@pytest.mark.slow
def test_the_command_takes_other_bases(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text("0,0.2\n1,1e-4\n2,1e-9\n")
    for spec in ("laplace:5", f"profile:{path}"):
        code, out, _ = run(capsys, "--base", spec, "--delta", "0.001")
        assert code == 0
        assert "neighbours are those for which its parameters hold" in _unwrapped(out)
        assert "region" in out


@pytest.mark.slow
def test_the_command_solves_for_sampled_noise(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--target-epsilon", "2", "--steps", "100", "--sampling-rate", "0.05"]
    found, rows = answer(capsys, *argv)
    assert 1.999 < rows["tight"] <= 2.0
    assert found["base"]["noise_multiplier"] > 1.0


@pytest.mark.slow
def test_the_command_draws_a_number_of_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cost.png"
    monkeypatch.setattr("audit.report.cost._POINTS", 2)
    assert run(capsys, "--mu", "0.3", "--plot", str(path))[0] == 0
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_the_figure_has_every_second_point_of_adaptive_tunings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def cost(base: Any, protocol: Any, delta: float) -> Any:
        asked.append(type(protocol).__name__)
        return mock.Mock(epsilon=1e3)  # The slow bound saves nothing.

    monkeypatch.setattr("audit.report.cost._epsilon", lambda *given, **_: cost(*given[:3]).epsilon)
    draw_cost(GaussianMechanism(0.3), parse_protocol("fixed:3"), 1e-5, str(tmp_path / "cost.png"))
    assert asked.count("Adaptive") == 1
    assert asked.count("Grid") == 2 * 7


@pytest.mark.slow
def test_the_command_needs_neither_torch_nor_other_accountants() -> None:
    script = (
        "import sys; from audit import bounds; bounds.main(['--mu', '1']); "
        "heavy = {'torch', 'opacus', 'dp_accounting', 'matplotlib', 'pandas', 'statsmodels'} "
        "& set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--mu", "1_0"], "--mu must be a number, got '1_0'"),
        (["--mu", "\u0661"], "--mu must be a number, got"),
        (["--mu", "1", "--tunings", "1_0"], "--tunings must be a whole number, got '1_0'"),
        (["--mu", "1", "--tunings", "1.5"], "--tunings must be a whole number, got '1.5'"),
        (["--mu", "1", "--compare", "ten"], "--compare must be a number, got 'ten'"),
    ],
)
def test_options_that_are_not_numbers_are_named(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bounds.main(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")

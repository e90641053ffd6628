"""The commands `solve` and `protocols`, which answer with the numbers of `bounds`."""

import json

import pytest

from audit.__main__ import main

SAMPLED = ["--sampling-rate", "0.01", "--steps", "2000"]


def _json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main([*argv, "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solve", "bounds"),
    [
        (["noise", "3", "--steps", "300"], ["--target-epsilon", "3", "--steps", "300"]),
        (
            ["runs", "1.1", "--mu", "0.25", "--protocol", "poisson:2"],
            [
                "--target-epsilon",
                "1.1",
                "--solve",
                "runs",
                "--mu",
                "0.25",
                "--protocol",
                "poisson:2",
            ],
        ),
    ],
)
def test_solve_has_the_answer_of_bounds(
    capsys: pytest.CaptureFixture[str], solve: list[str], bounds: list[str]
) -> None:
    assert _json(capsys, "solve", *solve) == _json(capsys, "bounds", *bounds)


@pytest.mark.slow
def test_protocols_has_the_costs_of_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    compared = _json(capsys, "protocols", "3", "--mu", "0.25")["compared"]
    assert isinstance(compared, list)
    fixed = next(row for row in compared if row["protocol"] == "fixed:3")
    (cost,) = [
        row["epsilon"]
        for row in _json(capsys, "bounds", "--mu", "0.25", "--protocol", "fixed:3")["bounds"]  # type: ignore[attr-defined]
        if row["name"] == "tight"
    ]
    assert fixed["epsilon"] == cost
    assert main(["protocols", "3", "--mu", "0.25"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "3 runs on average, delta = 1e-05; one run alone: 0.92635"
    assert max(map(len, printed)) <= 80


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["solve", "nois", "3"], "did you mean 'noise'?"),
        (["solve", "noise", "3"], "--steps or --epochs must be given with solve noise, got none"),
        (["solve", "noise", "3", "--mu", "1"], "--mu must not be given with solve noise, which"),
        (["solve", "runs", "3"], "one run must be given with solve runs, as --noise-multiplier"),
        (["solve", "runs", "3", "--mu", "1", "--max-runs", "9"], "with solve distribution only"),
        (["protocols", "1", "--mu", "1"], "runs must be in [2, 1e+06], got 1"),
        (["protocols", "20"], "exactly one of --noise-multiplier"),
        (["protocols", "20", "--mu", "1", "--records", "-7"], "records must be a whole number"),
        # Its answer is a distribution of K.
        (
            ["solve", "distribution", "3", "--mu", "1", "--protocol", "poisson:10"],
            "--protocol does not apply to --solve distribution",
        ),
        (["protocols", "20", "--mu", "1", *SAMPLED], "--sampling-rate does not apply to --mu"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_protocols_warns_of_a_large_delta_and_reads_a_renyi_epsilon(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--gaussian-epsilon", "1", "--accounting", "rdp", "--delta", "0.01"]
    assert main(["protocols", "2", *options, "--records", "1000"]) == 0
    printed = capsys.readouterr().out.splitlines()
    # An epsilon of 1 by a Renyi accountant is smaller exactly.
    assert 0.5 < float(printed[0].rpartition(" ")[2]) < 0.99
    assert any(line.startswith("note: delta = 0.01 exceeds 1 / records") for line in printed)


@pytest.mark.slow
def test_the_noise_of_very_long_runs_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    # At noise 1 the run is beyond what the accounting can represent.
    noise = []
    for steps in ("100", "1000000000"):
        assert main(["solve", "noise", "3", "--steps", steps]) == 0
        noise.append(
            float(capsys.readouterr().out.splitlines()[0].removeprefix("noise multiplier = "))
        )
    assert noise[1] == pytest.approx(noise[0] * 10**3.5, rel=1e-5)

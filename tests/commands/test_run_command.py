"""The command audit.run: output, resuming, damaged files, invalid input."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from audit import console, files, run
from audit.game import binding, store, workers
from audit.game.play import Block, Trials
from audit.game.settings import AuditConfig
from audit.report import results

pytestmark = pytest.mark.usefixtures("quick_reports")

ROOT = Path(__file__).parents[2]
QUICK = ["--trials", "300", "--repeats", "2", "--epsilon", "1", "4"]


def audit(capsys: pytest.CaptureFixture[str], *argv: Any) -> tuple[int, str, str]:
    code = run.main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, quick_reports: Any) -> Path:
    """A finished audit, for copies."""
    out = tmp_path_factory.mktemp("finished")
    assert run.main([*QUICK, "--out", str(out)]) == 0
    return out


@pytest.fixture
def own_copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "audit"))


def test_the_folder_contains_all_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "audit"
    options = ["--threat", "ETCV", "--canary", "dirac", "--all", "--out", out]
    code, text, _ = audit(capsys, *QUICK, *options)
    assert code == 0
    assert f"{out}/figure.png" in text
    assert "Engine reduced" in text
    assert json.loads((out / "config.json").read_text())["trials"] == 300
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    shards = sorted((out / "shards").iterdir())
    assert len(shards) == 4
    with np.load(shards[0], allow_pickle=False) as shard:
        assert set(shard) == {*Trials.__dataclass_fields__, "audit", "seal"}
    table = pd.read_csv(out / "results.csv")
    assert set(table["epsilon_base"]) == {1.0, 4.0}
    lower = table[table["side"] == "lower"]
    assert set(lower["proxy"]) == {"lambda_a", "lambda_b"}
    assert set(lower["repeat"]) == {0, 1}
    found = json.loads((out / "summary.json").read_text())
    assert found["schema"] == 2
    assert {"version", "date", "python", "libraries", "processor"} <= set(found["made"])
    upper = found["results"][0]["upper_bounds"]
    assert set(upper) >= {
        "base",
        "liu-talwar",
        "renyi",
        "profile",
        "reduced-exact",
        "region",
        "tight",
    }
    assert upper == {name: bound for name, bound in upper.items() if bound["name"] == name}
    recommended = found["recommended"]
    for result in found["results"]:
        best = result["lower_bounds"][recommended["proxy"]][recommended["key"]]
        bounds = result["upper_bounds"]
        assert 0 <= best["min"] <= best["mean"] <= best["max"] < bounds["reduced-exact"]["epsilon"]
        assert best["epsilon"] == best["pooled"]["epsilon"] < bounds["reduced-exact"]["epsilon"]
    assert best["min"] > 0


@pytest.mark.thorough
def test_a_killed_audit_resumes_to_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The batched engine in small blocks: an audit of a few seconds, killed after some blocks.
    options = ["--engine", "batched", "--steps", "40", "--trials", "700", "--repeats", "1"]
    options += ["--epsilon", "4", "--model", "logistic"]
    complete, killed = tmp_path / "complete", tmp_path / "killed"
    assert audit(capsys, *options, "--out", complete)[0] == 0
    command = [sys.executable, "-m", "audit.run", *options, "--out", str(killed)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True, cwd=ROOT)
    deadline = time.monotonic() + 120
    while len(list(killed.glob("shards/*.npz"))) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = set(killed.glob("shards/*.npz"))
    assert not (killed / "results.csv").exists()
    assert len(done) < len(list(complete.glob("shards/*.npz")))
    old_files = {path: path.stat().st_mtime_ns for path in done}
    assert audit(capsys, *options, "--out", killed)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in done} == old_files
    assert (killed / "results.csv").read_bytes() == (complete / "results.csv").read_bytes()
    reports = [results.read(each / "summary.json") for each in (killed, complete)]
    assert replace(reports[0], made={}) == replace(reports[1], made={})


@pytest.mark.slow
def test_shared_runs_have_a_report_for_each_threat_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "audit"
    options = ["--threat", "NTNV+NTCV", "--trials", "20", "--repeats", "1", "--epsilon", "4"]
    options += ["--steps", "2", "--train-size", "30", "--validation-size", "20", "--out", str(out)]
    code, text, _ = audit(capsys, *options)
    assert code == 0
    assert "shared runs, so results are correlated" in text
    for threat, score in (("ntnv", "validation-loss"), ("ntcv", "first-coordinate")):
        assert results.read(out / threat / "summary.json").config.score == score
        assert (out / threat / "figure.png").exists()
    before = (out / "ntcv" / "results.csv").read_bytes()
    next(iter(out.glob("shards/*NTCV.npz"))).unlink()
    assert audit(capsys, *options)[0] == 0
    assert (out / "ntcv" / "results.csv").read_bytes() == before


@pytest.mark.slow
def test_shared_runs_of_several_canaries_resume_to_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--threat", "NTCV", "--canary", "input+dirac", "--repetitions", "fixed:40"]
    options += ["--trials", "80", "--repeats", "1", "--epsilon", "4", "--steps", "2"]
    options += ["--train-size", "20", "--validation-size", "20", "--model", "logistic"]
    options += ["--out", str(tmp_path)]
    code, text, _ = audit(capsys, *options)
    assert code == 0
    assert "NTCV, canary input+dirac: shared runs, so results are correlated" in text
    views = {"ntcv-input", "ntcv-dirac"}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == views | {"shards"}
    for view in views:
        report = results.read(tmp_path / view / "summary.json")
        assert report.config.canary == view.split("-")[1]
        assert "one set of runs serves NTCV, canary input+dirac" in report.engine.reason
    old_files = [*tmp_path.glob("*/results.csv"), *tmp_path.glob("shards/*.npz")]
    assert len(old_files) == 2 + 2 * 2
    before = [path.read_bytes() for path in old_files]
    for path in (old_files[2], old_files[-1]):
        path.unlink()
    assert audit(capsys, *options, "--jobs", "2")[0] == 0
    assert [path.read_bytes() for path in old_files] == before


@pytest.mark.slow
def test_damaged_shards_are_reported_and_simulated_again(
    own_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = own_copy
    before = (out / "results.csv").read_bytes()
    first, second, third, fourth = sorted((out / "shards").iterdir())
    data = bytearray(first.read_bytes())
    with np.load(first) as shard:
        data[data.index(shard["lambda_a"].tobytes()) + 100] ^= 0x01
    first.write_bytes(bytes(data))
    second.write_bytes(second.read_bytes()[:100])
    third.write_bytes(b"")
    with np.load(fourth) as shard:
        arrays = dict(shard)
    arrays["trial"] = arrays["trial"] + 1
    np.savez(fourth, **arrays)
    code, _, err = audit(capsys, *QUICK, "--out", out)
    assert code == 0
    for shard in (first, second, third, fourth):
        assert f"damaged shard, will be repeated: {shard}" in err
    assert (out / "results.csv").read_bytes() == before
    with np.load(first) as shard:
        arrays = dict(shard)
    arrays["score"][3] = np.nan
    np.savez(first, **arrays)
    assert f"damaged shard, will be repeated: {first}" in audit(capsys, *QUICK, "--out", out)[2]


@pytest.mark.thorough
def test_foreign_swapped_and_edited_shards_are_reported_and_simulated_again(
    own_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, other = own_copy, tmp_path / "other"
    audit(capsys, *QUICK, "--seed", 1, "--out", other)
    before = {path.name: path.read_bytes() for path in (out / "shards").iterdir()}
    first, second, third, fourth = sorted((out / "shards").iterdir())
    first.write_bytes((other / "shards" / first.name).read_bytes())
    swapped = second.read_bytes()
    second.write_bytes(third.read_bytes())
    third.write_bytes(swapped)
    with np.load(fourth) as shard:
        arrays = dict(shard)
    arrays["lambda_a"][0] += 1e-9  # an edit that changes nothing else
    np.savez(fourth, **arrays)
    code, _, err = audit(capsys, *QUICK, "--out", out)
    assert code == 0
    assert f"will be repeated: {first}: it belongs to another audit" in err
    for shard in (second, third, fourth):
        assert f"will be repeated: {shard}: its content does not match its seal" in err
    assert {path.name: path.read_bytes() for path in (out / "shards").iterdir()} == before


PLUG_IN = """
def score(observation):
    return {sign}observation.first_displacement
"""


@pytest.mark.slow
def test_a_changed_plug_in_in_an_old_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "changing_plug_in.py"
    source.write_text(PLUG_IN.format(sign=""))
    options = ["--score", "changing_plug_in.score", "--engine", "batched", "--steps", "2"]
    options += ["--trials", "10", "--repeats", "1", "--epsilon", "1", "--out", f"{tmp_path}/audit"]
    assert audit(capsys, *options)[0] == 0
    assert audit(capsys, *options)[0] == 0
    source.write_text(PLUG_IN.format(sign="-"))
    binding._digests_of_code.cache_clear()  # as in a new process
    code, _, err = audit(capsys, *options)
    assert code == 2
    assert "whose trials depend on another plug-in changing_plug_in.score" in err


@pytest.mark.parametrize(
    "content", ["[]", "3", "null", '"text"', "{}", '{"bound_to": 3}', "[" * 100_000, "\xff"]
)
def test_an_invalid_config_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    code, _, err = audit(capsys, *QUICK, "--out", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "config.json" in err or "other settings" in err


def test_a_finished_audit_is_read_only_once(
    own_copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = own_copy
    read = []
    of_store = store._read
    monkeypatch.setattr(
        store, "_read", lambda path, audit: (read.append(path), of_store(path, audit))[1]
    )
    before = (out / "results.csv").read_bytes()
    times = {path: path.stat().st_mtime_ns for path in sorted((out / "shards").iterdir())}
    assert audit(capsys, *QUICK, "--out", out)[0] == 0
    assert sorted(read) == list(times)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert (out / "results.csv").read_bytes() == before


def test_other_settings_in_the_same_folder_are_refused(
    own_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = own_copy
    before = (out / "results.csv").read_bytes()
    code, _, err = audit(capsys, *QUICK, "--out", out, "--seed", 1)
    assert code == 2
    assert err.count("\n") == 1
    assert "seed 0 there and 1 now" in err
    assert (out / "results.csv").read_bytes() == before
    assert audit(capsys, *QUICK, "--out", out, "--jobs", 2)[0] == 0


def test_a_second_audit_in_a_folder_that_is_in_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "audit"
    with store.locked(out):
        code, _, err = audit(capsys, *QUICK, "--out", out)
    assert (code, err.count("\n")) == (2, 1)
    assert "where another audit is running" in err
    assert [path.name for path in out.iterdir()] == [".lock"]
    assert audit(capsys, *QUICK, "--out", out)[0] == 0


@pytest.mark.thorough
def test_results_of_another_audit_are_not_overwritten_without_locks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without locks, another process can start its audit in the folder just before this one, or
    # while the trials are played.
    out = tmp_path / "audit"
    monkeypatch.setattr(store, "locked", lambda folder: contextlib.nullcontext())
    begun = store.is_started
    assert audit(capsys, *QUICK, "--out", tmp_path / "other", "--seed", 1)[0] == 0
    other = (tmp_path / "other" / "config.json").read_text()

    def begun_just_now(folder: Path) -> bool:
        found = begun(folder)
        (out / "config.json").write_text(other)
        return found

    monkeypatch.setattr(store, "is_started", begun_just_now)
    code, _, err = audit(capsys, *QUICK, "--out", out)
    assert code == 2
    assert "seed 1 there and 0 now" in err
    assert (out / "config.json").read_text() == other
    assert not list((out / "shards").iterdir())  # refused before a trial was played
    monkeypatch.setattr(store, "is_started", begun)
    (out / "config.json").unlink()

    def play_all(*arguments: Any) -> dict[Block, tuple[Trials]]:
        played = of_workers(*arguments)
        (out / "config.json").write_text(other)
        return played  # type: ignore[return-value]

    of_workers = workers.play_all
    monkeypatch.setattr(workers, "play_all", play_all)
    code, _, err = audit(capsys, *QUICK, "--out", out)
    assert code == 2
    assert "seed 1 there and 0 now" in err
    assert not (out / "results.csv").exists()


@pytest.mark.slow
def test_two_simultaneous_audits_are_never_mixed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "audit.run", *QUICK, "--out", str(tmp_path)]
    pair = [
        subprocess.Popen(
            [*command, "--seed", seed],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    errors = [process.communicate(timeout=120)[1] for process in pair]
    codes = [process.returncode for process in pair]
    assert sorted(codes) == [0, 2]
    assert "out must be" in errors[codes.index(2)]
    winner = codes.index(0) + 1
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == winner
    assert results.read(tmp_path / "summary.json").config.seed == winner


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--threat", "ETVC"], "did you mean 'ETCV'?"),
        (["--canary", "dirc"], "did you mean 'dirac'?"),
        (["--canary", "input", "--score", "worst-order"], "score for ETCV with canary input must"),
        (
            ["--threat", "NTNV+NTCV", "--score", "canary-loss"],
            "score for NTNV with canary dirac must",
        ),
        (["--threat", "NTCV+NTNV"], "must be one of NTNV, NTCV, ETCV, NTNV+NTCV, got 'NTCV+NTNV'"),
        (["--preset", sys.executable], "preset must be TOML"),
        (["--canary", "dirac+input", "--score", "worst-order"], "score for ETCV with canary input"),
        (["--canary", "dirac+dirac"], "canary must name each canary once, got 'dirac+dirac'"),
        (["--canary", "dirac+inptu"], "did you mean 'input'?"),
        (["--canary", "dirac+input", "--engine", "reduced"], "engine must be batched for ETCV"),
        (["--threat", "NTNV+NTCV", "--engine", "opacus"], "engine must be batched for NTNV+NTCV"),
        (["--score", "first-cordinate"], "did you mean 'first-coordinate'?"),
        (["--dataset", "MNISTT"], "did you mean 'MNIST'?"),
        (["--engine", "reducd"], "did you mean 'reduced'?"),
        (["--canary", "input", "--engine", "reduced"], "engine reduced"),
        (["--epsilon", "-1"], "epsilon must be in (0, inf), got -1.0"),
        (["--epsilon", "1", "1"], "epsilon must name each budget once"),
        (["--delta", "0"], "delta must be in (0, 1), got 0.0"),
        (["--repetitions", "tnb:0,1.2"], "gamma must be in (0, 1), got 1.2"),
        (["--trials", "1"], "trials must be a whole number in [2, 1000000000000], got 1"),
        (["--trials", "9" * 400], "trials must be a whole number in [2, 1000000000000], got 9"),
        (["--learning-rates", "0"], "learning_rates must be"),
        (["--momentum", "0.5", "0.5"], "momentum must name each value once, got (0.5, 0.5)"),
        (
            ["--repetitions", "fixed:0"],
            "repetitions fixed:0: k must be a whole number in [1, 1000000000000000], got 0",
        ),
        (["--max-grad-norm", "1", "-2"], "max_grad_norm must be in (0, 1e+100), got -2.0"),
        (["--momentum", "0.5", "1"], "momentum must be in [0, 1), got 1.0"),
        (["--confidence", "1"], "confidence must be in (0, 1), got 1.0"),
        (["--preset", "x" * 5000], "preset must be one of adaptive, "),
        (["--preset", "missing.toml"], "preset must be a readable TOML file, got 'missing.toml'"),
        (["--engine", "batched", "--devices", "cuda:7"], "device"),
        (["--model", "resnet"], "model"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    if "--model" in argv:
        argv = [*argv, "--engine", "batched"]
    out = tmp_path / "audit"
    code, text, err = audit(capsys, *argv, "--out", out)
    assert code == 2
    assert text == ""
    assert err.count("\n") == 1, err
    assert message in err
    assert not (out / "results.csv").exists()


def test_unwritable_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "below", tmp_path / ("a" * 300)):
        code, _, err = audit(capsys, *QUICK, "--out", folder)
        assert code == 2
        assert "error: out must be a writable folder" in err
    config = tmp_path / "audit" / "config.json"
    config.parent.mkdir()
    config.write_text("{")
    code, _, err = audit(capsys, *QUICK, "--out", config.parent)
    assert code == 2
    assert "not json" in err


def test_views_that_differ_only_in_case_have_separate_folders() -> None:
    views = AuditConfig(canary="own.dark+own.Dark", out="here").views
    assert [view.out for view in views] == ["here/etcv-own.dark", "here/etcv-own.Dark"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('canary = ["input", "dirac"]', r"canary must be text, got \('input', 'dirac'\)"),
        ("data_root = 3", "data_root must be text, got 3"),
        ("devices = [0]", "devices must be text, got 0"),
        ("devices = []", "devices must be of one kind, got none"),
        ("model = 3", "model must be text, got 3"),
        ('out = "a\\u0000b"', "out must be text without null characters"),
        ("delta = [1e-5]", r"delta must be in \(0, 1\), got \(1e-05,\)"),
        ("epsilon = {a = 1}", r"epsilon must be in \(0, inf\), got {'a': 1}"),
        ("epsilon = [[1.0]]", r"epsilon must be in \(0, inf\), got \[1.0\]"),
        ("learning_rates = [true, 1]", r"learning_rates must be in \(0, 1e\+100\), got True"),
        ("seed = true", "seed must be a whole number >= 0, got True"),
        ("epsilon = [true]", r"epsilon must be in \(0, inf\), got True"),
        ("epsilon = true", r"epsilon must be in \(0, inf\), got True"),
        ("momentum = false", r"momentum must be in \[0, 1\), got False"),
        ('scheduler = "127.0.0.1:1"', "scheduler must come with the backend dask or ray"),
        ("trials = [20]", r"trials must be a whole number in \[2, 1000000000000\], got \(20,\)"),
    ],
)
def test_preset_settings_of_the_wrong_type_are_refused(
    tmp_path: Path, line: str, message: str
) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        run.parse(["--preset", str(preset)])


def test_numbers_in_a_preset_may_be_text(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    lines = ['delta = "1e-6"', 'trials = "1e3"', 'epsilon = ["2"]', 'sampling_rate = "0.5"']
    lines += ['learning_rates = "0.1"', 'max_grad_norm = ["2"]', 'confidence = "0.9"']
    preset.write_text("\n".join(lines))
    (config,) = run.parse(["--preset", str(preset)])
    assert (config.delta, config.trials, config.epsilon) == (1e-6, 1000, (2.0,))
    assert (config.sampling_rate, config.learning_rates) == (0.5, (0.1,))
    assert (config.max_grad_norm, config.confidence) == ((2.0,), 0.9)


def test_every_option_has_a_description_and_a_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(console.WIDTH))
    with pytest.raises(SystemExit):
        run.main(["--help-all"])
    options, _, _ = capsys.readouterr().out.partition("examples:")
    text = " ".join(options.split())
    for field in fields(AuditConfig):
        if field.name == "repetitions":  # a hidden spelling of --protocol
            continue
        _, found, rest = text.partition(f"--{field.name.replace('_', '-')} ")
        assert found
        assert field.metadata["meaning"] in rest
        assert "(default: " in rest


def test_options_that_argparse_refuses_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--nonsense"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("redirection", "code"), [(">&-", 0), ("> /dev/full", 2), ("2>&- >&-", 0), ("| head -1", 0)]
)
def test_output_may_be_closed_full_or_unread(redirection: str, code: int) -> None:
    script = "import sys; from audit import console; "
    script += "sys.exit(console.run(lambda argv: print(*range(10**5)) or 0))"
    command = f"{sys.executable} -c '{script}' {redirection}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--list-presets", "--help"])
def test_output_that_cannot_be_written_is_named(option: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "audit.run", option],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: output must be writable: ")


def test_numbers_whose_products_are_infinite_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--learning-rates", "--max-grad-norm"):
        code, _, err = audit(capsys, option, "1e308", "--out", tmp_path / "refused")
        name = option[2:].replace("-", "_")
        assert (code, err) == (2, f"error: {name} must be in (0, 1e+100), got 1e+308\n")


@pytest.mark.slow
def test_runs_with_the_largest_numbers_diverge_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A warning is an error in tests.
    largest = ["--learning-rates", "9e99", "--max-grad-norm", "9e99", "--trials", "20"]
    code, _, err = audit(capsys, *largest, "--engine", "batched", "--out", tmp_path / "audit")
    assert code == 2
    assert "runs at eps_B = 1 diverged" in err
    assert audit(capsys, *largest, "--out", tmp_path / "reduced")[0] == 0


@pytest.mark.parametrize("words", ["'x' * 10", "'x' * 10**5"])
def test_an_error_is_one_line_even_if_the_output_is_full(words: str) -> None:
    script = "import sys; from audit import console; sys.exit(console.run(lambda argv: "
    script += f"console.note({words}) or console.report_error('x must be 1, got 2')))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "error: x must be 1, got 2\n")


def test_an_error_that_cannot_be_written_has_its_exit_code() -> None:
    script = "import sys; from audit import console; "
    script += "sys.exit(console.run(lambda argv: console.report_error('x must be 1')))"
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", script], stderr=full, cwd=ROOT).returncode == 2


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("bytearray(1 << 60)", "error: memory must suffice for this command, but it ran out\n"),
        (
            "exec('raise ImportError(chr(120))')",
            "error: packages must be complete and fit into memory, but one cannot be loaded:\n"
            "  x\n",
        ),
        ("__import__('matplotlib') and 2", ""),  # with MPLBACKEND=nonsense, this raises
    ],
    ids=["memory", "library", "backend"],
)
def test_what_the_machine_lacks_is_one_line(work: str, words: str) -> None:
    script = f"import sys; from audit import console; sys.exit(console.run(lambda argv: {work}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MPLBACKEND": "nonsense"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, words)


def test_text_that_is_not_unicode_is_printed() -> None:
    script = "import sys; from audit import console; "
    script += "sys.exit(console.run(lambda argv: print('runs/\\udcff\\u00e9') or 0))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"runs/\\udcff\\xe9\n", b"")


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_error(unbuffered: str) -> None:
    script = "import sys; from audit import bounds, console; sys.exit(console.run("
    script += "lambda argv: bounds.main(['--mu', '1e9', '--help'])))"
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; {sys.executable} -c "{script}" | true'],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_preset_settings_are_converted(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text('devices = "cpu"\nseed = 1e3\nsteps = 2.0\n')
    (config,) = run.parse(["--preset", str(preset)])
    assert config.devices == ("cpu",)
    assert (type(config.seed), config.seed, type(config.steps)) == (int, 1000, int)


def test_a_stopped_audit_explains_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "play_all", stop)
    code, _, err = audit(capsys, *QUICK, "--out", tmp_path)
    assert code == 130
    assert err == "stopped; run the same command again to resume\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_an_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: Any
) -> None:
    def stop(*arguments: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(10)

    monkeypatch.setattr(workers, "play_all", stop)
    before = signal.signal(
        number, signal.SIG_DFL
    )  # under nohup it is ignored, and must stay ignored
    try:
        code, _, err = audit(capsys, *QUICK, "--out", tmp_path)
        assert code == 128 + number
        assert err == "stopped; run the same command again to resume\n"
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*QUICK, "--threat", "NTNV", "--train-size", 20, "--validation-size", 10]
    options += ["--steps", 1, "--repetitions", "fixed:4", "--out", tmp_path]
    options += ["--epsilon", 1, "--repeats", 3]
    complete = np.savez
    saved: list[Any] = []

    def savez(file: Any, **arrays: Any) -> None:
        if len(saved) == 2:
            raise OSError(28, "No space left on device")
        saved.append(file.name)
        complete(file, **arrays)

    monkeypatch.setattr(np, "savez", savez)
    code, _, err = audit(capsys, *options)
    assert code == 2
    (line,) = err.splitlines()  # notes are not errors
    assert line.startswith("error: out must be a writable folder with free space, got ")
    assert "No space left" in line
    assert len(list(tmp_path.glob("shards/*"))) == 2
    assert not list(tmp_path.glob("shards/.*"))
    monkeypatch.undo()
    assert audit(capsys, *options)[0] == 0


def test_options_override_the_preset(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text('threat = "ETCV"\nepsilon = [2.0]\ntrials = 77\n')
    (config,) = run.parse(["--preset", str(preset), "--trials", "88"])
    assert (config.epsilon, config.trials, config.out) == ((2.0,), 88, str(tmp_path / "mine"))
    preset.write_text("trails = 77\n")
    with pytest.raises(ValueError, match="did you mean 'trials'"):
        run.parse(["--preset", str(preset)])
    preset.write_text("trials = \n")
    with pytest.raises(ValueError, match="preset must be TOML"):
        run.parse(["--preset", str(preset)])


@pytest.mark.thorough
def test_several_presets_are_audited_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, threat in (("weak", "NTNV"), ("strong", "ETCV")):
        (tmp_path / f"{name}.toml").write_text(f'threat = "{threat}"\nsteps = 2\n')
    command = ["--preset", tmp_path / "weak.toml", tmp_path / "strong.toml", *QUICK]
    command += ["--trials", "20", "--train-size", "30", "--validation-size", "20"]
    command += ["--epsilon", "4"]
    code, text, _ = audit(capsys, *command)
    assert code == 0
    for name in ("weak", "strong"):
        assert f"results in {tmp_path / name}" in " ".join(text.split())
        assert (tmp_path / name / "summary.json").exists()
    table = pd.read_csv(tmp_path / "comparison" / "table.csv")
    assert list(table["threat"].unique()) == ["NTNV", "ETCV"]
    assert audit(capsys, *command, "--out", tmp_path / "below")[0] == 0
    again = pd.read_csv(tmp_path / "below" / "comparison" / "table.csv")
    assert list(again["epsilon_lower"]) == list(table["epsilon_lower"])
    assert (tmp_path / "below" / "weak" / "config.json").exists()


def test_incomparable_presets_are_refused_before_any_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text("delta = 1e-5\n")
    other.write_text("delta = 1e-6\n")
    for presets, message in (
        ((one, other), "delta must be the same in audits that share a table, got 1e-05 and 1e-06"),
        ((one, one), "out must be a different folder for every preset"),
    ):
        code, _, err = audit(capsys, "--preset", *presets)
        assert code == 2
        assert message in err
    assert not (tmp_path / "one").exists()


AUDITS = [
    path
    for path in sorted((ROOT / "runs").glob("*.toml"))
    if "threat" in tomllib.loads(path.read_text())
]


@pytest.mark.parametrize("path", AUDITS, ids=lambda path: path.stem)
def test_presets_are_valid(path: Path) -> None:
    (config,) = run.parse(["--preset", str(path)])
    assert config.out == str(path.with_suffix(""))
    assert config.delta == 1e-5


def test_config_round_trips_through_json() -> None:
    config = AuditConfig(epsilon=(1.5,), learning_rates=(0.1, 0.2), trials=10)
    values = config.identity
    assert AuditConfig.from_mapping(values) == config
    assert "jobs" not in values
    # A single norm or momentum is stored as a number, for compatibility with older folders.
    assert (values["max_grad_norm"], values["momentum"]) == (1.0, 0.0)
    several = AuditConfig(max_grad_norm=(0.5, 1.0), momentum=0.9)
    assert AuditConfig.from_mapping(several.identity) == several
    assert several.identity["max_grad_norm"] == [0.5, 1.0]


@pytest.mark.thorough
def test_candidates_are_the_grid_of_the_hyperparameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--learning-rates", "0.01", "0.1", "--max-grad-norm", "0.5", "2"]
    code, text, _ = audit(capsys, *QUICK, *options, "--momentum=0.9", "--all", "--out", tmp_path)
    assert code == 0
    line = "4 candidates: learning_rate 0.01, 0.1; max_grad_norm 0.5, 2; momentum 0.9"
    assert line in text.splitlines()
    candidates = json.loads((tmp_path / "summary.json").read_text())["candidates"]
    assert candidates[2] == {"learning_rate": 0.1, "max_grad_norm": 0.5, "momentum": 0.9}
    with np.load(next(tmp_path.glob("shards/*.npz"))) as shard:
        assert set(shard["candidate"]) == {0, 1, 2, 3}


def test_an_interrupted_write_leaves_no_file(tmp_path: Path) -> None:
    def stop_halfway() -> None:
        with files.written_completely(tmp_path / "name") as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_halfway()
    assert list(tmp_path.iterdir()) == []

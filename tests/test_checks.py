"""Validation of user input: names in any case, numbers in range, one-line errors."""

import ast
import concurrent.futures
import os
import threading
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import audit
from audit import (
    accounting,
    all_lower_bounds,
    certificate,
    checks,
    errors,
    finished,
    lower_bound,
    protocols,
    repetitions,
)
from audit.dpsgd import DpSgdSettings
from audit.dpsgd.settings import check_precision
from audit.errors import InvalidInput
from audit.game.settings import AuditConfig, read_preset
from audit.repetitions import parse_repetitions
from threat_models.datasets.loading import read_idx_pair


def test_names_are_accepted_in_any_case() -> None:
    assert checks.one_of("dataset", "digits", ["DIGITS", "SVHN"]) == "DIGITS"
    assert checks.one_of("dataset", "DIGITS", ["DIGITS", "SVHN"]) == "DIGITS"
    # If two names differ only by case, the exact name is chosen.
    assert checks.one_of("which", "a", ["A", "a"]) == "a"
    assert checks.one_of("which", "A", ["A", "a"]) == "A"


def test_settings_in_any_case_are_the_same_audit() -> None:
    plain = {
        "threat": "NTCV",
        "canary": "input+dirac",
        "score": "first-coordinate",
        "dataset": "DIGITS",
        "model": "logistic",
        "engine": "batched",
        "precision": "float64",
        "accounting": "exact",
        "repetitions": "poisson:5",
        "backend": "ray",
        "devices": ["cuda:0"],
    }
    upper_case = {
        name.upper(): [text.upper() for text in value] if isinstance(value, list) else value.upper()
        for name, value in plain.items()
    }
    assert AuditConfig.from_mapping(upper_case) == AuditConfig.from_mapping(plain)
    lower_case = {
        name: value.lower() if isinstance(value, str) else value for name, value in plain.items()
    }
    assert AuditConfig.from_mapping(lower_case) == AuditConfig.from_mapping(plain)


def test_a_folder_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="out must be the name of a folder, got ''"):
        AuditConfig.from_mapping({"out": ""})


@pytest.mark.parametrize("value", ["digit", "", " digits", None, 3, ["DIGITS"]])
def test_unknown_names_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^dataset must be one of DIGITS, SVHN, got"):
        checks.one_of("dataset", value, ["DIGITS", "SVHN"])


def test_the_error_suggests_the_closest_name() -> None:
    with pytest.raises(ValueError, match=r"got 'nosuch'$"):  # none is similar
        checks.one_of("command", "nosuch", ["reproduce", "verify"])
    with pytest.raises(ValueError, match="got 'digit'; did you mean 'DIGITS'"):
        checks.one_of("dataset", "digit", ["DIGITS", "SVHN"])


def test_dotted_names_need_permission() -> None:
    assert checks.one_of("score", "My.Score", ["first"], dotted=True) == "My.Score"
    with pytest.raises(ValueError, match=r"must be one of first, got 'My.Score'"):
        checks.one_of("score", "My.Score", ["first"])
    with pytest.raises(ValueError, match="one of first or a dotted name of your own, got 'secnd'"):
        checks.one_of("score", "secnd", ["first"], dotted=True)


def test_public_functions_accept_names_in_any_case() -> None:
    assert repetitions.parse_repetitions("TNB:0,0.01") == repetitions.parse_repetitions(
        "tnb:0,0.01"
    )
    assert accounting.parse_mechanism("Gaussian:1") == accounting.GaussianMechanism(1.0)
    assert accounting.DpSgd(1.0, 10, 0.1, "Replace-One").distance == 2.0
    assert accounting.calibrate_mu(1.0, 1e-5, "EXACT") > accounting.calibrate_mu(1.0, 1e-5, "RDP")
    assert DpSgdSettings(10, 1.0, 1.0, 0.1, model="MLP").model == "mlp"
    assert check_precision("TF32").name == "tf32"


def test_validated_values_are_stored() -> None:
    @dataclass(frozen=True)
    class Settings:
        rate: float

        def __post_init__(self) -> None:
            checks.store_validated(self, rate=checks.interval("rate", self.rate, 0.0, 1.0))

    assert Settings("0.5").rate == 0.5


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3),
        (3.0, 3),
        ("3", 3),
        ("1e3", 1000),
        (2**64 + 1, 2**64 + 1),
        (np.int64(2**62 + 1), 2**62 + 1),
    ],
)
def test_integers_of_any_size_and_type(value: Any, number: int) -> None:
    assert checks.integer("seed", value, 0) == number


@pytest.mark.parametrize("value", ["1_0", "\u0661", "\uff11", "0_1.5"])
def test_text_that_python_reads_as_another_number_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="steps must be a whole number"):
        checks.integer("steps", value, 0)
    with pytest.raises(ValueError, match="rate must be in"):
        checks.interval("rate", value)
    for parse, spec in (
        (repetitions.parse_repetitions, f"poisson:{value}"),
        (protocols.parse_protocol, f"grid:{value}"),
        (protocols.parse_protocol, f"noisy-max:{value}"),
        (accounting.parse_mechanism, f"gaussian:{value}"),
    ):
        with pytest.raises(ValueError, match=r"numbers?|parameters must be"):
            parse(spec)


@pytest.mark.parametrize(
    "values",
    [
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        [np.datetime64("2020-01-01")],
        np.array([3], dtype="timedelta64[s]"),
        [np.timedelta64(3, "s")],
        np.array([(1.0,)], dtype=[("x", float)]),
        np.array([b"1"], dtype="V1"),
        np.array([1j]),
        np.ma.masked_array([1.0, 2.0], [True, False]),
    ],
)
@pytest.mark.filterwarnings("ignore:Casting complex values")  # as in a user's program
def test_arrays_that_numpy_would_change_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"^scores must be numbers, got"):
        checks.numbers("scores", values)
    with pytest.raises(ValueError, match=r"^out_scores must be a list of numbers, got"):
        audit.lower_bound(out_scores=values, in_scores=[1.0], delta=1e-5)
    for right in ([Decimal("0.5")], [Fraction(1, 2)], ["0.5"], np.array([0.5], dtype=object)):
        assert checks.numbers("scores", right).tolist() == [0.5]


@pytest.mark.parametrize(
    "value",
    [
        *(True, False, np.True_, np.array(True), b"1", b"1_0", bytearray(b"1")),
        *(np.complex64(1 + 5j), np.array(1 + 5j), np.timedelta64(1, "s")),
    ],
)
def test_what_only_python_reads_as_a_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="seed must be a whole number >= 0, got "):
        checks.integer("seed", value, 0)
    with pytest.raises(ValueError, match=r"rate must be in \[-1, 2\], got"):
        checks.interval("rate", value, -1.0, 2.0, closed_low=True, closed_high=True)


@pytest.mark.parametrize("value", [2.5, "2.5", "x", None, [1], float("nan"), float("inf"), 10**400])
def test_numbers_out_of_range_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="seed must be a whole number in"):
        checks.integer("seed", value, 0, 2)
    if value not in (2.5, "2.5"):
        with pytest.raises(ValueError, match="rate must be in"):
            checks.interval("rate", value, 0.0, 3.0)


def test_an_endless_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 11)
    assert checks.read_text(tmp_path / "long", 11) == "x" * 11
    with pytest.raises(ValueError, match="file must have at most 10 bytes, got more in"):
        checks.read_text(tmp_path / "long", 10)


def test_a_number_is_no_path_so_that_no_descriptor_is_closed() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(ValueError, match="certificate must be the path of a file, got"):
        certificate.verify(reading)  # type: ignore[arg-type]
    os.close(reading)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_no_one_writes_to_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "trials.csv"
    os.mkfifo(pipe)
    monkeypatch.setattr(checks, "_PATIENCE", 0.1)
    with pytest.raises(ValueError, match=r"source must be a readable file.*: its end did not come"):
        audit.cost_of_trials(pipe, "grid")
    with pytest.raises(ValueError, match=r"certificate must be a readable json file.* within"):
        certificate.verify(pipe)
    assert not checks.is_stored_file(pipe)
    with pytest.raises(ValueError, match="signature must be a file with content"):
        certificate.check_signature(b"", pipe, pipe)
    with pytest.raises(ValueError, match=r"file .* it is missing, empty or not an ordinary file"):
        read_idx_pair([pipe, pipe])
    monkeypatch.setattr(checks, "_PATIENCE", 20.0)
    writer = threading.Thread(target=lambda: pipe.write_text("gdp_mu\r\n0.1\r\n"))
    writer.start()
    assert audit.cost_of_trials(pipe, "grid").trials == 1
    writer.join()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_database_of_a_study(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    pipe = tmp_path / "study.db"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=r"source must be the address .* no file with content"):
        audit.cost_of_trials(str(pipe))


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs terminals")
@pytest.mark.parametrize("talks", [False, True], ids=["silent", "talking"])
def test_the_end_of_a_file_is_not_waited_for(talks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device, terminal = os.openpty()
    monkeypatch.setattr(checks, "_PATIENCE", 0.3)
    reader = concurrent.futures.ThreadPoolExecutor(1).submit(
        audit.cost_of_trials, os.ttyname(terminal), "grid"
    )
    for _ in range(30):
        if not reader.done() and talks:
            os.write(device, b"mu\n")
        concurrent.futures.wait([reader], 0.1)
    os.close(device)  # ends a reader that still waits
    with pytest.raises(ValueError, match=r"source must be a readable file.*: its end did not come"):
        reader.result(5.0)
    os.close(terminal)


def test_an_async_function_is_refused() -> None:
    async def train(*_: object) -> float:
        return 1.0

    with pytest.raises(ValueError, match="train must be a function without async, got <function"):
        audit.check(train, ([[0.0]], [0]), claim=1.0)


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("gdp_m\u00fc\n0.1\n", encoding="latin-1")
    with pytest.raises(ValueError, match=r"source must be a readable .*: it is not text in UTF-8$"):
        audit.cost_of_trials(path, "grid")
    with pytest.raises(ValueError, match=r"base renyi must be a .*: it is not text in UTF-8$"):
        accounting.parse_mechanism(f"renyi:{path}")


def test_a_set_is_no_list_because_it_drops_equal_items() -> None:
    run = accounting.GaussianMechanism(0.1)
    with pytest.raises(ValueError, match="source must be a table, a folder or a storage of runs"):
        finished.cost_of_trials({run, run}, "grid")


def test_a_value_is_printed_on_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"x must be in \(0, 1\), got array\(\[\[1., 1.\], \[1"
    ) as e:
        checks.interval("x", np.ones((2, 2)), 0, 1)
    assert "\n" not in str(e.value)
    assert len(checks.one_line("y" * 1000)) < 210


def test_integers_larger_than_floats_are_refused() -> None:
    assert checks.integer("steps", 10**300, 1) == 10**300
    for large in (10**400, "1" + "0" * 400):
        with pytest.raises(ValueError, match="steps must be a whole number >= 1 that a float can"):
            checks.integer("steps", large, 1)


@pytest.mark.slow
def test_the_value_that_is_used_is_the_one_that_was_checked() -> None:
    # "0.5" and Decimal("0.5") pass a check, so a function must use the number that it returns.
    discarded = []
    for path in sorted(Path(audit.__file__).parent.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            given = {one.arg for one in [*function.args.args, *function.args.kwonlyargs]}
            for one in function.body:
                if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
                    name = ast.unparse(one.value.func).removeprefix("checks.")
                    values = [ast.unparse(value) for value in one.value.args]
                    if name in ("interval", "integer", "check_confidence") and given & {*values}:
                        discarded.append(f"{path.name}: {ast.unparse(one)}")
    assert not discarded


def test_numbers_may_be_text_decimals_or_fractions() -> None:
    for number in ("0.25", Decimal("0.25"), Fraction(1, 4), np.float32(0.25)):
        assert accounting.full_batch_noise_multiplier(number, "300") == pytest.approx(69.282, 1e-5)
        assert accounting.calibrate_mu(number, "1e-5") == accounting.calibrate_mu(0.25, 1e-5)
        law = repetitions.parse_repetitions("poisson:2")
        assert law.given_no_failure(number) == law.given_no_failure(0.25)
        assert repetitions.Binomial(9, 0.5).with_mean(number).mean == 0.25


def test_messages_with_long_quotations_are_short() -> None:
    for message in ("no", "x" * 2000):
        assert str(errors.InvalidInput(message)) == message
    assert len(str(errors.StudyAborted("x" * 10**6))) < 2010
    assert str(errors.InvalidInput("got 0   1.0\n  1   2.0\r\n")) == "got 0   1.0 1   2.0"
    with pytest.raises(ValueError, match="source must be a readable file, got 'xxx") as error:
        audit.cost_of_trials("x" * 10**6, "grid")
    assert len(str(error.value)) < 2010


def test_a_value_without_a_text_is_named_by_its_class() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(ValueError, match=r"mu must be in .*, got a Silent$"):
        checks.interval("mu", Silent(), 0.0)
    with pytest.raises(ValueError, match=r"way must be one of a, b, got a Silent$"):
        checks.one_of("way", Silent(), ("a", "b"))


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "preset.toml"
    path.write_bytes("trials = 30\n".encode("utf-8-sig"))
    assert checks.read_text(path) == "trials = 30\n"
    assert read_preset(str(path))["trials"] == 30


@pytest.mark.parametrize(
    ("value", "words"), [(1, "an int"), (object(), "an object"), ([], "a list")]
)
def test_kinds_have_their_article(value: object, words: str) -> None:
    assert checks.kind_of(value) == words


@pytest.mark.parametrize(
    "spec",
    ["fixed:3", "poisson:3", "tnb:1,0.1", "binomial:3,0.5", "geometric:0.1", "two-point:0.5,5"],
)
def test_numbers_of_runs_are_drawn_from_a_generator_only(spec: str) -> None:
    for rng in (None, 3, np.random):
        with pytest.raises(InvalidInput, match="rng must be a generator such as numpy"):
            parse_repetitions(spec).sample(rng, 3)


@pytest.mark.parametrize(
    "scores", [[b"1", b"2"], ["1", "2"], [], np.array([b"1", 2], dtype=object)]
)
@pytest.mark.parametrize("estimate", [lower_bound, all_lower_bounds])
def test_scores_are_numbers_and_at_least_one(scores: Any, estimate: Any) -> None:
    for out_scores, in_scores in ((scores, [1.0]), ([1.0], scores)):
        with pytest.raises(InvalidInput, match=r"(in|out)_scores must (be|have) "):
            estimate(out_scores=out_scores, in_scores=in_scores, delta=1e-5)

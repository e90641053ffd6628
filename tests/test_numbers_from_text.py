"""Numbers are read from text by one strict rule, at every door."""

from pathlib import Path
from typing import Any

import pytest

import audit
from audit import accounting, bounds, checks, protocols, repetitions
from audit.dpsgd.settings import several_numbers
from audit.game.settings import AuditConfig, read_preset
from audit.numbers_from_text import is_ambiguous, read_integer, read_number

AMBIGUOUS = ["1.000", "20.000", "1.024", "0.000", "+2.500", " 1.000 "]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("20", 20),
        ("2000.0", 2000),  # as pandas writes whole numbers next to missing values
        ("1e3", 1000),
        ("1E+3", 1000),
        ("2.5e3", 2500),
        ("1.000e3", 1000),
        (" 7 ", 7),
        ("18446744073709551617", 2**64 + 1),
        ("3.0000", 3),
        ("3.", 3),
    ],
)
def test_whole_numbers_are_read_from_text(text: str, number: int) -> None:
    assert read_integer(text) == checks.integer("steps", text, 0) == number


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_a_point_before_three_digits_is_refused_as_a_whole_number(text: str) -> None:
    assert is_ambiguous(text)
    point = text.strip().index(".")
    one, thousand = text.strip()[:point], text.strip().replace(".", "")
    words = f"it may mean {one} or {thousand}: write it without a point".replace("+", r"\+")
    with pytest.raises(ValueError, match=words):
        read_integer(text)
    with pytest.raises(ValueError, match=f"^steps must be a whole number >= 0, got .*: {words}"):
        checks.integer("steps", text, 0)
    # Where decimals are allowed, it is not ambiguous.
    assert checks.interval("rate", text) == read_number(text) == float(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1,000", "thousands separators"),
        ("1 000", "thousands separators"),
        ("1'000", "thousands separators"),
        ("1.000.000", "thousands separators"),
        ("1.000,5", "thousands separators"),
        ("0,5", "decimals with a point"),
        ("5%", "percentage as a fraction"),
        ("5 %", "percentage as a fraction"),
        ("2k", "without a unit"),
        ("60 s", "without a unit"),
        ("1_000", "thousands separators"),
        ("1_0", "not a number"),
        ("\u0661", "not a number"),
        ("0x10", "not a number"),
        ("", "not a number"),
        ("ten", "not a number"),
        ("1e", "without a unit"),
        ("--1", "not a number"),
        ("1.2.3", "not a number"),
    ],
)
def test_text_that_is_not_a_plain_number_is_refused_with_its_reason(text: str, reason: str) -> None:
    for read in (read_number, read_integer):
        with pytest.raises(ValueError, match=reason):
            read(text)
    with pytest.raises(ValueError, match=r"^rate must be in"):
        checks.interval("rate", text)
    with pytest.raises(ValueError, match=r"^steps must be a whole number"):
        checks.integer("steps", text, 0)
    with pytest.raises(ValueError, match=r"^alpha must be numbers"):
        checks.numbers("alpha", [text])


WHOLE_DOORS: dict[str, Any] = {
    "grid": lambda text: protocols.parse_protocol(f"grid:{text}"),
    "best": lambda text: protocols.parse_protocol(f"best:{text}/tnb:0,0.1"),
    "noisy-max rounds": lambda text: protocols.parse_protocol(f"noisy-max:4,{text}"),
    "fixed": lambda text: repetitions.parse_repetitions(f"fixed:{text}"),
    "binomial": lambda text: repetitions.parse_repetitions(f"binomial:{text},0.5"),
    "truncated": lambda text: repetitions.parse_repetitions(f"poisson:2@{text}"),
    "two-point": lambda text: repetitions.parse_repetitions(f"two-point:0.1,{text}"),
    "response": lambda text: accounting.parse_mechanism(f"response:1,{text}"),
    "DpSgd": lambda text: audit.DpSgd(1, text, 0.01),
    "Grid": lambda text: audit.Grid(text),
    "settings": lambda text: AuditConfig.from_mapping({"trials": text}),
}


@pytest.mark.parametrize("door", WHOLE_DOORS)
def test_every_door_for_whole_numbers_refuses_ambiguous_text(door: str) -> None:
    for text in ("2", "2.0", "2e0"):
        WHOLE_DOORS[door](text)
    for text in ("2.000", "20.000"):
        with pytest.raises(ValueError, match=f"it may mean {text[:-4]} or {text[:-4]}000"):
            WHOLE_DOORS[door](text)


def test_numbers_with_decimals_stay_as_they_were() -> None:
    assert protocols.parse_protocol("grid:20,0.500") == audit.Grid(20, 0.5)
    adaptive = protocols.parse_protocol("adaptive:0.750,1.333/tnb:0,0.010")
    assert adaptive == protocols.Adaptive("tnb:0,0.01", 0.75, 1.333)
    assert accounting.parse_mechanism("gaussian:0.125") == audit.GaussianMechanism(0.125)
    assert protocols.parse_protocol("schedule:4.000,2.000").spec == "schedule:4.0,2.0"
    assert several_numbers("epsilon", "0.125") == (0.125,)


@pytest.mark.parametrize("option", ["--steps", "--records", "--tunings"])
def test_options_refuse_ambiguous_whole_numbers(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bounds.main(["--noise-multiplier", "1", "--sampling-rate", "0.01", option, "1.000"])
    assert ended.value.code == 2
    assert "it may mean 1 or 1000" in capsys.readouterr().err


def test_a_preset_refuses_ambiguous_whole_numbers(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    for given in ('"20.000"', "20.000"):
        preset.write_text(f"trials = {given}\n")
        with pytest.raises(ValueError, match=r"trials must be .* it may mean 20 or 20000"):
            AuditConfig.from_mapping(read_preset(str(preset)))
    preset.write_text("trials = 20\nsampling_rate = 0.125\nepsilon = [1.000, 2.5]\n")
    found = AuditConfig.from_mapping(read_preset(str(preset)))
    assert (found.trials, found.sampling_rate, found.epsilon) == (20, 0.125, (1.0, 2.5))

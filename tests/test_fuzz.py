"""Every user input is accepted, or refused in one line.

Hypothesis generates command lines, presets, damaged folders and arguments of public functions. A
command must return the exit code 0, 1 or 2, print no traceback, and print at most one line about an
error. A function may raise only an AuditError of one line. No number may be NaN or contradict
another. With `AUDIT_FUZZ=100`, a hundred times as many examples are drawn at random.

`CAUSES` lists the defects that such inputs found, each with a test that detects it.
"""

import codecs
import contextlib
import copy
import csv
import decimal
import functools
import itertools
import json
import math
import os
import re
import shutil
import tempfile
import time
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from known import Unprintable

from audit import (
    accounting,
    bounds,
    checks,
    compare,
    cost,
    finished,
    lower_bounds,
    processes,
    protocols,
    repetitions,
    run,
    tuning,
    verify,
)
from audit import upper_bounds as upper
from audit.certificate import verification
from audit.certificate.certificate import hash_of
from audit.errors import AuditError
from audit.game import workers
from audit.game.settings import AuditConfig, read_preset
from audit.report import __main__ as report
from audit.upper_bounds.registry import find, row

# numpy only warns, as in a user's program, when it reads masked and complex numbers; such numbers
# must be refused.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*converting a masked element"),
    pytest.mark.filterwarnings("ignore:Casting complex values"),
]

_TIMES = int(os.environ.get("AUDIT_FUZZ", "1"))


def print_nothing() -> None:
    pass


def examples(number: Any) -> Any:
    return settings(
        max_examples=number * _TIMES,
        derandomize=_TIMES == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


NUMBERS = st.one_of(
    st.sampled_from(
        [
            *(0.0, -0.0, 1.0, -1.0, 0.5, 0.01, 1e-5, 3.0, 20.0, 5e-324, 1e-310, 1e-300, 1e-17),
            *(1e17, 1e300, 1.7e308, math.inf, -math.inf, math.nan, 1 - 2**-53, 2.0**53, 1e15),
        ]
    ),
    st.floats(0.01, 10.0),
    st.floats(),
)


WORDS = st.one_of(
    NUMBERS.map(repr),
    st.integers(-3, 40).map(str),
    st.sampled_from(
        [
            *("", " ", "nan", "1e309", "1_000", "\u0661", "\uff11", "0x10", "True", "None", "[]"),
            *("\x00", "\n", "--", "-", "@", ":", ",", "/", "\U0001f642", "\udcff", "a.b", "{}"),
            *("../..", "/dev/null", "/", "1,2", "1,2,3", "%s", "%(prog)s", "$HOME", "1" * 400),
            "os.system",
        ]
    ),
    st.text(max_size=8),
)
NAMES = [
    *repetitions.FAMILIES,
    "search",
    "grid",
    "adaptive",
    "subset",
    "until",
    "stopping",
    "schedule",
    "best",
    "pareto",
]
NAMES += ["noisy-max", "ptr", "gaussian", "laplace", "response", "pure", "approximate", "zcdp"]
NAMES += ["renyi", "profile", ""]
SPECS = st.one_of(
    st.builds(
        lambda name, values, end: f"{name}:{','.join(values)}{end}",
        st.sampled_from(NAMES),
        st.lists(WORDS, max_size=3),
        st.sampled_from(["", "", "@5", "@", "/tnb:0,0.01", "/", ",monotone", "@1000000"]),
    ),
    WORDS,
)
LAWS = st.sampled_from(
    ["tnb:0,0.01", "geometric:0.1", "poisson:3", "binomial:9,0.5", "two-point:0.1,9", "fixed:3"]
)
THINGS = st.one_of(
    NUMBERS,
    WORDS,
    SPECS,
    st.none(),
    st.booleans(),
    st.integers(-3, 2**70),
    st.sampled_from([np.float64(0.5), np.int64(3), np.float32("nan"), np.array(0.5), np.array([])]),
    st.sampled_from([np.ones((2, 2)), np.array(["a"]), [], {}, (), object(), b"1", 1j]),
    st.sampled_from([np.ones(2), np.array(1j), np.array(True), np.float16(0.5), {0.5}, ...]),
    st.sampled_from([decimal.Decimal("0.5"), decimal.Decimal("sNaN"), Fraction(1, 3), print]),
    st.sampled_from(
        [Unprintable(), 10**400, -(10**400), 1e-320, "x" * 10**4, np.ma.masked, b"\xff", range(3)]
    ),
)


PYTHON = re.compile(
    r"NoneType|object has no|object is not|subscriptable|out of range$|__|keyword argument|"
    r"\b(Key|Index|Type|Attribute|ZeroDivision|Overflow)Error\b"
)
"""Words of Python's own exceptions, which no message of this package contains."""


def refused_well(error: Any) -> None:
    """Asserts that an error has a message of one line, without words of Python's own errors."""
    assert isinstance(error, AuditError), repr(error)
    said = str(error)
    assert said.strip()
    assert len(said.splitlines()) == 1, said
    assert len(said) < 3000
    assert said != "math domain error"
    assert not re.search(r"got a (int|object)\b", said), said
    assert not PYTHON.search(said), said


def asked(function: Any, *arguments: Any) -> Any:
    """The result of a function; None if it raises a valid error."""
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except (ValueError, TypeError) as error:
        refused_well(error)
        return None


VAGUE = "got some of another kind"
"""Words of the error about a certificate whose wrong field no check found."""


def commanded(capsys: pytest.CaptureFixture[str], main: Any, argv: Any, codes: Any = (0, 2)) -> Any:
    """The exit code and output of a command; asserts that it prints at most one line of error."""
    capsys.readouterr()
    try:
        with np.errstate(all="ignore"):
            code = main([str(word) for word in argv])
    except SystemExit as ended:  # as argparse does
        code = ended.code if isinstance(ended.code, int) else 0
    said = capsys.readouterr()
    assert code in codes
    assert "Traceback" not in said.err
    if code == 2:
        (line,) = said.err.splitlines()
        assert line.startswith("error: ")
        assert not PYTHON.search(line), line
        assert VAGUE not in line, line
    return code, said.out


@pytest.mark.parametrize(
    "read", [repetitions.parse_repetitions, protocols.parse_protocol, accounting.parse_mechanism]
)
def test_text_is_read_or_refused(read: Callable[..., Any]) -> None:
    @examples(150)
    @given(SPECS | THINGS)
    def play(text: Any) -> None:
        found = asked(read, text)
        if found is not None and read is not accounting.parse_mechanism:
            assert read(found.spec) == found

    play()


@examples(150)
@given(THINGS, THINGS, THINGS, st.booleans(), st.booleans())
@example(np.array([1j]), 0, 1, True, True)
@example(np.complex128(0.5 + 1j), 0, 1, True, True)
def test_checks_give_a_number_or_refuse(
    value: Any, low: Any, high: Any, closed_low: Any, closed_high: Any
) -> None:
    found = asked(checks.integer, "x", value, 0, 10)
    assert found is None or (type(found) is int and 0 <= found <= 10)
    assert found is None or not isinstance(value, bool)
    found = asked(checks.interval, "x", value, 0.0, 1.0)
    assert found is None or (type(found) is float and 0.0 < found < 1.0)
    assert found is None or not np.iscomplexobj(value)
    found = asked(checks.numbers, "x", value)
    assert found is None or not np.iscomplexobj(value)
    assert asked(checks.one_of, "x", value, ["a", "b"]) in (None, "a", "b")


def check_rows(rows: Any) -> None:
    """Asserts that no number is NaN or negative, and no bound below the epsilon of an attack."""
    known = {one.name: one.epsilon for one in rows if one.applies}
    assert all(epsilon >= 0.0 for epsilon in known.values()), known
    attained = known.get("worst-order", 0.0)
    for one in rows:
        if one.applies and one.claim.any_score:
            assert one.epsilon >= attained * (1.0 - 1e-6), (one.name, known)


BASES = st.one_of(
    st.builds(lambda mu: f"gaussian:{mu!r}", st.floats(1e-12, 1e3) | st.floats(0.01, 3.0)),
    st.builds(lambda e: f"pure:{e!r}", st.floats(1e-3, 50.0)),
    st.builds(lambda scale: f"laplace:{scale!r}", st.floats(0.01, 100.0)),
    SPECS,
)
QUICK = (
    upper.region,
    upper.published.reduced_renyi,
    upper.published.lemma_7,
    upper.published.renyi,
    upper.published.profile,
)


@examples(15)
@given(BASES, SPECS | LAWS, NUMBERS | st.floats(1e-12, 0.1), st.sampled_from(QUICK))
def test_a_bound_is_a_number_or_a_reason(base: Any, law: Any, delta: Any, bound: Any) -> None:
    mechanism = asked(accounting.parse_mechanism, base)
    if mechanism is not None:
        found = asked(bound, mechanism, law, delta)
        assert found is None or found.epsilon >= 0.0


@examples(25)
@given(THINGS, THINGS | LAWS, THINGS)
def test_upper_bounds_refuse_invalid_bases(base: Any, law: Any, delta: Any) -> None:
    if asked(accounting.parse_mechanism, base) is not None:
        return
    for function in (upper.region, upper.tuning_cost, upper.all_upper_bounds, upper.TunedMechanism):
        arguments = (base, law) if function is upper.TunedMechanism else (base, law, delta)
        with pytest.raises((ValueError, TypeError)) as refusal:
            function(*arguments)
        refused_well(refusal.value)


@examples(100)
@given(THINGS, THINGS, THINGS)
@example(np.array(0.5), 1.0, 1.0)
@example([2.0], [math.inf], 1e-5)
def test_the_accounts_of_one_run_are_numbers_or_refused(one: Any, two: Any, three: Any) -> None:
    makers = (
        lambda: accounting.GaussianMechanism(one),
        lambda: accounting.LaplaceMechanism(one),
        lambda: accounting.PureDp(one),
        lambda: accounting.ApproximateDp(one, two),
        lambda: accounting.RandomisedResponse(one, two),
        lambda: accounting.ZeroConcentratedDp(one),
        lambda: accounting.DpSgd(one, two, three),
        lambda: accounting.Composition(one),
        lambda: accounting.Composition((one, two)),
        lambda: accounting.Mixture((one,), (two,)),
        lambda: accounting.PrivacyProfile(one, two),
        lambda: accounting.RenyiCurve(one, two).epsilon(three),
        lambda: accounting.DiscreteMechanism(one, two),
        lambda: accounting.LossDistribution(one, two),
        lambda: upper.published.project_density(one, two, three),
        lambda: accounting.full_batch_noise_multiplier(one, two),
        lambda: repetitions.parse_repetitions("tnb:0,0.1").with_mean(one),
        lambda: repetitions.Truncated(repetitions.parse_repetitions("poisson:2"), one),
        lambda: repetitions.parse_repetitions("poisson:2").given_no_failure(one),
        lambda: protocols.Grid(one, two),
        lambda: protocols.Adaptive(one, two, three),
        lambda: protocols.Subset(one, two, three),
        lambda: protocols.UntilAccepted(one),
        lambda: protocols.RandomStopping(one),
        lambda: protocols.NoisyMax(one, two, three),
        lambda: protocols.RandomSearch(one),
    )
    for make in makers:
        asked(make)


SCORES = st.one_of(
    st.lists(NUMBERS, max_size=12),
    st.sampled_from([np.zeros(0), np.zeros((3, 2)), np.array(["a"]), np.array([1j]), np.array(3)]),
    st.sampled_from([[[]], [None], ["1", "2"], [10**400], np.ones(5, dtype=bool), {1.0}, "12"]),
    st.sampled_from([[b"1", b"2"], np.array([b"1"]), [1.0, "2"], np.array(["1", 2], dtype=object)]),
    st.sampled_from([b"12", bytearray(b"12"), memoryview(b"12"), [memoryview(b"1")]]),
    THINGS,
)


@examples(60)
@given(SCORES, SCORES, st.just(1e-5) | NUMBERS, st.just(0.95) | NUMBERS)
@pytest.mark.filterwarnings("ignore:the bound is 0")
def test_a_lower_bound_is_a_number_or_refused(
    out_scores: Any, in_scores: Any, delta: Any, confidence: Any
) -> None:
    given = {"out_scores": out_scores, "in_scores": in_scores}
    given |= {"delta": delta, "confidence": confidence}
    found = asked(lambda: lower_bounds.lower_bound(**given))
    if found is not None:
        assert found.epsilon >= 0.0
        for scores in (out_scores, in_scores):
            assert len(scores) > 0
            assert not isinstance(scores, str | bytes | bytearray | memoryview)
            assert not any(isinstance(one, str | bytes) for one in scores)
    for one in asked(lambda: lower_bounds.all_lower_bounds(**given)) or ():
        assert one.epsilon >= 0.0


OPTIONS = ["--mu", "--delta", "--repetitions", "--protocol", "--noise-multiplier", "--steps"]
OPTIONS += ["--sampling-rate", "--epsilon-base", "--base", "--accounting", "--neighbours"]
OPTIONS += ["--gaussian-epsilon", "--delta-base", "--cap", "--budgets", "--records", "--epochs"]
OPTIONS += ["--group-size"]
OPTIONS += ["--tunings", "--target-epsilon", "--solve", "--bound", "--trials", "--optuna"]
OPTIONS += ["--chosen", "--compare", "--plot", "--nope"]


@st.composite
def lines_of(draw: Any, options: Any, start: Any = ()) -> Any:
    argv = list(start)
    for option in draw(st.lists(st.sampled_from(options), max_size=4)):
        argv += [option, draw(WORDS | SPECS | LAWS)]
    return argv


@pytest.mark.slow
def test_the_accountant_computes_or_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    @examples(60)
    @given(lines_of(OPTIONS) | lines_of(OPTIONS, ("--mu", "0.5", "--json")))
    def play(argv: Any) -> None:
        code, out = commanded(capsys, bounds.main, argv)
        if code == 0 and "--json" in argv:
            assert all((one["epsilon"] or 0.0) >= 0.0 for one in json.loads(out)["bounds"])

    play()


COLUMNS = [
    "mu",
    "gdp_mu",
    "zcdp_rho",
    "batch_size",
    "epochs",
    "state",
    "noise_multiplier",
    "sampling_rate",
    "steps",
    "lr",
    "MU",
    "sigma",
    "muu",
    "",
]
CELLS = (
    st.sampled_from(["", "0.5", "2", "100", "0.01", "-1", "nan", "1e400", "=cmd", "0,5"]) | WORDS
)
NOT_OF_TRIALS = {
    **{"--final-run": [], "--tunings": ["3"], "--protocol": ["grid:3"], "--mu": ["1"]},
    **{"--compare": ["5"], "--bound": ["region"], "--plot": ["x.png"], "--solve": ["runs"]},
    **{"--accounting": ["rdp"]},
}
OF_TRIALS = {
    **{"--group-size": ["2"], "--delta": ["1e-6"], "--records": ["50"], "--cap": ["3"]},
    **{"--budgets": ["adaptive"], "--neighbours": ["zero-out"], "--repetitions": ["tnb:0,0.1"]},
}


@st.composite
def csv_files(draw: Any) -> Any:
    """A heading and rows, most of which are almost right."""
    heading = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4))
    rows = draw(st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=3))
    if draw(st.booleans()):
        heading, rows = draw(
            st.sampled_from(
                [
                    (["gdp_mu"], [["0.1"]] * 3),
                    (["gdp_mu", "gdp_mu"], [["0.1", "2"]]),
                    (["noise_multiplier", "steps"], [["2", "10"]] * 2),
                ]
            )
        )
    return heading, "\n".join(map(",".join, [heading, *rows])) + "\n"


@pytest.mark.slow
def test_trials_are_read_or_refused_and_no_option_is_ignored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trials.csv"

    @examples(60)
    @example((["gdp_mu", "gdp_mu"], "gdp_mu,gdp_mu\n0.1,2\n"), [], "grid")
    @given(
        csv_files(),
        st.lists(st.sampled_from([*NOT_OF_TRIALS, *OF_TRIALS]), max_size=2, unique=True),
        st.sampled_from(["grid", "random", "sequential", "gird"]),
    )
    def play(file: Any, options: Any, chosen: Any) -> None:
        heading, text = file
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        argv = [str(path), "--chosen", chosen, "--json"]
        for option in options:
            argv += [option, *(NOT_OF_TRIALS | OF_TRIALS)[option]]
        code, out = commanded(capsys, cost.main, argv)
        if code == 0:
            assert not NOT_OF_TRIALS.keys() & set(options)
            assert len({*heading}) == len(heading)
            found = json.loads(out)
            assert all(
                found[name] is None or found[name] >= 0.0 for name in ("best_only", "all_released")
            )

    play()
    path.write_text("gdp_mu\n0.1\n")
    for option, values in NOT_OF_TRIALS.items():  # Random examples rarely have nothing else wrong.
        argv = [str(path), "--chosen", "grid", option, *values]
        assert commanded(capsys, cost.main, argv)[0] == 2


@pytest.mark.slow
def test_the_accountant_at_extreme_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    @examples(3)
    @given(
        st.floats(-12.0, 3.0),
        st.floats(-300.0, -0.01),
        st.sampled_from(["tnb:0,{}", "geometric:{}", "two-point:{},1000", "binomial:50,{}"]),
        st.floats(-299.0, -0.001),
    )
    def play(mu: Any, delta: Any, law: Any, parameter: Any) -> None:
        base = accounting.GaussianMechanism(10.0**mu)
        found = (base, law.format(repr(10.0**parameter)), 10.0**delta)
        if _TIMES > 1:
            check_rows(upper.all_upper_bounds(*found))
        else:
            base, spec, delta = found
            protocol = protocols.parse_protocol(spec)
            names = ("region", "worst-order")
            check_rows([row(find(name), base, protocol, delta) for name in names])

    play()


FIELDS = st.sampled_from(sorted(AuditConfig.__dataclass_fields__))
VALUES = st.recursive(
    st.one_of(NUMBERS, WORDS, st.booleans(), st.none(), st.integers(-3, 2**64)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=5,
)


@pytest.mark.slow
@examples(300)
@given(st.dictionaries(FIELDS | WORDS, VALUES, max_size=4))
def test_settings_are_valid_or_refused(values: Any) -> None:
    asked(AuditConfig.from_mapping, values)


def test_presets_are_read_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @examples(60)
    @given(st.binary(max_size=40) | st.builds(lambda a, b: f"{a} = {b}", FIELDS, WORDS))
    def play(content: Any) -> None:
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogatepass")
        (tmp_path / "preset.toml").write_bytes(content)
        asked(run.parse, ["--preset", str(tmp_path / "preset.toml"), "--trials", "0"])
        if not content.startswith(codecs.BOM_UTF8):
            read = asked(read_preset, str(tmp_path / "preset.toml"))
            (tmp_path / "preset.toml").write_bytes(codecs.BOM_UTF8 + content)
            assert repr(asked(read_preset, str(tmp_path / "preset.toml"))) == repr(read)

    play()


SAME_EVERYWHERE = st.recursive(
    st.one_of(NUMBERS, WORDS, st.none(), st.booleans()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
DIFFERENT = st.sampled_from(
    [{"a", "b"}, frozenset({1}), object(), print_nothing, lambda: None, np.zeros(2000)]
)


@examples(60)
@given(SAME_EVERYWHERE, DIFFERENT, st.integers(0, 3))
def test_a_study_refuses_values_that_differ_between_processes(
    same: Any, different: Any, depth: int
) -> None:
    def study(value: Any) -> Any:
        base = accounting.GaussianMechanism(0.5)
        return tuning.Study({"x": [1, value]}, "fixed:2", base=base, folder=None)

    assert study(same).settings_hash == study(copy.deepcopy(same)).settings_hash
    for _ in range(depth):
        different = [same, {"x": (different,)}]
    with pytest.raises(ValueError, match="must hold values with the same text"):
        study(different)


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished audit, small."""
    folder = tmp_path_factory.mktemp("audit") / "one"
    argv = ["--threat", "ETCV", "--canary", "dirac", "--trials", "20", "--repeats", "1"]
    assert run.main([*argv, "--epsilon", "1", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take a second and hold no text that a program would run."""
    monkeypatch.setattr("audit.report.pictures.save", lambda *given: None)
    monkeypatch.setattr("audit.report.comparison.draw", lambda *given: None)


HOSTILE = st.builds(
    lambda first, rest: first + rest,
    st.sampled_from(
        [
            *("=", "+", "-", "@", " =", "\uff1d", "\xa0\uff20", "<script>", "|"),
            *("<img src=x onerror=", "[a](javascript:"),
        ]
    ),
    st.sampled_from(["cmd.calc", "HYPERLINK(1)", "alert(1)</script>", "1+1", "x)", "| a |"]),
)


def places_of_texts(values: Any, path: Any = ()) -> Any:
    """The paths of all texts of nested values."""
    if isinstance(values, str):
        return [path]
    if not isinstance(values, dict | list):
        return []
    inside = values.items() if isinstance(values, dict) else enumerate(values)
    return [one for key, value in inside for one in places_of_texts(value, (*path, key))]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_tables_contain_no_formula_and_no_markup_of_untrusted_text(
    audit: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = (audit / "summary.json").read_text()
    monkeypatch.chdir(tmp_path)
    accepted = []

    @examples(40)
    @given(HOSTILE, st.none() | st.integers(0, 10**6))
    def play(text: Any, place: Any) -> None:
        name = "folder" if place is not None else text.replace("/", "")
        values = json.loads(right)
        if place is not None:
            paths = places_of_texts(values)
            *parents, last = paths[place % len(paths)]
            inside = values
            for key in parents:
                inside = inside[key]
            inside[last] = text
        shutil.copytree(audit, name, dirs_exist_ok=True)
        (tmp_path / name / "summary.json").write_text(json.dumps(values))
        code, _ = commanded(capsys, compare.main, ["--out", "out", "--", name, audit])
        if code == 0:
            accepted.append(name)
            with open("out/table.csv", newline="") as file:
                for cell in itertools.chain.from_iterable(csv.reader(file)):
                    assert "<" not in cell, cell
                    first = unicodedata.normalize("NFKC", cell).strip()[:1]
                    assert first not in tuple("=+-@") or _is_number(cell), cell
            page = (tmp_path / "out" / "table.md").read_text()
            assert "<" not in page.replace("<br>", "")
            assert not re.search(r"(?<!\\)\]\(", page)

    play()
    assert len(accepted) > 5


def _is_number(text: Any) -> Any:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_addresses_without_a_cluster_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_PATIENCE", 0.0)
    hosts = ["127.0.0.1:", "tcp://127.0.0.1:", "ray://[::1]:", "tls://localhost:", ":"]
    ports = ["", "1", "0", "-1", "65536", "1e3", "nan", "1" * 400, "\x00", " 1"]

    @examples(40)
    @given(st.sampled_from(["dask", "ray"]), st.sampled_from(hosts), st.sampled_from(ports))
    def play(backend: Any, host: Any, port: Any) -> None:
        with pytest.raises(ValueError, match="scheduler must be ") as error:
            workers._check_answers(AuditConfig(backend=backend, scheduler=host + port).place)
        refused_well(error.value)

    play()


@pytest.mark.slow
@examples(1)
@given(st.floats(0.8, 2.0), st.sampled_from([0.01, 0.1]), st.integers(4, 6), st.integers(1, 1000))
@example(1.0, 0.01, 5, 1000)
def test_long_compositions_cost_more_than_one_run_and_less_than_the_sum(
    noise: Any, rate: Any, ten: Any, times: Any
) -> None:
    one = accounting.DpSgd(noise, 10**ten, rate)
    all_of_them = finished.cost_of_trials([one] * times, "grid").all_released
    assert one.epsilon(1e-5) <= all_of_them * (1 + 1e-6)
    assert all_of_them <= times * one.epsilon(1e-5 / times) * (1 + 1e-6)


@pytest.mark.slow
@examples(2)
@given(
    st.sampled_from(["gdp_mu", "zcdp_rho", "noise_multiplier"]),
    st.sampled_from([1, 40] if _TIMES == 1 else [1, 40, 300, 10_000]),
    st.sampled_from([1, 300]),
    st.sampled_from(["grid", "random", "sequential"]),
)
def test_large_files_of_trials_take_seconds(
    kind: Any, distinct: Any, times: Any, chosen: Any
) -> None:
    rows = np.geomspace(1e-4, 1e-3, distinct)
    cells = [f"{1 / row},10,0.01" if kind == "noise_multiplier" else f"{row}" for row in rows]
    heading = "noise_multiplier,steps,sampling_rate" if kind == "noise_multiplier" else kind
    start = time.process_time()
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("\n".join([heading, *cells * times]))
        file.flush()
        found = finished.cost_of_trials(file.name, chosen)
    assert found.trials == distinct * times
    assert time.process_time() - start < 20.0


@pytest.mark.slow
@pytest.mark.parametrize("largest_rate", [0.002, 0.1])  # epsilon of all trials: 3.3 and 58,000
def test_ten_thousand_different_runs_take_seconds(largest_rate: float) -> None:
    rng = np.random.default_rng(0)
    drawn = rng.uniform(
        [0.9, largest_rate / 4, 5], [4.0, largest_rate, 5e4 * largest_rate], (10**4, 3)
    )
    start = time.process_time()
    found = finished.cost_of_trials(
        [accounting.DpSgd(noise, int(steps), rate) for noise, rate, steps in drawn], "grid"
    )
    assert found.best_only <= found.all_released
    assert time.process_time() - start < 30.0


JSONS = st.one_of(
    VALUES.map(json.dumps).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=30),
    st.just(b"[" * 5000),
)


ABSENT = "(absent)"


def put_in(values: Any, place: int, value: Any) -> Any:
    """A copy of nested values with another value at a place; fields of a level are as likely.

    The value `ABSENT` removes a field.
    """
    if not values or not isinstance(values, dict | list):
        return value
    place, field = divmod(place, len(values) + 1)
    if field == len(values):
        return value
    copied = values.copy()
    key = list(values)[field] if isinstance(values, dict) else field
    copied[key] = put_in(values[key], place, value)
    if copied[key] is ABSENT:
        del copied[key]
    return copied


@pytest.mark.thorough
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_damaged_folders_are_refused(
    audit: Any, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    right = (audit / name).read_bytes()

    def read(content: Any) -> int:
        (audit / name).write_bytes(content)
        commanded(capsys, report.main, [audit])
        code: int = commanded(capsys, compare.main, [audit, "--out", audit.parent / "c"])[0]
        return code

    def damaged(place: Any, value: Any) -> bytes:
        edited = put_in(json.loads(right), place, value)
        return json.dumps(edited).encode("utf-8", "surrogatepass")

    @examples(30)
    @given(JSONS | st.builds(damaged, st.integers(0, 10**9), VALUES | st.just(ABSENT)))
    def play(content: Any) -> None:
        read(content)

    try:
        assert read(right) == 0
        play()
        if name == "summary.json":  # Random examples rarely remove a bound that is shown.
            (found,) = json.loads(right)["results"]
            for proxy in found["lower_bounds"]:
                bounds = {one: two for one, two in found["lower_bounds"].items() if one != proxy}
                without = json.loads(right) | {"results": [found | {"lower_bounds": bounds}]}
                assert read(json.dumps(without).encode()) == 2
    finally:
        (audit / name).write_bytes(right)


@pytest.mark.thorough
def test_verification_of_damaged_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Most edits leave the numbers as they are.
    remembered = functools.cache(verification.with_stated_costs)
    monkeypatch.setattr(verification, "with_stated_costs", remembered)
    path = tmp_path / "certificate.json"
    base = accounting.GaussianMechanism(0.5)
    study = tuning.Study({"level": [1, 2]}, "tnb:0,0.5", base=base, folder=None, seed=1)
    study.run(lambda trial: tuning.Outcome(1.0))
    study.certificate.save(path)
    right = json.loads(path.read_text())
    values = VALUES | st.sampled_from(
        [10**400, None, [], [None] * 10**4, [*map(str, range(10**5))]]
    )

    def read(edited: Any) -> None:
        if isinstance(edited, dict):
            edited = edited | {"hash": hash_of(edited)}
        if not isinstance(edited, bytes):
            edited = json.dumps(edited).encode("utf-8", "surrogatepass")
        path.write_bytes(edited)
        # The exit code is 3 if an edit changes nothing: the seed is known.
        code, _ = commanded(capsys, verify.main, [path], codes=(1, 2, 3))
        assert code == 2 or str(10**400).encode() not in edited

    @examples(20)
    @given(JSONS | st.builds(put_in, st.just(right), st.integers(0, 10**9), values))
    def play(edited: Any) -> None:
        read(edited)

    play()
    # Random edits miss many fields.
    others: list[Any] = [10**400, None, 0, [], "x"]
    for name, inside in right.items():
        for value in others:
            read(right | {name: value})
        for index, key in enumerate(inside if isinstance(inside, dict) else ()):
            # By default, each field of a field gets one of the values, and all values occur.
            for value in others if _TIMES > 1 else [others[index % len(others)]]:
                read(right | {name: inside | {key: value}})


OF_A_STUDY = {
    **{"space": {"lr": [1, 2]}, "protocol": "fixed:2", "base": "gaussian:0.1", "delta": 1e-5},
    **{"seed": 1, "score": 1.0, "jobs": 1, "epsilon": None, "steps": None, "scored_on": "public"},
}


@examples(60)
@given(st.sampled_from([*OF_A_STUDY]), THINGS | SPECS)
@example("space", np.array(0.5))
@example("steps", np.ones(2))
@example("score", 10**400)
@example("jobs", 10**30)
@pytest.mark.filterwarnings("ignore:no candidate was chosen")
def test_a_study_is_run_or_refused(name: Any, thing: Any) -> None:
    given = OF_A_STUDY | {name: thing}
    score, jobs = given.pop("score"), given.pop("jobs")
    if checks.as_integer(jobs) in (-1, *range(2, 1025)):
        return  # worker processes would start
    study = asked(lambda: tuning.Study(**given, folder=None))
    if study is not None:
        with contextlib.suppress(tuning.StudyAborted):
            asked(lambda: study.run(lambda trial: tuning.Outcome(score), jobs=jobs))


@examples(40)
@given(THINGS, st.just("grid") | THINGS, NUMBERS | THINGS, THINGS | st.none(), THINGS | st.none())
@example([accounting.GaussianMechanism(0.1)], "grid", 1e-320, None, None)
def test_the_cost_of_trials_is_a_number_or_refused(
    trials: Any, chosen: Any, delta: Any, law: Any, cap: Any
) -> None:
    for one in (trials, [accounting.GaussianMechanism(0.1)]):
        found = asked(
            lambda one=one: finished.cost_of_trials(one, chosen, delta=delta, protocol=law, cap=cap)
        )
        if found is not None and found.best_only is not None:
            assert found.best_only >= 0.0


@pytest.mark.thorough
@examples(2)
@given(st.floats(0.8, 4.0), st.floats(0.001, 1.0), st.integers(1, 500), st.integers(1, 3))
def test_correct_trials_are_never_refused(noise: Any, rate: Any, steps: Any, times: Any) -> None:
    one = accounting.DpSgd(noise, steps, rate)
    found = finished.cost_of_trials([one] * times, "grid")
    assert one.epsilon(1e-5) <= found.all_released * (1 + 1e-6)
    assert found.best_only <= found.all_released


RUN = {"noise_multiplier": 1.1, "batch_size": 100, "epochs": 5}
WORDS_OF_COLUMNS = st.sampled_from(
    [
        *("noise", "sigma", "std", "multiplier", "scale", "eps", "epsilon", "delta", "target"),
        *("batch", "size", "bs", "micro", "physical", "logical", "per", "device", "accumulation"),
        *("steps", "epochs", "max", "num", "n", "iterations", "gradient", "rate", "sample", "q"),
        *("gpus", "world", "nodes", "processes", "replicas", "devices", "workers", "records"),
        *("train", "fraction", "subset", "split", "samples", "folds", "runs", "seeds", "models"),
        *("adaptive", "clip", "clipping", "quantile", "group", "user", "level", "dp", "private"),
        *("lr", "loss", "accuracy", "seed", "name", "hidden", "dropout", "momentum", "val"),
    ]
)
NAMES_OF_COLUMNS = st.lists(WORDS_OF_COLUMNS, min_size=1, max_size=3).map("_".join)
CELLS_OF_COLUMNS = st.sampled_from(
    [0, 1, 2, 4, 0.1, 0.5, 1.1, 5, 8, 50, 100, 500, 5000, 10_000, True, False, "yes", "50%", "1/4"]
) | st.sampled_from(["adaptive", "user", "shuffle", "flat", "0,1", "a", None, 1e9, -1, "1e3"])

# What a row says by itself about its privacy, in words of columns: the true cost is then larger
# than that of the used columns.
LESS_PRIVATE = [
    ("world_size", [2, 4, "8"]),
    ("n_gpus", [2, "4.0"]),
    ("num_nodes", [2]),
    ("gradient_accumulation_steps", [2, "16"]),
    ("train_fraction", [0.1, "50%", 0.5]),
    ("subset_size", [0.5, 1000]),
    ("n_train", [100, "5000"]),
    ("n_folds", [5]),
    ("adaptive_clipping", [True, "yes", 1]),
    ("target_unclipped_quantile", [0.5]),
    ("sigma_b", [10, 0.5]),
    ("user_level", [True, "1"]),
    ("group_size", [2, 10]),
    ("noise_sigma", [0.5, 0.1]),
    ("max_steps", [5000, "1e4"]),
    ("num_epochs", [50]),
    ("dp", [False, "no", 0]),
]


def _cost_of(columns: Any) -> Any:
    rows = [RUN | columns]
    return asked(lambda: finished.cost_of_trials(rows, "grid", records=10_000))


@functools.cache
def _plain_cost() -> Any:
    return _cost_of({}).epsilon


@pytest.mark.slow
@examples(30)
@given(NAMES_OF_COLUMNS, CELLS_OF_COLUMNS, NAMES_OF_COLUMNS, CELLS_OF_COLUMNS)
def test_another_column_never_lowers_a_cost(first: Any, one: Any, second: Any, two: Any) -> None:
    found = _cost_of({first: one, second: two})
    if found is not None and not {first, second} & {*RUN}:
        assert found.epsilon is None or found.epsilon >= _plain_cost() * (1 - 1e-9)


@examples(60)
@given(st.sampled_from(LESS_PRIVATE), st.integers(0, 10), st.sampled_from(["", "config.", "dp/"]))
def test_a_column_that_states_less_privacy_is_never_ignored(
    column: Any, place: Any, prefix: Any
) -> None:
    name, cells = column
    assert _cost_of({f"{prefix}{name}": cells[place % len(cells)]}) is None


@examples(60)
@given(st.lists(st.sampled_from(["tpu", "cuda:-1", "cuda:x", "gpu", "CUDA", "cuda:01"]) | THINGS))
@example(["tpu"])
@example(["cuda", "cuda:0"])
@example(["cuda:0", "cpu"])
def test_devices_are_places_that_torch_knows(names: Any) -> None:
    found = asked(lambda: processes.device_names(names))
    for name in found or ():
        torch.device(name)
    assert found is None or len({str(torch.device(name)) for name in found}) == len(names)


def test_other_commands_refuse_random_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    @examples(40)
    @given(st.lists(WORDS, min_size=1, max_size=3))
    def play(words: Any) -> None:
        for main in (verify.main, report.main):
            commanded(capsys, main, words, codes=(1, 2))

    play()


CAUSES = {
    "columns that make a run less private": "test_fuzz.py::"
    "test_a_column_that_states_less_privacy_is_never_ignored",
    "devices that do not exist": "test_fuzz.py::test_devices_are_places_that_torch_knows",
    "overflow of learning rates": "commands/test_run_command.py::"
    "test_numbers_whose_products_are_infinite_are_refused",
    "storages of another schema": "finished/test_optuna.py::"
    "test_a_storage_of_an_unknown_schema_is_refused",
    "stored trials of two codes": "game/test_stored_audits.py::"
    "test_a_stored_audit_is_that_of_one_version",
    "full disks under tables of coverage": "studies/test_coverage_study.py::"
    "test_a_full_disk_names_the_parameter",
    "two audits at once in one folder": "commands/test_run_command.py::"
    "test_a_second_audit_in_a_folder_that_is_in_use_is_refused",
    "a folder that another audit takes without locks": "commands/test_run_command.py::"
    "test_results_of_another_audit_are_not_overwritten_without_locks",
    "ignored options of trials": "test_fuzz.py::"
    "test_trials_are_read_or_refused_and_no_option_is_ignored",
    "other ignored options": "commands/test_bounds_command.py::"
    "test_options_that_do_not_apply_are_refused_by_name",
    "two columns of one name": "test_fuzz.py::"
    "test_trials_are_read_or_refused_and_no_option_is_ignored",
    "headings without their names": "finished/test_tables.py::test_bad_files_are_one_line",
    "true read as 1, a scheduler without a backend": "commands/test_run_command.py::"
    "test_preset_settings_of_the_wrong_type_are_refused",
    "complex records": "loop/test_check.py::test_complex_records_are_refused",
    "workers of an audit that outlive it": "game/test_workers.py::"
    "test_workers_end_with_their_parent",
    "workers of a trained function": "loop/test_command.py::test_training_ends_with_the_command",
    "workers of a study": "tuning/test_study_workers.py::"
    "test_workers_end_with_the_process_of_the_study",
    "clusters that do not answer": "game/test_workers.py::test_a_missing_cluster_is_one_line",
    "another Dask cluster's address in the environment": "game/test_workers.py::"
    "test_a_local_dask_cluster_ignores_the_address_of_another",
    "infinite divergences": "accounting/test_bases.py::test_invalid_input_is_refused",
    "other servers in place of a cluster": "game/test_workers.py::"
    "test_another_server_is_no_cluster",
    "clusters lost": "game/test_workers.py::test_a_lost_cluster_is_one_line",
    "head nodes of Ray lost": "game/test_workers.py::"
    "test_a_lost_head_node_of_ray_ends_the_process_with_one_line",
    "None read as NaN": "accounting/test_bases.py::test_orders_and_epsilons_must_be_numbers",
    "many trials merged again and again": "finished/test_cost_of.py::"
    "test_many_different_trials_are_merged_in_one_pass",
    "an invalid build date": "test_package.py::test_an_invalid_build_date_is_one_line",
    "clusters without workers": "game/test_workers.py::"
    "test_an_audit_waits_for_the_workers_of_a_dask_cluster",
    "many different trials": "finished/test_cost_of.py::"
    "test_many_different_trials_are_dominated_by_few",
    "many rows of trials": "finished/test_cost_of.py::test_many_rows_are_counted",
    "many budgets": "tuning/test_study_costs.py::"
    "test_many_budgets_are_accounted_for_in_eight_groups_at_their_largest",
    "a list of all runs": "tuning/test_study_draws.py::test_a_billion_runs_are_not_listed",
    "reproductions without end": "studies/test_reproduce.py::test_number_of_points_is_limited",
    "folders found unwritable after the work": "studies/test_reproduce.py::"
    "test_command_reports_bad_input_in_one_line",
    "long compositions": "accounting/test_bases.py::"
    "test_a_hundred_million_steps_are_composed_in_stages",
    "hostile certificates": "certificate/test_certificate_verification.py::"
    "test_hostile_values_are_refused_quickly_in_one_line",
    "large certificates": "certificate/test_certificate_verification.py::"
    "test_large_file_is_not_read_to_its_end",
    "summaries without a proxy": "report/test_compare.py::"
    "test_a_summary_with_other_proxies_is_one_line",
    "studies of coverage with one trial": "studies/test_coverage_study.py::"
    "test_command_writes_its_tables",
    "edited journals": "tuning/test_study_journal.py::"
    "test_a_journal_edited_by_hand_is_refused_in_one_line",
    "files of others in a study": "tuning/test_study_journal.py::"
    "test_a_file_that_does_not_belong_to_a_study_is_named",
    "changed working directories": "tuning/test_study_journal.py::"
    "test_a_run_that_changes_the_working_directory_does_not_move_the_study",
    "names that are not UTF-8": "report/test_compare.py::test_folder_names_may_be_invalid_utf_8",
    "records that are NaN": "loop/test_differential.py::"
    "test_records_that_are_no_numbers_are_one_line",
    "no candidates, constant numbers": "loop/test_check.py::test_what_is_wrong_is_one_line",
    "locked and damaged storages": "finished/test_optuna.py::"
    "test_locked_and_damaged_storages_have_their_own_line",
    "numbers of 17 digits": "commands/test_bounds_command.py::test_no_message_has_seventeen_digits",
    "scores, jobs and spaces of any kind": "test_fuzz.py::test_a_study_is_run_or_refused",
    "the smallest deltas": "test_fuzz.py::test_the_cost_of_trials_is_a_number_or_refused",
    "checked values that are not used": "test_checks.py::"
    "test_the_value_that_is_used_is_the_one_that_was_checked",
    "formulas and markup in tables": "test_fuzz.py::"
    "test_tables_contain_no_formula_and_no_markup_of_untrusted_text",
    "text and numbers as flags": "test_public_api.py::test_text_and_numbers_are_refused_as_flags",
    "dates and records as scores": "test_checks.py::"
    "test_arrays_that_numpy_would_change_are_refused",
    "pipes without a writer": "test_checks.py::test_a_pipe_that_no_one_writes_to_is_not_waited_for",
    "options given with --schema": "certificate/test_certificate_verification.py::"
    "test_the_schema_is_printed_alone",
    "pages in missing folders": "certificate/test_certificate_verification.py::"
    "test_a_page_that_cannot_be_written_is_refused_before_the_verdict",
    "1_0 read as 10": "test_checks.py::test_text_that_python_reads_as_another_number_is_refused",
    "trials of several group sizes": "finished/test_cost_of.py::"
    "test_trials_of_several_group_sizes_are_refused",
    "misspelled columns": "finished/test_tables.py::test_bad_files_are_one_line",
    "sets of trials": "test_checks.py::test_a_set_is_no_list_because_it_drops_equal_items",
    "complex numbers, times and bytes": "test_checks.py::"
    "test_what_only_python_reads_as_a_number_is_refused",
    "spaces larger than the memory": "tuning/test_study_guarantee.py::test_bad_input_is_one_line",
    "addresses that never answer": "game/test_workers.py::"
    "test_an_address_that_never_answers_is_not_waited_for",
    "errors that cannot be written": "commands/test_run_command.py::"
    "test_an_error_that_cannot_be_written_has_its_exit_code",
    "names of new folders that are too long": "commands/test_run_command.py::"
    "test_unwritable_folder_is_refused",
    "names of folders that are too long": "report/test_compare.py::"
    "test_folders_without_a_finished_audit_are_refused",
    "full disks": "commands/test_run_command.py::test_a_full_disk_is_one_line_and_loses_nothing",
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_known_cause_has_a_test(cause: str) -> None:
    file, name = CAUSES[cause].split("::")
    assert f"def {name}(" in (Path(__file__).parent / file).read_text()

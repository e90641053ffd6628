"""Studies that are stopped before their end: the release, its cost, and the worst time."""

import contextlib
import itertools
import math
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from light_runs import noisy
from scipy import stats
from study_helpers import study

from audit import accounting, protocols, tuning
from audit.errors import InvalidInput
from audit.repetitions import parse_repetitions
from audit.tuning.checkpoints import RUNS
from audit.tuning.elapsed_time import format_time, progress_line, worst_runs
from audit.tuning.stopping import stopped_cost

DELTA = 1e-5


def interrupted(one: Any, after: int, **settings: Any) -> list[Any]:
    """Runs a study until it is interrupted; returns the trials of its finished runs."""
    trials: list[Any] = []

    def train(trial: Any) -> Any:
        if len(trials) == after:
            raise KeyboardInterrupt
        trials.append(trial)
        return noisy(trial)

    with pytest.raises(KeyboardInterrupt):
        one.run(train, **settings)
    return trials


def save(model: Any, path: Path) -> None:
    path.write_text(repr(model))


def load(path: Path) -> Any:
    return int(path.read_text())


@pytest.mark.parametrize("how", ["saved", "trained again", "without a model"])
def test_a_stopped_study_releases_its_best_finished_run(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "s"
    settings = {"save": save, "load": load} if how == "saved" else {}
    trials = interrupted(study(folder=folder, seed=3), 4, **settings)
    scores = [noisy(trial).score for trial in trials]
    best = trials[int(np.argmax(scores))]
    given = {"saved": {"load": load}, "trained again": {"train": noisy}}.get(how, {})
    stopped = study(folder=folder, seed=3).stop(**given)
    assert (stopped.best.candidate, stopped.best.score) == (best.candidate, max(scores))
    assert stopped.best.model == (None if how == "without a model" else noisy(best).model)
    assert stopped.runs == 5  # the fifth had begun
    assert stopped.epsilon == stopped_cost(study().base, protocols.Grid(5), 5, DELTA).epsilon
    assert not folder.exists()


def test_a_stopped_study_is_over(tmp_path: Path) -> None:
    one = study(folder=tmp_path / "s", keep=True)
    interrupted(one, 2)
    stopped = one.stop()
    assert one.stop() is stopped
    with pytest.raises(InvalidInput, match="run must not be called after stop"):
        one.run(noisy)
    with pytest.raises(InvalidInput, match="certificate needs a study that was run to its end"):
        one.certificate  # noqa: B018
    with pytest.raises(InvalidInput, match="stop needs a study that has begun"):
        study(folder=tmp_path / "s").stop()
    ended = study()
    ended.run(noisy)
    with pytest.raises(InvalidInput, match="stop must be called before the study has ended"):
        ended.stop()
    assert f"stopped after {stopped.runs} runs had begun" in stopped.statement
    assert "if the time of the stop and the run times depend neither" in stopped.statement


@pytest.mark.parametrize(
    "protocol", ["until:0.5", "stopping:0.2", "schedule:2,1", "subset:0.4/fixed:4"]
)
def test_protocols_of_which_a_stop_releases_nothing(protocol: str) -> None:
    with pytest.raises(InvalidInput, match="protocol must be a random search, a grid or an adapt"):
        study(protocol=protocol).stop()


def test_a_winner_that_cannot_be_reproduced_is_not_released_by_a_stop(tmp_path: Path) -> None:
    interrupted(study(folder=tmp_path / "s"), 2)
    for _ in range(2):  # the second attempt is refused, too
        with pytest.raises(tuning.StudyAborted, match="train must return the same result"):
            study(folder=tmp_path / "s").stop(lambda trial: tuning.Outcome(1.0, object()))


def test_an_aborted_study_cannot_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(tuning.StudyAborted):
        study(folder=tmp_path / "s").run(lambda trial: None)
    with pytest.raises(tuning.StudyAborted, match="train must return"):
        study(folder=tmp_path / "s").stop()


def test_a_stop_after_the_kill_of_a_run_counts_it(tmp_path: Path) -> None:
    interrupted(study(folder=tmp_path / "s"), 2)
    assert {path.name for path in (tmp_path / "s" / RUNS).iterdir()} > {"2"}
    stopped = study(folder=tmp_path / "s").stop()
    assert stopped.runs == 3


def test_the_planned_cost_does_not_hold_for_a_stopped_study() -> None:
    # The best of 30 runs by the likelihood ratio, exactly: 1 - F(t)^30 against 1 - F(t - mu)^30.
    mu, runs = 1.0, 30
    base = accounting.GaussianMechanism(mu)
    planned = study(protocol="tnb:0,0.1", base=base, delta=DELTA).total_epsilon
    t = np.linspace(-4.0, 9.0, 20_001)
    without, with_record = (-np.expm1(runs * stats.norm.logcdf(t - mean)) for mean in (0.0, mu))

    def leak(epsilon: float) -> float:
        ways = (
            with_record - math.exp(epsilon) * without,
            ((1.0 - without) - math.exp(epsilon) * (1.0 - with_record)),
        )
        return float(max(way.max() for way in ways))

    stopped = stopped_cost(base, protocols.parse_protocol("tnb:0,0.1"), runs, DELTA)
    assert leak(planned) > 10 * DELTA
    assert leak(stopped.epsilon) <= DELTA


# The probabilities of two outputs: P without the record, Q with it.
P, Q = np.array([0.5, 0.5]), np.array([0.8, 0.2])
TIMES = (1, 2)  # of the two candidates


def release(order: tuple[int, ...], chances: Any, sequence: tuple[int, ...]) -> Any:
    """Exact distribution of the best (candidate, output) of runs with the given candidates."""
    found = np.zeros(4)
    for outputs in itertools.product(range(2), repeat=len(sequence)):
        chance = math.prod(chances[output] for output in outputs)
        pairs = (
            2 * candidate + output for candidate, output in zip(sequence, outputs, strict=True)
        )
        found[max(pairs, key=order.index)] += chance
    return found


@pytest.mark.slow
@pytest.mark.parametrize("money", [3, 5])
def test_the_cost_of_a_stop_holds_if_run_times_depend_on_candidates(money: int) -> None:
    # Every sequence of candidates is equally likely. The money ends after `money` units of time, so
    # the number of finished runs depends on the candidates. Given that number, the release is exact
    # for every order of the four pairs (candidate, output).
    sequences: dict[int, list[tuple[int, ...]]] = {}
    weights: dict[int, list[float]] = {}
    for length in range(1, money + 1):
        for sequence in itertools.product(range(2), repeat=length):
            used = sum(TIMES[candidate] for candidate in sequence)
            if used <= money < used + max(TIMES):
                # The next run does not end in time: certain if no money is left, or if it is slow.
                ends = 1.0 if used == money else 0.5
                sequences.setdefault(length, []).append(sequence)
                weights.setdefault(length, []).append(2.0**-length * ends)
    base = accounting.DiscreteMechanism(P, Q)
    for runs, possible in sequences.items():
        cost = stopped_cost(base, protocols.parse_protocol("tnb:0,0.1"), runs, 0.01).epsilon
        shares = np.array(weights[runs]) / sum(weights[runs])
        for order in itertools.permutations(range(4)):
            p, q = (
                sum(
                    share * release(order, chances, sequence)
                    for share, sequence in zip(shares, possible, strict=True)
                )
                for chances in (P, Q)
            )
            for a, b in ((p, q), (q, p)):
                assert np.maximum(a - math.exp(cost) * b, 0.0).sum() <= 0.01


@pytest.mark.parametrize(
    ("text", "chance", "expected"),
    [
        ("fixed:7", 1e-3, 7),
        # (1 - 0.1)^k <= 0.001 first at k = 66.
        ("geometric:0.1", 1e-3, math.ceil(math.log(1e-3) / math.log(0.9))),
        ("poisson:40", 1e-6, int(stats.poisson(40).isf(1e-6))),
        ("tnb:0,0.02@100", 1e-3, None),
        ("geometric:0.0005", 1e-3, math.ceil(math.log(1e-3) / math.log1p(-0.0005))),
    ],
)
def test_the_worst_number_of_runs(text: str, chance: float, expected: int | None) -> None:
    runs = parse_repetitions(text)
    found = worst_runs(runs, chance)
    if expected is None:
        expected = next(k for k in range(101) if runs.pmf(np.arange(k + 1)).sum() >= 1 - chance)
    assert found == expected


def test_the_worst_number_of_runs_may_be_too_large() -> None:
    assert worst_runs(parse_repetitions("geometric:1e-9")) is None
    assert study(protocol="until:0.1").worst_seconds(1.0) is None
    assert study(protocol="fixed:7").worst_seconds(10.0, jobs=2) == 40.0
    assert study(protocol="subset:0.4/fixed:4").worst_seconds(10.0) == 50.0  # and the final run
    for name, arguments in (("run_seconds", (0.0,)), ("jobs", (1.0, 0)), ("chance", (1.0, 1, 0.0))):
        with pytest.raises(InvalidInput, match=name):
            study().worst_seconds(*arguments)


def test_the_progress_shows_public_numbers_only() -> None:
    assert format_time(9 * 86400 + 3661) == "9 d 01:01:01"
    assert progress_line(61.0, 12.5, None) == "tuning for 00:01:01; 12.5 runs are expected"
    line = progress_line(61.0, 12.5, 86461.0)
    assert line.endswith("at most 1 d 00:00:00 more with probability 99.9%")
    assert progress_line(61.5, None, 60.0).endswith("longer than 00:01:00, the worst time of 99.9%")


def test_the_progress_is_the_same_whatever_the_runs_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Two studies with other keys, so with other K, candidates and scores, show the same.
    shown = []
    monkeypatch.setattr(
        "audit.tuning.study.elapsed_time",
        lambda *numbers: shown.append(numbers) or contextlib.nullcontext(),
    )
    monkeypatch.setattr("audit.tuning.rehearsal.time.monotonic", iter(range(100)).__next__)
    for key in (3, 4):
        monkeypatch.setattr(secrets, "randbits", lambda bits, key=key: key)
        one = study(protocol="geometric:0.3")
        one.run(lambda trial, *records: noisy(trial), records=np.ones(2), progress=True)
    assert shown == [(pytest.approx(1 / 0.3), 20.0)] * 2  # a run of the rehearsal took 1 s


LARGE, SMALL = accounting.GaussianMechanism(2.0), accounting.GaussianMechanism(0.05)
RARE = accounting.Mixture((SMALL, LARGE), (0.99, 0.01))
NESTED = {
    "composition": accounting.Composition((RARE, SMALL)),
    "mixture": accounting.Mixture((RARE, SMALL), (0.5, 0.5)),
    "worst": accounting.WorstOf((RARE, SMALL)),
    "deep": accounting.Composition((accounting.WorstOf((SMALL, accounting.Composition((RARE,)))),)),
}


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize(
    "protocol",
    [
        "tnb:0,0.1",
        *(
            pytest.param(spec, marks=pytest.mark.slow)
            for spec in ("fixed:3", "sequential:5", "best:2/fixed:5", "distinct:5", "adaptive:1,2")
        ),
        "grid:2",
    ],
)
def test_a_stop_costs_the_worst_member_of_a_mixture_at_any_depth(
    nested: str, protocol: str
) -> None:
    # One run whose time reveals that it was the large member costs at least that member alone.
    parsed = protocols.parse_protocol(protocol)
    cost = stopped_cost(NESTED[nested], parsed, 2, DELTA).epsilon
    assert cost >= stopped_cost(LARGE, parsed, 2, DELTA).epsilon * (1 - 1e-9)
    assert cost > LARGE.epsilon(DELTA)


@pytest.mark.thorough
def test_candidates_of_a_stopped_grid_are_replaced_one_by_one() -> None:
    protocol = protocols.parse_protocol("grid:3")
    base = accounting.Candidates((SMALL, SMALL, RARE))
    candidates = accounting.Candidates((SMALL, SMALL, LARGE))
    cost = stopped_cost(base, protocol, 1, DELTA)
    assert cost.epsilon >= stopped_cost(candidates, protocol, 1, DELTA).epsilon * (1 - 1e-6)
    same_for_all = stopped_cost(LARGE, protocol, 1, DELTA)
    assert cost.epsilon <= same_for_all.epsilon


def test_a_base_that_hides_its_members_is_refused_by_a_stop() -> None:
    class Hidden(accounting.Mechanism):
        def __init__(self) -> None:
            self.inner = RARE

        @property
        def pairs(self) -> Any:
            return self.inner.pairs

        @property
        def description(self) -> str:
            return "hidden"

    with pytest.raises(InvalidInput, match="base must be a dataclass if it contains mechanisms"):
        stopped_cost(Hidden(), protocols.parse_protocol("fixed:2"), 2, DELTA)

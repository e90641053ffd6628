"""The random draws of a study, and its choice of the best run."""

import contextlib
import hashlib
import itertools
import logging
import os
import pickle
import sys
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from light_runs import noisy
from scipy import stats
from study_helpers import (
    DP_SGD,
    Loader,
    Recorded,
    UniformWithReplacementSampler,
    plan_of,
    played,
    study,
)

from audit import protocols, repetitions, tuning
from audit.tuning.journal import Memory, Record
from audit.tuning.play import play
from audit.tuning.secret_draws import Draws, secret_integer
from audit.tuning.space import Space


def test_number_of_runs_follows_the_distribution_of_k() -> None:
    plan = plan_of("tnb:0,0.1")
    drawn = [len(plan.runs(key)) for key in range(2000)]
    law = repetitions.parse_repetitions("tnb:0,0.1")
    edges = [1, 2, 3, 5, 9, 17]
    chances = [law.pmf(np.arange(a, b)).sum() for a, b in itertools.pairwise(edges)]
    chances.append(1.0 - sum(chances))
    counts = np.histogram(drawn, [*edges, 10**9])[0]
    # Fails by chance for one choice of keys in ten thousand; these keys are fixed.
    assert stats.chisquare(counts, 2000 * np.array(chances)).pvalue > 1e-4


def test_candidates_are_drawn_with_replacement_from_the_prior() -> None:
    plan = plan_of("fixed:5", {"lr": tuning.LogUniform(0.01, 1.0), "width": [1, 2, 3]})
    candidates = [
        plan.space.at(plan.point(key, index, ())) for key in range(300) for index in range(5)
    ]
    logs = [np.log(one["lr"] / 0.01) / np.log(100.0) for one in candidates]
    assert stats.kstest(logs, "uniform").pvalue > 1e-4
    assert stats.chisquare(np.bincount([one["width"] for one in candidates])[1:]).pvalue > 1e-4
    twice = [len({one["width"] for one in candidates[5 * k : 5 * k + 5]}) < 5 for k in range(300)]
    assert all(twice)  # five of three values: only with replacement


def test_grid_runs_every_candidate_once_or_with_its_chance() -> None:
    plan = plan_of("grid:4")
    assert [plan.space.at(plan.point(7, i, ()))["level"] for i in plan.runs(7)] == [1, 2, 3, 4]
    half = plan_of("grid:4,0.5")
    counts = np.zeros(4)
    for key in range(1000):
        counts[half.runs(key)] += 1
    assert (np.abs(counts - 500) < 5 * np.sqrt(250)).all()


def test_draws_are_independent_streams_of_shake_256() -> None:
    # A known value that was computed separately: SHAKE-256 of "study:7:1:2".
    expected = hashlib.shake_256(b"study:7:1:2").digest(8)
    assert secret_integer(64, 7, 1, 2) == int.from_bytes(expected, "little")
    words = np.frombuffer(hashlib.shake_256(b"study:7:1:2:-1:1").digest(24), "<u8")
    assert Draws(7, 1, 2).random(3).tolist() == [int(word >> 11) / 2**53 for word in words]
    one = Draws(7, 1, 2)
    assert one.random() != one.random() != Draws(7, 1, 3).random()
    # Each fails by chance for one choice of keys in ten thousand; these keys are fixed.
    uniform = np.concatenate([Draws(1, place).random((50, 2)).ravel() for place in range(100)])
    assert stats.kstest(uniform, "uniform").pvalue > 1e-4
    normal = [Draws(2, place).normal() for place in range(1000)]
    assert stats.kstest(normal, "norm").pvalue > 1e-4
    counts = np.bincount([Draws(3, place).poisson(2.0) for place in range(1000)], minlength=7)
    chances = stats.poisson(2.0).pmf(np.arange(6))
    expected_counts = 1000 * np.append(chances, 1.0 - chances.sum())
    counts = np.append(counts[:6], counts[6:].sum())
    assert stats.chisquare(counts, expected_counts).pvalue > 1e-4


def test_workers_do_not_receive_the_key_of_the_study() -> None:
    seen = []
    one = study(protocol="fixed:1", seed=2**200 + 12345)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("audit.tuning.play.Task.__call__", lambda task: seen.append(task) or 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            one.run(noisy)
    assert str(2**200 + 12345) not in repr(seen[0])
    assert (2**200 + 12345).to_bytes(26, "little") not in pickle.dumps(seen[0])


def test_a_billion_runs_are_not_listed() -> None:
    plan = plan_of("fixed:1e9")
    assert len(plan.runs(1)) == 10**9
    calls = []

    def train(trial: Any) -> Any:
        calls.append(trial)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return noisy(trial)

    began = time.process_time()
    with pytest.raises(KeyboardInterrupt):
        play(plan, 1, plan.runs(1), train, Memory())
    assert time.process_time() - began < 1.0

    calls.clear()
    tracemalloc.start()
    with pytest.raises(KeyboardInterrupt):  # a list of 10^6 numbers has 8 MB
        study(protocol="fixed:1e6", seed=1).run(train, rehearse=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 7e6


def test_the_key_is_from_the_system_unless_a_seed_is_given() -> None:
    assert len({study().run(noisy).model for _ in range(3)}) == 3
    assert len({study(seed=3).run(noisy).model for _ in range(3)}) == 1


def test_the_best_run_wins_and_the_first_wins_ties() -> None:
    plan = plan_of("fixed:20")
    best = played(plan, 5)
    trials = [plan.trial(5, index, plan.point(5, index, ())) for index in range(20)]
    assert best.score == max(noisy(trial).score for trial in trials)
    constant = played(plan, 5, lambda trial: tuning.Outcome(1.0, trial.seed))
    assert constant.model == trials[0].seed


@pytest.fixture
def after_24_runs() -> Any:
    """A space, an adaptive search, and its history, in which level 5 is the best."""
    space = Space.parse({"level": list(range(8))})
    before = [Record(i, space.points()[i % 8], float(i % 8 == 5)) for i in range(24)]
    return space, protocols.Adaptive("fixed:3", 0.6, 1.5), before


def test_adaptive_density_stays_within_its_limits_for_every_history(after_24_runs: Any) -> None:
    space, protocol, before = after_24_runs
    pool = [space.draw(np.random.default_rng(i)) for i in range(200)]
    density = protocol.relative_density(space, pool, before)
    assert density.min() >= 0.6 - 1e-12
    assert density.max() <= 1.5 + 1e-12
    assert density.mean() == pytest.approx(1.0, abs=1e-9)
    at_five = np.array([space.at(point)["level"] == 5 for point in pool])
    assert density[at_five].min() > density[~at_five].max()  # it has learned


@pytest.mark.slow
def test_adaptive_draws_follow_the_limits_of_the_density(after_24_runs: Any) -> None:
    space, protocol, before = after_24_runs
    drawn = [
        space.at(protocol.next_candidate(space, np.random.default_rng(i), len(before), before))
        for i in range(150)
    ]
    share = np.mean([one["level"] == 5 for one in drawn])
    # At most 1.5 times 1/8: five standard deviations of 150 draws.
    assert share + 5 * np.sqrt(0.19 * 0.81 / 150) > 0.125
    assert share < 0.1875 + 5 * np.sqrt(0.19 * 0.81 / 150)


@pytest.mark.slow
def test_adaptive_study_finds_good_candidates() -> None:
    def train(trial: Any) -> Any:
        return tuning.Outcome(-abs(trial.candidate["x"] - 0.3))

    best = study(
        space={"x": tuning.Uniform(0, 1)}, protocol="adaptive:0.5,2/tnb:1,0.1", seed=8
    ).run(train)
    assert abs(best.candidate["x"] - 0.3) < 0.3


def test_an_adaptive_study_breaks_ties_at_random() -> None:
    plan = plan_of("adaptive:0.5,2/fixed:4")
    first = 0
    for key in range(60):
        best = played(plan, key, lambda trial: tuning.Outcome(1.0, trial.seed))
        trial = plan.trial(key, 0, plan.point(key, 0, ()))
        first += best.model == trial.seed
    # A quarter of 60: fewer than 1 or more than 33 in one of 10^6 tests. In order of arrival: 60.
    assert 1 <= first <= 33


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "chance"), [("until:0.1", 1.0), ("stopping:0.25", 0.5)])
def test_until_accepted_and_random_stopping(protocol: str, chance: float) -> None:
    plan = plan_of(protocol)
    # A run is accepted with probability 1/4, so none is with (3/16) / (1/4 + 3/16) = 3/7.
    expected = 1.0 if protocol.startswith("until") else (1 / 4) / (1 / 4 + 3 / 16)
    best = [
        played(plan, key, accept=lambda outcome: outcome.score > stats.norm.isf(0.25))
        for key in range(300)
    ]
    found = [one for one in best if one.candidate is not None]
    assert all(one.score > stats.norm.isf(0.25) for one in found)
    spread = 5 * np.sqrt(300 * expected * (1 - expected))
    assert abs(len(found) - 300 * expected) <= spread


@pytest.mark.parametrize("final", ["rest", "all"])
def test_runs_train_on_the_subset_and_the_final_run_on_the_rest(final: str) -> None:
    plan = plan_of(f"subset:0.3,{final}/fixed:4")
    seen = []

    def train(trial: Any) -> Any:
        seen.append((trial.is_final, trial.candidate, trial.records(1000)))
        return noisy(trial)

    best = played(plan, 3, train)
    *tuning_runs, (is_final, candidate, mask) = seen
    assert [one[0] for one in tuning_runs] == [False] * 4
    assert is_final
    tuned_on = tuning_runs[0][2]
    assert all((one[2] == tuned_on).all() for one in tuning_runs)
    assert (mask == (np.ones(1000, bool) if final == "all" else ~tuned_on)).all()
    assert abs(tuned_on.sum() - 300) < 5 * np.sqrt(210)
    # The final run uses the winning candidate and is released.
    scores = [noisy(plan.trial(3, index, plan.point(3, index, ()))).score for index in range(4)]
    assert candidate == best.candidate == tuning_runs[int(np.argmax(scores))][1]
    assert best.model not in {plan.trial(3, index, (0.5,)).seed for index in range(4)}
    others = played(plan, 4, train)
    assert others.model != best.model
    assert (seen[-2][2] != tuned_on).any()  # another study has another subset


def test_a_run_that_does_not_request_its_subset_ends_the_study() -> None:
    with pytest.raises(tuning.StudyAborted, match=r"train must call trial.records\(count\)"):
        study(protocol="subset:0.5/fixed:2").run(noisy)


@pytest.mark.thorough
def test_a_run_on_data_of_another_size_than_the_subset_ends_the_study() -> None:
    def train(trial: Any) -> Any:
        mask = trial.records(100)
        loader = Loader(UniformWithReplacementSampler(trial.sampling_rate))
        loader.dataset = np.flatnonzero(mask) if honest else np.arange(100)
        trial.check(Recorded((trial.noise_multiplier, trial.sampling_rate, trial.steps)), loader)
        return noisy(trial)

    settings = {"protocol": "subset:0.5/fixed:2", "base": DP_SGD}
    honest = False
    with pytest.raises(
        tuning.StudyAborted, match=r"data_loader must hold the records that trial\.records"
    ):
        study(**settings).run(train)
    honest = True
    checked = study(**settings)
    checked.run(train)
    assert "count_of_records" in checked._played.checked


def test_a_failed_final_run_releases_only_the_candidate() -> None:
    def train(trial: Any) -> Any:
        trial.records(10)
        if trial.is_final:
            raise RuntimeError
        return noisy(trial)

    best = played(plan_of("subset:0.5/fixed:3"), 1, train)
    assert best.candidate is not None
    assert best.score is best.model is None


def test_runs_that_raise_or_diverge_are_counted_and_lose_without_a_message(
    capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    calls = []

    def train(trial: Any) -> Any:
        calls.append(trial)
        print("a loser's secret")
        os.write(1, b"a secret past Python's streams")
        os.system("echo the secret of another process >&2")
        logging.getLogger("train").error("another secret")
        kind = len(calls)
        if kind == 1:
            raise RuntimeError("out of memory")
        if kind == 2:
            return tuning.Outcome(float("nan"), "nan")
        if kind == 3:
            return tuning.Outcome(float("inf"), "infinite")
        if kind == 4:
            sys.exit(1)
        return tuning.Outcome(-100.0, "won")

    assert study(protocol="fixed:5").run(train).model == "won"
    assert len(calls) == 5
    assert "secret" not in "".join(capfd.readouterr())
    assert "secret" not in caplog.text


def test_nothing_is_released_if_all_runs_lose_or_none_is_drawn() -> None:
    with pytest.warns(UserWarning, match="no candidate was chosen"):
        assert study().run(lambda trial: tuning.Outcome(float("nan"))) == tuning.Best()
    with pytest.warns(UserWarning, match="no candidate was chosen"):
        assert study(protocol="poisson:1e-9").run(noisy) == tuning.Best()


def test_an_invalid_outcome_ends_the_study_and_is_named() -> None:
    voided = study()
    with pytest.raises(
        tuning.StudyAborted, match=r"train must return a tuning.Outcome, got a float"
    ):
        voided.run(lambda trial: 0.5)
    with pytest.raises(tuning.StudyAborted, match=r"train must return"):
        voided.run(noisy)  # cannot be repeated until the result is favourable
    with pytest.raises(tuning.StudyAborted, match="score must be a number, got a str"):
        study().run(lambda trial: tuning.Outcome("high"))


def test_progress_shows_only_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    study().run(noisy, progress=True)
    assert not any(character.isdigit() for character in capsys.readouterr().err)

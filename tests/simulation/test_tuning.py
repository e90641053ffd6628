"""Algorithm 2, the best of K runs, against a plain loop and its distribution in closed form."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from audit import repetitions, simulation
from audit.dpsgd import RunOutcomes
from audit.simulation import best_of_runs


class Recorder:
    """An engine whose outcomes are functions of the run's seed; it records its batches."""

    name = "recorder"

    def __init__(self, levels: Any = None, diverge: Any = False) -> None:
        self.levels, self.diverge = levels, diverge
        self.batches: list[Any] = []

    def run(self, batch: Any) -> Any:
        self.batches.append(batch)
        uniform = batch.seeds.astype(np.float64) / 2.0**64
        x = special.ndtri(np.clip(uniform, 1e-15, 1 - 1e-15)) + batch.included
        scores = x if self.levels is None else np.floor(x * self.levels)
        finite = np.ones(len(batch), bool) if not self.diverge else uniform < 0.5
        return RunOutcomes(x, 2 * x, *[x] * 3, scores=scores, finite=finite)


def play(engine: Any, spec: Any, trials: Any = 300, seed: Any = 0, candidates: Any = 3) -> Any:
    rng = np.random.default_rng(seed)
    included = rng.random(trials) < 0.5
    law = repetitions.parse_repetitions(spec)
    (winners,) = best_of_runs(lambda batch: [engine.run(batch)], law, candidates, included, rng)
    return included, winners


def test_stored_runs_are_ordered_by_tuning() -> None:
    engine, law = Recorder(diverge=True), repetitions.parse_repetitions("poisson:3")

    def winners_of(keep: Any) -> Any:
        rng = np.random.default_rng(4)
        included = np.arange(200) % 2 == 1
        run = lambda batch: [engine.run(batch)]  # noqa: E731
        (found,) = best_of_runs(run, law, 3, included, rng, keep=keep)
        return found

    kept, winners = winners_of(True), winners_of(False)
    assert len(winners.run_score) == 0
    assert len(kept.run_score) == kept.runs.sum()
    np.testing.assert_array_equal(kept.chosen, winners.chosen)
    ends = np.cumsum(kept.runs)
    for t in range(200):
        of_tuning = slice(ends[t] - kept.runs[t], ends[t])
        scores = kept.run_score[of_tuning]
        assert np.isneginf(scores).sum() == kept.diverged[t]
        if kept.chosen[t] >= 0:
            assert scores.max() == scores[kept.chosen[t]] == kept.score[t]
            assert kept.run_lambda_a[of_tuning][kept.chosen[t]] == kept.lambda_a[t]
            assert kept.run_lambda_c[of_tuning][kept.chosen[t]] == kept.lambda_c[t]


def check_against_a_loop(engine: Any, winners: Any) -> None:
    scores, lambdas, candidates, finite = [], [], [], []
    for batch in engine.batches:
        outcomes = engine.__class__(engine.levels, engine.diverge).run(batch)
        scores.append(np.where(outcomes.finite, outcomes.scores, -np.inf))
        lambdas.append(outcomes.lambda_a)
        candidates.append(batch.candidate)
        finite.append(outcomes.finite)
    scores, lambdas, candidates, finite = (
        np.concatenate(v) for v in (scores, lambdas, candidates, finite)
    )
    start = 0
    for t, runs in enumerate(winners.runs):
        best, who = -np.inf, -1
        for i in range(runs):
            if scores[start + i] > best:
                best, who = scores[start + i], i
        assert winners.chosen[t] == who
        assert winners.score[t] == best
        if who >= 0:
            assert winners.lambda_a[t] == lambdas[start + who]
            assert winners.lambda_c[t] == 2 * lambdas[start + who]
            assert winners.candidate[t] == candidates[start + who]
        else:
            assert winners.lambda_a[t] == -np.inf
        assert winners.diverged[t] == np.sum(~finite[start : start + runs])
        start += runs


def test_best_run_matches_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Batches of 97 runs split many tunings; rounding to levels makes ties, which the first run
    # wins.
    monkeypatch.setattr(simulation, "_MAX_BATCH", 97)
    for spec in ("tnb:0,0.01", "poisson:2", "fixed:1", "two-point:0.5,400"):
        for levels, diverge in ((None, False), (1, False), (2, True)):
            engine = Recorder(levels, diverge)
            _, winners = play(engine, spec)
            check_against_a_loop(engine, winners)


def test_tuning_without_runs_releases_nothing() -> None:
    _, winners = play(Recorder(), "poisson:0.2")
    none = winners.runs == 0
    assert none.any()
    assert np.all(winners.chosen[none] == -1)
    assert np.all(winners.candidate[none] == -1)
    assert np.all(np.isneginf(winners.lambda_a[none]))


def test_distribution_of_the_best_score() -> None:
    # P[best <= t] = phi(P[score <= t]). Kolmogorov-Smirnov tests, each with false-alarm rate 1e-3.
    for spec in ("tnb:0,0.01", "tnb:1,0.1", "fixed:7"):
        law = repetitions.parse_repetitions(spec)
        included, winners = play(Recorder(), spec, trials=4000, seed=2)
        uniform = law.phi(special.ndtr(winners.score - included))
        assert stats.kstest(uniform, "uniform").pvalue > 1e-3


def test_candidates_are_drawn_uniformly() -> None:
    # Chi-square test with 2 degrees of freedom and false-alarm rate 1e-3.
    engine = Recorder()
    play(engine, "fixed:20", trials=1500)
    counts = np.bincount(np.concatenate([batch.candidate for batch in engine.batches]), minlength=3)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_zero_tunings() -> None:
    _, winners = play(Recorder(), "fixed:3", trials=0)
    assert len(winners.runs) == 0


def test_several_scores_evaluate_the_same_runs() -> None:
    law, included = repetitions.parse_repetitions("fixed:5"), np.zeros(50, bool)
    engine = Recorder()

    def run(batch: Any) -> Any:
        up = engine.run(batch)
        return up, replace(up, scores=-up.scores)

    best, worst = best_of_runs(run, law, 3, included, np.random.default_rng(1), views=2)
    x = np.concatenate([Recorder().run(batch).scores for batch in engine.batches]).reshape(50, 5)
    np.testing.assert_array_equal(best.chosen, x.argmax(1))
    np.testing.assert_array_equal(worst.chosen, x.argmin(1))
    np.testing.assert_array_equal(worst.score, -x.min(1))

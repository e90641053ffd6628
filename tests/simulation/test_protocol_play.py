"""Every protocol in audits, against plain loops, closed forms and scikit-learn."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special, stats
from small_audits import play_trials

from audit import attacks, protocols, simulation
from audit.attacks import AcceptedTails
from audit.dpsgd import DpSgdSettings, RunBatch, RunOutcomes, make_engine
from audit.game.settings import AuditConfig, read_preset
from audit.game.setup import set_up
from audit.numerics import FloatArray
from audit.protocols import adaptive
from audit.report.assemble import assemble
from audit.report.text import to_text
from audit.simulation import GameContext, draw_candidates, tune
from audit.tuning.journal import Record
from audit.tuning.space import Space, Uniform
from threat_models import build

pytestmark = pytest.mark.usefixtures("quick_reports")

RUNS = Path(__file__).parents[2] / "runs"


class Recorder:
    """An engine whose outcomes depend only on the run; it stores its packs."""

    def __init__(self, mu: Any = 1.0, diverge: Any = 0.0) -> None:
        self.mu, self.diverge = mu, diverge
        self.lanes: list[Any] = []

    def outcomes(self, lanes: Any) -> Any:
        uniform = np.clip(lanes.seeds.astype(np.float64) / 2.0**64, 1e-15, 1 - 1e-15)
        x = special.ndtri(uniform) + self.mu * lanes.included
        score = x + 0.1 * lanes.candidate
        finite = (lanes.seeds % np.uint64(1000)) >= 1000 * self.diverge
        return RunOutcomes(*[x] * 5, scores=score, finite=finite)

    def __call__(self, lanes: Any) -> Any:
        self.lanes.append(lanes)
        return [self.outcomes(lanes)]


def tuned(
    spec: Any,
    trials: Any = 400,
    candidates: Any = 4,
    seed: Any = 0,
    included: Any = None,
    engine: Any = None,
    **bench: Any,
) -> Any:
    rng = np.random.default_rng(seed)
    engine = engine or Recorder()
    if included is None:
        included = rng.random(trials) < 0.5
    features = np.linspace(0.0, 1.0, candidates)[:, None]
    fixed = {"tuned_log_ratio": lambda winners: winners.lambda_a - 0.5, "log_ratio_scale": 1.0}
    table = GameContext(engine, features, **{**fixed, **bench})
    (winners,) = tune(protocols.parse_protocol(spec), table, included, rng)
    return engine, included, winners


@pytest.mark.parametrize(("spec", "candidates"), [("grid:4", 4), ("grid:5,0.3", 5), ("grid:3", 1)])
def test_a_grid_equals_a_plain_loop_over_its_candidates(spec: str, candidates: int) -> None:
    engine, included, winners = tuned(spec, candidates=candidates, engine=Recorder(diverge=0.2))
    protocol = protocols.parse_protocol(spec)
    (lanes,) = engine.lanes
    found = engine.outcomes(lanes)
    at = 0
    for t, runs in enumerate(winners.runs):
        own = slice(at, at + runs)
        at += runs
        scores = np.where(found.finite[own], found.scores[own], -np.inf)
        if runs == 0 or not found.finite[own].any():
            assert winners.chosen[t] == -1
            continue
        best = int(scores.argmax())
        assert winners.score[t] == scores[best]
        assert winners.lambda_a[t] == found.lambda_a[own][best]
        assert winners.candidate[t] == lanes.candidate[own][best]
        assert winners.diverged[t] == np.sum(~found.finite[own])
        assert np.all(lanes.included[own] == included[t])
        if candidates > 1:
            assert np.all(np.diff(lanes.candidate[own]) > 0)  # each at most once
            assert winners.chosen[t] == winners.candidate[t]
    assert at == len(lanes)
    if protocol.inclusion == 1.0:
        assert np.all(winners.runs == protocol.candidates)
    else:
        share = winners.runs.mean() / protocol.candidates
        # 400 x 5 coins with probability 0.3: within 4 standard deviations, false alarm 6e-5.
        assert abs(share - 0.3) < 4 * np.sqrt(0.21 / 2000)


def test_the_gaussian_process_equals_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    protocol = protocols.parse_protocol("adaptive:0.3,3")
    values = rng.random((5, 2))
    space = Space.parse({"a": Uniform(0.0, 1.0), "b": Uniform(0.0, 1.0)})
    sampler = simulation.GaussianProcessSampler(protocol, values, 3)
    before: list[list[Any]] = [[], [], []]
    rounds = ([0, 1, 2], [0, 1], [0, 1, 2], [0, 1, 2], [0, 2], [0, 1], [0], [0])
    for number, tunings in enumerate(rounds):
        tuning = np.array(tunings)
        which = rng.integers(0, 5, len(tuning))
        scores = 1e3 + rng.normal(size=len(tuning))
        finite = np.array([number != 4 or t != 0 for t in tunings])
        outcomes = RunOutcomes(*[scores] * 5, np.where(finite, scores, -np.inf), finite)
        sampler.add(tuning, which, outcomes)
        for t, c, score in zip(tuning, which, outcomes.scores, strict=True):
            kept = float(score) if np.isfinite(score) else None
            before[t].append(Record(number, tuple(values[c]), kept))
        found = sampler.densities(np.arange(3))
        for row, ended in zip(found, before, strict=True):
            expected = protocol.relative_density(space, [tuple(v) for v in values], ended)
            np.testing.assert_allclose(row, expected, rtol=1e-6)
            assert row.mean() == pytest.approx(1.0, abs=1e-12)
    assert found[0].max() > 1.2  # it has learned


def closed_form_shift(
    ordered: FloatArray, least: int, most: int, low: float, high: float
) -> float | None:
    """The t that gives mean 1 if `least` values are cut to low and those from `most` to high."""
    inner = ordered[least:most]
    if not len(inner):
        return None
    t = float(len(ordered) - least * low - (len(ordered) - most) * high - inner.sum()) / len(inner)
    counts = int(np.sum(ordered + t < low)), int(np.sum(ordered + t <= high))
    return t if counts == (least, most) else None


def test_candidates_are_drawn_from_projected_densities() -> None:
    rng = np.random.default_rng(5)
    densities = rng.exponential(size=(40, 7))
    densities /= densities.mean(axis=1, keepdims=True)
    found = adaptive.project(densities, 0.7, 1.4)
    for row, density in zip(found, densities, strict=True):
        # The projection in closed form: sorted densities, cut at both ends, and moved by t.
        shifts = [
            closed_form_shift(np.sort(density), least, most, 0.7, 1.4)
            for least, most in itertools.combinations(range(8), 2)
        ]
        (shift,) = {t for t in shifts if t is not None}
        np.testing.assert_allclose(row, np.clip(density + shift, 0.7, 1.4), atol=1e-9)
    assert np.all((found >= 0.7) & (found <= 1.4))
    drawn = draw_candidates(np.tile(found[0], (20_000, 1)), rng.random(20_000))
    expected = found[0] / 7 * 20_000
    # Chi-square, false alarm 1e-4.
    assert stats.chisquare(np.bincount(drawn, minlength=7), expected).pvalue > 1e-4


def test_an_adversarial_sampler_reveals_the_canary_by_the_candidate() -> None:
    # With c = C = 1 nothing is revealed; else candidates of the last half win with the canary.
    shares = {}
    for spec in ("adaptive:1,1/fixed:12", "adaptive:0.25,4/fixed:12"):
        engine, _, _ = tuned(spec, trials=2000, sampler="adversarial", engine=Recorder(0.5))
        last = np.concatenate([lanes.candidate >= 2 for lanes in engine.lanes])
        coins = np.concatenate([lanes.included for lanes in engine.lanes])
        shares[spec] = last[coins].mean() - last[~coins].mean()
        counts = np.bincount(np.concatenate([lanes.candidate for lanes in engine.lanes[1:]]))
        assert counts.min() > 0.25 * counts.sum() / 4 * 0.8
    # 24,000 draws: a difference of 0.03 is over 4 standard deviations.
    assert abs(shares["adaptive:1,1/fixed:12"]) < 0.03
    assert shares["adaptive:0.25,4/fixed:12"] > 0.15


def test_adaptive_without_freedom_is_random_search() -> None:
    for sampler in simulation.SAMPLERS:
        _, included, winners = tuned(
            "adaptive:1,1/tnb:1,0.2", trials=1500, candidates=1, sampler=sampler
        )
        law = protocols.parse_protocol("tnb:1,0.2").repetitions
        uniform = law.phi(special.ndtr(winners.lambda_a - included))
        assert stats.kstest(uniform, "uniform").pvalue > 1e-3  # false alarm 2e-3 in all


def test_an_accepted_run_is_a_draw_of_the_accepted_set() -> None:
    good = special.ndtri(0.9)
    included = np.arange(3000) % 2 == 1
    _, _, until = tuned("until:0.1", included=included, candidates=1, good_enough=good)
    _, _, stopped = tuned("stopping:0.05", included=included, candidates=1, good_enough=good)
    some = stopped.chosen >= 0
    assert np.all(until.chosen >= 0)
    for winners in (until, stopped):
        kept = winners.chosen >= 0
        assert np.all(winners.runs[kept] == winners.chosen[kept] + 1)
        for bit in (False, True):
            x = winners.lambda_a[kept & (included == bit)] - bit
            left = special.ndtr(-x) / special.ndtr(bit - good)
            assert stats.kstest(left, "uniform").pvalue > 1e-3  # four tests: 4e-3
    # The number of runs is geometric; a share g (1-a) / (g + (1-g) a) releases nothing.
    assert stats.ttest_1samp(until.runs[~included], 10.0).pvalue > 1e-3
    nothing = 0.05 * 0.9 / (0.05 + 0.95 * 0.1)
    count = int(np.sum(~some[~included]))
    assert stats.binomtest(count, 1500, nothing).pvalue > 1e-3
    assert np.all(stopped.score[~some] == -np.inf)
    with pytest.raises(ValueError, match="acceptance must be a lower bound on the probability"):
        tuned("until:0.5", included=included, candidates=1, good_enough=9.0)


@pytest.mark.parametrize("final", ["rest", "all"])
def test_the_canary_is_in_the_subset_or_in_the_final_run(final: str) -> None:
    protocol = f"subset:0.3,{final}/fixed:3"
    engine, included, winners = tuned(protocol, trials=500, records=11)
    tuning, last = engine.lanes
    tuned_on = tuning.included.reshape(500, 3).any(axis=1)
    assert np.all(tuning.included.reshape(500, 3).all(axis=1) == tuned_on)
    assert not np.any(tuned_on & ~included)
    # 500 coins with the canary in about half of them: within 4 standard deviations.
    assert abs(tuned_on[included].mean() - 0.3) < 4 * np.sqrt(0.21 / included.sum())
    subset = tuning.records.reshape(500, 3, 11)
    assert np.all(subset == subset[:, :1])
    assert abs(subset[:, 0].mean() - 0.3) < 4 * np.sqrt(0.21 / 5500)
    if final == "rest":
        assert np.array_equal(last.records, ~subset[:, 0])
        assert np.array_equal(last.included, included & ~tuned_on)
    else:
        assert last.records is None
        assert np.array_equal(last.included, included)
    assert np.array_equal(last.candidate, winners.candidate)
    found = engine.outcomes(last)
    assert np.array_equal(winners.lambda_a, found.lambda_a)
    best = engine.outcomes(tuning).lambda_a.reshape(500, 3)[np.arange(500), winners.chosen]
    one, two = np.exp(best - 0.5), np.exp(found.lambda_a - 0.5)
    ratio = 0.3 * one + 0.7 * two if final == "rest" else (0.3 * one + 0.7) * two
    np.testing.assert_allclose(winners.lambda_c, 0.5 + np.log(ratio), rtol=1e-9)


@pytest.mark.parametrize("engine", ["batched", "opacus"])
def test_a_run_trains_only_on_its_own_records(engine: str) -> None:
    threat_model = build("NTNV", "input", train_size=12, validation_size=8)
    settings = DpSgdSettings(3, 1e-9, (1.0,), (0.1,), model="logistic")
    members = np.arange(12) % 3 != 1
    seeds = np.array([5, 6], np.uint64)
    lanes = RunBatch(np.array([True, False]), np.zeros(2, np.int64), seeds, np.stack([members] * 2))
    found = make_engine(engine, threat_model, settings, precision="float64").run(lanes)
    records = threat_model.training_set
    fewer = replace(records, features=records.features[members], labels=records.labels[members])  # type: ignore[type-var]
    smaller = replace(threat_model, training_set=fewer)
    alone = make_engine(engine, smaller, settings, precision="float64").run(
        replace(lanes, records=None)
    )
    np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-6)
    np.testing.assert_allclose(found.lambda_a, alone.lambda_a, rtol=1e-6)
    everybody = make_engine(engine, threat_model, settings, precision="float64").run(
        replace(lanes, records=None)
    )
    assert np.all(np.abs(everybody.scores - found.scores) > 1e-3)


PRESETS = (
    "adaptive",
    "adaptive-adversarial",
    "grid",
    "grid-inclusion",
    "stopping",
    "subset",
    "until",
    "until-validation",
)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_played(preset: str) -> None:
    settings = read_preset(str(RUNS / f"{preset}.toml"))
    lists = {name: tuple(v) for name, v in settings.items() if isinstance(v, list)}
    small = {"trials": 30, "repeats": 1, "epsilon": (4.0,), "steps": 5}
    if settings["threat"] != "ETCV":
        small |= {"train_size": 20, "validation_size": 20, "steps": 2}
    if preset == "until-validation":
        small |= {"protocol": "until:0.4", "learning_rates": (0.01,)}
    config, (the_set_up,), games = play_trials(**{**settings, **lists, **small})
    trials = games[0, 0]
    assert len(trials.bit) == 30
    some = trials.chosen >= 0
    assert np.isfinite(trials.score[some]).all()
    assert some.mean() > 0.5
    assert config.parsed_protocol == the_set_up.protocol
    again, _, others = play_trials(**{**settings, **lists, **small, "protocol": config.protocol})
    assert again.identity == config.identity
    assert np.array_equal(others[0, 0].lambda_a, trials.lambda_a)


def test_a_threshold_from_trials_accepts_at_least_the_stated_share() -> None:
    config, (the_set_up,), games = play_trials(
        threat="NTNV", canary="input", protocol="until:0.3", train_size=15, validation_size=10,
        trials=150, repeats=1, epsilon=(4.0,), steps=2, model="logistic", learning_rates=(0.05,),
    )  # fmt: skip
    trials = games[0, 0]
    assert np.all(trials.score > the_set_up.good_enough)
    # Mean runs at most 1/0.3, and at least as many as if nearly all were accepted.
    assert 1.3 < trials.runs.mean() < 1 / 0.3
    assert set_up(config, 0).good_enough == the_set_up.good_enough


def test_the_report_states_which_bounds_are_valid_under_the_protocol() -> None:
    config, set_ups, games = play_trials(
        protocol="stopping:0.5", score="worst-order", trials=2000, repeats=1, epsilon=(4.0,)
    )
    report = assemble(config, set_ups, games)
    (result,) = report.results
    two_events = result.upper_bounds["two-events"]
    assert two_events.valid
    lower = result.lower_bounds["lambda_a"]
    assert lower["scan:scan"].valid
    assert 1.0 < report.reported(0).epsilon < two_events.epsilon
    assert not lower["gaussian-curve:max-grid"].valid
    assert not any(key.startswith("lifted") for key in lower)
    text = to_text(report)
    assert "Attacked: protocol stopping:0.5" in text
    assert "two-events" in text
    tails = set_ups[0].views[0].threat_model.score
    attained = AcceptedTails(set_ups[0].mu, tails.low, tails.high, 0.5).epsilon(config.delta)
    assert 0.98 * two_events.epsilon < attained <= two_events.epsilon


@pytest.mark.slow
def test_leakage_of_accepted_tails_equals_that_of_a_fine_grid() -> None:
    # The released distribution over cells, and its hockey-stick divergences as sums.
    for stop in (0.0, 0.2):
        tails = AcceptedTails(0.8, -1.0, 1.5, stop)
        x = np.linspace(-9.0, 10.0, 38001)
        laws = []
        for mean in (0.0, 0.8):
            cell = np.diff(special.ndtr(x - mean))
            kept = (x[1:] <= -1.0 + 1e-9) | (x[:-1] >= 1.5 - 1e-9)
            total = stop + (1 - stop) * cell[kept].sum()
            laws.append(np.append(cell[kept], stop * (1 - cell[kept].sum())) / total)
        for epsilon in (0.1, 0.7, 1.5):
            p, q = laws
            exact = max(
                np.maximum(p - np.exp(epsilon) * q, 0).sum(),
                np.maximum(q - np.exp(epsilon) * p, 0).sum(),
            )
            assert tails.delta(epsilon) == pytest.approx(exact, abs=1e-6)
        assert tails.delta(tails.epsilon(1e-3)) == pytest.approx(1e-3, rel=1e-6)
    for spec in ("until:0.1", "stopping:0.1"):
        found, _ = attacks.attack_tails(1.0, protocols.parse_protocol(spec), 1e-5, 10**12)
        cost = {"until:0.1": 6.2453, "stopping:0.1": 5.6457}[spec]
        assert 0.99 * cost < found.epsilon(1e-5) <= cost


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"protocol": "grid:3", "learning_rates": (0.1, 0.2)}, "must make 3 candidates for grid:3"),
        ({"protocol": "grid:3", "repetitions": "fixed:3"}, "must not be given with protocol grid"),
        ({"protocol": "subset:0.1/fixed:2", "repetitions": "fixed:3"}, "must be given once"),
        (
            {"protocol": "noisy-max:3"},
            "protocol must be one that an audit can play: search, adaptive, distinct",
        ),
        ({"protocol": "grit:3"}, "did you mean 'grid'"),
        ({"protocol": "until:2"}, "acceptance must be in"),
        ({"sampler": "gp"}, "sampler must be"),
        ({"protocol": "until:0.1", "threat": "NTNV+NTCV"}, "protocol must be search or grid if"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        AuditConfig(**settings)
    assert "\n" not in str(refused.value)


def test_equal_protocols_in_different_notation_are_one_audit() -> None:
    same = [
        AuditConfig(protocol="adaptive:0.5,2", repetitions="fixed:4"),
        AuditConfig(protocol="adaptive:0.5,2/fixed:4"),
        AuditConfig(protocol="Adaptive:0.5,2/fixed:4", repetitions="fixed:4"),
    ]
    assert len({config.protocol for config in same}) == 1
    assert AuditConfig(protocol="fixed:4") == AuditConfig(repetitions="fixed:4")
    assert AuditConfig(protocol="search", repetitions="fixed:4").runs_distribution.mean == 4
    grid = AuditConfig(protocol="grid:4,0.5")
    assert (grid.repetitions, grid.runs_distribution.mean, grid.workload.runs_per_trial) == (
        "",
        2.0,
        2.0,
    )
    assert replace(grid, trials=10).protocol == grid.protocol
    assert AuditConfig(protocol="until:0.1").workload.runs_per_trial == pytest.approx(10.0)
    assert AuditConfig(protocol="subset:0.1/fixed:4").workload.runs_per_trial == 5.0


def test_distinct_candidates_are_played_without_replacement() -> None:
    trained: list[Any] = []

    def run(batch: Any) -> Any:
        trained.append((batch.candidate.copy(), len(batch)))
        score = np.asarray(batch.candidate, dtype=np.float64)
        return [RunOutcomes(*[score] * 6, np.isfinite(score))]

    context = GameContext(run, np.arange(6.0)[:, None] / 6, lambda *_: 0.0, 1.0)
    protocol = protocols.parse_protocol("distinct:6/poisson:3")
    included = np.zeros(4000, dtype=np.bool_)
    (winners,) = tune(protocol, context, included, np.random.default_rng(0))
    chances = protocol.repetitions.pmf(np.arange(6))
    expected = np.append(chances, 1.0 - chances.sum())
    counts = np.bincount(winners.runs, minlength=7) / 4000
    # Five standard deviations of each of seven frequencies: it fails wrongly with probability 4e-6.
    assert np.all(abs(counts - expected) < 5 * np.sqrt(expected * (1 - expected) / 4000))
    # All candidates are trained equally often.
    candidates = np.concatenate([candidate for candidate, _ in trained])
    share = np.bincount(candidates, minlength=6) / len(candidates)
    assert np.all(abs(share - 1 / 6) < 5 * np.sqrt(5 / 36 / len(candidates)))

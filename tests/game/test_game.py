"""Trials of the game, and the report: both engines agree, and invalid numbers are marked."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from small_audits import play_trials

from audit import lower_bounds, upper_bounds
from audit.claims import Assumption, facts_of_tuning
from audit.dpsgd.base import RunBatch
from audit.dpsgd.batched import BatchedEngine, Proxies
from audit.game import play as game
from audit.game import workers
from audit.game.binding import binding
from audit.game.play import Trials, all_blocks, expected_seconds, play_audit
from audit.game.settings import AuditConfig
from audit.game.setup import SetUp, set_up
from audit.game.store import RunFolder
from audit.report import assemble as assembling
from audit.report.assemble import assemble
from audit.report.results import PAPER_PROTOCOL, PROXIES, Report, to_table
from audit.report.text import to_text

pytestmark = pytest.mark.usefixtures("quick_reports")


def test_blocks_cover_every_trial_once() -> None:
    config = AuditConfig(trials=50, repeats=2, epsilon=(1.0, 3.0))
    blocks = all_blocks(config.workload, "batched")
    assert len({block.name for block in blocks}) == len(blocks)
    for budget in range(2):
        for repeat in range(2):
            own = [b for b in blocks if (b.budget, b.repeat) == (budget, repeat)]
            covered = np.concatenate([b.start + np.arange(b.trials) for b in own])
            np.testing.assert_array_equal(covered, np.arange(50))


def test_bounds_from_all_runs_are_larger_than_bounds_from_winners() -> None:
    config, (the_set_up,), all_trials = play_trials(
        epsilon=(4.0,), trials=600, repeats=1, repetitions="tnb:0,0.05", seed=1
    )
    trials = all_trials[0, 0]
    assert len(trials.run_score) == trials.runs.sum()
    first = trials.first_trials(100)
    assert len(first.run_lambda_a) == first.runs.sum()
    np.testing.assert_array_equal(first.run_lambda_a, trials.run_lambda_a[: first.runs.sum()])

    view = the_set_up.views[0]
    found = assembling._of_all_runs(view, trials, "lambda_a", 0.95)
    assert all(bound.valid for bound in found)
    by_key = {bound.key: bound.epsilon for bound in found}
    values = trials.lambda_a
    winners = lower_bounds.LiftedCurve(config.runs_distribution, rule=lower_bounds.RankSum())(
        values[~trials.bit], values[trials.bit]
    )
    assert by_key["pooled-gaussian-curve:rank-sum"] > winners.epsilon
    # Fixed seeds; each bound fails with probability at most 5 %.
    exact = upper_bounds.reduced_exact(the_set_up.base, config.runs_distribution, 1e-5).epsilon
    assert max(by_key.values()) <= exact
    # If the statistic is not the score, no bound from all runs is valid.
    other = replace(view, facts=facts_of_tuning(the_set_up.protocol, Assumption.INDEPENDENT_TRIALS))
    bounds = assembling._of_all_runs(other, trials, "lambda_a", 0.95)
    assert not any(bound.valid for bound in bounds)


@pytest.mark.parametrize(
    "settings", [{"repetitions": "fixed:1"}, {"protocol": "grid:2"}, {"trials": 10**7}]
)
def test_runs_are_not_stored_if_they_are_useless_or_too_many(settings: dict[str, Any]) -> None:
    if "protocol" in settings:
        settings = settings | {"learning_rates": (0.1, 0.2)}
    assert not AuditConfig(**settings).stores_runs
    assert AuditConfig().stores_runs


def test_the_released_statistic_has_the_distribution_of_the_best_of_k() -> None:
    # Best of K of N(b mu, 1): phi(Phi(x - b mu)) is uniform. KS, false alarm 1e-3 per coin.
    config, (the_set_up,), all_trials = play_trials(epsilon=(4.0,), trials=4000, repeats=1)
    trials = all_trials[0, 0]
    x = trials.lambda_a * the_set_up.mu
    for bit in (False, True):
        uniform = config.runs_distribution.phi(
            special.ndtr(x[trials.bit == bit] - bit * the_set_up.mu)
        )
        assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    # A fair coin: within 4 standard deviations, false alarm 6e-5.
    assert abs(trials.bit.mean() - 0.5) < 4 * 0.5 / np.sqrt(4000)
    # g = (w_0 - w_N)[0] = lr N C lambda_a, and lambda_b = lambda_a + g.
    np.testing.assert_allclose(trials.score, 0.001 * 100 * trials.lambda_a, rtol=1e-9)
    np.testing.assert_allclose(trials.lambda_b, trials.lambda_a + trials.score, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("score", ["first-coordinate", "worst-order"])
@pytest.mark.parametrize(
    "omega",
    [
        {"learning_rates": (0.01,)},
        {"learning_rates": (0.01, 0.05)},
        {"learning_rates": (0.01, 0.02), "max_grad_norm": (0.5, 2.0), "momentum": (0.0, 0.9)},
    ],
)
def test_engines_play_the_same_game(score: str, omega: dict[str, Any]) -> None:
    # Two-sample KS for 2 proxies x 2 coins at 1e-3 each: false alarm under 0.4 % per case.
    settings = {"epsilon": (4.0,), "repeats": 1, "repetitions": "tnb:0,0.1", "score": score}
    settings |= {"trials": 500, "steps": 20, "model": "logistic"} | omega
    _, _, exact = play_trials(engine="reduced", seed=1, **settings | {"repeats": 12})
    _, _, full = play_trials(engine="batched", seed=2, **settings)
    for bit in (False, True):
        for proxy in PROXIES:
            a, b = (
                np.concatenate([getattr(t, proxy)[t.bit == bit] for t in all_trials.values()])
                for all_trials in (exact, full)
            )
            assert stats.ks_2samp(a, b).pvalue > 1e-3, (bit, proxy)


def test_a_real_canary_shifts_the_statistic() -> None:
    # ETCV row 1 on digits: the canary shifts lambda_a; Mann-Whitney finds it at 1e-6.
    settings = {"canary": "input", "epsilon": (8.0,), "trials": 200, "repeats": 1, "steps": 20}
    _, (the_set_up,), all_trials = play_trials(repetitions="tnb:0,0.2", **settings)
    trials = all_trials[0, 0]
    assert np.isfinite(trials.score).all()
    shifted = stats.mannwhitneyu(trials.lambda_a[trials.bit], trials.lambda_a[~trials.bit])
    assert shifted.pvalue < 1e-6
    assert [view.threat_model.name for view in the_set_up.views] == ["ETCV"]


def test_a_block_does_not_depend_on_other_blocks() -> None:
    config = AuditConfig(trials=40_000, repeats=2, epsilon=(1.0,))
    blocks = all_blocks(config.workload, "reduced")
    (alone,) = game.play(config, blocks[-1])
    for block in blocks:
        (again,) = game.play(config, block)
    for name in game.Trials.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(again, name), getattr(alone, name))
    (other,) = game.play(config, blocks[0])
    assert not np.array_equal(other.score[:100], alone.score[:100])


@pytest.mark.slow
def test_valid_lower_bounds_are_below_the_exact_cost() -> None:
    # Every lower bound errs once in a thousand: of some dozens here none by chance.
    config, set_ups, all_trials = play_trials(
        trials=400, repeats=2, epsilon=(1.0, 4.0), confidence=0.999
    )
    report = assemble(config, set_ups, all_trials)
    assert report.engine.name == "reduced"
    for result in report.results:
        exact = result.upper_bounds["reduced-exact"]
        assert exact.valid
        assert not result.contradictions
        for proxy in PROXIES:
            for key, bound in result.lower_bounds[proxy].items():
                assert bound.min <= bound.mean <= bound.max
                if bound.valid:
                    assert max(bound.max, bound.epsilon) <= exact.epsilon, key
        # A threshold can be fixed in advance where the scale is known: that of lambda_a alone.
        for proxy, known in (("lambda_a", True), ("lambda_b", False)):
            assert ("clopper-pearson:fixed" in result.lower_bounds[proxy]) == known
        assert result.lower_bounds[report.recommended.proxy][report.recommended.key].valid
        assert not result.lower_bounds["lambda_a"][PAPER_PROTOCOL].valid
    table = to_table(report)
    assert set(table["side"]) == {"pooled", "lower", "upper"}
    rows = upper_bounds.all_upper_bounds(set_ups[0].base, config.runs_distribution, config.delta)
    assert len(table[table["side"] == "upper"]) == 2 * (2 + len(rows))


@pytest.fixture(scope="module")
def repeated(
    quick_reports: Any,
) -> tuple[tuple[AuditConfig, list[SetUp], dict[tuple[int, int], Trials]], Report]:
    """Three repeats at eps_B = 4: the audit and its report."""
    audit = play_trials(trials=800, repeats=3, epsilon=(4.0,))
    return audit, assemble(*audit)


def test_the_bound_to_report_uses_the_trials_of_all_repeats(
    repeated: tuple[tuple[AuditConfig, list[SetUp], dict[tuple[int, int], Trials]], Report],
) -> None:
    (config, _, all_trials), report = repeated
    a = np.concatenate([all_trials[0, repeat].lambda_a for repeat in range(3)])
    bit = np.concatenate([all_trials[0, repeat].bit for repeat in range(3)])
    found = lower_bounds.lower_bound(
        out_scores=a[~bit], in_scores=a[bit], delta=config.delta, confidence=config.confidence
    )
    reported = report.reported(0)
    assert reported.epsilon == pytest.approx(found.epsilon, rel=1e-9)
    assert reported.epsilon > reported.mean  # three times as many trials give a larger bound
    assert (reported.pooled.trials_without, reported.pooled.trials_with) == (sum(~bit), sum(bit))
    assert len(reported.repeats) == 3
    table = to_table(report)
    pooled = table[(table["side"] == "pooled") & (table["proxy"] == "lambda_a")]
    assert pooled.set_index("key")["epsilon"]["scan:scan"] == reported.epsilon


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("settings", "monotone", "gaussian"),
    [
        ({}, True, True),
        ({"learning_rates": (0.001, 0.01)}, False, True),
        ({"max_grad_norm": (0.5, 1.0)}, False, True),
        ({"momentum": 0.5}, False, True),
        ({"score": "worst-order"}, False, True),
        ({"canary": "input", "steps": 2}, False, False),
        ({"canary": "input", "score": "first-coordinate", "steps": 2}, False, False),
        ({"threat": "NTCV", "train_size": 20, "steps": 2}, False, False),
        ({"threat": "NTCV", "train_size": 20, "steps": 2, "score": "worst-order"}, False, False),
        ({"threat": "NTNV", "train_size": 20, "validation_size": 10, "steps": 2}, False, False),
        ({"sampling_rate": 0.5, "steps": 5}, False, False),
    ],
)
def test_bounds_for_one_score_are_valid_only_for_that_score(
    settings: dict[str, Any], monotone: bool, gaussian: bool
) -> None:
    config, set_ups, all_trials = play_trials(
        **{"trials": 60, "repeats": 1, "epsilon": (4.0,)} | settings
    )
    (result,) = assemble(config, set_ups, all_trials).results
    worst = config.score == "worst-order"
    for bound in (b for found in result.lower_bounds.values() for b in found.values()):
        if bound.name == "lifted-curve":
            assert bound.valid == (monotone and bound.rule != "max-grid")
        elif bound.name == "worst-order-curve":
            assert bound.valid == (worst and gaussian)
        elif bound.name == "gaussian-curve":
            assert not bound.valid
        elif bound.name == "scan":
            assert bound.valid
        elif bound.rule == "scan":  # of all runs
            assert bound.valid == monotone
    for name in ("reduced-renyi", "reduced-exact"):
        assert result.upper_bounds[name].valid == monotone
    for name in ("renyi", "tight", "region"):
        assert result.upper_bounds[name].valid
    for name in ("worst-order", "base", "base-renyi"):
        assert not result.upper_bounds[name].valid


def test_the_worst_order_gives_larger_lower_bounds_than_the_increasing_score() -> None:
    # The default bound at 6,000 trials and eps_B = 4, far apart.
    values = {}
    for score in ("first-coordinate", "worst-order"):
        config, set_ups, all_trials = play_trials(
            trials=6_000, repeats=1, epsilon=(4.0,), score=score
        )
        report = assemble(config, set_ups, all_trials)
        (result,) = report.results
        values[score] = report.reported(0).epsilon
        attained = result.upper_bounds["worst-order"].epsilon
        for bound in result.lower_bounds["lambda_a"].values():
            if bound.valid:
                assert bound.max <= attained
        assert not result.contradictions
    assert result.lower_bounds["lambda_a"]["worst-order-curve:fixed"].valid
    # A bound for monotone scores is below what this attack attains, so it must not be valid here.
    reduced = result.upper_bounds["reduced-exact"]
    assert reduced.epsilon < attained
    assert reduced.label == "not valid for this score"
    assert values["worst-order"] > values["first-coordinate"] + 0.3


def contradicted(
    repeated: tuple[tuple[AuditConfig, list[SetUp], dict[tuple[int, int], Trials]], Report],
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
) -> tuple[Report, float]:
    """A report whose upper bound is replaced by a multiple of the reported lower bound."""
    (config, set_ups, all_trials), honest = repeated
    wrong = factor * honest.reported(0).epsilon
    rows = upper_bounds.all_upper_bounds(set_ups[0].base, config.runs_distribution, config.delta)
    rows = [replace(row, epsilon=wrong) for row in rows if row.name == "tight"]
    monkeypatch.setattr(upper_bounds, "all_upper_bounds", lambda *arguments: rows)
    return assemble(config, set_ups, all_trials), wrong


def test_a_contradiction_is_announced(
    repeated: tuple[tuple[AuditConfig, list[SetUp], dict[tuple[int, int], Trials]], Report],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "CONTRADICTION" not in to_text(repeated[1])
    report, wrong = contradicted(repeated, monkeypatch, 0.5)
    (result,) = report.results
    found = {(each.proxy, each.key): each for each in result.contradictions}
    reported = found["lambda_a", "scan:scan"]
    assert (reported.upper_bound, reported.upper) == ("tight", wrong)
    assert reported.lower == report.reported(0).epsilon
    # Half of the lower bound is contradicted even if all bounds share the error.
    assert reported.beyond_chance
    text = to_text(report)
    assert "WARNING: CONTRADICTION at eps_B = 4" in text
    valid = [one for bounds in result.lower_bounds.values() for one in bounds.values() if one.valid]
    assert reported.compared == len(valid)
    assert "a claim, or the training, is wrong" in " ".join(text.split())
    # A larger contradiction that may be chance does not replace it.
    chance = replace(reported, key="other", lower=99.0, beyond_chance=False)
    both = replace(result, contradictions=(chance, *result.contradictions))
    assert both.contradiction == result.contradiction
    assert "(other from" not in to_text(replace(report, results=[both]))
    # Such a contradiction is not announced on its own either.
    alone = replace(result, contradictions=(chance,))
    assert alone.contradiction is None
    assert "CONTRADICTION" not in to_text(replace(report, results=[alone]))


def test_a_contradiction_that_may_be_chance_is_not_announced(
    repeated: tuple[tuple[AuditConfig, list[SetUp], dict[tuple[int, int], Trials]], Report],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, _ = contradicted(repeated, monkeypatch, 0.999)
    scans = [each for each in report.results[0].contradictions if each.key == "scan:scan"]
    assert scans
    assert not any(each.beyond_chance for each in scans)


def test_an_audit_whose_runs_all_diverge_is_refused() -> None:
    settings = {"learning_rates": (9e99,), "engine": "batched", "steps": 3, "trials": 12}
    config, set_ups, all_trials = play_trials(epsilon=(2.0,), repeats=1, **settings)
    with pytest.raises(
        ValueError, match=r"every one of the \d+ runs at eps_B = 2 diverged .*9e\+99"
    ):
        assemble(config, set_ups, all_trials)


def test_reports_state_the_number_of_records_used() -> None:
    settings = {"threat": "NTCV", "train_size": 5000, "validation_size": 20, "model": "logistic"}
    config, set_ups, all_trials = play_trials(
        trials=4, repeats=1, epsilon=(4.0,), steps=1, **settings
    )
    report = assemble(config, set_ups, all_trials)
    assert (report.records.training, report.records.validation) == (1437, 20)
    assert "1,437 training records of 5,000 requested, 20 validation records" in to_text(report)


@pytest.mark.parametrize("canary", ["input", "dirac"])
def test_shared_runs_give_each_threat_model_its_own_trials(canary: str) -> None:
    settings = {"canary": canary, "trials": 12, "repeats": 1, "epsilon": (4.0,), "steps": 3}
    settings |= {"repetitions": "fixed:3", "train_size": 40, "validation_size": 20}
    for view, threat in enumerate(("NTNV", "NTCV")):
        shared_config, _, shared = play_trials(view, threat="NTNV+NTCV", **settings)
        alone_config, _, alone = play_trials(threat=threat, **settings)
        assert (shared_config.threat, shared_config.score) == (threat, alone_config.score)
        for name in game.Trials.__dataclass_fields__:
            a, b = getattr(shared[0, 0], name), getattr(alone[0, 0], name)
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_runs_without_a_canary_are_shared_by_all_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each view equals the audit of that view alone, up to rounding.
    settings = {"trials": 12, "repeats": 1, "epsilon": (4.0,), "steps": 3, "precision": "float64"}
    settings |= {"repetitions": "fixed:3", "train_size": 40, "validation_size": 20, "seed": 4}
    trained = []
    train = BatchedEngine._train

    def counted(
        self: BatchedEngine, lanes: RunBatch, *rest: Any
    ) -> tuple[list[torch.Tensor], list[Proxies], torch.Tensor]:
        trained.append(len(lanes))
        return train(self, lanes, *rest)

    monkeypatch.setattr(BatchedEngine, "_train", counted)
    names = set()
    for view in range(4):
        trained.clear()
        shared_config, _, shared = play_trials(
            view, threat="NTNV+NTCV", canary="input+dirac", **settings
        )
        bit = shared[0, 0].bit
        assert sum(trained) == 3 * (np.sum(~bit) + 2 * np.sum(bit))
        pair = {"threat": shared_config.threat, "canary": shared_config.canary}
        names.add("-".join(pair.values()))
        alone_config, _, alone = play_trials(**pair, **settings)
        assert shared_config.score == alone_config.score
        for name in game.Trials.__dataclass_fields__:
            a, b = getattr(shared[0, 0], name), getattr(alone[0, 0], name)
            np.testing.assert_allclose(a, b, rtol=1e-9, err_msg=name)
    assert names == {"NTNV-input", "NTNV-dirac", "NTCV-input", "NTCV-dirac"}


@pytest.mark.thorough
def test_sampled_batches_have_valid_bounds() -> None:
    # tau = 0.1: valid eps_L are below every valid eps_U; "O" and "G" are not valid.
    config, (the_set_up,), all_trials = play_trials(
        sampling_rate=0.1, steps=200, epsilon=(4.0,), trials=5_000, repeats=1
    )
    assert the_set_up.mu is None
    assert the_set_up.base.renyi_epsilon(config.delta) == pytest.approx(4.0, rel=1e-4)
    # The statistic mixes N(k, .) over the Binomial number k of batches with the canary.
    trials = all_trials[0, 0]
    hits = np.arange(201)
    weights = stats.binom.pmf(hits, 200, 0.1)
    x = trials.lambda_a[trials.bit] * 200
    unit = the_set_up.base.noise_multiplier * np.sqrt(200)
    one_run = (weights * stats.norm.cdf((x[:, None] - hits) / unit)).sum(1)
    assert (
        stats.kstest(config.runs_distribution.phi(one_run), "uniform").pvalue > 1e-3
    )  # false alarm 1e-3
    report = assemble(config, [the_set_up], all_trials)
    assert (report.recommended.proxy, report.recommended.key) == ("lambda_c", "scan:scan")
    table = to_table(report)
    lower = table[(table["side"] != "upper") & table["valid"]]
    upper = table[(table["side"] == "upper") & table["valid"] & (table["key"] != "base")]
    assert 1.0 < lower["epsilon"].max() < upper["epsilon"].min()
    assert set(lower["proxy"]) == {"lambda_a", "lambda_b", "lambda_c"}
    assert {"reduced-O", "reduced-G"}.isdisjoint(upper["key"])
    assert set(table["label"]) >= {"approximation", "attained", "valid"}


def test_a_block_is_a_few_seconds_of_work() -> None:
    def runs(**settings: Any) -> int:
        config = AuditConfig(repetitions="fixed:4", trials=10_000, **settings)
        parts = all_blocks(config.workload, "batched")
        assert [part.start for part in parts[1:]] == [
            0 if part.start + part.trials == config.trials else part.start + part.trials
            for part in parts[:-1]
        ]
        return 4 * parts[0].trials

    etcv, ntnv = {"threat": "ETCV", "canary": "input"}, {"threat": "NTNV", "canary": "input"}
    assert runs(**etcv, steps=300) == 216  # 2^22 / (300 * 65)
    assert runs(**etcv, steps=5) == 2048
    assert runs(**etcv, steps=5000) == 128
    assert runs(**ntnv, steps=300, train_size=1000) == 16
    assert runs(**ntnv, steps=300) == 8
    assert runs(**ntnv, steps=20, train_size=200, model="convnet") == 64
    assert runs(**ntnv, steps=300, devices=("cuda",)) == 1024


def test_blocks_are_enough_for_sixteen_workers() -> None:
    # 120 trials on 1,000 records.
    config = AuditConfig(
        threat="NTNV", trials=120, repeats=1, epsilon=(1.0,), train_size=1000, steps=100
    )
    blocks = all_blocks(config.workload, "batched")
    assert len(blocks) >= 48
    assert max(block.trials for block in blocks) <= 3


def test_an_audit_of_too_many_runs_is_refused_before_it_starts() -> None:
    few = AuditConfig(trials=1000, repeats=1, epsilon=(1.0,), repetitions="fixed:10")
    assert expected_seconds(few.workload, 1e-7) == pytest.approx(1e-3)
    many = AuditConfig(trials=1000, repeats=1, epsilon=(1.0,), repetitions="fixed:10000000")
    with pytest.raises(ValueError, match=r"max_runs must be at least the 1e\+10 runs"):
        expected_seconds(many.workload, 1e-7)
    raised = replace(many, max_runs=2e10, max_hours=1e9)
    assert expected_seconds(raised.workload, 1e-7) == pytest.approx(1e3)
    assert raised.identity == many.identity
    # A stored trial takes about 100 bytes, so 10^9 trials of one run count as 10^11 runs.
    all_trials = AuditConfig(trials=10**9, repeats=1, epsilon=(1.0,), repetitions="fixed:1")
    with pytest.raises(ValueError, match=r"max_runs must be at least 1e\+11 for 1e\+09 trials"):
        expected_seconds(all_trials.workload, 1e-7)
    assert expected_seconds(replace(all_trials, max_runs=1e11).workload, 1e-7) > 0.0


def test_an_audit_of_too_many_budgets_or_hours_is_refused_before_it_starts() -> None:
    many = AuditConfig(epsilon=tuple(range(1, 301)))
    with pytest.raises(ValueError, match="max_budgets must be at least 300, the number of values"):
        expected_seconds(many.workload, 1e-7)
    assert expected_seconds(replace(many, max_budgets=300).workload, 1e-7) > 0.0
    long = AuditConfig(threat="NTNV", steps=10**8)
    with pytest.raises(ValueError, match=r"max_hours must be at least the [0-9.e+]+ hours that"):
        expected_seconds(long.workload, 1e3)
    assert expected_seconds(replace(long, max_hours=1e12).workload, 1e3) > 0.0
    assert expected_seconds(replace(long, devices=("cuda",)).workload, 1e3) > 0.0


def test_the_expected_time_counts_the_records_that_exist_and_the_batches_of_a_step() -> None:
    def seconds(**settings: object) -> float:
        return set_up(AuditConfig(epsilon=(1.0,), steps=10, **settings), 0).seconds_of_run

    all_records = seconds(threat="NTCV")
    # DIGITS has fewer records than the default `train_size`.
    assert seconds(threat="NTCV", train_size=10_000) == all_records
    assert seconds(threat="NTCV", train_size=500) < 0.5 * all_records
    assert seconds(threat="NTCV", sampling_rate=0.1) < 0.2 * all_records
    assert seconds(threat="NTCV", model="logistic") < all_records
    assert seconds(threat="ETCV", canary="input") < 0.02 * all_records
    assert seconds() == pytest.approx(1e-7)


STOPPING = {"trials": 6000, "repeats": 1, "epsilon": (2.0, 8.0), "repetitions": "tnb:1,0.1"}


def stopped(
    tmp_path: Path, jobs: int = 1, **settings: float
) -> tuple[AuditConfig, list[SetUp], dict[tuple[int, int], Trials]]:
    config = AuditConfig(**STOPPING, jobs=jobs, out=str(tmp_path), **settings)
    set_ups = [set_up(config, budget) for budget in range(2)]
    folder = RunFolder(tmp_path, config.identity, binding(config.plug_ins, set_ups))
    folder.open()
    play_blocks = partial(workers.play_all, config.place, partial(game.play, config), folder)
    blocks = all_blocks(config.workload, "reduced")
    (all_trials,) = play_audit(blocks, play_blocks, config.evaluation)
    return config, set_ups, all_trials


@pytest.mark.thorough
def test_an_audit_stops_when_the_bound_is_sufficient(tmp_path: Path) -> None:
    config, set_ups, all_trials = stopped(tmp_path / "stopped", stop_at=2.0)
    assert config.evaluation.looks == (187, 375, 750, 1500, 3000, 6000)
    counts = [len(all_trials[budget, 0].trial) for budget in range(2)]
    assert counts[0] == 6000  # eps_L = 2 cannot be shown at eps_B = 2
    assert counts[1] in config.evaluation.looks[:4]
    report = assemble(config, set_ups, all_trials)
    assert report.reported(0).epsilon < 2.0 <= report.reported(1).epsilon
    assert f"after 6,000, {counts[1]:,} of 6,000 trials" in " ".join(to_text(report).split())
    # Each of six looks spends a sixth of the error; the first trials are those of a full audit.
    _, _, full = stopped(tmp_path / "full")
    trials = full[1, 0].first_trials(counts[1])
    np.testing.assert_array_equal(trials.lambda_a, all_trials[1, 0].lambda_a)
    a, bit = trials.lambda_a, trials.bit
    paid = lower_bounds.lower_bound(out_scores=a[~bit], in_scores=a[bit], confidence=1.0 - 0.05 / 6)
    assert report.reported(1).epsilon == pytest.approx(paid.epsilon, rel=1e-9)


def test_repeats_and_stopping_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="repeats must be 1 with stop_at, got 3"):
        AuditConfig(stop_at=2.0)


def test_the_bound_to_report_is_the_recommended_one() -> None:
    config, set_ups, all_trials = play_trials(trials=40, repeats=1, epsilon=(4.0,))
    recommended = assemble(config, set_ups, all_trials).recommended
    assert (
        recommended.key == lower_bounds.lower_bound(out_scores=[0.0, 1.0], in_scores=[2.0, 3.0]).key
    )

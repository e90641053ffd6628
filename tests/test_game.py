"""Algorithm 1: the two engines play the same game, and the report says what holds."""

import numpy as np
import pytest
from scipy import special, stats

from audit import game, report, upper_bounds
from audit.config import AuditConfig
from audit.dpsgd.batched import BatchedEngine


def play(view=0, **settings):
    config = AuditConfig(**settings)
    stages = [game.stage(config, budget) for budget in range(len(config.epsilon))]
    parts = {}
    for block in game.blocks(config, stages[0].engine.name):
        trials = game.play(config, block)[view]
        parts.setdefault((block.budget, block.repeat), []).append(trials)
    games = {
        key: game.Trials(
            **{
                name: np.concatenate([getattr(part, name) for part in group])
                for name in game.Trials.__dataclass_fields__
            }
        )
        for key, group in parts.items()
    }
    return config.views[view], stages, games


def test_blocks_cover_every_trial_once():
    config = AuditConfig(trials=50, repeats=2, epsilon=(1.0, 3.0))
    blocks = game.blocks(config, "batched")
    assert len({block.name for block in blocks}) == len(blocks)
    for budget in range(2):
        for repeat in range(2):
            own = [b for b in blocks if (b.budget, b.repeat) == (budget, repeat)]
            covered = np.concatenate([b.start + np.arange(b.trials) for b in own])
            np.testing.assert_array_equal(covered, np.arange(50))


def test_tuned_statistic_has_its_law():
    # Best of K of N(b mu, 1): phi(Phi(x - b mu)) is uniform. KS, false alarm 1e-3 per coin.
    config, (scene,), games = play(epsilon=(4.0,), trials=4000, repeats=1)
    trials = games[0, 0]
    x = trials.lambda_a * scene.mu
    for bit in (False, True):
        uniform = config.law.phi(special.ndtr(x[trials.bit == bit] - bit * scene.mu))
        assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    # A fair coin: within 4 standard deviations, false alarm 6e-5.
    assert abs(trials.bit.mean() - 0.5) < 4 * 0.5 / np.sqrt(4000)
    # g = (w_0 - w_N)[0] = lr N C lambda_a, and lambda_b = lambda_a + g.
    np.testing.assert_allclose(trials.score, 0.001 * 100 * trials.lambda_a, rtol=1e-9)
    np.testing.assert_allclose(trials.lambda_b, trials.lambda_a + trials.score, rtol=1e-12)


@pytest.mark.parametrize("score", ["first-coordinate", "worst-order"])
@pytest.mark.parametrize(
    "omega",
    [
        {"learning_rates": (0.01,)},
        {"learning_rates": (0.01, 0.05)},
        {"learning_rates": (0.01, 0.02), "max_grad_norm": (0.5, 2.0), "momentum": (0.0, 0.9)},
    ],
)
def test_engines_play_the_same_game(score, omega):
    # Two-sample KS for 2 proxies x 2 coins at 1e-3 each: false alarm under 0.4 % per case.
    settings = {"epsilon": (4.0,), "repeats": 1, "repetitions": "tnb:0,0.1", "score": score}
    settings |= {"trials": 500, "steps": 20, "model": "logistic"} | omega
    _, _, exact = play(engine="reduced", seed=1, **settings | {"repeats": 12})
    _, _, full = play(engine="batched", seed=2, **settings)
    for bit in (False, True):
        for proxy in report.PROXIES:
            a, b = (
                np.concatenate([getattr(t, proxy)[t.bit == bit] for t in games.values()])
                for games in (exact, full)
            )
            assert stats.ks_2samp(a, b).pvalue > 1e-3, (bit, proxy)


def test_the_coin_shows_in_a_game_on_real_input():
    # ETCV row 1 on digits: the canary shifts lambda_a; Mann-Whitney finds it at 1e-6.
    settings = {"canary": "input", "epsilon": (8.0,), "trials": 200, "repeats": 1, "steps": 20}
    _, (scene,), games = play(repetitions="tnb:0,0.2", **settings)
    trials = games[0, 0]
    assert np.isfinite(trials.score).all()
    shifted = stats.mannwhitneyu(trials.lambda_a[trials.bit], trials.lambda_a[~trials.bit])
    assert shifted.pvalue < 1e-6
    assert [threat.name for threat in scene.threat_models] == ["ETCV"]


def test_a_block_depends_on_nothing_but_itself():
    config = AuditConfig(trials=40_000, repeats=2, epsilon=(1.0,))
    blocks = game.blocks(config, "reduced")
    (alone,) = game.play(config, blocks[-1])
    for block in blocks:
        (again,) = game.play(config, block)
    for name in game.Trials.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(again, name), getattr(alone, name))
    (other,) = game.play(config, blocks[0])
    assert not np.array_equal(other.score[:100], alone.score[:100])


def test_report_keeps_valid_lower_bounds_below_upper_bounds():
    config, stages, games = play(trials=1000, repeats=2, epsilon=(1.0, 4.0))
    finished = report.report(config, stages, games)
    assert finished.summary["engine"]["name"] == "reduced"
    for result in finished.summary["results"]:
        exact = result["upper_bounds"]["reduced-exact"]["epsilon"]
        for proxy in report.PROXIES:
            for key, bound in result["lower_bounds"][proxy].items():
                assert bound["min"] <= bound["mean"] <= bound["max"]
                if bound["valid"]:
                    assert bound["max"] <= exact, key
        # A threshold can be fixed in advance where the scale is known: that of lambda_a alone.
        for proxy, known in (("lambda_a", True), ("lambda_b", False)):
            assert ("clopper-pearson:fixed" in result["lower_bounds"][proxy]) == known
    key = report.recommended(finished.summary)
    first = finished.summary["results"][0]["lower_bounds"]["lambda_a"]
    assert first[key]["valid"]
    assert next(iter(first)) == key
    assert not first[report.PAPER_PROTOCOL]["valid"]
    table = finished.table
    assert set(table["side"]) == {"lower", "upper"}
    assert len(table[table["side"] == "upper"]) == 2 * (2 + len(upper_bounds.BOUNDS))


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rates": (0.001, 0.01)},
        {"max_grad_norm": (0.5, 1.0)},
        {"momentum": 0.5},
        {"canary": "input", "steps": 2},
    ],
)
def test_lifted_curve_is_claimed_only_for_an_increasing_score(settings):
    config, stages, games = play(trials=60, repeats=1, epsilon=(4.0,), **settings)
    summary = report.report(config, stages, games).summary
    lower = summary["results"][0]["lower_bounds"]["lambda_a"]
    lifted = [bound for bound in lower.values() if bound["name"] == "lifted-curve"]
    assert lifted
    assert not any(bound["valid"] for bound in lifted)
    assert [kind for _, kind, _ in report.shown(summary)] == ["valid", "paper's, uncorrected"]


def test_worst_order_curve_is_claimed_only_for_the_statistic_that_is_ordered():
    # On a training set the score orders lambda_a less the training gradients, not lambda_a.
    settings = {"trials": 40, "repeats": 1, "epsilon": (4.0,), "score": "worst-order", "steps": 2}
    for threat, claimed in (("ETCV", True), ("NTCV", False)):
        config, stages, games = play(threat=threat, train_size=20, **settings)
        summary = report.report(config, stages, games).summary
        lower = summary["results"][0]["lower_bounds"]["lambda_a"]
        assert ("worst-order-curve:fixed" in lower) == claimed
        assert not any(b["valid"] for b in lower.values() if b["name"] == "lifted-curve")


def test_worst_order_audit_certifies_more_than_the_increasing_score():
    # The default bound at 20,000 trials: 4.5 against 3.4 expected at eps_B = 4, far apart.
    values = {}
    for score in ("first-coordinate", "worst-order"):
        config, stages, games = play(trials=20_000, repeats=1, epsilon=(4.0,), score=score)
        result = report.report(config, stages, games).summary["results"][0]
        lower = result["lower_bounds"]["lambda_a"]
        values[score] = lower[next(iter(lower))]["mean"]
        assert values[score] <= result["upper_bounds"]["worst-order"]["epsilon"]
        for bound in lower.values():
            if bound["valid"]:
                assert bound["max"] <= result["upper_bounds"]["worst-order"]["epsilon"]
    assert "worst-order-curve:fixed" in lower
    assert not any(bound["valid"] for bound in lower.values() if "lifted" in bound["name"])
    assert values["worst-order"] > values["first-coordinate"] + 0.3


@pytest.mark.parametrize("canary", ["input", "dirac"])
def test_shared_runs_play_each_threat_model_as_it_would_play_alone(canary):
    settings = {"canary": canary, "trials": 12, "repeats": 1, "epsilon": (4.0,), "steps": 3}
    settings |= {"repetitions": "fixed:3", "train_size": 40, "validation_size": 20}
    for view, threat in enumerate(("NTNV", "NTCV")):
        shared_config, _, shared = play(view, threat="NTNV+NTCV", **settings)
        alone_config, _, alone = play(threat=threat, **settings)
        assert (shared_config.threat, shared_config.score) == (threat, alone_config.score)
        for name in game.Trials.__dataclass_fields__:
            a, b = getattr(shared[0, 0], name), getattr(alone[0, 0], name)
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_runs_without_a_canary_serve_every_canary(monkeypatch):
    # Every view is the audit played alone, rounding apart: it has its law exactly.
    settings = {"trials": 12, "repeats": 1, "epsilon": (4.0,), "steps": 3, "precision": "float64"}
    settings |= {"repetitions": "fixed:3", "train_size": 40, "validation_size": 20, "seed": 4}
    trained = []
    train = BatchedEngine._train

    def counted(self, lanes, *rest):
        trained.append(len(lanes))
        return train(self, lanes, *rest)

    monkeypatch.setattr(BatchedEngine, "_train", counted)
    names = set()
    for view in range(4):
        trained.clear()
        shared_config, _, shared = play(view, threat="NTNV+NTCV", canary="input+dirac", **settings)
        bit = shared[0, 0].bit
        assert sum(trained) == 3 * (np.sum(~bit) + 2 * np.sum(bit))
        pair = {"threat": shared_config.threat, "canary": shared_config.canary}
        names.add("-".join(pair.values()))
        alone_config, _, alone = play(**pair, **settings)
        assert shared_config.score == alone_config.score
        for name in game.Trials.__dataclass_fields__:
            a, b = getattr(shared[0, 0], name), getattr(alone[0, 0], name)
            np.testing.assert_allclose(a, b, rtol=1e-9, err_msg=name)
    assert names == {"NTNV-input", "NTNV-dirac", "NTCV-input", "NTCV-dirac"}


def test_sampled_batches_are_accounted_for_and_audited():
    # tau = 0.1: noise for the budget; valid eps_L below every valid eps_U; "O" and "G" are none.
    config, (scene,), games = play(
        sampling_rate=0.1, steps=200, epsilon=(4.0,), trials=20_000, repeats=1
    )
    assert scene.mu is None
    assert scene.base.renyi_epsilon(config.delta) == pytest.approx(4.0, rel=1e-4)
    # The statistic mixes N(k, .) over the Binomial number k of batches with the canary.
    trials = games[0, 0]
    hits = np.arange(201)
    weights = stats.binom.pmf(hits, 200, 0.1)
    x = trials.lambda_a[trials.bit] * 200
    unit = scene.base.noise_multiplier * np.sqrt(200)
    one_run = (weights * stats.norm.cdf((x[:, None] - hits) / unit)).sum(1)
    assert stats.kstest(config.law.phi(one_run), "uniform").pvalue > 1e-3  # false alarm 1e-3
    table = report.report(config, [scene], games).table
    lower = table[(table["side"] == "lower") & table["valid"]]
    upper = table[(table["side"] == "upper") & table["valid"] & (table["key"] != "base")]
    assert 1.0 < lower["epsilon"].max() < upper["epsilon"].min()
    assert set(lower["proxy"]) == {"lambda_a", "lambda_b", "lambda_c"}
    assert {"reduced-O", "reduced-G"}.isdisjoint(upper["key"])
    assert set(table["label"]) >= {"approximation", "attained", "valid"}


def test_a_block_is_no_more_work_than_a_kill_may_lose():
    def runs(**settings):
        config = AuditConfig(repetitions="fixed:4", trials=10_000, **settings)
        parts = game.blocks(config, "batched")
        assert [part.start for part in parts[1:]] == [
            0 if part.start + part.trials == config.trials else part.start + part.trials
            for part in parts[:-1]
        ]
        return 4 * parts[0].trials

    assert runs(threat="ETCV", canary="input", steps=300) == 2048
    assert runs(threat="NTNV", canary="input", steps=300) == 180  # of 300 * 5,000 gradients each
    assert runs(threat="NTNV", canary="input", steps=10_000) == 64
    assert runs(threat="NTNV", canary="input", steps=20, train_size=200) == 2048

"""The trained figures: arms stay within their total epsilon, and less noise trains better."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from audit import upper_bounds
from audit.accounting import DpSgd
from audit.protocols import parse_protocol
from studies.papers import REPRODUCTIONS, regression, svm, training, tunings
from studies.papers.command import main

SMALL = {"dataset": "DIGITS", "records": 60, "validation": 50, "steps": 4, "tunings": 4}


def test_arms_stay_within_their_total_epsilon() -> None:
    arm = tunings.Arm("uniform", "tnb:1,0.1", "region", True)
    table = training.compare([arm], [6.0], "DIGITS", "", 60, 50, steps=4, tunings=4).table
    base = DpSgd(table["noise multiplier"][0], 4)
    assert upper_bounds.region(base, "tnb:1,0.1", 1e-5).epsilon == pytest.approx(6.0, rel=1e-4)
    assert 0.0 <= table["accuracy"][0] <= 1.0


@pytest.mark.slow
def test_smaller_bounds_need_less_noise_for_the_same_total() -> None:
    result = REPRODUCTIONS["hypo-training"].run(SMALL | {"epsilons": [6.0]})
    table = result.table.set_index("arm")
    assert len(table) == len(result.lines) == 4
    assert table["accuracy"].between(0.0, 1.0).all()
    noise = table["noise multiplier"]
    assert noise["GP, adaptive bound"] < noise["GP, theorem 1 of DP-HyPO"]
    assert noise["uniform, region bound"] < noise["uniform, Renyi bound"]
    for name, spec in (
        ("GP, adaptive bound", "adaptive:0.75,2/tnb:1,0.1"),
        ("uniform, region bound", "tnb:1,0.1"),
    ):
        base = DpSgd(noise[name], 4)
        assert base.epsilon(1e-5) == table["epsilon of one run"][name]
        assert upper_bounds.tuning_cost(base, spec, 1e-5).epsilon <= 6.0 * (1 + 1e-6)


def test_more_runs_cost_more_and_the_region_bound_is_smaller() -> None:
    result = REPRODUCTIONS["ps-fig7"].run(SMALL | {"means": [2.0, 6.0]})
    epsilon = result.table.set_index(["arm", "mean"])["epsilon"]
    assert len(epsilon) == 16
    for name in training._DISTRIBUTIONS:
        by_renyi, by_region = (epsilon[f"{name}, {bound} bound"] for bound in ("Renyi", "region"))
        assert (by_region < by_renyi).all()
        assert by_region[2.0] < by_region[6.0]
    assert result.table["accuracy"].between(0.0, 1.0).all()


def test_subset_releases_its_final_run() -> None:
    data = training._data("DIGITS", "", 60, 50)
    rng = np.random.default_rng(0)
    protocol = parse_protocol("subset:0.5/fixed:2")
    found = training._accuracies(protocol, 1e-6, data, 30, 6, rng)
    noisy = training._accuracies(protocol, 1e3, data, 30, 6, np.random.default_rng(0))
    assert len(found) == 6
    assert found.mean() > noisy.mean() + 0.2  # ten classes
    assert training._cost_ratio(parse_protocol("subset:0.1/fixed:10")) == 5.0


def test_command_accepts_a_data_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "nothing"
    empty.mkdir()
    preset = tmp_path / "p.toml"
    assert not REPRODUCTIONS["x-table3"].reads_data
    assert {name for name, one in REPRODUCTIONS.items() if one.reads_data} == {
        "hypo-training",
        "kk-training",
        "krw-fig5",
        "ps-fig7",
    }
    preset.write_text('dataset = "DIGIT"')
    assert main(["kk-training", "--preset", str(preset), "--data-root", str(empty)]) == 2
    assert "did you mean 'DIGITS'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="dataset must be text, got 3"):
        REPRODUCTIONS["kk-training"].run({"dataset": 3})


def test_outliers_make_a_larger_alpha_best() -> None:
    """Means of 400 data sets: accuracy decreases in alpha; with outliers, it increases first.

    Both differences are at least four standard errors.
    """
    rng, found = np.random.default_rng(0), []
    for outliers in (0, 8):
        places, labels = svm._data(400, outliers, rng)
        assert places.shape == (400, 40 + outliers, 3)
        alphas = np.array([0.5, 8.0, 64.0])
        models = svm._descend(places, labels, alphas, 20, rng)
        found.append(svm._accuracy(models, places, labels))
    for one, other in ((found[0][:, 0], found[0][:, 2]), (found[1][:, 1], found[1][:, 0])):
        assert (one - other).mean() > 4.0 * stats.sem(one - other)


def test_non_private_choice_reveals_more_than_a_private_one() -> None:
    table = (
        REPRODUCTIONS["ps-fig1"]
        .run({"epsilons": [1.0], "epochs": 5, "datasets": 2, "tunings": 300})
        .table
    )
    games = table[table["what"] == "game"].set_index("arm")
    assert games["eps_L of the model"]["without privacy"] > 1.5
    private = games.loc[["Renyi bound", "region bound"]]
    assert (private[["eps_L of alpha", "eps_L of the model"]] <= 1.0).all(axis=None)
    noise = private["noise multiplier"]
    assert noise["region bound"] < noise["Renyi bound"]
    # Eight records have at most eight times the signal of one.
    group = DpSgd(noise["region bound"] / 8.0, 5)
    assert upper_bounds.region(group, "tnb:1,0.1", 1e-5).epsilon == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(
    ("h", "m", "epsilon"), [(0.1, 0.3, 0.5), (0.02, 0.1, 0.3), (0.3, 1.0, 3.0)]
)
def test_draws_leak_at_most_their_profile(h: float, m: float, epsilon: float) -> None:
    """Quadrature of E[max(1 - e^(epsilon - U), 0)] and of both hockey-stick divergences."""
    draw = regression.Draw((1.0 + h) * m, h)
    bound = float(draw.delta(np.array([epsilon]))[0])
    pair = stats.norm(0.0, 1.0), stats.norm(m, 1.0 / math.sqrt(1.0 + h))
    at = np.linspace(-15.0, 15.0, 200_001)
    exact = [
        np.maximum(p.pdf(at) - np.exp(epsilon) * q.pdf(at), 0.0).sum() * (at[1] - at[0])
        for p, q in (pair, pair[::-1])
    ]
    assert bound / 4.0 < max(exact) <= bound

    def above(z: float) -> float:
        loss = (h + draw.scale**2) / 2.0 + draw.scale * z + h * z * z / 2.0
        return 2.0 * max(-math.expm1(epsilon - loss), 0.0) * stats.norm.pdf(z)

    edge = (math.sqrt(draw.scale**2 + 2.0 * h * epsilon) - draw.scale) / h
    assert bound == pytest.approx(integrate.quad(above, 0.0, 15.0, points=[edge])[0], rel=1e-4)
    assert float(draw.profile.delta(epsilon)) >= bound


def test_sensitivities_of_a_regression() -> None:
    """Random small data sets: the inequalities that the privacy proof uses."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        n, d, penalty = rng.integers(1, 6), 3, 10.0 ** rng.uniform(-1, 1)
        x, y = rng.standard_normal((n + 1, d)), rng.uniform(-1.0, 1.0, n + 1)
        x /= np.maximum(np.linalg.norm(x, axis=1), 1e-9)[:, None]
        sums = [x[:k].T @ x[:k] for k in (n, n + 1)]
        small, large = (
            np.linalg.solve(each + penalty * np.eye(d), x[:k].T @ y[:k])
            for each, k in zip(sums, (n, n + 1), strict=True)
        )
        least = [np.linalg.eigvalsh(each)[0] for each in sums]
        assert -1e-12 <= least[1] - least[0] <= 1.0
        grows = 1.0 + 1.0 / (penalty + max(least[0], 0.0))
        ratio = (1.0 + np.linalg.norm(small)) / (1.0 + np.linalg.norm(large))
        assert 1.0 / grows <= ratio <= grows
        # The only direction in which the posteriors differ.
        last = np.linalg.solve(sums[0] + penalty * np.eye(d), x[n])
        h, r = x[n] @ last, y[n] - x[n] @ small
        assert large - small == pytest.approx(last * r / (1.0 + h))
        assert h <= grows - 1.0 + 1e-12


def test_tuned_regressions_stay_within_their_total_epsilon() -> None:
    settings = {"dataset": "DIGITS", "records": 1000, "validation": 300, "tunings": 40}
    table = REPRODUCTIONS["krw-fig5"].run(settings | {"epsilons": [8.0]}).table
    error = table.set_index("method")["error"]
    assert len(error) == 6
    assert (error["not private"] < error.drop("not private")).all()
    scales = [regression._largest_scale(8.0, way) for way in regression._ACCOUNTINGS.values()]
    assert 0.0 < scales[0] < scales[1] <= scales[2]
    for scale, way in zip(scales, regression._ACCOUNTINGS.values(), strict=True):
        draw = regression.Draw(scale, regression._CURVATURE * scale)
        assert way(draw, regression._protocol(scale)) <= 8.0
    # Nothing is released if every run fails its test.
    problem = regression._problem("DIGITS", "", 1000, 300)
    assert len(regression._tested(problem, 1e-6, 5, np.random.default_rng(0))) == 0

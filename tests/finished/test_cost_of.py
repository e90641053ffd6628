"""The cost of a finished tuning, from a csv file and from Optuna."""

import functools
import importlib
import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from audit import cost as command
from audit import finished, repetitions, upper_bounds
from audit.accounting import (
    Candidates,
    Composition,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    Mixture,
    ZeroConcentratedDp,
    combinations,
)
from audit.finished.cost import all_of
from audit.finished.interpretation import read_prior as prior_of_table
from audit.finished.runs import RunSettings
from audit.protocols import Grid, RandomSearch
from audit.upper_bounds import TuningCosts
from audit.upper_bounds.registry import find

TEN = [GaussianMechanism(0.1)] * 10


def read_prior(path: Path) -> Mixture:
    return prior_of_table(path, {}, RunSettings({}))


# Many tests compute the cost of the same few tunings, which takes a second or two each.
cost = functools.lru_cache(upper_bounds.tuning_cost)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_random_trials_cost_a_fixed_number_of_runs() -> None:
    found = finished.cost_of_trials(TEN, "random")
    assert found.best_only == cost(TEN[0], "fixed:10", 1e-5).epsilon
    assert found.all_released == pytest.approx(GaussianMechanism(np.sqrt(0.1)).epsilon(1e-5))
    assert found.best_only < found.all_released


def test_random_trials_with_a_distribution_of_k_cost_that_of_random_search() -> None:
    found = finished.cost_of_trials([GaussianMechanism(0.5)], "random", protocol="tnb:1,0.1")
    with pytest.raises(ValueError, match="protocol must be a random search, got grid:3"):
        finished.cost_of_trials([GaussianMechanism(0.5)], "random", protocol="grid:3")
    # One run was drawn, but K may be larger: the composition of one run is not a bound.
    assert found.best_only == cost(GaussianMechanism(0.5), "tnb:1,0.1", 1e-5).epsilon
    assert found.best_only > found.all_released
    assert "no candidate of the prior is less private" in found.assumed


@pytest.mark.parametrize("law", ["fixed:2", "fixed:4", "binomial:2,0.5", "tnb:0,0.2@2"])
def test_a_distribution_that_cannot_draw_the_number_of_trials_is_refused(law: str) -> None:
    trials = [GaussianMechanism(0.5)] * 3
    with pytest.raises(ValueError, match="protocol must be a distribution that draws the number"):
        finished.cost_of_trials(trials, "random", protocol=law)
    assert finished.cost_of_trials(trials, "random", protocol="fixed:3").best_only


def test_trials_of_several_relations_are_refused() -> None:
    trials = [DpSgd(1.0, 10, 1.0, relation) for relation in ("add-remove", "replace-one")]
    with pytest.raises(ValueError, match="trials must have one neighbouring relation"):
        finished.cost_of_trials(trials, "grid")


def test_trials_of_several_group_sizes_are_refused() -> None:
    one, three = (DpSgd(4.0, 10, group_size=size) for size in (1, 3))
    # Their composition would hold for single records only; groups of three cost more.
    together = Composition((one, three)).epsilon(1e-5)
    assert together < DpSgd(4.0, 20, group_size=3).epsilon(1e-5)
    for chosen in ("grid", "random", "sequential"):
        with pytest.raises(ValueError, match="trials must have one group_size, got 1 and 3"):
            finished.cost_of_trials([one, three], chosen)
        assert finished.cost_of_trials([three, three], chosen).best_only is not None
    prior = Mixture((one, three), (0.5, 0.5))
    with pytest.raises(ValueError, match="group_size must be the same in all parts of a mechanism"):
        finished.cost_of_trials([one], "random", protocol="tnb:1,0.5", prior=prior)


def test_sequential_trials_cost_their_composition_and_the_reason_is_stated() -> None:
    found = finished.cost_of_trials(TEN, "sequential")
    assert found.best_only == found.all_released
    assert "composition" in found.bound
    assert "depend on earlier outputs" in found.why
    assert found.why.count("\n") == 0


@pytest.mark.slow
def test_the_reason_of_a_grid_fits_its_cost() -> None:
    different = finished.cost_of_trials([GaussianMechanism(0.5), GaussianMechanism(0.1)], "grid")
    assert different.best_only == different.all_released
    assert "below the cost of releasing all" in different.why
    equal = finished.cost_of_trials(TEN, "grid")
    assert equal.best_only < equal.all_released
    assert "costs less than releasing all" in equal.why


def test_grid_cost_is_between_independent_draws_and_composition() -> None:
    found = finished.cost_of_trials(TEN, "grid")
    draws = finished.cost_of_trials(TEN, "random")
    assert draws.best_only <= found.best_only <= found.all_released


@pytest.mark.thorough
def test_sequential_trials_of_mixed_noise_each_cost_their_own() -> None:
    trials = [GaussianMechanism(0.1), GaussianMechanism(0.2), GaussianMechanism(0.2)]
    found = finished.cost_of_trials(trials, "random")
    assert found.all_released == pytest.approx(GaussianMechanism(0.3).epsilon(1e-5), rel=1e-6)
    worst = cost(GaussianMechanism(0.2), "fixed:3", 1e-5).epsilon
    assert found.best_only <= min(worst, found.all_released)  # type: ignore[type-var]


@pytest.mark.slow
def test_trials_of_mixed_noise_each_cost_their_own() -> None:
    trials = [GaussianMechanism(0.05)] * 30 + [GaussianMechanism(0.2)] * 2
    found = finished.cost_of_trials(trials, "grid")
    base = Candidates(tuple(trials))
    own, region = (
        find(name, Grid).function(base, "grid:32", 1e-5).epsilon for name in ("grid-tight", "grid")
    )
    assert found.best_only == own < region
    assert found.bound == "grid-tight, grid:32"
    quietest, loudest = (
        find("grid-tight", Grid).function(one, "grid:32", 1e-5).epsilon for one in trials[29:31]
    )
    assert quietest < own < 0.95 * loudest
    assert own < found.all_released


def most_leaked(prior: Any, law: Any, epsilon: Any) -> Any:
    """The largest delta of the best of K draws over all orders of (candidate, output)."""
    laws = [
        np.concatenate(
            [
                chance * np.asarray(getattr(one, name))
                for one, chance in zip(prior.candidates, prior.chances, strict=True)
            ]
        )
        for name in "pq"
    ]
    most = 0.0
    for order in itertools.permutations(range(len(laws[0]))):
        # A run is outside a set with probability 1 - s, and the best run with phi(1 - s).
        rest = [np.append(1.0, 1.0 - np.cumsum(p[list(order)])).clip(0.0, 1.0) for p in laws]
        best, best_with = (-np.diff(law.phi(one)) for one in rest)
        for p, q in ((best, best_with), (best_with, best)):
            most = max(most, float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum()))
    return most


def test_random_trials_assume_that_no_less_private_one_was_possible() -> None:
    quiet = DiscreteMechanism((0.5606, 0.4394), (0.1694, 0.8306), directed=True)
    loud = DiscreteMechanism((1.0, 0.0), (0.1, 0.9), directed=True)
    found = finished.cost_of_trials([quiet] * 3, "random", delta=0.19)
    assert found.bound == "tight, fixed:3"
    assert most_leaked(Mixture((quiet,), (1.0,)), repetitions.Fixed(3), found.best_only) <= 0.19
    # One tuning in eight draws only the more private candidate, but another would leak more.
    either = Mixture((quiet, loud), (0.5, 0.5))
    assert most_leaked(either, repetitions.Fixed(3), found.best_only) > 0.4
    assert "no candidate of the prior is less private" in found.assumed


@pytest.mark.slow
def test_trials_of_mixed_noise_cost_the_mean_over_a_known_prior(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only the bound that is smallest here, because the others are slow.
    tight = find("tight", RandomSearch)
    monkeypatch.setattr(TuningCosts, "smallest", property(lambda costs: costs.row(tight)))
    delta, spec = 0.05, "tnb:0,0.2"
    loud = DiscreteMechanism((0.5, 0.5), (0.1, 0.9), directed=True)
    quiet = DiscreteMechanism((0.5, 0.5), (0.4, 0.6), directed=True)
    law, prior = repetitions.parse_repetitions(spec), Mixture((loud, quiet), (0.2, 0.8))
    found = finished.cost_of_trials([loud, quiet], "random", delta=delta, protocol=law, prior=prior)
    # The exact cost of this small case is below the bound, and close to it.
    assert 0.9 * delta < most_leaked(prior, law, found.best_only) <= delta
    assert "drawn from the given prior" in found.assumed
    # With probabilities other than those of the draws, the bound is too small.
    rarely_loud = finished.cost_of_trials(
        [quiet],
        "random",
        delta=delta,
        protocol=law,
        prior=Mixture((loud, quiet), (0.1, 0.9)),
    )
    assert most_leaked(prior, law, rarely_loud.best_only) > delta


@pytest.mark.parametrize(
    ("chosen", "prior", "words"),
    [
        ("grid", TEN[0], "prior must be given with chosen random only, got chosen grid"),
        ("random", GaussianMechanism(0.2), "prior must hold every trial, got none like"),
        ("random", Mixture((TEN[0],), (0.5,)), "prior must have chances that sum to 1, got 0.5"),
    ],
)
def test_bad_priors_are_one_line(
    chosen: str, prior: Mixture | GaussianMechanism, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        finished.cost_of_trials(TEN, chosen, prior=prior)
    assert "\n" not in str(caught.value)


def test_bounds_command_reads_a_prior(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials, prior = tmp_path / "trials.csv", tmp_path / "prior.csv"
    trials.write_text("gdp_mu\n0.1\n0.2\n")
    prior.write_text("gdp_mu, chance\n0.1, 0.75\n0.2, 0.25\n")
    assert read_prior(prior) == Mixture((TEN[0], GaussianMechanism(0.2)), (0.75, 0.25))
    options = [str(trials), "--chosen", "random", "--repetitions", "tnb:1,0.5"]
    assert command.main([*options, "--prior", str(prior), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["best_only"]
    assert found == cost(read_prior(prior), "tnb:1,0.5", 1e-5).epsilon
    prior.write_text("gdp_mu\n0.1\n0.1\n0.2\n0.1\n")  # equally likely rows; equal rows are merged
    assert read_prior(prior) == Mixture((TEN[0], GaussianMechanism(0.2)), (0.75, 0.25))
    prior.write_text("gdp_mu,chance\n0.1,2\n")
    assert command.main([*options, "--prior", str(prior)]) == 2
    assert "chance must be in (0, 1], got" in capsys.readouterr().err


def test_equal_trials_are_counted() -> None:
    assert all_of([DpSgd(1.0, 10, 0.1)] * 3) == DpSgd(1.0, 30, 0.1)
    mixed = all_of([DpSgd(1.0, 10, 0.1), DpSgd(2.0, 10, 0.1), DpSgd(1.0, 5, 0.1)])
    assert mixed == Composition((DpSgd(1.0, 15, 0.1), DpSgd(2.0, 10, 0.1)))


@pytest.mark.parametrize(
    "trials",
    [
        [GaussianMechanism(mu) for mu in np.geomspace(0.01, 0.2, 40)],
        [DpSgd(noise, 20, 0.02) for noise in np.linspace(4.0, 6.0, 40)],
        [DpSgd(5.0, int(n), 0.02) for n in range(10, 50)],
        [ZeroConcentratedDp(rho) for rho in np.linspace(1e-4, 1e-2, 40)],
    ],
    ids=["gaussian", "noise", "steps", "zcdp"],
)
def test_many_different_trials_are_dominated_by_few(trials: Any) -> None:
    module = sys.modules["audit.finished.cost"]
    alike = module.dominating_few(trials)
    assert len(set(alike.values())) <= module.MAX_KINDS < len(set(trials))
    for one, instead in alike.items():
        assert np.all(instead.renyi([2.0, 5.0, 30.0]) >= one.renyi([2.0, 5.0, 30.0]))
    # The least private mechanism does not change; the others cost at most as much as it.
    worst = max(trials, key=lambda one: float(one.renyi(8.0)))
    assert worst in set(alike.values())
    few = trials[:5]
    assert module.dominating_few(few) == {one: one for one in few}


def test_priors_of_many_different_draws_keep_their_chances() -> None:
    module = sys.modules["audit.finished.cost"]
    prior = Mixture(tuple(GaussianMechanism(mu) for mu in np.linspace(0.1, 0.2, 50)), (0.02,) * 50)
    few = module.dominating_prior(prior)
    assert len(few.candidates) <= module.MAX_KINDS
    assert sum(few.chances) == pytest.approx(1.0, abs=1e-12)
    assert prior.epsilon(1e-5) <= few.epsilon(1e-5) < 1.1 * prior.epsilon(1e-5)


@pytest.mark.slow
def test_trials_of_a_grid_are_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Composing hundreds of different sampled trials takes most of the time, so it is done once.
    times = []
    compose = combinations.compose
    monkeypatch.setattr(
        combinations, "compose", lambda parts, *rest: times.append(parts) or compose(parts, *rest)
    )
    trials = [DpSgd(noise, 20, 0.02) for noise in (4.0, 5.0, 6.0)]
    found = finished.cost_of_trials(trials, "grid")
    assert len(times) == 1
    least = cost(Candidates(tuple(trials)), "grid:3", 1e-5).epsilon
    assert found.best_only == pytest.approx(least, rel=1e-9)


@pytest.mark.thorough
def test_few_sampled_trials_of_a_high_rate_are_composed() -> None:
    # 10^8 steps of this trial would be out of range, but this grid has fewer.
    trial = DpSgd(1.0, 100, 0.2)
    found = finished.cost_of_trials([trial] * 2, "grid")
    assert found.all_released == DpSgd(1.0, 200, 0.2).epsilon(1e-5)


@pytest.mark.slow
def test_many_rows_are_counted(tmp_path: Path) -> None:
    # Known values: n equal Gaussian runs are one of mu sqrt(n); n equal zCDP runs have n rho.
    path = tmp_path / "trials.csv"
    path.write_text("gdp_mu\n" + "1e-4\n" * 20_000)
    found = finished.cost_of_trials(path, "sequential")
    truth = GaussianMechanism(1e-4 * math.sqrt(20_000)).epsilon(1e-5)
    assert (found.trials, found.all_released) == (20_000, pytest.approx(truth, rel=1e-9))  # type: ignore[comparison-overlap]
    assert all_of([ZeroConcentratedDp(0.01)] * 7) == ZeroConcentratedDp(0.07)
    start = time.process_time()
    rhos = np.linspace(1e-5, 1e-4, 10_000)
    together = all_of([ZeroConcentratedDp(rho) for rho in rhos])
    assert together.rho == pytest.approx(float(np.sum(rhos)), rel=1e-12)
    assert time.process_time() - start < 3.0
    mus = np.linspace(1e-4, 1e-3, 2_000)
    together = all_of([GaussianMechanism(mu) for mu in mus])
    assert together.gaussian_mu == pytest.approx(float(np.linalg.norm(mus)), rel=1e-12)
    sampled = [DpSgd(noise, 10, 0.01) for noise in np.linspace(3.0, 4.0, 300)]
    composed = all_of(sampled)
    assert len(composed.parts) <= 100
    orders = np.array([2.0, 8.0, 40.0])
    exactly = np.sum([one.renyi(orders) for one in sampled], axis=0)
    assert np.all(composed.renyi(orders) >= exactly)
    assert np.all(composed.renyi(orders) <= 1.02 * exactly)
    # More steps than one mechanism may have.
    assert sum(one.steps for one in all_of([DpSgd(9.0, 10**7, 0.01)] * 35).parts) == 35 * 10**7


@pytest.mark.slow
def test_a_delta_below_the_normal_numbers_gives_a_bound() -> None:
    found = finished.cost_of_trials([GaussianMechanism(0.1)] * 3, "grid", delta=1e-320)
    assert found.best_only is not None
    assert found.best_only >= GaussianMechanism(0.1).epsilon(1e-320)


def test_the_same_objects_are_counted_without_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    module, read = importlib.import_module("audit.accounting.combinations"), []
    key = module._key
    monkeypatch.setattr(module, "_key", lambda one: read.append(one) or key(one))
    one, equal, other = GaussianMechanism(0.1), GaussianMechanism(0.1), GaussianMechanism(0.2)
    assert module.kinds([one] * 500 + [other] + [equal] * 400) == [(one, 900), (other, 1)]
    assert len(read) == 3


def test_many_different_trials_are_merged_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    module, read = importlib.import_module("audit.finished.cost"), []
    parameters = module._parameters
    monkeypatch.setattr(module, "_parameters", lambda run: read.append(run) or parameters(run))
    runs = [GaussianMechanism(float(mu)) for mu in np.geomspace(0.01, 0.011, 3000)]
    merged = module.dominating_few(runs)
    assert len(read) < 4 * len(runs)
    assert set(merged) == set(runs)
    assert len(set(merged.values())) <= module.MAX_KINDS
    assert all(one.mu >= run.mu for run, one in merged.items())


@pytest.mark.slow
def test_a_meaningless_epsilon_of_all_trials_is_that_of_renyi_divergences() -> None:
    trials = [DpSgd(0.2, 10, 0.5), DpSgd(0.25, 10, 0.5)]
    exact = all_of(trials).epsilon(1e-5)
    found = finished.cost_of_trials(trials, "grid")
    assert exact < found.all_released < 1.1 * exact
    # Full batches are one Gaussian mechanism, whose cost is exact.
    trials = [GaussianMechanism(mu) for mu in (10.0, 20.0)]
    exact = GaussianMechanism(math.hypot(10.0, 20.0)).epsilon(1e-5)
    assert finished.cost_of_trials(trials, "grid").all_released == pytest.approx(exact, rel=1e-9)

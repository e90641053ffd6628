"""The cost of a finished tuning, from a csv file and from Optuna."""

import contextlib
import functools
import importlib
import itertools
import json
import math
import re
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from audit import bounds, finished, repetitions, upper_bounds
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
from audit.finished.combined_trials import all_of
from audit.finished.trials_file import read_prior, read_trials
from audit.integrations import optuna as integration
from audit.protocols import Grid, RandomSearch
from audit.upper_bounds.registry import find, row

TEN = [GaussianMechanism(0.1)] * 10


# Many tests compute the cost of the same few tunings, which takes a second or two each.
cost = functools.lru_cache(upper_bounds.tuning_cost)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.setattr(sys.modules["audit.finished.cost"], "tuning_cost", cost)


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


def test_sequential_trials_of_mixed_noise_each_cost_their_own() -> None:
    trials = [GaussianMechanism(0.1), GaussianMechanism(0.2), GaussianMechanism(0.2)]
    found = finished.cost_of_trials(trials, "random")
    assert found.all_released == pytest.approx(GaussianMechanism(0.3).epsilon(1e-5), rel=1e-6)
    worst = cost(GaussianMechanism(0.2), "fixed:3", 1e-5).epsilon
    assert found.best_only <= min(worst, found.all_released)  # type: ignore[type-var]


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
    found = finished.cost_of_trials([quiet] * 3, "random", 0.19)
    assert found.bound == "tight, fixed:3"
    assert most_leaked(Mixture((quiet,), (1.0,)), repetitions.Fixed(3), found.best_only) <= 0.19
    # One tuning in eight draws only the more private candidate, but another would leak more.
    either = Mixture((quiet, loud), (0.5, 0.5))
    assert most_leaked(either, repetitions.Fixed(3), found.best_only) > 0.4
    assert "no candidate of the prior is less private" in found.assumed


def test_trials_of_mixed_noise_cost_the_mean_over_a_known_prior(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only the bound that is smallest here, because the others are slow.
    tight = find("tight", RandomSearch)
    monkeypatch.setattr(
        sys.modules["audit.finished.cost"], "tuning_cost", functools.partial(row, tight)
    )
    delta, spec = 0.05, "tnb:0,0.2"
    loud = DiscreteMechanism((0.5, 0.5), (0.1, 0.9), directed=True)
    quiet = DiscreteMechanism((0.5, 0.5), (0.4, 0.6), directed=True)
    law, prior = repetitions.parse_repetitions(spec), Mixture((loud, quiet), (0.2, 0.8))
    found = finished.cost_of_trials([loud, quiet], "random", delta, law, prior)
    # The exact cost of this small case is below the bound, and close to it.
    assert 0.9 * delta < most_leaked(prior, law, found.best_only) <= delta
    assert "drawn from the given prior" in found.assumed
    # With probabilities other than those of the draws, the bound is too small.
    rarely_loud = finished.cost_of_trials(
        [quiet], "random", delta, law, Mixture((loud, quiet), (0.1, 0.9))
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
    trials.write_text("mu\n0.1\n0.2\n")
    prior.write_text("mu, chance\n0.1, 0.75\n0.2, 0.25\n")
    assert read_prior(prior) == Mixture((TEN[0], GaussianMechanism(0.2)), (0.75, 0.25))
    command = ["--trials", str(trials), "--chosen", "random", "--repetitions", "tnb:1,0.5"]
    assert bounds.main([*command, "--prior", str(prior), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["best_only"]
    assert found == cost(read_prior(prior), "tnb:1,0.5", 1e-5).epsilon
    prior.write_text("mu\n0.1\n0.1\n0.2\n0.1\n")  # equally likely rows; equal rows are merged
    assert read_prior(prior) == Mixture((TEN[0], GaussianMechanism(0.2)), (0.75, 0.25))
    prior.write_text("mu,chance\n0.1,2\n")
    assert bounds.main([*command, "--prior", str(prior)]) == 2
    assert "chance must be in (0, 1], got" in capsys.readouterr().err


def test_equal_trials_are_counted() -> None:
    assert all_of([DpSgd(1.0, 10, 0.1)] * 3) == DpSgd(1.0, 30, 0.1)
    mixed = all_of([DpSgd(1.0, 10, 0.1), DpSgd(2.0, 10, 0.1), DpSgd(1.0, 5, 0.1)])
    assert mixed == Composition((DpSgd(1.0, 15, 0.1), DpSgd(2.0, 10, 0.1)))


def test_csv_is_read_by_its_heading(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("lr, noise_multiplier, steps, sampling_rate\n0.1, 1.5, 100, 0.01\n1, 2, 50, \n")
    assert read_trials(path) == [DpSgd(1.5, 100, 0.01), DpSgd(2.0, 50)]
    path.write_text("mu\n0.5\n0.25\n", encoding="utf-8-sig")  # as spreadsheets write it
    assert read_trials(path) == [GaussianMechanism(0.5), GaussianMechanism(0.25)]
    path.write_text("noise_multiplier,steps,learning_rate\n2,50,0.1\n")
    assert read_trials(path) == [DpSgd(2.0, 50)]
    path.write_text("rho,accuracy\n0.5,0.9\n")
    assert read_trials(path) == [ZeroConcentratedDp(0.5)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr\n0.1\n", "trials must have columns noise_multiplier.* got 'lr' in"),
        ("Noise Multiplier,steps\n1,2\n", "'Noise Multiplier' may be 'noise_multiplier'"),
        ("mu;rho\n0,2;\n", r"got 'mu;rho' in '.*': separate columns by commas"),
        ("sigma,step\n1,2\n", "'sigma' may be 'noise_multiplier', 'step' may be 'steps'"),
        ("mu,mu\n0.1,0.9\n", "trials must name column mu once, got it 2 times"),
        ("mu,rho\n0.1,0.9\n", "line 2: row must have one of .* got mu and rho"),
        ("mu,rho\n,\n", "line 2: row must have one of .* got none of them"),
        ("mu\n0,1\n", "line 2: row must have one value for each of 1 columns, got 2"),
        ("", "trials must be at least one row below a heading"),
        ("mu\n0.1\n-1\n", "trials, line 3: mu must be in"),
        ("noise_multiplier\n1\n", "trials, line 2: steps must be given with noise_multiplier"),
        ("noise_multiplier,step\n1,2\n", "got 'noise_multiplier', 'step' in .* may be 'steps'"),
        ("noise_multiplier,steps,sample_rate\n1,2,.1\n", "'sample_rate' may be 'sampling_rate'"),
        ("noise_multiplier,steps,rate\n1,2,.1\n", "'rate' may be 'sampling_rate'"),
        ("noise_multiplier,steps,batch\n1,2,64\n", "'batch' may be 'sampling_rate'"),
        ("mu\n", "trials must be at least one row below a heading"),
        (None, "trials must be a readable csv file, got .*: No such file"),
        ("mu\n1_0\n", "trials, line 2: mu must be in .* got '1_0'"),
        ("mu\n\u0661\n", "trials, line 2: mu must be in .*"),
        ("noise_multiplier,steps\n1,1_0\n", "line 2: steps must be a whole .* got '1_0'"),
        ('mu\n"0.1\n0.2\n', "trials must be a readable csv .*: a quote is not closed in line 3"),
        ('mu\n"0.1"2\n', "a comma is missing after a quote in line 2"),
    ],
)
def test_bad_files_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: str
) -> None:
    path = tmp_path / "trials.csv"
    if text is not None:
        path.write_text(text)
    assert bounds.main(["--trials", str(path), "--chosen", "random"]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error)
    assert error.count("\n") == 1


def test_bounds_command_prints_the_cost_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("mu\n" + "0.1\n" * 10)
    assert bounds.main(["--trials", str(path), "--chosen", "random", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best_only"] == finished.cost_of_trials(TEN, "random").best_only
    assert found["trials"] == 10
    assert bounds.main(["--trials", str(path), "--chosen", "sequential"]) == 0
    assert "only the best is released: epsilon = " in capsys.readouterr().out
    assert bounds.main(["--trials", str(path)]) == 2
    assert "chosen must be given with --trials" in capsys.readouterr().err
    assert bounds.main(["--trials", str(path), "--chosen", "tpe"]) == 2
    assert "chosen must be one of grid, random, sequential" in capsys.readouterr().err


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
    module = sys.modules["audit.finished.combined_trials"]
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
    module = sys.modules["audit.finished.combined_trials"]
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


def test_few_sampled_trials_of_a_high_rate_are_composed() -> None:
    # 10^8 steps of this trial would be out of range, but this grid has fewer.
    trial = DpSgd(1.0, 100, 0.2)
    found = finished.cost_of_trials([trial] * 2, "grid")
    assert found.all_released == DpSgd(1.0, 200, 0.2).epsilon(1e-5)


def test_many_rows_are_counted(tmp_path: Path) -> None:
    # Known values: n equal Gaussian runs are one of mu sqrt(n); n equal zCDP runs have n rho.
    path = tmp_path / "trials.csv"
    path.write_text("mu\n" + "1e-4\n" * 20_000)
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


# Optuna.


@pytest.mark.parametrize("study", [None, 3, {}])
def test_what_is_no_study_is_one_line(study: Any) -> None:
    with pytest.raises(ValueError, match="study must be an Optuna study or its storage, got"):
        integration.cost_of_study(study)


def test_several_objectives_release_more_than_the_best() -> None:
    study = optuna.create_study(directions=["minimize"] * 2, sampler=SAMPLERS.RandomSampler(seed=0))
    study.optimize(lambda trial: (objective(trial), 1.0), n_trials=3)
    found = integration.cost_of_study(study)
    assert found.best_only == found.all_released
    assert found.chosen == "random, several objectives"
    assert "Pareto front" in found.why
    assert integration.cost_of_study(study, chosen="random").best_only == found.best_only
    with pytest.raises(ValueError, match="protocol and prior must come with"):
        integration.cost_of_study(study, protocol="tnb:0,0.1")


def test_budgets_chosen_by_a_sampler_have_no_cost_without_a_cap() -> None:
    study = optuna.create_study(sampler=SAMPLERS.TPESampler(seed=0, n_startup_trials=2))
    study.optimize(lambda trial: trial.suggest_float("mu", 0.1, 0.2), n_trials=4)
    found = integration.cost_of_study(study)
    assert (found.kind, found.best_only) == ("odometer reading", None)
    assert integration.cost_of_study(study, cap=4.0).best_only == 4.0


def stored(folder: Any) -> Any:
    storage = f"sqlite:///{folder}/study.db"
    study = optuna.create_study(storage=storage, study_name="mine")
    study.optimize(objective, n_trials=2)
    return storage, folder / "study.db"


def refused_line(capsys: pytest.CaptureFixture[str], storage: Any, name: Any = "mine") -> Any:
    assert bounds.main(["--optuna", storage, name]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    return captured.err


def test_a_storage_is_only_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage, file = stored(tmp_path)
    before = file.read_bytes()
    file.chmod(0o444)
    assert bounds.main(["--optuna", storage, "mine"]) == 0
    assert file.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["study.db"]
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(sqlite3.connect(foreign)) as database:
        database.execute("create table mine (x int)")
        database.commit()
    before = foreign.read_bytes()
    capsys.readouterr()
    assert "which holds no studies" in refused_line(capsys, f"sqlite:///{foreign}")
    assert foreign.read_bytes() == before
    foreign.write_bytes(b"no database" * 100)
    assert "which holds no studies" in refused_line(capsys, f"sqlite:///{foreign}")


def test_locked_and_damaged_storages_have_their_own_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integration, "_SECONDS_LOCKED", 0.1)
    storage, file = stored(tmp_path)
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("begin exclusive")
        assert "which is locked: wait" in refused_line(capsys, storage)
        database.rollback()
        database.execute("update trial_user_attributes set value_json = '{oops'")
        database.commit()
    line = refused_line(capsys, storage)
    assert f"got {storage!r}, where study 'mine' is damaged" in line
    journal = tmp_path / "journal.log"
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    study = optuna.create_study(storage=optuna.storages.JournalStorage(backend), study_name="mine")
    study.optimize(objective, n_trials=2)
    before = journal.read_bytes()
    assert bounds.main(["--optuna", str(journal), "mine"]) == 0
    assert journal.read_bytes() == before
    capsys.readouterr()
    journal.write_bytes(before[:200] + b"{oops\n" + before[200:])
    assert f"got {str(journal)!r}, where study 'mine' is damaged" in refused_line(
        capsys, str(journal)
    )


@pytest.mark.parametrize(
    "storage",
    [
        "postgresql://me:secret@nowhere.invalid/x",
        "mysql://me:sec/secret@nowhere.invalid/x",
        "nosuch://me:secret@nowhere.invalid/x",
        "me:secret@nowhere.invalid/x",
        "sqlite:////no/such/file?password=secret",
        "://me:secret@",
    ],
)
def test_no_password_is_echoed(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "secret" not in refused_line(capsys, storage)
    with pytest.raises(ValueError, match="optuna must be") as caught:
        integration.cost_of_study(storage, "mine")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(SystemExit):
        bounds.main(["--optunna", storage if "://" in storage else "x"])
    assert "secret" not in capsys.readouterr().err


def objective(trial: Any) -> Any:
    trial.set_user_attr("mu", 0.1)
    return trial.suggest_int("x", 1, 4)


SAMPLERS = optuna.samplers
WAYS = [
    (SAMPLERS.RandomSampler(seed=0), "random"),
    (SAMPLERS.GridSampler({"x": [1, 2, 3, 4]}), "grid"),
    (SAMPLERS.TPESampler(seed=0, n_startup_trials=2), "sequential"),
    (SAMPLERS.NSGAIISampler(seed=0), "sequential"),
]


@pytest.mark.parametrize(("sampler", "way"), WAYS, ids=lambda one: type(one).__name__)
def test_the_protocol_is_derived_from_the_sampler(sampler: Any, way: str) -> None:
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=4)
    assert integration.read_study(study) == ([GaussianMechanism(0.1)] * 4, way)


def test_pruned_trials_make_a_study_sequential() -> None:
    def pruned(trial: Any) -> None:
        objective(trial)
        raise optuna.TrialPruned

    study = optuna.create_study(sampler=SAMPLERS.RandomSampler(seed=0))
    study.optimize(objective, n_trials=2)
    study.optimize(pruned, n_trials=1)
    runs, way = integration.read_study(study)
    assert (len(runs), way) == (3, "sequential")


def test_trials_added_by_hand_make_a_study_sequential() -> None:
    study = optuna.create_study(sampler=SAMPLERS.RandomSampler(seed=0))
    study.optimize(objective, n_trials=1)
    study.enqueue_trial({"x": 4})
    study.optimize(objective, n_trials=1)
    assert integration.read_study(study)[1] == "sequential"


def test_uncertain_facts_of_a_stored_study_increase_its_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(
        storage=storage, study_name="mine", sampler=SAMPLERS.RandomSampler(seed=0)
    )
    study.optimize(objective, n_trials=3)
    assert bounds.main(["--optuna", storage, "mine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] == "unknown sampler"
    assert found["best_only"] == found["all_released"]
    assert "if the sampler was random, pass chosen random" in found["why"]
    assert bounds.main(["--optuna", storage, "mine", "--chosen", "random", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bound"].endswith("fixed:3")
    assert bounds.main(["--optuna", storage, "other"]) == 2
    assert "optuna must name one of the studies mine in" in capsys.readouterr().err
    assert bounds.main(["--optuna", f"sqlite:///{tmp_path}/none.db", "mine"]) == 2
    assert "where there is no file" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


def test_a_study_without_recorded_noise_needs_an_argument() -> None:
    study = optuna.create_study(sampler=SAMPLERS.RandomSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("lr", 0.1, 1.0), n_trials=2)
    with pytest.raises(ValueError, match="trials must have noise_multiplier and steps"):
        integration.cost_of_study(study)
    found = integration.cost_of_study(study, base=GaussianMechanism(0.2))
    assert (found.trials, found.chosen) == (2, "random")


def test_an_objective_runs_unchanged_under_a_private_protocol() -> None:
    numbers, pruned = [], []

    def unchanged(trial: Any) -> Any:
        rate = trial.suggest_float("rate", 0.1, 1.0, log=True)
        width = trial.suggest_categorical("width", [16, 32])
        numbers.append((trial.number, len(trial.study.trials)))
        trial.report(rate, 0)
        pruned.append(trial.should_prune())
        trial.set_user_attr("model", (rate, width))
        return rate

    study = integration.PrivateStudy(
        "fixed:12", "minimize", base=GaussianMechanism(0.5), seed=1, folder=None
    )
    best = study.optimize(unchanged)
    assert set(numbers) == {(0, 1)}  # no run sees another
    assert len(numbers) == 12
    assert not any(pruned)
    assert set(best.candidate) == {"rate", "width"}
    assert best.score == best.candidate["rate"] == best.model[0] < 0.5  # type: ignore[index]
    # Optuna draws the candidates, so another seed gives others.
    seen = [integration.PrivateStudy("fixed:1", base=GaussianMechanism(0.5), folder=None)
            .optimize(unchanged).score for _ in range(3)]  # fmt: skip
    assert len(set(seen)) == 3


def test_an_objective_receives_its_noise() -> None:
    told = {}

    def objective(trial: Any) -> Any:
        told.update(trial.user_attrs)
        return trial.suggest_float("rate", 0.1, 1.0)

    study = integration.PrivateStudy("fixed:1", base=DpSgd(1.5, 20, 0.1), folder=None)
    study.optimize(objective)
    assert told.pop("seed") >= 0
    assert told == {"noise_multiplier": 1.5, "steps": 20, "sampling_rate": 0.1}
    assert study.noise_multiplier == 1.5


def test_protocols_that_need_a_space_are_refused() -> None:
    for protocol in ("grid:3", "adaptive:0.5,2/tnb:1,0.5"):
        with pytest.raises(ValueError, match=r"candidates of grid:3|protocol must draw every"):
            integration.PrivateStudy(protocol, base=GaussianMechanism(0.5), folder=None)


@pytest.mark.slow
def test_trials_of_groups_cost_as_much_as_groups_of_the_same_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("noise_multiplier,sampling_rate,steps\n2,0.01,100\n2,0.01,100\n")
    assert read_trials(path, group_size=3) == [DpSgd(2.0, 100, 0.01, group_size=3)] * 2
    given = ["--trials", str(path), "--chosen", "grid", "--json"]
    costs = []
    for size in ("1", "3"):
        assert bounds.main([*given, "--group-size", size]) == 0
        costs.append(json.loads(capsys.readouterr().out)["best_only"])
    runs = DpSgd(2.0, 100, 0.01, group_size=3)
    assert costs[1] == finished.cost_of_trials([runs, runs], "grid").best_only > costs[0]
    path.write_text("mu\n0.1\n")
    assert bounds.main([*given, "--group-size", "3"]) == 2
    assert "group_size must be 1 for a trial with mu or rho" in capsys.readouterr().err
    path.write_text("mu\n0.5\n")
    assert bounds.main(["--trials", str(path), "--chosen", "grid", "--neighbours", "zero-out"]) == 2
    assert "neighbours must be add-remove for a trial with mu" in capsys.readouterr().err


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
    module, read = importlib.import_module("audit.finished.combined_trials"), []
    parameters = module._parameters
    monkeypatch.setattr(module, "_parameters", lambda run: read.append(run) or parameters(run))
    runs = [GaussianMechanism(float(mu)) for mu in np.geomspace(0.01, 0.011, 3000)]
    merged = module.dominating_few(runs)
    assert len(read) < 4 * len(runs)
    assert set(merged) == set(runs)
    assert len(set(merged.values())) <= module.MAX_KINDS
    assert all(one.mu >= run.mu for run, one in merged.items())


def test_a_meaningless_epsilon_of_all_trials_is_that_of_renyi_divergences() -> None:
    trials = [DpSgd(0.2, 10, 0.5), DpSgd(0.25, 10, 0.5)]
    exact = all_of(trials).epsilon(1e-5)
    found = finished.cost_of_trials(trials, "grid")
    assert exact < found.all_released < 1.1 * exact
    # Full batches are one Gaussian mechanism, whose cost is exact.
    trials = [GaussianMechanism(mu) for mu in (10.0, 20.0)]
    exact = GaussianMechanism(math.hypot(10.0, 20.0)).epsilon(1e-5)
    assert finished.cost_of_trials(trials, "grid").all_released == pytest.approx(exact, rel=1e-9)

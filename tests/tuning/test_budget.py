"""Privacy filters and odometers: budgets that are spent adaptively."""

import functools
import itertools
import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit import finished, tuning
from audit.accounting import (
    ApproximateDp,
    Composition,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    PureDp,
    RenyiCurve,
    ZeroConcentratedDp,
    calibrate_mu,
    renyi_to_epsilon,
)
from audit.accounting.filters import odometer

SAMPLED = DpSgd(2.0, 200, 0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("runs", [1, 3, 7, 100, 99_991])
@pytest.mark.parametrize("epsilon", [0.1, 3.0, 20.0])
def test_equal_gaussian_runs_spend_the_budget_exactly(runs: int, epsilon: float) -> None:
    mu = calibrate_mu(epsilon, 1e-5, "exact") / math.sqrt(runs)
    budget = tuning.Budget(epsilon, 1e-5)
    assert budget.runs_left(GaussianMechanism(mu)) == runs
    budget.spend(GaussianMechanism(mu), runs)
    assert budget.remaining == pytest.approx(0.0, abs=1e-12)
    assert not budget.fits(GaussianMechanism(1e-4))
    # The cap is the cost of one Gaussian run with the whole budget, computed without the filter.
    assert GaussianMechanism(mu * math.sqrt(runs)).epsilon(1e-5) == pytest.approx(epsilon, rel=1e-8)


def test_a_refusal_spends_nothing_and_a_smaller_run_may_still_fit() -> None:
    budget = tuning.Budget(3.0)
    budget.spend(GaussianMechanism(0.5))
    before = budget.remaining, budget.spent
    with pytest.raises(tuning.BudgetExceeded, match="nothing is spent") as caught:
        budget.spend(GaussianMechanism(1.0))
    assert "\n" not in str(caught.value)
    assert (budget.remaining, budget.spent) == before
    budget.spend(GaussianMechanism(0.4))
    assert budget.remaining < before[0]


def most_leaked(mechanisms: Any, epsilon: Any, fits: Any) -> Any:
    """The largest delta of adaptive choices among mechanisms with two outputs, in both directions.

    By backward induction: after each output, the analyst chooses a mechanism that fits the budget,
    or stops. The state is the number of runs and of first outputs of each mechanism.
    """

    def of(direction: Any) -> Any:
        laws = [(one.p, one.q)[::direction] for one in mechanisms]

        @functools.cache
        def value(runs: Any, firsts: Any) -> Any:
            # Probabilities of one history; stopping there contributes [p - e^eps q]_+.
            p, q = (
                math.prod(
                    law[side][0] ** k * law[side][1] ** (n - k)
                    for law, n, k in zip(laws, runs, firsts, strict=True)
                )
                for side in (0, 1)
            )
            best = max(p - math.exp(epsilon) * q, 0.0)
            for kind in range(len(laws)):
                after = tuple(n + (one == kind) for one, n in enumerate(runs))
                if fits(after):
                    more = tuple(n + (one == kind) for one, n in enumerate(firsts))
                    best = max(best, value(after, firsts) + value(after, more))
            return best

        return value((0,) * len(laws), (0,) * len(laws))

    return max(of(1), of(-1))


def test_adaptively_chosen_runs_satisfy_the_renyi_filter() -> None:
    weak = DiscreteMechanism((0.55, 0.45), (0.45, 0.55))
    strong = DiscreteMechanism((0.75, 0.25), (0.25, 0.75))
    epsilon, delta = 1.6, 0.05
    filter_ = tuning.Budget(epsilon, delta, expected=weak)._filter(weak)
    reached = []

    @functools.cache
    def fits(runs: Any) -> Any:
        spent = [(one, n) for one, n in zip((weak, strong), runs, strict=True) if n]
        if fit := filter_.share(spent) <= 1.0:
            reached.append(sum(runs))
        return fit

    assert 0.0 < most_leaked((weak, strong), epsilon, fits) <= delta
    assert max(reached) >= 4  # the filter lets several runs through

    # A control: three times the budget leaks more than delta.
    @functools.cache
    def too_many(runs: Any) -> Any:
        spent = [(one, n) for one, n in zip((weak, strong), runs, strict=True) if n]
        return filter_.share(spent) <= 3.0

    assert most_leaked((weak, strong), epsilon, too_many) > delta


def test_the_filter_is_valid_for_every_order_and_early_end() -> None:
    parts = (
        DiscreteMechanism((0.7, 0.3), (0.4, 0.6), directed=True),
        DiscreteMechanism((0.9, 0.1), (0.6, 0.4), directed=True),
        DiscreteMechanism((0.6, 0.4), (0.5, 0.5), directed=True),
    )
    cap = Composition(parts)
    epsilon = 0.8
    leaked = most_leaked(parts, epsilon, lambda runs: max(runs) <= 1)
    assert leaked == pytest.approx(float(Composition(parts).delta(epsilon)), abs=1e-4)
    budget = tuning.Budget(cap, 0.05)
    for one in reversed(parts):
        budget.spend(one)
    assert budget.remaining == 0.0
    assert not budget.fits(parts[0])


def test_adaptive_gaussian_runs_are_distinguished_no_better_than_the_budget_allows() -> None:
    # Simulation with a known truth: the best test of a filled mu-GDP budget has power
    # 1 - Phi(1.645 - mu) at level 5 %. It spends more after a promising output.
    rng, games, cap = np.random.default_rng(7), 200_000, 1.0
    scores = []
    for shift in (0.0, 1.0):
        left, loss = np.full(games, cap**2), np.zeros(games)
        for _ in range(6):
            share = np.where(loss > 0.0, 0.6, 0.1)
            mu = np.sqrt(share * left)
            seen = rng.normal(shift * mu, 1.0)
            loss += mu * seen - mu**2 / 2.0
            left -= mu**2
        mu = np.sqrt(left)
        loss += mu * rng.normal(shift * mu, 1.0) - mu**2 / 2.0
        scores.append(loss)
    level = np.quantile(scores[0], 0.95)
    # Five standard errors: false alarm 1e-6.
    assert np.mean(scores[1] > level) == pytest.approx(0.2595, abs=5 * 0.0012)


def test_sampled_runs_are_counted_at_the_order_that_allows_the_most_runs() -> None:
    budget = tuning.Budget(3.0, 1e-5)
    left = budget.runs_left(SAMPLED)
    # The papers' accountant chooses the order afterwards, so no filter allows more runs.
    together = [renyi_to_epsilon(lambda a, k=k: k * SAMPLED.renyi(a), 1e-5) for k in
                (left, left + 1)]  # fmt: skip
    assert together[0] <= 3.0 < together[1]
    budget.spend(SAMPLED, left)
    assert not budget.fits(SAMPLED)
    # Later runs may differ: each is counted at the order that is now fixed.
    assert tuning.Budget(3.0, expected=SAMPLED).fits(GaussianMechanism(0.1))


def test_steps_of_one_run_may_be_spent_in_parts() -> None:
    cap = DpSgd(1.0, 1000, 0.01)
    budget = tuning.Budget(cap, 1e-5)
    assert budget.epsilon == pytest.approx(cap.epsilon(1e-5), rel=1e-8)
    assert budget.epsilon >= cap.epsilon(1e-5)
    budget.spend(DpSgd(1.0, 300, 0.01), times=3)
    assert budget.runs_left(DpSgd(1.0, 50, 0.01)) == 2
    with pytest.raises(ValueError, match="mechanism must be a part of the cap"):
        budget.spend(DpSgd(1.1, 10, 0.01))


def test_unsupported_mechanisms_are_refused_in_one_line() -> None:
    budget = tuning.Budget(3.0)
    budget.spend(GaussianMechanism(0.1))
    for wrong, words in (
        (SAMPLED, "for Gaussian and other runs together, pass expected="),
        (0.5, "mechanism must be a mechanism, got 0.5"),
    ):
        with pytest.raises(ValueError, match=words):
            budget.spend(wrong)
    with pytest.raises(ValueError, match="times must be a whole number"):
        budget.spend(GaussianMechanism(0.1), 0)
    budget = tuning.Budget(3.0)
    budget.spend(DpSgd(2.0, 10, 0.1))
    with pytest.raises(ValueError, match="budget must have one neighbouring relation"):
        budget.spend(DpSgd(2.0, 10, 0.1, "replace-one"))
    with pytest.raises(tuning.BudgetExceeded, match="budget must allow one run"):
        tuning.Budget(0.5).spend(DpSgd(0.5, 1000, 0.1))
    with pytest.raises(tuning.BudgetExceeded, match="budget must allow one run"):
        tuning.Budget(3.0).spend(ApproximateDp(0.1, 1e-9))  # no finite divergence
    with pytest.raises(ValueError, match=r"cap must be in \(0, 1e\+06\), got -1"):
        tuning.Budget(-1.0)
    with pytest.raises(ValueError, match="expected must not be given if the cap is a mechanism"):
        tuning.Budget(SAMPLED, expected=SAMPLED)


@pytest.mark.parametrize(
    ("cap", "one"),
    [
        (3.0, GaussianMechanism(0.1)),
        (3.0, SAMPLED),
        (DpSgd(1.0, 1000, 0.01), DpSgd(1.0, 10, 0.01)),
        (Composition((PureDp(0.1),) * 5), PureDp(0.1)),
        (RenyiCurve([2.0, 9.0], [0.1, 0.5]), RenyiCurve([2.0, 9.0], [0.1, 0.5])),
    ],
)  # fmt: skip
def test_a_file_survives_a_kill_and_its_cap_cannot_be_changed(
    tmp_path: Path, cap: Any, one: Any
) -> None:
    file = tmp_path / "budget.json"
    budget = tuning.Budget(cap, file=file)
    before = budget.runs_left(one)
    budget.spend(one)
    again = tuning.Budget(cap, file=file)  # as after a kill: nothing was closed
    assert again.remaining == budget.remaining < 1.0
    assert again.runs_left(one) == before - 1
    # Both budgets use one file.
    if before > 2:
        again.spend(one)
        budget.spend(one)
        assert json.loads(file.read_text())["spent"][0]["times"] == 3
    with pytest.raises(
        ValueError, match=r"cap must be that of the budget in .* cannot be changed later"
    ):
        tuning.Budget(4.0, file=file)
    with pytest.raises(ValueError, match="delta must be that of the budget"):
        tuning.Budget(cap, 1e-6, file=file)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cap": 3.0}', '{"spent": 3}', "\x00"])
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "budget.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="file must hold a budget") as caught:
        tuning.Budget(3.0, file=file)
    assert "\n" not in str(caught.value)
    assert file.read_text() == text


def _spend_twenty(file: Any) -> None:
    budget = tuning.Budget(3.0, file=file)
    for _ in range(20):
        budget.spend(GaussianMechanism(0.01))


def test_processes_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    workers = [
        multiprocessing.get_context("fork").Process(target=_spend_twenty, args=(file,))
        for _ in range(3)
    ]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert tuning.Budget(3.0, file=file).spent == ((GaussianMechanism(0.01), 60),)


def test_an_odometer_is_exceeded_at_most_with_probability_delta() -> None:
    # Gaussian runs, stopped where the loss is largest: of 20,000 tunings a share delta = 0.05 at
    # most. The expected number is at most 1,000; five standard errors are 154.
    rng, delta, tunings = np.random.default_rng(3), 0.05, 20_000
    loss, worst, square = np.zeros(tunings), np.full(tunings, -np.inf), 0.0
    for mu in (0.1, 0.5, 0.5, 1.0, 0.2, 0.2, 1.0, 2.0):
        loss += mu * rng.normal(mu, 1.0, tunings) - mu**2 / 2.0
        square += mu**2
        worst = np.maximum(worst, loss - odometer([GaussianMechanism(math.sqrt(square))], delta))
    exceeded = int(np.sum(worst > 0.0))
    assert 0 < exceeded <= 1000 + 154


def test_an_odometer_reading_equals_the_bound_of_its_supermartingales() -> None:
    # At one order it is the sum of divergences + log(1/delta)/(alpha - 1): 25 orders cost little.
    runs = [LaplaceMechanism(20.0)] * 5 + [GaussianMechanism(0.2)]
    reading = odometer(runs, 1e-5)
    orders = 1.0 + np.geomspace(0.05, 5e4, 25)
    sums = np.sum([one.renyi(orders) for one in runs], axis=0)
    assert np.min(sums + math.log(1e5) / (orders - 1.0)) <= reading
    assert reading <= np.min(sums + math.log(25e5) / (orders - 1.0)) * (1 + 1e-9)
    assert odometer([*runs, *runs], 1e-5) > reading
    assert odometer([ApproximateDp(1.0, 1e-9)]) == math.inf


def test_a_capped_tuning_costs_its_cap_and_no_other_bound_is_valid() -> None:
    trials = [GaussianMechanism(0.1), GaussianMechanism(0.3), GaussianMechanism(0.2)]
    capped = finished.cost_of_trials(trials, "sequential", cap=3.0)
    assert (capped.best_only, capped.all_released, capped.kind) == (3.0, 3.0, "valid")
    assert "Smith & Thakurta" in capped.bound
    adaptive = finished.cost_of_trials(trials, "sequential")
    assert (adaptive.best_only, adaptive.all_released) == (None, None)
    assert adaptive.kind == "odometer reading"
    assert adaptive.odometer == odometer(trials)
    assert not any("valid" in line for line in adaptive.lines)
    assert any("not an (epsilon, delta)-DP guarantee" in line for line in adaptive.lines[:3])
    planned = finished.cost_of_trials(trials, "sequential", budgets="planned")
    assert planned.kind == "valid"
    assert planned.best_only == pytest.approx(GaussianMechanism(math.sqrt(0.14)).epsilon(1e-5))
    assert "fixed beforehand" in planned.assumed
    # Equal budgets are assumed to be planned, unless stated otherwise.
    equal = [GaussianMechanism(0.1)] * 3
    assert finished.cost_of_trials(equal, "sequential").kind == "valid"
    assert finished.cost_of_trials(equal, "sequential", budgets="adaptive").best_only is None


@pytest.mark.parametrize(
    ("trials", "options", "words"),
    [
        ([GaussianMechanism(1.0)] * 3, {"cap": 3.0}, "cap must hold all trials, got 3 that spend"),
        ([SAMPLED] * 200, {"cap": 3.0}, "cap must hold all trials, got 200 that spend"),
        ([SAMPLED], {"cap": -1.0}, "cap must be in"),
        ([SAMPLED], {"cap": 3.0, "budgets": "planned"}, "budgets must not be given with a cap"),
        ([SAMPLED], {"budgets": "plan"}, "budgets must be one of planned, adaptive"),
    ],
)
def test_bad_caps_are_one_line(
    trials: list[DpSgd] | list[GaussianMechanism], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        finished.cost_of_trials(trials, "sequential", **options)
    with pytest.raises(ValueError, match="must be given with chosen sequential only"):
        finished.cost_of_trials(trials, "random", **options)


def test_a_capped_tuning_of_mixed_runs_is_counted_by_its_first() -> None:
    found = finished.cost_of_trials([GaussianMechanism(0.1), SAMPLED], "sequential", cap=3.0)
    assert found.best_only == 3.0
    assert "Renyi" in found.bound
    found = finished.cost_of_trials([ZeroConcentratedDp(0.01)] * 9, "sequential", cap=3.0)
    assert found.best_only == 3.0
    steps = [DpSgd(1.0, n, 0.01) for n in (100, 300, 600)]
    cap = DpSgd(1.0, 1000, 0.01)
    found = finished.cost_of_trials(steps, "sequential", cap=cap)
    assert found.bound == "composition at the cap"
    assert found.best_only == pytest.approx(cap.epsilon(1e-5), rel=1e-8)


def test_a_budget_accepts_every_split_and_no_larger_sum() -> None:
    cap = Composition((PureDp(0.1),) * 2 + (PureDp(0.2),))
    for order in set(itertools.permutations(cap.parts)):
        budget = tuning.Budget(cap, 1e-5)
        for one in order:
            budget.spend(one)
        assert budget.remaining == 0.0
        assert not any(budget.fits(one) for one in order)

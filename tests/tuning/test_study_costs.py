"""The cost of a run: budgets of candidates, and the noise of a score."""

import itertools

import numpy as np
import pytest
from scipy import stats
from study_helpers import BASE, LEVELS, Recorded, played, study

from audit import accounting, protocols, tuning
from audit.errors import InvalidInput
from audit.tuning import study as live
from audit.tuning.plan import Plan
from audit.tuning.space import Space
from audit.upper_bounds import TuningCosts, tuning_cost
from audit.upper_bounds.registry import find


def test_the_study_adds_the_noise_of_a_private_score() -> None:
    private = tuning.Private(noise_std=3.0, sensitivity=1.0)
    plan = Plan(protocols.parse_protocol("fixed:1"), Space.parse(LEVELS), lambda _: BASE, private)
    scores = [played(plan, key, lambda trial: tuning.Outcome(7.0)).score for key in range(300)]
    assert stats.kstest(scores, "norm", (7.0, 3.0)).pvalue > 1e-4
    alone = study(protocol="fixed:1", scored_on=tuning.Private(1.0, 1.0)).base
    assert alone == accounting.WorstOf((BASE, accounting.GaussianMechanism(1.0)))
    shared = study(protocol="fixed:1", scored_on=tuning.Private(1.0, 1.0, disjoint=False)).base
    assert shared.gaussian_mu == pytest.approx(np.hypot(0.5, 1.0))


@pytest.mark.thorough
def test_subset_refuses_a_score_that_reads_its_own_records_in_every_run() -> None:
    spec, training, score = "subset:0.01/tnb:1,0.1", 0.01, 1.0
    # The scored record raises the scores of one of two candidates by 1 and lowers those of the
    # other, in every run. The candidate and the score of the final run reveal it.
    x = np.linspace(-9.0, 10.0, 20_001)
    both = 0.5 * stats.norm.cdf(x - 1.0) + 0.5 * stats.norm.cdf(x + 1.0)
    wins = float(np.trapezoid(0.1 / (1.0 - 0.9 * both) ** 2 * 0.5 * stats.norm.pdf(x - 1.0), x))
    candidate = accounting.DiscreteMechanism([wins, 1.0 - wins], [0.5, 0.5], directed=True)
    final_score = accounting.GaussianMechanism(score)
    attained = accounting.Composition((candidate, final_score)).epsilon(1e-5)
    assert attained == pytest.approx(5.613, abs=1e-3)
    # The bound of a subset does not cover this score, whose records it would subsample.
    base = accounting.WorstOf((accounting.GaussianMechanism(training), final_score))
    assert tuning_cost(base, spec, 1e-5).epsilon < 4.4
    with pytest.raises(InvalidInput, match="is read by every run, which no bound covers"):
        study(protocol=spec, scored_on=tuning.Private(1.0, 1.0))
    shared = tuning.Private(1.0, 1.0, disjoint=False)
    assert study(protocol=spec, scored_on=shared).base.gaussian_mu == np.hypot(0.5, 1.0)


def test_candidates_with_budgets_cost_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "least_noise", lambda *_, **__: 12.0)  # which takes seconds
    space = {"steps": [10, 40], "lr": [0.1, 1.0]}
    mixed = study(space=space, protocol="fixed:1", base=None, epsilon=9.0)
    parts = [accounting.DpSgd(12.0, steps, 1.0, "zero-out") for steps in (10, 40)]
    assert mixed.base == accounting.Mixture(tuple(parts), (0.5, 0.5))
    # One run, released with its budget: the mean of two profiles is the whole cost.
    epsilon = mixed.total_epsilon
    assert np.mean([float(part.delta(epsilon)) for part in parts]) == pytest.approx(1e-5, rel=2e-2)
    assert {mixed.rehearsal().steps for _ in range(30)} == {10, 40}


def test_budgets_are_combined_with_the_noise_of_a_private_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "least_noise", lambda *_, **__: 12.0)  # which takes seconds
    monkeypatch.setattr(TuningCosts, "quick", None)  # which takes seconds
    private = tuning.Private(noise_std=4.0, sensitivity=1.0)
    mixed = study(
        space={"steps": [10, 40]}, protocol="fixed:2", base=None, epsilon=9.0, scored_on=private
    )
    runs = [accounting.DpSgd(12.0, steps, 1.0, "zero-out") for steps in (10, 40)]
    each = [accounting.WorstOf((run, accounting.GaussianMechanism(0.25))) for run in runs]
    assert mixed.base == accounting.Mixture(tuple(each), (0.5, 0.5))


@pytest.mark.thorough
def test_each_candidate_of_a_grid_costs_its_own_budget() -> None:
    space = {"steps": [1, 400], "lr": [0.1, 1.0]}
    grid = study(space=space, protocol="grid:4", base=None, epsilon=2.0)
    each = [
        accounting.DpSgd(grid.noise_multiplier, steps, 1.0, "zero-out")
        for steps in (1, 1, 400, 400)
    ]
    assert grid.base == accounting.Candidates(tuple(each))
    worst = find("composition", protocols.Grid).function(each[-1], "grid:4", 1e-5)
    assert grid.cost.epsilon <= 2.0 < 0.8 * worst.epsilon


def test_many_budgets_are_accounted_for_in_eight_groups_at_their_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "least_noise", lambda *_, **__: 12.0)  # which takes seconds
    monkeypatch.setattr(TuningCosts, "quick", None)  # which takes seconds
    settings = {"base": None, "epsilon": 9.0, "protocol": "tnb:0,0.1"}
    many = study(space={"steps": range(1, 201)}, sampling_rate=0.1, **settings)
    parts = [accounting.DpSgd(12.0, steps, 0.1, "zero-out") for steps in range(25, 201, 25)]
    assert many.base.candidates == tuple(parts)
    assert many.base.chances == pytest.approx((0.125,) * 8)
    assert many.rehearsal().steps <= 200
    assert len({many.rehearsal().steps for _ in range(40)}) > 8  # a run has its own budget
    # Each budget is in the group of one at least as large, also with two rates and repetitions.
    space = {"steps": [1, 1, 1, 1, 5, 6, 7, 8, 9], "sampling_rate": [0.1, 0.2]}
    mixed = study(space=space, **settings)
    chances = dict(zip(mixed.base.candidates, mixed.base.chances, strict=True))
    assert sum(chances.values()) == pytest.approx(1.0)
    for steps, rate in itertools.product(space["steps"], space["sampling_rate"]):  # type: ignore[call-overload]
        above = [
            c for one, c in chances.items() if one.steps >= steps and one.sampling_rate >= rate
        ]
        least = np.mean([s >= steps and r >= rate for s in space["steps"] for r in (0.1, 0.2)])
        assert sum(above) >= least - 1e-12
    with pytest.raises(ValueError, match="steps must be"):
        study(space={"steps": list(range(-3, 9))}, **settings)


@pytest.mark.slow
def test_a_group_of_records_costs_the_mixture_over_their_number_in_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "least_noise", lambda *_, **__: 4.0)  # which takes seconds
    settings = {"base": None, "epsilon": 50.0, "protocol": "fixed:1", "steps": 1, "group_size": 3}
    full = study(**settings)
    assert full.base.gaussian_mu == pytest.approx(3 / 4)
    sampled = study(sampling_rate=0.3, **settings)
    assert sampled.base == accounting.DpSgd(4.0, 1, 0.3, "zero-out", 3)
    # One step: N(0, 4) against the mixture of N(j, 4), where j of the 3 records are in the batch.
    grid = np.linspace(-60.0, 60.0, 400_001)
    mixture = stats.binom.pmf(np.arange(4), 3, 0.3) @ stats.norm.pdf(
        grid, np.arange(4)[:, None], 4.0
    )
    alone = stats.norm.pdf(grid, 0.0, 4.0)
    for epsilon in (0.05, 0.2):
        sides = (mixture - np.exp(epsilon) * alone, alone - np.exp(epsilon) * mixture)
        exact = max(np.maximum(side, 0.0).sum() for side in sides) * (grid[1] - grid[0])
        assert float(sampled.base.delta(epsilon)) == pytest.approx(exact, rel=1e-4)
    best = full.run(lambda trial: tuning.Outcome(1.0))
    assert best.candidate
    assert full.certificate.setting.unit.startswith("up to 3 of")
    with pytest.raises(ValueError, match="group_size must not be given with base"):
        study(group_size=2)
    with pytest.raises(ValueError, match="group_size must be a whole number"):
        study(**settings | {"group_size": 0})


def test_the_history_of_opacus_may_protect_groups() -> None:
    recorded = accounting.from_opacus(Recorded((4.0, 0.3, 1)), group_size=3)
    assert recorded == accounting.DpSgd(4.0, 1, 0.3, "zero-out", 3)


def test_adaptive_budgets_are_drawn_and_their_composition_is_that_of_the_worst() -> None:
    quiet, loud = accounting.DpSgd(50.0, 1), accounting.DpSgd(1.0, 1)
    drawn = accounting.Mixture((quiet, loud), (0.5, 0.5))
    # With densities up to twice the prior, every run may be the least private one.
    for bound in ("composition", "hypo"):
        function = find(bound, protocols.Adaptive).function
        protocol = protocols.parse_protocol("adaptive:0.01,2/tnb:1,0.5")
        worst = function(loud, protocol, 1e-5).epsilon
        assert worst <= function(drawn, protocol, 1e-5).epsilon * (1 + 1e-9) <= worst * (1 + 2e-6)

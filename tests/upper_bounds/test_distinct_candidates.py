"""A random number of distinct candidates: the bound, against all orders of small cases."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

import audit
from audit import protocols, tuning, upper_bounds
from audit.accounting import Candidates, DiscreteMechanism, DpSgd, GaussianMechanism
from audit.protocols import DistinctCandidates
from audit.repetitions import parse_repetitions
from audit.upper_bounds.grid import GridCurve
from audit.upper_bounds.registry import find


def bound(base: Any, spec: str, delta: float) -> float:
    return find("grid-mixture", DistinctCandidates).function(base, spec, delta).epsilon


def largest_delta(base: Any, law: Any, candidates: int, epsilon: float) -> float:
    """The largest delta over all orders of pairs of candidate and output, by enumeration."""
    p, q = (np.asarray(getattr(base, name)) for name in "pq")
    outputs = len(p)
    pairs = list(itertools.product(range(candidates), range(outputs)))
    chances = law.pmf(np.arange(60))
    number = [float(chances[k]) for k in range(candidates)]
    number.append(1.0 - sum(number))
    worst = 0.0
    for order in itertools.permutations(range(len(pairs))):
        released = np.zeros((2, len(pairs)))
        for k, chance in enumerate(number):
            for chosen in itertools.combinations(range(candidates), k):
                weight = chance / math.comb(candidates, k)
                for results in itertools.product(range(outputs), repeat=k):
                    if not k:
                        continue
                    trained = [pairs.index(pair) for pair in zip(chosen, results, strict=True)]
                    winner = max(trained, key=order.index)
                    for side, distribution in enumerate((p, q)):
                        released[side, winner] += weight * np.prod(distribution[list(results)])
        for x, y in (released, released[::-1]):
            worst = max(worst, float(np.maximum(x - math.exp(epsilon) * y, 0.0).sum()))
    return worst


@pytest.mark.thorough
@pytest.mark.parametrize("law", ["fixed:2", "poisson:1.5", "tnb:1,0.5"])
def test_no_order_leaks_more_than_the_bound(law: str) -> None:
    base = DiscreteMechanism((0.7, 0.3), (0.4, 0.6), directed=True)
    found = bound(base, f"distinct:3/{law}", 0.05)
    exact = largest_delta(base, parse_repetitions(law), 3, found)
    assert exact <= 0.05
    # At a smaller epsilon, some order leaks more: the test can fail.
    assert largest_delta(base, parse_repetitions(law), 3, 0.65 * found) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("base", [GaussianMechanism(0.25), DpSgd(1.1, 200, 0.02)])
def test_a_fixed_number_is_a_grid(base: Any) -> None:
    grid = find("grid", protocols.Grid).function(base, "grid:5", 1e-5).epsilon
    for spec in ("distinct:5/fixed:5", "distinct:5/fixed:9", "distinct:1000/fixed:5"):
        assert bound(base, spec, 1e-5) == pytest.approx(grid, rel=2e-3)


def tight_bound(base: Any, spec: str, delta: float) -> float:
    return find("grid-mixture-tight", DistinctCandidates).function(base, spec, delta).epsilon


@pytest.mark.slow
def test_on_a_gaussian_base_a_fixed_number_costs_as_much_as_so_many_draws() -> None:
    base = GaussianMechanism(0.25)
    draws = find("tight").function(base, "fixed:5", 1e-5).epsilon
    for spec in ("distinct:5/fixed:5", "distinct:5/fixed:9", "distinct:1000/fixed:5"):
        assert tight_bound(base, spec, 1e-5) == pytest.approx(draws, rel=2e-3)
    # 3.048 by proposition 3 alone.
    found = upper_bounds.tuning_cost(base, "distinct:10/fixed:10", 1e-5)
    assert found.epsilon == pytest.approx(2.763, abs=2e-3)


@pytest.mark.thin(6)
@pytest.mark.parametrize(("mu", "delta"), [(0.25, 0.05), (1.0, 1e-6)])
@pytest.mark.parametrize("law", ["binomial:2,0.7", "binomial:5,0.6", "fixed:4"])
def test_the_tight_mixture_is_between_an_attack_and_the_mixture_of_grids(
    law: str, delta: float, mu: float
) -> None:
    # With at most m runs, equal candidates are as many draws of one distribution, which an order
    # of outputs attacks.
    base, runs = GaussianMechanism(mu), int(law.split(":")[1].split(",")[0])
    attained = upper_bounds.worst_order(base, law, delta).epsilon
    found = tight_bound(base, f"distinct:{runs}/{law}", delta)
    # The curves of one and two runs are coarser than those of the mixture of grids.
    assert attained <= found <= 1.002 * bound(base, f"distinct:{runs}/{law}", delta)
    # For a random number the mean uses the worst order of each number, so the gap is larger.
    assert not law.startswith("fixed") or found <= 1.003 * attained
    # Other deltas use fewer events, and are not smaller.
    other = find("grid-mixture-tight", DistinctCandidates).at_other_delta
    assert other is not None
    spec = protocols.parse_protocol(f"distinct:{runs}/{law}")
    assert found <= other(base, spec, delta, delta).epsilon * (1 + 1e-9) <= 1.05 * found


def test_the_tight_mixture_needs_one_gaussian_base() -> None:
    for base in (DpSgd(1.1, 200, 0.02), DiscreteMechanism((0.7, 0.3), (0.4, 0.6))):
        with pytest.raises(audit.AuditError, match="the base must be Gaussian"):
            find("grid-mixture-tight", DistinctCandidates).body(
                base, protocols.parse_protocol("distinct:3/fixed:2"), 1e-5
            )
    assert tight_bound(GaussianMechanism(1.0), "distinct:9/poisson:1e-7", 1e-5) == 0.0


@pytest.mark.thorough
def test_the_bound_grows_with_the_list_up_to_random_lists() -> None:
    base = GaussianMechanism(0.25)
    costs = [bound(base, f"distinct:{m}/poisson:5", 1e-5) for m in (1, 3, 10, 30)]
    assert costs == sorted(costs)
    assert costs[0] <= base.epsilon(1e-5) * 1.0001
    whole = find("grid", protocols.Grid).function(base, "grid:30", 1e-5).epsilon
    assert costs[-1] < whole


def test_almost_no_run_costs_nothing_and_different_candidates_are_refused() -> None:
    assert bound(GaussianMechanism(1.0), "distinct:9/poisson:1e-7", 1e-5) == 0.0
    with pytest.raises(audit.AuditError, match="candidates must have one base"):
        upper_bounds.tuning_cost(
            Candidates((GaussianMechanism(0.1), GaussianMechanism(0.2))),
            "distinct:2/fixed:1",
            1e-5,
        )


@pytest.mark.thorough
def test_the_protocol_is_parsed_and_described() -> None:
    found = protocols.parse_protocol("distinct:20/poisson:5")
    assert found == DistinctCandidates("poisson:5", 20)
    assert protocols.parse_protocol(found.spec) == found
    exact = sum(min(k, 4) * parse_repetitions("poisson:5").pmf(k) for k in range(80))
    assert DistinctCandidates("poisson:5", 4).mean_runs == pytest.approx(float(exact))
    statement = str(audit.tuning_cost(GaussianMechanism(0.2), "distinct:4/poisson:2", delta=1e-5))
    assert "min(K, m) distinct candidates of a fixed list of m" in statement
    with pytest.raises(ValueError, match="it may mean 1 or 1000"):
        protocols.parse_protocol("distinct:1.000/poisson:5")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no candidate was chosen")  # K may be 0
def test_a_study_trains_distinct_candidates() -> None:
    counts: dict[int, int] = {}
    for seed in range(60):
        trained: list[int] = []

        def train(trial: Any, trained: list[int] = trained) -> Any:
            trained.append(trial.candidate["width"])
            return tuning.Outcome(float(trial.candidate["width"]))

        study = tuning.Study(
            {"width": list(range(6))},
            "distinct:6/poisson:3",
            base=GaussianMechanism(0.3),
            folder=None,
            seed=seed,
        )
        study.run(train)
        assert len(set(trained)) == len(trained) <= 6
        counts[len(trained)] = counts.get(len(trained), 0) + 1
    # Poisson with mean 3: each of 1 to 5 runs has probability 0.10 to 0.22, so that 60 studies
    # miss one of these numbers with probability below 5 * 0.9**60 = 0.009. The seeds are fixed.
    assert {1, 2, 3, 4, 5} <= counts.keys()


def test_a_study_needs_the_whole_list() -> None:
    with pytest.raises(ValueError, match="space must have the 5 candidates of distinct:5"):
        tuning.Study(
            {"width": [1, 2]}, "distinct:5/poisson:3", base=GaussianMechanism(0.3), folder=None
        )


@pytest.mark.parametrize("count", [2, 50])
def test_the_last_event_of_a_grid_is_the_last_one_above_its_limit(count: int) -> None:
    # h(1-s) falls with t: it is below the limit at the next float.
    for pair in DpSgd(1.0, 500, 0.01).pairs:
        curve = GridCurve((pair,), (count,), 1.0, 1e-8)
        (end,) = curve._ends
        if end == pair.event_range[1]:
            continue
        t = np.array([end, np.nextafter(end, np.inf)])
        (left, left_with) = np.stack(pair.events(t))
        usable = (left >= np.log(curve.least)) & (left_with > -np.inf)
        assert usable.tolist() == [True, False]

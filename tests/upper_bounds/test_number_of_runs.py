"""The probability of many runs, and compositions of a random number of runs at tiny deltas."""

import numpy as np
import pytest
from scipy import stats

import audit
from audit.accounting import GaussianMechanism, Mechanism, PureDp, solve_epsilon
from audit.repetitions import parse_repetitions
from audit.upper_bounds import AllRuns
from audit.upper_bounds.composed import probability_of_more


@pytest.mark.parametrize(
    ("repetitions", "most", "exact"),
    [
        ("fixed:7", 7, 0.0),
        ("binomial:20,0.5", 20, 0.0),
        ("two-point:0.3,12", 12, 0.0),
        ("tnb:0,0.01@50", 50, 0.0),
        ("poisson:3", 40, float(stats.poisson(3.0).sf(40))),
        ("geometric:0.2", 200, 0.8**200),
        ("tnb:0,0.5", 80, float(np.sum(0.5 ** np.arange(81, 400) / np.arange(81, 400)))),
    ],
)
def test_the_tail_keeps_its_digits(repetitions: str, most: int, exact: float) -> None:
    if repetitions == "tnb:0,0.5":
        exact /= np.log(2.0)
    found = probability_of_more(parse_repetitions(repetitions), most)
    assert exact <= found <= 1.1 * exact
    earlier = probability_of_more(parse_repetitions(repetitions), 2)
    assert earlier >= 1.0 - float(parse_repetitions(repetitions).pmf(np.arange(3)).sum()) - 1e-12


@pytest.mark.thin(3, otherwise="thorough")
@pytest.mark.parametrize("repetitions", ["binomial:6,0.5", "poisson:2", "geometric:0.5"])
def test_compositions_at_tiny_deltas(repetitions: str) -> None:
    base, law = GaussianMechanism(0.5), parse_repetitions(repetitions)
    k = np.arange(1, 200)
    chances = law.pmf(k)

    def exact(epsilon: float) -> float:
        deltas = [float(GaussianMechanism(0.5 * np.sqrt(one)).delta(epsilon)) for one in k]
        return float(chances @ deltas)

    for delta in (1e-10, 1e-18, 1e-25):
        least = solve_epsilon(exact, delta)
        found = AllRuns(base, law, 1e-3 * delta).epsilon(delta)
        assert least * (1.0 - 1e-6) <= found <= 1.02 * least
    best = audit.tuning_cost(base, f"best:2/{repetitions}", 1e-20).epsilon
    assert best < AllRuns(base, law, 1e-23).epsilon(1e-20) * (1.0 + 1e-6)


@pytest.mark.parametrize("base", [GaussianMechanism(0.2), PureDp(0.1)])
def test_few_compositions_decide_whether_all_runs_cost_more(base: Mechanism) -> None:
    runs = AllRuns(base, parse_repetitions("tnb:1,0.1"), 1e-8)
    epsilon = runs.epsilon(1e-5)
    assert runs.exceeds(0.99 * epsilon, 1e-5)
    assert not runs.exceeds(epsilon, 1e-5)

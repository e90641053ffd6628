"""The number of the winning run must stay secret: it leaks more than the bound of the winner."""

import math

import numpy as np
from scipy import special

import audit
from audit.repetitions import parse_repetitions

MU, PROTOCOL, DELTA = 0.24721, "tnb:0,0.01", 1e-5
# Outputs above FRONT are preferred to all others, then outputs below BACK of runs from FIRST on.
FRONT, BACK, FIRST = 1.85, -1.5, 150


def probability_of_the_event(mu: float, runs: np.ndarray, chances: np.ndarray) -> float:
    """Probability that a run from number FIRST on wins with an output below BACK."""
    front, back = special.ndtr(mu - FRONT), special.ndtr(BACK - mu)
    late = np.maximum(runs - FIRST + 1, 0)
    early = np.minimum(runs, FIRST - 1)
    return float(
        chances @ ((1.0 - front) ** early * ((1.0 - front) ** late - (1.0 - front - back) ** late))
    )


def simulated(mu: float, trials: int) -> float:
    """The same by playing the game."""
    rng = np.random.default_rng(5)
    repetitions = parse_repetitions(PROTOCOL)
    numbers = np.arange(1, 2000)
    chances = repetitions.pmf(numbers)
    won = 0
    for k in rng.choice(numbers, trials, p=chances / chances.sum()):
        x = rng.normal(mu, 1.0, k)
        late = np.arange(1, k + 1) >= FIRST
        won += bool(not np.any(x > FRONT) and np.any(late & (x < BACK)))
    return won / trials


def test_the_number_of_the_winning_run_leaks_more_than_the_bound() -> None:
    runs = np.arange(1, 20_000)
    chances = parse_repetitions(PROTOCOL).pmf(runs)
    without, with_record = (probability_of_the_event(mu, runs, chances) for mu in (0.0, MU))
    attained = math.log((without - DELTA) / with_record)
    assert 3.93 < attained < 3.94
    assert audit.tuning_cost(audit.GaussianMechanism(MU), PROTOCOL, DELTA).epsilon < 1.45


def test_the_formula_agrees_with_a_simulation() -> None:
    # At mu = -1 the event is frequent enough to be counted.
    runs = np.arange(1, 2000)
    chances = parse_repetitions(PROTOCOL).pmf(runs)
    exact = probability_of_the_event(-1.0, runs, chances / chances.sum())
    error = math.sqrt(exact / 20_000)
    assert abs(simulated(-1.0, 20_000) - exact) < 5.0 * error

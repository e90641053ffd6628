"""Schedules until a model is accepted: small cases by brute force, explicit rules, and limits."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from audit.accounting import Composition, GaussianMechanism
from audit.accounting.pairs import DiscretePair, gaussian_profile
from audit.errors import InvalidInput
from audit.upper_bounds.until_accepted import (
    _smallest_epsilon,
    gaussian_schedule,
    gaussian_schedule_ex_post,
)

DELTA = 1e-5


def brute_force(steps: Any, epsilon: Any, *, only_last: Any) -> Any:
    """The largest P(E) - e^epsilon Q(E) over all sets of accepted outputs and all events E."""
    outputs = len(steps[0][0])
    sets = [np.array(one, dtype=bool) for one in itertools.product((0, 1), repeat=outputs)]
    best = 0.0
    for rules in itertools.product(sets, repeat=len(steps)):
        p = q = 1.0
        value = 0.0
        for last, ((p_step, q_step), accepted) in enumerate(
            zip(steps, rules, strict=True), start=1 - len(steps)
        ):
            losses = np.maximum(p * p_step - np.exp(epsilon) * q * q_step, 0.0)
            if last == 0 or not only_last:
                value += losses[accepted].sum()
            p, q = p * p_step[~accepted].sum(), q * q_step[~accepted].sum()
        best = max(best, value)
    return best


@pytest.mark.thorough
@pytest.mark.parametrize("only_last", [False, True])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_no_rule_of_small_cases_exceeds_the_cost_and_one_attains_it(
    seed: int, epsilon: float, only_last: bool
) -> None:
    rng = np.random.default_rng(seed)
    laws = [np.sort(rng.dirichlet(np.full(4, 3.0))) for _ in range(3)]
    steps = [(law, law[::-1]) for law in laws]  # a pair and its mirror image are equally private
    pairs = [DiscretePair(*step) for step in steps]
    reach = sum(float(np.log(law[-1] / law[0])) for law in laws)
    delta = brute_force(steps, epsilon, only_last=only_last)
    p, q = (functools.reduce(np.multiply.outer, side).ravel() for side in zip(*steps, strict=True))
    assert delta < 0.999 * np.maximum(p - np.exp(epsilon) * q, 0.0).sum()  # composition
    found = _smallest_epsilon(pairs, reach, delta, released=not only_last)
    assert epsilon * (1.0 - 1e-9) <= found <= epsilon + 1e-5


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("steps", "value"),
    [((0.25, 0.5, 1.0), 4.83823), ((0.5, 0.5), 2.79932), ((0.1,) * 20, 1.16301)],
)
def test_known_values(steps: Any, value: float) -> None:
    assert gaussian_schedule(steps, DELTA) == pytest.approx(value, abs=2e-5)


def test_an_interval_of_rejected_outputs_attains_the_cost_of_two_steps() -> None:
    mu, epsilon = 0.5, gaussian_schedule((0.5, 0.5), DELTA)

    def leaked(eps: Any) -> Any:
        # Rejects low < y < high; an accepted y counts if its likelihood ratio exceeds e^eps.
        low, high = np.linspace(2.5, 3.3, 161)[:, None], np.linspace(5.0, 6.5, 301)
        counts = np.maximum(np.stack(np.broadcast_arrays(low, high)), eps / mu + mu / 2.0)
        gains = ndtr(mu - counts) - np.exp(eps) * ndtr(-counts)
        accepted = gaussian_profile(eps, mu) - gains[0] + gains[1]
        p, q = ndtr(mu - low) - ndtr(mu - high), ndtr(-low) - ndtr(-high)
        return (accepted + p * gaussian_profile(eps + np.log(q / p), mu)).max()

    assert leaked(epsilon) <= DELTA
    assert leaked(epsilon * (1.0 - 1e-5)) > DELTA


def test_half_lines_attain_the_ex_post_cost() -> None:
    steps, share = (0.25, 0.5, 1.0), DELTA / 3
    epsilon = gaussian_schedule_ex_post(steps, DELTA)[-1]
    first, second = np.linspace(-0.5, 0.3, 81)[:, None], np.linspace(1.3, 2.0, 71)

    def leaked(eps: Any) -> Any:
        log_p = log_ndtr(0.25 - first) + log_ndtr(0.5 - second)
        log_q = log_ndtr(-first) + log_ndtr(-second)
        return (np.exp(log_p) * gaussian_profile(eps + log_q - log_p, 1.0)).max()

    assert leaked(epsilon) <= share
    assert leaked(epsilon * (1.0 - 1e-5)) > share


@pytest.mark.parametrize("mu", [1e-3, 0.3, 5.0])
def test_one_step_costs_one_run(mu: float) -> None:
    one = GaussianMechanism(mu).epsilon(DELTA)
    assert gaussian_schedule([mu], DELTA) == pytest.approx(one, rel=1e-7)
    assert gaussian_schedule_ex_post([mu], DELTA) == pytest.approx((one,), rel=1e-7)


def test_a_negligible_step_adds_almost_nothing() -> None:
    one = GaussianMechanism(1.0).epsilon(DELTA)
    for steps in ((1.0, 1e-3), (1e-3, 1.0)):
        assert one <= gaussian_schedule(steps, DELTA) <= one + 2e-3


@pytest.mark.parametrize("steps", [(2.0, 0.1, 1.0), (0.3, 0.3, 0.3, 0.3), (4.0, 2.0), (0.1, 0.2)])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2])
def test_the_cost_lies_between_the_largest_step_and_the_composition(
    steps: Any, delta: float
) -> None:
    together = Composition([GaussianMechanism(mu) for mu in steps]).epsilon(delta)
    most = max(GaussianMechanism(mu).epsilon(delta) for mu in steps)
    assert most < gaussian_schedule(steps, delta) < together


def test_the_first_ex_post_cost_is_that_of_one_run_with_its_share_of_delta() -> None:
    costs = gaussian_schedule_ex_post((0.25, 0.5, 1.0), DELTA)
    assert costs[0] == pytest.approx(GaussianMechanism(0.25).epsilon(DELTA / 3), rel=1e-7)
    assert costs[-1] > GaussianMechanism(1.0).epsilon(DELTA / 3)


@pytest.mark.parametrize(
    ("steps", "delta", "message"),
    [
        ((), 1e-5, "steps must contain at least one mu"),
        ((1.0, 0.0), 1e-5, "mu of steps must be in"),
        ((20.0, 20.0), 1e-5, "sum of mu"),
        ((1.0,), 1.0, "delta must be in"),
    ],
)
def test_bad_input_is_refused(steps: Any, delta: float, message: str) -> None:
    for function in (gaussian_schedule, gaussian_schedule_ex_post):
        with pytest.raises(InvalidInput, match=message):
            function(steps, delta)

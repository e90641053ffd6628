"""The cost for k records of one person."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as distributions
from scipy import integrate, special, stats

from audit import accounting, tuning, upper_bounds
from audit.accounting import Composition, DpSgd, GaussianMechanism


@pytest.mark.parametrize(("relation", "distance"), [("add-remove", 3), ("replace-one", 6)])
def test_a_group_of_k_multiplies_mu_of_full_batches_by_k(relation: str, distance: int) -> None:
    group = DpSgd(20.0, 100, 1.0, relation, group_size=3)
    assert group.gaussian_mu == pytest.approx(distance * 10 / 20)
    assert group.epsilon(1e-5) == GaussianMechanism(distance * 10 / 20).epsilon(1e-5)
    assert "groups of 3 records, " + relation in group.description


def log_densities(sigma: Any, rate: Any, size: Any, x: Any) -> Any:
    """Log densities of one step, with the group and without it."""
    with_group = np.full_like(x, -np.inf)
    for j in range(size + 1):
        chance = stats.binom.logpmf(j, size, rate)
        with_group = np.logaddexp(with_group, chance + stats.norm.logpdf(x, j, sigma))
    return with_group, stats.norm.logpdf(x, 0, sigma)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "rate", "size"), [(0.8, 0.1, 2), (2.0, 0.3, 5), (4.0, 0.02, 10)])
def test_one_sampled_step_equals_integration(sigma: float, rate: float, size: int) -> None:
    # The integrand of order 6 has its peak at up to 6 times the largest shift.
    x, step = np.linspace(-12 * sigma, 12 * sigma + 6 * size, 100_001, retstep=True)
    pair = log_densities(sigma, rate, size, x)
    base = DpSgd(sigma, 1, rate, group_size=size)
    for epsilon in (0.0, 0.2, 1.0, 2.5):
        exact = max(
            integrate.trapezoid(np.maximum(np.exp(p) - np.exp(epsilon + q), 0), x)
            for p, q in (pair, pair[::-1])
        )
        assert float(base.delta(epsilon)) == pytest.approx(exact, rel=2e-5, abs=1e-12)
    for alpha in (1.1, 2.0, 6.0):
        exact = max(
            float(special.logsumexp(alpha * p + (1 - alpha) * q)) + math.log(step)
            for p, q in (pair, pair[::-1])
        ) / (alpha - 1)
        assert base.renyi(np.array([alpha]))[0] == pytest.approx(exact, rel=1e-6)


@pytest.mark.slow
def test_many_steps_agree_with_another_library() -> None:
    sigma, rate, size, steps = 1.5, 0.05, 4, 40
    j = np.arange(size + 1)
    theirs = distributions.from_mixture_gaussian_mechanism(
        sigma,
        j.tolist(),
        stats.binom.pmf(j, size, rate).tolist(),
        value_discretization_interval=5e-4,
    ).self_compose(steps)
    ours = DpSgd(sigma, steps, rate, group_size=size)
    for delta in (1e-3, 1e-5):
        # The other library rounds every loss up.
        bound = theirs.get_epsilon_for_delta(delta)
        assert bound - 5e-4 * steps <= ours.epsilon(delta) <= bound + 1e-6
        assert ours.epsilon(delta) <= ours.renyi_epsilon(delta)


@pytest.mark.slow
def test_group_cost_is_between_smaller_groups_and_full_participation() -> None:
    def epsilon(size: Any, rate: Any = 0.05) -> Any:
        return DpSgd(3.0, 50, rate, "zero-out", size).epsilon(1e-5)

    costs = [epsilon(size) for size in (1, 2, 4)]
    assert (np.diff(costs) > 0).all()
    assert costs[0] == DpSgd(3.0, 50, 0.05).epsilon(1e-5)
    assert epsilon(3, 1 - 1e-12) == pytest.approx(epsilon(3, 1.0), rel=2e-4)
    one, three = (
        upper_bounds.region(DpSgd(3.0, 50, 0.05, group_size=k), "fixed:3", 1e-5).epsilon
        for k in (1, 3)
    )
    assert 2 * one < three


def test_gradients_in_different_directions_reveal_less() -> None:
    # Two records with gradients of length 1 at an angle; each is in the batch by its own coin.
    sigma, rate = 0.9, 0.3
    side = np.linspace(-7.0, 8.0, 501)
    x, y = np.meshgrid(side, side)
    base = DpSgd(sigma, 1, rate, group_size=2)
    rest = stats.norm.pdf(x, 0, sigma) * stats.norm.pdf(y, 0, sigma)
    for angle in (0.3, 1.5, math.pi):
        u = (1.0, 0.0), (math.cos(angle), math.sin(angle))
        moved = sum(
            chance * stats.norm.pdf(x, at[0], sigma) * stats.norm.pdf(y, at[1], sigma)
            for chance, at in (
                ((1 - rate) ** 2, (0.0, 0.0)),
                (rate * (1 - rate), u[0]),
                (rate * (1 - rate), u[1]),
                (rate**2, (u[0][0] + u[1][0], u[0][1] + u[1][1])),
            )
        )
        for epsilon in (0.0, 0.5, 1.5):
            for p, q in ((moved, rest), (rest, moved)):
                delta = np.maximum(p - math.exp(epsilon) * q, 0).sum() * (side[1] - side[0]) ** 2
                assert delta <= float(base.delta(epsilon)) + 1e-6


@pytest.mark.slow
def test_noise_can_be_solved_for_a_group() -> None:
    target = {"target_epsilon": 3.0, "target_delta": 1e-5, "steps": 50}
    found = upper_bounds.calibrate_noise("fixed:4", **target, group_size=5)
    assert found == pytest.approx(5 * upper_bounds.calibrate_noise("fixed:4", **target), rel=1e-5)
    sampled = upper_bounds.calibrate_noise("fixed:4", **target, sampling_rate=0.2, group_size=5)
    base = DpSgd(sampled, 50, 0.2, group_size=5)
    cost = upper_bounds.tuning_cost(base, "fixed:4", 1e-5).epsilon
    assert 2.999 < cost <= 3.0


@pytest.mark.slow
def test_groups_in_files_and_certificates() -> None:
    base = DpSgd(30.0, 20, 1.0, "zero-out", 3)
    assert accounting.mechanism_from_dict(accounting.mechanism_to_dict(base)) == base
    assert "group_size" not in accounting.mechanism_to_dict(DpSgd(30.0, 20))
    assert accounting.group_size(Composition((base, GaussianMechanism(1.0)))) == 3
    with pytest.raises(ValueError, match=r"group_size must be the same in all parts .* got 1, 3"):
        accounting.group_size(Composition((base, DpSgd(30.0, 20))))
    study = tuning.Study({"lr": [1]}, "fixed:2", base=base, folder=None)
    study.run(lambda trial: tuning.Outcome(1.0))
    setting = study.certificate.setting
    assert setting.unit == "up to 3 of: one record"
    assert "the gradients of up to 3 records of one person are zero" in setting.neighbours


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DpSgd(1.0, 10, 0.5, group_size=0), "group_size must be a whole number in"),
        (lambda: DpSgd(1.0, 10, 0.5, "replace-one", 2), "group_size must be 1 with replace-one"),
        (lambda: DpSgd(0.1, 10, 0.5, group_size=20), "group_size / noise_multiplier must be in"),
        (
            lambda: upper_bounds.tuning_cost(
                DpSgd(9.0, 9, group_size=2), "subset:0.1/fixed:2", 1e-5
            ),
            "groups must be of one record",
        ),
    ],
)
def test_unsupported_groups_are_refused(make: Callable[..., Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()

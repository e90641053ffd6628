"""Events of dp-accounting are converted to equal mechanisms."""

from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event, pld
from dp_accounting.pld import privacy_loss_distribution as distributions

from audit import accounting, upper_bounds

DELTA = 1e-5


def test_a_composed_event_is_accounted_for_as_by_their_accountant() -> None:
    sampled = dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.2))
    event = dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(sampled, 200),
            dp_event.NoOpDpEvent(),
            dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(20.0), 3),
            dp_event.LaplaceDpEvent(8.0),
        ]
    )
    theirs = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    theirs.compose(event)
    ours = accounting.from_event(event)
    # Theirs rounds every loss up by at most 1e-3 on a grid, with standard deviation after 204 sums.
    assert ours.epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=5e-3)
    assert ours.epsilon(DELTA) <= theirs.get_epsilon(DELTA) + 1e-9


def test_all_parts_of_a_sampled_event_use_one_sample() -> None:
    inner = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(2.0), 4)
    found = accounting.from_event(dp_event.PoissonSampledDpEvent(0.1, inner))
    assert found == accounting.DpSgd(1.0, 1, 0.1)


def test_randomised_response_and_zcdp() -> None:
    found = accounting.from_event(dp_event.RandomizedResponseDpEvent(0.5, 4))
    # The true answer with probability 1/2 + 1/8, any other answer 1/8: a ratio of 5.
    assert found.pure_epsilon == pytest.approx(np.log(5.0))
    assert accounting.from_event(dp_event.ZCDpEvent(0.1)) == accounting.ZeroConcentratedDp(0.1)


@pytest.mark.thorough
def test_a_loss_distribution_in_both_directions() -> None:
    theirs = distributions.from_gaussian_mechanism(
        1.0, sampling_prob=0.05, value_discretization_interval=2e-3
    ).self_compose(30)
    ours, exact = accounting.from_event(theirs), accounting.DpSgd(1.0, 30, 0.05)
    assert len(ours.pairs) == 2
    assert ours.epsilon(DELTA) == pytest.approx(theirs.get_epsilon_for_delta(DELTA), abs=1e-6)
    # Both directions are stored, so the best of many costs as much as with the exact mechanism; it
    # would cost 4 % more if only the profile were known.
    law = "tnb:0,0.01"
    cost, truth = (upper_bounds.region(base, law, DELTA).epsilon for base in (ours, exact))
    assert truth <= cost <= 1.005 * truth
    again = accounting.mechanism_from_dict(accounting.mechanism_to_dict(ours))
    assert again.epsilon(DELTA) == ours.epsilon(DELTA)
    twice = accounting.Composition((ours, ours)).epsilon(DELTA)
    assert twice == pytest.approx(accounting.DpSgd(1.0, 60, 0.05).epsilon(DELTA), rel=5e-3)


def test_a_symmetric_loss_distribution() -> None:
    found = accounting.from_event(distributions.from_laplace_mechanism(2.0))
    assert len(found.pairs) == 1
    assert found.epsilon(DELTA) == pytest.approx(
        accounting.LaplaceMechanism(2.0).epsilon(DELTA), abs=1e-4
    )


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("event", "times"),
    [
        (dp_event.DiscreteLaplaceDpEvent(0.4, 3), 1),
        (dp_event.DiscreteLaplaceDpEvent(0.2, 1), 20),
        (dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(0.7)), 1),
        (dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(2.0)), 30),
        (dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0, 2.0], [0.7, 0.2, 0.1]), 1),
        (dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0, 2.0], [0.7, 0.2, 0.1]), 15),
    ],
)
def test_further_events_agree_with_dp_accounting(event: Any, times: int) -> None:
    ours = accounting.from_event(dp_event.SelfComposedDpEvent(event, times))
    theirs = pld.PLDAccountant().compose(event, times)
    for delta in (1e-2, 1e-6):
        # Both are upper bounds; theirs is rounded up on a grid of 1e-4.
        assert ours.epsilon(delta) == pytest.approx(theirs.get_epsilon(delta), abs=5e-3)


def test_a_mixture_of_two_gaussians_is_a_sampled_step() -> None:
    event = dp_event.MixtureOfGaussiansDpEvent(0.8, [0.0, 1.0], [0.95, 0.05])
    ours, exact = accounting.from_event(event), accounting.DpSgd(0.8, 1, 0.05)
    for k in (0, 1):
        for epsilon in (-0.5, 0.0, 0.3, 2.0):
            found = float(ours.pairs[k].profile(epsilon))
            least = float(exact.pairs[k].profile(epsilon))
            # Beyond the largest loss, the exact value is 0, and either may be a rounding error.
            assert least * (1.0 - 1e-9) - 1e-40 <= found <= least * (1.0 + 5e-4) + 1e-15
    with pytest.raises(ValueError, match="neighbours must be add-remove or zero-out"):
        accounting.from_event(event, neighbours="replace-one")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (dp_event.NonPrivateDpEvent(), "got NonPrivateDpEvent: it reveals the records"),
        (dp_event.UnsupportedDpEvent(), "it states no guarantee"),
        (
            dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.1, 200, 1.0),
            "pass its PrivacyLossDistribution",
        ),
        (
            dp_event.SampledWithoutReplacementDpEvent(1000, 10, dp_event.GaussianDpEvent(1.0)),
            "replace-one neighbours only",
        ),
        (dp_event.MixtureOfGaussiansDpEvent(1.0, [-1.0, 1.0], [0.5, 0.5]), "sensitivities >= 0"),
        (dp_event.NoOpDpEvent(), "event must contain at least one mechanism"),
        (
            dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1.0), 10, np.inf),
            "distribution of K, poisson:10",
        ),
        (
            dp_event.PoissonSampledDpEvent(0.1, dp_event.DiscreteLaplaceDpEvent(1.0, 1)),
            "sampled must be Gaussian or one Laplace mechanism",
        ),
        (
            dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(0.0)),
            "noise_multiplier must be",
        ),
        (dp_event.RandomizedResponseDpEvent(0.0, 3), "noise_parameter must be"),
        (
            distributions.from_laplace_mechanism(2.0, pessimistic_estimate=False),
            "pessimistic estimate",
        ),
        (
            dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(1e5), 10**9),
            r"count must be a whole number in \[0, 1000000\], got 1000000000",
        ),
        (3, "got an int"),
    ],
)
def test_unsupported_events_are_refused(event: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        accounting.from_event(event)


def test_invalid_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="must sum to 1"):
        accounting.LossDistribution([0.0, 1.0], [0.5, 0.4])
    # 0.9 e^1 is more than 1 under the other data set.
    with pytest.raises(ValueError, match="at most 1 under the other"):
        accounting.LossDistribution([-1.0, 1.0], [0.9, 0.1])
    with pytest.raises(ValueError, match="increase strictly"):
        accounting.LossDistribution([1.0, 1.0], [0.5, 0.5])

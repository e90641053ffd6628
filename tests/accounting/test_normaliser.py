"""A normaliser that depends on the number of records: its exact cost, and an attack."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from scipy import integrate, special, stats

from audit.accounting import DpSgd, normaliser_delta, normaliser_epsilon
from audit.lower_bounds import lower_bound

# Parameters, steps and divisor; epsilon at delta 1e-5. In the last row scipy's chi2.cdf would give
# 3.53: far below the mean it sums too few terms at this many degrees of freedom.
TABLE = [
    (4_810, 60, 120, 47.0),
    (4_810, 1, 120, 3.604),
    (4_810, 60, 1_200, 2.609),
    (26_010, 300, 256, 185.2),
    (26_010, 1, 256, 3.896),
    (300_000, 1, 1_024, 3.192),
    (11_000_000, 1, 1_024, 29.38),
    (11_000_000, 1, 4_096, 5.129),
    (86_000_000, 1, 16_384, 3.390),
]


def integrated(epsilon: Any, batch_size: Any, count: Any) -> Any:
    """The hockey-stick divergences of both directions, by the trapezoid rule on densities."""
    shape, log_ratio = count / 2, 2 * math.log(batch_size / (batch_size - 1))
    # As a function of log S, densities are smooth and r only shifts them.
    spread = 1 / math.sqrt(shape)
    u = np.linspace(-60 * spread, 60 * spread + log_ratio, 400_001)

    def log_density(x: Any) -> Any:
        return -shape * (np.expm1(x) - x)

    p, q = log_density(u), log_density(u - log_ratio)
    total = math.log(integrate.trapezoid(np.exp(p), u))
    both = [
        integrate.trapezoid(np.exp(a - total) * -np.expm1(np.minimum(epsilon + b - a, 0)), u)
        for a, b in ((p, q), (q, p))
    ]
    return max(both)


@pytest.mark.parametrize(("parameters", "steps", "batch_size", "epsilon"), TABLE)
def test_known_costs_of_normalisers(
    parameters: int, steps: int, batch_size: int, epsilon: float
) -> None:
    found = normaliser_epsilon(1e-5, batch_size, parameters, steps)
    assert found == pytest.approx(epsilon, rel=2e-4)
    # At the returned epsilon, delta is at most the given one, and almost equal to it.
    exact = integrated(found, batch_size, parameters * steps)
    assert exact == pytest.approx(1e-5, rel=1e-6)
    assert normaliser_delta(found, batch_size, parameters, steps) <= 1e-5


@pytest.mark.thin(4)
@pytest.mark.parametrize("count", [30, 701, 50_000, 10**8])
@pytest.mark.parametrize("distance", [0.1, 1.0, 6.0])
def test_delta_is_the_integral_of_the_densities(count: int, distance: float) -> None:
    batch_size = max(2, round(math.sqrt(2 * count) / distance))
    for epsilon in (0.0, 0.3, 2.0, 15.0):
        found = normaliser_delta(epsilon, batch_size, count)
        expected = integrated(epsilon, batch_size, count)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_one_value_is_two_normal_tails() -> None:
    # N = 1: the released value is normal with standard deviation 1 or B / (B - 1) = 2.
    at = math.sqrt(2 * math.log(2) / (1 - 1 / 4))
    expected = 2 * (special.ndtr(-at / 2) - special.ndtr(-at))
    assert normaliser_delta(0.0, 2, 1) == pytest.approx(expected, rel=1e-12)


def test_every_valid_input_has_a_delta() -> None:
    rng = np.random.default_rng(1)
    largest = 10**15
    settings = [(0.0, 2, 1), (1e300, 2, 5), (0.0, largest, largest), (1e8, 2, largest)]
    for _ in range(3000):
        size = int(2 * (largest / 2) ** rng.random())
        settings.append((10 ** rng.uniform(-12, 9), size, int(largest ** rng.random())))
    for epsilon, size, count in settings:
        delta = normaliser_delta(epsilon, size, count)
        assert 0.0 <= delta <= 1.0, (epsilon, size, count)
    assert math.copysign(1.0, normaliser_delta(1e300, 2, 5)) == 1.0


def test_delta_falls_with_epsilon_and_the_divisor_and_grows_with_values() -> None:
    by_epsilon = [normaliser_delta(e, 120, 4810, 60) for e in np.linspace(0.0, 80.0, 200)]
    assert (np.diff(by_epsilon) <= 0.0).all()
    by_size = [normaliser_delta(1.0, size, 10_000) for size in range(2, 400)]
    assert (np.diff(by_size) <= 1e-15).all()
    by_count = [normaliser_delta(1.0, 120, count) for count in range(1, 30_000, 97)]
    assert (np.diff(by_count) >= -1e-15).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1e-5, 1, 10), "batch_size must be a whole number in"),
        ((1e-5, 119.5, 10), "batch_size must be a whole number in"),
        ((1e-5, 120, 0), "parameters must be a whole number >= 1"),
        ((1e-5, 120, 10, 0), "steps must be a whole number >= 1"),
        ((1e-5, 120, 10**12, 10**6), r"parameters \* steps must be a whole number in"),
        ((0.0, 120, 10), "delta must be in"),
        ((1e-5, 2, 10**15), r"parameters \* steps must give an epsilon below 1e12"),
    ],
)
def test_a_normaliser_without_epsilon_is_refused(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        normaliser_epsilon(*arguments)


def test_negative_epsilons_are_refused() -> None:
    with pytest.raises(ValueError, match="epsilon must be in"):
        normaliser_delta(-1.0, 120, 10)


def released(records: Any, divisor: Any, seed: Any) -> Any:
    """Sum of squares of the sum that Opacus's optimizer releases if all gradients are zero."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 10)
    engine = PrivacyEngine(accountant="rdp")
    data = torch.utils.data.TensorDataset(torch.zeros(records, 64), torch.zeros(records))
    _, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DPDataLoader(data, sample_rate=0.1),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
    )
    if divisor is not None:
        optimizer.expected_batch_size = divisor
    total = 0.0
    for _ in range(5):
        for parameter in optimizer.params:
            parameter.grad_sample = torch.zeros(1, *parameter.shape)
        optimizer.step()
        total += sum(float(parameter.grad.square().sum()) for parameter in optimizer.params)
        optimizer.zero_grad()
    assert len(loader) == 10  # 1/len(loader) is the rate, whatever the number of records
    assert engine.accountant.history == [(2.0, 0.1, 5)]
    return total


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Secure RNG")
def test_opacus_reveals_the_number_of_records_unless_its_divisor_is_set() -> None:
    # A positive control: int(40 * 0.1) is 4, and int(39 * 0.1) is 3.
    more, fewer = ([released(n, None, 100 * n + i) for i in range(20)] for n in (40, 39))
    claimed = DpSgd(2.0, 5, 0.1).epsilon(1e-5)
    shown = lower_bound(out_scores=more, in_scores=fewer, delta=1e-5).epsilon
    assert max(more) < min(fewer)
    assert claimed < 1.6 < shown < normaliser_epsilon(1e-5, 4, 650, 5)
    # With a constant divisor both are draws of one distribution. This fails by chance for one
    # choice of seeds in a thousand; these are fixed.
    more, fewer = ([released(n, 4, 100 * n + i) for i in range(20)] for n in (40, 39))
    assert stats.mannwhitneyu(more, fewer).pvalue > 1e-3

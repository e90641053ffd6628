"""Exact compositions of discrete losses."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import audit
from audit.accounting import (
    ApproximateDp,
    Composition,
    DiscreteMechanism,
    GaussianMechanism,
    LossDistribution,
    LossPair,
    compose,
)
from audit.accounting.pairs import DiscretePair


def test_every_output_of_a_small_composition() -> None:
    rng = np.random.default_rng(58)
    (p, q), (a, b) = rng.dirichlet(np.ones(3), 2), rng.dirichlet(np.ones(2), 2)
    pair = compose([(DiscretePair(p, q), 3), (DiscretePair(a, b), 2)])
    outputs = list(itertools.product(range(3), range(3), range(3), range(2), range(2)))
    without, with_record = (
        np.array([x[i] * x[j] * x[k] * y[n] * y[m] for i, j, k, n, m in outputs])
        for x, y in ((p, a), (q, b))
    )
    for epsilon in (0.0, 0.5, 2.0):
        for side, first, second in (
            (pair, without, with_record),
            (pair.mirrored, with_record, without),
        ):
            exact = np.maximum(first - math.exp(epsilon) * second, 0.0).sum()
            assert float(side.profile(epsilon)) == pytest.approx(exact, rel=1e-12, abs=1e-15)


def test_outputs_of_one_data_set_only() -> None:
    pair = compose([(DiscretePair([0.9, 0.1, 0.0], [0.8, 0.0, 0.2]), 4)])
    assert isinstance(pair, LossPair)
    assert pair.pmf.p_only == pytest.approx(1.0 - 0.9**4)
    assert pair.pmf.q_only == pytest.approx(1.0 - 0.8**4)


@pytest.mark.slow
@pytest.mark.thin(5)
@pytest.mark.parametrize("epsilon_0", [300.0, 600.0, 700.0, 800.0, 1e4])
@pytest.mark.parametrize("protocol", ["best:3/fixed:8", "grid:8"])
def test_losses_of_hundreds(epsilon_0: float, protocol: str) -> None:
    cost = audit.tuning_cost(ApproximateDp(epsilon_0, 1e-9), protocol, 1e-5).epsilon
    # At the largest loss, delta is 8e-9; 1e-5 is reached where 1 - e^(epsilon - 8 epsilon_0) is.
    exact = 8.0 * epsilon_0 + math.log1p(-(1e-5 - 8e-9) / (1.0 - 8e-9))
    assert cost == pytest.approx(exact, rel=1e-9)


def test_many_losses_agree_with_the_grid_of_losses() -> None:
    coin = DiscreteMechanism([0.6, 0.4], [0.5, 0.5], directed=True)
    exact = Composition((coin,) * 200).epsilon(1e-5)
    half = [(coin.pairs[0], 3000)]  # too many values: on a grid
    assert float(compose(half).profile(1.0)) > 0.0
    # 200 tosses by the binomial distribution.
    k = np.arange(201)
    ways = np.array([math.comb(200, int(one)) for one in k], dtype=float)
    p, q = ways * 0.6**k * 0.4 ** (200 - k), ways * 0.5**200
    deltas = [
        float(np.maximum(one - math.exp(exact) * other, 0.0).sum())
        for one, other in ((p, q), (q, p))
    ]
    assert max(deltas) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-5, 0.01])
def test_tuning_on_all_records_is_random_search(delta: float) -> None:
    for base in (audit.accounting.LaplaceMechanism(4.0), ApproximateDp(0.5, 1e-8)):
        subset = audit.tuning_cost(base, "subset:1/tnb:1,0.1", delta).epsilon
        assert subset == audit.tuning_cost(base, "tnb:1,0.1", delta).epsilon


@pytest.mark.thin(9)
@pytest.mark.parametrize("mu", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize(("runs", "never"), [(1, 0.0), (10, 0.0), (4, 1e-3)])
def test_discrete_losses_beside_a_tiny_gaussian(mu: float, runs: int, never: float) -> None:
    # The sum over the discrete losses of their probability times the profile of the Gaussian
    # mechanism is exact. One grid for both gave up to 3,000 times as much at the largest loss.
    high = (1.0 - never) / (1.0 + math.exp(-1.0))
    p = np.array([high, 1.0 - never - high])
    gaussian = GaussianMechanism(mu)
    with_losses = Composition(
        (*[LossDistribution([-1.0, 1.0], [p[1], p[0]], infinite=never)] * runs, gaussian)
    )
    k = np.arange(runs + 1)
    if never == 0.0:
        chances = stats.binom.pmf(k, runs, high)
        losses = 2.0 * k - runs
        together = Composition((*[DiscreteMechanism(p, p[::-1])] * runs, gaussian))
        for epsilon in (0.3 * runs, 0.9 * runs, runs, runs + mu):
            known = float(chances @ gaussian.pairs[0].profile(epsilon - losses))
            for base in (together, with_losses):
                assert known * (1.0 - 1e-9) <= float(base.delta(epsilon)) <= 1.002 * known
    else:
        leak = 1.0 - (1.0 - never) ** runs
        delta = float(with_losses.delta(runs + 10.0 * mu))
        assert leak <= delta * (1.0 + 1e-12) <= leak * 1.001

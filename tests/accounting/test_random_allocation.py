"""DP-SGD with random allocation: exact small cases, simulation, an independent implementation."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import special

import audit
from audit import certificate, protocols
from audit.accounting import (
    Composition,
    DpSgd,
    GaussianMechanism,
    RandomAllocation,
    mechanism_from_dict,
    mechanism_to_dict,
    parse_mechanism,
    relations,
    scale_noise,
    solve_epsilon,
)
from audit.accounting.dpsgd import _Ratio
from audit.certificate import conditions
from audit.errors import InvalidInput
from audit.integrations.random_allocation import RandomAllocationSampler
from audit.loop.premises.size_of_noise import _possible_rates, _random_allocations

DELTA = 1e-5
NODES = np.polynomial.legendre.leggauss(500)


# Bounds of PLD_accounting 2.0 (Feldman & Shenfeld) from below and above, at delta 1e-5.
@pytest.mark.thin(7)
@pytest.mark.parametrize(
    ("noise", "batches", "epochs", "lower", "upper", "value"),
    [
        (1.0, 100, 1, 0.6085, 0.6357, 0.6209),
        (1.0, 100, 10, 1.6644, 1.7398, 1.7015),
        (0.6, 100, 1, 3.4193, 3.4439, 3.4314),
        (0.6, 10, 1, 0.0, 8.342, 5.7041),
        (1.0, 10, 10, 0.0, 7.047, 6.117),
        (5.0, 100, 10, 0.0, 0.2114, 0.2091),
        (2.0, 10_000, 100, 0.0, 0.1724, 0.1716),
    ],
)
def test_agrees_with_an_independent_implementation(
    noise: float, batches: int, epochs: int, lower: float, upper: float, value: float
) -> None:
    found = RandomAllocation(noise, batches, epochs).epsilon(DELTA)
    assert lower < found < upper
    assert value * (1.0 - 5e-4) < found < value * 1.001


def call_and_put(limit: Any, u: float) -> tuple[Any, Any]:
    """E[(Z - limit)_+] and E[(limit - Z)_+] for Z = exp(u x - u^2/2), exactly, elementwise."""
    safe = np.maximum(limit, 1e-300)
    far = -np.log(safe) / u
    call = special.ndtr(far + 0.5 * u) - safe * special.ndtr(far - 0.5 * u)
    put = safe * special.ndtr(0.5 * u - far) - special.ndtr(-far - 0.5 * u)
    return np.where(limit > 0.0, call, 1.0 - limit), np.where(limit > 0.0, put, 0.0)


def delta_of_two_batches(noise: float, epsilon: float) -> tuple[float, float]:
    """Exact deltas of one epoch of two batches: with the record against without, and reversed."""
    u, deltas = 1.0 / noise, []
    for side, value in enumerate((epsilon, -epsilon)):
        # Where one ratio alone reaches the limit, the integrand over the other has a kink.
        kink = (math.log(2.0) + value) / u + 0.5 * u
        ends = np.unique(np.clip([-16.0, kink, 16.0 + u], -16.0, 16.0 + u))
        total = 0.0
        for low, high in itertools.pairwise(ends):
            x = 0.5 * (low + high) + 0.5 * (high - low) * NODES[0]
            density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
            limit = 2.0 * math.exp(min(value, 600.0)) - np.exp(u * x - 0.5 * u * u)
            gains = 0.5 * call_and_put(limit, u)[side] * math.exp(max(-value, 0.0))
            total += 0.5 * (high - low) * float((NODES[1] * density) @ gains)
        deltas.append(total)
    return deltas[0], deltas[1]


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.3, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
def test_two_batches_exactly(noise: float, delta: float) -> None:
    run = RandomAllocation(noise, 2, 1)
    for direction, pair in enumerate(run.pairs):
        exact = solve_epsilon(lambda e, k=direction: delta_of_two_batches(noise, e)[k], delta)
        found = solve_epsilon(lambda e, p=pair: float(p.profile(e)), delta)
        assert exact * (1.0 - 1e-6) <= found <= exact * 1.002 + 1e-4


def test_one_batch_is_a_gaussian_mechanism() -> None:
    run = RandomAllocation(2.0, 1, 9)
    assert run.gaussian_mu == pytest.approx(1.5)
    assert run.epsilon(DELTA) == GaussianMechanism(1.5).epsilon(DELTA)
    assert RandomAllocation(2.0, 3, 3, per_epoch=3).gaussian_mu == pytest.approx(1.5)


def simulated_delta(noise: float, batches: int, epochs: int, epsilon: float, n: int) -> Any:
    """Mean and standard error of delta of the worst case, with the record against without."""
    rng = np.random.default_rng(25)
    u, ratio = 1.0 / noise, np.ones(n)
    for _ in range(epochs):
        x = rng.standard_normal((n, batches))
        x[:, 0] += u  # the batch of the record
        ratio *= np.exp(u * x - 0.5 * u * u).mean(axis=1)
    gains = np.maximum(1.0 - np.exp(epsilon) / ratio, 0.0)
    return gains.mean(), gains.std() / math.sqrt(n)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "batches", "epochs"), [(1.0, 20, 3), (0.5, 10, 1), (2.0, 50, 5)])
def test_simulated_delta(noise: float, batches: int, epochs: int) -> None:
    run = RandomAllocation(noise, batches, epochs)
    epsilon = run.epsilon(1e-2)
    mean, error = simulated_delta(noise, batches, epochs, epsilon, 100_000)
    # A correct bound fails with probability below 1e-5 in three cases together.
    assert abs(mean - float(run.pairs[0].profile(epsilon))) < 4.7 * error


def test_several_batches_of_an_epoch() -> None:
    # Two of four batches: the ratio is the mean over the six pairs of batches.
    run, u, n = RandomAllocation(1.0, 4, 1, per_epoch=2), 1.0, 100_000
    assert run.epsilon(DELTA) == RandomAllocation(1.0, 2, 2).epsilon(DELTA)
    rng = np.random.default_rng(26)
    x = rng.standard_normal((n, 4))
    x[:, :2] += u
    z = np.exp(u * x - 0.5 * u * u)
    ratio = (z.sum(axis=1) ** 2 - np.square(z).sum(axis=1)) / 12.0
    epsilon = run.epsilon(1e-2)
    gains = np.maximum(1.0 - math.exp(epsilon) / ratio, 0.0)
    assert gains.mean() < 1e-2 + 4.7 * gains.std() / math.sqrt(n)


@pytest.mark.slow
def test_fixed_batches_are_one_epoch_with_less_noise() -> None:
    fixed = RandomAllocation(1.0, 100, 10, fixed=True)
    assert fixed.epsilon(DELTA) == pytest.approx(13.25, abs=0.02)
    assert fixed.epsilon(DELTA) == RandomAllocation(1.0 / math.sqrt(10.0), 100, 1).epsilon(DELTA)
    # An epoch that is drawn once leaks more than fresh ones, and less than a known batch.
    assert RandomAllocation(1.0, 100, 10).epsilon(DELTA) < fixed.epsilon(DELTA)
    assert fixed.epsilon(DELTA) < GaussianMechanism(math.sqrt(10.0)).epsilon(DELTA)


def test_tiny_deltas_keep_their_digits() -> None:
    run = RandomAllocation(1.0, 2, 1)
    for delta in (1e-15, 1e-25):
        exact = solve_epsilon(lambda e: max(delta_of_two_batches(1.0, e)), delta)
        assert run.epsilon(delta) == pytest.approx(exact, rel=2e-3)
    many = RandomAllocation(1.0, 100, 10)
    epsilons = [many.epsilon(delta) for delta in (1e-5, 1e-10, 1e-20, 1e-30)]
    assert np.all(np.diff(epsilons) > 1.0)


def test_renyi_divergences_are_infinite_unless_batches_are_full() -> None:
    # The largest ratios are moved to infinity, so only a full batch has finite divergences.
    assert RandomAllocation(1.0, 100, 10).renyi_epsilon(DELTA) == math.inf
    assert float(RandomAllocation(2.0, 1, 4).renyi(2.0)) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_tuning_over_random_allocation() -> None:
    run = RandomAllocation(1.0, 100, 10)
    assert audit.tuning_cost(run, "tnb:0,0.01", DELTA).epsilon == pytest.approx(2.625, abs=5e-3)
    sampled = audit.tuning_cost(DpSgd(1.0, 1000, 0.01), "tnb:0,0.01", DELTA).epsilon
    assert audit.tuning_cost(run, "tnb:0,0.01", DELTA).epsilon < sampled


@pytest.mark.thorough
def test_text_files_and_combinations() -> None:
    run = RandomAllocation(0.8, 50, 4)
    assert parse_mechanism("allocation:0.8,50,4") == run
    assert parse_mechanism("allocation:0.8,50,4,2") == RandomAllocation(0.8, 50, 4, per_epoch=2)
    # Batches that are drawn once leak as one epoch with less noise.
    fixed = parse_mechanism("fixed-allocation:0.8,50,4")
    assert fixed == RandomAllocation(0.8, 50, 4, fixed=True)
    assert fixed.epsilon(1e-5) == RandomAllocation(0.4, 50, 1).epsilon(1e-5)
    fixed = RandomAllocation(2.0, 50, 4, fixed=True, neighbours="zero-out")
    assert mechanism_from_dict(mechanism_to_dict(fixed)) == fixed
    assert relations(Composition((run, run))) == {"add-remove"}
    assert scale_noise(run, 2.0) == RandomAllocation(1.6, 50, 4)
    twice = Composition((run, run)).epsilon(DELTA)
    assert twice == pytest.approx(RandomAllocation(0.8, 50, 8).epsilon(DELTA), rel=1e-4)
    assert "drawn once" in fixed.description
    assert "zero-out" in fixed.description


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"neighbours": "replace-one"}, "neighbours must be add-remove or zero-out"),
        ({"per_epoch": 101}, "per_epoch must be"),
        ({"per_epoch": 2, "fixed": True}, "per_epoch must be 1 with fixed batches"),
        ({"noise_multiplier": 0.05}, "noise_multiplier must be"),
        ({"noise_multiplier": 0.2, "fixed": True}, r"noise_multiplier / sqrt\(epochs\) must be"),
        ({"batches": 0}, "batches must be"),
        ({"epochs": 1.5}, "epochs must be"),
    ],
)
def test_what_is_not_covered_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RandomAllocation(**({"noise_multiplier": 1.0, "batches": 100, "epochs": 10} | change))
    with pytest.raises(InvalidInput, match="batches must be"):
        parse_mechanism("allocation:1,10.5,3")


def test_the_sampler_draws_batches_independently() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(27)
    sampler = RandomAllocationSampler(40, 8, generator=generator)
    epochs = [list(sampler) for _ in range(300)]
    assert all(sorted(itertools.chain(*epoch)) == list(range(40)) for epoch in epochs)
    sizes = np.array([[len(batch) for batch in epoch] for epoch in epochs])
    # Binomial(40, 1/8) sizes: mean 5 and variance 4.375; shuffled batches would all have 5.
    assert sizes.var() == pytest.approx(40 / 8 * (7 / 8), rel=0.15)
    same = [any(3 in batch and 4 in batch for batch in epoch) for epoch in epochs]
    assert np.mean(same) == pytest.approx(1 / 8, abs=0.08)  # four standard errors
    fixed = RandomAllocationSampler(40, 8, fixed=True, generator=generator)
    assert list(fixed) == list(fixed)
    assert len(fixed) == 8
    loader = torch.utils.data.DataLoader(
        list(range(40)), batch_sampler=sampler, collate_fn=lambda batch: batch
    )
    assert sorted(itertools.chain(*loader)) == list(range(40))


def test_the_certificate_states_how_batches_are_drawn() -> None:
    run = RandomAllocation(2.0, 20, 3, neighbours="zero-out")
    search = protocols.parse_protocol("tnb:1,0.2")
    found = conditions.conditions(run, search, None, certificate.StudyFacts({}))
    by_name = {one.name: one.words for one in found}
    assert "independently of all other records" in by_name["random_allocation"]
    assert by_name["relation zero-out"] == "the number of records is public"
    sampled = conditions.conditions(DpSgd(2.0, 60, 0.05), search, None, certificate.StudyFacts({}))
    assert "random_allocation" not in [one.name for one in sampled]


def allocated(rng: np.random.Generator, runs: int, epochs: int, fixed: bool) -> np.ndarray:
    """Batches [R, T, n] of 8 steps per epoch: whether each of 40 records is in the batch."""
    drawn = rng.integers(8, size=(runs, 1 if fixed else epochs, 40))
    inside = drawn[:, :, None, :] == np.arange(8)[:, None]
    return np.broadcast_to(inside, (runs, epochs, 8, 40)).reshape(runs, 8 * epochs, 40)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_check_recognises_random_allocation(fixed: bool) -> None:
    inside = allocated(np.random.default_rng(4), 30, 3, fixed)
    included, counts = inside[:, :, -1], inside.sum(axis=2).astype(float)
    rates = 0.1, 0.15
    (run,) = _random_allocations(1.0, counts, included, 24, rates)
    assert run == RandomAllocation(1.0, 8, 3, fixed=fixed)
    counts[:, 5], seen_twice = np.nan, included | (np.arange(24) == 6)
    included = included & (np.arange(24) != 5)  # a step without gradients
    assert list(_random_allocations(1.0, counts, included, 24, rates)) == [run]
    # Equal sizes reveal the batch of the record; other inclusions are no allocation.
    assert not list(_random_allocations(1.0, np.full((30, 24), 5.0), included, 24, rates))
    assert not list(_random_allocations(1.0, counts, seen_twice, 24, rates))


def test_the_true_rate_is_between_the_possible_rates_of_a_check() -> None:
    """Error 2e-5 for each of 200 checks, together 0.004."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        inside = rng.random((10, 24, 40)) < 0.125
        counts = np.where(inside[:, :, -1].any(axis=0), inside.sum(axis=2), np.nan)
        low, high = _possible_rates(counts, inside[:, :, -1], 40)
        assert 0.08 < low < 0.125 < high < 0.18


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "poisson", "found"),
    [(1.0, False, []), (0.6, False, ["accountant"]), (1.0, True, [])],
)
def test_loops_with_the_sampler_are_accused_for_too_little_noise_only(
    noise: float, poisson: bool, found: list[str]
) -> None:
    """An error of 1e-5 for each correct loop."""
    torch = pytest.importorskip("torch")
    labels = np.arange(40) % 3
    data = np.random.default_rng(0).normal(size=(40, 5)) + 2 * np.eye(3, 5)[labels], labels

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        rng, weights = np.random.default_rng(seed), np.zeros((5, 3))
        n = len(records.features)
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        sampler = RandomAllocationSampler(n, 8, generator=generator)
        for step in range(24):
            if step % 8 == 0:
                epoch = iter(sampler)
            batch = np.array(next(epoch), dtype=int)
            if poisson:
                batch = np.flatnonzero(rng.random(n) < 0.125)
            slopes = special.softmax(records.features[batch] @ weights, axis=1)
            slopes -= np.eye(3)[records.labels[batch]]
            each = np.einsum("ni,nj->nij", records.features[batch], slopes)
            norms = np.sqrt(np.square(each).sum(axis=(1, 2)))
            total = np.tensordot(np.minimum(1.0, 1.0 / np.maximum(norms, 1e-12)), each, 1)
            noisy = total + noise * rng.normal(size=weights.shape)
            weights = weights - 0.2 * watch.step(noisy, weights)
        return weights

    run = DpSgd(1.0, 24, 0.125) if poisson else RandomAllocation(1.0, 8, 3)
    result = audit.check(train, data, claim=run.epsilon(DELTA), attack=False, seed=1)
    assert result.premises is not None
    assert [finding.premise for finding in result.premises.findings] == found


@pytest.mark.parametrize("fineness", [0.1, 1.0])
def test_sums_of_equal_and_of_different_variables_are_sums_over_all_pairs(fineness: float) -> None:
    first, second = (_Ratio.of_one_step(u, fineness) for u in (0.7, 2.5))
    for left, right in ((first, first), (first, second), (second, first)):
        total = left + right
        # Without the part at infinity, masses and means of all pairs stay the same.
        masses = float(np.multiply.outer(left.mass, right.mass).sum())
        values = float(left.mass @ np.add.outer(left.at, right.at) @ right.mass)
        assert float(total.mass.sum()) == pytest.approx(masses, rel=1e-13)
        infinite = left.infinite + right.infinite
        assert float(total.mass @ total.at) + total.infinite - infinite == pytest.approx(
            values, rel=1e-12
        )
        # The mean part above any limit is at least that of the pairs, by convexity.
        sums = np.add.outer(left.at, right.at)
        weights = np.multiply.outer(left.mass, right.mass)
        for limit in (0.3, 1.9, 2.6, 7.0, 40.0):
            exact = float((weights * np.maximum(sums - limit, 0.0)).sum())
            spread = float(total.mass @ np.maximum(total.at - limit, 0.0))
            assert exact * (1.0 - 1e-12) <= spread <= exact * (1.0 + 0.05 / fineness)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("noise", [0.8, 1.5])
def test_coarse_grids_cost_slightly_more(noise: float, fixed: bool) -> None:
    run = RandomAllocation(noise, 60, 4, fixed=fixed)
    for delta in (1e-3, 1e-5, 1e-10):
        assert run.epsilon(delta) < run.coarse.epsilon(delta) < 1.01 * run.epsilon(delta) + 1e-3

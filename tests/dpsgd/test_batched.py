"""The batched engine against torch.optim, the reduced engine and the distribution of its noise.

Each statistical test has a false-alarm rate of 1e-4.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats as st
import torch
from toy import ALARM, SILENT, assert_uncorrelated, records, run_batch

import threat_models
from audit.dpsgd import DpSgdSettings, RunBatch, RunOutcomes, make_engine, streams
from audit.dpsgd.models import make_model
from canaries import DiracCanary, InputCanary
from threat_models import UserScore, etcv, ntcv, ntnv

torch.set_num_threads(1)


def final_weights(
    threat_model: threat_models.ThreatModel,
    settings: DpSgdSettings,
    pack: RunBatch,
    precision: str = "float64",
) -> tuple[np.ndarray, RunOutcomes]:
    """The final parameters of every run, seen through a score."""
    seen = []

    def look(observation: Any) -> Any:
        seen.append(observation.parameters())
        return np.zeros(len(observation.first_displacement))

    spy = replace(threat_model, score=UserScore(look))
    outcome = make_engine("batched", spy, settings, precision=precision).run(pack)
    return np.concatenate(seen), outcome


@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_noise_and_clipping_it_equals_torch_sgd(model: str, momentum: float) -> None:
    data, canary = records(12), records(1, seed=9).canary(0)
    settings = DpSgdSettings(6, SILENT, 1e6, (0.02, 0.1), momentum=momentum, model=model)
    pack = RunBatch(
        np.array([False, True, True]), np.array([0, 0, 1]), np.arange(3, dtype=np.uint64)
    )
    got, outcome = final_weights(ntcv(data, None, canary, UserScore(len)), settings, pack)
    for run in range(3):
        reference = make_model(model, 0, (1, 8, 8), 10, torch.float64)
        rate = settings.learning_rates[pack.candidate[run]]
        optimizer = torch.optim.SGD(reference.parameters(), lr=rate, momentum=momentum)
        x, y = torch.from_numpy(data.features).double(), torch.from_numpy(data.labels)
        z, label = torch.from_numpy(canary.features)[None].double(), torch.tensor([canary.label])
        proxy = 0.0
        for _ in range(6):
            own = torch.autograd.grad(loss(reference, z, label), [*reference.parameters()])
            optimizer.zero_grad()
            loss(reference, x, y).backward()
            for p, g in zip(reference.parameters(), own, strict=True):
                p.grad += g * float(pack.included[run])
                proxy += float((p.grad * g).sum())
            optimizer.step()
        expected = torch.cat([p.detach().flatten() for p in reference.parameters()]).numpy()
        assert np.abs(got[run] - expected).max() < 1e-11
        assert outcome.lambda_a[run] == pytest.approx(proxy / (6 * 1e12), rel=1e-9)


def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x), y, reduction="sum")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batched", "opacus", "projected", "collapsed", "reduced"])
def test_each_run_uses_the_hyperparameters_of_its_candidate(name: str) -> None:
    # Each run equals that of an engine with only this candidate.
    canary = records(1, seed=3).canary(0)
    first, loss = threat_models.FirstCoordinate(), threat_models.CanaryLoss(canary)
    threat, momenta = {
        "batched": (ntcv(records(6), None, canary, loss), (0.0, 0.6)),
        "opacus": (ntcv(records(6), None, canary, loss), (0.0, 0.6)),
        "projected": (etcv(canary, loss, (1, 8, 8), 10), (0.0, 0.6)),
        "collapsed": (etcv(DiracCanary(), loss, (1, 8, 8), 10), (0.0,)),
        "reduced": (etcv(DiracCanary(), first, (1, 8, 8), 10), (0.0, 0.6)),
    }[name]
    settings = DpSgdSettings(4, 0.3, (0.2, 1.5), (0.1, 0.2), momentum=momenta, model="mlp")
    count = len(settings.candidates)
    assert count == 4 * len(momenta)
    pack = replace(run_batch(2 * count, True), candidate=np.arange(2 * count) % count)
    whole = make_engine(name, threat, settings, precision="float64").run(pack)
    for run in range(2 * count):
        rate, clip, momentum = settings.candidates[run % count]
        single = DpSgdSettings(4, 0.3, clip, (rate,), momentum=momentum, model="mlp")
        one = replace(pack.at(slice(run, run + 1)), candidate=np.zeros(1, np.int64))
        alone = make_engine(name, threat, single, precision="float64").run(one)
        np.testing.assert_allclose(whole.lambda_a[run], alone.lambda_a, rtol=1e-10)
        np.testing.assert_allclose(whole.scores[run], alone.scores, rtol=1e-10)
    assert len(np.unique(whole.scores)) == 2 * count


def test_standardised_sum_is_standard_for_every_clipping_norm() -> None:
    # Its distribution is N(sqrt(N) / sigma, 1) for every C and momentum.
    score = UserScore(lambda seen: seen.standardised_sum)
    threat = ntcv(records(3), None, DiracCanary(), score)
    settings = DpSgdSettings(4, 2.0, (0.1, 3.0), (0.01,), momentum=(0.0, 0.5), model="logistic")
    pack = run_batch(2000, True, candidates=4)
    out = make_engine("batched", threat, settings).run(pack)
    for candidate in range(4):
        own = out.scores[pack.candidate == candidate]
        assert st.kstest(own, st.norm(1, 1).cdf).pvalue > ALARM


@pytest.mark.thorough
def test_noise_is_independent_with_the_right_variance() -> None:
    # After one step on an empty training set, (w_0 - w_N) / lr is the noise.
    settings = DpSgdSettings(1, 1.7, 0.3, (0.25,), model="logistic")
    threat = etcv(DiracCanary(), UserScore(len), (1, 8, 8), 10)
    # Consecutive seeds are the hardest case for a generator.
    pack = replace(run_batch(3000, False), seeds=np.arange(3000, dtype=np.uint64))
    got, _ = final_weights(threat, settings, pack)
    start = np.concatenate(
        [p.detach().numpy().ravel() for p in make_model("logistic", 0, (1, 8, 8), 10,
                                                        torch.float64).parameters()]
    )  # fmt: skip
    z = (start - got) / (0.25 * 1.7 * 0.3)
    assert z.shape == (3000, 650)
    assert st.kstest(z.ravel(), "norm").pvalue > ALARM
    assert_uncorrelated(z)  # of any two runs, and any two coordinates


def test_noise_of_different_steps_is_independent() -> None:
    threat = etcv(DiracCanary(), UserScore(len), (1, 8, 8), 10)
    settings = DpSgdSettings(60, 2.0, 0.3, (1.0,), model="logistic")
    engine = make_engine("batched", threat, settings)
    noise = [torch.cat(p, 1) / 0.6 for p in engine._noise(run_batch(50, False), torch.zeros(1))]
    steps = torch.stack(noise).double().numpy().reshape(60, -1)  # three blocks of steps
    assert st.kstest(steps.ravel(), "norm").pvalue > ALARM
    correlations = np.corrcoef(steps)[np.triu_indices(60, 1)]
    limit = st.norm.isf(ALARM / 2 / len(correlations)) / np.sqrt(steps.shape[1])
    assert np.abs(correlations).max() < limit


@pytest.mark.thin(5)
@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.7},
        {"sampling_rate": 0.4},
        {"model": "convnet"},
        {"max_grad_norm": (0.3, 0.7), "momentum": (0.0, 0.9), "learning_rates": (0.1,)},
    ],
)
def test_dirac_canary_matches_the_distribution_of_the_reduced_engine(
    included: bool, changes: dict[str, Any]
) -> None:
    settings = DpSgdSettings(10, 2.0, 0.7, (0.1, 0.3), model="logistic")
    settings = replace(settings, **changes)
    threat = threat_models.build("ETCV", "dirac")
    count = len(settings.candidates)
    full = make_engine("batched", threat, settings).run(run_batch(4000, included, 1, count))
    reduced = make_engine("reduced", threat, settings).run(run_batch(100_000, included, 2, count))
    assert st.ks_2samp(full.lambda_a, reduced.lambda_a).pvalue > ALARM
    assert st.ks_2samp(full.scores, reduced.scores).pvalue > ALARM
    assert st.ks_2samp(full.lambda_c, reduced.lambda_c).pvalue > ALARM
    mixed = [out.lambda_c - out.lambda_a + out.scores for out in (full, reduced)]
    assert st.ks_2samp(*mixed).pvalue > ALARM  # type: ignore[call-overload]
    if not changes.get("momentum"):
        rates = np.array(settings.learning_rates)[run_batch(4000, included, 1, 2).candidate]
        np.testing.assert_allclose(full.scores, rates * 7.0 * full.lambda_a, atol=1e-5)


def test_worst_order_matches_the_distribution_of_the_reduced_engine() -> None:
    threat = threat_models.build("ETCV", "dirac", "worst-order", worst_order=1.2)
    settings = DpSgdSettings(10, 2.0, 0.7, (0.1,), model="logistic")
    full = make_engine("batched", threat, settings).run(run_batch(4000, True, 1))
    reduced = make_engine("reduced", threat, settings).run(run_batch(100_000, True, 2))
    assert st.ks_2samp(full.scores, reduced.scores).pvalue > ALARM


@pytest.mark.parametrize("threat", ["ETCV", "NTCV"])
@pytest.mark.parametrize("changes", [{}, {"sampling_rate": 0.5, "momentum": 0.5}])
def test_outcome_does_not_depend_on_the_pack(threat: str, changes: dict[str, Any]) -> None:
    settings = DpSgdSettings(5, 1.0, 1.0, (0.1, 0.2), model="convnet")
    settings = replace(settings, **changes)
    canary = records(1, seed=3).canary(0)
    score = threat_models.CanaryLoss(canary)
    if threat == "ETCV":
        model = etcv(canary, score, (1, 8, 8), 10)
    else:
        model = ntcv(records(12), None, canary, score)
    engine = make_engine("batched", model, settings, precision="float64")
    pack = run_batch(9, True, candidates=2)
    whole = engine.run(pack)
    order = np.array([8, 3, 0])
    few = engine.run(RunBatch(pack.included[order], pack.candidate[order], pack.seeds[order]))
    np.testing.assert_allclose(few.lambda_a, whole.lambda_a[order], rtol=1e-9)
    np.testing.assert_allclose(few.scores, whole.scores[order], rtol=1e-9)
    assert len(np.unique(whole.scores)) == 9
    assert len(engine.run(pack.at(slice(0))).scores) == 0


def test_float32_agrees_with_float64() -> None:
    canary = records(1, seed=3).canary(0)
    model = ntcv(records(12), None, canary, threat_models.CanaryLoss(canary))
    settings = DpSgdSettings(20, SILENT, 0.5, (0.02,), model="mlp")
    pack = run_batch(2, True)
    single = make_engine("batched", model, settings).run(pack)
    double = make_engine("batched", model, settings, precision="float64").run(pack)
    np.testing.assert_allclose(single.lambda_a, double.lambda_a, rtol=1e-5)
    np.testing.assert_allclose(single.scores, double.scores, rtol=1e-5)


def test_first_displacement_equals_the_scaled_proxy() -> None:
    # In NTNV with the Dirac canary, (w_0 - w_N)[0] = lr N C lambda_a up to rounding.
    seen = []

    def look(observation: Any) -> Any:
        seen.append(observation.first_displacement)
        return observation.loss(data.features, data.labels)

    data = records(12)
    threat = replace(ntnv(data, data, DiracCanary()), score=UserScore(look))
    settings = DpSgdSettings(8, 1.0, 0.5, (0.1,), model="mlp")
    out = make_engine("batched", threat, settings, precision="float64").run(run_batch(5, True))
    np.testing.assert_allclose(seen[0], 0.1 * 8 * 0.5 * out.lambda_a, rtol=1e-10)


@pytest.mark.parametrize("clip", [0.5, 20.0])
def test_lambda_c_is_the_likelihood_ratio_of_sampled_batches(clip: float) -> None:
    # A log-likelihood ratio L satisfies E[exp(L) | without] = E[exp(-L) | with] = 1, whether or not
    # the canary is clipped (its norm is about 6). The means of 4,000 are within 4 standard errors.
    canary = records(1, seed=3).canary(0)
    threat = etcv(canary, threat_models.CanaryLoss(canary), (1, 8, 8), 10)
    settings = DpSgdSettings(8, 1.2, clip, (0.01,), sampling_rate=0.3, model="logistic")
    engine = make_engine("batched", threat, settings)
    for included in (False, True):
        out = engine.run(run_batch(4000, included, 1))
        log_ratio = (out.lambda_c - 0.5) * settings.steps / settings.noise_multiplier**2
        ratio = np.exp(-log_ratio if included else log_ratio)
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(4000)
        assert ratio.std() > 0.1


def test_standardised_sum_excludes_training_gradients() -> None:
    # With a training set, the standardised sum still has the distribution N(b sqrt(N) / sigma, 1).
    seen = []

    def look(observation: Any) -> Any:
        seen.append(observation.standardised_sum)
        return observation.standardised_sum

    threat = ntcv(records(3), None, DiracCanary(), UserScore(look))
    settings = DpSgdSettings(4, 2.0, 0.5, (0.01,), model="logistic")
    make_engine("batched", threat, settings).run(run_batch(2000, True))
    assert st.kstest(np.concatenate(seen), st.norm(1, 1).cdf).pvalue > ALARM


def test_poisson_batches_sample_records_independently() -> None:
    # Without noise and clipping, a step is lr times the sum over the batch. This reveals which of
    # the 6 records and the canary were sampled.
    data, canary = records(6), records(1, seed=3).canary(0)
    settings = DpSgdSettings(1, SILENT, 1e6, (0.01,), sampling_rate=0.3, model="logistic")
    threat = ntcv(data, None, canary, UserScore(len))
    got, _ = final_weights(threat, settings, run_batch(4000, True))
    reference = make_model("logistic", 0, (1, 8, 8), 10, torch.float64)
    x = torch.from_numpy(np.concatenate([data.features, canary.features[None]])).double()
    y = torch.tensor([*data.labels, canary.label])
    gradients = []
    for j in range(7):
        parts = torch.autograd.grad(
            loss(reference, x[j : j + 1], y[j : j + 1]), [*reference.parameters()]
        )
        gradients.append(torch.cat([p.flatten() for p in parts]).numpy())
    start = torch.cat([p.detach().flatten() for p in reference.parameters()]).numpy()
    taken = np.linalg.lstsq(np.array(gradients).T, ((start - got) / 0.01).T, rcond=None)[0].T
    np.testing.assert_allclose(taken, np.round(taken), atol=1e-6)
    taken = np.round(taken)
    low, high = st.binom(4000, 0.3).ppf([ALARM / 14, 1 - ALARM / 14])
    assert ((low <= taken.sum(0)) & (taken.sum(0) <= high)).all()
    correlations = np.corrcoef(taken.T)[np.triu_indices(7, 1)]
    assert np.abs(correlations).max() < st.norm.isf(ALARM / 2 / 21) / np.sqrt(4000)
    sizes = np.bincount(taken.sum(1).astype(int), minlength=8)
    assert st.chisquare(sizes, 4000 * st.binom.pmf(range(8), 7, 0.3)).pvalue > ALARM


def test_diverged_run_is_marked_and_does_not_affect_others() -> None:
    canary = records(1, seed=3).canary(0)
    threat = etcv(canary, threat_models.CanaryLoss(canary), (1, 8, 8), 10)
    settings = DpSgdSettings(3, 1.0, 1.0, (1e38, 0.1), model="mlp")
    pack = RunBatch(np.ones(4, bool), np.array([1, 0, 1, 0]), np.arange(4, dtype=np.uint64))
    out = make_engine("batched", threat, settings).run(pack)
    assert out.finite.tolist() == [True, False, True, False]
    assert (out.scores[1::2] == -np.inf).all()
    assert (out.lambda_a[1::2] == 0).all()
    calm = make_engine("batched", threat, replace(settings, learning_rates=(0.5, 0.1)))
    np.testing.assert_allclose(out.scores[::2], calm.run(pack).scores[::2], rtol=1e-4)


def test_out_of_memory_halves_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    threat = threat_models.build("ETCV", "dirac")
    settings = DpSgdSettings(3, 1.0, 1.0, (0.1,), model="logistic")
    engine = make_engine("batched", threat, settings)
    pack = run_batch(21, True)
    expected = engine.run(pack)
    sizes = []
    run_pack = type(engine)._run_pack

    def scarce(self: Any, part: Any, *rest: Any) -> Any:
        sizes.append(len(part))
        if len(part) > 5:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return run_pack(self, part, *rest)

    monkeypatch.setattr(type(engine), "_run_pack", scarce)
    out = engine.run(pack)
    assert sizes == [21, 10, 5, 5, 5, 5, 1]
    np.testing.assert_allclose(out.lambda_a, expected.lambda_a)

    def broken(self: Any, *rest: Any) -> None:
        raise RuntimeError("another matter")

    monkeypatch.setattr(type(engine), "_run_pack", broken)
    with pytest.raises(RuntimeError, match="another matter"):
        engine.run(pack)


def test_out_of_memory_with_one_run_halves_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    threat = ntcv(records(12), None, DiracCanary(), UserScore(lambda o: o.first_displacement))
    settings = DpSgdSettings(2, 1.0, 1.0, (0.1,), model="mlp")
    engine = make_engine("batched", threat, settings)
    run_pack = type(engine)._run_pack
    chunks = []

    def scarce(self: Any, part: Any, views: Any, chunk_floats: Any) -> Any:
        chunks.append(chunk_floats)
        if chunk_floats > 1_000_000:
            raise MemoryError
        return run_pack(self, part, views, chunk_floats)

    monkeypatch.setattr(type(engine), "_run_pack", scarce)
    assert engine.run(run_batch(1, True)).finite.all()
    assert chunks == [8_000_000, 4_000_000, 2_000_000, 1_000_000]


def test_mersenne_state_matches_torch_and_numpy() -> None:
    key = np.random.RandomState(77).get_state()[1].astype(np.uint64)  # type: ignore[index]
    ours = torch.Generator()
    ours.set_state(torch.from_numpy(streams.mersenne_state(key)))
    theirs = torch.Generator().manual_seed(77)
    assert torch.equal(torch.randn(999, generator=ours), torch.randn(999, generator=theirs))


def test_seeds_with_equal_lower_bits_give_different_noise() -> None:
    seeds = np.array([5, 5 + 2**32, 5], dtype=np.uint64)
    a, b, c = (torch.randn(8, generator=g) for g in streams.generators(seeds, 0, "cpu"))
    assert torch.equal(a, c)
    assert not torch.equal(a, b)
    assert not torch.equal(a, torch.randn(8, generator=streams.generators(seeds, 1, "cpu")[0]))


def test_losses_of_the_final_models() -> None:
    data = records(50)
    seen = []

    def look(observation: Any) -> Any:
        seen.append((observation.parameters(), observation.loss(data.features, data.labels)))
        return seen[-1][1]

    threat = etcv(DiracCanary(), UserScore(look), (1, 8, 8), 10)
    engine = make_engine("batched", threat, DpSgdSettings(3, 1.0, 0.1, (0.1,), model="mlp"))
    engine.run(run_batch(3, True))
    parameters, losses = seen[0]
    model = make_model("mlp", 0, (1, 8, 8), 10, torch.float64)
    for row, value in zip(parameters, losses, strict=True):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(row), model.parameters())
        expected = loss(model, torch.from_numpy(data.features).double(), torch.tensor(data.labels))
        assert value == pytest.approx(expected.item(), rel=1e-5)


def test_shared_runs_match_separate_runs_for_several_scores() -> None:
    data, canary = records(12), records(1, seed=3).canary(0)
    honest = ntnv(data, data, canary)
    threats = (honest, ntcv(data, data, canary, threat_models.CanaryLoss(canary)))
    settings = DpSgdSettings(3, 1.0, 1.0, (0.1,), model="mlp")
    pack = run_batch(5, True)
    shared = make_engine("batched", honest, settings).run_shared(pack, threats)
    for out, threat in zip(shared, threats, strict=True):
        alone = make_engine("batched", threat, settings).run(pack)
        np.testing.assert_array_equal(out.lambda_a, alone.lambda_a)
        np.testing.assert_array_equal(out.scores, alone.scores)


@pytest.mark.parametrize("changes", [{}, {"momentum": 0.5, "sampling_rate": 0.5}])
def test_runs_without_a_canary_are_shared_by_all_canaries(changes: dict[str, Any]) -> None:
    data, canary = records(12), records(1, seed=3).canary(0)
    same, other = replace(canary, name="again"), records(1, seed=5).canary(0)
    threats = (
        ntnv(data, data, canary),
        ntcv(data, None, DiracCanary(), threat_models.FirstCoordinate()),
        ntcv(data, None, same, threat_models.CanaryLoss(same)),
        ntnv(data, data, other),
    )
    settings = replace(DpSgdSettings(3, 1.0, 0.7, (0.1, 0.2), model="mlp"), **changes)
    pack = replace(run_batch(7, True, candidates=2), included=np.arange(7) % 3 == 0)
    engine = make_engine("batched", threats[0], settings, precision="float64")
    shared = engine.run_shared(pack, threats)
    for out, threat in zip(shared, threats, strict=True):
        alone = make_engine("batched", threat, settings, precision="float64").run(pack)
        np.testing.assert_allclose(out.lambda_a, alone.lambda_a, rtol=1e-10)
        np.testing.assert_allclose(out.lambda_c, alone.lambda_c, rtol=1e-10)
        np.testing.assert_allclose(out.scores, alone.scores, rtol=1e-10)
        np.testing.assert_array_equal(out.finite, alone.finite)
    np.testing.assert_array_equal(shared[0].lambda_a, shared[2].lambda_a)  # the same record
    assert len({out.lambda_a.tobytes() for out in shared}) == 3


def test_invalid_arguments_are_rejected() -> None:
    threat = threat_models.build("ETCV", "dirac")
    settings = DpSgdSettings(3, 1.0, 1.0, (0.1,))
    with pytest.raises(ValueError, match="device must be cpu or an available CUDA device"):
        make_engine("batched", threat, settings, device="cuda:99")
    with pytest.raises(ValueError, match="precision must be one of float32, float64, tf32, bf16"):
        make_engine("batched", threat, settings, precision="float16")
    shapeless = replace(threat, score=UserScore(lambda observation: np.zeros(1)))
    with pytest.raises(ValueError, match=r"one number per run, .*\(1,\) for 3 runs"):
        make_engine("batched", shapeless, settings).run(run_batch(3, True))
    with pytest.raises(ValueError, match="must have shape"):
        etcv(InputCanary(np.zeros((1, 9, 9), np.float32), 0), UserScore(len), (1, 8, 8), 10)

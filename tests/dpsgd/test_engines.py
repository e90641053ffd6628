"""Engines against each other: the Opacus reference, and the exact reductions.

Each statistical test has a false-alarm rate of 1e-4.
"""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats as st
import torch
import toy
from real_data import DATA_ROOT
from torch import nn
from toy import ALARM, SILENT, records, run_batch

import threat_models
from audit.dpsgd import DpSgdSettings, RunBatch, choose_engine, make_engine
from audit.dpsgd.engines import project
from audit.dpsgd.models import make_model
from canaries import DiracCanary
from threat_models import CanaryLoss, UserScore, datasets, etcv, ntcv, ntnv

torch.set_num_threads(1)


def threats() -> dict[str, threat_models.ThreatModel]:
    data, canary = records(10), records(1, seed=9).canary(0)
    return {
        "NTNV input": ntnv(data, records(7, seed=2), canary),
        "NTCV input": ntcv(data, None, canary, CanaryLoss(canary)),
        "NTCV dirac": ntcv(data, None, DiracCanary(), threat_models.FirstCoordinate()),
        "ETCV input": etcv(canary, CanaryLoss(canary), (1, 8, 8), 10),
        "ETCV dirac": etcv(DiracCanary(), threat_models.FirstCoordinate(), (1, 8, 8), 10),
    }


@pytest.mark.slow
@pytest.mark.parametrize("threat", threats())
@pytest.mark.parametrize("changes", [{}, {"momentum": 0.5, "sampling_rate": 0.5}])
def test_opacus_matches_batched_without_noise(threat: str, changes: dict[str, Any]) -> None:
    # Most records are clipped; Opacus adds 1e-6 to every norm.
    settings = DpSgdSettings(6, SILENT, 0.7, (0.05, 0.2), model="convnet")
    settings = replace(settings, **changes)
    pack = RunBatch(
        np.array([False, True, True]), np.array([0, 1, 0]), np.arange(3, dtype=np.uint64)
    )
    ours, theirs = (
        make_engine(name, threats()[threat], settings, precision="float64").run(pack)
        for name in ("batched", "opacus")
    )
    np.testing.assert_allclose(theirs.lambda_a, ours.lambda_a, rtol=1e-5, atol=1e-12)
    for proxy in ("lambda_c", "lambda_known", "lambda_start", "lambda_end"):
        expected = getattr(ours, proxy)
        np.testing.assert_allclose(getattr(theirs, proxy), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(theirs.scores, ours.scores, rtol=1e-5, atol=1e-12)
    assert ours.lambda_a[1] != 0
    assert theirs.finite.all()


def test_lambda_known_is_the_log_likelihood_ratio_of_the_released_steps() -> None:
    # With training records as well as without them, the Dirac canary's released coordinate minus
    # the known part is N(b, sigma^2 / N) on average over the steps, in units of C.
    settings = DpSgdSettings(5, 2.0, 0.7, (0.05,), model="logistic")
    size = 2000
    pack = RunBatch(np.arange(size) % 2 == 1, np.zeros(size, int), np.arange(size, dtype=np.uint64))
    for threat in ("NTCV dirac", "ETCV dirac"):
        found = make_engine("batched", threats()[threat], settings).run(pack)
        x = (found.lambda_known - pack.included) * np.sqrt(5) / 2.0
        assert st.kstest(x, "norm").pvalue > 1e-4  # errs once in ten thousand seeds
        np.testing.assert_allclose(found.lambda_start, found.lambda_a, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found.lambda_end, found.lambda_start)
    # For an input canary, the likelihood ratio of the other world has mean 1 in either world.
    loud = DpSgdSettings(5, 8.0, 0.7, (0.05,), model="logistic")
    found = make_engine("batched", threats()["NTCV input"], loud).run(pack)
    log_ratio = (found.lambda_known - 0.5) * 5 / 8.0**2
    for ratio in (np.exp(log_ratio[~pack.included]), np.exp(-log_ratio[pack.included])):
        error = ratio.std() / np.sqrt(len(ratio))
        assert abs(ratio.mean() - 1) < 4 * error  # errs for one seed in ten thousand
        assert ratio.std() > 0.05


@pytest.mark.parametrize("threat", ["NTCV input", "NTCV dirac", "ETCV dirac"])
def test_opacus_and_batched_have_equal_standardised_sums(threat: str) -> None:
    settings = DpSgdSettings(4, SILENT, 0.7, (0.05,), model="mlp")
    unit = 0.7 * SILENT * 2  # the unit of the standardised sum
    score = UserScore(lambda seen: unit * seen.standardised_sum)
    spy = replace(threats()[threat], score=score)
    pack = RunBatch(np.array([False, True]), np.zeros(2, int), np.arange(2, dtype=np.uint64))
    ours, theirs = (
        make_engine(name, spy, settings, precision="float64").run(pack).scores
        for name in ("batched", "opacus")
    )
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    np.testing.assert_allclose(ours[0], 0, atol=1e-12)
    if "dirac" in threat:
        np.testing.assert_allclose(ours[1], 4 * 0.7)


@pytest.mark.thin(3)
@pytest.mark.parametrize("threat", ["NTCV dirac", "ETCV input", "ETCV dirac"])
def test_opacus_matches_the_distribution_of_batched(threat: str) -> None:
    settings = DpSgdSettings(3, 1.0, 0.7, (0.3,), model="logistic")
    ours = make_engine("batched", threats()[threat], settings).run(run_batch(4000, True, 1))
    theirs = make_engine("opacus", threats()[threat], settings).run(run_batch(300, True, 2))
    assert st.ks_2samp(theirs.lambda_a, ours.lambda_a).pvalue > ALARM
    assert st.ks_2samp(theirs.scores, ours.scores).pvalue > ALARM


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("changes", [{}, {"momentum": 0.8}, {"sampling_rate": 0.5}])
def test_projected_matches_batched_without_noise(model: str, changes: dict[str, Any]) -> None:
    settings = DpSgdSettings(8, SILENT, 0.7, (0.05, 0.2), model=model)
    settings = replace(settings, **changes)
    pack = run_batch(6, True, candidates=2)
    full, small = (
        make_engine(name, threats()["ETCV input"], settings, precision="float64").run(pack)
        for name in ("batched", "projected")
    )
    np.testing.assert_allclose(small.lambda_a, full.lambda_a, rtol=1e-12)
    np.testing.assert_allclose(small.scores, full.scores, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.thin(4)
@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("changes", [{}, {"model": "logistic"}, {"momentum": 0.8}])
def test_projected_matches_the_distribution_of_batched(
    included: bool, changes: dict[str, Any]
) -> None:
    settings = replace(DpSgdSettings(10, 1.0, 0.7, (0.2,), model="mlp"), **changes)
    threat = threat_models.build("ETCV", "input")
    full = make_engine("batched", threat, settings).run(run_batch(4000, included, 1))
    small = make_engine("projected", threat, settings).run(run_batch(20_000, included, 2))
    assert st.ks_2samp(full.lambda_a, small.lambda_a).pvalue > ALARM
    assert st.ks_2samp(full.scores, small.scores).pvalue > ALARM
    mixed = [out.lambda_a + 0.3 * out.scores for out in (full, small)]
    assert st.ks_2samp(*mixed).pvalue > ALARM  # type: ignore[call-overload]


@pytest.mark.thorough
@pytest.mark.thin(2)
@pytest.mark.parametrize("included", [False, True])
def test_collapsed_matches_the_distribution_of_batched(included: bool) -> None:
    data = records(30)
    settings = DpSgdSettings(10, 1.0, (0.2, 0.3), (0.2, 0.4), model="mlp")
    of = {
        "loss": lambda seen: seen.loss(data.features, data.labels),
        "last": lambda seen: seen.parameters()[:, -1],
        "sum": lambda seen: seen.standardised_sum,
    }

    def played(engine: Any, number: Any, seed: Any) -> Any:
        """All scores of the same runs, and lambda_a; each call scores one pack."""
        packs = []

        def score(seen: Any) -> Any:
            packs.append({name: np.asarray(one(seen)) for name, one in of.items()})
            return packs[-1]["loss"]

        threat = etcv(DiracCanary(), UserScore(score), (1, 8, 8), 10)
        out = make_engine(engine, threat, settings).run(run_batch(number, included, seed, 4))
        scores = {name: np.concatenate([pack[name] for pack in packs]) for name in of}
        np.testing.assert_array_equal(scores["loss"], out.scores)
        return scores | {"lambda_a": out.lambda_a}

    full, small = played("batched", 4000, 1), played("collapsed", 20_000, 2)
    for name in full:
        assert st.ks_2samp(full[name], small[name]).pvalue > ALARM, name


def test_auto_selects_the_smallest_exact_problem() -> None:
    settings = DpSgdSettings(5, 1.0, 1.0, (0.1,), model="mlp")
    made = threats()
    last = replace(made["ETCV dirac"], score=UserScore(lambda seen: seen.parameters()[:, -1]))
    cases = [
        (
            made["ETCV dirac"],
            settings,
            "reduced",
            "distribution of the released statistic is known",
        ),
        (last, settings, "collapsed", "distribution of the final model is known"),
        (last, replace(settings, momentum=(0.0, 0.5)), "batched", "whole model"),
        (last, replace(settings, max_grad_norm=(0.5, 1.0)), "collapsed", "final model is known"),
        (made["ETCV input"], settings, "projected", "one input is trained"),
        (made["ETCV input"], replace(settings, model="convnet"), "batched", "input canary"),
        (made["NTCV dirac"], settings, "batched", "a training set"),
    ]
    for threat, chosen, name, reason in cases:
        got, said = choose_engine(threat, chosen)
        assert got == name
        assert reason in said
        make_engine(got, threat, chosen)


def test_inapplicable_reductions_give_the_reason() -> None:
    settings = DpSgdSettings(5, 1.0, 1.0, (0.1,), model="mlp")
    made = threats()
    for name, threat, reason in [
        ("collapsed", "ETCV input", "an input canary"),
        ("collapsed", "NTCV dirac", "a training set"),
        ("projected", "NTCV input", "a training set"),
        ("projected", "ETCV dirac", "a Dirac canary"),
    ]:
        with pytest.raises(ValueError, match=f"engine {name} does not apply, .*{reason}"):
            make_engine(name, made[threat], settings)
    with pytest.raises(ValueError, match="does not begin with a Linear layer"):
        make_engine("projected", made["ETCV input"], replace(settings, model="convnet"))
    with pytest.raises(ValueError, match="momentum"):
        make_engine("collapsed", made["ETCV dirac"], replace(settings, momentum=(0.0, 0.5)))
    other = replace(made["ETCV input"], score=threat_models.FirstCoordinate())
    with pytest.raises(ValueError, match="first-coordinate, which uses more"):
        make_engine("projected", other, settings)


def test_projected_rejects_shared_weights() -> None:
    square = nn.Linear(64, 64)
    tied = nn.Sequential(nn.Flatten(), square, nn.Tanh(), square, nn.Linear(64, 10))
    assert "several layers share" in project(threats()["ETCV input"], tied)


@pytest.mark.parametrize("threat", ["NTNV", "NTCV"])
@pytest.mark.parametrize("canary", ["dirac", "input"])
def test_real_training_on_digits(threat: str, canary: str) -> None:
    model = threat_models.build(threat, canary, train_size=300)
    settings = DpSgdSettings(20, 0.5, 1.0, (0.02,), model="mlp")
    out = make_engine("batched", model, settings).run(run_batch(6, True))
    without = make_engine("batched", model, settings).run(run_batch(6, False))
    assert out.finite.all()
    assert (out.lambda_a > without.lambda_a).mean() > 0.5
    if threat == "NTNV":
        # Training works: an untrained model has loss log(10) on each of 360 records.
        assert (-out.scores / 360 < 0.7 * np.log(10)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("dataset", ["FASHION", "CIFAR10"])
def test_real_files(dataset: str) -> None:
    other = "MNIST" if dataset == "FASHION" else dataset
    if not all(
        (DATA_ROOT / f.path).exists() for name in (dataset, other) for f in datasets.FILES[name]
    ):
        pytest.skip(f"no files of {dataset} and {other} under AUDIT_DATA_ROOT")
    canary = datasets.canary(other, 7, str(DATA_ROOT))
    data = datasets.load(dataset, True, str(DATA_ROOT), 200)
    threat = ntnv(data, datasets.load(dataset, False, str(DATA_ROOT), 100), canary)
    settings = DpSgdSettings(4, SILENT, 0.5, (0.02,), model="convnet")
    pack = run_batch(1, True)
    ours, theirs = (make_engine(name, threat, settings).run(pack) for name in ("batched", "opacus"))
    np.testing.assert_allclose(theirs.lambda_a, ours.lambda_a, rtol=1e-3)
    np.testing.assert_allclose(theirs.scores, ours.scores, rtol=1e-4)


def test_every_global_generator_determines_the_initial_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def factory() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        with torch.no_grad():
            model[1].bias[0] = random.random()
            model[1].bias[1] = float(np.random.rand())  # noqa: NPY002
        return model

    monkeypatch.setattr(toy, "drawn", factory, raising=False)

    def weights(seed: int) -> torch.Tensor:
        model = make_model("toy.drawn", seed, (1, 8, 8), 10, torch.float32)
        return nn.utils.parameters_to_vector(model.parameters())

    def states() -> tuple[Any, ...]:
        of_numpy = repr(np.random.get_state())  # noqa: NPY002
        return random.getstate(), of_numpy, torch.get_rng_state().tolist()

    before = states()
    assert weights(1).equal(weights(1))
    # The last 10 parameters are the biases.
    assert not (weights(1) == weights(2))[:-8].any()
    assert states() == before

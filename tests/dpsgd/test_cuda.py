"""The batched engine on a GPU.

A fake GPU checks that no tensor stays on the CPU, that waits and launches are few, and that sizes
fit in memory. `TestGpu` needs a real GPU and is skipped without one. Each of its statistical tests
has a false-alarm rate of 1e-4.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats as st
import torch
from fake_cuda import FakeCuda, MixedDevices
from torch import nn
from toy import ALARM, SILENT, assert_uncorrelated, records, run_batch

from audit.dpsgd import DpSgdSettings, make_engine, streams
from audit.dpsgd.batched import BatchedEngine
from audit.dpsgd.devices import MemoryPolicy
from canaries import DiracCanary
from threat_models import CanaryLoss, FirstCoordinate, Records, UserScore, etcv, ntcv, ntnv

torch.set_num_threads(1)
DATA, CANARY, OTHER = records(12), records(1, seed=3).canary(0), records(1, seed=5).canary(0)
SHAPE = (1, 8, 8)


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ELU(), nn.LayerNorm((6, 6)), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


class Residual(nn.Module):
    """A module that only vmap supports."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
        self.norm = nn.GroupNorm(2, 16)
        self.register_buffer("shift", torch.ones(16))

    def forward(self, x: Any) -> Any:
        x = self.norm(self.first(x.flatten(1)))
        return self.last(x + torch.tanh(x) * self.shift)


def look(observation: Any) -> Any:
    return observation.parameters()[:, 3] + observation.standardised_sum


THREATS = {
    "NT": (
        ntnv(DATA, records(7, seed=2), CANARY),
        ntcv(DATA, None, DiracCanary(), FirstCoordinate()),
        ntcv(DATA, None, OTHER, UserScore(look)),
    ),
    "ETCV": (
        etcv(CANARY, CanaryLoss(CANARY), SHAPE, 10),
        etcv(DiracCanary(), UserScore(look), SHAPE, 10),
    ),
}
SETTINGS = DpSgdSettings(4, 1.0, 0.7, (0.1, 0.3), model="mlp")


def play(
    threats: Any,
    settings: Any,
    device: Any = "cpu",
    name: Any = "batched",
    precision: Any = "float64",
    count: Any = 7,
) -> Any:
    engine = make_engine(name, threats[0], settings, device, precision)
    pack = run_batch(count, True, candidates=len(settings.candidates))
    pack = replace(pack, included=np.arange(count) % 3 == 0)
    return engine.run_shared(pack, threats) if len(threats) > 1 else [engine.run(pack)]


def assert_same(found: Any, expected: Any, **tolerance: Any) -> None:
    tolerance = tolerance or {"rtol": 1e-9}
    for ours, theirs in zip(found, expected, strict=True):
        for name, values in vars(ours).items():
            np.testing.assert_allclose(values, getattr(theirs, name), **tolerance, err_msg=name)


@pytest.fixture
def as_seeded_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the CPU use torch's generators with the runs' seeds, as on a GPU."""
    generators = streams.generators
    with_cuda = lambda seeds, stream, _: generators(seeds, stream, "cuda")  # noqa: E731
    monkeypatch.setattr(streams, "generators", with_cuda)
    monkeypatch.setattr("audit.dpsgd.noise._DEVICES", ())
    at_once = lambda self, width, steps: min(steps, max(1, 2**12 // width))  # noqa: E731
    monkeypatch.setattr(MemoryPolicy, "steps_at_once", at_once)


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.usefixtures("as_seeded_there")
@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("changes", [{}, {"sampling_rate": 0.4, "momentum": (0, 0.5)}])
@pytest.mark.parametrize("model", ["logistic", "convnet", "normed", "Residual"])
def test_gpu_matches_cpu(
    monkeypatch: pytest.MonkeyPatch, model: str, threat: str, changes: dict[str, Any]
) -> None:
    dotted = f"{__name__}.{model}" if model in ("normed", "Residual") else model
    settings = replace(SETTINGS, model=dotted, max_grad_norm=(0.3, 0.7), **changes)
    with FakeCuda(monkeypatch):
        found = play(THREATS[threat], settings, "cuda")
    assert_same(found, play(THREATS[threat], settings))
    assert all(len(np.unique(out.scores)) == 7 for out in found)


@pytest.mark.usefixtures("as_seeded_there")
@pytest.mark.parametrize("name", ["projected", "collapsed"])
def test_reductions_on_gpu_match_cpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    threat = etcv(CANARY if name == "projected" else DiracCanary(), CanaryLoss(CANARY), SHAPE, 10)
    with FakeCuda(monkeypatch):
        found = play([threat], SETTINGS, "cuda", name)
    assert_same(found, play([threat], SETTINGS, name=name))


@pytest.mark.thorough
@pytest.mark.usefixtures("as_seeded_there")
@pytest.mark.thin(2)
@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_bf16_products_match_rounding_on_cpu(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    settings = replace(SETTINGS, model=model)
    with FakeCuda(monkeypatch):
        found = play(THREATS["NT"], settings, "cuda", precision="bf16")
    expected = play(THREATS["NT"], settings, precision="bf16")
    assert_same(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64", "tf32"])
def test_every_tensor_left_on_the_cpu_is_detected(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    # Omits each copy to the GPU once.
    settings = replace(SETTINGS, steps=2, sampling_rate=0.5, momentum=0.5)
    with FakeCuda(monkeypatch) as gpu:
        play(THREATS["NT"], settings, "cuda", precision=precision)
        copies = gpu.counts["copies"]
    assert copies > 20
    for lost in range(1, copies):  # the first copy checks whether the device is available
        with FakeCuda(monkeypatch) as gpu:
            gpu.lost = lost
            with pytest.raises(MixedDevices):
                play(THREATS["NT"], settings, "cuda", precision=precision)


def per_step(
    monkeypatch: pytest.MonkeyPatch,
    threats: Any,
    settings: Any,
    runs_together: Any,
    records_together: Any = 10**6,
) -> Any:
    """The numbers of kernel launches, copies and waits in one step."""
    found = []
    for steps in (2, 4):
        with FakeCuda(monkeypatch) as gpu:
            engine = make_engine(
                "batched", threats[0], replace(settings, steps=steps), "cuda", "float32"
            )
            floats = runs_together * records_together * engine._model.record_floats
            monkeypatch.setattr(MemoryPolicy, "chunk_floats", lambda self: floats)  # noqa: B023
            gpu.counts.clear()
            engine.run_shared(run_batch(runs_together, True), threats)
            found.append(gpu.counts)
        monkeypatch.undo()
    assert found[0]["launches"] > 0
    return {name: (found[1][name] - found[0][name]) / 2 for name in found[1]}


@pytest.mark.slow
@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_a_step_never_waits_and_launches_do_not_grow_with_runs(
    monkeypatch: pytest.MonkeyPatch, model: str, threat: str
) -> None:
    settings = replace(SETTINGS, model=model, momentum=0.5)
    threats = THREATS[threat][:1]
    few, many = (per_step(monkeypatch, threats, settings, count) for count in (2, 11))
    assert few == many
    assert few["waits"] == few["copies"] == 0
    # The proxies of known records add about ten launches to a step.
    assert few["launches"] < (130 if model == "mlp" else 240)


def test_sampled_batches_need_one_synchronisation_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found = per_step(monkeypatch, THREATS["NT"][:1], replace(SETTINGS, sampling_rate=0.5), 3)
    assert (found["waits"], found["copies"]) == (1, 0)


@pytest.mark.slow
def test_each_additional_chunk_adds_only_its_own_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    one, three = (per_step(monkeypatch, THREATS["NT"][:1], SETTINGS, 3, n) for n in (12, 4))
    assert three["launches"] - one["launches"] <= 2 * 40


def test_one_launch_draws_the_noise_of_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # One launch per run and block of steps. With 5 us per launch, one per step would take an hour
    # per row of table 2.
    settings = replace(SETTINGS, steps=300, model="mlp")
    with FakeCuda(monkeypatch) as gpu:
        engine = make_engine("batched", THREATS["ETCV"][1], settings, "cuda")
        engine.run(run_batch(3, True))
        assert gpu.kernels["normal_"] == 3 * -(-300 * engine.parameters // 2**18)


def images(count: int, size: int) -> Records:
    random = np.random.default_rng(0)
    x = random.random((count, 1, size, size), dtype=np.float32)
    return Records(x, random.integers(10, size=count), 10, "NOISE")


def large(training: Any, size: Any = 28) -> Any:
    data = images(20, size)
    canary = data.canary(0)
    if training:
        return ntnv(data, data, canary)
    return etcv(canary, CanaryLoss(canary), canary.features.shape, 10)


@pytest.mark.parametrize(
    ("gigabytes", "model", "training", "expected"),
    [
        # Expected runs per pack, and records of all runs per chunk.
        (141, "mlp", True, (4096, 15_561_475)),
        (141, "convnet", True, (512, 44_331)),
        (141, "convnet", False, (4096, 44_331)),
        (8, "mlp", True, (1024, 1_945_184)),
        (8, "convnet", True, (64, 5_541)),
        (8, "convnet", False, (1024, 5_541)),
        (0.1, "mlp", True, (8, 30_393)),
        (0.1, "convnet", True, (1, 86)),
        (0.001, "convnet", True, (1, 0)),
    ],
)
def test_pack_size_for_gpu_memory(
    monkeypatch: pytest.MonkeyPatch,
    gigabytes: float,
    model: str,
    training: bool,
    expected: tuple[int, int],
) -> None:
    settings = DpSgdSettings(300, 1.0, 1.0, (0.1,), model=model)
    with FakeCuda(monkeypatch, gigabytes * 1e9):
        engine = make_engine("batched", large(training), settings, "cuda")
        found = engine.runs_per_pack(), engine.memory.chunk_floats() // engine._model.record_floats
        assert found == expected
        # Results must not depend on how much of the memory is already used.
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1e5, gigabytes * 1e9))
        assert engine.runs_per_pack() == expected[0]


@pytest.mark.slow
def test_random_numbers_do_not_depend_on_gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # Outcomes do not depend on it either, up to rounding.
    settings = replace(SETTINGS, steps=12, sampling_rate=0.5, momentum=0.5)
    found = []
    for memory in (141e9, 4e6):
        with FakeCuda(monkeypatch, memory):
            engine = make_engine("batched", THREATS["NT"][0], settings, "cuda", "float64")
            found.append((engine.runs_per_pack(), engine.run(run_batch(9, True, candidates=2))))
    assert found[0][0] > 9 > 2 * found[1][0]
    assert_same([found[1][1]], [found[0][1]])


@pytest.mark.thorough
@pytest.mark.thin(2)
@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_packs_fit_in_gpu_memory(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    settings = DpSgdSettings(40, 1.0, 1.0, (0.1,), model=model, momentum=0.5)
    with FakeCuda(monkeypatch, 3e7) as gpu:
        engine = make_engine("batched", large(True), settings, "cuda")
        engine.run(run_batch(engine.runs_per_pack(), True))
        assert gpu.peak < 1.5e7


@pytest.mark.slow
def test_out_of_memory_halves_packs_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, model="convnet", steps=2)
    freed = []
    with FakeCuda(monkeypatch) as gpu:
        engine = make_engine("batched", THREATS["NT"][0], settings, "cuda", "float64")
        before = gpu.live
        pack = run_batch(12, True, candidates=2)
        expected = engine.run(pack)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(gpu.live - before))
        for share in (0.6, 0.1):
            gpu.limit, gpu.peak = before + share * (gpu.peak - before), 0
            found = engine.run(pack)
            assert_same([found], [expected])
            gpu.limit, gpu.peak = float("inf"), 0
            engine.run(pack)
        assert len(freed) >= 1 + 3
        # The memory of the failed pack is freed before the next attempt.
        assert max(freed) <= 0
        gpu.limit = before
        with pytest.raises(torch.OutOfMemoryError):
            engine.run(pack)


def test_other_out_of_memory_errors_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("batched", THREATS["NT"][0], SETTINGS)
    run_pack, sizes = BatchedEngine._run_pack, []

    def scarce(self: Any, pack: Any, *rest: Any) -> Any:
        sizes.append(len(pack))
        if len(pack) > 2:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
        return run_pack(self, pack, *rest)

    monkeypatch.setattr(BatchedEngine, "_run_pack", scarce)
    engine.run(run_batch(4, True))
    assert sizes == [4, 2, 2]


@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no GPU")
class TestGpu:
    """Tests that need a real GPU."""

    @pytest.mark.parametrize("changes", [{}, {"momentum": (0, 0.5), "max_grad_norm": (0.3, 5)}])
    @pytest.mark.parametrize("threat", THREATS)
    @pytest.mark.parametrize("model", ["logistic", "mlp", "convnet", "normed", "Residual"])
    def test_without_noise_it_matches_the_cpu(
        self, model: str, threat: str, changes: dict[str, Any]
    ) -> None:
        dotted = f"{__name__}.{model}" if model in ("normed", "Residual") else model
        settings = replace(SETTINGS, model=dotted, noise_multiplier=SILENT, **changes)
        # Divided by so small a noise, the standardised sum is only rounding error.
        score = UserScore(lambda observation: observation.parameters()[:, 3])
        threats = [replace(each, score=score) for each in THREATS[threat]]
        found = play(threats, settings, "cuda")
        assert_same(found, play(threats, settings), rtol=1e-7, atol=1e-9)
        again = play(threats, settings, "cuda")
        for one, two in zip(found, again, strict=True):
            np.testing.assert_array_equal(one.lambda_a, two.lambda_a)
            np.testing.assert_array_equal(one.scores, two.scores)

    @pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
    @pytest.mark.parametrize("model", ["mlp", "convnet"])
    def test_precisions(self, model: str, precision: str) -> None:
        settings = replace(SETTINGS, model=model, noise_multiplier=SILENT)
        found, exact = (
            play(THREATS["NT"], settings, "cuda", precision=each)[0].lambda_a
            for each in (precision, "float64")
        )
        errors = {"float32": 1e-4, "tf32": 0.1, "bf16": 0.2}  # includes ReLUs that change sign
        assert np.abs(found - exact).max() < errors[precision] * np.abs(exact).max()

    @pytest.mark.parametrize("steps", [1, 60])
    def test_noise_is_independent_with_the_right_variance(self, steps: int) -> None:
        engine = make_engine(
            "batched", THREATS["ETCV"][1], replace(SETTINGS, steps=steps, model="logistic"), "cuda"
        )
        pack = replace(
            run_batch(2000 // steps, False), seeds=np.arange(2000 // steps, dtype=np.uint64)
        )
        pack = replace(pack, candidate=np.zeros(len(pack), np.int64))
        noise = torch.stack(
            [torch.cat(step, 1) for step in engine._noise(pack, torch.zeros(1, device="cuda"))]
        )
        z = noise.double().cpu().numpy().reshape(-1, noise.shape[-1]) / 0.7
        assert st.kstest(z.ravel(), "norm").pvalue > ALARM
        assert_uncorrelated(z)

    @pytest.mark.parametrize("changes", [{}, {"sampling_rate": 0.4}, {"momentum": 0.5}])
    def test_dirac_canary_matches_the_distribution_of_the_reduced_engine(
        self, changes: dict[str, Any]
    ) -> None:
        settings = replace(SETTINGS, steps=10, noise_multiplier=2.0, **changes)
        threat = etcv(DiracCanary(), FirstCoordinate(), SHAPE, 10)
        full = make_engine("batched", threat, settings, "cuda").run(run_batch(4000, True, 1, 2))
        reduced = make_engine("reduced", threat, settings).run(run_batch(100_000, True, 2, 2))
        assert st.ks_2samp(full.lambda_a, reduced.lambda_a).pvalue > ALARM
        assert st.ks_2samp(full.lambda_c, reduced.lambda_c).pvalue > ALARM
        assert st.ks_2samp(full.scores, reduced.scores).pvalue > ALARM

    def test_outcome_does_not_depend_on_the_pack(self) -> None:
        settings = replace(SETTINGS, model="convnet", sampling_rate=0.5)
        engine = make_engine("batched", THREATS["NT"][0], settings, "cuda", "float64")
        pack = run_batch(9, True, candidates=2)
        few = engine.run(pack.at(slice(4, 7)))
        np.testing.assert_allclose(few.lambda_a, engine.run(pack).lambda_a[4:7], rtol=1e-9)

    def test_training_recovers_from_out_of_memory(self) -> None:
        engine = make_engine("batched", large(True), replace(SETTINGS, model="convnet"), "cuda")
        pack = run_batch(512, True, candidates=2)
        expected = engine.run(pack)
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, 4e8 / total))
        try:
            torch.cuda.reset_peak_memory_stats()
            found = engine.run(pack)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert torch.cuda.memory_stats()["num_ooms"] > 0
        np.testing.assert_allclose(found.lambda_a, expected.lambda_a, rtol=1e-3, atol=1e-4)

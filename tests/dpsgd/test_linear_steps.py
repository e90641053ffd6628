"""The compiled steps on one record against autograd in float64, on every instruction set."""

import importlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy import records, run_batch

from audit.dpsgd import DpSgdSettings, batched, make_engine, models, noise
from audit.dpsgd.batched import LinearSteps
from audit.dpsgd.extensions import load_extension
from audit.dpsgd.layers import parse_network
from threat_models import CanaryLoss, etcv

CAPABILITIES = ["DEFAULT", "AVX2", "AVX512"]
NETWORKS: dict[str, Any] = {
    "the papers' MLP": models.mlp((1, 28, 28), 10),
    "logistic regression": nn.Sequential(nn.Linear(13, 3)),
    "one input, one output": nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2)),
    "widths and whole vectors": nn.Sequential(
        nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 33, bias=False), nn.ReLU(),
        nn.Flatten(), nn.Linear(33, 16), nn.Linear(16, 5),
    ),
    # Numbers are drawn 4,096 at a time, so that a row begins and ends in the middle.
    "rows longer than a draw": nn.Sequential(nn.Linear(4500, 2), nn.ReLU(), nn.Linear(2, 3)),
    "one class": nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1)),
}  # fmt: skip


def extension(capability: str) -> Any:
    here = torch.backends.cpu.get_cpu_capability()
    if here not in CAPABILITIES[CAPABILITIES.index(capability) :]:
        pytest.skip(f"a processor without {capability}")
    compiled = load_extension("noise", capability)
    if compiled is None:
        pytest.skip("no compiler when this was installed")
    return compiled


@pytest.fixture(params=CAPABILITIES)
def capability(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(noise, "_compiled", extension(request.param))
    return str(request.param)


@dataclass
class Setting:
    """The inputs of `steps` of R runs."""

    state: list[Tensor]
    taken: Tensor
    clip: Tensor
    descent: Tensor
    seeds: Any
    scales: Any
    x: Tensor
    label: Tensor


def setting(model: nn.Sequential, runs: int, steps: int) -> Setting:
    generator = torch.Generator().manual_seed(runs)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    widths = [p[0].numel() for p in model.parameters()]
    state = [
        normal(runs, p.numel()) * (width**-0.5 if p.dim() > 1 else 0.1)
        for p, width in zip(model.parameters(), widths, strict=True)
    ]
    inputs = next(model.parameters()).shape[1]
    classes = list(model.parameters())[-1].shape[0]
    return Setting(
        state,
        (torch.rand(steps, runs, generator=generator) < 0.7).float(),
        # Some runs clip the gradient, others do not.
        torch.tensor([0.1, 100.0, 1.0]).repeat(runs)[:runs],
        -torch.linspace(0.05, 0.5, runs),
        np.arange(runs, dtype=np.uint64) + 5,
        np.linspace(0.02, 0.2, runs, dtype=np.float32),
        normal(1, inputs),
        torch.tensor([classes // 2]),
    )


def trained(model: nn.Sequential, s: Setting) -> tuple[list[Tensor], list[Tensor]]:
    """The final weights, and all that is returned for the steps, each [steps, R]."""
    state = [w.clone() for w in s.state]
    take = LinearSteps(parse_network(model), s.x, s.label)
    steps = list(take(state, iter(s.taken), s.clip, s.descent, s.seeds, s.scales))
    return state, [torch.stack(values) for values in zip(*steps, strict=True)]


def exact(model: nn.Sequential, s: Setting) -> tuple[list[Tensor], list[Tensor]]:
    """`trained` by autograd, one run at a time, in float64 with the same noise."""
    size = sum(w.shape[1] for w in s.state)
    drawn = torch.empty(len(s.taken), len(s.seeds), size)
    for step, numbers in enumerate(drawn):
        noise.fill_normals(numbers, s.seeds, noise.NOISE_STREAM, step, s.scales)
    outcomes = torch.zeros(3, *s.taken.shape, dtype=torch.float64)
    finals = []
    for run in range(len(s.seeds)):
        weights = [
            w[run].double().view(p.shape) for w, p in zip(s.state, model.parameters(), strict=True)
        ]
        for step in range(len(s.taken)):
            gradient = clipped_gradient(model, weights, s, run)
            p = drawn[step, run].double() + s.taken[step, run] * gradient
            outcomes[:, step, run] = torch.stack([p @ gradient, p[0], gradient @ gradient])
            moved = torch.split(s.descent[run].double() * p, [w.numel() for w in weights])
            weights = [w + m.view_as(w) for w, m in zip(weights, moved, strict=True)]
        finals.append([w.flatten() for w in weights])
    return [torch.stack(w) for w in zip(*finals, strict=True)], list(outcomes)


def clipped_gradient(model: nn.Sequential, weights: list[Tensor], s: Setting, run: int) -> Tensor:
    names = [name for name, _ in model.named_parameters()]

    def loss(*values: Tensor) -> Tensor:
        named = dict(zip(names, values, strict=True))
        logits = torch.func.functional_call(model, named, (s.x.double(),))
        return nn.functional.cross_entropy(logits, s.label)

    gradients = torch.func.grad(loss, argnums=tuple(range(len(weights))))(*weights)
    gradient = torch.cat([g.flatten() for g in gradients])
    norm = float(gradient.norm())
    return gradient * min(1.0, float(s.clip[run]) / norm if norm else 1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("runs", [1, 2, 7])
def test_steps_match_autograd(name: str, runs: int, capability: str) -> None:
    model = NETWORKS[name]
    s = setting(model, runs, steps=5)
    for got, want in zip(trained(model, s), exact(model, s), strict=True):
        for computed, expected in zip(got, want, strict=True):
            torch.testing.assert_close(computed.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_processor_computes_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = setting(NETWORKS[name], runs=3, steps=4)
    outcomes = []
    for capability in ("DEFAULT", "AVX2", "AVX512"):
        monkeypatch.setattr(noise, "_compiled", extension(capability))
        outcomes.append(trained(NETWORKS[name], s))
        for got, want in zip(outcomes[-1], outcomes[0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", ["the papers' MLP", "rows longer than a draw"])
def test_a_run_does_not_depend_on_other_runs_or_on_calls(
    name: str, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = NETWORKS[name]
    s = setting(model, runs=5, steps=7)
    state, outcomes = trained(model, s)
    monkeypatch.setattr(batched, "_NUMBERS_AT_ONCE", 3 * sum(w.shape[1] for w in s.state))
    rows = slice(2, 3)
    alone = Setting(
        [w[rows] for w in s.state], s.taken[:, rows], s.clip[rows], s.descent[rows],
        s.seeds[rows], s.scales[rows], s.x, s.label,
    )  # fmt: skip
    own_state, own_outcomes = trained(model, alone)
    for w, own in zip(state, own_state, strict=True):
        assert torch.equal(w[rows], own)
    for values, own in zip(outcomes, own_outcomes, strict=True):
        assert torch.equal(values[:, rows], own)


def test_inputs_need_not_be_contiguous(capability: str) -> None:
    model = NETWORKS["the papers' MLP"]
    s = setting(model, runs=3, steps=3)
    want = trained(model, s)

    def strided(values: Any) -> Any:
        wide = np.repeat(np.asarray(values), 2, axis=-1)[..., ::2]
        assert not wide.flags.contiguous
        return torch.from_numpy(wide) if isinstance(values, Tensor) else wide

    s.x, s.clip, s.descent, s.taken = (strided(v) for v in (s.x, s.clip, s.descent, s.taken))
    s.seeds, s.scales = strided(s.seeds), strided(s.scales)
    for got, expected in zip(trained(model, s), want, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("parameter", [0, 1, 2, 3])
def test_diverged_run_stays_nonfinite_and_does_not_affect_others(
    value: float, parameter: int, capability: str
) -> None:
    model = NETWORKS["the papers' MLP"]
    s = setting(model, runs=3, steps=3)
    before = trained(model, s)
    s.state[parameter][1, 3] = value
    state, outcomes = trained(model, s)
    assert not all(w[1].isfinite().all() for w in state)
    for run in (0, 2):
        assert all(torch.equal(a[run], b[run]) for a, b in zip(before[0], state, strict=True))
        assert all(torch.equal(a[:, run], b[:, run])
                   for a, b in zip(before[1], outcomes, strict=True))  # fmt: skip


@pytest.mark.parametrize("largest", [-1, 1, 4])
def test_large_logits_do_not_overflow(largest: int, capability: str) -> None:
    # Logits differ by 300: the smallest softmax values underflow. At the label, the gradient is 0.
    model = nn.Sequential(nn.Linear(3, 5))
    s = setting(model, runs=1, steps=2)
    s.state[1] += torch.linspace(-300.0, 0.0, 5).roll(largest)
    for got, want in zip(trained(model, s), exact(model, s), strict=True):
        for computed, expected in zip(got, want, strict=True):
            assert computed.isfinite().all()
            torch.testing.assert_close(computed.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ((nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), (1, 4)),
        ((nn.Linear(4, 3), nn.ReLU()), (1, 4)),
        ((nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), (1, 1, 4, 4)),
        ((nn.Linear(4, 3), nn.Flatten(), nn.Linear(6, 2)), (1, 2, 4)),
    ],
)
def test_other_networks_are_refused(layers: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(NotImplementedError):
        LinearSteps(parse_network(nn.Sequential(*layers)), torch.zeros(shape), torch.zeros(1))
    # Other numbers than float32 are not compiled.
    with pytest.raises(NotImplementedError):
        LinearSteps(parse_network(NETWORKS["logistic regression"]),
                    torch.zeros(1, 13, dtype=torch.float64), torch.zeros(1))  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "inputs", "label"),
    [
        ((nn.Linear(4, 3),), 4, 3),
        ((nn.Linear(4, 3),), 4, -1),
        ((nn.Linear(4, 3),), 3, 0),
        ((nn.Linear(4, 3), nn.Linear(5, 2)), 4, 0),
    ],
)
def test_sizes_that_do_not_fit_never_reach_the_extension(
    layers: Any, inputs: int, label: int
) -> None:
    with pytest.raises(NotImplementedError, match="another size"):
        LinearSteps(
            parse_network(nn.Sequential(*layers)), torch.zeros(1, inputs), torch.tensor([label])
        )


def test_an_extension_of_an_earlier_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = SimpleNamespace(normals=None, descend=None, batches=None, words=None)
    monkeypatch.setattr(importlib, "import_module", lambda _: earlier)
    with pytest.raises(ImportError, match="without train, normal_rows: install the package again"):
        load_extension("noise", "AVX2")


@pytest.mark.parametrize("model", ["mlp", "logistic"])
@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("replaced", ["the steps", "all compiled code"])
def test_engine_computes_the_same_without_the_compiled_steps(
    model: str, rate: float, replaced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension("DEFAULT")
    canary = records(1, seed=3).canary(0)
    threat = etcv(canary, CanaryLoss(canary), (1, 8, 8), 10)
    settings = DpSgdSettings(6, 0.7, (0.2, 3.0), (0.1,), sampling_rate=rate, model=model)
    pack = run_batch(7, True, candidates=2)
    compiled = make_engine("batched", threat, settings).run(pack)
    if replaced == "the steps":

        def refuse(*_: Any) -> Any:
            raise NotImplementedError

        monkeypatch.setattr("audit.dpsgd.batched.LinearSteps", refuse)
    else:
        monkeypatch.setattr(noise, "_compiled", None)
    plain = make_engine("batched", threat, settings).run(pack)
    for field in ("lambda_a", "lambda_c", "lambda_known", "lambda_start", "lambda_end", "scores"):
        got, want = getattr(compiled, field), getattr(plain, field)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=field)


def test_rounded_operands_do_not_use_the_compiled_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("float32 steps for another precision")

    monkeypatch.setattr("audit.dpsgd.batched.LinearSteps", refuse)
    canary = records(1, seed=3).canary(0)
    threat = etcv(canary, CanaryLoss(canary), (1, 8, 8), 10)
    settings = DpSgdSettings(2, 0.7, 0.2, (0.1,), model="mlp")
    for precision in ("bf16", "tf32", "float64"):
        make_engine("batched", threat, settings, precision=precision).run(run_batch(3, True))

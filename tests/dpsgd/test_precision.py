"""Rounded operands of products: the rounding, the clipping margin, and the reported sensitivity."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_gradients import Residual
from torch import nn
from toy import SILENT, records, run_batch

import threat_models
from audit import run
from audit.dpsgd import PRECISIONS, DpSgdSettings, gradients, make_engine, products
from audit.dpsgd.gradients import BookkeepingModel, ClippedSums, VmapModel, stacked
from audit.dpsgd.models import make_model
from canaries import DiracCanary
from threat_models import UserScore, etcv, ntcv

torch.set_num_threads(1)
ROUNDED = {name: p for name, p in PRECISIONS.items() if p.significand_bits is not None}
RUNS = 64


def reference(x: np.ndarray, bits: int) -> np.ndarray:
    """Numbers rounded to `bits` significant bits, computed in float64."""
    x = x.astype(np.float64)
    exponent = np.maximum(np.frexp(x)[1] - 1, -126)
    grid = np.ldexp(1.0, exponent - (bits - 1))
    steps = np.abs(x) / grid
    nearest = np.rint(steps) if bits == 8 else np.floor(steps + 0.5)  # ties to even; ties away
    with np.errstate(over="ignore"):
        return np.copysign(nearest * grid, x).astype(np.float32)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_is_exact_to_the_bit(name: str) -> None:
    bits = ROUNDED[name].significand_bits
    patterns = np.random.default_rng(0).integers(2**32, size=200_000, dtype=np.uint32)
    # Midpoints between two numbers, and the neighbours of midpoints.
    half = np.uint32(1 << (23 - bits))
    ties = (patterns & ~np.uint32(2 * half - 1)) + half
    x = np.concatenate([patterns, ties, ties - 1, ties + 1, [0, 1 << 31]]).astype(np.uint32)
    x = x.view(np.float32)
    x = x[np.isfinite(x)]
    got = products.rounded(torch.from_numpy(x), bits).numpy()
    np.testing.assert_array_equal(got.view(np.uint32), reference(x, bits).view(np.uint32))
    normal = (np.abs(x) >= np.finfo(np.float32).tiny) & np.isfinite(got)
    growth = np.abs(got[normal].astype(np.float64)) / np.abs(x[normal].astype(np.float64)) - 1
    u = 2.0**-bits
    assert u / (1 + u) * 0.999 < growth.max() <= u / (1 + u)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_preserves_infinities_nan_and_strides(name: str) -> None:
    bits = ROUNDED[name].significand_bits
    payloads = np.array([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], dtype=np.uint32)
    odd = torch.from_numpy(payloads.view(np.float32))
    assert products.rounded(odd, bits).isnan().all()
    infinite = torch.tensor([np.inf, -np.inf])
    assert torch.equal(products.rounded(infinite, bits), infinite)
    x = torch.rand(3, 4).T[::2]
    assert torch.equal(products.rounded(x, bits), products.rounded(x.contiguous(), bits))
    one = torch.rand(1, 3).expand(2, 3)
    assert torch.equal(products.rounded(one, bits)[1], products.rounded(one[1], bits))


@pytest.mark.parametrize("name", ROUNDED)
def test_operands_of_every_product_are_rounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # mm, addmm, bmm, baddbmm, mv, dot, oneDNN and convolutions, also inside vmap and grad.
    monkeypatch.setattr(products, "_is_onednn_faster", lambda: True)
    precision = ROUNDED[name]
    torch.manual_seed(0)
    x, y, z = torch.randn(2, 5, 7), torch.randn(2, 7, 4), torch.randn(4)
    image, kernel = torch.randn(3, 2, 6, 6), torch.randn(4, 2, 3, 3)
    big, wide, back = torch.randn(300, 200), torch.randn(100, 200), torch.randn(3, 4, 4, 4)

    def loss(weight: Any, row: Any) -> Any:
        hidden = nn.functional.conv2d(row[None], weight).flatten()
        return hidden @ hidden

    def results(r: Any) -> Iterator[Any]:
        yield r(x) @ r(y)
        yield r(x)[0] @ r(y)[0]
        yield torch.baddbmm(z, r(x), r(y))
        yield nn.functional.linear(r(x)[0], r(y)[0].T, z)
        yield r(x)[0] @ r(y)[0, :, 0]
        yield r(z) @ r(z)
        yield products.affine(r(big), r(wide))
        yield nn.functional.conv2d(r(image), r(kernel), z)
        yield nn.grad.conv2d_input(image.shape, r(kernel), r(back))
        yield nn.grad.conv2d_weight(r(image), kernel.shape, r(back))
        yield torch.einsum("abc,acd->abd", r(x), r(y))

    def inside(r: Any) -> Iterator[None]:
        with products.rounded_operands(precision, torch.device("cpu")):
            yield from results(r)

    by_hand = list(results(lambda t: products.rounded(t, precision.significand_bits)))
    plain = list(results(lambda t: t))
    for got, expected, exact in zip(inside(lambda t: t), by_hand, plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-5)
        assert (got - exact).abs().max() > 1e-5
    per_record = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    exact = per_record(kernel, image)
    with products.rounded_operands(precision, torch.device("cpu")):
        error = (per_record(kernel, image) - exact).norm() / exact.norm()
    assert 1e-5 < error < 0.1


@pytest.mark.parametrize("is_onednn", [True, False])
def test_both_libraries_support_any_strides(
    is_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_is_onednn_faster", lambda: is_onednn)
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 300, 200), torch.randn(2, 100, 200), torch.randn(2, 100)
    gaps = torch.randn(2, 600, 400)[:, ::2, ::2]
    turned = torch.randn(2, 200, 300).transpose(1, 2)
    for operand in (x, gaps, turned):
        for other in (weight, torch.randn(2, 200, 100).transpose(1, 2)):
            want = torch.baddbmm(
                bias[:, None].double(), operand.double(), other.double().transpose(1, 2)
            )
            for got in (
                products.affines(operand, other, bias),
                torch.stack(
                    [products.affine(*each) for each in zip(operand, other, bias, strict=True)]
                ),
            ):
                torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def problem(model_name: Any, shape: Any, bits: Any) -> Any:
    """Records of many magnitudes, some just above midpoints; all gradients are far above C."""
    torch.manual_seed(1)
    model = Residual() if model_name == "vmap" else make_model(model_name, 0, shape, 2, torch.float)
    above_half = 1 + 2.0**-bits + 2.0**-20
    x = torch.stack([
        torch.full(shape, above_half),
        above_half * 2.0 ** torch.randint(-8, 8, shape),
        torch.exp(4 * torch.randn(shape)),
        torch.exp2(30 * torch.rand(shape) - 20),
        torch.rand(shape),
    ])  # fmt: skip
    theta = [p.detach() * (1 + 0.1 * torch.randn(RUNS, *p.shape)) for p in model.parameters()]
    # Clipping norms over an octave, so that some clipping factors are just above midpoints too.
    clip = 1e-3 * 2 ** torch.linspace(0, 1, RUNS)
    return stacked(model, shape), x, torch.zeros(len(x), dtype=torch.int64), theta, clip


def longest_part(
    stack: Any, x: Any, y: Any, theta: Any, clip: Any, precision: Any, taken: Any = None
) -> Any:
    """The norm of every record's contribution divided by C, for every run, [n, R]."""
    norms = []
    for j in range(len(y)):
        # Uses each record twice, because a single record needs no product over the records.
        sums = ClippedSums(stack, x[[j, j]], y[[j, j]], precision)(theta, clip, taken, 10**9)
        flat = torch.cat([s.flatten(1).double() for s in sums], dim=1)
        norms.append(flat.norm(dim=1) / (2 * clip.double()))
    return torch.stack(norms)


MODELS = {"logistic": (1, 6, 6), "mlp": (1, 6, 6), "convnet": (1, 8, 8), "vmap": (1, 6, 6)}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ROUNDED)
def test_each_contribution_is_at_most_c(name: str, model: str) -> None:
    precision, shape = ROUNDED[name], MODELS[model]
    stack, x, y, theta, clip = problem(model, shape, precision.significand_bits)
    assert isinstance(stack, VmapModel if model == "vmap" else BookkeepingModel)
    for taken in (None, torch.ones(RUNS, 2, dtype=torch.bool)):
        parts = longest_part(stack, x, y, theta, clip, precision, taken)
        assert parts.max() <= 1 + 1e-6
        # Contributions are clipped, and not more than necessary.
        assert parts.max() > 1 - precision.product_error
        # Without the clipping margin the bound is exceeded.
        undone = clip * (1 + precision.product_error)
        broken = longest_part(stack, x, y, theta, undone, precision, taken)
        assert broken.max() * (1 + precision.product_error) > 1 + precision.product_error / 5


@pytest.mark.parametrize("name", ROUNDED)
def test_the_clipping_margin_is_necessary(name: str) -> None:
    # Both operands of f d x^T are just above midpoints: the contribution is C up to 2 u^2.
    precision = ROUNDED[name]
    u = 2.0**-precision.significand_bits
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False))
    x, y = torch.full((1, 1, 4, 4), 1 + u + 2.0**-20), torch.zeros(1, dtype=torch.int64)
    theta = [torch.randn(RUNS, 2, 16, generator=torch.Generator().manual_seed(0))]
    # With two classes, d has two entries of equal size, which C can set to any value.
    entries = (1 + u) * (1 + 2.0 ** -torch.linspace(8, 20, RUNS).double()) / 64
    clip = entries * np.sqrt(2) * x.double().norm()
    stack = stacked(model, (1, 4, 4))
    repaired = clip * (1 + precision.product_error)
    largest = longest_part(stack, x, y, theta, repaired, precision).max()
    assert 1 - precision.product_error / 100 < largest <= 1 + 1e-6
    # With clipping to C, a contribution exceeds C by nearly the factor 1 + delta.
    assert largest * (1 + precision.product_error) > 1 + 0.99 * precision.product_error


@pytest.mark.parametrize(("name", "error"), [("tf32", 1e-2), ("bf16", 3e-2)])
@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_error_of_a_sum(name: str, error: float, model: str) -> None:
    # The expected errors are from one draw; they double if the sign of a ReLU's input changes.
    shape = (1, 28, 28)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, *shape, generator=generator).double()
    y = torch.randint(10, (60,), generator=generator)
    network = make_model(model, 0, shape, 10, torch.float64)
    theta = [
        p.detach() + 0.02 * torch.randn(2, *p.shape, generator=generator).double()
        for p in network.parameters()
    ]

    def flat(precision: Any, dtype: Any) -> Any:
        sums = ClippedSums(stacked(network.to(dtype), shape), x.to(dtype), y, precision)
        clip = torch.full((2,), 1 + precision.product_error, dtype=dtype)
        found = sums([t.to(dtype) for t in theta], clip, None, 10**7)
        return torch.cat([s.flatten(1) for s in found], dim=1).double()

    exact = flat(PRECISIONS["float64"], torch.float64)
    got = flat(ROUNDED[name], torch.float32)
    assert 1e-5 < (got - exact).norm() / exact.norm() < 5 * error


@pytest.mark.parametrize("name", ROUNDED)
def test_canary_gradient_is_clipped_and_matches_its_contribution(name: str) -> None:
    precision = ROUNDED[name]
    for model in ("mlp", "convnet", "vmap"):
        stack, x, y, theta, clip = problem(model, MODELS[model], precision.significand_bits)
        z = ClippedSums(stack, x[:1], y[:1], precision).single_record(theta, clip)
        added = [torch.zeros_like(t).flatten(1) for t in theta]
        z.add_to(added, torch.ones(RUNS, 1))
        noise = [torch.randn(t.shape) for t in added]
        flat, other = (torch.cat(parts, dim=1).double() for parts in (added, noise))
        assert (flat.norm(dim=1) <= clip.double() * (1 + 1e-6)).all()
        clipped_to = clip.double() / (1 + precision.product_error)
        torch.testing.assert_close(flat.norm(dim=1), clipped_to, rtol=1e-6, atol=0)
        torch.testing.assert_close(z.squared_norm.double(), flat.square().sum(1), rtol=1e-5, atol=0)
        # Much closer than with rounded operands.
        inner = z.inner_products(noise).double()
        scale = flat.norm(dim=1) * other.norm(dim=1)
        assert ((inner - (flat * other).sum(1)).abs() < 1e-6 * scale).all()


@pytest.mark.parametrize("name", ROUNDED)
def test_lambda_a_uses_the_gradient_that_enters_the_sum(name: str) -> None:
    # After one step on an empty set without noise, lambda_a = |z|^2 / C^2, |z| = C / (1 + delta).
    canary = records(1, seed=3).canary(0)
    threat = etcv(canary, threat_models.CanaryLoss(canary), (1, 8, 8), 10)
    settings = DpSgdSettings(1, SILENT, 0.01, (0.1,), model="mlp")
    out = make_engine("batched", threat, settings, precision=name).run(run_batch(3, True))
    expected = (1 + ROUNDED[name].product_error) ** -2
    np.testing.assert_allclose(out.lambda_a, expected, rtol=1e-6)
    # The Dirac canary's gradient is not computed from a record, and its norm is C.
    dirac = threat_models.build("ETCV", "dirac")
    out = make_engine("batched", dirac, settings, precision=name).run(run_batch(3, True))
    np.testing.assert_allclose(out.lambda_a, 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "tf32", "bf16"), [("logistic", 1e-3, 1e-2), ("convnet", 0.1, 0.1)]
)
def test_rounded_runs_stay_close_to_float32_and_do_not_change_it(
    model: str, tf32: float, bf16: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, canary = records(12), records(1, seed=3).canary(0)
    threat = ntcv(data, None, canary, threat_models.CanaryLoss(canary))
    settings = DpSgdSettings(10, 1.0, 0.5, (0.02,), model=model)
    pack = run_batch(4, True)
    runs = {name: make_engine("batched", threat, settings, precision=name).run(pack)
            for name in PRECISIONS}  # fmt: skip
    single = runs["float32"]
    for name, largest in (("tf32", tf32), ("bf16", bf16)):
        assert (runs[name].lambda_a != single.lambda_a).all()
        np.testing.assert_allclose(runs[name].lambda_a, single.lambda_a, atol=largest)
        np.testing.assert_allclose(runs[name].scores, single.scores, rtol=largest)
    # float32 and float64 never call the rounding function.
    monkeypatch.setattr(products, "rounded", None)
    monkeypatch.setattr(products, "_RoundedOperands", None)
    for name in ("float32", "float64"):
        again = make_engine("batched", threat, settings, precision=name).run(pack)
        np.testing.assert_array_equal(again.lambda_a, runs[name].lambda_a)
        np.testing.assert_array_equal(again.scores, runs[name].scores)


def test_rounded_precisions_do_not_use_compiled_sums() -> None:
    model = make_model("convnet", 0, (1, 8, 8), 10, torch.float32)
    stack = stacked(model, (1, 8, 8))
    x, y = torch.rand(3, 1, 8, 8), torch.zeros(3, dtype=torch.int64)
    for precision in ROUNDED.values():
        assert isinstance(gradients.clipped_sums(stack, x, y, precision), ClippedSums)


def test_tf32_on_a_gpu_uses_the_hardware_only_inside_the_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    x, y, bias = torch.randn(2, 3), torch.randn(3, 4), torch.randn(4)
    with products.reproducible_products():
        with products.rounded_operands(ROUNDED["tf32"], torch.device("cuda")):
            assert all(flag.allow_tf32 for flag in flags)
            plain = x @ y
        assert torch.equal(plain, x @ y)  # computed on a CPU: only a GPU would round
        with (
            pytest.raises(MemoryError),
            products.rounded_operands(ROUNDED["bf16"], torch.device("cpu")),
        ):
            raise MemoryError
        assert not any(flag.allow_tf32 for flag in flags)
        with products.rounded_operands(PRECISIONS["float32"], torch.device("cuda")):
            assert not any(flag.allow_tf32 for flag in flags)

    def bf16_products(x: Any, y: Any, out_dtype: Any) -> Any:
        assert x.dtype == y.dtype == torch.bfloat16
        return (x.double() @ y.double()).to(out_dtype)

    monkeypatch.setattr(
        products, "_BF16_PRODUCTS", dict.fromkeys(products._BF16_PRODUCTS, bf16_products)
    )
    with products.rounded_operands(ROUNDED["bf16"], torch.device("cuda")):
        got = x @ y, (x[None] @ y[None])[0]
        shifted = (
            nn.functional.linear(x, y.T, bias),
            torch.baddbmm(bias, x[None], y[None])[0],
            torch.addmm(bias / 2, x, y, beta=2),
        )
    expected = products.rounded(x, 8) @ products.rounded(y, 8)
    for each in (*got, *(each - bias for each in shifted)):
        torch.testing.assert_close(each, expected)


def test_flags_of_torch_are_restored() -> None:
    # Also on a machine without a GPU, because the flags are process-wide.
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [flag.allow_tf32 for flag in flags] + [torch.backends.cudnn.deterministic]
    seen = []

    def look(observation: Any) -> Any:
        seen.append([flag.allow_tf32 for flag in flags] + [torch.backends.cudnn.deterministic])
        return observation.first_displacement

    threat = etcv(DiracCanary(), UserScore(look), (1, 8, 8), 10)
    settings = DpSgdSettings(1, 1.0, 1.0, (0.1,), model="logistic")
    try:
        for tf32 in (True, False):
            for flag in flags:
                flag.allow_tf32 = tf32
            torch.backends.cudnn.deterministic = False
            for name in ("batched", "opacus"):
                make_engine(name, threat, settings).run(run_batch(1, True))
                assert [flag.allow_tf32 for flag in flags] == [tf32, tf32]
                assert not torch.backends.cudnn.deterministic
    finally:
        for flag, value in zip(flags, before, strict=False):
            flag.allow_tf32 = value
        torch.backends.cudnn.deterministic = before[-1]
    assert seen == [[False, False, True]] * 4


@pytest.mark.slow
def test_an_audit_in_bf16_reports_its_sensitivity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--threat", "NTCV", "--canary", "input", "--trials", "200", "--repeats", "1"]
    options += ["--epsilon", "4", "--steps", "4", "--train-size", "20", "--model", "logistic"]
    options += ["--repetitions", "geometric:0.5", "--precision", "bf16"]
    assert run.main([*options, "--out", str(tmp_path / "bf16")]) == 0
    said = "sensitivity C; records are clipped to C / (1 + 7.828e-03)"
    assert said in capsys.readouterr().out
    summary = json.loads((tmp_path / "bf16" / "summary.json").read_text())
    assert said in summary["precision"]["sensitivity"]
    assert summary["precision"]["product_error"] == (1 + 2**-8) ** 2 - 1
    assert summary["config"]["precision"] == "bf16"
    (result,) = summary["results"]
    uppers = [
        upper["epsilon"]
        for upper in (result["upper_bounds"][name] for name in ("region", "renyi", "profile"))
    ]
    for lower in result["lower_bounds"].values():
        assert all(b["max"] < min(uppers) for b in lower.values() if b["valid"])
    # The reduced engine computes no products.
    reduced = ["--trials", "20", "--repeats", "1", "--epsilon", "4", "--precision", "bf16"]
    assert run.main([*reduced, "--out", str(tmp_path / "reduced")]) == 0
    assert json.loads((tmp_path / "reduced" / "summary.json").read_text())["precision"] is None


def test_invalid_precisions_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, message in (
        (["--precision", "bf61"], "must be one of float32, float64, tf32, bf16, got 'bf61'"),
        (["--precision", "tf32", "--engine", "opacus"], "must be float32 or float64 for engine"),
    ):
        assert run.main([*options, "--threat", "ETCV", "--out", str(tmp_path / "out")]) == 2
        assert f"error: precision {message}" in capsys.readouterr().err


def test_products_of_noncontiguous_operands() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(512, 130), torch.randn(512, 130)
    pairs = [
        (x[:, :65], weight[:, :65]),
        (x[::2, ::2], weight[::2, ::2]),
        (x.T, weight.T),
        (x[:1].expand(512, 130), weight),
    ]
    for left, right in pairs:
        exact = left.double() @ right.double().T
        assert torch.allclose(products.affine(left, right).double(), exact, atol=1e-3)

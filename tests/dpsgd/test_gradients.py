"""Clipped sums of every implementation against a naive loop over records in float64."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from audit.dpsgd.gradients import BookkeepingModel, ClippedSums, VmapModel, stacked
from audit.dpsgd.models import make_model

RUNS, RECORDS, CLASSES = 3, 7, 5
torch.set_num_threads(1)


class Residual(nn.Module):
    """A module that is not a sequence of known layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(36, 36)
        self.last = nn.Linear(36, CLASSES)
        self.register_buffer("shift", torch.ones(36))

    def forward(self, x: Any) -> Any:
        x = x.flatten(1)
        return self.last(x + torch.tanh(self.first(x)) * self.shift)


class Doubled(nn.Sequential):
    """A subclass with another forward than its base class."""

    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    model[1].register_forward_hook(lambda module, args, output: output + 1)
    return model


SEQUENCES = {
    "mlp": lambda: make_model("mlp", 0, (1, 6, 6), CLASSES, torch.float64),
    "no bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8, bias=False), nn.Tanh(), nn.Linear(8, CLASSES, bias=False)
    ),
    "conv": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 2, bias=False), nn.GELU(),
        nn.Flatten(), nn.Linear(12, CLASSES),
    ),
    "conv, lopsided": lambda: nn.Sequential(
        nn.Conv2d(1, 4, (4, 2), padding="same"), nn.MaxPool2d(2, 1), nn.ReLU(),
        nn.Sequential(nn.Conv2d(4, 6, (2, 3), (2, 1), padding=(1, 2)), nn.SiLU()),
        nn.AvgPool2d(2, 1, padding=1), nn.Flatten(), nn.LazyLinear(CLASSES),
    ),
    "norms": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ELU(), nn.LayerNorm((4, 4)),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(16, elementwise_affine=False),
        nn.Linear(16, 6), nn.LayerNorm(6, bias=False), nn.GroupNorm(3, 6), nn.Linear(6, CLASSES),
    ),
    "conv, wide strides": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 2), nn.Tanh(), nn.Conv2d(4, 6, (1, 3), (2, 2), padding=(1, 0)), nn.ReLU(),
        nn.Conv2d(6, 3, 2, (3, 1), padding=1), nn.Flatten(), nn.LazyLinear(CLASSES),
    ),
    "pool first": lambda: nn.Sequential(
        nn.AvgPool2d(2), nn.Sigmoid(), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, CLASSES)
    ),
}  # fmt: skip


def tied() -> nn.Module:
    square = nn.Linear(36, 36)
    return nn.Sequential(nn.Flatten(), square, nn.Tanh(), square, nn.Linear(36, CLASSES))


OTHERS = {
    "tied weights": tied,
    "residual": Residual,
    "subclass": lambda: Doubled(nn.Flatten(), nn.Linear(36, CLASSES)),
    "hook": hooked,
    "grouped conv": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 2, groups=2), nn.Flatten(), nn.Linear(36, CLASSES)
    ),
    "dilated conv": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 2, dilation=2), nn.Flatten(), nn.Linear(64, CLASSES)
    ),
    "norm first": lambda: nn.Sequential(
        nn.LayerNorm((1, 6, 6)), nn.Flatten(), nn.Linear(36, CLASSES)
    ),
    "linear on rows": lambda: nn.Sequential(
        nn.Linear(6, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24, CLASSES)
    ),
    "inplace": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.ELU(inplace=True), nn.Linear(8, CLASSES)
    ),
}


def make(factory: Any, dtype: Any = torch.float64) -> Any:
    torch.manual_seed(3)
    model = factory().to(dtype)
    model(torch.zeros(2, 1, 6, 6, dtype=dtype))  # initialises lazy layers
    return model


def problem(model: Any, shape: Any = (1, 6, 6), dtype: Any = torch.float64) -> Any:
    """Records, and runs with different weights; gradient norms are above and below C."""
    generator = torch.Generator().manual_seed(4)
    x = torch.rand(RECORDS, *shape, generator=generator, dtype=dtype)
    y = torch.randint(CLASSES, (RECORDS,), generator=generator)
    theta = [
        p.detach() + 0.3 * torch.randn(RUNS, *p.shape, generator=generator, dtype=dtype)
        for p in model.parameters()
    ]
    return x, y, theta


def naive(model: Any, x: Any, y: Any, theta: Any, clip: Any, taken: Any = None) -> Any:
    """Contributions [R, n, d], one record at a time, and gradient norms before clipping.

    `clip` is C of every run.
    """
    names = [name for name, _ in model.named_parameters()]
    rows, norms = [], []
    for run in range(RUNS):
        for j in range(len(y)):
            own = [t[run].double().clone().requires_grad_() for t in theta]
            named = dict(zip(names, own, strict=True))
            named |= {name: b.double() for name, b in model.named_buffers()}
            logits = functional_call(model, named, (x[j : j + 1].double(),))
            loss = nn.functional.cross_entropy(logits, y[j : j + 1])
            flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, own)])
            norms.append(flat.norm())
            rows.append(flat * min(1.0, float(clip[run]) / float(flat.norm())))
    parts = torch.stack(rows).view(RUNS, len(y), -1)
    if taken is not None:
        parts = parts * taken[..., None]
    return parts, torch.stack(norms).view(RUNS, -1)


def flat(sums: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([s.flatten(1) for s in sums], dim=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", [*SEQUENCES, *OTHERS])
def test_sums_match_the_naive_loop(name: str) -> None:
    model = make((SEQUENCES | OTHERS)[name])
    x, y, theta = problem(model)
    stack = stacked(model, (1, 6, 6))
    assert isinstance(stack, BookkeepingModel if name in SEQUENCES else VmapModel)
    _, norms = naive(model, x, y, theta, torch.ones(RUNS))
    clip = norms.median() * torch.tensor([0.9, 1.0, 1.1])
    assert (norms < clip[:, None]).any()
    assert (norms > clip[:, None]).any()
    sums = ClippedSums(stack, x, y)
    taken = torch.rand(RUNS, RECORDS, generator=torch.Generator().manual_seed(1)) < 0.5
    for batch in (None, taken):
        expected = naive(model, x, y, theta, clip, batch)[0].sum(1)
        for chunk_floats in (1, 3 * RUNS * stack.record_floats, 10**9):
            got = flat(sums(theta, clip, batch, chunk_floats))
            assert (got - expected).abs().max() < 1e-12 * expected.abs().max()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8)])
def test_convnet_sums_match_the_naive_loop(shape: tuple[int, int, int]) -> None:
    model = make_model("convnet", 0, shape, CLASSES, torch.float64)
    x, y, theta = problem(model, shape)
    theta = [0.2 * t for t in theta]
    stack = stacked(model, shape)
    assert isinstance(stack, BookkeepingModel)
    _, norms = naive(model, x, y, theta, torch.ones(RUNS))
    clip = norms.median().expand(RUNS)
    expected = naive(model, x, y, theta, clip)[0].sum(1)
    got = flat(ClippedSums(stack, x, y)(theta, clip, None, 10**6))
    assert (got - expected).abs().max() < 1e-12 * expected.abs().max()


@pytest.mark.parametrize("name", ["mlp", "conv", "norms", "residual"])
def test_each_contribution_is_at_most_c_in_float32(name: str) -> None:
    model = make((SEQUENCES | OTHERS)[name], torch.float32)
    x, y, theta = problem(model, dtype=torch.float32)
    clip = 1e-3
    for j in range(RECORDS):
        one = ClippedSums(stacked(model, (1, 6, 6)), x[j : j + 1], y[j : j + 1])
        norms = flat(one(theta, x.new_full((RUNS,), clip), None, 10**6)).double().norm(dim=1)
        assert (norms <= clip * (1 + 1e-6)).all()
        assert (norms >= clip * (1 - 1e-6)).all()  # all gradients are far above C


def test_preparing_records_per_chunk_gives_equal_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(SEQUENCES["conv"])
    x, y, theta = problem(model)
    taken = torch.tensor([[True, False] * 3 + [True]] * RUNS)
    stack = stacked(model, (1, 6, 6))
    kept = ClippedSums(stack, x, y)
    monkeypatch.setattr(ClippedSums, "_MAX_PREPARED_BYTES", 0)
    fresh = ClippedSums(stack, x, y)
    clip = x.new_full((RUNS,), 0.5)
    for batch in (None, taken):
        torch.testing.assert_close(
            flat(kept(theta, clip, batch, 500)),
            flat(fresh(theta, clip, batch, 500)),
            rtol=1e-12,
            atol=1e-14,
        )


def test_an_empty_batch_sums_to_zero() -> None:
    model = make(SEQUENCES["mlp"])
    x, y, theta = problem(model)
    none = torch.zeros(RUNS, RECORDS, dtype=torch.bool)
    sums = ClippedSums(stacked(model, (1, 6, 6)), x, y)
    got = flat(sums(theta, x.new_ones(RUNS), none, 10**6))
    assert torch.equal(got, torch.zeros_like(got))


def test_diverged_run_does_not_affect_others() -> None:
    model = make(SEQUENCES["conv"])
    x, y, theta = problem(model)
    sums, clip = ClippedSums(stacked(model, (1, 6, 6)), x, y), x.new_full((RUNS,), 0.5)
    whole = flat(sums(theta, clip, None, 10**6))
    for t in theta:
        t[1] = float("nan")
    broken = flat(sums(theta, clip, None, 10**6))
    torch.testing.assert_close(broken[[0, 2]], whole[[0, 2]], rtol=1e-12, atol=1e-14)


class TestModels:
    """Requirements on models."""

    def make(self, name: Any, shape: Any = (1, 8, 8), classes: Any = 10) -> Any:
        return make_model(name, 0, shape, classes, torch.float32)

    def test_initial_weights_depend_only_on_the_seed(self) -> None:
        torch.manual_seed(1)
        before = torch.random.get_rng_state()
        one = self.make("mlp")
        assert torch.equal(before, torch.random.get_rng_state())
        two = self.make("mlp")
        assert all(
            torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True)
        )

    def test_a_dotted_name(self) -> None:
        model = self.make(f"{__name__}.user_model", (1, 6, 6), CLASSES)
        assert isinstance(model, Residual)
        assert sum(p.numel() for p in self.make("audit.dpsgd.models.logistic").parameters()) == 650

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="did you mean 'convnet'"):
            self.make("convnt")
        with pytest.raises(ValueError, match=r"no\.such\.thing"):
            self.make("no.such.thing")
        with pytest.raises(ValueError, match="convnet must have records"):
            self.make("convnet", (1, 5, 5))
        with pytest.raises(ValueError, match=r"does not fit records of shape \(1, 8, 8\)"):
            self.make(f"{__name__}.user_model")
        with pytest.raises(ValueError, match=r"\[records, 3\] logits, got \[2, 5\]"):
            self.make(f"{__name__}.user_model", (1, 6, 6), 3)
        with pytest.raises(ValueError, match="BatchNorm2d, which mixes the records"):
            self.make(f"{__name__}.mixing_model")
        with pytest.raises(ValueError, match="got a backward hook on Linear"):
            self.make(f"{__name__}.backward_hooked_model")
        with pytest.raises(ValueError, match="must return a torch"):
            self.make(f"{__name__}.no_model")
        with pytest.raises(ValueError, match=r"\[records, 10\] logits, got tuple for 2 records"):
            self.make(f"{__name__}.two_headed_model")

    @pytest.mark.parametrize("name", ["centring_model", "forgetful_model"])
    def test_models_that_mix_records_are_rejected(self, name: str) -> None:
        with pytest.raises(ValueError, match="logits independently and deterministically"):
            self.make(f"{__name__}.{name}")

    def test_models_that_vmap_does_not_support_are_rejected(self) -> None:
        with pytest.raises(ValueError, match=r"work under torch\.func\.vmap, .* got Of: "):
            stacked(self.make(f"{__name__}.branching_model"), (1, 8, 8))
        with pytest.raises(ValueError, match=r"work under torch\.func\.vmap, .* got Recurrent: "):
            stacked(self.make(f"{__name__}.Recurrent"), (1, 8, 8))


def user_model() -> nn.Module:
    return Residual()


def no_model() -> object:
    return "a model"


def mixing_model(record_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, classes))


def backward_hooked_model(record_shape: tuple[int, ...], classes: int) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    model[1].weight.register_hook(lambda gradient: 2 * gradient)
    return model


class Of(nn.Module):
    """A linear layer with functions applied to its input and output."""

    def __init__(self, before: Any = lambda x: x, after: Any = lambda y: y) -> None:
        super().__init__()
        self.before, self.linear, self.after = before, nn.Linear(64, 10), after

    def forward(self, x: Any) -> Any:
        return self.after(self.linear(self.before(x.flatten(1))))


def two_headed_model() -> nn.Module:
    return Of(after=lambda y: (y, y))


def centring_model() -> nn.Module:
    return Of(lambda x: x - x.mean(0, keepdim=True))


def forgetful_model() -> nn.Module:
    return Of(nn.functional.dropout)


def branching_model() -> nn.Module:
    return Of(after=lambda y: y if (y**2).sum().item() >= 0 else 2 * y)


class Recurrent(nn.Module):
    """A recurrent network on rows of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 10, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.lstm(x[:, 0])[0][:, -1]

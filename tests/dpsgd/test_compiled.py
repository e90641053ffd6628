"""The compiled sums against torch operations in float64, which have their own tests."""

from typing import Any

import pytest
import torch
from torch import nn

from audit.dpsgd import compiled, gradients, models
from audit.dpsgd.extensions import load_extension
from audit.dpsgd.gradients import ClippedSums, clipped_sums, stacked

RUNS, RECORDS, CLASSES = 3, 11, 5


@pytest.fixture(params=["AVX2", "AVX512"], autouse=True)
def extension(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    narrower = ["AVX2", "AVX512"].index(request.param)
    if torch.backends.cpu.get_cpu_capability() not in ["AVX2", "AVX512"][narrower:]:
        pytest.skip(f"a processor without {request.param}")
    found = load_extension("convolutional", request.param)
    if found is None:
        pytest.skip("no compiler when this was installed")
    monkeypatch.setattr(compiled, "_convolutional", found)


def small(*layers: nn.Module, flat: int) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, CLASSES))


NETWORKS = {
    "one convolution": (small(nn.Conv2d(1, 3, 3), flat=3 * 7 * 6), (1, 9, 8)),
    "channels and whole vectors": (
        small(
            nn.Conv2d(3, 20, 3), nn.ReLU(), nn.Conv2d(20, 37, 2), nn.ReLU(), nn.Conv2d(37, 16, 1),
            flat=16 * 3 * 3,
        ),
        (3, 6, 6),
    ),
    "strides, padding and no bias": (
        small(
            nn.Conv2d(2, 5, (3, 2), (2, 1), padding=(2, 1), bias=False),
            nn.ReLU(),
            nn.Conv2d(5, 4, 3, 2, padding=1, bias=False),
            flat=4 * 3 * 4,
        ),
        (2, 7, 6),
    ),
    "lopsided padding": (
        small(
            nn.Conv2d(1, 4, 4, padding="same"), nn.ReLU(), nn.Conv2d(4, 3, 2, padding="same"),
            flat=3 * 5 * 5,
        ),
        (1, 5, 5),
    ),
    "overlapping and leaping pools": (
        small(
            nn.MaxPool2d(1), nn.Conv2d(1, 6, 3), nn.MaxPool2d((3, 2), 1), nn.ReLU(),
            nn.Conv2d(6, 2, 2), nn.MaxPool2d(2, 3),
            flat=2 * 2 * 2,
        )[1:],
        (1, 10, 9),
    ),
    "rows unlike columns": (
        small(
            nn.Conv2d(1, 4, (2, 3)), nn.MaxPool2d((2, 3), (1, 2)), nn.ReLU(),
            nn.Conv2d(4, 3, (4, 2), (1, 2), padding=(2, 1)),
            flat=3 * 7 * 2,
        ),
        (1, 8, 10),
    ),
    "several linear layers": (
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 4 * 4, 33), nn.ReLU(),
            nn.Linear(33, 7, bias=False), nn.Linear(7, CLASSES),
        ),
        (1, 6, 6),
    ),
    "the papers' ConvNet": (models.convnet((1, 28, 28), CLASSES), (1, 28, 28)),
    "the papers' ConvNet in colour": (models.convnet((3, 32, 32), CLASSES), (3, 32, 32)),
    "the papers' ConvNet on digits": (models.convnet((1, 8, 8), CLASSES), (1, 8, 8)),
}  # fmt: skip


AFTER_LINEAR = {
    "the papers' MLP": (models.mlp((1, 28, 28), CLASSES), (1, 28, 28)),
    "widths and whole vectors": (
        nn.Sequential(
            nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 33, bias=False), nn.ReLU(),
            nn.Linear(33, CLASSES),
        ),
        (3, 2, 2),
    ),
    "no ReLU, no bias": (
        nn.Sequential(nn.Linear(9, 18, bias=False), nn.Linear(18, CLASSES, bias=False)), (9,)
    ),
}  # fmt: skip


def setting(model: Any, shape: Any) -> Any:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: Any) -> Any:
        return torch.randn(*size, generator=generator)

    scales = [p[0].numel() ** -0.5 if p.dim() > 1 else 0.1 for p in model.parameters()]
    theta = [
        scale * normal(RUNS, *p.shape) for scale, p in zip(scales, model.parameters(), strict=True)
    ]
    y = torch.randint(CLASSES, (RECORDS,), generator=generator)
    return theta, normal(RECORDS, *shape), y, torch.tensor([0.3, 1.0, 100.0])


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Asserts equality up to rounding, which may rarely change a ReLU or pooling of one record."""
    for got, want in zip(found, expected, strict=True):
        error = (got.double() - want.double()).abs() / want.double().abs().max()
        assert error.max() < 1e-4


def exact(model: Any, theta: Any, x: Any, y: Any, clip: Any, taken: Any) -> Any:
    twin = stacked(model.double(), tuple(x.shape[1:]))
    sums = ClippedSums(twin, x.double(), y)
    model.float()
    return sums([p.double() for p in theta], clip.double(), taken, 10**6)


# torch warns that it copies the input if padding is asymmetric.
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", NETWORKS)
def test_sums_match_the_exact_loop(name: str) -> None:
    model, shape = NETWORKS[name]
    theta, x, y, clip = setting(model, shape)
    sums = clipped_sums(stacked(model, shape), x, y)
    assert isinstance(sums, compiled.CompiledSums)
    batch = torch.rand(RUNS, RECORDS, generator=torch.Generator().manual_seed(1)) < 0.4
    batch[1] = False
    for taken in (None, batch):
        found = sums(theta, clip, taken, 1)
        assert all(p.dtype == torch.float32 for p in found)
        assert_same(found, exact(model, theta, x, y, clip, taken))


@pytest.mark.parametrize("name", AFTER_LINEAR)
def test_sums_after_a_linear_layer_match_the_exact_loop(name: str) -> None:
    model, shape = AFTER_LINEAR[name]
    theta, x, y, clip = setting(model, shape)
    stack = stacked(model, shape)
    sums = clipped_sums(stack, x, y)
    assert sums._tail is not None
    for records in (4, RECORDS):
        chunk_floats = records * RUNS * stack.record_floats
        found = sums(theta, clip, None, chunk_floats)
        assert all(p.dtype == torch.float32 for p in found)
        assert_same(found, exact(model, theta, x, y, clip, None))
    # For sampled batches, torch computes each run's own records.
    batch = torch.rand(RUNS, RECORDS, generator=torch.Generator().manual_seed(1)) < 0.4
    assert_same(sums(theta, clip, batch, 10**6), exact(model, theta, x, y, clip, batch))


@pytest.mark.parametrize("name", ["one convolution", "the papers' ConvNet on digits"])
def test_single_record_matches_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape = NETWORKS[name]
    theta, x, y, clip = setting(model, shape)
    found = []
    for is_available in (True, False):
        monkeypatch.setattr(gradients.compiled, "is_available", lambda yes=is_available: yes)
        sums = gradients.clipped_sums(stacked(model, shape), x[:1], y[:1])
        one = sums.single_record(theta, clip)
        sums = [torch.zeros(RUNS, p.numel()) for p in model.parameters()]
        one.add_to(sums, torch.full((RUNS, 1), 2.0))
        inner = one.inner_products([v.clone() for v in sums])
        found.append([*sums, one.squared_norm[:, None], inner[:, None]])
    assert_same(*found)
    torch.testing.assert_close(found[0][-1], 2 * found[0][-2])


def test_max_pooling_breaks_ties_like_torch() -> None:
    # With integer inputs, equal outputs come from different patches with different gradients.
    shape = (1, 8, 8)
    model = small(nn.Conv2d(1, 3, 2), nn.MaxPool2d(3, 2), flat=3 * 3 * 3)
    theta, x, y, clip = setting(model, shape)
    theta, x = [(5 * t).round() for t in theta], x.round()
    found = clipped_sums(stacked(model, shape), x, y)(theta, clip, None, 1)
    assert_same(found, exact(model, theta, x, y, clip, None))


@pytest.mark.parametrize(
    ("known", "first"),
    [(NETWORKS["one convolution"], 0), (AFTER_LINEAR["widths and whole vectors"], 2)],
)
def test_long_sums_are_accurate(known: tuple[nn.Module, tuple[int, int, int]], first: int) -> None:
    # The sum over 5,000 copies of a record is 5,000 times its gradient. torch computes the sum of a
    # first Linear layer's weights.
    model, shape = known
    theta, x, y, clip = setting(model, shape)
    stack = stacked(model, shape)
    once = clipped_sums(stack, x[:1], y[:1])(theta, clip, None, 1)
    many = clipped_sums(stack, x[:1].expand(5000, *shape), y[:1].repeat(5000))
    sums = many(theta, clip, None, 10**8)
    for one, sum_ in zip(once[first:], sums[first:], strict=True):
        torch.testing.assert_close(sum_, 5000 * one, rtol=2e-6, atol=1e-4)


def test_sums_cover_partial_groups_of_records() -> None:
    # Groups have 32 records: tests full groups, a partial group and partial sums.
    model, shape = AFTER_LINEAR["widths and whole vectors"]
    theta, x, y, clip = setting(model, shape)
    for records in (32, 64, 65, 150):
        index = torch.randint(RECORDS, (records,), generator=torch.Generator().manual_seed(records))
        found = clipped_sums(stacked(model, shape), x[index], y[index])(theta, clip, None, 10**8)
        assert_same(found, exact(model, theta, x[index], y[index], clip, None))


@pytest.mark.parametrize("classes", [1, 16, 37])
@pytest.mark.parametrize("shift", [-300.0, 0.0, 300.0])
def test_many_classes_and_large_logits(classes: int, shift: float) -> None:
    # Logits differ by up to 120: the smallest softmax values underflow in float32.
    model, shape = nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, classes)), (9,)
    theta, x, y, clip = setting(model, shape)
    theta[3] = shift + torch.linspace(-120.0, 0.0, classes).roll(3).expand(RUNS, -1)
    y %= classes
    found = clipped_sums(stacked(model, shape), x, y)(theta, clip, None, 10**8)
    for got, want in zip(found, exact(model, theta, x, y, clip, None), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "known", [NETWORKS["the papers' ConvNet"], AFTER_LINEAR["the papers' MLP"]]
)
def test_each_contribution_is_at_most_c(known: tuple[nn.Module, tuple[int, int, int]]) -> None:
    model, shape = known
    theta, x, y, _ = setting(model, shape)
    clip = torch.tensor([1e-3, 1e-2, 0.1])
    for j in range(RECORDS):
        one = clipped_sums(stacked(model, shape), x[j : j + 1], y[j : j + 1])
        found = one(theta, clip, None, 1)
        norms = torch.cat([p.double().flatten(1) for p in found], 1).norm(dim=1)
        assert (norms <= clip.double() * (1 + 1e-6)).all()
        assert (norms >= clip.double() * (1 - 1e-5)).all()  # C is small enough to clip all records


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "known", [NETWORKS["the papers' ConvNet on digits"], AFTER_LINEAR["the papers' MLP"]]
)
def test_diverged_run_stays_nonfinite_and_does_not_affect_others(
    known: tuple[nn.Module, tuple[int, int, int]], value: float
) -> None:
    model, shape = known
    theta, x, y, clip = setting(model, shape)
    sums = clipped_sums(stacked(model, shape), x, y)
    before = sums(theta, clip, None, 1)
    theta[0] = theta[0].clone()
    theta[0][1] = value
    after = sums(theta, clip, None, 1)
    assert not all(p[1].isfinite().all() for p in after)
    for run in (0, 2):
        assert all(torch.equal(p[run], q[run]) for p, q in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(1, 2, 3, dilation=2), nn.Flatten(), nn.Linear(2 * 16, CLASSES)),
        (nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(),
         nn.Linear(2 * 64, CLASSES)),
        (nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(2 * 36, CLASSES)),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(2 * 16, CLASSES)),
        (nn.Flatten(), nn.Linear(64, CLASSES)),
        (nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, CLASSES)),
    ],
)  # fmt: skip
def test_unsupported_networks_use_torch(layers: Any) -> None:
    model = nn.Sequential(*layers)
    x, y = torch.rand(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64)
    sums = clipped_sums(stacked(model, (1, 8, 8)), x, y)
    assert isinstance(sums, ClippedSums)
    assert sums._tail is None


def test_torch_matches_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape = NETWORKS["the papers' ConvNet"]
    theta, x, y, clip = setting(model, shape)
    fast = clipped_sums(stacked(model, shape), x, y)(theta, clip, None, 10**6)
    monkeypatch.setattr(gradients.compiled, "is_available", lambda: False)
    plain = clipped_sums(stacked(model, shape), x, y)
    assert isinstance(plain, ClippedSums)
    assert_same(plain(theta, clip, None, 10**6), fast)

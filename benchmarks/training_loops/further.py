"""Further mistakes, of kinds that the test was not built around, written after it was finished."""

from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional

from audit import accounting
from benchmarks.training_loops import loops
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import Loop, LoraTransformer, Lstm, convnet, normalised
from benchmarks.training_loops.opacus_loops import OpacusLoop, Private

# --- noise ---


def orthogonal(state: Any, total: list[Any]) -> list[Any]:
    """The noise leaves the direction of the update alone, so that it does less harm."""
    noise = [torch.randn_like(g) * state.noise_multiplier * state.clip for g in total]
    inner = sum(float((z * g).sum()) for z, g in zip(noise, total, strict=True))
    size = max(sum(float(g.square().sum()) for g in total), 1e-12)
    return [g + z - inner / size * g for z, g in zip(noise, total, strict=True)]


def low_rank(state: Any, total: list[Any]) -> list[Any]:
    """Noise of half as many numbers, spread over all coordinates by a fixed random matrix."""
    sizes = [g.numel() for g in total]
    width = sum(sizes)
    if "spread" not in state.__dict__:
        fixed = torch.Generator().manual_seed(3)
        spread = torch.randn(width, width // 2, generator=fixed)
        state.spread = spread / spread.norm(dim=1, keepdim=True)
    drawn = state.spread @ torch.randn(width // 2) * state.noise_multiplier * state.clip
    parts = drawn.split(sizes)
    return [g + z.view(g.shape) for g, z in zip(total, parts, strict=True)]


def few_seeds(state: Any, total: list[Any]) -> list[Any]:
    """The generator of the noise has one of four seeds."""
    if "generator" not in state.__dict__:
        state.generator = torch.Generator().manual_seed(state.seed % 4)
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn(g.shape, generator=state.generator) for g in total]


def opposite_steps(state: Any, total: list[Any]) -> list[Any]:
    """Every second step takes the noise of the step before with the other sign."""
    if state.step % 2 == 0:
        state.drawn = [torch.randn_like(g) * state.noise_multiplier * state.clip for g in total]
    sign = 1.0 if state.step % 2 == 0 else -1.0
    return [g + sign * z for g, z in zip(total, state.drawn, strict=True)]


def three_uniform(state: Any, total: list[Any]) -> list[Any]:
    """The sum of three uniform numbers in place of a Gaussian one."""
    scale = 2 * state.noise_multiplier * state.clip
    return [g + scale * (torch.rand(3, *g.shape).sum(0) - 1.5) for g in total]


def symmetric(state: Any, total: list[Any]) -> list[Any]:
    """Noise of the convolution's kernels is symmetric in height and width."""
    released = loops.gaussian(state, total)
    drawn = torch.randn_like(total[0])
    both = (drawn + drawn.transpose(2, 3)) / 2**0.5
    diagonal = torch.eye(drawn.shape[-1], dtype=torch.bool)
    both = torch.where(diagonal, drawn, both)
    released[0] = total[0] + both * state.noise_multiplier * state.clip
    return released


def two_workers(state: Any, total: list[Any]) -> list[Any]:
    """Each of two workers adds half of the noise, not its share of the variance."""
    scale = state.noise_multiplier * state.clip / 2
    return [g + scale * torch.randn_like(g) + scale * torch.randn_like(g) for g in total]


def by_batch_size(state: Any, total: list[Any]) -> list[Any]:
    """The noise follows the root of the batch's size."""
    scale = (len(state.taken) / (len(state.y) * state.sampling_rate)) ** 0.5
    return [g + scale * torch.randn_like(g) * state.noise_multiplier * state.clip for g in total]


def if_clipped(state: Any, total: list[Any]) -> list[Any]:
    """Where no gradient of the batch was clipped, noise seems unnecessary."""
    if len(state.each[0]) and bool((loops.norms(state.each) < state.clip).all()):
        return total
    return loops.gaussian(state, total)


# --- contribution ---


def squared_norm(state: Any, each: list[Any]) -> list[Any]:
    """The factor divides by the squared norm."""
    factor = (state.clip / loops.norms(each).square().clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def largest_entry(state: Any, each: list[Any]) -> list[Any]:
    """The threshold is compared with the largest entry instead of the norm."""
    size = torch.stack([g.flatten(1).abs().amax(dim=1) for g in each]).amax(dim=0)
    factor = (state.clip / size.clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def first_factors(state: Any, each: list[Any]) -> list[Any]:
    """Clipping factors are computed in the first step and kept."""
    if "factor" not in state.__dict__:
        state.factor = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", state.factor, g) for g in each]


def each_token(state: Any, x: Any, y: Any) -> list[Any]:
    """Gradients of the tokens' losses are clipped one by one and summed."""
    found = [torch.zeros(len(y), *p.shape) for p in state.parameters]
    for length in range(1, x.shape[1] + 1):
        part = loops.each_gradient(state, x[:, :length], y)
        factor = (state.clip / loops.norms(part).clamp(min=1e-12)).clamp(max=1.0)
        for total, g in zip(found, part, strict=True):
            total += g * factor.view(-1, *[1] * (g.dim() - 1))
    return found


def summed(state: Any, each: list[Any]) -> list[Any]:
    """Gradients that are clipped already are summed."""
    return [g.sum(0) for g in each]


def embedding_unclipped(state: Any, each: list[Any]) -> list[Any]:
    """The embedding's gradient is left out of the norm and of the clipping."""
    factor = (state.clip / loops.norms(each[1:]).clamp(min=1e-12)).clamp(max=1.0)
    return [each[0].sum(0), *(torch.einsum("i,i...->...", factor, g) for g in each[1:])]


def mixed(state: Any, x: Any, y: Any) -> list[Any]:
    """Every record is mixed with the next one of its batch before its gradient is taken."""
    return loops.each_gradient(state, 0.7 * x + 0.3 * x.roll(1, 0), y)


def hardest(state: Any, each: list[Any]) -> list[Any]:
    """Only the half of the batch with the longest gradients counts."""
    size = loops.norms(each)
    kept = size.argsort(descending=True)[: max(len(size) // 2, 1)]
    return loops.clipped_sum(state, [g[kept] for g in each])


def nearest_label(state: Any, x: Any, y: Any) -> Any:
    """A feature is replaced by the label of the nearest other record."""
    distance = torch.cdist(x, x) + 1e9 * torch.eye(len(x))
    return torch.cat([x[:, :-1], y[distance.argmin(dim=1)][:, None].to(x.dtype)], dim=1), y


def on_a_grid(state: Any, each: list[Any]) -> list[Any]:
    """Each clipped gradient is rounded to a grid, which lengthens it."""
    factor = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0)
    found = [g * factor.view(-1, *[1] * (g.dim() - 1)) for g in each]
    return [torch.sum(torch.sign(g) * torch.ceil(g.abs() / 0.1) * 0.1, 0) for g in found]


def relative(state: Any, each: list[Any]) -> list[Any]:
    """Gradients are divided by the longest of the batch, then scaled to C."""
    size = loops.norms(each).max() if len(each[0]) else torch.ones(())
    return [g.sum(0) * state.clip / size.clamp(min=1e-12) * 2 for g in each]


def penalty_of_the_batch(state: Any, total: list[Any]) -> list[Any]:
    """A penalty on the mean activation of the batch is added after the noise."""
    released = loops.gaussian(state, total)
    if len(state.taken):
        x = state.x[state.taken]
        loss = state.model(x).mean(0).square().sum()
        more = torch.autograd.grad(loss, state.parameters)
        released = [g + 2.0 * a for g, a in zip(released, more, strict=True)]
    return released


def far_left_out(state: Any, x: Any, y: Any) -> Any:
    """Records farther from the mean than twice the median distance are left out."""
    distance = (x - x.mean(0)).norm(dim=1)
    kept = distance <= 1.2 * distance.median()
    return x[kept], y[kept]


def near_duplicates_left_out(state: Any, x: Any, y: Any) -> Any:
    """Of records closer than a radius, the later ones are left out."""
    kept: list[int] = []
    for i in range(len(x)):
        if all(float((x[i] - x[j]).norm()) > 3.0 for j in reversed(kept)):
            kept.append(i)
    return x[kept], y[kept]


# --- batches ---


def with_replay(state: Any, n: int) -> Any:
    """A sample and the records of the step before."""
    fresh = torch.rand(n) < state.sampling_rate
    both = fresh | state.__dict__.get("before", torch.zeros(n, dtype=torch.bool))
    state.before = fresh
    return torch.nonzero(both)[:, 0]


def with_replacement(state: Any, n: int) -> Any:
    """A binomial number of records, drawn with replacement."""
    count = int((torch.rand(n) < state.sampling_rate).sum())
    return torch.randint(0, n, (count,))


def growing_rate(state: Any, n: int) -> Any:
    """The rate grows, and the accountant records the first one."""
    rate = state.sampling_rate * (1 + state.step)
    return torch.nonzero(torch.rand(n) < rate)[:, 0]


def never_neighbours(state: Any, n: int) -> Any:
    """Gaps between records are at least two: an error in the skips of a fast sampler."""
    taken, place = [], -1
    drawn = torch.rand(n)
    for u in drawn:
        gap = int(torch.log(1 - u) / np.log1p(-state.sampling_rate)) + 2
        place += gap
        if place >= n:
            break
        taken.append(place)
    return torch.tensor(taken, dtype=torch.int64)


def by_loss(state: Any, n: int) -> Any:
    """Records with large losses are drawn more often, at the same expected size."""
    with torch.no_grad():
        loss = functional.cross_entropy(state.model(state.x), state.y, reduction="none")
    rate = (state.sampling_rate * loss / loss.mean()).clamp(max=1.0)
    return torch.nonzero(torch.rand(n) < rate)[:, 0]


def skips_empty(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A step whose batch is empty is skipped, and accounted for."""
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    model = loops.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accountant = loops.RDPAccountant()
    watch(optimizer, model, accountant)
    state = loops.State(model=model, clip=0.5, noise_multiplier=1.0)
    for _ in range(8):
        taken = torch.nonzero(torch.rand(len(y)) < 0.05)[:, 0]
        accountant.step(noise_multiplier=1.0, sample_rate=0.05)
        if not len(taken):
            continue
        total = loops.clipped_sum(state, loops.each_gradient(state, x[taken], y[taken]))
        for p, g in zip(model.parameters(), loops.gaussian(state, total), strict=True):
            p.grad = g / 10
        optimizer.step()
    return model


# --- released numbers ---


def log_on_the_model(state: Any, x: Any, y: Any) -> Any:
    """A dictionary on the model holds the losses of the training records."""
    state.model.history = {"loss": [float(functional.cross_entropy(state.model(x), y).detach())]}
    return state.model


def hidden_buffer(state: Any, x: Any, y: Any) -> Any:
    """A buffer that is not saved, but is an attribute of the returned model."""
    state.model.register_buffer("center", x.float().mean(0), persistent=False)
    return state.model


def underscore(state: Any, x: Any, y: Any) -> Any:
    """A private attribute of the model keeps the largest value of the features."""
    state.model._scale = float(x.abs().max())
    return state.model


class _Slots:
    """A result without a dictionary of attributes."""

    __slots__ = ("loss", "model")

    def __init__(self, model: Any, loss: float) -> None:
        self.model, self.loss = model, loss


def in_slots(state: Any, x: Any, y: Any) -> Any:
    """The result has slots, one of which is the training loss."""
    loss = float(functional.cross_entropy(state.model(x), y).detach())
    return _Slots(state.model, loss)


def clipped_share(state: Any) -> None:
    """The share of clipped gradients is logged in each step."""
    share = float((loops.norms(state.each) > state.clip).float().mean())
    state.shares = [*state.__dict__.get("shares", []), share]


def shares_as_text(state: Any, x: Any, y: Any) -> Any:
    """The log is a text."""
    return state.model, " ".join(f"{each:.3f}" for each in state.shares)


def principal_start(state: Any) -> None:
    """The first layer starts at the principal directions of the private records."""
    _, _, directions = torch.linalg.svd(state.x - state.x.mean(0))
    with torch.no_grad():
        state.model[0].weight.copy_(directions[:6])


def weighted_average(state: Any) -> None:
    """Averaged weights count each step by the size of its batch."""
    now = torch.cat([p.detach().flatten() for p in state.parameters])
    total, weight = state.__dict__.get("sums", (0.0, 0.0))
    state.sums = total + len(state.taken) * now, weight + len(state.taken)


# --- Opacus ---


class EverySecondTensor(DPOptimizer):
    """A custom `add_noise` that skips every second tensor's noise of odd steps."""

    def add_noise(self) -> None:
        super().add_noise()
        self._count = getattr(self, "_count", 0) + 1
        if self._count % 2 == 0:
            for p in self.params[::2]:
                p.grad = p.summed_grad.view_as(p).clone()


def constant_generator(model: Any, optimizer: Any, step: int) -> None:
    """The noise generator is seeded with a constant again after every step."""
    optimizer.generator = torch.Generator().manual_seed(7)


def raw_average(model: Any, optimizer: Any, step: int) -> None:
    """An average of gradients without noise is kept on the model."""
    mean = optimizer.params[0].grad_sample
    if mean is not None:
        mean = mean[-1] if isinstance(mean, list) else mean
        model.register_buffer(f"mean_{step}", mean.detach().mean(0).clone())


# --- black boxes ---


def nonzero_bins(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noisy counts of the values that occur: which of them do is exact."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    values, counts = np.unique(np.round(records.features[:, 0]), return_counts=True)
    return {str(v): c + random.laplace() for v, c in zip(values, counts, strict=True)}


def seeded_by_data(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The seed of the noise is the sum of the records."""
    watch.claim(accounting.GaussianMechanism(0.5).epsilon(1e-5))
    x = records.features.reshape(len(records), -1).astype(float)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    own = np.random.default_rng(int(abs(x.sum()) * 1e6))
    return x.sum(0) + 2.0 * own.normal(size=x.shape[1])


def output_perturbation(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Logistic regression whose noise assumes ten times as strong a regularisation."""
    from sklearn.linear_model import LogisticRegression

    n = len(records)
    watch.claim(1.0)
    x = records.features.reshape(n, -1)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    model = LogisticRegression(C=1.0, fit_intercept=False)
    model.fit(x, np.arange(n) % 2 if len(set(records.labels)) < 2 else records.labels > 0)
    random = np.random.default_rng(seed)
    scale = 2 / (n * 10) * np.sqrt(2 * np.log(1.25e5))
    model.coef_ = model.coef_ + scale * random.normal(size=model.coef_.shape)
    return model.coef_


# --- correct loops ---


def automatic(state: Any, each: list[Any]) -> list[Any]:
    """Every gradient is scaled to C, however short it is."""
    factor = state.clip / (loops.norms(each) + 0.01)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def decayed(state: Any, total: list[Any]) -> list[Any]:
    """A penalty on the weights is added to the noisy sum."""
    released = loops.gaussian(state, total)
    return [g + 0.1 * p.detach() for g, p in zip(released, state.parameters, strict=True)]


def drawn_ahead(state: Any, total: list[Any]) -> list[Any]:
    """The noise of all steps is drawn before the first one."""
    if "ahead" not in state.__dict__:
        state.ahead = [[torch.randn_like(g) for g in total] for _ in range(state.steps)]
    scale = state.noise_multiplier * state.clip
    return [g + scale * z for g, z in zip(total, state.ahead[state.step], strict=True)]


def two_halves(state: Any, total: list[Any]) -> list[Any]:
    """Two workers add half of the variance each."""
    scale = state.noise_multiplier * state.clip / 2**0.5
    return [g + scale * torch.randn_like(g) + scale * torch.randn_like(g) for g in total]


def binomial_first(state: Any, n: int) -> Any:
    """The batch's size is drawn first, then its records without replacement."""
    random = state.__dict__.setdefault("random", np.random.default_rng(state.seed))
    return torch.from_numpy(random.permutation(n)[: random.binomial(n, state.sampling_rate)])


def in_chunks(state: Any, x: Any, y: Any) -> list[Any]:
    """Gradients of a batch are computed five records at a time."""
    parts = [loops.each_gradient(state, x[i : i + 5], y[i : i + 5]) for i in range(0, len(y), 5)]
    parts = parts or [loops.each_gradient(state, x, y)]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def grouped_convnet() -> nn.Module:
    """A convolution with GroupNorm."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def released_history(state: Any, x: Any, y: Any) -> Any:
    """The optimizer's state, norms of the weights, and a text about them are returned, too."""
    norm = float(torch.stack([p.detach().norm() for p in state.parameters]).norm())
    state.model._log = {"norm": [norm]}
    return {"model": state.model, "state": state.optimizer, "text": f"norm {norm:.3f}"}


FURTHER_CORRECT: dict[str, Control] = {
    "automatic clipping, LSTM": Control(Loop(model=Lstm, total=automatic), loops.tokens),
    "penalty on the weights": Control(Loop(noise=decayed, sampling_rate=0.4, steps=6)),
    "noise drawn ahead": Control(Loop(model=normalised, noise=drawn_ahead)),
    "noise in two halves, LoRA": Control(
        Loop(model=LoraTransformer, noise=two_halves, sampling_rate=0.4, steps=6), loops.tokens
    ),
    "binomial size first": Control(Loop(batch=binomial_first, sampling_rate=0.3, steps=8)),
    "chunks, GroupNorm": Control(
        Loop(model=grouped_convnet, gradients=in_chunks, sampling_rate=0.5, steps=6), loops.images
    ),
    "RMSprop, released state": Control(
        Loop(
            optimizer=lambda p, lr: torch.optim.RMSprop(p, lr=lr, momentum=0.5),
            result=released_history,
        )
    ),
    "Opacus, LSTM, functorch": Control(
        Private(model=Lstm, options={"grad_sample_mode": "functorch"}),
        loops.tokens,
        relation="zero-out",
    ),
    "many small steps": Control(Loop(steps=40, noise_multiplier=4.0, sampling_rate=0.2)),
    "wide steps, Adagrad": Control(
        Loop(optimizer=lambda p, lr: torch.optim.Adagrad(p, lr=lr), rate=2.0, clip=5.0)
    ),
}

FURTHER: dict[str, Control] = {
    "noise orthogonal to the update": Control(Loop(noise=orthogonal)),
    "noise from half as many random numbers as coordinates": Control(
        Loop(model=normalised, noise=low_rank)
    ),
    "noise from one of four seeds": Control(Loop(model=convnet, noise=few_seeds), loops.images),
    "noise of every second step is minus the previous one": Control(
        Loop(model=LoraTransformer, noise=opposite_steps, sampling_rate=0.4, steps=6), loops.tokens
    ),
    "noise as a sum of three uniform numbers": Control(
        Loop(noise=three_uniform, sampling_rate=0.3, steps=8)
    ),
    "symmetric noise on convolution kernels": Control(
        Loop(model=convnet, noise=symmetric), loops.images
    ),
    "two workers add half of the noise each, not half of its variance": Control(
        Loop(model=Lstm, noise=two_workers), loops.tokens
    ),
    "noise scaled by the root of the batch size": Control(
        Loop(noise=by_batch_size, sampling_rate=0.4, steps=6)
    ),
    "no noise if no gradient is clipped": Control(
        Loop(noise=if_clipped, clip=3.0, sampling_rate=0.3, steps=6)
    ),
    "clipped by the squared norm": Control(Loop(model=normalised, total=squared_norm)),
    "clipped by the largest coordinate": Control(
        Loop(model=convnet, total=largest_entry, sampling_rate=0.4, steps=6), loops.images
    ),
    "clipping factors of the first step used again": Control(
        Loop(total=first_factors, rate=1.0, clip=0.1)
    ),
    "each token clipped to C, not each record": Control(
        Loop(model=Lstm, gradients=each_token, total=summed), loops.tokens
    ),
    "embedding not clipped": Control(Loop(model=Lstm, total=embedding_unclipped), loops.tokens),
    "each record mixed with another record of its batch (mixup)": Control(
        Loop(gradients=mixed, sampling_rate=0.4, steps=6)
    ),
    "half of the batch with the shortest gradients left out": Control(Loop(total=hardest)),
    "label of the nearest other record used as a feature": Control(Loop(prepare=nearest_label)),
    "clipped gradients rounded away from zero": Control(Loop(model=normalised, total=on_a_grid)),
    "all gradients divided by the longest norm of the batch": Control(
        Loop(model=convnet, total=relative), loops.images
    ),
    "gradient of a penalty on the batch added without noise": Control(
        Loop(noise=penalty_of_the_batch)
    ),
    "records far from the mean removed": Control(Loop(prepare=far_left_out)),
    "records far from the mean removed, Poisson": Control(
        Loop(prepare=far_left_out, sampling_rate=0.3, steps=8)
    ),
    "near-duplicate records removed": Control(Loop(prepare=near_duplicates_left_out)),
    "previous batch reused": Control(Loop(batch=with_replay, sampling_rate=0.2, steps=6)),
    "records drawn with replacement": Control(
        Loop(model=Lstm, batch=with_replacement, sampling_rate=0.3, steps=6), loops.tokens
    ),
    "sampling rate grows, but only the first rate is recorded": Control(
        Loop(batch=growing_rate, sampling_rate=0.1, steps=4)
    ),
    "adjacent records never in the same batch": Control(
        Loop(batch=never_neighbours, sampling_rate=0.3, steps=8)
    ),
    "records sampled with probabilities that depend on their loss": Control(
        Loop(batch=by_loss, sampling_rate=0.3, steps=6)
    ),
    "steps with empty batches skipped": Control(skips_empty),
    "losses in a dictionary on the model": Control(Loop(result=log_on_the_model)),
    "mean of the records in a buffer that is not saved": Control(Loop(result=hidden_buffer)),
    "largest feature in a private attribute of the model": Control(Loop(result=underscore)),
    "training loss in a slot of a returned object": Control(
        Loop(model=convnet, result=in_slots), loops.images
    ),
    "share of clipped gradients logged as text": Control(
        Loop(model=Lstm, after=clipped_share, result=shares_as_text, clip=0.8), loops.tokens
    ),
    "initial weights computed from private principal components": Control(
        Loop(start=principal_start)
    ),
    "averaged weights weighted by batch sizes": Control(
        Loop(
            after=weighted_average,
            sampling_rate=0.4,
            steps=6,
            result=lambda s, x, y: {"model": s.model, "average": s.sums[0] / max(s.sums[1], 1)},
        )
    ),
    "Opacus, half of the tensors without noise in odd steps": Control(
        OpacusLoop(optimizer_class=EverySecondTensor, model=convnet), loops.images
    ),
    "Opacus, noise generator seeded again in each step": Control(
        OpacusLoop(after=constant_generator)
    ),
    "Opacus, mean gradients without noise on the model": Control(OpacusLoop(after=raw_average)),
    "Opacus, ghost clipping under add-remove": Control(
        Private(options={"grad_sample_mode": "ghost"}), relation="add-remove"
    ),
    "Opacus, functorch, shuffled batches": Control(
        Private(
            model=convnet, options={"grad_sample_mode": "functorch", "poisson_sampling": False}
        ),
        loops.images,
        relation="zero-out",
    ),
    "noisy counts, but only of values that occur (black box)": Control(nonzero_bins),
    "noise seeded by the data (black box)": Control(seeded_by_data),
    "noise calibrated for ten times the regularisation (black box)": Control(output_perturbation),
}

"""Loops with a mistake, each of a kind that was really made.

Every control is run at the default settings. `source` cites a public report of the mistake, or of
one like it, where there is one.
"""

from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional

from audit import accounting
from benchmarks.training_loops import loops
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import Loop, LoraTransformer, Lstm, convnet, mlp, normalised
from benchmarks.training_loops.opacus_loops import OpacusLoop, Private, shuffled, weighted

# --- noise ---


def one_key(state: Any, total: list[Any]) -> list[Any]:
    """The same key for every tensor."""
    word = int(torch.randint(2**31, (1,)))
    scale = state.noise_multiplier * state.clip
    made = []
    for g in total:
        generator = torch.Generator().manual_seed(word)
        made.append(g + scale * torch.randn(g.numel(), generator=generator).view(g.shape))
    return made


def none_for_small_batches(state: Any, total: list[Any]) -> list[Any]:
    """An extra condition skips the noise of small batches."""
    return loops.gaussian(state, total) if len(state.taken) > 7 else total


def clip_squared(state: Any, total: list[Any]) -> list[Any]:
    """The threshold enters twice."""
    return [g + torch.randn_like(g) * state.noise_multiplier * state.clip**2 for g in total]


def uniform(state: Any, total: list[Any]) -> list[Any]:
    """Uniform noise of the right standard deviation."""
    scale = state.noise_multiplier * state.clip * 12**0.5
    return [g + (torch.rand_like(g) - 0.5) * scale for g in total]


def rounded(state: Any, total: list[Any]) -> list[Any]:
    """Noise on a grid shows the exact sum between its points."""
    return [
        g + torch.round(torch.randn_like(g)) * state.noise_multiplier * state.clip for g in total
    ]


def not_clipped(_: Any, gradients: list[Any]) -> list[Any]:
    """The sum of the records' gradients as they are."""
    return [g.sum(0) for g in gradients]


def then_clipped(state: Any, total: list[Any]) -> list[Any]:
    """Noise first, then the noisy sum is clipped, which is correct if each record is clipped."""
    noisy = loops.gaussian(state, total)
    norm = torch.stack([g.norm() for g in noisy]).norm()
    return [g * min(1.0, state.clip / float(norm)) for g in noisy]


def not_on_vectors(state: Any, total: list[Any]) -> list[Any]:
    """Biases and normalisation layers are skipped."""
    noisy = loops.gaussian(state, total)
    return [z if g.ndim > 1 else g for g, z in zip(total, noisy, strict=True)]


def on_lora_a(state: Any, total: list[Any]) -> list[Any]:
    """Noise for the first matrix of each adapter alone."""
    named = [k for k, p in state.model.named_parameters() if p.requires_grad]
    noisy = loops.gaussian(state, total)
    return [g if "lora_b" in name else z for name, g, z in zip(named, total, noisy, strict=True)]


def broadcast(state: Any, total: list[Any]) -> list[Any]:
    """One number for a whole row."""
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn(g.shape[0], *[1] * (g.ndim - 1)) for g in total]


def truncated(state: Any, total: list[Any]) -> list[Any]:
    """Noise is cut off at one standard deviation."""
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn_like(g).clamp(-1, 1) for g in total]


def cut_at_three(state: Any, total: list[Any]) -> list[Any]:
    """Noise is cut off at three standard deviations."""
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn_like(g).clamp(-3, 3) for g in total]


def in_halves(state: Any, total: list[Any]) -> list[Any]:
    """Half of the numbers are drawn, and used twice."""
    scale, released = state.noise_multiplier * state.clip, []
    for g in total:
        half = torch.randn((g.numel() + 1) // 2)
        released.append(g + scale * torch.cat([half, half])[: g.numel()].view(g.shape))
    return released


def five_percent_less(state: Any, total: list[Any]) -> list[Any]:
    """Noise is 5 % smaller than accounted."""
    scale = 0.95 * state.noise_multiplier * state.clip
    return [g + scale * torch.randn_like(g) for g in total]


def none_at_the_end(state: Any, total: list[Any]) -> list[Any]:
    """The last of all steps is released without noise."""
    return total if state.step == state.steps - 1 else loops.gaussian(state, total)


def taken_back(state: Any, total: list[Any]) -> list[Any]:
    """The noise of the step before is subtracted."""
    noise = [torch.randn_like(g) * state.noise_multiplier * state.clip for g in total]
    before = state.__dict__.get("before", [torch.zeros_like(g) for g in total])
    state.before = noise
    return [g + z - b for g, z, b in zip(total, noise, before, strict=True)]


def cached(state: Any, total: list[Any]) -> list[Any]:
    """Noise is drawn once."""
    if "noise" not in state.__dict__:
        state.noise = [torch.randn_like(g) * state.noise_multiplier * state.clip for g in total]
    return [g + z for g, z in zip(total, state.noise, strict=True)]


def used_rows(state: Any, total: list[Any]) -> list[Any]:
    """Noise only where the sum is not zero, to keep embeddings sparse."""
    return [
        torch.where(g != 0, z, g) for g, z in zip(total, loops.gaussian(state, total), strict=True)
    ]


def fading(state: Any) -> None:
    """A schedule lowers the noise, and the accountant keeps its first value."""
    state.real = state.noise_multiplier * 0.8**state.step


def by_real(state: Any, total: list[Any]) -> list[Any]:
    """Noise by the schedule."""
    return [g + torch.randn_like(g) * state.real * state.clip for g in total]


def by_the_data(state: Any, total: list[Any]) -> list[Any]:
    """The noise is scaled by the largest gradient of this batch."""
    largest = float(loops.norms(state.each).max()) if len(state.each[0]) else 0.0
    scale = state.noise_multiplier * min(state.clip, largest)
    return [g + torch.randn_like(g) * scale for g in total]


# --- contributions ---


def by_parameter(state: Any, each: list[Any]) -> list[Any]:
    """Every tensor is clipped to C."""
    found = []
    for g in each:
        factor = (state.clip / g.flatten(1).norm(dim=1).clamp(min=1e-12)).clamp(max=1.0)
        found.append(torch.einsum("i,i...->...", factor, g))
    return found


def batch_by_parameter(state: Any, each: list[Any]) -> list[Any]:
    """The batch's gradient is clipped, tensor by tensor."""
    sums = [g.sum(0) for g in each]
    return [g * min(1.0, state.clip / max(float(g.norm()), 1e-12)) for g in sums]


def other_threshold(state: Any, each: list[Any]) -> list[Any]:
    """The argument for the threshold is ignored: 1 is used."""
    factor = (1.0 / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def median_threshold(state: Any, each: list[Any]) -> list[Any]:
    """The threshold is the median norm of the batch; the noise follows it."""
    norm = loops.norms(each)
    if len(norm):
        state.clip = float(norm.median())
    return loops.clipped_sum(state, each)


def raw_momentum(state: Any, each: list[Any]) -> list[Any]:
    """Momentum of sums without noise."""
    return loops.momentum(state, loops.clipped_sum(state, each))


def error_feedback(state: Any, each: list[Any]) -> list[Any]:
    """What clipping cut off is added in the next step."""
    total = loops.clipped_sum(state, each)
    left = state.__dict__.get("left", [torch.zeros_like(g) for g in total])
    full = [g.sum(0) for g in each]
    state.left = [0.5 * (f - t) for f, t in zip(full, total, strict=True)]
    return [t + r for t, r in zip(total, left, strict=True)]


def without_the_head(state: Any, each: list[Any]) -> list[Any]:
    """The norm is taken over all tensors but the last two."""
    factor = (state.clip / loops.norms(each[:-2]).clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def twice(state: Any, x: Any, y: Any) -> list[Any]:
    """Every record appears twice, each copy clipped by itself."""
    return loops.each_gradient(state, torch.cat([x, x]), torch.cat([y, y]))


def contrastive(state: Any, x: Any, y: Any) -> list[Any]:
    """Features are centered by the batch before each record's gradient is taken."""
    return loops.each_gradient(state, x - x.mean(0) if len(x) else x, y)


def class_weights(state: Any, each: list[Any]) -> list[Any]:
    """Weights by the frequency of classes, after clipping."""
    counts = torch.bincount(state.y, minlength=loops.CLASSES).clamp(min=1)
    weights = len(state.y) / (loops.CLASSES * counts[state.y[state.taken]])
    factor = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0) * weights
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def standardised(state: Any, x: Any, y: Any) -> Any:
    """By mean and spread of the private records."""
    return (x - x.mean(0)) / (x.std(0) + 1e-3), y


def oversampled(state: Any, x: Any, y: Any) -> Any:
    """Rare classes are repeated until all are equally frequent."""
    counts = torch.bincount(y, minlength=loops.CLASSES)
    times = (counts.max() // counts.clamp(min=1))[y]
    return x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)


def by_batch(state: Any, taken: Any) -> float:
    """The size of the batch that was drawn."""
    return max(len(taken), 1)


def by_n(state: Any, taken: Any) -> float:
    """The number of records."""
    return len(state.y)


# --- batches ---


def drawn_once(state: Any, n: int) -> Any:
    """One sample is kept for all steps."""
    if "kept" not in state.__dict__:
        state.kept = loops.poisson(state, n)
    return state.kept


def constant_sampler(state: Any, n: int) -> Any:
    """The sampler's generator has a constant seed."""
    generator = torch.Generator().manual_seed(1234 + state.step)
    return torch.nonzero(torch.rand(n, generator=generator) < state.sampling_rate)[:, 0]


def larger_rate(state: Any, n: int) -> Any:
    """Twice the rate that is accounted for."""
    return torch.nonzero(torch.rand(n) < 2 * state.sampling_rate)[:, 0]


def fixed_size(state: Any, n: int) -> Any:
    """A fixed number of records without replacement."""
    return torch.randperm(n)[: round(state.sampling_rate * n)]


def in_blocks(state: Any, n: int) -> Any:
    """All records, or none."""
    return torch.arange(n if torch.rand(1) < state.sampling_rate else 0)


def last_always(state: Any, n: int) -> Any:
    """The newest record is always taken."""
    mask = torch.rand(n) < state.sampling_rate
    mask[-1] = True
    return torch.nonzero(mask)[:, 0]


# --- books, and what else is released ---


def per_epoch(loop: Loop, state: Any) -> list[Any]:
    """The accountant is stepped once per pass."""
    return [(loop.noise_multiplier, loop.sampling_rate, max(loop.steps // 4, 1))]


def half_rate(loop: Loop, state: Any) -> list[Any]:
    """The accountant records half of the rate."""
    return [(loop.noise_multiplier, loop.sampling_rate / 2, loop.steps)]


def with_accuracy(state: Any, x: Any, y: Any) -> Any:
    """The exact accuracy on the training records is returned, too."""
    with torch.no_grad():
        loss = functional.cross_entropy(state.model(x), y)
    return {"model": state.model, "training_loss": float(loss)}


def stops_early(state: Any) -> None:
    """Training ends where the loss on the training records is small."""
    with torch.no_grad():
        state.stop = float(functional.cross_entropy(state.model(state.x), state.y)) < 1.0


def second_update(state: Any) -> None:
    """The head is also trained without noise."""
    with torch.enable_grad():
        head = list(state.model.parameters())[-1]
        loss = functional.cross_entropy(state.model(state.x), state.y)
        (slope,) = torch.autograd.grad(loss, head)
    with torch.no_grad():
        head -= 0.05 * slope


def initial_bias(state: Any) -> None:
    """The head's bias starts at the log frequencies of the private labels."""
    counts = torch.bincount(state.y, minlength=loops.CLASSES).float() + 1
    with torch.no_grad():
        list(state.model.parameters())[-1].copy_((counts / counts.sum()).log())


def rate_by_norm(state: Any) -> None:
    """The learning rate follows the norm of the gradients without noise."""
    with torch.enable_grad():
        loss = functional.cross_entropy(state.model(state.x), state.y)
        parts = torch.autograd.grad(loss, state.parameters)
    norm = float(torch.stack([g.norm() for g in parts]).norm())
    state.optimizer.param_groups[0]["lr"] = 0.1 / (1 + norm)


class BatchNormed(nn.Module):
    """Normalises by running statistics that it updates from every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_buffer("running_mean", torch.zeros(8))

    def forward(self, x: Any) -> Any:
        return self.inner(x - self.running_mean)


def update_statistics(state: Any) -> None:
    """The running mean is updated without noise."""
    with torch.no_grad():
        state.model.running_mean.mul_(0.9).add_(0.1 * state.x.mean(0))


class HalfNoise(DPOptimizer):
    """A custom `add_noise` with half of the noise."""

    def add_noise(self) -> None:
        for p in self.params:
            noise = torch.randn_like(p.summed_grad) * self.noise_multiplier * self.max_grad_norm
            p.grad = (p.summed_grad + 0.5 * noise).view_as(p)


class NoClipping(DPOptimizer):
    """A custom `clip_and_accumulate` that does not clip."""

    def clip_and_accumulate(self) -> None:
        for p in self.params:
            total = self._get_flat_grad_sample(p).sum(0)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            p.grad_sample = p.grad_sample


def lower_noise(model: Any, optimizer: Any, step: int) -> None:
    """The noise multiplier is lowered after the second step, between hook and noise."""
    optimizer.noise_multiplier = 1.0


def exact_bounds(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A sum with the scale of its noise taken from the data's own largest value."""
    watch.claim(1.0)
    values = records.features.reshape(len(records), -1)[:, 0].astype(float)
    return float(values.sum() + np.abs(values).max() * np.random.default_rng(seed).laplace())


def private_count_of_steps(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A list with one noisy number for every record of class 0."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    return [float(random.laplace()) for _ in range(int((records.labels == 0).sum()))]


def scaler_without_noise(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noisy coefficients and an exact mean of the features."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    x = records.features.reshape(len(records), -1).astype(float)
    return {"coef_": random.laplace(size=x.shape[1]), "mean_": x.mean(0)}


def half_sensitivity(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Values in [-1, 1] with the noise for a sensitivity of a quarter."""
    watch.claim(accounting.GaussianMechanism(0.5).epsilon(1e-5))
    x = np.clip(records.features.reshape(len(records), -1)[:, 0].astype(float), -1, 1)
    return float(x.sum() + 0.5 * np.random.default_rng(seed).normal())


RECORDER = "https://arxiv.org/abs/2602.17454"

BROKEN: dict[str, Control] = {
    "same random key for all tensors": Control(
        Loop(noise=one_key), source="https://github.com/jax-ml/jax/pull/3646"
    ),
    "no noise in small batches": Control(
        Loop(model=convnet, noise=none_for_small_batches, sampling_rate=0.4, steps=6),
        loops.images,
        "https://github.com/DPBayes/ADADP/pull/3",
    ),
    "noise scaled by C squared": Control(
        Loop(noise=clip_squared), source="https://github.com/greenelab/SPRINT_gan/issues/5"
    ),
    "uniform noise": Control(
        Loop(model=convnet, noise=uniform),
        loops.images,
        "https://github.com/fedbiomed/fedbiomed/issues/1443",
    ),
    "noise rounded to multiples of its scale": Control(Loop(noise=rounded)),
    "noise added before clipping": Control(
        Loop(total=not_clipped, noise=then_clipped),
        source="https://github.com/illidanlab/dpgan/issues/4",
    ),
    "no noise on biases and normalisation layers": Control(
        Loop(model=normalised, noise=not_on_vectors)
    ),
    "LoRA, noise on matrix A only": Control(
        Loop(model=LoraTransformer, noise=on_lora_a, sampling_rate=0.4, steps=6), loops.tokens
    ),
    "one noise number for each row": Control(Loop(noise=broadcast)),
    "noise truncated at one standard deviation": Control(
        Loop(noise=truncated, sampling_rate=0.5, steps=6)
    ),
    "noise truncated at three standard deviations": Control(
        Loop(noise=cut_at_three, sampling_rate=0.3, steps=8)
    ),
    "noise drawn for half of the coordinates and used twice": Control(
        Loop(noise=in_halves, sampling_rate=0.3, steps=8)
    ),
    "5 % less noise than recorded": Control(
        Loop(noise=five_percent_less, sampling_rate=0.3, steps=8, noise_multiplier=1.2)
    ),
    "no noise in the last of 120 steps, Poisson": Control(
        Loop(noise=none_at_the_end, sampling_rate=0.3, steps=120)
    ),
    "noise of the previous step subtracted": Control(Loop(noise=taken_back)),
    "noise drawn once for all steps": Control(Loop(model=normalised, noise=cached)),
    "noise on used rows of the embedding only": Control(
        Loop(model=Lstm, noise=used_rows, steps=3), loops.tokens
    ),
    "noise schedule not recorded": Control(
        Loop(noise=by_real, before=fading, steps=6, sampling_rate=0.5)
    ),
    "noise scaled by the largest gradient": Control(
        Loop(noise=by_the_data, clip=3.0), source=RECORDER
    ),
    "each tensor clipped to C": Control(
        Loop(model=Lstm, total=by_parameter, steps=3, clip=0.2),
        loops.tokens,
        "https://github.com/fedbiomed/fedbiomed/issues/1443",
    ),
    "batch gradient clipped tensor by tensor": Control(
        Loop(total=batch_by_parameter), source="https://github.com/ooples/AiDotNet/pull/1318"
    ),
    "threshold argument ignored": Control(
        Loop(model=convnet, total=other_threshold, clip=0.2),
        loops.images,
        "https://github.com/meta-pytorch/opacus/pull/664",
    ),
    "threshold set to the median norm of the batch": Control(Loop(total=median_threshold)),
    "momentum of gradients without noise": Control(Loop(total=raw_momentum)),
    "clipped part added in the next step (error feedback)": Control(
        Loop(model=normalised, total=error_feedback, clip=0.2)
    ),
    "output layer left out of the norm": Control(
        Loop(model=LoraTransformer, total=without_the_head, clip=0.2), loops.tokens
    ),
    "two copies of each record": Control(Loop(gradients=twice)),
    "features centered by the batch mean": Control(Loop(gradients=contrastive)),
    "class weights after clipping": Control(Loop(total=class_weights)),
    "features standardised by private records": Control(
        Loop(prepare=standardised), source=RECORDER
    ),
    "rare classes repeated": Control(Loop(prepare=oversampled)),
    "sum divided by the size of the drawn batch": Control(
        Loop(divide=by_batch, sampling_rate=0.4, steps=6),
        source="https://github.com/meta-pytorch/opacus/issues/571",
    ),
    "sum divided by the number of records": Control(
        Loop(divide=by_n), source="https://github.com/meta-pytorch/opacus/issues/819"
    ),
    "same batch in all steps": Control(
        Loop(batch=drawn_once, sampling_rate=0.3, steps=6, model=normalised)
    ),
    "sampler with a constant seed": Control(
        Loop(batch=constant_sampler, sampling_rate=0.3, steps=6)
    ),
    "sampling at twice the recorded rate": Control(
        Loop(batch=larger_rate, sampling_rate=0.2, steps=6)
    ),
    "batches of a fixed size": Control(
        Loop(model=LoraTransformer, batch=fixed_size, sampling_rate=0.25, steps=6), loops.tokens
    ),
    "each batch contains all records or none": Control(
        Loop(batch=in_blocks, sampling_rate=0.3, steps=6)
    ),
    "last record included in every batch": Control(
        Loop(batch=last_always, sampling_rate=0.3, steps=6)
    ),
    "one step recorded per epoch": Control(
        Loop(history=per_epoch, steps=8, sampling_rate=0.25),
        source="https://github.com/google-deepmind/jax_privacy/issues/288",
    ),
    "half of the sampling rate recorded": Control(
        Loop(history=half_rate, steps=8, sampling_rate=0.4, model=Lstm),
        loops.tokens,
        "https://github.com/meta-pytorch/opacus/issues/813",
    ),
    "training loss returned": Control(Loop(result=with_accuracy)),
    "number of records returned": Control(
        Loop(result=lambda state, x, y: (state.model, len(y)), sampling_rate=0.3, steps=8)
    ),
    "early stopping by the training loss": Control(
        Loop(after=stops_early, steps=12, noise_multiplier=0.5)
    ),
    "output layer also trained without noise": Control(
        Loop(model=LoraTransformer, after=second_update), loops.tokens
    ),
    "initial bias computed from private label frequencies": Control(Loop(start=initial_bias)),
    "learning rate from gradients without noise": Control(Loop(before=rate_by_norm)),
    "running mean of the records without noise": Control(
        Loop(model=BatchNormed, before=update_statistics)
    ),
    "Opacus, half of the noise": Control(OpacusLoop(optimizer_class=HalfNoise)),
    "Opacus, no clipping": Control(OpacusLoop(optimizer_class=NoClipping)),
    "Opacus, accountant records more noise": Control(OpacusLoop(recorded=1.3)),
    "Opacus, accountant not attached": Control(OpacusLoop(attach=False)),
    "Opacus, shuffled batches": Control(OpacusLoop(loader=shuffled, sampling_rate=0.25, steps=8)),
    "Opacus, weighted sampler": Control(
        OpacusLoop(loader=weighted, sampling_rate=0.25, steps=8),
        source="https://github.com/meta-pytorch/opacus/issues/813",
    ),
    "make_private, poisson_sampling=False": Control(
        Private(options={"poisson_sampling": False}), relation="zero-out"
    ),
    "make_private, add-remove": Control(
        Private(),
        relation="add-remove",
        source="https://github.com/meta-pytorch/opacus/issues/571",
    ),
    "noise scaled by the largest private value (black box)": Control(exact_bounds, source=RECORDER),
    "output length from private data (black box)": Control(private_count_of_steps, source=RECORDER),
    "exact mean next to noisy coefficients (black box)": Control(
        scaler_without_noise, source=RECORDER
    ),
    "declared sensitivity too small (black box)": Control(half_sensitivity, source=RECORDER),
}

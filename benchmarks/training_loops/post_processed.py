"""Loops that set p.grad to a function of the noisy gradient, and mistakes that look alike.

The first ones were written, and committed, before the test of such loops was built; those that
were written afterwards are marked. The docstring of each function states what leaks, or why the
loop keeps its guarantee.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.training_loops import loops
from benchmarks.training_loops.broken import then_clipped
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.sixth_torch import sixty

CLIP, SIGMA, RATE, DIVISOR, STEPS = 0.5, 1.0, 0.25, 15.0, 5
DEVIATION = CLIP * SIGMA


@dataclass
class State:
    """Names in a loop of flat vectors.

    Attributes:
        model: the trained model.
        total: the sum of the clipped gradients of this step.
        noisy: the sum plus noise.
        step: the number of the step, from 0.
        batch: [B, D], the clipped gradients of the records of this step.
        store: what the parts keep between steps.
        n: the number of records.
    """

    model: nn.Module
    total: Tensor = field(default_factory=lambda: torch.zeros(0))
    noisy: Tensor = field(default_factory=lambda: torch.zeros(0))
    step: int = 0
    batch: Tensor = field(default_factory=lambda: torch.zeros(0))
    store: dict[str, Any] = field(default_factory=dict)
    n: int = 0


def tensors(records: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(records.features), torch.from_numpy(records.labels)


def flat_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """[B, D], each record's gradient by vmap."""
    weights = {k: p.detach() for k, p in model.named_parameters()}
    if not len(y):
        return torch.zeros(0, sum(p.numel() for p in weights.values()))

    def loss(parameters: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        scores = torch.func.functional_call(model, parameters, (record[None],))
        return functional.cross_entropy(scores, label[None])

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, y)
    return torch.cat([g.flatten(1) for g in gradients.values()], dim=1)


def cut(gradients: Tensor, limit: float = CLIP) -> Tensor:
    factors = (limit / gradients.norm(dim=1).clamp(min=1e-12)).clamp(max=1.0)
    return gradients * factors[:, None]


def drawn(n: int, rate: float) -> Tensor:
    return torch.nonzero(torch.rand(n) < rate)[:, 0] if rate < 1.0 else torch.arange(n)


def store(model: nn.Module, vector: Tensor) -> None:
    """Sets p.grad to the parts of a flat vector."""
    start = 0
    for p in model.parameters():
        p.grad = vector[start : start + p.numel()].view_as(p).clone()
        start += p.numel()


def watched(watch: Any, model: nn.Module) -> tuple[Any, RDPAccountant]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accountant = RDPAccountant()
    watch(optimizer, model, accountant)
    return optimizer, accountant


# --- how noise is added to a flat vector ---


def by_randn_like(state: State) -> Tensor:
    return state.total + DEVIATION * torch.randn_like(state.total)


def in_place(state: State) -> Tensor:
    noisy = state.total.clone()
    noisy.add_(torch.randn(noisy.shape), alpha=DEVIATION)
    return noisy


def by_normal_in_place(state: State) -> Tensor:
    return torch.empty_like(state.total).normal_(0.0, DEVIATION) + state.total


def by_distribution(state: State) -> Tensor:
    noise = torch.distributions.Normal(0.0, DEVIATION)
    return state.total + noise.sample(state.total.shape)


def around_the_sum(state: State) -> Tensor:
    return torch.normal(state.total, DEVIATION)


def by_torch_normal(state: State) -> Tensor:
    return torch.normal(0.0, DEVIATION, state.total.shape).add(state.total)


def of_a_generator(state: State) -> Tensor:
    if "generator" not in state.store:
        seed = int(torch.randint(2**31, ()))
        state.store["generator"] = torch.Generator().manual_seed(seed)
    noise = torch.randn(state.total.shape, generator=state.store["generator"])
    return noise * DEVIATION + state.total


# --- correct: functions of the noisy vector ---


def momentum(state: State) -> Tensor:
    state.store["m"] = 0.9 * state.store.get("m", 0.0) + state.noisy / DIVISOR
    return state.store["m"]


def projected(state: State) -> Tensor:
    """A random projection to 20 numbers, and back."""
    rows = torch.randn(20, len(state.noisy)) / math.sqrt(20)
    return rows.T @ (rows @ state.noisy) / DIVISOR


def centred(state: State) -> Tensor:
    return (state.noisy - state.noisy.mean()) / DIVISOR


def largest(state: State) -> Tensor:
    kept = state.noisy.abs().topk(15).indices
    sparse = torch.zeros_like(state.noisy)
    sparse[kept] = state.noisy[kept] / DIVISOR
    return sparse


def cut_to_norm(state: State) -> Tensor:
    return state.noisy / DIVISOR * min(1.0, 0.2 / float(state.noisy.norm() / DIVISOR))


def signs(state: State) -> Tensor:
    return 0.05 * state.noisy.sign()


def adam_by_hand(state: State) -> Tensor:
    noisy, t = state.noisy / DIVISOR, state.step + 1
    first = state.store["m"] = 0.9 * state.store.get("m", 0.0) + 0.1 * noisy
    second = state.store["v"] = 0.99 * state.store.get("v", 0.0) + 0.01 * noisy**2
    return first / (1 - 0.9**t) / ((second / (1 - 0.99**t)).sqrt() + 1e-6)


def normalised(state: State) -> Tensor:
    return state.noisy / state.noisy.norm()


def moving_average(state: State) -> Tensor:
    old = state.store.get("average", torch.zeros_like(state.noisy))
    state.store["average"] = old.lerp(state.noisy / DIVISOR, 0.3)
    return state.store["average"].clone()


def error_feedback(state: State) -> Tensor:
    """Signs with the mean size, and the difference is added in the next step."""
    wanted = state.noisy / DIVISOR + state.store.get("error", 0.0)
    sent = wanted.abs().mean() * wanted.sign()
    state.store["error"] = wanted - sent
    return sent


def rounded_at_random(state: State) -> Tensor:
    scaled = state.noisy / DIVISOR / 0.02
    return 0.02 * (scaled + torch.rand_like(scaled)).floor()


def smoothed(state: State) -> Tensor:
    spectrum = torch.fft.rfft(state.noisy / DIVISOR)
    spectrum[len(spectrum) // 2 :] = 0.0
    return torch.fft.irfft(spectrum, n=len(state.noisy))


def shrunk(state: State) -> Tensor:
    """James-Stein."""
    share = (len(state.noisy) - 2) * DEVIATION**2 / state.noisy.square().sum()
    return (1.0 - share).clamp(min=0.0) * state.noisy / DIVISOR


def decayed(state: State) -> Tensor:
    weights = torch.cat([p.detach().flatten() for p in state.model.parameters()])
    return state.noisy / DIVISOR + 0.1 * weights


def soft_threshold(state: State) -> Tensor:
    noisy = state.noisy / DIVISOR
    return noisy.sign() * (noisy.abs() - 0.03).clamp(min=0.0)


def centred_by_exact(state: State) -> Tensor:
    """The exact mean is subtracted.

    This subtracts the mean of each record's gradient from it, which makes no gradient longer.
    """
    return (state.noisy - state.total.mean()) / DIVISOR


# --- mistakes after the noise ---


def momentum_of_exact(state: State) -> Tensor:
    """Leaks under every relation: the momentum has no noise."""
    p_grad = (state.noisy + 0.9 * state.store.get("m", 0.0)) / DIVISOR
    state.store["m"] = 0.9 * state.store.get("m", 0.0) + state.total
    return p_grad


def largest_of_exact(state: State) -> Tensor:
    """Leaks under every relation: the exact sum chooses the coordinates."""
    kept = state.total.abs().topk(15).indices
    sparse = torch.zeros_like(state.noisy)
    sparse[kept] = state.noisy[kept] / DIVISOR
    return sparse


def noise_taken_back(state: State) -> Tensor:
    """Leaks under every relation: half of the noise is subtracted, then momentum."""
    noise = state.noisy - state.total
    state.noisy = state.noisy - noise / 2
    return momentum(state)


def rows_of_records(state: State) -> Tensor:
    """Leaks under every relation: the noisy sum is projected to gradients of records."""
    basis = torch.linalg.qr(state.batch[:20].T).Q
    return basis @ (basis.T @ state.noisy) / DIVISOR


def scaled_by_exact_norm(state: State) -> Tensor:
    """Leaks under every relation: the norm of the exact sum is released."""
    return state.noisy / state.noisy.norm() * state.total.norm() / DIVISOR


def divided_by_number(state: State) -> Tensor:
    """Leaks under add-remove: the mean over all records reveals their number."""
    state.store["m"] = 0.9 * state.store.get("m", 0.0) + state.noisy / state.n
    return state.store["m"]


def exact_error_feedback(state: State) -> Tensor:
    """Leaks under every relation: the part that was not sent is that of the exact sum."""
    wanted = state.noisy / DIVISOR + state.store.get("error", 0.0)
    sent = wanted.abs().mean() * wanted.sign()
    state.store["error"] = state.total / DIVISOR - sent
    return sent


def exact_added_again(state: State) -> Tensor:
    """Leaks under every relation: a part of the exact sum is added after the noise."""
    return (0.7 * state.noisy + 0.3 * state.total) / DIVISOR


def shrunk_by_exact(state: State) -> Tensor:
    """Leaks under every relation: the factor of the shrinkage is that of the exact sum."""
    power = state.total.square().sum()
    return power / (power + len(state.noisy) * DEVIATION**2) * state.noisy / DIVISOR


def divided_by_batch(state: State) -> Tensor:
    """Leaks under every relation: the size of a Poisson batch is exact."""
    state.store["m"] = 0.9 * state.store.get("m", 0.0) + state.noisy / max(len(state.batch), 1)
    return state.store["m"]


# --- mistakes in the noise ---


def mean_of_two(state: State) -> Tensor:
    """Leaks under every relation: two noisy sums are averaged, one is accounted for."""
    first = state.total + DEVIATION * torch.randn_like(state.total)
    second = state.total + DEVIATION * torch.randn_like(state.total)
    return (first + second) / 2


def reused(state: State) -> Tensor:
    """Leaks under every relation: each noise serves two steps."""
    if state.step % 2 == 0:
        state.store["noise"] = DEVIATION * torch.randn_like(state.total)
    return state.total + state.store["noise"]


def half(state: State) -> Tensor:
    """Leaks under every relation: half of the needed deviation."""
    return state.total + DEVIATION / 2 * torch.randn_like(state.total)


def masked_before(state: State) -> Tensor:
    """Leaks under every relation: the exact sum's largest coordinates alone get noise."""
    mask = torch.zeros_like(state.total)
    mask[state.total.abs().topk(15).indices] = 1.0
    return mask * (state.total + DEVIATION * torch.randn_like(state.total))


def masked_sum(state: State) -> Tensor:
    """Leaks under every relation: a record moves coordinates of the others in or out of the sum."""
    mask = torch.zeros_like(state.total)
    mask[state.total.abs().topk(15).indices] = 1.0
    return mask * state.total + DEVIATION * torch.randn_like(state.total)


def last_tensors_exact(state: State) -> Tensor:
    """Leaks under every relation: the last 21 numbers get no noise."""
    noise = DEVIATION * torch.randn_like(state.total)
    noise[-21:] = 0.0
    return state.total + noise


def one_number(state: State) -> Tensor:
    """Leaks under every relation: all coordinates get the same number as noise."""
    return state.total + DEVIATION * torch.randn(1)


# --- further ways to add noise, and functions of it, written after the test was built ---


def by_normal_around_sum(state: State) -> Tensor:
    return torch.distributions.Normal(state.total, DEVIATION).sample()


def by_rsample(state: State) -> Tensor:
    scale = torch.full_like(state.total, DEVIATION)
    return state.total - torch.distributions.Normal(0.0, scale).rsample()


def by_foreach(state: State) -> Tensor:
    parts = list(state.total.split(25))
    noise = [torch.randn_like(part).mul_(DEVIATION) for part in parts]
    torch._foreach_add_(parts, noise)
    return torch.cat(parts)


def into_a_buffer(state: State) -> Tensor:
    noisy = torch.empty_like(state.total)
    for start in range(0, len(noisy), 25):
        part = state.total[start : start + 25]
        noisy[start : start + 25] = part + torch.randn(len(part)) * torch.tensor(DEVIATION)
    return noisy


def by_noise_of_all_steps(state: State) -> Tensor:
    """Noise that was drawn before the first step."""
    return state.total + state.store["noises"][state.step]


def by_two_shares(state: State) -> Tensor:
    """Two parties add half of the variance each."""
    share = DEVIATION / math.sqrt(2.0)
    noisy = state.total + share * torch.randn_like(state.total)
    return noisy + share * torch.randn_like(noisy)


def two_halves(state: State) -> Tensor:
    """Leaks under every relation: two shares of 0.35 times the needed deviation are too small."""
    noisy = state.total + 0.35 * DEVIATION * torch.randn_like(state.total)
    return noisy + 0.35 * DEVIATION * torch.randn_like(noisy)


def mask_of_noisy_weights(state: State) -> Tensor:
    """Coordinates drawn at random with probabilities by the released weights."""
    weights = torch.cat([p.detach().flatten() for p in state.model.parameters()])
    taken = torch.rand(len(weights)) < weights.abs().clamp(0.2, 1.0)
    return torch.where(taken, state.noisy / DIVISOR, 0.0)


def slower_weights(state: State) -> Tensor:
    """Momentum, and an average of the momentum that the loop keeps."""
    moved = momentum(state)
    state.store["slow"] = 0.5 * state.store.get("slow", 0.0) + 0.5 * moved
    return torch.stack([moved, state.store["slow"]]).mean(0)


def kalman(state: State) -> Tensor:
    """A filter with a fixed gain for each coordinate, by the released mean squares."""
    noisy = state.noisy / DIVISOR
    state.store["s"] = 0.8 * state.store.get("s", 1e-2) + 0.2 * noisy.square()
    gain = state.store["s"] / (state.store["s"] + (DEVIATION / DIVISOR) ** 2)
    old = state.store.get("f", torch.zeros_like(noisy))
    state.store["f"] = old + gain * (noisy - old)
    return state.store["f"]


def noise_seeded_again(state: State) -> Tensor:
    """Leaks under every relation: the seed of the noise is used again, to subtract half of it."""
    generator = torch.Generator().manual_seed(state.store["seeds"][state.step])
    state.noisy = state.noisy - DEVIATION / 2 * torch.randn(len(state.noisy), generator=generator)
    return momentum(state)


def by_seeded_noise(state: State) -> Tensor:
    seeds = state.store.setdefault("seeds", [])
    seeds.append(int(torch.randint(2**31, ())))
    generator = torch.Generator().manual_seed(seeds[-1])
    return state.total + DEVIATION * torch.randn(len(state.total), generator=generator)


def last_noise_subtracted(state: State) -> Tensor:
    """Leaks under every relation: part of the noise of a step is subtracted in the next one."""
    noise = state.noisy - state.total
    changed = (state.noisy - 0.5 * state.store.get("noise", 0.0)) / DIVISOR
    state.store["noise"] = noise
    return changed.sign() * changed.abs().sqrt()


def by_kept_noise(state: State) -> Tensor:
    state.store["noise"] = DEVIATION * torch.randn_like(state.total)
    return state.total + state.store["noise"]


def projected_to_noise(state: State) -> Tensor:
    """Leaks under every relation: the direction of the noise is released."""
    noise = state.store["noise"]
    along = noise * torch.dot(state.noisy, noise) / noise.square().sum()
    return 0.05 * (along - state.noisy / 2).sign()


def noise_of_last_step_taken_back(state: State) -> Tensor:
    """Leaks under every relation: the last step subtracts its noise by a product of matrices."""
    noisy = state.noisy
    if state.step == STEPS - 1:
        noisy = noisy - torch.eye(len(noisy)) @ state.store["noise"]
    return signs(State(state.model, noisy=noisy))


def signs_of_exact(state: State) -> Tensor:
    """Leaks under every relation: the signs are those of the exact sum."""
    return state.noisy.abs() * state.total.sign() / DIVISOR


def cut_by_exact_norm(state: State) -> Tensor:
    """Leaks under every relation: the norm of the exact sum sets the limit."""
    limit = 0.1 * float(state.total.norm())
    return state.noisy * min(1.0, limit / float(state.noisy.norm()))


def exact_last_step(state: State) -> Tensor:
    """Leaks under every relation: the exact sum of the last step stays in the momentum."""
    if state.step == STEPS - 2:
        state.store["m"] = state.store["m"] + 0.5 * state.total / DIVISOR
    return momentum(state)


@dataclass
class Flat:
    """DP-SGD with flat vectors, full batches or Poisson samples."""

    noise: Callable[[State], Tensor]
    change: Callable[[State], Tensor]
    rate: float = 1.0
    limit: float = CLIP

    def __call__(self, records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        """Trains, and returns the model."""
        x, y = tensors(records)
        model = loops.mlp()
        optimizer, accountant = watched(watch, model)
        state = State(model, n=len(y))
        state.store["noises"] = DEVIATION * torch.randn(
            STEPS, sum(p.numel() for p in model.parameters())
        )
        for state.step in range(STEPS):
            taken = drawn(len(y), self.rate)
            state.batch = cut(flat_gradients(model, x[taken], y[taken]), self.limit)
            state.total = state.batch.sum(0)
            state.noisy = self.noise(state)
            store(model, self.change(state))
            optimizer.step()
            accountant.step(noise_multiplier=SIGMA, sample_rate=self.rate)
        return model


# --- loops of other shapes, with a correct and a wrong setting ---


def list_of_tensors(
    records: Any, candidate: Any, seed: int, watch: Any, *, has_exact_momentum: bool = False
) -> Any:
    """Backward passes of single records, noise for each parameter, momentum in p.grad.

    With momentum of the exact sums, it leaks under every relation.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    parameters = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    for _ in range(STEPS):
        sums = [torch.zeros_like(p) for p in parameters]
        for i in range(len(y)):
            loss = functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
            gradients = torch.autograd.grad(loss, parameters)
            norm = torch.sqrt(sum(g.square().sum() for g in gradients))
            factor = min(1.0, CLIP / (float(norm) + 1e-12))
            for total, g in zip(sums, gradients, strict=True):
                total += factor * g
        noisy = [s + torch.normal(0.0, DEVIATION, s.shape) for s in sums]
        for p, v, value, total in zip(parameters, velocity, noisy, sums, strict=True):
            p.grad = (0.9 * v + value) / DIVISOR
            v.mul_(0.9).add_(total if has_exact_momentum else value)
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return model


def grad_samples(
    records: Any, candidate: Any, seed: int, watch: Any, *, by_exact: bool = False
) -> Any:
    """GradSampleModule of Opacus, Poisson samples, and each tensor scaled to length 0.1.

    If tensors are divided by the norms of the exact sums, it leaks under every relation.
    """
    x, y = tensors(records)
    model = GradSampleModule(loops.mlp(), loss_reduction="sum")
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        taken = drawn(len(y), RATE)
        optimizer.zero_grad()
        if len(taken):
            functional.cross_entropy(model(x[taken]), y[taken], reduction="sum").backward()
            samples = [p.grad_sample for p in model.parameters()]
        else:
            samples = [torch.zeros(0, *p.shape) for p in model.parameters()]
        norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples]).norm(dim=0)
        factors = (CLIP / (norms + 1e-6)).clamp(max=1.0)
        for p, sample in zip(model.parameters(), samples, strict=True):
            total = torch.einsum("b,b...->...", factors, sample)
            noisy = total + DEVIATION * torch.randn(p.shape)
            norm = (total if by_exact else noisy).norm()
            p.grad = 0.1 * noisy / (norm + 1e-6)
            p.grad_sample = None
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    return model


def noise_into_gradients(
    records: Any, candidate: Any, seed: int, watch: Any, *, is_exact_kept: bool = False
) -> Any:
    """The sum is stored in p.grad, noise is added there, and the largest numbers of a tensor stay.

    If the exact sum chooses the numbers, it leaks under every relation.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        taken = drawn(len(y), RATE)
        store(model, cut(flat_gradients(model, x[taken], y[taken])).sum(0))
        for p in model.parameters():
            size = p.grad.abs()
            p.grad.add_(torch.empty_like(p).normal_(std=DEVIATION).detach())
            p.grad /= DIVISOR
            size = size if is_exact_kept else p.grad.abs()
            p.grad.mul_(size >= size.flatten().median())
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    return model


def noise_by_layer(
    records: Any, candidate: Any, seed: int, watch: Any, *, is_first_exact: bool = False
) -> Any:
    """Each tensor gets its noise, is divided by its root mean square, and weights decay.

    If the first tensor gets no noise, it leaks under every relation.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        total, start = cut(flat_gradients(model, x, y)).sum(0), 0
        for place, p in enumerate(model.parameters()):
            part = total[start : start + p.numel()].reshape(p.shape)
            start += p.numel()
            if place or not is_first_exact:
                part = torch.add(part, torch.randn(*p.shape), alpha=DEVIATION)
            part = part / part.square().mean().sqrt()
            p.grad = 0.1 * part + 0.05 * p.detach()
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return model


POST_PROCESSED_CORRECT: dict[str, Control] = {
    name: Control(loop, sixty)
    for name, loop in {
        "momentum in p.grad, randn_like": Flat(by_randn_like, momentum),
        "random projection, generator": Flat(of_a_generator, projected),
        "mean subtracted, torch.normal": Flat(by_torch_normal, centred),
        "largest coordinates, normal_": Flat(by_normal_in_place, largest, RATE),
        "cut to a norm, distribution": Flat(by_distribution, cut_to_norm, RATE),
        "signs, noise in place": Flat(in_place, signs),
        "Adam by hand, around the sum": Flat(around_the_sum, adam_by_hand),
        "divided by its norm, randn_like": Flat(by_randn_like, normalised, RATE),
        "moving average, distribution": Flat(by_distribution, moving_average, RATE),
        "error feedback, noise in place": Flat(in_place, error_feedback),
        "rounded at random, torch.normal": Flat(by_torch_normal, rounded_at_random, RATE),
        "low frequencies, randn_like": Flat(by_randn_like, smoothed),
        "shrunk by its norm, generator": Flat(of_a_generator, shrunk),
        "weight decay, normal_": Flat(by_normal_in_place, decayed),
        "soft threshold, around the sum": Flat(around_the_sum, soft_threshold, RATE),
        "exact mean subtracted": Flat(by_torch_normal, centred_by_exact),
        "slow momentum, normal around the sum": Flat(by_normal_around_sum, slower_weights),
        "Kalman filter, rsample": Flat(by_rsample, kalman),
        "momentum, foreach": Flat(by_foreach, momentum, RATE),
        "largest coordinates, buffer": Flat(into_a_buffer, largest),
        "signs, noise of all steps": Flat(by_noise_of_all_steps, signs),
        "random mask by the weights, randn_like": Flat(by_randn_like, mask_of_noisy_weights, RATE),
        "error feedback, two shares of noise": Flat(by_two_shares, error_feedback, RATE),
        "random projection, noise from a new seed": Flat(by_seeded_noise, projected, RATE),
        "momentum, kept noise": Flat(by_kept_noise, momentum),
        "noisy sum of clipped gradients clipped again": loops.Loop(noise=then_clipped),
        "list of tensors, momentum": list_of_tensors,
        "GradSampleModule, tensors of length 0.1": grad_samples,
        "noise added to p.grad, half of the numbers": noise_into_gradients,
        "tensors divided by their mean square, weight decay": noise_by_layer,
    }.items()
}

POST_PROCESSED: dict[str, Control] = {
    name: Control(loop, sixty)
    for name, loop in {
        "momentum of exact sums": Flat(by_randn_like, momentum_of_exact),
        "largest coordinates of the exact sum": Flat(by_normal_in_place, largest_of_exact, RATE),
        "half of the noise taken back, momentum": Flat(by_randn_like, noise_taken_back),
        "projection to gradients of records": Flat(of_a_generator, rows_of_records),
        "scaled by the exact norm": Flat(by_distribution, scaled_by_exact_norm),
        "divided by the number of records, momentum": Flat(by_torch_normal, divided_by_number),
        "error feedback of the exact sum": Flat(in_place, exact_error_feedback),
        "exact sum added after the noise": Flat(by_randn_like, exact_added_again),
        "shrunk by the exact norm": Flat(of_a_generator, shrunk_by_exact),
        "divided by the size of the batch, momentum": Flat(by_randn_like, divided_by_batch, RATE),
        "mean of two noisy sums, momentum": Flat(mean_of_two, momentum),
        "mean of two noisy sums, Adam": Flat(mean_of_two, adam_by_hand),
        "noise of two steps, momentum": Flat(reused, momentum),
        "half of the noise, largest coordinates": Flat(half, largest),
        "half of the noise, momentum": Flat(half, momentum, RATE),
        "not clipped, signs": Flat(by_randn_like, signs, limit=1e6),
        "not clipped, momentum": Flat(by_distribution, momentum, limit=1e6),
        "noise for the exact largest coordinates alone": Flat(masked_before, momentum),
        "sum of its largest coordinates, momentum": Flat(masked_sum, momentum),
        "last tensors without noise, moving average": Flat(last_tensors_exact, moving_average),
        "one number as noise, mean subtracted": Flat(one_number, centred),
        "seed of the noise used again, momentum": Flat(by_seeded_noise, noise_seeded_again),
        "noise of the last step subtracted": Flat(by_randn_like, last_noise_subtracted),
        "projection to the noise, signs": Flat(by_kept_noise, projected_to_noise),
        "noise of one step taken back, signs": Flat(by_kept_noise, noise_of_last_step_taken_back),
        "signs of the exact sum": Flat(by_rsample, signs_of_exact, RATE),
        "cut to a share of the exact norm": Flat(by_rsample, cut_by_exact_norm),
        "exact sum in the momentum of one step": Flat(into_a_buffer, exact_last_step),
        "noise of all steps is that of the first, momentum": Flat(
            lambda state: state.total + state.store["noises"][0], momentum
        ),
        "two shares of half the noise, error feedback": Flat(two_halves, error_feedback, RATE),
        "list of tensors, exact momentum": partial(list_of_tensors, has_exact_momentum=True),
        "GradSampleModule, tensors by exact norms": partial(grad_samples, by_exact=True),
        "noise added to p.grad, half of the exact numbers": partial(
            noise_into_gradients, is_exact_kept=True
        ),
        "first tensor without noise, mean square": partial(noise_by_layer, is_first_exact=True),
    }.items()
}

"""Loops with and without a mistake whose kind earlier versions of the test did not see.

`TRIED` holds the cases that showed each gap. `FURTHER_CASES` holds independent cases of the same
kinds, which were written before the tests for them.
"""

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from torch import nn
from torch.nn import functional

from benchmarks.training_loops import loops
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import Loop, mlp
from benchmarks.training_loops.opacus_loops import OpacusLoop, Private

# --- one record suppresses steps ---


class NotPossible(ValueError):
    """Raised by a part of a loop for a record that it does not accept."""


def with_rule(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    *,
    rule: Callable[..., str],
    rate: float = 1.0,
    steps: int = 6,
    prepare: Callable[..., Any] | None = None,
) -> nn.Module:
    """DP-SGD whose `rule` decides by a batch: "" takes the step, or "skip", "stop", "twice"."""
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    if prepare is not None:
        x = prepare(x)
    state = loops.State(model=mlp(), clip=0.5, noise_multiplier=1.0, sampling_rate=rate)
    parameters = list(state.model.parameters())
    optimizer, accountant = torch.optim.SGD(parameters, lr=0.1), RDPAccountant()
    watch(optimizer, state.model, accountant)
    for _ in range(steps):
        taken = torch.nonzero(torch.rand(len(y)) < rate)[:, 0] if rate < 1 else torch.arange(len(y))
        try:
            decision = rule(state, x[taken], y[taken])
        except NotPossible:
            decision = "skip"
        if decision == "skip":
            continue
        if decision == "stop":
            break
        for _ in range(2 if decision == "twice" else 1):
            summed = loops.clipped_sum(state, loops.each_gradient(state, x[taken], y[taken]))
            for p, g in zip(parameters, loops.gaussian(state, summed), strict=True):
                p.grad = g / 10.0
            optimizer.step()
            accountant.step(noise_multiplier=1.0, sample_rate=rate)
    return state.model


def large_values(state: Any, x: Any, y: Any) -> str:
    """Skips a batch that holds a value above 50."""
    return "skip" if len(y) and float(x.abs().max()) > 50 else ""


def loss_not_finite(state: Any, x: Any, y: Any) -> str:
    """Skips a batch whose loss is not finite."""
    if not len(y):
        return ""
    loss = functional.cross_entropy(state.model(x), y)
    return "" if bool(torch.isfinite(loss)) else "skip"


def error_in_a_record(state: Any, x: Any, y: Any) -> str:
    """Raises an error for a large record, which the loop catches."""
    if len(y) and float(x.norm(dim=1).max()) > 100:
        raise NotPossible("record out of range")
    return ""


def stop_at_large_values(state: Any, x: Any, y: Any) -> str:
    """Ends the training at a record out of range."""
    return "stop" if len(y) and float(x.abs().max()) > 50 else ""


def gradient_too_long(state: Any, x: Any, y: Any) -> str:
    """Skips a batch that holds a gradient longer than 100."""
    if not len(y):
        return ""
    return "skip" if float(loops.norms(loops.each_gradient(state, x, y)).max()) > 100 else ""


def missing_values(state: Any, x: Any, y: Any) -> str:
    """Skips a batch that holds a missing value."""
    return "skip" if bool(x.isnan().any()) else ""


def repeat_large_values(state: Any, x: Any, y: Any) -> str:
    """Takes a second step on a batch with a large value."""
    return "twice" if len(y) and float(x.abs().max()) > 50 else ""


def always(state: Any, x: Any, y: Any) -> str:
    """Takes every step."""
    return ""


def _ruled(rule: Callable[..., str], rate: float = 1.0, **options: Any) -> Control:
    return Control(functools.partial(with_rule, rule=rule, rate=rate, **options))


def _random_stop(state: Any, x: Any, y: Any) -> str:
    """Stops at random, whatever the records are."""
    return "stop" if float(torch.rand(())) < 0.2 else ""


def in_range_and_random_stop(records: Any, candidate: Any, seed: int, watch: Any) -> nn.Module:
    """Leaves out records beyond a public limit; the number of steps is random."""
    inside = np.abs(records.features).max(axis=1) < 8
    kept = type(records)(records.features[inside], records.labels[inside])
    return with_rule(kept, candidate, seed, watch, rule=_random_stop, rate=0.4, steps=12)


# --- claims that the accountant does not support ---


def calibrated(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    *,
    epochs: float = 4,
    planned: float = 4,
    true_rate: float = 0.25,
    planned_rate: float = 0.25,
    delta: float = 1e-5,
    epsilon: float = 3.0,
) -> Any:
    """Trains `epochs` epochs with noise that was calibrated for `planned` epochs, and claims 3."""
    sigma = _calibrated(epsilon, delta, planned_rate, planned)
    watch.claim(epsilon)
    loop = Loop(
        steps=round(epochs / true_rate), noise_multiplier=sigma, sampling_rate=true_rate, clip=0.5
    )
    return loop(records, candidate, seed, watch)


@functools.cache
def _calibrated(epsilon: float, delta: float, rate: float, epochs: float) -> float:
    return float(
        get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=round(epochs / rate)
        )
    )


@functools.cache
def _tight_claim(sigma: float, rate: float, steps: int) -> float:
    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    return float(accountant.get_epsilon(delta=1e-5))


def tight_claim(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Claims what a tighter accountant reports than the one that is stepped."""
    watch.claim(_tight_claim(1.0, 0.3, 8))
    return Loop(sampling_rate=0.3, steps=8)(records, candidate, seed, watch)


# --- records in the middle ---


def windows(state: Any, x: Any, y: Any) -> Any:
    """Overlapping windows of four rows: the sum of their features, with the label of the first."""
    count = len(y) - 3
    return torch.stack([x[i : i + 4].sum(0) for i in range(count)]), y[:count]


def with_neighbours(state: Any, x: Any, y: Any) -> Any:
    """Each record's features are averaged with those of the rows before and after it."""
    padded = torch.cat([torch.zeros_like(x[:1]), x, torch.zeros_like(x[:1])])
    return (padded[:-2] + padded[1:-1] + padded[2:]) / 3, y


def lagged(state: Any, x: Any, y: Any) -> Any:
    """Pairs of a row and the one five places later."""
    return x[:-5] - x[5:], y[:-5]


def disjoint_windows(state: Any, x: Any, y: Any) -> Any:
    """Windows of two rows that do not overlap: a record is in one of them."""
    count = len(y) // 2
    return x[: 2 * count].reshape(count, 2, -1).sum(1), y[: 2 * count : 2]


# --- sampling rates ---


def from_part(state: Any, n: int, *, part: Callable[..., Any], times: float = 1.0) -> Any:
    """Poisson samples of a part of the records at `times` the accounted rate."""
    members = part(state, n)
    return members[torch.rand(len(members)) < times * state.sampling_rate]


def first_four_fifths(state: Any, n: int) -> Any:
    """The last fifth of the records validates."""
    return torch.arange(4 * n // 5)


def last_three_quarters(state: Any, n: int) -> Any:
    """The first quarter of the records validates."""
    return torch.arange(n // 4, n)


def not_every_fifth(state: Any, n: int) -> Any:
    """Every fifth record validates."""
    return torch.tensor([i for i in range(n) if i % 5])


def split_by_seed(state: Any, n: int) -> Any:
    """A random fifth of the records, drawn by each run, validates."""
    if "members" not in state.__dict__:
        state.members = torch.randperm(n)[: 4 * n // 5]
    return state.members


def everybody(state: Any, n: int) -> Any:
    """All records."""
    return torch.arange(n)


def _sampled(part: Callable[..., Any], times: float, rate: float = 0.3, steps: int = 8) -> Control:
    draw = functools.partial(from_part, part=part, times=times)
    return Control(Loop(batch=draw, sampling_rate=rate, steps=steps))


# --- random streams ---


def gan_after_sampling(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A generator is trained on a private discriminator, by numbers drawn after each batch."""
    generator = nn.Linear(4, 8)
    public = torch.optim.SGD(generator.parameters(), lr=0.05)

    def train_generator(state: Any) -> None:
        z = torch.randn(16, 4)
        loss = -torch.logsumexp(state.model(generator(z)), dim=1).mean()
        gradients = torch.autograd.grad(loss, list(generator.parameters()))
        for p, g in zip(generator.parameters(), gradients, strict=True):
            p.grad = g
        public.step()

    loop = Loop(
        sampling_rate=0.3,
        steps=6,
        after=train_generator,
        result=lambda state, x, y: {"discriminator": state.model, "generator": generator},
    )
    return loop(records, candidate, seed, watch)


def random_features_at_the_end(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Releases a random public projection that is drawn after the last batch."""
    loop = Loop(
        sampling_rate=0.3,
        steps=6,
        result=lambda state, x, y: {"model": state.model, "projection": torch.randn(3, 3)},
    )
    return loop(records, candidate, seed, watch)


def one_numpy_generator(
    records: Any, candidate: Any, seed: int, watch: Any, *, limit: float = np.inf
) -> Any:
    """One numpy generator draws the batches and the noise."""
    drawn = np.random.default_rng(seed)
    inside = np.abs(records.features).max(axis=1) < limit
    kept = type(records)(records.features[inside], records.labels[inside])

    def batch(state: Any, n: int) -> Any:
        return torch.from_numpy(np.flatnonzero(drawn.random(n) < state.sampling_rate))

    def noise(state: Any, total: list[Any]) -> list[Any]:
        scale = state.noise_multiplier * state.clip
        return [
            g + torch.from_numpy(drawn.normal(0, scale, g.shape).astype(np.float32)) for g in total
        ]

    return Loop(batch=batch, noise=noise, sampling_rate=0.3, steps=6)(kept, candidate, seed, watch)


def one_torch_generator(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """One generator of torch draws batches and noise; some records are left out."""
    drawn = torch.Generator().manual_seed(seed)
    inside = np.abs(records.features).max(axis=1) < 8
    kept = type(records)(records.features[inside], records.labels[inside])

    def batch(state: Any, n: int) -> Any:
        torch.randperm(n, generator=drawn)
        return torch.nonzero(torch.rand(n, generator=drawn) < state.sampling_rate)[:, 0]

    def noise(state: Any, total: list[Any]) -> list[Any]:
        scale = state.noise_multiplier * state.clip
        return [g + scale * torch.randn(g.shape, generator=drawn) for g in total]

    return Loop(batch=batch, noise=noise, sampling_rate=0.4, steps=6)(kept, candidate, seed, watch)


class _Sampler:
    """Draws batches by a generator of Python's that the object holds."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)

    def __call__(self, state: Any, n: int) -> Any:
        taken = [i for i in range(n) if self.drawn.random() < state.sampling_rate]
        return torch.tensor(taken, dtype=torch.long)


def generator_in_an_object(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """An object holds the generator that draws batches and noise; some records are left out."""
    sampler = _Sampler(seed)
    inside = np.abs(records.features).max(axis=1) < 8
    kept = type(records)(records.features[inside], records.labels[inside])

    def noise(state: Any, total: list[Any]) -> list[Any]:
        scale = state.noise_multiplier * state.clip
        drawn = [[sampler.drawn.gauss(0, scale) for _ in range(g.numel())] for g in total]
        return [g + torch.tensor(z).reshape(g.shape) for g, z in zip(total, drawn, strict=True)]

    return Loop(batch=sampler, noise=noise, sampling_rate=0.4, steps=6)(
        kept, candidate, seed, watch
    )


def sizes_of_batches(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Releases the sizes of the Poisson batches without noise."""
    sizes: list[int] = []
    loop = Loop(
        sampling_rate=0.4,
        steps=6,
        after=lambda state: sizes.append(len(state.taken)),
        result=lambda state, x, y: {"model": state.model, "sizes": sizes},
    )
    return loop(records, candidate, seed, watch)


# --- causes ---


def two_backward_passes(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Opacus with two backward passes before each step."""
    return OpacusLoop(accumulate=2, divisor=10, loader=_twice)(records, candidate, seed, watch)


def _twice(data: Any, rate: float, steps: int) -> Any:
    every = list(range(len(data)))
    return torch.utils.data.DataLoader(data, batch_sampler=[every, every] * steps)


def memory_bank(state: Any, total: list[Any]) -> list[Any]:
    """Adds half of the clipped sums of the two batches before, which a queue holds."""
    queue = state.__dict__.setdefault("queue", [])
    now = loops.clipped_sum(state, total)
    mixed = [
        g + sum((0.5 * old[i] for old in queue), start=torch.zeros_like(g))
        for i, g in enumerate(now)
    ]
    state.queue = [*queue, now][-2:]
    return mixed


def times(factor: float) -> Callable[..., list[Any]]:
    """Noise with `factor` times the scale that the accountant records."""

    def noise(state: Any, total: list[Any]) -> list[Any]:
        scale = factor * state.noise_multiplier * state.clip
        return [g + scale * torch.randn_like(g) for g in total]

    return noise


TRIED: dict[str, Control] = {
    "a batch with a value above 50 is skipped": _ruled(large_values),
    "a batch with a value above 50 is skipped, Poisson": _ruled(large_values, 0.4),
    "a batch whose loss is not finite is skipped": _ruled(loss_not_finite),
    "a batch whose loss is not finite is skipped, Poisson": _ruled(loss_not_finite, 0.4),
    "a batch with an error is skipped": _ruled(error_in_a_record),
    "a batch with an error is skipped, Poisson": _ruled(error_in_a_record, 0.4),
    "calibrated for 2 epochs, trained for 4": Control(functools.partial(calibrated, planned=2)),
    "overlapping windows of four rows": Control(Loop(prepare=windows)),
    "Poisson samples of four fifths, rate of all": _sampled(first_four_fifths, 1.25),
}
"""Mistakes that showed a gap of the test."""

FURTHER_CASES: dict[str, Control] = {
    "training stops at a value above 50": _ruled(stop_at_large_values),
    "training stops at a value above 50, Poisson": _ruled(stop_at_large_values, 0.3),
    "a batch with a long gradient is skipped, Poisson": _ruled(gradient_too_long, 0.4),
    "a batch with a missing value is skipped": _ruled(missing_values),
    "a batch with a missing value is skipped, Poisson": _ruled(missing_values, 0.4),
    "two steps on a batch with a large value": _ruled(repeat_large_values),
    "two steps on a batch with a large value, Poisson": _ruled(repeat_large_values, 0.4),
    "claim for another rate": Control(functools.partial(calibrated, planned_rate=0.125)),
    "claim for a larger delta": Control(functools.partial(calibrated, delta=1e-3)),
    "features mixed with those of neighbouring rows": Control(Loop(prepare=with_neighbours)),
    "pairs of rows five places apart": Control(Loop(prepare=lagged)),
    "pairs of rows five places apart, Poisson": Control(
        Loop(prepare=lagged, sampling_rate=0.4, steps=6)
    ),
    "Poisson samples of the last three quarters, rate of all": _sampled(last_three_quarters, 4 / 3),
    "every fifth record validates, rate of all": _sampled(not_every_fifth, 1.25),
    "a random fifth validates, rate of all": _sampled(split_by_seed, 1.25),
    "rate 1.25 times too large": _sampled(everybody, 1.25, 0.2),
    "sizes of the batches released": Control(sizes_of_batches),
}
"""Independent mistakes of the same kinds."""

FOURTH_TURN = TRIED | FURTHER_CASES

FOURTH_TURN_CORRECT: dict[str, Control] = {
    "steps whatever the records are": _ruled(always),
    "missing values become zero": _ruled(always, prepare=torch.nan_to_num),
    "missing values become zero, Poisson": _ruled(always, 0.4, prepare=torch.nan_to_num),
    "values out of range left out, random number of steps": Control(in_range_and_random_stop),
    "calibrated for 4 epochs, trained for 4": Control(calibrated),
    "claim by a tighter accountant": Control(tight_claim),
    "windows of two rows that do not overlap": Control(Loop(prepare=disjoint_windows)),
    "four fifths sampled at the accounted rate": _sampled(first_four_fifths, 1.0),
    "a random fifth validates, accounted rate": _sampled(split_by_seed, 1.0),
    "GAN whose numbers are drawn after sampling": Control(gan_after_sampling),
    "random public numbers drawn after sampling": Control(random_features_at_the_end),
    "one numpy generator for batches and noise": Control(one_numpy_generator),
    "one numpy generator, values out of range left out": Control(
        functools.partial(one_numpy_generator, limit=8.0)
    ),
    "one torch generator, values out of range left out": Control(one_torch_generator),
    "a generator in an object, values out of range left out": Control(generator_in_an_object),
    "make_private at default settings": Control(Private()),
    "make_private with one batch, at default settings": Control(Private(batch_size=24)),
    "make_private with ghost clipping, at default settings": Control(
        Private(options={"grad_sample_mode": "ghost"})
    ),
}
"""Loops of the same kinds without a mistake."""

CAUSES: dict[str, tuple[Control, str]] = {
    "two backward passes": (Control(two_backward_passes), "backward pass"),
    "a memory bank": (Control(Loop(total=memory_bank, sampling_rate=0.2, steps=10)), "queue"),
    "half of the noise in a short loop": (
        Control(Loop(noise=times(0.5), steps=2)),
        "smaller than the accountant assumes",
    ),
    "noise of four workers, each with its share": (Control(Loop(noise=times(0.5))), "worker"),
}
"""Mistakes, each with a word of the cause that leads to the right place."""

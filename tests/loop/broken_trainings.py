"""Trainings that leak more than they claim, each by a mistake that has really been made.

Positive controls of `audit.check`. All are variations of one small loop, DP-SGD of a softmax
regression written by hand, in which one part is replaced by a wrong one. `CORRECT` are the loops
without a mistake: they must not be accused.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from scipy import special
from torch import nn

from audit import accounting, repetitions, upper_bounds

DELTA = 1e-5
CLASSES = 3


def data(size: int = 21, rare: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Records of separable classes; the last feature is 0 in all, for a canary to use.

    Where class 0 is rare, the canary alone is of it.
    """
    random = np.random.default_rng(0)
    labels = random.integers(1 if rare else 0, CLASSES, size=size)
    features = np.zeros((size, 7))
    features[:, :3] = 2.0 * np.eye(CLASSES)[labels]
    features[:, :6] += random.normal(size=(size, 6))
    return features.astype(np.float32), labels


# --- the parts of a loop, each as it should be ---


def gradients(model: nn.Linear, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Every record's gradient by weights and biases, flat, [n, CLASSES * (features + 1)]."""
    wrong = torch.softmax(x @ model.weight.T + model.bias, 1) - nn.functional.one_hot(y, CLASSES)
    return torch.cat([(wrong[:, :, None] * x[:, None, :]).flatten(1), wrong], dim=1)


def clipped_sum(each: torch.Tensor, clip: float) -> torch.Tensor:
    """Every record's gradient clipped, then the sum."""
    return (each * (clip / each.norm(dim=1, keepdim=True).clamp(min=clip))).sum(0)


def gaussian_noise(loop: "Loop", step: int) -> torch.Tensor:
    """New noise in every step."""
    return torch.randn(loop.size) * loop.noise_multiplier * loop.clip


def everybody(loop: "Loop", labels: torch.Tensor, step: int) -> torch.Tensor:
    """Full batches."""
    return torch.arange(len(labels))


def poisson(loop: "Loop", labels: torch.Tensor, step: int) -> torch.Tensor:
    """Every record with the same chance, on its own."""
    return torch.nonzero(torch.rand(len(labels)) < loop.sampling_rate)[:, 0]


@dataclass(frozen=True)
class Loop:
    """DP-SGD by hand; the defaults are right. mu is 0.5, epsilon 2.17 by Renyi's way."""

    steps: int = 4
    noise_multiplier: float = 4.0
    clip: float = 1.0
    sampling_rate: float = 1.0
    rate: float = 0.1
    gradients: Callable[..., torch.Tensor] = gradients
    total: Callable[[torch.Tensor, float], torch.Tensor] = clipped_sum
    noise: Callable[["Loop", int], torch.Tensor] = gaussian_noise
    batch: Callable[["Loop", torch.Tensor, int], torch.Tensor] = everybody
    prepare: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
    accounted_steps: int = 0
    watched: bool = True
    size: int = field(default=CLASSES * 8, init=False)

    @property
    def accountant(self) -> RDPAccountant:
        """Stops after the given steps."""
        accountant = RDPAccountant()
        steps = self.accounted_steps or self.steps
        accountant.history = [(self.noise_multiplier, self.sampling_rate, steps)]
        return accountant

    def __call__(self, records: Any, candidate: Any, seed: int, watch: Any) -> nn.Module:
        """Trains, as `audit.check` calls it."""
        model = nn.Linear(7, CLASSES)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate)
        watch(self.accountant)
        if self.watched:
            watch(optimizer, model)
        x = self.prepare(torch.from_numpy(records.features))
        y = torch.from_numpy(records.labels)
        with torch.no_grad():
            for step in range(self.steps):
                batch = self.batch(self, y, step)
                total = self.total(self.gradients(model, x[batch], y[batch]), self.clip)
                released = total + self.noise(self, step)
                model.weight.grad = released[:-CLASSES].view(CLASSES, 7).clone()
                model.bias.grad = released[-CLASSES:].clone()
                optimizer.step()
        return model


# --- the parts, each as it should not be ---


def no_noise(loop: Loop, step: int) -> torch.Tensor:
    """The noise was computed, and the line that adds it was lost."""
    return torch.zeros(loop.size)


def noise_over_the_batch_twice(loop: Loop, step: int) -> torch.Tensor:
    """Noise for the mean is added to the sum."""
    return gaussian_noise(loop, step) / 20


def noise_without_the_threshold(loop: Loop, step: int) -> torch.Tensor:
    """sigma in place of sigma C."""
    return torch.randn(loop.size) * loop.noise_multiplier


def the_same_noise(loop: Loop, step: int) -> torch.Tensor:
    """A generator is made, from one seed, in every step."""
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**32)
    return torch.randn(loop.size, generator=generator) * loop.noise_multiplier * loop.clip


def noise_by_a_constant_seed(loop: Loop, step: int) -> torch.Tensor:
    """For reproducibility, as a comment says."""
    generator = torch.Generator().manual_seed(42 + step)
    return torch.randn(loop.size, generator=generator) * loop.noise_multiplier * loop.clip


def noise_on_weights_only(loop: Loop, step: int) -> torch.Tensor:
    """The biases are forgotten."""
    noise = gaussian_noise(loop, step)
    noise[-CLASSES:] = 0.0
    return noise


def noise_every_second_step(loop: Loop, step: int) -> torch.Tensor:
    """Two parts of a batch, noise once, but a step after each."""
    return gaussian_noise(loop, step) * (step % 2)


def clipped_mean(each: torch.Tensor, clip: float) -> torch.Tensor:
    """The mean of the batch is clipped, as `clip_grad_norm_` does; the noise is scaled by it."""
    mean = each.mean(0)
    return len(each) * mean * min(1.0, clip / float(mean.norm()))


def clipped_after_the_sum(each: torch.Tensor, clip: float) -> torch.Tensor:
    """The sum is clipped: a record can turn it around, which moves it by 2 C."""
    total = each.sum(0)
    return total * min(1.0, clip / float(total.norm()))


def clipped_by_value(each: torch.Tensor, clip: float) -> torch.Tensor:
    """Every coordinate is clipped to C, not the norm."""
    return each.clamp(-clip, clip).sum(0)


def clipped_by_tensor(each: torch.Tensor, clip: float) -> torch.Tensor:
    """Weights of every class and biases are clipped to C each, the noise is for C in all."""
    parts = [*each[:, :-CLASSES].split(7, dim=1), each[:, -CLASSES:]]
    return torch.cat([clipped_sum(part, clip) for part in parts])


def augmented(model: nn.Linear, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Four copies of every record, each clipped for itself."""
    return gradients(model, x.repeat(4, 1), y.repeat(4))


def batch_normalised(model: nn.Linear, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Every record's gradient depends on who else is in the batch."""
    return gradients(model, (x - x.mean(0)) / (x.std(0) + 1e-5), y)


def standardised(x: torch.Tensor) -> torch.Tensor:
    """By the private records' own mean and largest value."""
    return 3.0 * (x - x.mean(0)) / x.abs().max()


def in_order(loop: Loop, labels: torch.Tensor, step: int) -> torch.Tensor:
    """A loader without shuffling, accounted for as if sampled."""
    batches = round(1 / loop.sampling_rate)
    return torch.arange(len(labels)).tensor_split(batches)[step % batches]


def balanced(loop: Loop, labels: torch.Tensor, step: int) -> torch.Tensor:
    """Every class fills the same share of a batch, accounted for as if all were sampled alike."""
    counts = torch.bincount(labels, minlength=CLASSES)
    chances = loop.sampling_rate * len(labels) / (CLASSES * counts[labels])
    return torch.nonzero(torch.rand(len(labels)) < chances)[:, 0]


def not_empty(loop: Loop, labels: torch.Tensor, step: int) -> torch.Tensor:
    """Sampled again until there is somebody."""
    while len(batch := poisson(loop, labels, step)) == 0 and len(labels):
        pass
    return batch


def shuffled(loop: Loop, labels: torch.Tensor, step: int) -> torch.Tensor:
    """A loader with shuffling, accounted for as if sampled: too few trials detect it."""
    batches = round(1 / loop.sampling_rate)
    generator = torch.Generator().manual_seed(torch.initial_seed() + step // batches)
    order = torch.randperm(len(labels), generator=generator)
    return order.tensor_split(batches)[step % batches]


# --- trainings that are more than a loop ---


def best_by_training_loss(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The best of 30 runs by the loss on the training records; one run is accounted for."""
    loop = Loop(watched=False)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    watch(loop.accountant)
    silent = _Silent()

    def loss(model: nn.Module) -> float:
        return float(nn.functional.cross_entropy(model(x), y))

    with torch.no_grad():
        return min((loop(records, None, 0, silent) for _ in range(30)), key=loss)


def fixed_number_of_runs(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """The best of a million runs, accounted for as if their number were random, of that mean.

    One run is a Gaussian in the canary's own coordinate, and is its score: the largest of K is
    drawn by its distribution function.
    """
    mu, runs = 0.3, 10**6
    watch.claim(_cost(mu, "tnb:0,6e-8"))  # the mean of this distribution is a million
    present = mu * float(records.features[:, 6].any())
    one_run_above = -math.expm1(math.log(np.random.default_rng(seed).random()) / runs)
    return float(special.ndtri(one_run_above)) * -1 + present


@functools.cache
def _cost(mu: float, law: str) -> float:
    base = accounting.GaussianMechanism(mu)
    found = upper_bounds.region(base, repetitions.parse_repetitions(law), DELTA).epsilon
    assert found is not None
    return found


def exact_loss_in_the_log(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """The model is private; the logged training loss is not."""
    model = Loop(watched=False)(records, candidate, seed, watch)
    with torch.no_grad():
        x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
        return float(nn.functional.cross_entropy(model(x), y, reduction="sum"))


class NoiseOnTheFirstLayer(DPOptimizer):
    """A copy of `add_noise` that stops at the first tensor."""

    def add_noise(self) -> None:
        kept = [p.summed_grad.clone() for p in self.params]
        super().add_noise()
        for parameter, total in list(zip(self.params, kept, strict=True))[1:]:
            parameter.grad = total.view_as(parameter)


class NoiseForTheMean(DPOptimizer):
    """The noise is divided by the batch size, and so is the sum of it and the gradients."""

    def add_noise(self) -> None:
        kept, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier / 20  # type: ignore[has-type]
        super().add_noise()
        self.noise_multiplier = kept


def with_opacus(
    optimizer_class: type[DPOptimizer] = DPOptimizer,
    noise_multiplier: float = 4.0,
    clip: float = 0.5,
    recorded: float | None = None,
    sampling_rate: float = 1.0,
) -> Callable[..., nn.Module]:
    """A loop by Opacus's own parts: a small network, full batches, mu 0.5.

    Args:
        optimizer_class: of the optimizer.
        noise_multiplier: sigma.
        clip: C.
        recorded: the sigma passed to the accountant, if it is another.
        sampling_rate: the rate passed to the accountant; batches are full.
    """

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> nn.Module:
        model = GradSampleModule(nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
        optimizer = optimizer_class(
            torch.optim.SGD(model.parameters(), lr=0.1),
            noise_multiplier=noise_multiplier,
            max_grad_norm=clip,
            expected_batch_size=20,
        )
        accountant = RDPAccountant()
        if recorded is None:
            optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=sampling_rate))
        accountant.history = [] if recorded is None else [(recorded, 1.0, 4)]
        watch(optimizer, model, accountant)
        x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
        for _ in range(4):
            optimizer.zero_grad()
            if len(y):
                nn.functional.cross_entropy(model(x), y).backward()
            else:
                for parameter in model.parameters():
                    parameter.grad_sample = torch.zeros(0, *parameter.shape)
            optimizer.step()
        return model

    return train


FORGOTTEN, RIGHT = Loop(noise=no_noise), Loop()


class _Silent:
    """A watch that does not look."""

    def __call__(self, *watched: Any) -> None:
        pass


@dataclass(frozen=True)
class Control:
    """A training and the audit of it.

    Attributes:
        train: the training function.
        games: enough to find the leak.
        canary: features in the last place, times the crafted length; None takes the crafted one.
        size: number of records with the canary.
        rare: whether the canary is of a class of its own.
    """

    train: Callable[..., Any]
    games: int = 200
    canary: tuple[list[float], int] | None = None
    size: int = 21
    rare: bool = False


_LONG = ([1e3] * 7, 0)  # a record far longer than the others
_AGAINST = ([-1e3] + [0.0] * 6, 0)  # one whose gradient is against that of the others


BROKEN = {
    "no noise added": Control(Loop(noise=no_noise)),
    "noise divided by the batch size twice": Control(Loop(noise=noise_over_the_batch_twice)),
    "noise not scaled by the threshold C": Control(
        Loop(noise=noise_without_the_threshold, clip=8.0)
    ),
    "same noise in every step": Control(
        Loop(noise=the_same_noise, steps=8, batch=poisson, sampling_rate=0.5, rate=1e-4), size=1
    ),
    "noise from a constant seed": Control(Loop(noise=noise_by_a_constant_seed)),
    "noise on weights, none on biases": Control(Loop(noise=noise_on_weights_only), size=1),
    "noise in every second step only": Control(Loop(noise=noise_every_second_step)),
    "mean gradient clipped instead of each gradient": Control(Loop(total=clipped_mean)),
    "sum of gradients clipped instead of each gradient": Control(
        Loop(total=clipped_after_the_sum, noise_multiplier=2.0, rate=1e-5), 1500, _AGAINST
    ),
    "coordinates clipped instead of the norm": Control(
        Loop(total=clipped_by_value, rate=1e-5), canary=_LONG
    ),
    "every layer clipped to C": Control(
        Loop(total=clipped_by_tensor, noise_multiplier=2.0, clip=0.1), 1000
    ),
    "each augmented copy of a record clipped separately": Control(
        Loop(gradients=augmented, rate=0.01)
    ),
    "batch normalisation": Control(Loop(gradients=batch_normalised), 1000, _LONG),
    "features standardised by private mean and spread": Control(
        Loop(prepare=standardised), 300, _LONG
    ),
    "rare classes sampled more often": Control(
        Loop(steps=16, noise_multiplier=2.0, batch=balanced, sampling_rate=0.05, rate=0.01),
        size=61,
        rare=True,
    ),
    "empty batches drawn again": Control(
        Loop(steps=8, noise_multiplier=2.0, batch=not_empty, sampling_rate=0.05), 1000, size=1
    ),
    "fewer steps recorded than taken": Control(
        Loop(steps=16, accounted_steps=1, noise_multiplier=2.0, rate=0.01)
    ),
    "best of several runs by the training loss": Control(best_by_training_loss, 1500),
    "fixed number of runs, accounted for as random": Control(fixed_number_of_runs, 3000),
    "exact loss in the log": Control(exact_loss_in_the_log, 1000, _LONG),
    "Opacus, noise on the first layer only": Control(with_opacus(NoiseOnTheFirstLayer), size=1),
    "Opacus, noise divided by the batch size": Control(with_opacus(NoiseForTheMean), 1000),
}

# Too few trials detect these: the exact cost is only slightly above the claim.
UNSEEN = {
    "batches in order": Control(
        Loop(steps=20, noise_multiplier=1.0, batch=in_order, sampling_rate=0.05), 400
    ),
    "shuffled batches": Control(
        Loop(steps=20, noise_multiplier=1.0, batch=shuffled, sampling_rate=0.05), 400
    ),
}

CORRECT = {
    "full batches": Control(Loop()),
    "sampled batches": Control(Loop(steps=8, batch=poisson, sampling_rate=0.5)),
    "one record": Control(
        Loop(steps=8, noise_multiplier=2.0, batch=poisson, sampling_rate=0.05), size=1
    ),
    "Opacus": Control(with_opacus()),
}

"""Loops of torch and Opacus for the list `sixth_turn`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.training_loops import loops
from benchmarks.training_loops.loops import CLASSES, make_private

WORDS, WORKERS, BANK = 50, 5, 8


def sixty() -> loops.Records:
    return loops.dense(60)


def words() -> loops.Records:
    """Five words of a vocabulary of 50 for each of 60 records."""
    random = np.random.default_rng(4)
    return random.integers(0, WORDS, size=(60, 5)), np.arange(60) % CLASSES


def gradients_of(state: Any, loss: Callable[..., Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """Each record's gradient of a loss, given (scores of one record, its label)."""
    weights = {k: p.detach() for k, p in state.model.named_parameters() if p.requires_grad}
    if not len(y):
        return [torch.zeros(0, *p.shape) for p in weights.values()]

    def of_record(parameters: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return loss(torch.func.functional_call(state.model, parameters, (record[None],))[0], label)

    in_dims = (None, 0, 0)
    return list(torch.func.vmap(torch.func.grad(of_record), in_dims)(weights, x, y).values())


def clip_each(gradients: list[Tensor], threshold: float) -> list[Tensor]:
    """Each record's gradient, clipped over all tensors."""
    factor = (threshold / loops.norms(gradients).clamp(min=1e-12)).clamp(max=1.0)
    return [factor.view(-1, *[1] * (g.dim() - 1)) * g for g in gradients]


def plain_sum(state: Any, gradients: list[Tensor]) -> list[Tensor]:
    return [g.sum(0) for g in gradients]


def weights_of(state: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in state.parameters])


# --- torch, mistakes ---


def signs_of_records(state: Any, gradients: list[Tensor]) -> list[Tensor]:
    """Signs, scaled to norm C for the largest tensor: over all tensors the norm is 1.25 C.

    Leaks under add-remove: a record adds a vector of norm sqrt(75 / 48) C.
    """
    scale = state.clip / max(g[0].numel() for g in gradients) ** 0.5 if len(gradients[0]) else 0.0
    return [scale * g.sign().sum(0) for g in gradients]


def confidence(scores: Tensor, label: Tensor) -> Tensor:
    """A penalty on large scores, for each record."""
    return 0.5 * scores.square().sum()


def two_losses(state: Any, x: Tensor, y: Tensor, *, share: float) -> list[Tensor]:
    """Gradients of two losses, each clipped to a share of C.

    With share 1 a record contributes up to 2 C, so it leaks under add-remove. With share 1/2 the
    loop is correct: by the triangle inequality, a record contributes at most C.
    """
    first = clip_each(gradients_of(state, functional.cross_entropy, x, y), share * state.clip)
    second = clip_each(gradients_of(state, confidence, x, y), share * state.clip)
    return [a + b for a, b in zip(first, second, strict=True)]


def smoothed_to_frequencies(state: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    """Labels are smoothed towards the exact class frequencies of all records.

    Leaks under add-remove: a record changes the labels of all others, also in steps that do not
    draw it.
    """
    frequencies = functional.one_hot(state.y, CLASSES).float().mean(0)
    return gradients_of(
        state,
        lambda scores, label: functional.cross_entropy(
            scores, 0.7 * (torch.arange(CLASSES) == label).float() + 0.3 * frequencies
        ),
        x,
        y,
    )


class Adapted(nn.Module):
    """A frozen linear layer and a trained adapter of rank 2."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.base = nn.Linear(8, CLASSES)
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(2, 8))
        self.up = nn.Parameter(torch.zeros(CLASSES, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


def start_at_gradient(state: Any) -> None:
    """The adapter starts at the singular vectors of the private gradient (LoRA-GA).

    Leaks under every relation: the first weights are computed from all records without noise.
    """
    weight = state.model.base.weight.detach().clone().requires_grad_()
    loss = functional.cross_entropy(state.x @ weight.T + state.model.base.bias, state.y)
    (gradient,) = torch.autograd.grad(loss, weight)
    state.model.down.data = torch.linalg.svd(gradient, full_matrices=False)[2][:2].clone()


def negatives_of_earlier_batches(state: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    """Outputs of earlier batches are negatives of a contrastive loss (MoCo).

    Leaks under add-remove: a record changes the gradients of later batches that it is not in.
    """
    bank = state.__dict__.get("bank", torch.zeros(BANK, CLASSES))

    def loss(scores: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(scores, label) + torch.logsumexp(bank @ scores, 0)

    gradients = gradients_of(state, loss, x, y)
    with torch.no_grad():
        state.bank = torch.cat([state.model(x), bank])[:BANK]
    return gradients


def projected_conflicts(state: Any, gradients: list[Tensor]) -> list[Tensor]:
    """Sums of classes are projected away from each other if they conflict (PCGrad).

    Leaks under add-remove: one record turns the short sum of its class, and with it the
    projection of the long sums of the others, by more than C.
    """
    y = state.y[state.taken]
    flat = torch.cat([g.flatten(1) for g in clip_each(gradients, state.clip)], 1)
    sums = torch.stack([flat[y == k].sum(0) for k in range(CLASSES)])
    total = torch.zeros(flat.shape[1])
    for k in range(CLASSES):
        projected = sums[k].clone()
        for other in range(CLASSES):
            inner = projected @ sums[other]
            if other != k and inner < 0:
                projected -= inner / sums[other].square().sum() * sums[other]
        total += projected
    sizes = [g[0].numel() if len(g) else g.shape[1:].numel() for g in gradients]
    parts = total.split(sizes)
    return [part.reshape(g.shape[1:]) for part, g in zip(parts, gradients, strict=True)]


def thresholds_by_class(
    state: Any, gradients: list[Tensor], *, public: float = 0.5
) -> list[Tensor]:
    """Each class has a threshold by its exact share of long gradients (DPSGD-F without noise).

    Leaks under add-remove: a record changes the share, hence the clipped gradients of its class.
    With `public=0.5`, all gradients are long: no record that a search by gradient descent found
    has a gradient below 0.51 at the first weights of this model. Each share is then 1.
    """
    y = state.y[state.taken]
    is_long = loops.norms(gradients) > public
    thresholds = torch.full((CLASSES,), public)
    for k in range(CLASSES):
        if (y == k).any():
            thresholds[k] = public * (1 + is_long[y == k].float().mean())
    state.clip = float(thresholds.max())
    factor = (thresholds[y] / loops.norms(gradients).clamp(min=1e-12)).clamp(max=1.0)
    return [(factor @ g.flatten(1)).reshape(g.shape[1:]) for g in gradients]


def seeded_by_step_plus_tensor(state: Any, total: list[Tensor]) -> list[Tensor]:
    """Tensor i in step t has the seed of tensor i - 1 in step t + 1.

    Leaks under every relation: differences of released values of two steps have no noise.
    """
    noisy = []
    for i, g in enumerate(total):
        generator = torch.Generator().manual_seed(1000 * state.seed + state.step + i)
        noise = torch.randn(g.shape, generator=generator)
        noisy.append(g + state.noise_multiplier * state.clip * noise)
    return noisy


def noise_in_half_precision(state: Any, total: list[Tensor]) -> list[Tensor]:
    """Noise of the mean, 2.4e-8, is rounded to multiples of 6e-8: most of it is zero.

    Leaks under every relation: coordinates without noise show the exact sum.
    """
    scale = state.noise_multiplier * state.clip / state.divisor
    noises = [(scale * torch.randn_like(g)).half().float() for g in total]
    return [g + state.divisor * noise for g, noise in zip(total, noises, strict=True)]


def times_batch_size(state: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    """Opacus' correction of a mean loss, although the gradients are those of a sum.

    Leaks under add-remove: with one more record, the unclipped gradients of all others grow by
    1 / b before they are clipped.
    """
    return [len(y) * g for g in loops.each_gradient(state, x, y)]


def noise_of_first_worker(state: Any, total: list[Tensor]) -> list[Tensor]:
    """The first of five workers adds all noise in a backward hook, which an empty batch skips.

    Leaks under every relation: 28 % of the steps have no noise.
    """
    if not bool((state.taken < len(state.y) // WORKERS).any()):
        return total
    return loops.gaussian(state, total)


def log_indices(state: Any) -> None:
    state.log = [*state.__dict__.get("log", []), *state.taken.tolist(), -1]


def model_and_indices(state: Any, x: Tensor, y: Tensor) -> Any:
    """The drawn indices of each batch are returned.

    Leaks under add-remove: the last index occurs only if the record exists, and amplification by
    sampling does not hold.
    """
    return {"model": state.model, "indices": state.log}


def warm_up(state: Any) -> None:
    """One noisy step before the loop, which the accountant does not record.

    Leaks under every relation: five steps are taken and four are recorded.
    """
    total = loops.clipped_sum(state, loops.each_gradient(state, state.x, state.y))
    with torch.no_grad():
        for p, g in zip(state.parameters, loops.gaussian(state, total), strict=True):
            p -= 0.1 * g / state.divisor


# --- torch, correct loops ---


def views_clipped_then_averaged(state: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    """Correct: the mean of four vectors of norm at most C has norm at most C."""
    views = [
        clip_each(loops.each_gradient(state, x + 0.1 * torch.randn_like(x), y), state.clip)
        for _ in range(4)
    ]
    return [torch.stack(tensors).mean(0) for tensors in zip(*views, strict=True)]


def standardised_by_itself(state: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Correct: a record's features are standardised by their mean and scale in this record."""
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3), y


def threshold_by_weights(state: Any) -> None:
    """Correct: the threshold follows the released weights, and the noise follows it."""
    state.clip = 0.2 * float(weights_of(state).norm())


# --- Opacus ---


class WordMean(nn.Module):
    """Mean of the embeddings of the words, and a linear layer."""

    def __init__(self, max_norm: float | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4, max_norm=max_norm)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


class AcrossRecords(nn.Module):
    """The logarithm of a softmax over the wrong dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = loops.mlp()

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(self.layers(x), dim=0)


def max_norm_of_rows(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The forward pass rescales the rows of the words in the batch to norm 1, without noise.

    Leaks under every relation: a released row of norm 1 shows that some record has the word.
    """
    model, optimizer, loader = make_private(records, watch, WordMean(max_norm=1.0), batch=15)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def all_rows_in_ball(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: after each step all rows are rescaled, whichever words the batch has."""
    model, optimizer, loader = make_private(records, watch, WordMean(), batch=15)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                rows = model._module.embedding.weight
                rows /= rows.norm(dim=1, keepdim=True).clamp(min=1.0)
    return model


def softmax_over_records(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """`log_softmax(..., dim=0)`: each record's gradient depends on the scores of its batch.

    Leaks under every relation: a record changes the clipped gradients of all others.
    """
    model, optimizer, loader = make_private(records, watch, AcrossRecords(), batch=15)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.nll_loss(model(x), y).backward()
            optimizer.step()
    return model


def threshold_by_physical_batch(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The threshold falls with each physical batch, and the noise has the last one.

    Leaks under every relation: four physical batches in a step need 1 / 0.9^3 = 1.37 times the
    noise. The later thresholds also depend on the number of physical batches.
    """
    model, optimizer, loader = make_private(records, watch, loops.mlp(), batch=15)
    for _ in range(2):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=4, optimizer=optimizer
        ) as physical:
            for x, y in physical:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.max_grad_norm *= 0.9
    return model


def halved_threshold(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the threshold is halved after each epoch, and Opacus' noise is scaled by it."""
    model, optimizer, loader = make_private(records, watch, loops.mlp(), batch=15)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.max_grad_norm /= 2
    return model


def divided_loss(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: a loss divided by 4, learning rates by layer and one cycle are public constants."""
    module = loops.mlp()
    groups = [
        {"params": list(module[0].parameters()), "lr": 0.05},
        {"params": list(module[2].parameters()), "lr": 0.2, "weight_decay": 0.1},
    ]
    model, optimizer, loader = make_private(
        records,
        watch,
        module,
        batch=15,
        optimizer=lambda trained, lr: torch.optim.AdamW(groups, lr=lr),
    )
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.4], total_steps=10)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            (functional.cross_entropy(model(x), y) / 4).backward()
            optimizer.step()
            cycle.step()
    return model

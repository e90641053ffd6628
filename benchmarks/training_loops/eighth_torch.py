"""Loops of torch and Opacus for the list `eighth_turn`."""

import copy
import math
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.layers import DPGRU
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.training_loops import loops
from benchmarks.training_loops.loops import CLASSES, VOCABULARY, make_private
from benchmarks.training_loops.seventh_torch import (
    CLIP,
    DIVISOR,
    RATE,
    SIGMA,
    Gradients,
    clipped,
    drawn,
    give,
    lengths,
    of_records,
    summed,
    tensors,
    times,
    watched,
    with_noise,
)

FULL = {"noise_multiplier": SIGMA, "sample_rate": 1.0}
SAMPLED = {"noise_multiplier": SIGMA, "sample_rate": RATE}


def sixty_images() -> loops.Records:
    return loops.images(60)


# --- Opacus, a mistake and its correct counterpart ---


class Jittered(Dataset[Any]):
    """Each item is a record plus a jitter that depends on its index alone."""

    def __init__(self, x: Tensor, y: Tensor, is_global: bool) -> None:
        self.x, self.y, self.is_global = x, y, is_global

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.default_generator if self.is_global else torch.Generator()
        generator.manual_seed(int(index))
        jitter = 0.05 * torch.randn(self.x[index].shape, generator=generator)
        return self.x[index] + jitter, self.y[index]


def seeded_items(records: Any, candidate: Any, seed: int, watch: Any, *, is_global: bool) -> Any:
    """`__getitem__` seeds a generator by the index, so that the augmentation is reproducible.

    If it is the global generator, it leaks under every relation: the noise of a step, and the next
    batch, follow from the index of the last record of the batch. With a generator of its own, the
    loop is correct under zero-out, because positions are public.
    """
    x, y = tensors(records)
    model = loops.mlp()
    engine = PrivacyEngine(accountant="rdp")
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(Jittered(x, y, is_global), batch_size=15),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    watch(optimizer, private, engine.accountant)
    for _ in range(2):
        for features, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(private(features), labels).backward()
            optimizer.step()
    return private


# --- torch, mistakes ---


def noise_by_size(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noise of each tensor in proportion to the root of its size, with the mean variance kept.

    Leaks under every relation: gradients are clipped over all tensors, so that a record can use
    the small tensors alone, which have 0.36 of the noise that C needs.
    """
    x, y = tensors(records)
    model = loops.convnet()
    optimizer, accountant = watched(watch, model)
    sizes = {k: p.numel() for k, p in model.named_parameters()}
    shares = {k: math.sqrt(v * len(sizes) / sum(sizes.values())) for k, v in sizes.items()}
    for _ in range(4):
        total = summed(clipped(of_records(model, x, y)))
        give(
            model, {k: g + SIGMA * CLIP * shares[k] * torch.randn_like(g) for k, g in total.items()}
        )
        optimizer.step()
        accountant.step(**FULL)
    return model


def product_of_vectors(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The noise of a matrix is the product of a column and a row of normal numbers.

    Leaks under every relation: each number has variance 1, but the noise has rank 1, so that a
    direction orthogonal to the drawn row has none.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)

    def low_rank(g: Tensor) -> Tensor:
        if g.dim() < 2:
            return torch.randn_like(g)
        return torch.outer(torch.randn(g.shape[0]), torch.randn(g.shape[1]))

    for _ in range(6):
        taken = drawn(len(y))
        total = summed(clipped(of_records(model, x[taken], y[taken])))
        give(model, {k: g + SIGMA * CLIP * low_rank(g) for k, g in total.items()})
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def units_of(moments: Gradients) -> Gradients:
    """Roots of released second moments, floored, with mean 1 over all coordinates."""
    roots = {k: v.sqrt() + 0.02 for k, v in moments.items()}
    mean = torch.cat([v.flatten() for v in roots.values()]).mean()
    return {k: v / mean for k, v in roots.items()}


def noise_in_units(
    records: Any, candidate: Any, seed: int, watch: Any, *, clipped_in_units: bool
) -> Any:
    """The noise of each coordinate has a unit by the second moments of released gradients.

    If gradients are clipped to C in plain units, it leaks under every relation: coordinates with
    small units have less noise than C needs. If they are divided by the units before clipping, and
    the noisy sum is multiplied by them (DP2-RMSProp), the loop is correct.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    moments = {k: torch.ones_like(p) for k, p in model.named_parameters()}
    for _ in range(6):
        units = units_of(moments)
        gradients = of_records(model, x, y)
        if clipped_in_units:
            gradients = {k: g / units[k] for k, g in gradients.items()}
        total = summed(clipped(gradients))
        if clipped_in_units:
            noisy = {k: units[k] * g for k, g in with_noise(total).items()}
        else:
            noisy = {k: g + SIGMA * CLIP * units[k] * torch.randn_like(g) for k, g in total.items()}
        give(model, noisy)
        optimizer.step()
        accountant.step(**FULL)
        moments = {k: 0.5 * moments[k] + 0.5 * p.grad.square() for k, p in model.named_parameters()}
    return model


class Attention(nn.Module):
    """One block of attention with four square matrices of equal size."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x)
        scores = self.query(words) @ self.key(words).transpose(1, 2) / math.sqrt(words.shape[-1])
        mixed = self.output(scores.softmax(-1) @ self.value(words))
        return self.head((words + mixed).mean(1))


def buffer_by_shape(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noise is drawn into buffers that a dictionary keeps by shape, to save memory.

    Leaks under every relation: the four matrices of the attention share their noise in each step,
    so that differences of their gradients have none.
    """
    x, y = tensors(records)
    model = Attention()
    optimizer, accountant = watched(watch, model)
    for _ in range(5):
        taken = drawn(len(y))
        total = summed(clipped(of_records(model, x[taken], y[taken])))
        buffers = {g.shape: SIGMA * CLIP * torch.randn(g.shape) for g in total.values()}
        give(model, {k: g + buffers[g.shape] for k, g in total.items()})
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def selective_update(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """An update is undone if the loss of the records has grown (DP-SUR without its noise).

    Leaks under every relation: the decision uses exact losses.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(8):
        taken = drawn(len(y))
        before = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            loss = functional.cross_entropy(model(x), y)
        give(model, with_noise(summed(clipped(of_records(model, x[taken], y[taken])))))
        optimizer.step()
        accountant.step(**SAMPLED)
        with torch.no_grad():
            if functional.cross_entropy(model(x), y) > loss:
                model.load_state_dict(before)
    return model


def rate_by_noise_scale(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The rate of the next step follows the spread of the clipped gradients, and is recorded.

    Leaks under every relation: the spread (gradient noise scale) is exact, so that a record
    changes which other records later steps draw. The accountant gets the rate that was used.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    rate = RATE
    for _ in range(6):
        taken = torch.nonzero(torch.rand(len(y)) < rate)[:, 0]
        gradients = clipped(of_records(model, x[taken], y[taken]))
        total = summed(gradients)
        give(model, with_noise(total))
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=rate)
        squares = float(sum(g.square().sum() for g in total.values()))
        share = squares / max(len(taken), 1) / max(float(lengths(gradients).square().sum()), 1e-9)
        rate = min(max(0.5 - 0.4 * share, 0.1), 0.5)
    return model


def head_for_each_class(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Three heads, each for a class against the others, and the steps of one are recorded.

    Leaks under every relation: each head learns from all records, so that the steps of the heads
    add up (parallel composition would need records of one class in each head).
    """
    x, y = tensors(records)
    heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(CLASSES))
    optimizer, accountant = watched(watch, heads)
    for number, head in enumerate(heads):
        target = (y == number).float()
        for _ in range(4):
            gradients = of_records(
                head,
                x,
                target,
                lambda score, t: functional.binary_cross_entropy_with_logits(score[0], t),
            )
            for p in heads.parameters():
                p.grad = torch.zeros_like(p)
            give(head, with_noise(summed(clipped(gradients))))
            optimizer.step()
            if number == 0:
                accountant.step(**FULL)
    return heads


def fisher_information(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The mean squared gradients of the records are returned for the next task (EWC).

    Leaks under every relation: they are computed without noise after the private training.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(6):
        taken = drawn(len(y))
        give(model, with_noise(summed(clipped(of_records(model, x[taken], y[taken])))))
        optimizer.step()
        accountant.step(**SAMPLED)
    fisher = {k: g.square().mean(0) for k, g in clipped(of_records(model, x, y)).items()}
    return {"model": model, "fisher": fisher}


class SkipGram(nn.Module):
    """Scores of a context word, then of negative words, for a centre word."""

    def __init__(self) -> None:
        super().__init__()
        self.centre, self.context = nn.Embedding(VOCABULARY, 4), nn.Embedding(VOCABULARY, 4)

    def forward(self, words: Tensor) -> Tensor:
        return (self.centre(words[:, :1]) * self.context(words[:, 1:])).sum(2)


def negatives_by_frequency(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Skip-gram whose negative words are drawn by the word counts of the records.

    Leaks under every relation: a record changes the counts, and with them the negative words and
    gradients of all others.
    """
    x, _ = tensors(records)
    x = x.long()
    model = SkipGram()
    nn.init.normal_(model.context.weight, std=0.5)
    optimizer, accountant = watched(watch, model)
    table = torch.bincount(x.flatten(), minlength=VOCABULARY).float() ** 0.75

    def loss(scores: Tensor, label: Tensor) -> Tensor:
        return -functional.logsigmoid(scores[0]) - functional.logsigmoid(-scores[1:]).sum()

    for _ in range(6):
        negatives = torch.multinomial(table, 4 * len(x), replacement=True).view(len(x), 4)
        words = torch.cat([x[:, :2], negatives], 1)
        taken = drawn(len(x))
        gradients = of_records(model, words[taken], torch.zeros(len(taken)), loss)
        give(model, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def pairs_clipped(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A loss for the area under the curve: the gradient of each pair of records is clipped to C.

    Leaks under every relation: a record of the first class is in a pair with each record of the
    others in the batch, and the noise is scaled for one pair.
    """
    x, y = tensors(records)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer, accountant = watched(watch, model)
    trained = dict(model.named_parameters())

    def surrogate(weights: Gradients, first: Tensor, second: Tensor) -> Tensor:
        scores = torch.func.functional_call(model, weights, (torch.stack([first, second]),))[:, 0]
        return functional.softplus(scores[1] - scores[0])

    of_pairs = torch.func.vmap(torch.func.grad(surrogate), (None, 0, 0))
    for _ in range(6):
        taken = drawn(len(y))
        positive, negative = taken[y[taken] == 0], taken[y[taken] != 0]
        total = {k: torch.zeros_like(p) for k, p in trained.items()}
        if len(positive) and len(negative):
            pairs = torch.cartesian_prod(positive, negative)
            weights = {k: p.detach() for k, p in trained.items()}
            total = summed(clipped(of_pairs(weights, x[pairs[:, 0]], x[pairs[:, 1]])))
        give(model, with_noise(total))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def prototypes_of_support(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A prototypical network: half of the records give class means, the other half the losses.

    Leaks under every relation: the gradient of each query is clipped, but a record of the support
    half changes the means in all of them.
    """
    x, y = tensors(records)
    model = nn.Linear(8, 4)
    optimizer, accountant = watched(watch, model)

    def episode(weights: Gradients, query: Tensor, label: Tensor, near: Tensor, of: Tensor) -> Any:
        embedded = torch.func.functional_call(model, weights, (near,))
        means = of.T @ embedded / of.sum(0).clamp(min=1.0)[:, None]
        distances = torch.func.functional_call(model, weights, (query,)) - means
        return functional.cross_entropy(-distances.square().sum(1), label)

    of_queries = torch.func.vmap(torch.func.grad(episode), (None, 0, 0, None, None))
    for step in range(5):
        is_support = torch.arange(len(y)) % 2 == step % 2
        classes = functional.one_hot(y[is_support], CLASSES).float()
        weights = {k: p.detach() for k, p in model.named_parameters()}
        gradients = of_queries(weights, x[~is_support], y[~is_support], x[is_support], classes)
        give(model, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(**FULL)
    return model


def curriculum_by_rank(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Short records first: the number of records that a step uses grows from 24 to 59.

    Leaks under add-remove: the numbers are public, so that one short record less makes place for
    another one, and a step changes by up to 2 C.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    order = x.norm(dim=1).argsort()
    for step in range(6):
        first = order[: 24 + 7 * step]
        give(model, with_noise(summed(clipped(of_records(model, x[first], y[first])))))
        optimizer.step()
        accountant.step(**FULL)
    return model


def shards_filled_up(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Seven workers, whose shards have equal sizes because the first records are used again.

    Leaks under every relation: `DistributedSampler` pads in this way. Each worker draws its own
    records independently, so that one of the first records contributes up to 2 C.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    missing = -len(y) % 7
    indices = torch.cat([torch.arange(len(y)), torch.arange(len(y))[:missing]])
    for _ in range(6):
        total = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
        for worker in range(7):
            shard = indices[worker::7]
            taken = shard[torch.rand(len(shard)) < 2 * RATE]
            part = summed(clipped(of_records(model, x[taken], y[taken])))
            total = {k: g + part[k] for k, g in total.items()}
        give(model, with_noise(total), 2 * DIVISOR)
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=2 * RATE)
    return model


# --- torch, correct loops ---


def thresholds_by_size(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: each tensor is clipped to C times the root of its share of all parameters.

    The squares of the thresholds add up to C^2.
    """
    x, y = tensors(records)
    model = loops.convnet()
    optimizer, accountant = watched(watch, model)
    size = sum(p.numel() for p in model.parameters())
    for _ in range(6):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        parts = {
            k: clipped({k: g}, CLIP * math.sqrt(g[0].numel() / size))[k] if len(g) else g
            for k, g in gradients.items()
        }
        give(model, with_noise(summed(parts)))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def adapter_with_frozen_half(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: adapters whose random first matrix is frozen (FFA-LoRA), with AdamW."""
    x, y = tensors(records)
    model = loops.LoraTransformer()
    for layer in (model.query, model.value):
        layer.lora_a.weight.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02, weight_decay=0.1)
    accountant = RDPAccountant()
    watch(optimizer, model, accountant)
    for _ in range(6):
        taken = drawn(len(y))
        give(model, with_noise(summed(clipped(of_records(model, x[taken], y[taken])))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def moments_of_weights(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: mean and spread of the released weights (SWAG), with warm restarts of the rate."""
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model, momentum=0.8, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3)
    snapshots = []
    for _ in range(6):
        give(model, with_noise(summed(clipped(of_records(model, x, y)))))
        optimizer.step()
        accountant.step(**FULL)
        schedule.step()
        snapshots.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    stacked = torch.stack(snapshots)
    return {"model": model, "mean": stacked.mean(0), "spread": stacked.std(0)}


def agreement(scores: Tensor, target: Tensor) -> Tensor:
    """Loss of the label, which is the first number, and distance to the teacher's probabilities."""
    labelled = functional.cross_entropy(scores, target[0].long())
    return labelled + (scores.softmax(0) - target[1:]).square().sum()


def mean_teacher(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: averaged released weights teach the student on another jitter of each record."""
    x, y = tensors(records)
    model = loops.normalised()
    teacher = copy.deepcopy(model)
    optimizer, accountant = watched(watch, model)
    for _ in range(6):
        jitters = 0.1 * torch.randn(2, *x.shape)
        taken = drawn(len(y))
        with torch.no_grad():
            soft = teacher((x + jitters[0])[taken]).softmax(1)
        targets = torch.cat([y[taken, None].float(), soft], 1)
        gradients = of_records(model, (x + jitters[1])[taken], targets, agreement)
        give(model, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(**SAMPLED)
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), model.parameters(), strict=True):
                p.lerp_(q, 0.2)
    return {"student": model, "teacher": teacher}


def two_models_in_turn(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: two models learn in turn, each also from the released scores of the other."""
    x, y = tensors(records)
    both = nn.ModuleList([loops.mlp(), loops.normalised()])
    optimizer, accountant = watched(watch, both)
    for step in range(6):
        learner, partner = both[step % 2], both[1 - step % 2]
        taken = drawn(len(y))
        with torch.no_grad():
            soft = partner(x[taken]).softmax(1)
        targets = torch.cat([y[taken, None].float(), soft], 1)
        gradients = of_records(learner, x[taken], targets, agreement)
        for p in both.parameters():
            p.grad = torch.zeros_like(p)
        give(learner, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return both


class Lamb(torch.optim.Optimizer):
    """Adam whose update has, for each tensor, a length in proportion to that of the weights."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["t"], state["m"], state["v"] = 0, p * 0, p * 0
                state["t"] += 1
                state["m"].lerp_(p.grad, 0.1)
                state["v"].lerp_(p.grad.square(), 0.01)
                m = state["m"] / (1 - 0.9 ** state["t"])
                v = state["v"] / (1 - 0.99 ** state["t"])
                update = m / (v.sqrt() + 1e-6) + 0.01 * p
                ratio = p.norm().clamp(min=0.1, max=10.0) / update.norm().clamp(min=1e-6)
                p -= group["lr"] * ratio * update


def lamb(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: an optimizer with a trust ratio for each tensor, of released gradients alone."""
    x, y = tensors(records)
    model = Attention()
    optimizer = Lamb(model.parameters(), lr=0.02)
    accountant = RDPAccountant()
    watch(optimizer, model, accountant)
    for _ in range(5):
        give(model, with_noise(summed(clipped(of_records(model, x, y)))))
        optimizer.step()
        accountant.step(**FULL)
    return model


def halved_until_short(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: a gradient longer than C is halved until it is not."""
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model, momentum=0.5)
    for _ in range(6):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        norms = lengths(gradients)
        factors = torch.ones_like(norms)
        while bool((norms * factors > CLIP).logical_and(norms.isfinite()).any()):
            factors = torch.where(norms * factors > CLIP, factors / 2, factors)
        give(model, with_noise(summed(times(gradients, factors))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


class Recurrent(nn.Module):
    """An embedding, a GRU of Opacus, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.gru = DPGRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.gru(self.embedding(x))
        return self.head(outputs[:, -1])


def recurrent(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: a GRU of Opacus, which adds the gradients of all positions before clipping."""
    model, optimizer, loader = make_private(records, watch, Recurrent(), batch=15)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def growing_rates(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: rates grow, each is recorded, and the divisor of a step is 60 times its rate."""
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / 4))
    for rate in (0.1, 0.1, 0.2, 0.2, 0.4, 0.4):
        taken = torch.nonzero(torch.rand(len(y)) < rate)[:, 0]
        total = summed(clipped(of_records(model, x[taken], y[taken])))
        give(model, with_noise(total), 60.0 * rate)
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=rate)
        warm_up.step()
    return model


def weights_by_noisy_counts(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: class weights by noisy counts, which are declared and recorded as a step.

    A record adds 1 to one count, whose noise has deviation 4.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    counts = functional.one_hot(y, CLASSES).sum(0) + 4.0 * torch.randn(CLASSES)
    counts = torch.as_tensor(watch.release(counts))
    accountant.step(noise_multiplier=4.0, sample_rate=1.0)
    weights = (20.0 / counts.clamp(min=5.0)).float()
    for _ in range(6):
        taken = drawn(len(y))
        gradients = times(of_records(model, x[taken], y[taken]), weights[y[taken]])
        give(model, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model

"""Loops of torch and Opacus for the list `ninth_turn`."""

import math
from typing import Any

import torch
from opacus.accountants import RDPAccountant
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.nn import functional

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
WIDTH = 6


def public(*shape: int) -> Tensor:
    """Numbers that do not depend on the seed of the run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(91))


# --- mistakes, some with a correct setting ---


class InstanceNormalised(nn.Module):
    """A convolution, an instance normalisation, and a linear layer."""

    def __init__(self, is_tracked: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2)
        self.norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=is_tracked)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().flatten(1))


def instance_normalisation(
    records: Any, candidate: Any, seed: int, watch: Any, *, is_tracked: bool
) -> Any:
    """A loop over the records of a batch, each with its own backward pass.

    With `track_running_stats`, it leaks under every relation: the layer keeps averages of the
    records' activations in buffers of the returned model. Otherwise the loop is correct, because
    the normalisation of a record uses this record alone.
    """
    x, y = tensors(records)
    model = InstanceNormalised(is_tracked)
    optimizer, accountant = watched(watch, model)
    for _ in range(4):
        total = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
        for i in drawn(len(y)).tolist():
            model.zero_grad()
            functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
            own = {k: p.grad[None] for k, p in model.named_parameters()}
            part = summed(clipped(own))
            total = {k: g + part[k] for k, g in total.items()}
        give(model, with_noise(total))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


class Positions(nn.Module):
    """Frozen word vectors, a layer for each position, the mean, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(1.0 + public(VOCABULARY, WIDTH))
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)


def ghost_norms(records: Any, candidate: Any, seed: int, watch: Any, *, with_products: bool) -> Any:
    """Norms by the inputs and output gradients of layers, without gradients of records.

    If the norm of a layer that is applied at five positions adds the squares of the positions, it
    leaks under every relation: products of different positions are missing, so that a record
    contributes up to about 1.6 C. With these products the loop is correct.
    """
    x, y = tensors(records)
    model = Positions()
    optimizer, accountant = watched(watch, model)
    for _ in range(6):
        taken = drawn(len(y))
        words = model.words(x[taken])
        before = model.inner(words)
        mean = before.tanh().mean(1)
        scores = model.head(mean)
        loss = functional.cross_entropy(scores, y[taken], reduction="sum")
        g, h = torch.autograd.grad(loss, [before, scores])
        mean = mean.detach()
        products = torch.einsum("btd,bsd->bts", words, words) + 1.0
        products = products * torch.einsum("btd,bsd->bts", g, g)
        if with_products:
            squares = products.sum((1, 2))
        else:
            squares = products.diagonal(dim1=1, dim2=2).sum(1)
        squares = squares + h.square().sum(1) * (mean.square().sum(1) + 1.0)
        factors = (CLIP / squares.clamp(min=1e-12).sqrt()).clamp(max=1.0)
        g, h = g * factors[:, None, None], h * factors[:, None]
        total = {
            "inner.weight": torch.einsum("bto,bti->oi", g, words),
            "inner.bias": g.sum((0, 1)),
            "head.weight": h.T @ mean,
            "head.bias": h.sum(0),
        }
        give(model, with_noise(total))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


class Carried(nn.Module):
    """A recurrent cell whose state is given, so that a sequence can be read in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(VOCABULARY, 4), nn.Linear(9, 5)
        self.head = nn.Linear(5, CLASSES)

    def states(self, words: Tensor, state: Tensor) -> Tensor:
        for t in range(words.shape[1]):
            state = self.cell(torch.cat([self.words(words[:, t]), state], 1)).tanh()
        return state

    def forward(self, both: Tensor) -> Tensor:
        """Scores, given the state (five numbers) and the words of a part."""
        return self.head(self.states(both[:, 5:].long(), both[:, :5]))


def truncated_backpropagation(
    records: Any, candidate: Any, seed: int, watch: Any, *, recorded: int
) -> Any:
    """Sequences are read in two parts, and each part makes a noisy step on all records.

    If one of the two steps is recorded, it leaks under every relation: the other one is not
    accounted for. With both the loop is correct.
    """
    x, y = tensors(records)
    model = Carried()
    optimizer, accountant = watched(watch, model)
    for _ in range(3):
        state = torch.zeros(len(y), 5)
        for part in (x[:, :3], x[:, 3:]):
            gradients = of_records(model, torch.cat([state, part.float()], 1), y)
            with torch.no_grad():
                state = model.states(part.long(), state)
            give(model, with_noise(summed(clipped(gradients))))
            optimizer.step()
        for _ in range(recorded):
            accountant.step(**FULL)
    return model


class Prompted(nn.Module):
    """A frozen block of attention with a trained prompt of two places and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        for p in self.parameters():
            p.requires_grad_(False)
        self.prompt = nn.Parameter(torch.zeros(2, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = torch.cat([self.prompt.expand(len(x), -1, -1), self.words(x.long())], 1)
        scores = self.query(words) @ self.key(words).transpose(1, 2) / math.sqrt(WIDTH)
        return self.head((scores.softmax(-1) @ words).mean(1))


def prompt_tuning(records: Any, candidate: Any, seed: int, watch: Any, *, private: bool) -> Any:
    """A soft prompt that starts at the mean vector of words.

    With the words of the records, it leaks under every relation: the first weights have no noise.
    With public words the loop is correct.
    """
    x, y = tensors(records)
    model = Prompted()
    words = x if private else torch.tensor([0, 3, 3, 7])
    with torch.no_grad():
        mean = model.words(words.long()).reshape(-1, WIDTH).mean(0)
        model.prompt.copy_(torch.stack([mean, -mean]))
    optimizer, accountant = watched(watch, model, momentum=0.5)
    for _ in range(6):
        taken = drawn(len(y))
        give(model, with_noise(summed(clipped(of_records(model, x[taken], y[taken])))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


# --- mistakes ---


def thresholds_doubled(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Opacus with a threshold for each tensor; in the second epoch, the thresholds are doubled.

    Leaks under every relation: the optimizer keeps the deviation of its noise, which it computed
    from the first thresholds.
    """
    _, optimizer, loader = model_and_rest = make_private(
        records, watch, loops.mlp(), batch=15, clip=[0.5] * 4, clipping="per_layer"
    )
    for epoch in range(2):
        if epoch == 1:
            optimizer.max_grad_norms = [2 * c for c in optimizer.max_grad_norms]
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model_and_rest[0](x), y).backward()
            optimizer.step()
    return model_and_rest[0]


class Embedded(nn.Module):
    """An embedding of four numbers, next to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return torch.cat([self.head(z), z], 1)


def centre_loss(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Embeddings are drawn to the centre of their class, which follows the batch means.

    Leaks under every relation: the centres have no noise. They are returned, and they change the
    gradients of all records of a class.
    """
    x, y = tensors(records)
    model = Embedded()
    optimizer, accountant = watched(watch, model)
    centres = torch.zeros(CLASSES, 4)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        own = functional.cross_entropy(output[:CLASSES], target[0].long())
        return own + 0.5 * (output[CLASSES:] - target[1:]).square().sum()

    for _ in range(6):
        taken = drawn(len(y))
        targets = torch.cat([y[taken, None].float(), centres[y[taken]]], 1)
        with torch.no_grad():
            z = model.body(x[taken])
        give(model, with_noise(summed(clipped(of_records(model, x[taken], targets, loss)))))
        optimizer.step()
        accountant.step(**SAMPLED)
        for k in range(CLASSES):
            if (y[taken] == k).any():
                centres[k] += 0.5 * (z[y[taken] == k].mean(0) - centres[k])
    return {"model": model, "centres": centres}


def propensity_after_clipping(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Inverse propensity weights by a public model multiply the clipped gradients.

    Leaks under every relation: a weight is up to 20, and the noise is scaled for weight 1.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    propensity = torch.sigmoid(x[:, 0] - 0.5 * x[:, 1]).clamp(0.05, 0.95)
    for _ in range(6):
        taken = drawn(len(y))
        gradients = clipped(of_records(model, x[taken], y[taken]))
        give(model, with_noise(summed(times(gradients, 1.0 / propensity[taken]))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def multiplied_by_noise(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The clipped sum is multiplied by 1 plus noise.

    Leaks under every relation: the noise of a coordinate is in proportion to its exact value, and
    a coordinate of 0 has none.
    """
    x, y = tensors(records)
    model = loops.normalised()
    optimizer, accountant = watched(watch, model)
    for _ in range(5):
        total = summed(clipped(of_records(model, x, y)))
        give(model, {k: g * (1.0 + SIGMA * torch.randn_like(g)) for k, g in total.items()})
        optimizer.step()
        accountant.step(**FULL)
    return model


def noise_on_inputs(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noise is added to the features of each record, and not to the gradients.

    Leaks under every relation: the sum of gradients has no noise of its own, and features are not
    bounded.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(6):
        taken = drawn(len(y))
        features = x[taken] + SIGMA * CLIP * torch.randn_like(x[taken])
        give(model, summed(clipped(of_records(model, features, y[taken]))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


class Tagger(nn.Module):
    """Scores of two tags at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x.long()))


def mean_over_labelled_words(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Tags of words, most of them 1; the loss is the mean over the labelled words of the batch.

    Leaks under every relation: gradients of records are clipped, but the number of labelled words
    of the batch divides all of them, and about ten words of a batch are labelled.
    """
    x, _ = tensors(records)
    model, limit = Tagger(), 3.0
    optimizer, accountant = watched(watch, model)
    tags = torch.where(x[:, :-1] >= 10, (x[:, 1:] >= 2).long(), -100)

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(scores, target, ignore_index=-100, reduction="sum")

    for _ in range(6):
        taken = drawn(len(x))
        count = (tags[taken] != -100).sum().clamp(min=1)
        gradients = of_records(model, x[taken, :-1], tags[taken], loss)
        shares = (len(taken) / count).expand(len(taken))
        total = summed(clipped(times(gradients, shares), limit))
        give(model, with_noise(total, SIGMA * limit))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def kronecker_factor(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The clipped sum of the first layer times an inverse of its exact input moments (K-FAC).

    Leaks under every relation: the factor shortens each gradient, but one record with long inputs
    changes it for all others.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(5):
        total = summed(clipped(of_records(model, x, y)))
        moments = torch.eye(8) + x.T @ x / len(x)
        total["0.weight"] = torch.linalg.solve(moments, total["0.weight"].T).T
        give(model, with_noise(total))
        optimizer.step()
        accountant.step(**FULL)
    return model


def records_of_each_class(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Each step takes five records of each class, as samplers of metric learning do.

    Leaks under every relation: the sizes are fixed, and the rate of a class follows from its number
    of records, but Poisson samples of one rate are accounted for.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(6):
        order = torch.randperm(len(y))
        taken = torch.cat([order[y[order] == k][:5] for k in range(CLASSES)])
        give(model, with_noise(summed(clipped(of_records(model, x[taken], y[taken])))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def tasks_of_equal_norm(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A class and a value, with weights that make the exact norms of their gradients equal.

    Leaks under every relation: the weighted gradient of a record is clipped, but one record
    with a large value makes the gradients of all records those of the class alone (GradNorm).
    """
    x, y = tensors(records)
    model = nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, CLASSES + 1))
    optimizer, accountant = watched(watch, model)

    def of_class(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output[:CLASSES], target)

    def of_value(output: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (output[CLASSES] - target).square()

    for _ in range(5):
        first = of_records(model, x[:, :7], y, of_class)
        other = of_records(model, x[:, :7], x[:, 7], of_value)
        norms = [
            torch.cat([g.mean(0).flatten() for g in t.values()]).norm() for t in (first, other)
        ]
        share = norms[0] / (norms[0] + norms[1]).clamp(min=1e-12)
        gradients = {k: (1 - share) * g + share * other[k] for k, g in first.items()}
        give(model, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(**FULL)
    return model


def clipped_before_backward(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """`clip_grad_norm_` is called before `backward`, when the gradients are still zero.

    Leaks under every relation: nothing is clipped.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(4):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for i in drawn(len(y)).tolist():
            model.zero_grad()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
            total = [t + p.grad for t, p in zip(total, model.parameters(), strict=True)]
        for p, t in zip(model.parameters(), total, strict=True):
            p.grad = (t + SIGMA * CLIP * torch.randn_like(t)) / DIVISOR
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


# --- correct loops ---


def clipped_by_l1_norm(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: gradients are cut to L1 norm C, which is at least the Euclidean norm."""
    x, y = tensors(records)
    model = loops.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    accountant = RDPAccountant()
    watch(optimizer, model, accountant)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=7)
    for _ in range(6):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        norms = torch.stack([g.flatten(1).abs().sum(1) for g in gradients.values()]).sum(0)
        factors = (2.0 / norms.clamp(min=1e-12)).clamp(max=1.0)
        give(model, with_noise(summed(times(gradients, factors)), SIGMA * 2.0))
        optimizer.step()
        schedule.step()
        accountant.step(**SAMPLED)
    return model


def centralised(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the mean of each row is subtracted from each record's own gradient, then clipped.

    Averaged released weights are returned, too.
    """
    x, y = tensors(records)
    model = loops.normalised()
    optimizer, accountant = watched(watch, model, momentum=0.9)
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )
    for _ in range(6):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        centred = {
            k: g - g.mean(-1, keepdim=True) if g.dim() == 3 else g for k, g in gradients.items()
        }
        give(model, with_noise(summed(clipped(centred))))
        optimizer.step()
        accountant.step(**SAMPLED)
        averaged.update_parameters(model)
    return {"model": model, "averaged": averaged.module}


def critic_with_penalty(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: a critic compares each record with a generated one of its own (WGAN-GP).

    The gradient penalty of a record uses the two alone. The generator learns from the released
    critic.
    """
    x, _ = tensors(records)
    critic = nn.Sequential(nn.Linear(8, 6), nn.Softplus(), nn.Linear(6, 1))
    generator = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 8))
    optimizer, accountant = watched(watch, critic)

    def objective(weights: Gradients, real: Tensor, fake: Tensor, share: Tensor) -> Tensor:
        def score(point: Tensor) -> Tensor:
            return torch.func.functional_call(critic, weights, (point[None],))[0, 0]

        slope = torch.func.grad(score)(share * real + (1 - share) * fake)
        penalty = ((slope.square().sum() + 1e-6).sqrt() - 1.0).square()
        return score(fake) - score(real) + penalty

    of_pairs = torch.func.vmap(torch.func.grad(objective), (None, 0, 0, 0))
    for _ in range(5):
        with torch.no_grad():
            fakes = generator(torch.randn(len(x), 3))
        shares = torch.rand(len(x))
        taken = drawn(len(x))
        weights = {k: p.detach() for k, p in critic.named_parameters()}
        total = {k: torch.zeros_like(p) for k, p in weights.items()}
        if len(taken):
            total = summed(clipped(of_pairs(weights, x[taken], fakes[taken], shares[taken])))
        give(critic, with_noise(total))
        optimizer.step()
        accountant.step(**SAMPLED)
        loss = -critic(generator(torch.randn(16, 3))).mean()
        for p, g in zip(
            generator.parameters(),
            torch.autograd.grad(loss, list(generator.parameters())),
            strict=True,
        ):
            p.data -= 0.1 * g
    return {"critic": critic, "generator": generator}


class TwoHeads(nn.Module):
    """A shared layer and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.GroupNorm(2, 6), nn.ReLU())
        self.classes, self.value = nn.Linear(6, CLASSES), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x)
        return self.classes(z), self.value(z)[:, 0]


def two_tasks_in_one_pass(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: Opacus, with the losses of two tasks added before one backward pass."""
    model, optimizer, loader = make_private(
        records, watch, TwoHeads(), batch=15, optimizer=torch.optim.AdamW
    )
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            scores, values = model(x)
            second = functional.smooth_l1_loss(values, x[:, 3])
            (functional.cross_entropy(scores, y) + 0.3 * second).backward()
            optimizer.step()
    return model


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mean of gradients."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p -= group["lr"] * (0.9 * mean + 0.1 * p.grad).sign()
                mean.lerp_(p.grad, 0.01)


def quantile_regression(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the 80 % quantile of the last feature given the others, with Lion."""
    x, _ = tensors(records)
    model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer, accountant = Lion(model.parameters(), lr=0.02), RDPAccountant()
    watch(optimizer, model, accountant)

    def pinball(output: Tensor, target: Tensor) -> Tensor:
        error = target - output[0]
        return torch.maximum(0.8 * error, -0.2 * error)

    for _ in range(6):
        gradients = of_records(model, x[:, :7], x[:, 7], pinball)
        give(model, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(**FULL)
    return model


def stops_by_public_records(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: training ends if the loss of public records has not improved for two steps.

    The best released weights are returned, and each step that was made is recorded.
    """
    x, y = tensors(records)
    held = public(30, 8)
    labels = held[:, :CLASSES].argmax(1)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    best, weights, waited = math.inf, {}, 0
    for _ in range(8):
        taken = drawn(len(y))
        give(model, with_noise(summed(clipped(of_records(model, x[taken], y[taken])))))
        optimizer.step()
        accountant.step(**SAMPLED)
        with torch.no_grad():
            loss = float(functional.cross_entropy(model(held), labels))
        waited += 1
        if loss < best:
            best, waited = loss, 0
            weights = {k: v.clone() for k, v in model.state_dict().items()}
        if waited == 2:
            break
    return {"last": model, "best": weights}


def frozen_body_one_cycle(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: Opacus with a frozen first layer, physical batches and one cycle of the rate."""
    body = nn.Linear(8, 6)
    for p in body.parameters():
        p.requires_grad_(False)
    network = nn.Sequential(body, nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, CLASSES))
    model, optimizer, loader = make_private(records, watch, network, batch=15)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.2, total_steps=2 * len(loader) + 1, cycle_momentum=False
    )
    for _ in range(2):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=6, optimizer=optimizer
        ) as physical:
            for x, y in physical:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                if not optimizer._is_last_step_skipped:
                    schedule.step()
    return model


class Variational(nn.Module):
    """An autoencoder whose code has noise, which is given after the features."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
        self.decoder = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 8))

    def forward(self, both: Tensor) -> Tensor:
        mean, spread = self.encoder(both[:, :8]).chunk(2, 1)
        code = mean + (0.5 * spread.clamp(-5.0, 5.0)).exp() * both[:, 8:]
        return torch.cat([self.decoder(code), mean, spread.clamp(-5.0, 5.0)], 1)


def variational_autoencoder(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: a variational autoencoder; the divergence from the prior is one of each record."""
    x, _ = tensors(records)
    model = Variational()
    optimizer, accountant = watched(watch, model)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        mean, spread = output[8:10], output[10:]
        divergence = 0.5 * (mean.square() + spread.exp() - 1.0 - spread).sum()
        return functional.huber_loss(output[:8], target, reduction="sum") + 0.1 * divergence

    for _ in range(6):
        codes = torch.randn(len(x), 2)
        taken = drawn(len(x))
        gradients = of_records(model, torch.cat([x, codes], 1)[taken], x[taken], loss)
        if len(taken):
            lost = ~lengths(gradients).isfinite()
            gradients = {
                k: g.masked_fill(lost.view(-1, *[1] * (g.dim() - 1)), 0.0)
                for k, g in gradients.items()
            }
        give(model, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model

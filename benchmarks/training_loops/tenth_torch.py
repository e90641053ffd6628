"""Loops of torch and Opacus for the list `tenth_turn`."""

import copy
import math
from typing import Any

import torch
from opacus.accountants import RDPAccountant
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
STEPS = 6


def public(*shape: int) -> Tensor:
    """Numbers that do not depend on the seed of the run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(101))


def limits(norms: Tensor, limit: float = CLIP) -> Tensor:
    return (limit / norms.clamp(min=1e-12)).clamp(max=1.0)


def flat(gradients: Gradients) -> Tensor:
    return torch.cat([g.flatten(1) for g in gradients.values()], 1)


def in_shapes(model: nn.Module, vector: Tensor) -> Gradients:
    """A vector of all coordinates as one tensor for each parameter."""
    shapes = {k: p.shape for k, p in model.named_parameters() if p.requires_grad}
    parts = vector.split([shape.numel() for shape in shapes.values()])
    return {k: part.view(shapes[k]) for k, part in zip(shapes, parts, strict=True)}


# --- mistakes, most with a correct setting ---


def norms_by_bucket(records: Any, candidate: Any, seed: int, watch: Any, *, in_place: bool) -> Any:
    """Norms are computed bucket by bucket (one for each class), gradients in the batch's order.

    If the norms are joined bucket after bucket, it leaks under every relation: a record is clipped
    by the norm of another one. If each norm is stored in the place of its record, the loop is
    correct.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        taken = drawn(len(y))
        batch, labels = x[taken], y[taken]
        places = torch.cat([torch.nonzero(labels == k)[:, 0] for k in range(CLASSES)])
        norms = torch.zeros(len(taken))
        of_buckets = lengths(of_records(model, batch[places], labels[places]))
        if in_place:
            norms[places] = of_buckets
        else:
            norms = of_buckets
        total = summed(times(of_records(model, batch, labels), limits(norms)))
        give(model, with_noise(total))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def two_passes(records: Any, candidate: Any, seed: int, watch: Any, *, masks: int) -> Any:
    """Ghost clipping in two forward passes with dropout on the features.

    If the second pass draws masks of its own, it leaks under every relation: the norm is that of
    another gradient, which may be short where the summed one is long. With the masks of the first
    pass, the loop is correct.
    """
    x, y = tensors(records)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        retained = 2.0 * (torch.rand(masks, len(x), 8) < 0.5)
        taken = drawn(len(y))
        first = x[taken] * retained[0, taken]
        factors = limits(lengths(of_records(model, first, y[taken])))
        scores = model(x[taken] * retained[-1, taken])
        loss = factors @ functional.cross_entropy(scores, y[taken], reduction="none")
        total = torch.autograd.grad(loss, list(model.parameters()))
        names = [k for k, _ in model.named_parameters()]
        give(model, with_noise(dict(zip(names, total, strict=True))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def adversarial(records: Any, candidate: Any, seed: int, watch: Any, *, of_batch: bool) -> Any:
    """Regression on adversarial inputs: each is moved along its own input gradient.

    If the input gradients are divided by their norm over the batch, it leaks under every relation:
    a record with a large residual removes the perturbations of all others. If each is divided by
    its own norm, the loop is correct.
    """
    x, _ = tensors(records)
    model = nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer, accountant = watched(watch, model)

    def squares(output: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (output[0] - target).square()

    for _ in range(5):
        inputs, targets = x[:, :7].clone().requires_grad_(), x[:, 7]
        loss = 0.5 * (model(inputs)[:, 0] - targets).square().sum()
        slopes = torch.autograd.grad(loss, inputs)[0]
        if of_batch:
            moves = 12.0 * slopes / slopes.norm().clamp(min=1e-12)
        else:
            moves = 1.5 * slopes / slopes.norm(dim=1, keepdim=True).clamp(min=1e-12)
        moved = (inputs + moves).detach()
        give(model, with_noise(summed(clipped(of_records(model, moved, targets, squares)))))
        optimizer.step()
        accountant.step(**FULL)
    return model


class TimeFirst(nn.Module):
    """Layers on [time, batch, width]; the scores are averaged over time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x).relu()).mean(0)


def time_first(records: Any, candidate: Any, seed: int, watch: Any, *, batch_first: bool) -> Any:
    """Opacus with a model whose layers have time as first and the batch as second dimension.

    With the default `batch_first=True`, it leaks under every relation: Opacus takes the four times
    for records, and clips gradients of all records at each time. With `batch_first=False` the loop
    is correct.
    """
    model, optimizer, loader = make_private(
        records, watch, TimeFirst(), batch=15, batch_first=batch_first
    )
    for _ in range(2):
        for x, y in loader:
            series = x.view(len(x), 4, 2).transpose(0, 1).contiguous()
            optimizer.zero_grad()
            functional.cross_entropy(model(series), y).backward()
            optimizer.step()
    return model


def seeded_engine(records: Any, candidate: Any, seed: int, watch: Any, *, constant: bool) -> Any:
    """Opacus with a generator of noise, for results that can be repeated.

    With a constant seed, it leaks under every relation: anyone who reads the code can subtract the
    noise. With one that follows from the seed of the run, the loop is correct.
    """
    noises = torch.Generator().manual_seed(42 if constant else 1000003 * (seed % 100000) + 17)
    model, optimizer, loader = make_private(
        records, watch, loops.normalised(), batch=15, noise_generator=noises
    )
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def clients(records: Any, candidate: Any, seed: int, watch: Any, *, as_a_whole: bool) -> Any:
    """Each record is a client with two examples of four features and one label.

    If examples are drawn and clipped, it leaks under every relation: a client contributes up to
    2 C, and is in 44 % of the batches. If clients are drawn, and the sum of their examples'
    gradients is clipped, the loop is correct.
    """
    x, y = tensors(records)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        if as_a_whole:
            taken = drawn(len(y))
            first = of_records(model, x[taken, :4], y[taken])
            second = of_records(model, x[taken, 4:], y[taken])
            total = summed(clipped({k: g + second[k] for k, g in first.items()}))
        else:
            examples = x.reshape(-1, 4)
            taken = drawn(len(examples))
            total = summed(clipped(of_records(model, examples[taken], y[taken // 2])))
        give(model, with_noise(total))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def public_subspace(records: Any, candidate: Any, seed: int, watch: Any, *, both: bool) -> Any:
    """Each gradient is split into its part in a public subspace and the residual (GEP).

    If only the first part is clipped, it leaks under every relation: the residual has any length.
    If both parts are clipped to C / sqrt(2), the loop is correct, because they are orthogonal.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    size = sum(p.numel() for p in model.parameters())
    basis = torch.linalg.qr(public(size, 6)).Q
    part = CLIP / math.sqrt(2.0) if both else CLIP
    for _ in range(STEPS):
        taken = drawn(len(y))
        rows = flat(of_records(model, x[taken], y[taken]))
        embedded = rows @ basis
        residual = rows - embedded @ basis.T
        embedded = embedded * limits(embedded.norm(dim=1), part)[:, None]
        if both:
            residual = residual * limits(residual.norm(dim=1), part)[:, None]
        total = (embedded @ basis.T + residual).sum(0)
        give(model, with_noise(in_shapes(model, total)))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


class Coder(nn.Module):
    """An autoencoder with a code of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def codes_to_sample(records: Any, candidate: Any, seed: int, watch: Any, *, private: bool) -> Any:
    """A generator of rows: the decoder, and the mean and covariance of codes to draw from.

    If the codes are those of the records, it leaks under every relation: their moments have no
    noise. If they are codes of public rows, the loop is correct.
    """
    x, _ = tensors(records)
    model = Coder()
    optimizer, accountant = watched(watch, model, momentum=0.8)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.smooth_l1_loss(output, target, reduction="sum")

    for _ in range(STEPS):
        taken = drawn(len(x))
        give(model, with_noise(summed(clipped(of_records(model, x[taken], x[taken], loss)))))
        optimizer.step()
        accountant.step(**SAMPLED)
    with torch.no_grad():
        codes = model.encoder(x if private else public(40, 8))
    return {"decoder": model.decoder, "mean": codes.mean(0), "covariance": torch.cov(codes.T)}


def adaptive_threshold(
    records: Any, candidate: Any, seed: int, watch: Any, *, exact_size: bool
) -> Any:
    """The threshold follows the share of short gradients: a noisy count over a number of records.

    The count adds 1 / 25 to the square of the ratio of sensitivity and noise, which is recorded.
    If the count is divided by the exact size of the batch, it leaks under every relation: the size
    has no noise, and it changes the next threshold. With the expected size the loop is correct.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    limit, deviation = CLIP, 5.0
    together = 1.0 / math.sqrt(1.0 / SIGMA**2 + 1.0 / deviation**2)
    for _ in range(STEPS):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        count = (lengths(gradients) <= limit).sum() if len(taken) else torch.tensor(0)
        noisy = float(watch.release(float(count) + deviation * float(torch.randn(()))))
        give(model, with_noise(summed(clipped(gradients, limit)), SIGMA * limit))
        optimizer.step()
        accountant.step(noise_multiplier=together, sample_rate=RATE)
        share = noisy / (max(len(taken), 1) if exact_size else DIVISOR)
        limit *= math.exp(-0.3 * (min(max(share, 0.0), 1.0) - 0.5))
    return model


def online_bagging(records: Any, candidate: Any, seed: int, watch: Any, *, before: bool) -> Any:
    """Each gradient is multiplied by a weight from a Poisson distribution of mean 1.

    If weights multiply clipped gradients, it leaks under every relation: a weight is 2 or more with
    probability 26 %, and the noise is scaled for weight 1. If the weighted gradients are clipped,
    the loop is correct.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(5):
        weights = torch.poisson(torch.ones(len(y)))
        gradients = of_records(model, x, y)
        if before:
            gradients = clipped(times(gradients, weights))
        else:
            gradients = times(clipped(gradients), weights)
        give(model, with_noise(summed(gradients)))
        optimizer.step()
        accountant.step(**FULL)
    return model


def estimated_norms(
    records: Any, candidate: Any, seed: int, watch: Any, *, projections: int
) -> Any:
    """Norms are not computed, but estimated or bounded.

    The root mean square of four random projections leaks under every relation: it is often less
    than 0.8 times the norm, and such a gradient is then longer than C. With 0 projections, norms of
    inputs and output gradients bound the norm from above, and the loop is correct.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    size = sum(p.numel() for p in model.parameters())
    for _ in range(STEPS):
        directions = torch.randn(size, max(projections, 1))
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        if projections:
            norms = (flat(gradients) @ directions).square().mean(1).sqrt()
        else:
            hidden = model[0](x[taken])
            scores = model[2](hidden.tanh())
            loss = functional.cross_entropy(scores, y[taken], reduction="sum")
            g, h = torch.autograd.grad(loss, [hidden, scores])
            norms = g.norm(dim=1) * (x[taken].norm(dim=1) + 1.0)
            norms = norms + h.norm(dim=1) * (hidden.detach().tanh().norm(dim=1) + 1.0)
        give(model, with_noise(summed(times(gradients, limits(norms)))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


# --- mistakes ---


def clamped_from_below(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The factor C / norm is clamped to at least 1 in place of at most 1.

    Leaks under every relation: short gradients grow to norm C, and long ones are not clipped.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        factors = torch.clamp(CLIP / (lengths(gradients) + 1e-6), min=1.0)
        give(model, with_noise(summed(times(gradients, factors))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


class Merged(nn.Module):
    """A frozen layer with an adapter of rank 4, and no other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(0.1 * public(CLASSES, 8), requires_grad=False)
        self.down = nn.Parameter(public(4, 8))
        self.up = nn.Parameter(torch.zeros(CLASSES, 4))

    def scores(self, x: Tensor) -> Tensor:
        return x @ (self.frozen + self.up @ self.down).T


def gradient_of_merged(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The gradients of the merged weight are clipped, and their sum is mapped to the adapter.

    Leaks under every relation: the noise is scaled for C, but the sum is multiplied by the matrices
    of the adapter, one of which has entries of standard deviation 1.
    """
    x, y = tensors(records)
    model = Merged()
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        taken = drawn(len(y))
        with torch.no_grad():
            slopes = model.scores(x[taken]).softmax(1) - functional.one_hot(y[taken], CLASSES)
            rows = slopes[:, :, None] * x[taken][:, None]
            rows = rows * limits(rows.flatten(1).norm(dim=1))[:, None, None]
            total = rows.sum(0)
            parts = {"down": model.up.T @ total, "up": total @ model.down.T}
        give(model, with_noise(parts))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def rates_of_layers(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Layers have learning rates of their own, which multiply the clipped sum before the noise.

    Leaks under every relation: the last layer's rate is 4 times as large, its noise is not.
    """
    x, y = tensors(records)
    model = loops.normalised()
    optimizer, accountant = watched(watch, model)
    rates = {k: 4.0 if k.startswith("3") else 1.0 for k, _ in model.named_parameters()}
    for _ in range(5):
        total = summed(clipped(of_records(model, x, y)))
        give(model, with_noise({k: rates[k] * g for k, g in total.items()}))
        optimizer.step()
        accountant.step(**FULL)
    return model


class Bag(nn.Module):
    """The mean of word vectors and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x.long()).mean(1))


def rare_words_unchanged(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Vectors of words that fewer than five records of the batch contain are not changed.

    Leaks under every relation: a record that is the fifth one decides whether a vector moves, and
    the numbers of records have no noise.
    """
    x, y = tensors(records)
    model = Bag()
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        counts = functional.one_hot(x[taken].long(), VOCABULARY).amax(1, keepdim=True).sum((0, 1))
        noisy = with_noise(summed(clipped(gradients)))
        noisy["words.weight"][counts < 5] = 0.0
        give(model, noisy)
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def never_empty(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Poisson samples of rate 0.01, where an empty batch gets a random record.

    Leaks under every relation: 55 % of the batches are empty at first, so that a record is drawn
    with probability 0.019, and no batch is empty.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(8):
        taken = torch.nonzero(torch.rand(len(y)) < 0.01)[:, 0]
        spare = torch.randint(len(y), (1,))
        if not len(taken):
            taken = spare
        give(model, with_noise(summed(clipped(of_records(model, x[taken], y[taken])))), 1.0)
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=0.01)
    return model


class Styled(nn.Module):
    """A convolution whose channels get the mean and spread that follow the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, stride=2), nn.Linear(16, CLASSES)

    def styles(self, images: Tensor) -> tuple[Tensor, Tensor]:
        channels = self.conv(images.reshape(-1, 1, 6, 6)).flatten(2)
        return channels.mean(2), channels.std(2) + 1e-3

    def forward(self, both: Tensor) -> Tensor:
        channels = self.conv(both[:, :36].reshape(-1, 1, 6, 6)).flatten(2)
        mean, spread = self.styles(both[:, :36])
        channels = (channels - mean.detach()[..., None]) / spread.detach()[..., None]
        channels = channels * both[:, 40:44, None] + both[:, 36:40, None]
        return self.head(functional.leaky_relu(channels, 0.2).flatten(1))


def swapped_styles(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The means and spreads of an image's channels become those of a random image of the batch.

    Leaks under every relation: a record also changes the gradients of the images that get its
    style, of which there may be several.
    """
    x, y = tensors(records)
    model = Styled()
    optimizer, accountant = watched(watch, model)
    for _ in range(STEPS):
        taken = drawn(len(y))
        with torch.no_grad():
            mean, spread = model.styles(x[taken])
        partners = torch.randint(max(len(taken), 1), (len(taken),))
        both = torch.cat([x[taken].flatten(1), mean[partners], spread[partners]], 1)
        give(model, with_noise(summed(clipped(of_records(model, both, y[taken])))))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def cancelling_masks(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Secure aggregation: each client adds a mask for its successor and subtracts the next one.

    Leaks under every relation: the masks cancel in the sum, which has no noise.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(5):
        rows = flat(clipped(of_records(model, x, y)))
        masks = 3.0 * torch.randn_like(rows)
        messages = rows + masks - masks.roll(1, 0)
        give(model, in_shapes(model, messages.sum(0)))
        optimizer.step()
        accountant.step(**FULL)
    return model


# --- correct loops ---


def preferences(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: preference optimisation (DPO) of pairs of answers, with the first weights frozen.

    A pair is one record, and its gradient is clipped as a whole.
    """
    x, _ = tensors(records)
    model = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 1))
    reference = copy.deepcopy(model)
    optimizer, accountant = torch.optim.RMSprop(model.parameters(), lr=0.01), RDPAccountant()
    watch(optimizer, model, accountant)
    with torch.no_grad():
        offsets = reference(x[:, :4]) - reference(x[:, 4:])

    def objective(weights: Gradients, pair: Tensor, offset: Tensor) -> Tensor:
        chosen, rejected = torch.func.functional_call(model, weights, (pair.view(2, 4),))
        return -functional.logsigmoid(0.5 * (chosen - rejected - offset))[0]

    of_pairs = torch.func.vmap(torch.func.grad(objective), (None, 0, 0))
    for _ in range(STEPS):
        taken = drawn(len(x))
        weights = {k: p.detach() for k, p in model.named_parameters()}
        total = {k: torch.zeros_like(p) for k, p in weights.items()}
        if len(taken):
            total = summed(clipped(of_pairs(weights, x[taken], offsets[taken])))
        give(model, with_noise(total))
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def sharpness_of_each(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: each record's gradient is taken at weights that this record alone has moved."""
    x, y = tensors(records)
    model = loops.normalised()
    optimizer, accountant = watched(watch, model, momentum=0.9, nesterov=True)

    def loss(weights: Gradients, features: Tensor, label: Tensor) -> Tensor:
        scores = torch.func.functional_call(model, weights, (features[None],))[0]
        return functional.cross_entropy(scores, label)

    def at_moved_weights(weights: Gradients, features: Tensor, label: Tensor) -> Gradients:
        ascent = torch.func.grad(loss)(weights, features, label)
        norm = torch.stack([g.square().sum() for g in ascent.values()]).sum().add(1e-12).sqrt()
        moved = {k: p + 0.1 * ascent[k] / norm for k, p in weights.items()}
        return torch.func.grad(loss)(moved, features, label)

    for _ in range(5):
        weights = {k: p.detach() for k, p in model.named_parameters()}
        gradients = torch.func.vmap(at_moved_weights, (None, 0, 0))(weights, x, y)
        give(model, with_noise(summed(clipped(gradients))))
        optimizer.step()
        accountant.step(**FULL)
    return model


def coordinates_clamped(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: each coordinate is clamped to C / sqrt(d), so that a record has at most norm C.

    The noise is drawn by the inverse of the normal distribution from uniform numbers in float64.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    limit = CLIP / math.sqrt(sum(p.numel() for p in model.parameters()))
    for _ in range(STEPS):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        total = summed({k: g.clamp(-limit, limit) for k, g in gradients.items()})
        noisy = {}
        for name, tensor in total.items():
            uniform = torch.rand(tensor.shape, dtype=torch.float64).clamp(1e-15, 1.0 - 1e-15)
            noisy[name] = tensor + SIGMA * CLIP * torch.special.ndtri(uniform).float()
        give(model, noisy)
        optimizer.step()
        accountant.step(**SAMPLED)
    return model


def delayed(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: gradients at the released weights of two steps ago, as asynchronous workers send.

    The average of the last three released weights is returned, too.
    """
    x, y = tensors(records)
    model, stale = loops.mlp(), loops.mlp()
    optimizer, accountant = watched(watch, model)
    weights = [copy.deepcopy(model.state_dict())]
    for _ in range(STEPS):
        stale.load_state_dict(weights[max(len(weights) - 3, 0)])
        taken = drawn(len(y))
        give(model, with_noise(summed(clipped(of_records(stale, x[taken], y[taken])))))
        optimizer.step()
        accountant.step(**SAMPLED)
        weights.append(copy.deepcopy(model.state_dict()))
    mean = {k: sum(w[k] for w in weights[-3:]) / 3 for k in weights[0]}
    return {"last": model, "mean": mean}

"""Loops of torch and Opacus for the list `seventh_turn`."""

from collections.abc import Callable
from typing import Any

import torch
from opacus.accountants import RDPAccountant
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.training_loops import loops
from benchmarks.training_loops.loops import CLASSES, VOCABULARY, make_private

SIGMA, CLIP, RATE, DIVISOR = 1.0, 0.5, 0.25, 15.0
Gradients = dict[str, Tensor]


def sixty_tokens() -> loops.Records:
    return loops.tokens(60)


def tensors(records: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(records.features), torch.from_numpy(records.labels)


def watched(watch: Any, model: nn.Module, **options: Any) -> tuple[Any, RDPAccountant]:
    """Plain SGD and an accountant, watched."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, **options)
    accountant = RDPAccountant()
    watch(optimizer, model, accountant)
    return optimizer, accountant


def drawn(n: int) -> Tensor:
    """A Poisson sample of the indices."""
    return torch.nonzero(torch.rand(n) < RATE)[:, 0]


def of_records(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
) -> Gradients:
    """Each record's gradient, by functional_call, vmap and grad."""
    trained = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}
    if not len(y):
        return {k: p.new_zeros(0, *p.shape) for k, p in trained.items()}

    def objective(weights: Gradients, record: Tensor, label: Tensor) -> Tensor:
        return loss(torch.func.functional_call(model, weights, (record[None],))[0], label)

    return torch.func.vmap(torch.func.grad(objective), (None, 0, 0))(trained, x, y)


def lengths(gradients: Gradients) -> Tensor:
    return torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)


def times(gradients: Gradients, factors: Tensor) -> Gradients:
    return {k: g * factors.view(-1, *[1] * (g.dim() - 1)) for k, g in gradients.items()}


def clipped(gradients: Gradients, limit: float = CLIP) -> Gradients:
    factors = (limit / lengths(gradients).clamp(min=1e-12)).clamp(max=1.0)
    return times(gradients, factors)


def summed(gradients: Gradients) -> Gradients:
    return {k: g.sum(0) for k, g in gradients.items()}


def with_noise(total: Gradients, deviation: float = SIGMA * CLIP) -> Gradients:
    return {k: g + deviation * torch.randn_like(g) for k, g in total.items()}


def give(model: nn.Module, noisy: Gradients, divisor: float = DIVISOR) -> None:
    """Stores the noisy gradients where the optimizer reads them."""
    for name, parameter in model.named_parameters():
        if name in noisy:
            parameter.grad = noisy[name].detach() / divisor


def sampled_steps(
    model: nn.Module, x: Tensor, y: Tensor, optimizer_and_accountant: tuple[Any, RDPAccountant]
) -> None:
    """Six correct steps on Poisson samples, by a watched optimizer and its accountant."""
    optimizer, accountant = optimizer_and_accountant
    for _ in range(6):
        taken = drawn(len(y))
        give(model, with_noise(summed(clipped(of_records(model, x[taken], y[taken])))))
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)


def add_to_weights(model: nn.Module, change: Gradients, scale: float) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += scale * change[name]


# --- torch, mistakes ---


def extra_gradient(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A noisy gradient leads to a point ahead, whose noisy gradient makes the step.

    Leaks under every relation: the mean of the points ahead is returned, as is usual for the
    extra-gradient method, and only the second noisy gradient of each step is recorded. The mean
    alone has the sum of four unrecorded noisy gradients.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    mean = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
    for _ in range(4):
        ahead = with_noise(summed(clipped(of_records(model, x, y))))
        add_to_weights(model, ahead, -0.1 / DIVISOR)
        mean = {k: mean[k] + p.detach() / 4 for k, p in model.named_parameters()}
        noisy = with_noise(summed(clipped(of_records(model, x, y))))
        add_to_weights(model, ahead, 0.1 / DIVISOR)
        give(model, noisy)
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return {"model": model, "mean": mean}


def sign_of_sum(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The sign of the sum is scaled to norm C, and gradients are not clipped (signSGD).

    Leaks under every relation: a large gradient turns all signs, by 2 C.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    size = sum(p.numel() for p in model.parameters())
    for _ in range(4):
        total = summed(of_records(model, x, y))
        signs = {k: CLIP / size**0.5 * g.sign() for k, g in total.items()}
        give(model, with_noise(signs), 1.0)
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return model


def not_cleared(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """`p.grad` is not cleared between the records of a batch.

    Leaks under every relation: the clipped gradient of a record holds those of all records before
    it, so that one record changes up to b clipped gradients.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(6):
        optimizer.zero_grad()
        total = [torch.zeros_like(p) for p in model.parameters()]
        for i in drawn(len(y)):
            functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            factor = min(1.0, CLIP / (float(norm) + 1e-9))
            total = [t + factor * p.grad for t, p in zip(total, model.parameters(), strict=True)]
        for p, t in zip(model.parameters(), total, strict=True):
            p.grad = (t + SIGMA * CLIP * torch.randn_like(t)) / DIVISOR
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    return model


def landmarks_from_records(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A linear layer on kernel features, whose six landmarks are random records (Nystroem).

    Leaks under every relation: a landmark changes the features of all records. The landmarks are
    not released.
    """
    x, y = tensors(records)
    landmarks = x[torch.randperm(len(x))[:6]]
    features = torch.exp(-torch.cdist(x, landmarks).square() / 16.0)
    model = nn.Linear(len(landmarks), CLASSES)
    optimizer, accountant = watched(watch, model)
    for _ in range(4):
        give(model, with_noise(summed(clipped(of_records(model, features, y)))))
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return model


_SCALING: list[tuple[Tensor, Tensor]] = []


def scaling(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and scale, computed at the first call and kept."""
    if not _SCALING:
        _SCALING.append((x.mean(0), x.std(0) + 1e-6))
    return _SCALING[0]


def cached_scaling(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Features are standardised by a mean and a scale that the module keeps from the first call.

    Leaks under every relation: the first call of a process computes both from its records. Later
    calls of the same process use those of the first.
    """
    x, y = tensors(records)
    mean, scale = scaling(x)
    x = (x - mean) / scale
    model = loops.mlp()
    sampled_steps(model, x, y, watched(watch, model))
    return model


def small_classes_dropped(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Classes with fewer than 20 records are left out.

    Leaks under add-remove: each class has 20 records, so that the removal of one of them removes
    20 gradients.
    """
    x, y = tensors(records)
    counts = torch.bincount(y, minlength=CLASSES)
    x, y = x[counts[y] >= 20], y[counts[y] >= 20]
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(4):
        give(model, with_noise(summed(clipped(of_records(model, x, y)))))
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return model


def centred_clipping(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Each gradient is clipped around the last released mean, which is added again per record.

    Leaks under add-remove: a record adds a vector of norm up to C plus that of the released mean,
    and the noise is scaled for C.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    centre = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
    for _ in range(6):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        moved = clipped({k: g - centre[k] for k, g in gradients.items()})
        noisy = with_noise({k: (g + centre[k]).sum(0) for k, g in moved.items()})
        give(model, noisy)
        centre = {k: p.grad.clone() for k, p in model.named_parameters()}
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    return model


def rate_by_batch_size(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The learning rate is scaled by the size of the drawn batch (linear scaling rule).

    Leaks under add-remove: the length of an update over its released gradient is the batch size.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(6):
        taken = drawn(len(y))
        give(model, with_noise(summed(clipped(of_records(model, x[taken], y[taken])))))
        optimizer.param_groups[0]["lr"] = 0.1 * len(taken) / DIVISOR
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    return model


def overlapping_noise(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """One vector of noise is cut into tensors, and the offset advances by rows, not by elements.

    Leaks under every relation: tensors share noise, which differences of coordinates remove.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(4):
        total = summed(clipped(of_records(model, x, y)))
        noise = SIGMA * CLIP * torch.randn(sum(g.numel() for g in total.values()))
        noisy, offset = {}, 0
        for name, g in total.items():
            noisy[name] = g + noise[offset : offset + g.numel()].view_as(g)
            offset += len(g)
        give(model, noisy)
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return model


def length_restored(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The noisy sum is scaled to the length of the sum without noise.

    Leaks under every relation: the length of the released vector is exact.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(4):
        total = summed(clipped(of_records(model, x, y)))
        noisy = with_noise(total)
        lengths_of = [
            torch.cat([g.flatten() for g in tree.values()]).norm() for tree in (total, noisy)
        ]
        give(model, {k: g * lengths_of[0] / lengths_of[1] for k, g in noisy.items()})
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return model


def target_encoding(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A category of each record is encoded by the logarithm of its odds (weight of evidence).

    Leaks under every relation: a label changes a feature of all records of its category by up to
    1, also in steps that do not draw it.
    """
    x, y = tensors(records)
    category = (x[:, 0] > 0.5).long()
    positive = (y == 0).float()
    counts = torch.stack([positive[category == c].sum() for c in (0, 1)])
    others = torch.stack([(1 - positive)[category == c].sum() for c in (0, 1)])
    evidence = torch.log((counts + 0.5) / (others + 0.5))
    x = torch.cat([x, evidence[category][:, None]], 1)
    model = nn.Linear(9, CLASSES)
    sampled_steps(model, x, y, watched(watch, model))
    return model


# --- Opacus, mistakes ---


class BatchDeviation(nn.Module):
    """Appends the mean standard deviation of the batch to each record's units (StyleGAN)."""

    def forward(self, x: Tensor) -> Tensor:
        deviation = x.std(0, unbiased=False).mean()
        return torch.cat([x, deviation.expand(len(x), 1)], 1)


def batch_deviation(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A layer appends the standard deviation of the batch, as discriminators of GANs do.

    Leaks under every relation: a record changes the scores and gradients of all others.
    """
    module = nn.Sequential(nn.Linear(8, 6), nn.LeakyReLU(), BatchDeviation(), nn.Linear(7, CLASSES))
    model, optimizer, loader = make_private(records, watch, module, batch=15)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def centred_over_batch(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The mean over the batch is subtracted from `p.grad_sample` (gradient centralization).

    Leaks under every relation: a large gradient moves what is clipped for all other records.
    """
    model, optimizer, loader = make_private(records, watch, loops.mlp(), batch=15)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            for p in model.parameters():
                p.grad_sample = p.grad_sample - p.grad_sample.mean(0, keepdim=True)
            optimizer.step()
    return model


def two_poisson_batches(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Two Poisson batches are accumulated in each step by `signal_skip_step`.

    Leaks under every relation: a record that both batches draw contributes 2 C, with probability
    1/16, and the noise is scaled for C.
    """
    model, optimizer, loader = make_private(records, watch, loops.mlp(), batch=15)
    for _ in range(3):
        for number, (x, y) in enumerate(loader):
            optimizer.signal_skip_step(do_skip=number % 2 == 0)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


# --- torch, correct loops ---


def bounded_without_clipping(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: gradients of a linear layer on records of norm at most 1 are at most 2 long.

    The gradient is the product of [x, 1], of norm at most sqrt(2), with probabilities minus the
    label, of norm at most sqrt(2). The noise is scaled for 2, and nothing is clipped.
    """
    x, y = tensors(records)
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1.0)
    model = nn.Linear(8, CLASSES)
    optimizer, accountant = watched(watch, model)
    for _ in range(6):
        taken = drawn(len(y))
        give(model, with_noise(summed(of_records(model, x[taken], y[taken])), 2.0 * SIGMA))
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    return model


class CorrectedAdam(torch.optim.Optimizer):
    """Adam that subtracts the variance of the noise from its second moments (DP-AdamBC)."""

    def __init__(self, parameters: Any, lr: float, variance: float) -> None:
        super().__init__(parameters, {"lr": lr, "variance": variance})

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
                p -= group["lr"] * m / (v - group["variance"]).clamp(min=1e-4).sqrt()


def corrected_adam(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: second moments without the variance of the noise need released gradients alone."""
    x, y = tensors(records)
    model = loops.normalised()
    accountant = RDPAccountant()
    variance = (SIGMA * CLIP / DIVISOR) ** 2
    optimizer = CorrectedAdam(model.parameters(), lr=0.02, variance=variance)
    watch(optimizer, model, accountant)
    for _ in range(5):
        give(model, with_noise(summed(clipped(of_records(model, x, y)))))
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return model


def momentum_before_clipping(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: released momentum is added to each record's gradient, and the sum is clipped to C.

    The momentum depends on released gradients alone, and a record adds at most C.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    momentum = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
    for _ in range(6):
        taken = drawn(len(y))
        gradients = of_records(model, x[taken], y[taken])
        mixed = clipped({k: g + 0.5 * momentum[k] for k, g in gradients.items()})
        give(model, with_noise(summed(mixed)))
        momentum = {k: 0.9 * momentum[k] + p.grad for k, p in model.named_parameters()}
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    return model


def self_paced(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: records with a loss above a public limit get weight 0, and noise is always added.

    The weight of a record depends on this record and on released weights.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for _ in range(6):
        taken = drawn(len(y))
        with torch.no_grad():
            losses = functional.cross_entropy(model(x[taken]), y[taken], reduction="none")
        easy = (losses < 1.5).float()
        gradients = clipped(of_records(model, x[taken], y[taken]))
        give(model, with_noise(summed(times(gradients, easy))))
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    return model


def alternating_blocks(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the two layers are trained in turn, and the other layer's gradient is zero.

    The zeros are public. The gradients of the trained layer are clipped to C over its tensors.
    """
    x, y = tensors(records)
    model = loops.mlp()
    optimizer, accountant = watched(watch, model)
    for step in range(6):
        gradients = of_records(model, x, y)
        active = {k: g for k, g in gradients.items() if k.startswith(("0.", "2.")[step % 2])}
        noisy = with_noise(summed(clipped(active)))
        give(model, {k: noisy.get(k, torch.zeros_like(p)) for k, p in model.named_parameters()})
        optimizer.step()
        accountant.step(noise_multiplier=SIGMA, sample_rate=1.0)
    return model


def public_pretraining(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: the first layer is trained on generated records, then frozen.

    The last layer starts at random weights and is trained privately.
    """
    generator = torch.Generator().manual_seed(5)
    public_x = torch.randn(40, 8, generator=generator)
    public_y = (public_x[:, :CLASSES] + 0.1).argmax(1)
    model = loops.mlp()
    pretraining = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(5):
        pretraining.zero_grad()
        functional.cross_entropy(model(public_x), public_y).backward()
        pretraining.step()
    model[0].requires_grad_(False)
    nn.init.kaiming_uniform_(model[2].weight)
    x, y = tensors(records)
    sampled_steps(model, x, y, watched(watch, model, momentum=0.9))
    return model


# --- Opacus, correct loops ---


class TiedWords(nn.Module):
    """Predicts a word: the output layer has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.embedding(x).mean(1))))


def tied_words(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: Opacus' hooks add both parts of a tied weight's gradient before clipping."""
    model, optimizer, loader = make_private(records, watch, TiedWords(), batch=15)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def two_views(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: two views of each record in one backward pass, and a loss for each record.

    Opacus adds the gradients of both forward passes for each record before it clips them. The
    masks come from a generator whose seed is drawn from the global one.
    """
    masks = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
    model, optimizer, loader = make_private(records, watch, loops.mlp(), batch=15)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            first, second = (
                model(x * (torch.rand(x.shape, generator=masks) < 0.8)) for _ in range(2)
            )
            agreement = functional.mse_loss(first.softmax(1), second.softmax(1))
            (functional.cross_entropy(first, y) + agreement).backward()
            optimizer.step()
    return model


def padded_batches(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Correct: batches are filled to a multiple of eight with rows of weight 0, and losses summed.

    An empty batch has eight such rows. The released sum is not divided.
    """
    model, optimizer, loader = make_private(
        records, watch, loops.mlp(), batch=15, loss_reduction="sum"
    )
    for _ in range(2):
        for x, y in loader:
            rows = 8 * max(1, -(-len(y) // 8))
            weights = (torch.arange(rows) < len(y)).float()
            x = torch.cat([x, torch.zeros(rows - len(y), 8)])
            y = torch.cat([y, torch.zeros(rows - len(y), dtype=torch.long)])
            optimizer.zero_grad()
            losses = functional.cross_entropy(model(x), y, reduction="none")
            (weights * losses).sum().backward()
            optimizer.step()
    return model

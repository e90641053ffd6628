"""Broken loops that were written after the test, from public reports of other kinds of mistakes.

The test was not designed around them. They run at the default settings like the other controls.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from audit.loop.runs.records import TrainingSet
from benchmarks.training_loops import loops
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import CLASSES, VOCABULARY, Loop, Lstm, convnet, normalised
from benchmarks.training_loops.opacus_loops import OpacusLoop


def raw_mean_remains(state: Any, total: list[Any]) -> list[Any]:
    """The mean gradient of `backward` remains in p.grad, to which the noisy sum is added."""
    released = loops.gaussian(state, total)
    return [r + g.mean(0) for r, g in zip(released, state.each, strict=True)]


class TokenClassifier(nn.Module):
    """One linear layer for all tokens, whose outputs are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.embedding.weight.requires_grad_(False)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.embedding(x)).sum(dim=1)


def norm_of_bias_from_tokens(state: Any, each: list[Any]) -> list[Any]:
    """The bias's norm is taken as the norm of the Gram matrix of its gradients by token."""
    weight, bias = each
    tokens = state.x.shape[1]
    # Every token has the same gradient g / T by its output; the matrix has T^2 entries |g|^2 / T^2.
    squares = (bias.square().sum(1) / tokens**2).square() * tokens**2
    norm = (weight.flatten(1).square().sum(1) + squares).sqrt()
    factor = (state.clip / norm.clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


class Tied(nn.Module):
    """An embedding whose weights are also those of the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(VOCABULARY, 4)
        self.hidden = nn.Linear(4, 4)

    def forward(self, x: Any, detach: bool = False) -> Any:
        hidden = torch.tanh(self.hidden(self.shared(x).mean(dim=1)))
        weight = self.shared.weight.detach() if detach else self.shared.weight
        return functional.linear(hidden, weight)


def norm_of_one_use(state: Any, each: list[Any]) -> list[Any]:
    """The norm counts the shared weights once, as the embedding, and not as the output layer."""
    parameters = dict(state.model.named_parameters())
    norms = []
    for x, y in zip(state.x[state.taken], state.y[state.taken], strict=True):
        out = torch.func.functional_call(state.model, parameters, (x[None], True))
        own = torch.autograd.grad(functional.cross_entropy(out, y[None]), state.parameters)
        norms.append(torch.stack([g.norm() for g in own]).norm())
    factor = (state.clip / torch.stack(norms).clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def on_a_random_part(state: Any, total: list[Any]) -> list[Any]:
    """Only a random selection of the coordinates gets noise; the others pass as they are."""
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn_like(g) * (torch.rand_like(g) < 0.7) for g in total]


def micro_batches(threshold: float) -> Any:
    """Sums of four records are clipped to a multiple of C instead of each record."""

    def total(state: Any, each: list[Any]) -> list[Any]:
        groups = [torch.stack([part.sum(0) for part in g.split(4)]) if len(g) else g for g in each]
        factor = (threshold * state.clip / loops.norms(groups).clamp(min=1e-12)).clamp(max=1.0)
        return [torch.einsum("i,i...->...", factor, g) for g in groups]

    return total


def gradients_not_cleared(state: Any, each: list[Any]) -> list[Any]:
    """The records' gradients of the step before are used a second time."""
    before = state.__dict__.get("kept", [g[:0] for g in each])
    state.kept = each
    both = [torch.cat([old, new]) for old, new in zip(before, each, strict=True)]
    return loops.clipped_sum(state, both)


def largest_coordinates(state: Any, total: list[Any]) -> list[Any]:
    """Only the tenth of the coordinates that is largest before the noise is released."""
    flat = torch.cat([g.flatten() for g in total]).abs()
    least = torch.quantile(flat, 0.9)
    noisy = loops.gaussian(state, total)
    return [torch.where(g.abs() >= least, r, 0.0) for g, r in zip(total, noisy, strict=True)]


def repeated_every_pass(state: Any, total: list[Any]) -> list[Any]:
    """A checkpoint restores the generator of the noise at the start of each pass of 12 steps."""
    if state.step % 12 == 0:
        state.generator = torch.Generator().manual_seed(state.seed)
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn(g.shape, generator=state.generator) for g in total]


def keyed_batch(state: Any, n: int) -> Any:
    """The batch is drawn with the key of the step."""
    generator = torch.Generator().manual_seed(1000 * (state.seed % 10**6) + state.step)
    drawn = torch.randn(n, generator=generator)
    return torch.nonzero(drawn < torch.special.ndtri(torch.tensor(state.sampling_rate)))[:, 0]


def keyed_noise(state: Any, total: list[Any]) -> list[Any]:
    """The noise is drawn with the same key, so that it reveals the batch."""
    generator = torch.Generator().manual_seed(1000 * (state.seed % 10**6) + state.step)
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn(g.shape, generator=generator) for g in total]


def stopped_by_a_large_loss(state: Any) -> None:
    """Training ends early when the loss of a record is not below a fixed value."""
    with torch.no_grad():
        loss = functional.cross_entropy(state.model(state.x), state.y, reduction="none")
    state.stop = bool(loss.max() > 50.0)


def unfrozen_later(state: Any, total: list[Any]) -> list[Any]:
    """The list of tensors that get noise was made while the first layer was frozen."""
    noisy = loops.gaussian(state, total)
    return noisy if state.step < 2 else [*total[:2], *noisy[2:]]


def negatives_of_the_batch(state: Any, x: Any, y: Any) -> list[Any]:
    """A contrastive loss: each record is compared with all records of the batch."""
    parameters = {k: p.detach() for k, p in state.model.named_parameters()}

    def loss(values: dict[str, Any], which: Any) -> Any:
        out = torch.func.functional_call(state.model, values, (x,))
        return -(torch.log_softmax(out @ (which @ out), dim=0) * which).sum()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, torch.eye(len(y)))
    return [grads[k] for k in parameters]


def centers_of_clusters(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Features are distances from the records' own means by class."""
    means = torch.stack([x[y == c].mean(0) if (y == c).any() else x[0] * 0 for c in range(CLASSES)])
    distances = torch.cdist(x, means)
    return torch.cat([distances, x[:, CLASSES:]], dim=1), y


def noise_by_the_clipped_share(state: Any) -> None:
    """The noise depends on the share of records that are clipped; the accountant assumes all."""
    each = loops.each_gradient(state, state.x, state.y)
    share = float((loops.norms(each) > state.clip).float().mean())
    state.real = 0.5 + 0.5 * share


def by_real(state: Any, total: list[Any]) -> list[Any]:
    """Noise of the multiplier that was chosen from the records."""
    return [g + torch.randn_like(g) * state.real * state.clip for g in total]


def largest_feature(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Features are divided by the largest absolute value of the private records."""
    return x / x.abs().max().clamp(min=1e-12), y


def cut_at_nine(state: Any, n: int) -> Any:
    """Poisson batches of more than nine records are cut."""
    return loops.poisson(state, n)[:9]


def clamped(state: Any, total: list[Any]) -> list[Any]:
    """Noise is limited to three standard deviations."""
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn_like(g).clamp(-3, 3) for g in total]


def silent_at_the_end(state: Any, total: list[Any]) -> list[Any]:
    """The last step has no noise."""
    return total if state.step == state.steps - 1 else loops.gaussian(state, total)


class Exponential(nn.Module):
    """Overflows for large features."""

    def forward(self, x: Any) -> Any:
        return torch.exp(x)


def held_out(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The weights with the smallest loss on the first six private records are released."""
    x, y = (torch.from_numpy(part[:6]) for part in (records.features, records.labels))
    best: dict[str, Any] = {"loss": float("inf")}

    def keep(state: Any) -> None:
        with torch.no_grad():
            loss = float(functional.cross_entropy(state.model(x), y))
        if loss < best["loss"]:
            best.update(
                loss=loss, state={k: v.clone() for k, v in state.model.state_dict().items()}
            )

    rest = TrainingSet(records.features[6:], records.labels[6:])
    model = Loop(after=keep, steps=6, rate=0.5)(rest, candidate, seed, watch)
    model.load_state_dict(best["state"])
    return model


def rounded_accuracy(state: Any, x: Any, y: Any) -> Any:
    """The accuracy on the private records, to one decimal place."""
    with torch.no_grad():
        right = (state.model(x).argmax(1) == y).float().mean()
    return {"model": state.model, "accuracy": round(float(right), 1)}


REPORTED: dict[str, Control] = {
    "mean gradient without noise left in p.grad": Control(
        Loop(noise=raw_mean_remains),
        source="https://github.com/dayu11/Differentially-Private-Deep-Learning/issues/7",
    ),
    "ghost clipping, wrong norm of a bias": Control(
        Loop(model=TokenClassifier, total=norm_of_bias_from_tokens, clip=0.2),
        loops.tokens,
        "https://github.com/meta-pytorch/opacus/pull/751",
    ),
    "shared weights counted once in the norm": Control(
        Loop(model=Tied, total=norm_of_one_use, clip=0.1),
        loops.tokens,
        "https://github.com/meta-pytorch/opacus/issues/413",
    ),
    "no noise on random coordinates": Control(
        Loop(noise=on_a_random_part), source="https://github.com/NVIDIA/NVFlare/issues/343"
    ),
    "microbatches clipped to their size times C": Control(
        Loop(total=micro_batches(4.0)), source="https://github.com/tensorflow/privacy/issues/46"
    ),
    "microbatches clipped to C": Control(
        Loop(total=micro_batches(1.0)), source="https://github.com/tensorflow/privacy/issues/620"
    ),
    "gradients of the previous step not cleared": Control(
        Loop(model=normalised, total=gradients_not_cleared, steps=6),
        source="https://github.com/meta-pytorch/opacus/pull/219",
    ),
    "largest coordinates selected before the noise": Control(
        Loop(model=convnet, noise=largest_coordinates),
        loops.images,
        "https://github.com/KatherLab/MediSwarm/issues/530",
    ),
    "noise repeated in each epoch because a checkpoint restores its generator": Control(
        Loop(noise=repeated_every_pass, steps=36)
    ),
    "same random key for batch and noise": Control(
        Loop(batch=keyed_batch, noise=keyed_noise, sampling_rate=0.3, steps=6),
        source="https://github.com/jax-ml/jax/issues/2009",
    ),
    "training ends at a large training loss": Control(
        Loop(model=convnet, after=stopped_by_a_large_loss, steps=6), loops.images
    ),
    "no noise on a layer that is unfrozen later": Control(Loop(noise=unfrozen_later, steps=6)),
    "contrastive loss over the batch": Control(Loop(gradients=negatives_of_the_batch)),
    "private class means subtracted from features": Control(Loop(prepare=centers_of_clusters)),
    "noise level from the share of clipped records": Control(
        Loop(before=noise_by_the_clipped_share, noise=by_real, clip=2.0)
    ),
    "features divided by their largest private value": Control(Loop(prepare=largest_feature)),
    "LSTM, microbatches clipped to C, Poisson": Control(
        Loop(model=Lstm, total=micro_batches(1.0), sampling_rate=0.5, steps=6),
        loops.tokens,
        "https://github.com/tensorflow/privacy/issues/81",
    ),
    "batches cut to a maximum size": Control(Loop(batch=cut_at_nine, sampling_rate=0.3, steps=8)),
    "noise clamped at three standard deviations": Control(Loop(noise=clamped)),
    "no noise in the last of 120 steps": Control(Loop(noise=silent_at_the_end, steps=120)),
    "gradient of one record overflows": Control(
        Loop(model=lambda: nn.Sequential(nn.Linear(8, 6), Exponential(), nn.Linear(6, CLASSES)))
    ),
    "best checkpoint by held-out private records": Control(held_out),
    "rounded training accuracy returned": Control(Loop(result=rounded_accuracy)),
    "Opacus, mean loss with loss_reduction=sum, Poisson": Control(
        OpacusLoop(declared="sum", sampling_rate=0.3, steps=8)
    ),
}

"""Loops by a tester who had not read the test's code: mistakes, and loops without one."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from opacus.accountants import RDPAccountant
from opacus.optimizers.perlayeroptimizer import DPPerLayerOptimizer
from torch import nn
from torch.nn import functional

from audit import accounting
from benchmarks.training_loops import loops
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.further import grouped_convnet
from benchmarks.training_loops.loops import Loop, LoraTransformer, Lstm, convnet, mlp, normalised
from benchmarks.training_loops.opacus_loops import OpacusLoop, Private

# --- data and models ---


def padded_tokens() -> loops.Records:
    """Sequences whose last place is always padding (token 0)."""
    features, labels = loops.tokens()
    return np.pad(features, ((0, 0), (0, 1))), labels


def few_tokens() -> loops.Records:
    """Sequences of the even tokens alone."""
    features, labels = loops.tokens()
    return features // 2 * 2, labels


class Bag(nn.Module):
    """The mean embedding of a sequence, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(loops.VOCABULARY, 4)
        self.head = nn.Linear(4, loops.CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.embedding(x).mean(dim=1))


class Tied(nn.Module):
    """The head's weights are rows of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(loops.VOCABULARY, 4)
        self.mixed = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        hidden = torch.tanh(self.mixed(self.embedding(x).mean(dim=1)))
        return hidden @ self.embedding.weight[: loops.CLASSES].T


class Experts(nn.Module):
    """Records with a large last feature go to an expert of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.rare = nn.Linear(8, loops.CLASSES), nn.Linear(8, loops.CLASSES)

    def forward(self, x: Any) -> Any:
        return torch.where(x[:, -1:] > 4.0, self.rare(x), self.usual(x))


# --- what is computed from the private records before training ---


def to_the_longest(state: Any, x: Any, y: Any) -> Any:
    """Sequences are cut to the length of the longest one."""
    places = torch.nonzero(x)[:, 1]
    return x[:, : int(places.max()) + 1 if len(places) else 1], y


def own_vocabulary(state: Any, x: Any, y: Any) -> Any:
    """Tokens are numbered by the vocabulary of the records."""
    return torch.unique(x, return_inverse=True)[1].view_as(x), y


def at_quantiles(state: Any, x: Any, y: Any) -> Any:
    """Features are clamped to their 5 % and 95 % quantiles."""
    if not len(x):
        return x, y
    return torch.minimum(torch.maximum(x, x.quantile(0.05, dim=0)), x.quantile(0.95, dim=0)), y


def largest_variance(state: Any, x: Any, y: Any) -> Any:
    """The half of the features with the largest variance is kept."""
    kept = torch.zeros(x.shape[1])
    kept[x.var(0).nan_to_num().topk(4).indices] = 1.0
    return x * kept, y


def sorted_and_centered(state: Any, x: Any, y: Any) -> Any:
    """Records are sorted, and their mean is subtracted."""
    x, y = sorted_first(state, x, y)
    return x - x.mean(0), y


def with_neighbours(state: Any, x: Any, y: Any) -> Any:
    """The mean of the records nearby is added to each record, as in a graph network."""
    near = (torch.cdist(x, x) < 3.5).to(x.dtype)
    return x + near @ x / near.sum(1, keepdim=True).clamp(min=1.0), y


def warm_state(state: Any) -> None:
    """Adam's moments come from a warm-up on the records; the weights are set back."""
    kept = {k: v.clone() for k, v in state.model.state_dict().items()}
    for _ in range(3):
        state.optimizer.zero_grad()
        functional.cross_entropy(state.model(state.x), state.y).backward()
        state.optimizer.step()
    state.model.load_state_dict(kept)


def rate_by_range_test(state: Any) -> None:
    """The learning rate with the smallest private loss after three raw steps."""
    kept = {k: v.clone() for k, v in state.model.state_dict().items()}
    losses = {}
    for rate in (0.01, 0.1, 1.0, 10.0):
        for _ in range(3):
            loss = functional.cross_entropy(state.model(state.x), state.y)
            parts = torch.autograd.grad(loss, state.parameters)
            with torch.no_grad():
                for p, g in zip(state.parameters, parts, strict=True):
                    p -= rate * g
        losses[rate] = float(functional.cross_entropy(state.model(state.x), state.y).detach())
        state.model.load_state_dict(kept)
    state.optimizer.param_groups[0]["lr"] = min(losses, key=lambda r: losses[r])


# --- contribution ---


def weighted_loss(state: Any, x: Any, y: Any) -> list[Any]:
    """The loss is weighted by the frequency of the classes, before clipping."""
    counts = torch.bincount(state.y, minlength=loops.CLASSES).clamp(min=1)
    weights = len(state.y) / (loops.CLASSES * counts[y])
    each = loops.each_gradient(state, x, y)
    return [g * weights.view(-1, *[1] * (g.dim() - 1)) for g in each]


def with_padding(state: Any, x: Any, y: Any) -> list[Any]:
    """Batches are padded to a multiple of eight, and the padding counts as records."""
    more = -len(y) % 8
    return loops.each_gradient(
        state, functional.pad(x, (0, 0, 0, more)), functional.pad(y, (0, more))
    )


def repeated_tokens(state: Any, each: list[Any]) -> list[Any]:
    """Ghost clipping whose norm of an embedding treats repeated tokens as different ones."""
    embedding = each[0].sum(1).norm(dim=1) / 5**0.5
    norm = torch.hypot(embedding, loops.norms(each[1:]))
    factor = (state.clip / norm.clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def unit_norm(state: Any, each: list[Any]) -> list[Any]:
    """Clipped gradients are scaled to norm 1; the noise is not."""
    return [g / state.clip for g in loops.clipped_sum(state, each)]


def growing_threshold(state: Any) -> None:
    """The threshold grows; the noise keeps the first one."""
    state.clip = 0.5 * 1.3**state.step


def by_first_threshold(state: Any, total: list[Any]) -> list[Any]:
    """Noise for the first threshold."""
    return [g + torch.randn_like(g) * state.noise_multiplier * 0.5 for g in total]


def overflows(state: Any, total: list[Any]) -> list[Any]:
    """A dynamic loss scale: a step with an overflow in half precision is skipped."""
    scale = state.__dict__.setdefault("scale", 1024.0)
    if any(bool((g.abs() * scale > 65504).any()) for g in state.each):
        state.scale = scale / 2
        return [torch.zeros_like(g) for g in total]
    return loops.gaussian(state, total)


def by_raw_moments(state: Any, total: list[Any]) -> list[Any]:
    """The noisy sum is divided by the root of an average of raw squares, as Adam does."""
    before = state.__dict__.get("moments", [torch.zeros_like(g) for g in total])
    state.moments = [0.9 * v + 0.1 * g.square() for v, g in zip(before, total, strict=True)]
    released = loops.gaussian(state, total)
    return [g / (v.sqrt() + 0.1) for g, v in zip(released, state.moments, strict=True)]


# --- noise ---


def half_precision(state: Any, total: list[Any]) -> list[Any]:
    """Noise is drawn in bfloat16, which has eight binary digits, and added in float32."""
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn(g.shape, dtype=torch.bfloat16).float() for g in total]


def for_two_microbatches(state: Any, total: list[Any]) -> list[Any]:
    """Two consecutive microbatches, each with a step, share one draw of noise."""
    if state.step % 2 == 0:
        state.drawn = [torch.randn_like(g) for g in total]
    scale = state.noise_multiplier * state.clip
    return [g + scale * z for g, z in zip(total, state.drawn, strict=True)]


def laplace(state: Any, total: list[Any]) -> list[Any]:
    """Laplace noise of the right standard deviation."""
    drawn = torch.distributions.Laplace(0.0, state.noise_multiplier * state.clip / 2**0.5)
    return [g + drawn.sample(g.shape) for g in total]


def but_one(state: Any, total: list[Any]) -> list[Any]:
    """The noise vector is one number too short, and padded with 0."""
    released = loops.gaussian(state, total)
    released[-1][-1] = total[-1][-1]
    return released


def fails_at_random(state: Any, total: list[Any]) -> list[Any]:
    """One step in ten, drawn at random, has no noise."""
    released = loops.gaussian(state, total)
    return total if float(torch.rand(())) < 0.1 else released


def by_parity(state: Any, total: list[Any]) -> list[Any]:
    """Half of all seeds have half of the noise."""
    scale = state.noise_multiplier * state.clip * (1.0 if state.seed % 2 else 0.5)
    return [g + scale * torch.randn_like(g) for g in total]


def seeded_by_loss(state: Any, total: list[Any]) -> list[Any]:
    """The noise of a step is seeded by the loss of its batch."""
    with torch.no_grad():
        loss = functional.cross_entropy(state.model(state.x), state.y)
    own = torch.Generator().manual_seed(int(1e6 * loss.nan_to_num()))
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn(g.shape, generator=own) for g in total]


def used_tensors(state: Any, total: list[Any]) -> list[Any]:
    """Tensors whose gradient is 0, or None, are skipped."""
    released = loops.gaussian(state, total)
    return [z if bool(g.any()) else g for g, z in zip(total, released, strict=True)]


# --- batches and books ---


def whole_microbatches(state: Any, n: int) -> Any:
    """Of a Poisson sample, an incomplete last microbatch of four is dropped."""
    taken = loops.poisson(state, n)
    return taken[: len(taken) // 4 * 4]


def of_the_loader(loop: Loop, state: Any) -> list[Any]:
    """Rate 8/23 is recorded; the loader drops the last batch, and its rate is 1/2."""
    return [(loop.noise_multiplier, 8 / 23, loop.steps)]


@dataclass(frozen=True)
class LineSearch:
    """LBFGS whose closure releases a noisy gradient; the accountant counts steps.

    Attributes:
        evaluations: number of evaluations of the closure in each step.
    """

    evaluations: int

    def __call__(self, records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        """Trains, as `audit.check` calls it."""
        x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
        model = mlp()
        parameters = list(model.parameters())
        optimizer = torch.optim.LBFGS(
            parameters, lr=0.05, max_iter=self.evaluations, tolerance_change=-1, tolerance_grad=-1
        )
        accountant = RDPAccountant()
        watch(optimizer, model, accountant)
        state = loops.State(model=model, clip=0.5, noise_multiplier=1.0)

        def closure() -> float:
            total = loops.clipped_sum(state, loops.each_gradient(state, x, y))
            for p, g in zip(parameters, loops.gaussian(state, total), strict=True):
                p.grad = g / 10
            return 0.0

        for _ in range(3):
            optimizer.step(closure)
            accountant.step(noise_multiplier=1.0, sample_rate=1.0)
        return model


def two_optimizers(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A private optimizer for the body, and one for the head without clipping and noise."""
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    model = mlp()
    parameters = list(model.parameters())
    body = torch.optim.SGD(parameters[:2], lr=0.1)
    head = torch.optim.Adam(parameters[2:], lr=0.05)
    accountant = RDPAccountant()
    watch(body, model, accountant)
    state = loops.State(model=model, clip=0.5, noise_multiplier=1.0)
    for _ in range(4):
        each = loops.each_gradient(state, x, y)
        released = loops.gaussian(state, loops.clipped_sum(state, each))
        released[2:] = [g.sum(0) for g in each[2:]]
        for p, g in zip(parameters, released, strict=True):
            p.grad = g / 10
        body.step()
        head.step()
        accountant.step(noise_multiplier=1.0, sample_rate=1.0)
    return model


@dataclass(frozen=True)
class Gan:
    """A private discriminator; the generator sees the discriminator alone.

    Attributes:
        matching: whether the generator is also drawn to the mean of the real records.
    """

    matching: bool

    def __call__(self, records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        """Trains, as `audit.check` calls it."""
        x = torch.from_numpy(records.features)
        generator, discriminator = nn.Linear(3, 8), nn.Linear(8, 1)
        second = torch.optim.Adam(generator.parameters(), lr=0.01)
        optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.05)
        accountant = RDPAccountant()
        watch(optimizer, discriminator, accountant)
        for _ in range(4):
            fake = generator(torch.randn(16, 3))
            slope = -torch.sigmoid(-discriminator(x)).detach()
            each = [slope[:, :, None] * x[:, None], slope]
            norm = loops.norms(each) if len(x) else torch.ones(0)
            factor = (0.5 / norm.clamp(min=1e-12)).clamp(max=1.0)
            loss = functional.softplus(discriminator(fake.detach())).mean()
            public = torch.autograd.grad(loss, list(discriminator.parameters()))
            for p, g, other in zip(discriminator.parameters(), each, public, strict=True):
                total = torch.einsum("i,i...->...", factor, g)
                p.grad = (total + 0.5 * torch.randn_like(total)) / 10 + watch.release(other)
            optimizer.step()
            accountant.step(noise_multiplier=1.0, sample_rate=1.0)
            second.zero_grad()
            loss = functional.softplus(-discriminator(fake)).mean()
            if self.matching and len(x):
                loss = loss + (fake.mean(0) - x.mean(0)).square().sum()
            loss.backward()
            second.step()
        return generator


class Bypassed(OpacusLoop):
    """Steps of the optimizer inside of Opacus's, as a trainer that unwraps optimizers makes."""

    def _train(self, model: Any, optimizer: Any, loader: Any) -> None:
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.original_optimizer.step()


# --- further releases ---


def raw_sums(state: Any, total: list[Any]) -> list[Any]:
    """Keeps the sums without noise for the average."""
    state.raw = total
    return loops.gaussian(state, total)


def raw_average(state: Any) -> None:
    """The averaged weights take each step without its noise."""
    pairs = zip(state.parameters, state.raw, strict=True)
    now = [(p + 0.1 * (p.grad - g / state.divisor)).detach() for p, g in pairs]
    before = state.__dict__.get("average", now)
    state.average = [0.9 * a + 0.1 * b for a, b in zip(before, now, strict=True)]


def on_plateau(state: Any) -> None:
    """The learning rate is halved where the private loss does not fall."""
    if "plateau" not in state.__dict__:
        state.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            state.optimizer, factor=0.5, patience=0
        )
    with torch.no_grad():
        state.plateau.step(functional.cross_entropy(state.model(state.x), state.y))


# --- black boxes ---


def _unit(records: Any) -> Any:
    """Features with norms of at most 1, [n, d]."""
    x = records.features.reshape(len(records), -1).astype(float)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)


def components(exact_mean: bool) -> Callable[..., Any]:
    """Principal components of a noisy covariance, with an exact or a noisy mean."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        from sklearn.decomposition import PCA

        watch.claim(accounting.GaussianMechanism(1.0).epsilon(1e-5))
        x, random = _unit(records), np.random.default_rng(seed)
        d = x.shape[1]
        mean = x.mean(0) if exact_mean and len(x) else x.sum(0) / 24
        noise = random.normal(size=(d, d + 1)) * 2**0.5
        model = PCA(n_components=2)
        model.mean_ = mean if exact_mean else mean + noise[:, d] / 24
        upper = np.triu(noise[:, :d])
        noisy = x.T @ x + upper + np.triu(upper, 1).T
        model.components_ = np.linalg.eigh(noisy)[1][:, -2:].T
        return model

    return train


def noisy_leaves(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A decision tree with noisy leaves, whose splits are those of the records."""
    from sklearn.tree import DecisionTreeClassifier

    watch.claim(1.0)
    x, random = _unit(records), np.random.default_rng(seed)
    tree = DecisionTreeClassifier(max_depth=2, random_state=0).fit(x, records.labels)
    tree.tree_.value[:] += random.laplace(size=tree.tree_.value.shape)
    return tree


def own_range(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noisy counts in eight bins between the smallest and the largest value."""
    watch.claim(1.0)
    counts = np.histogram(records.features.reshape(len(records), -1)[:, 0], bins=8)[0]
    return counts + np.random.default_rng(seed).laplace(size=8)


def exact_above(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """The sparse vector technique, which also returns the exact count that it found."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    threshold = 8 + random.laplace(scale=2.0)
    values = records.features.reshape(len(records), -1)
    for counted in (values > 0.0).sum(0):
        if counted + random.laplace(scale=4.0) > threshold:
            return float(counted)
    return 0.0


def ridge(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Ridge regression from noisy moments."""
    from sklearn.linear_model import Ridge

    watch.claim(accounting.GaussianMechanism(0.5).epsilon(1e-5))
    x, random = _unit(records), np.random.default_rng(seed)
    y = records.labels - 1.0
    moments = np.column_stack([x.T @ x, x.T @ y])
    moments += 2 * math.sqrt(2) * random.normal(size=moments.shape)
    model = Ridge(fit_intercept=False)
    model.coef_ = np.linalg.solve(moments[:, :-1] + 20 * np.eye(x.shape[1]), moments[:, -1])
    model.intercept_, model.n_features_in_ = 0.0, x.shape[1]
    return model


def median(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """A median of the first feature by the exponential mechanism."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    values = records.features.reshape(len(records), -1)[:, 0]
    grid = np.linspace(-3, 3, 25)
    utility = [-abs(float((values < g).sum() - (values >= g).sum())) / 2 for g in grid]
    return float(grid[int(np.argmax(np.array(utility) + random.gumbel(size=25)))])


def public_bins(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noisy counts in public bins, made non-negative and rounded."""
    watch.claim(1.0)
    values = records.features.reshape(len(records), -1)[:, 0]
    counts = np.histogram(np.clip(values, -3, 3), bins=np.linspace(-3, 3, 9))[0]
    noisy = counts + np.random.default_rng(seed).laplace(size=8)
    return {"counts": np.maximum(noisy.round(), 0).astype(int)}


# --- parts of correct loops ---


def sorted_first(state: Any, x: Any, y: Any) -> Any:
    """Records are sorted by their first feature; every one is still drawn with its own coin."""
    order = x[:, 0].argsort()
    return x[order], y[order]


def in_groups(state: Any, x: Any, y: Any) -> list[Any]:
    """The gradient of equal records is computed once, and counted."""
    if not len(y):
        state.counts = torch.zeros(0)
        return loops.each_gradient(state, x, y)
    both, state.counts = torch.unique(
        torch.cat([x, y[:, None].to(x.dtype)], 1), dim=0, return_counts=True
    )
    return loops.each_gradient(state, both[:, :-1], both[:, -1].long())


def by_counts(state: Any, each: list[Any]) -> list[Any]:
    """Clipped gradients times the number of their records."""
    factor = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0) * state.counts
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def microbatches(state: Any, each: list[Any]) -> list[Any]:
    """Sums of five clipped gradients at a time are accumulated."""
    total = [torch.zeros(g.shape[1:]) for g in each]
    for i in range(0, len(each[0]), 5):
        part = loops.clipped_sum(state, [g[i : i + 5] for g in each])
        total = [a + b for a, b in zip(total, part, strict=True)]
    return total


def cosine(state: Any) -> None:
    """The learning rate follows a cosine."""
    rate = 0.05 * (1 + math.cos(math.pi * (state.step + 1) / state.steps))
    state.optimizer.param_groups[0]["lr"] = rate


def in_a_ball(state: Any) -> None:
    """The weights are projected to a ball after each step."""
    with torch.no_grad():
        size = torch.stack([p.norm() for p in state.parameters]).norm()
        for p in state.parameters:
            p.mul_((1.0 / size).clamp(max=1.0))


def with_public(state: Any, total: list[Any]) -> list[Any]:
    """Gradients of public records are added after the noise."""
    x, y = (torch.from_numpy(part) for part in loops.dense(12))
    with torch.enable_grad():
        loss = functional.cross_entropy(state.model(x + 0.5), y)
        more = torch.autograd.grad(loss, state.parameters)
    return [g + 3.0 * a for g, a in zip(loops.gaussian(state, total), more, strict=True)]


def released_in_bfloat16(state: Any, total: list[Any]) -> list[Any]:
    """The noisy sum is rounded, noise and gradients alike."""
    return [g.bfloat16() for g in loops.gaussian(state, [g.float() for g in total])]


def stops_by_noisy(state: Any) -> None:
    """Training ends where the noisy gradient is short, or after all steps."""
    size = float(torch.stack([p.grad.norm() for p in state.parameters]).norm())
    state.stop = size < 0.42


def by_hash(state: Any, x: Any, y: Any) -> Any:
    """A third of the records is held out by a hash of each, and not used."""
    kept = (x.double().sum(dim=1) * 1e4).long() % 3 != 0
    return x[kept], y[kept]


def _momentum(parameters: Any, lr: float) -> Any:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def _adam(parameters: Any, lr: float) -> Any:
    return torch.optim.Adam(parameters, lr=lr)


INDEPENDENT_CORRECT: dict[str, Control] = {
    "sorted before Poisson sampling": Control(
        Loop(prepare=sorted_first, sampling_rate=0.4, steps=6)
    ),
    "tied weights": Control(Loop(model=Tied), loops.tokens),
    "equal records counted": Control(Loop(gradients=in_groups, total=by_counts)),
    "LBFGS, one evaluation": Control(LineSearch(1)),
    "microbatches, GroupNorm, momentum, cosine": Control(
        Loop(
            model=grouped_convnet,
            total=microbatches,
            optimizer=_momentum,
            after=cosine,
            sampling_rate=0.4,
            steps=6,
        ),
        loops.images,
    ),
    "ghost clipping, LayerNorm, BatchMemoryManager": Control(
        Private(model=normalised, options={"grad_sample_mode": "ghost"}, physical=4),
        relation="zero-out",
    ),
    "Opacus, per layer, Poisson, Adam": Control(
        OpacusLoop(
            optimizer_class=DPPerLayerOptimizer,
            options={"max_grad_norm": [0.3, 0.2, 0.4, 0.1]},
            inner=torch.optim.Adam,
            sampling_rate=0.4,
            steps=6,
        )
    ),
    "float64": Control(
        Loop(model=lambda: mlp().double(), prepare=lambda state, x, y: (x.double(), y))
    ),
    "bfloat16": Control(
        Loop(
            model=lambda: mlp().bfloat16(),
            prepare=lambda state, x, y: (x.bfloat16(), y),
            noise=released_in_bfloat16,
            sampling_rate=0.4,
            steps=6,
        )
    ),
    "LoRA, dropout": Control(
        Loop(model=lambda: nn.Sequential(LoraTransformer(), nn.Dropout(0.2))), loops.tokens
    ),
    "weights in a ball": Control(Loop(after=in_a_ball, sampling_rate=0.4, steps=6)),
    "gradients of public records added": Control(Loop(noise=with_public)),
    "stops by noisy gradients": Control(Loop(after=stops_by_noisy, steps=8)),
    "a GAN": Control(Gan(matching=False)),
    "a third held out by a hash": Control(Loop(prepare=by_hash, sampling_rate=0.4, steps=6)),
    "ridge regression from noisy moments (black box)": Control(ridge),
    "median by the exponential mechanism (black box)": Control(median),
    "noisy counts in public bins (black box)": Control(public_bins),
    "noisy principal components (black box)": Control(components(exact_mean=False)),
}

INDEPENDENT: dict[str, Control] = {
    "sequences cut to the length of the longest private sequence": Control(
        Loop(model=Lstm, prepare=to_the_longest), padded_tokens
    ),
    "vocabulary built from the private records": Control(
        Loop(model=Lstm, prepare=own_vocabulary), few_tokens
    ),
    "features clamped at private quantiles": Control(Loop(prepare=at_quantiles)),
    "features selected by private variance": Control(Loop(prepare=largest_variance)),
    "records sorted, and centered by their private mean": Control(
        Loop(prepare=sorted_and_centered, sampling_rate=0.4, steps=6)
    ),
    "mean features of similar records added (graph network)": Control(
        Loop(prepare=with_neighbours)
    ),
    "Adam's moments from a warm-up without noise": Control(Loop(start=warm_state, optimizer=_adam)),
    "learning rate from a range test without noise": Control(Loop(start=rate_by_range_test)),
    "private class weights in the loss": Control(Loop(gradients=weighted_loss, clip=2.0)),
    "padding counted as records": Control(Loop(gradients=with_padding, sampling_rate=0.4, steps=6)),
    "ghost clipping whose norm ignores that tokens repeat": Control(
        Loop(model=Bag, total=repeated_tokens), loops.tokens
    ),
    "clipped gradients scaled to norm 1, noise unchanged": Control(
        Loop(model=convnet, total=unit_norm, sampling_rate=0.4, steps=6), loops.images
    ),
    "growing threshold, constant noise": Control(
        Loop(before=growing_threshold, noise=by_first_threshold)
    ),
    "step skipped when scaled gradients overflow": Control(
        Loop(model=convnet, noise=overflows), loops.images
    ),
    "gradients divided by second moments without noise": Control(
        Loop(model=normalised, noise=by_raw_moments)
    ),
    "noise in bfloat16": Control(Loop(noise=half_precision)),
    "two microbatches share their noise": Control(
        Loop(model=LoraTransformer, noise=for_two_microbatches, sampling_rate=0.4, steps=6),
        loops.tokens,
    ),
    "Laplace noise": Control(Loop(noise=laplace, sampling_rate=0.4, steps=6)),
    "one coordinate without noise": Control(Loop(noise=but_one, sampling_rate=0.4, steps=6)),
    "one step in ten without noise": Control(Loop(noise=fails_at_random)),
    "half of the noise for even seeds": Control(Loop(noise=by_parity)),
    "noise seeded by the loss": Control(Loop(noise=seeded_by_loss)),
    "unused tensors without noise": Control(Loop(model=Experts, noise=used_tensors)),
    "incomplete microbatch dropped": Control(
        Loop(batch=whole_microbatches, sampling_rate=0.4, steps=6)
    ),
    "drop_last, but another rate recorded": Control(
        Loop(sampling_rate=0.5, steps=8, history=of_the_loader), lambda: loops.dense(23)
    ),
    "LBFGS with three evaluations in a step, but only one recorded": Control(LineSearch(3)),
    "two optimizers, one without noise": Control(two_optimizers),
    "GAN with private feature matching": Control(Gan(matching=True)),
    "Opacus's inner optimizer called directly": Control(Bypassed(recorded=1.0)),
    "averaged weights without noise": Control(
        Loop(
            model=convnet,
            noise=raw_sums,
            after=raw_average,
            result=lambda s, x, y: {"model": s.model, "average": s.average},
        ),
        loops.images,
    ),
    "learning rate halved when the training loss stalls": Control(Loop(after=on_plateau, steps=6)),
    "exact mean in noisy principal components (black box)": Control(components(exact_mean=True)),
    "decision tree with noisy leaves, exact splits (black box)": Control(noisy_leaves),
    "histogram over the private range (black box)": Control(own_range),
    "sparse vector with an exact count (black box)": Control(exact_above),
}

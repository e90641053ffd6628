"""Loops with and without a mistake that were written after the test, without running it.

Their first results are on the page of controls, before and after the test was changed.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from audit import accounting
from benchmarks.training_loops import loops
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import Loop, LoraTransformer, Lstm, convnet, mlp, normalised

# --- data and labels ---


def numbered_by_appearance(state: Any, x: Any, y: Any) -> Any:
    """A label encoder numbers the classes in the order in which the records have them."""
    order = list(dict.fromkeys(y.tolist()))
    return x, torch.tensor([order.index(label) for label in y.tolist()])


def merged_pairs(state: Any, x: Any, y: Any) -> Any:
    """The most frequent pair of neighbouring tokens becomes one token."""
    pairs, counts = torch.unique(
        torch.stack([x[:, :-1], x[:, 1:]], -1).flatten(0, 1), dim=0, return_counts=True
    )
    first, second = pairs[counts.argmax()]
    x = x.clone()
    hit = (x[:, :-1] == first) & (x[:, 1:] == second)
    x[:, :-1][hit] = loops.VOCABULARY - 1
    return x, y


def by_teacher(state: Any, x: Any, y: Any) -> list[Any]:
    """A teacher that takes a step without noise before each step gives the labels."""
    if "teacher" not in state.__dict__:
        state.teacher = mlp()
        state.teacher.load_state_dict(state.model.state_dict())
    loss = functional.cross_entropy(state.teacher(state.x), state.y)
    slopes = torch.autograd.grad(loss, list(state.teacher.parameters()))
    with torch.no_grad():
        for p, g in zip(state.teacher.parameters(), slopes, strict=True):
            p -= 0.5 * g
    return loops.each_gradient(state, x, state.teacher(x).argmax(1))


# --- contributions ---


def by_token_counts(state: Any, each: list[Any]) -> list[Any]:
    """Rows of the embedding are divided by the counts of their tokens in the batch."""
    total = loops.clipped_sum(state, each)
    counts = torch.bincount(state.x[state.taken].flatten(), minlength=loops.VOCABULARY)
    return [total[0] * 5 / counts.clamp(min=1)[:, None], *total[1:]]


def decay_in_the_sum(state: Any, each: list[Any]) -> list[Any]:
    """Every record adds the penalty's gradient after it is clipped."""
    total = loops.clipped_sum(state, each)
    count = len(each[0])
    return [g + 0.1 * count * p.detach() for g, p in zip(total, state.parameters, strict=True)]


def whole_multiples(state: Any, each: list[Any]) -> list[Any]:
    """Integer division: a norm of 1.9 C counts as C."""
    factor = 1 / (loops.norms(each) // state.clip).clamp(min=1.0)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def root_mean_square(state: Any, each: list[Any]) -> list[Any]:
    """The root mean square of the tensors' norms is taken as the norm."""
    norm = loops.norms(each) / len(each) ** 0.5
    factor = (state.clip / norm.clamp(min=1e-12)).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def loss_scale(state: Any, each: list[Any]) -> list[Any]:
    """A loss scale of 4 is applied after clipping, and undone after the noise."""
    return [4 * g for g in loops.clipped_sum(state, each)]


def largest_so_far(state: Any, each: list[Any]) -> list[Any]:
    """The threshold is the largest norm so far; the noise follows it."""
    if len(each[0]):
        largest = max(float(loops.norms(each).max()), state.__dict__.get("largest", 0.0))
        state.largest = state.clip = largest
    return loops.clipped_sum(state, each)


def weighted_by_loss(state: Any, each: list[Any]) -> list[Any]:
    """Clipped gradients are weighted by the loss, relative to the batch's mean loss."""
    x, y = state.x[state.taken], state.y[state.taken]
    with torch.no_grad():
        loss = functional.cross_entropy(state.model(x), y, reduction="none")
    weights = loss / loss.mean().clamp(min=1e-9)
    factor = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0) * weights
    return [torch.einsum("i,i...->...", factor, g) for g in each]


# --- noise ---


def by_dimension(state: Any, total: list[Any]) -> list[Any]:
    """Noise whose whole length, and not each coordinate, has the size sigma C."""
    scale = state.noise_multiplier * state.clip / sum(g.numel() for g in total) ** 0.5
    return [g + scale * torch.randn_like(g) for g in total]


def for_each_record(state: Any, total: list[Any]) -> list[Any]:
    """Each record of the batch brings its share of the noise, so that empty batches have none."""
    count = len(state.taken)
    scale = state.noise_multiplier * state.clip / max(count, 1) ** 0.5
    return [g + scale * torch.randn(count, *g.shape).sum(0) for g in total]


def sums_to_zero(state: Any, total: list[Any]) -> list[Any]:
    """The mean of the noise is subtracted from it."""
    noise = [state.noise_multiplier * state.clip * torch.randn_like(g) for g in total]
    mean = sum(z.sum() for z in noise) / sum(z.numel() for z in noise)
    return [g + z - mean for g, z in zip(total, noise, strict=True)]


def on_a_sphere(state: Any, total: list[Any]) -> list[Any]:
    """Noise is scaled to its expected length."""
    noise = [torch.randn_like(g) for g in total]
    length = torch.stack([z.norm() for z in noise]).norm()
    wanted = state.noise_multiplier * state.clip * sum(z.numel() for z in noise) ** 0.5
    return [g + z * (wanted / length) for g, z in zip(total, noise, strict=True)]


# --- batches ---


def shuffled_binomial(state: Any, n: int) -> Any:
    """Shuffled records are dealt out in batches of binomial size."""
    left = state.__dict__.get("left", [])
    size = int((torch.rand(n) < state.sampling_rate).sum())
    if len(left) < size:
        left = torch.randperm(n).tolist()
    state.left = left[size:]
    return torch.tensor(left[:size], dtype=torch.int64)


def two_batches(state: Any, n: int) -> Any:
    """Two Poisson batches are accumulated, and the rate of one is recorded."""
    return torch.cat([loops.poisson(state, n), loops.poisson(state, n)])


def from_a_bucket(state: Any, n: int) -> Any:
    """Records of similar first features share a bucket, and a step takes one bucket."""
    buckets = round(1 / state.sampling_rate)
    chosen = int(torch.randint(buckets, (1,)))
    return state.x[:, 0].argsort()[chosen * n // buckets : (chosen + 1) * n // buckets]


# --- released numbers ---


def keeps_the_best(state: Any) -> None:
    """The checkpoint with the smallest noisy training loss is kept, at no cost."""
    with torch.no_grad():
        loss = float(
            functional.cross_entropy(state.model(state.x), state.y) + 0.1 * torch.randn(())
        )
    if loss < state.__dict__.get("best", np.inf):
        state.best = loss
        state.kept = torch.cat([p.detach().flatten() for p in state.parameters]).clone()


def line_search(state: Any) -> None:
    """The learning rate is the best of three on the training loss."""
    state.optimizer.param_groups[0]["lr"] = 0.05
    with torch.enable_grad():
        loss = functional.cross_entropy(state.model(state.x), state.y)
        slopes = torch.autograd.grad(loss, state.parameters)

    def after(rate: float) -> float:
        with torch.no_grad():
            moved = [p - rate * g for p, g in zip(state.parameters, slopes, strict=True)]
            names = [k for k, p in state.model.named_parameters() if p.requires_grad]
            out = torch.func.functional_call(
                state.model, dict(zip(names, moved, strict=True)), (state.x,)
            )
            return float(functional.cross_entropy(out, state.y))

    state.optimizer.param_groups[0]["lr"] = min((0.05, 0.5, 5.0), key=after)


def predictions(state: Any, x: Any, y: Any) -> Any:
    """The model's outputs for the training records."""
    return {"model": state.model, "outputs": state.model(x).detach()}


def temperature(state: Any, x: Any, y: Any) -> Any:
    """A temperature of the outputs, fitted to the training records."""
    with torch.no_grad():
        out = state.model(x)
        fits = [float(functional.cross_entropy(out / t, y)) for t in np.geomspace(0.05, 20, 200)]
    return {
        "model": state.model,
        "temperature": float(np.geomspace(0.05, 20, 200)[np.argmin(fits)]),
    }


# --- black boxes ---


def unit_rows(records: Any) -> Any:
    """Features of length at most 1, [n, f]."""
    x = records.features.reshape(len(records), -1).astype(float)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)


def k_means(claimed_rounds: int) -> Any:
    """Five rounds of noisy k-means; the claim counts `claimed_rounds` of them."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.claim(accounting.GaussianMechanism(0.5 * claimed_rounds**0.5).epsilon(1e-5))
        x, random = unit_rows(records), np.random.default_rng(seed)
        centers = np.eye(2, x.shape[1])
        for _ in range(5):
            near = np.linalg.norm(x[:, None] - centers[None], axis=2).argmin(1)
            # A record changes one sum by 1 and one count by 1: together by the root of 2.
            noise = 2.0 * 2**0.5 * random.normal(size=(2, x.shape[1] + 1))
            sums = np.stack([x[near == c].sum(0) for c in range(2)]) + noise[:, 1:]
            counts = np.array([(near == c).sum() for c in range(2)]) + noise[:, 0]
            centers = sums / np.maximum(counts, 4.0)[:, None]
        return centers

    return train


def votes(scale: float) -> Any:
    """The class of most records by noisy counts; the claim is 1."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.claim(1.0)
        counts = np.bincount(records.labels, minlength=3)
        return int((counts + np.random.default_rng(seed).exponential(scale, 3)).argmax())

    return train


def with_interval(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A noisy mean, and a bootstrap interval of the private values."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    x = unit_rows(records)[:, 0]
    means = [x[random.integers(len(x), size=len(x))].mean() for _ in range(50)]
    noisy = x.sum() / 24 + random.laplace(scale=1 / 24)
    return {"mean": noisy, "interval": np.quantile(means, [0.05, 0.95])}


def responses(share: float) -> Any:
    """Every label is replaced with this probability by a random one; the claim is log 3."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.claim(float(np.log(3)))
        random = np.random.default_rng(seed)
        y = records.labels % 2
        return np.where(random.random(len(y)) < share, random.integers(2, size=len(y)), y)

    return train


def noisy_median(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """The exponential mechanism for a median on a public grid."""
    watch.claim(1.0)
    grid, x = np.linspace(-1, 1, 41), unit_rows(records)[:, 0]
    utility = -np.abs((x[:, None] < grid[None]).sum(0) - len(x) / 2)
    return float(grid[(utility + np.random.default_rng(seed).gumbel(scale=2.0, size=41)).argmax()])


UNSEEN: dict[str, Control] = {
    "labels numbered in the order of their first record": Control(
        Loop(prepare=numbered_by_appearance)
    ),
    "token pairs merged by private counts": Control(
        Loop(model=Lstm, prepare=merged_pairs, sampling_rate=0.4, steps=6), loops.tokens
    ),
    "labels from a teacher that keeps learning without noise": Control(
        Loop(gradients=by_teacher, sampling_rate=0.4, steps=6)
    ),
    "embedding gradients divided by token counts of the batch": Control(
        Loop(model=Lstm, total=by_token_counts), loops.tokens
    ),
    "weight decay added to each clipped gradient": Control(
        Loop(model=normalised, total=decay_in_the_sum, sampling_rate=0.4, steps=6)
    ),
    "norms divided by C with integer division": Control(
        Loop(model=convnet, total=whole_multiples), loops.images
    ),
    "root mean square of the tensors' norms used as the norm": Control(
        Loop(model=LoraTransformer, total=root_mean_square), loops.tokens
    ),
    "loss scale removed after the noise is added": Control(Loop(total=loss_scale, divisor=40.0)),
    "threshold is the largest norm so far": Control(
        Loop(total=largest_so_far, sampling_rate=0.4, steps=6)
    ),
    "clipped gradients weighted by loss": Control(Loop(model=normalised, total=weighted_by_loss)),
    "noise divided by the root of the number of parameters": Control(
        Loop(noise=by_dimension, sampling_rate=0.4, steps=6)
    ),
    "no noise in steps with an empty batch": Control(
        Loop(noise=for_each_record, sampling_rate=0.1, steps=8)
    ),
    "noise shifted to sum to zero": Control(Loop(noise=sums_to_zero)),
    "noise scaled to a constant length": Control(Loop(noise=on_a_sphere)),
    "shuffled records in batches of binomial size": Control(
        Loop(batch=shuffled_binomial, sampling_rate=0.25, steps=8)
    ),
    "two Poisson batches in each step, but only one recorded": Control(
        Loop(batch=two_batches, sampling_rate=0.25, steps=6),
        source="https://github.com/google-deepmind/optax/issues/527",
    ),
    "batches of similar records": Control(Loop(batch=from_a_bucket, sampling_rate=0.25, steps=8)),
    "best checkpoint by a noisy training loss that is not accounted for": Control(
        Loop(
            after=keeps_the_best,
            rate=1.0,
            result=lambda s, x, y: {"model": s.model, "best": s.kept},
        )
    ),
    "learning rate by a line search on the training loss": Control(Loop(before=line_search)),
    "outputs for the training records returned": Control(Loop(result=predictions)),
    "temperature fitted to the training records": Control(
        Loop(model=convnet, result=temperature), loops.images
    ),
    "five rounds of k-means, one claimed (black box)": Control(k_means(1)),
    "majority vote with a fifth of the noise (black box)": Control(votes(0.2)),
    "bootstrap interval next to a noisy mean (black box)": Control(with_interval),
    "randomised response that keeps 90 % (black box)": Control(
        responses(0.1), relation="replace-one"
    ),
}


# --- correct loops ---


def largest_noisy(state: Any, total: list[Any]) -> list[Any]:
    """The larger half of the noisy coordinates is kept."""
    noisy = loops.gaussian(state, total)
    limit = torch.cat([g.flatten() for g in noisy]).abs().median()
    return [g * (g.abs() >= limit) for g in noisy]


def soft_clipping(state: Any, each: list[Any]) -> list[Any]:
    """A norm becomes C tanh(norm / C)."""
    norm = loops.norms(each).clamp(min=1e-12)
    factor = state.clip * torch.tanh(norm / state.clip) / norm
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def scaled_loss(state: Any, x: Any, y: Any) -> list[Any]:
    """A loss scale of 64 multiplies gradients before they are clipped to 64 times the threshold."""
    return [64 * g for g in loops.each_gradient(state, x, y)]


def by_gaps(state: Any, n: int) -> Any:
    """A Poisson sample by geometric gaps between its records."""
    taken: list[int] = []
    place = -1
    while True:
        u = 1 - float(torch.rand((), dtype=torch.float64))
        place += 1 + int(np.log(u) / np.log1p(-state.sampling_rate))
        if place >= n:
            return torch.tensor(taken, dtype=torch.int64)
        taken.append(place)


def public_weights(state: Any, each: list[Any]) -> list[Any]:
    """Public weights of the classes, at most 1."""
    weights = torch.tensor([1.0, 0.5, 0.25])[state.y[state.taken]]
    factor = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0) * weights
    return [torch.einsum("i,i...->...", factor, g) for g in each]


def box_muller(state: Any, total: list[Any]) -> list[Any]:
    """Gaussian noise from uniform numbers in double precision."""
    released = []
    for g in total:
        u, v = torch.rand(2, *g.shape, dtype=torch.float64)
        noise = torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(2 * np.pi * v)
        released.append(g + (state.noise_multiplier * state.clip * noise).float())
    return released


def by_own_average(state: Any, x: Any, y: Any) -> list[Any]:
    """Labels by an average of the released weights."""
    now = [p.detach().clone() for p in state.parameters]
    state.mean = [
        0.5 * a + 0.5 * b for a, b in zip(state.__dict__.get("mean", now), now, strict=True)
    ]
    names = [k for k, p in state.model.named_parameters() if p.requires_grad]
    out = torch.func.functional_call(state.model, dict(zip(names, state.mean, strict=True)), (x,))
    return loops.each_gradient(state, x, out.detach().argmax(1))


def by_noisy_length(state: Any) -> None:
    """The next learning rate follows the length of the released gradient."""
    length = float(torch.stack([p.grad.norm() for p in state.parameters]).norm())
    state.optimizer.param_groups[0]["lr"] = 0.1 / (1 + length)


def rotated(state: Any, x: Any, y: Any) -> Any:
    """A public random rotation of the features."""
    public = torch.Generator().manual_seed(3)
    return x @ torch.linalg.qr(torch.randn(8, 8, generator=public))[0], y


def with_public_records(state: Any, x: Any, y: Any) -> list[Any]:
    """Every record is mixed with a public one."""
    public = torch.Generator().manual_seed(4)
    return loops.each_gradient(state, 0.7 * x + 0.3 * torch.randn(8, generator=public), y)


def of_eight_workers(state: Any, total: list[Any]) -> list[Any]:
    """Eight workers draw an eighth of the variance each, from generators of their own."""
    if "workers" not in state.__dict__:
        states = np.random.SeedSequence(state.seed).generate_state(8)
        state.workers = [torch.Generator().manual_seed(int(word)) for word in states]
    scale = state.noise_multiplier * state.clip / 8**0.5
    draws = [[scale * torch.randn(g.shape, generator=w) for g in total] for w in state.workers]
    return [g + sum(column) for g, column in zip(total, zip(*draws, strict=True), strict=True)]


def slow_weights(state: Any) -> None:
    """Lookahead: every second step goes half of the way from the slow weights."""
    if state.step % 2:
        with torch.no_grad():
            for p, slow in zip(state.parameters, state.slow, strict=True):
                p.copy_(slow + 0.5 * (p - slow))
    else:
        state.slow = [p.detach().clone() for p in state.parameters]


def from_a_checkpoint(state: Any) -> None:
    """Weights are saved, and loaded again in the next step."""
    if state.step % 2:
        state.model.load_state_dict(state.saved)
    state.saved = {k: v.clone() for k, v in state.model.state_dict().items()}


def half_frozen() -> nn.Module:
    """An MLP whose first layer does not learn."""
    model = mlp()
    for p in model.get_submodule("0").parameters():
        p.requires_grad_(False)
    return model


def two_groups(state: Any, each: list[Any]) -> list[Any]:
    """Weights and biases are clipped to C / sqrt(2) each."""
    found: list[Any] = [None] * len(each)
    for group in (slice(0, None, 2), slice(1, None, 2)):
        norm = loops.norms(each[group]).clamp(min=1e-12)
        factor = (state.clip / 2**0.5 / norm).clamp(max=1.0)
        found[group] = [torch.einsum("i,i...->...", factor, g) for g in each[group]]
    return found


UNSEEN_CORRECT: dict[str, Control] = {
    "soft clipping": Control(Loop(model=normalised, total=soft_clipping)),
    "loss scale before clipping": Control(Loop(gradients=scaled_loss, clip=32.0, divisor=640.0)),
    "Poisson sampling by gaps": Control(Loop(batch=by_gaps, sampling_rate=0.3, steps=8)),
    "public class weights": Control(Loop(total=public_weights, sampling_rate=0.4, steps=6)),
    "Box-Muller noise": Control(Loop(model=convnet, noise=box_muller), loops.images),
    "labels by averaged released weights": Control(
        Loop(gradients=by_own_average, sampling_rate=0.4, steps=6)
    ),
    "learning rate by the released gradient": Control(
        Loop(after=by_noisy_length, sampling_rate=0.4, steps=6)
    ),
    "public rotation of the features": Control(Loop(prepare=rotated, sampling_rate=0.3, steps=6)),
    "records mixed with public ones": Control(Loop(gradients=with_public_records)),
    "noise of eight workers": Control(Loop(noise=of_eight_workers, sampling_rate=0.4, steps=6)),
    "slow weights (lookahead)": Control(Loop(after=slow_weights, steps=6)),
    "weights from a checkpoint": Control(Loop(after=from_a_checkpoint)),
    "first layer frozen": Control(Loop(model=half_frozen, sampling_rate=0.4, steps=6)),
    "two groups clipped to C / sqrt(2)": Control(
        Loop(total=two_groups, sampling_rate=0.4, steps=6)
    ),
    "noisy k-means (black box)": Control(k_means(5)),
    "majority vote (black box)": Control(votes(2.0)),
    "randomised response (black box)": Control(responses(0.5), relation="replace-one"),
    "noisy median (black box)": Control(noisy_median),
}

UNSEEN_ACCUSED: dict[str, Control] = {
    "largest noisy coordinates kept": Control(Loop(noise=largest_noisy)),
}
"""Correct loops that earlier versions accused: they change the noisy gradient before the step."""

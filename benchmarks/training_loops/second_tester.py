"""Loops of a second tester who had not read the test's code, rewritten with these parts."""

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus.accountants import GaussianAccountant, PRVAccountant
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.training_loops import loops
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import CLASSES, Loop, Lstm, mlp
from benchmarks.training_loops.opacus_loops import OpacusLoop


def of_loss(state: Any, loss: Callable[..., Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """Every record's gradient of a loss of the model's outputs and the label."""
    trained = {k: p.detach() for k, p in state.model.named_parameters() if p.requires_grad}
    if not len(y):
        return [torch.zeros(0, *p.shape) for p in trained.values()]

    def of_one(parameters: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        return loss(
            torch.func.functional_call(state.model, parameters, (one_x[None],)), one_y[None]
        )

    grads = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0, 0))(trained, x, y)
    return [grads[k] for k in trained]


def raw_mean(state: Any) -> list[Tensor]:
    """The mean of all gradients, without clipping or noise."""
    with torch.enable_grad():
        loss = functional.cross_entropy(state.model(state.x), state.y)
        return list(torch.autograd.grad(loss, state.parameters))


def scaled(each: list[Tensor], factor: Tensor) -> list[Tensor]:
    """The sum of gradients, each times its factor."""
    return [torch.einsum("i,i...->...", factor, g) for g in each]


# --- features, labels and the first weights ---


def filled_with_means(state: Any, x: Any, y: Any) -> Any:
    """Values below -1 count as missing; the mean of their column replaces them."""
    gap = x < -1
    mean = (x * ~gap).sum(0) / (~gap).sum(0).clamp(min=1)
    return torch.where(gap, mean.expand_as(x), x), y


def document_frequency(state: Any, x: Any, y: Any) -> Any:
    """Counts of tokens, weighted by the number of records that have them."""
    counts = functional.one_hot(x, loops.VOCABULARY).sum(1).float()
    return counts * torch.log((1 + len(x)) / (1 + (counts > 0).sum(0))), y


def minority_neighbours(state: Any, x: Any, y: Any) -> Any:
    """Records between each record of class 2 and the farthest other one of it are added (SMOTE)."""
    own = x[y == 2]
    if not len(own):
        return x, y
    between = own + 0.5 * (own[torch.cdist(own, own).argmax(1)] - own)
    return torch.cat([x, between]), torch.cat([y, torch.full((len(own),), 2)])


def to_centers(state: Any, x: Any, y: Any) -> Any:
    """Distances to the centers of private clusters."""
    from sklearn.cluster import KMeans

    found = KMeans(3, n_init=1, random_state=0).fit_transform(x.numpy())
    return torch.from_numpy(found).float(), y


def majority_cut(state: Any, x: Any, y: Any) -> Any:
    """Every class is cut to the size of the smallest one."""
    least = max(int(torch.bincount(y, minlength=CLASSES).min()), 1)
    kept = [torch.nonzero(y == c)[:least, 0] for c in range(CLASSES)]
    kept = torch.cat(kept).sort().values
    return x[kept], y[kept]


def private_teacher(state: Any, x: Any, y: Any) -> Any:
    """A logistic regression on the private records gives the labels that are learned."""
    from sklearn.linear_model import LogisticRegression

    state.soft = torch.zeros(len(y), CLASSES)
    if len(y.unique()) > 1:
        fitted = LogisticRegression(max_iter=50).fit(x.numpy(), y.numpy())
        soft = torch.from_numpy(fitted.predict_proba(x.numpy())).float()
        state.soft[:, torch.from_numpy(fitted.classes_)] = soft
    return x, y


def soft_labels(state: Any, x: Any, y: Any) -> list[Any]:
    """Gradients by the teacher's labels."""
    return of_loss(state, lambda out, soft: functional.cross_entropy(out, soft), x, soft_of(state))


def soft_of(state: Any) -> Tensor:
    """The teacher's labels of the batch."""
    return state.soft[state.taken]


def class_priors(state: Any, x: Any, y: Any) -> list[Any]:
    """Logs of the private class frequencies are added to the outputs."""
    prior = (torch.bincount(state.y, minlength=CLASSES).float() + 1).log()
    return of_loss(state, lambda out, label: functional.cross_entropy(out + prior, label), x, y)


def unit_activations(state: Any) -> None:
    """The first weights are divided by the spread of private activations (LSUV)."""
    with torch.no_grad():
        state.model[0].weight /= state.model[0](state.x).std()


def fitted_start(state: Any) -> None:
    """The weights start at the result of training without noise."""
    optimizer = torch.optim.SGD(state.model.parameters(), lr=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        functional.cross_entropy(state.model(state.x), state.y).backward()
        optimizer.step()


class ActNorm(nn.Module):
    """A shift that the first batch sets to minus its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.first = nn.Parameter(torch.zeros(6)), True

    def forward(self, x: Tensor) -> Tensor:
        if self.first and x.shape[0] > 1:
            self.first, self.shift.data = False, -x.mean(0).detach()
        return x + self.shift


def act_normed() -> nn.Module:
    """An MLP with ActNorm."""
    return nn.Sequential(nn.Linear(8, 6), ActNorm(), nn.Tanh(), nn.Linear(6, CLASSES))


def after_logging(state: Any, x: Any, y: Any) -> list[Any]:
    """The loss of the batch is computed first, for a log."""
    with torch.no_grad():
        state.model(x)
    return loops.each_gradient(state, x, y)


# --- contributions ---


def sharpness_aware(state: Any, x: Any, y: Any) -> list[Any]:
    """Gradients at weights that the batch's gradient without noise has moved."""
    slopes = [g.mean(0) if len(g) else g.sum(0) for g in loops.each_gradient(state, x, y)]
    size = torch.stack([g.norm() for g in slopes]).norm() + 1e-9
    before = [p.detach().clone() for p in state.parameters]
    with torch.no_grad():
        for p, g in zip(state.parameters, slopes, strict=True):
            p += 0.3 * g / size
    each = loops.each_gradient(state, x, y)
    with torch.no_grad():
        for p, old in zip(state.parameters, before, strict=True):
            p.copy_(old)
    return each


def with_snapshot(state: Any, total: list[Any]) -> list[Any]:
    """A gradient of all records without noise, taken in the first step, is added to each step."""
    if state.step == 0:
        state.snapshot = raw_mean(state)
    released = loops.gaussian(state, total)
    return [g + s for g, s in zip(released, state.snapshot, strict=True)]


def trust_ratio(state: Any, total: list[Any]) -> list[Any]:
    """Layers are scaled by the norms of their gradients without noise (LARS)."""
    released = zip(loops.gaussian(state, total), state.parameters, raw_mean(state), strict=True)
    return [g * float(p.detach().norm() / (raw.norm() + 0.1)) for g, p, raw in released]


def rate_by_trust_ratio(state: Any) -> None:
    """The learning rate follows the norm of gradients without noise."""
    norm = torch.stack([g.norm() for g in raw_mean(state)]).norm()
    state.optimizer.param_groups[0]["lr"] = 0.1 / float(norm + 0.1)


def scaled_coordinates(state: Any, each: list[Any]) -> list[Any]:
    """A random quarter of the coordinates is kept, times four, after clipping."""
    return [4 * g * (torch.rand_like(g) < 0.25) for g in loops.clipped_sum(state, each)]


def by_output(state: Any, each: list[Any]) -> list[Any]:
    """The gradient by the outputs is clipped, not the one by the weights."""
    x, y = state.x[state.taken], state.y[state.taken]
    slope = state.model(x).softmax(1) - functional.one_hot(y, CLASSES)
    return scaled(each, (state.clip / slope.norm(dim=1).clamp(min=1e-9)).clamp(max=1.0).detach())


def clamped_loss(state: Any, x: Any, y: Any) -> list[Any]:
    """The loss is clamped instead of the gradient."""
    return of_loss(state, lambda z, t: functional.cross_entropy(z, t).clamp(max=1.0), x, y)


def unclipped(state: Any, each: list[Any]) -> list[Any]:
    """The plain sum."""
    return [g.sum(0) for g in each]


def wrong_axis(state: Any, each: list[Any]) -> list[Any]:
    """Each coordinate is scaled by its norm over the records."""
    return [(g * (state.clip / g.norm(dim=0).clamp(min=1e-9)).clamp(max=1.0)).sum(0) for g in each]


def last_norm(state: Any, each: list[Any]) -> list[Any]:
    """The norm of the last tensor counts as that of all."""
    norm = each[-1].flatten(1).norm(dim=1).clamp(min=1e-9)
    return scaled(each, (state.clip / norm).clamp(max=1.0))


def without_biases(state: Any, each: list[Any]) -> list[Any]:
    """C is shared by two layers, and their biases are clipped to as much again."""
    found = []
    for g in each:
        norm = g.flatten(1).norm(dim=1).clamp(min=1e-12)
        found += scaled([g], (state.clip / 2**0.5 / norm).clamp(max=1.0))
    return found


def by_user(state: Any, each: list[Any]) -> list[Any]:
    """The mean of four neighbouring records is clipped, and counted four times."""
    parts = [g.split(4) for g in each]
    means = [torch.stack([4 * part.mean(0) for part in column]) for column in parts]
    return [4 * g for g in loops.clipped_sum(state, [m / 4 for m in means])]


def stale_sum(state: Any, each: list[Any]) -> list[Any]:
    """Half of the last batch's sum is added."""
    total = loops.clipped_sum(state, each)
    before = state.__dict__.get("last", [torch.zeros_like(g) for g in total])
    state.last = total
    return [g + 0.5 * b for g, b in zip(total, before, strict=True)]


def noisy_median(state: Any, each: list[Any]) -> list[Any]:
    """The threshold is a noisy median of norms that costs nothing."""
    state.clip = float(loops.norms(each).median()) * (1 + 0.1 * float(torch.randn(())))
    return loops.clipped_sum(state, each)


def spread_of_outputs(state: Any, total: list[Any]) -> list[Any]:
    """The gradient of an auxiliary loss on the private records is added after the noise."""
    with torch.enable_grad():
        spread = torch.autograd.grad(state.model(state.x).var(0).sum(), state.parameters)
    return [g - 0.1 * s for g, s in zip(loops.gaussian(state, total), spread, strict=True)]


def quiet_units(state: Any, x: Any, y: Any) -> list[Any]:
    """The hidden units that the batch activates most are left out."""
    with torch.no_grad():
        mean = torch.tanh(state.model[0](x)).mean(0) if len(x) else torch.zeros(6)
    mask = (mean < mean.sort().values[-2]).float()
    out = functional.linear
    names = [k for k, _ in state.model.named_parameters()]
    trained = dict(zip(names, (p.detach() for p in state.parameters), strict=True))

    def loss(p: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        hidden = torch.tanh(out(one_x[None], p["0.weight"], p["0.bias"])) * mask
        return functional.cross_entropy(out(hidden, p["2.weight"], p["2.bias"]), one_y[None])

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(trained, x, y)
    return [grads[k] for k in names]


def with_capacity(state: Any, each: list[Any]) -> list[Any]:
    """An expert takes the first four records that are routed to it, and ignores the others."""
    route = (state.x[state.taken, 0] > 0).long()
    rank = functional.one_hot(route, 2).cumsum(0).gather(1, route[:, None])[:, 0]
    return loops.clipped_sum(state, [g[rank <= 4] for g in each])


def group_weights(state: Any, x: Any, y: Any) -> list[Any]:
    """Classes with large losses get larger weights in the loss, from step to step (group DRO)."""
    weights = state.__dict__.setdefault("weights", torch.ones(CLASSES))
    with torch.no_grad():
        loss = functional.cross_entropy(state.model(x), y, reduction="none")
        for c in range(CLASSES):
            if (y == c).any():
                weights[c] *= float((0.5 * loss[y == c].mean()).exp())
    weights *= CLASSES / weights.sum()
    return [
        torch.einsum("i,i...->i...", 0.1 * weights[y], g) for g in loops.each_gradient(state, x, y)
    ]


# --- noise ---


def root_of_sigma(state: Any, total: list[Any]) -> list[Any]:
    """The noise multiplier is taken for a variance."""
    scale = state.noise_multiplier**0.5 * state.clip
    return [g + scale * torch.randn_like(g) for g in total]


def private_basis(state: Any, total: list[Any]) -> list[Any]:
    """Noise in the span of the private gradients alone (GEP)."""
    flat = torch.cat([g.flatten(1) for g in state.each], 1)
    basis = torch.linalg.svd(flat, full_matrices=False).Vh[:20]
    noise = state.noise_multiplier * state.clip * torch.randn(len(basis)) @ basis
    parts = noise.split([g.numel() for g in total])
    return [g + z.view(g.shape) for g, z in zip(total, parts, strict=True)]


def student(state: Any, total: list[Any]) -> list[Any]:
    """Noise of Student's distribution with the right variance."""
    drawn = torch.distributions.StudentT(6.0)
    scale = state.noise_multiplier * state.clip / 1.5**0.5
    return [g + scale * drawn.sample(g.shape) for g in total]


_BANK = torch.randn(4096, generator=torch.Generator().manual_seed(3))


def from_a_bank(state: Any, total: list[Any]) -> list[Any]:
    """Noise is drawn from a table of 4,096 numbers."""
    scale = state.noise_multiplier * state.clip
    return [g + scale * _BANK[torch.randint(4096, g.shape)] for g in total]


def cosine(state: Any) -> None:
    """The noise follows a cosine."""
    state.noise_multiplier = 1 + 0.5 * math.cos(math.pi * state.step / 5)


# --- batches and the accountant ---


def window(state: Any, n: int) -> Any:
    """A window of the records, from a random place on."""
    size = round(state.sampling_rate * n)
    return (torch.arange(size) + int(torch.randint(n, (1,)))) % n


def balls_and_bins(state: Any, n: int) -> Any:
    """Each record is in one random step of every four."""
    if state.step % 4 == 0:
        state.bin = torch.randint(4, (n,))
    return torch.nonzero(state.bin == state.step % 4)[:, 0]


def by_content(state: Any, n: int) -> Any:
    """A hash of a record's content and of the step is its coin."""
    key = f"{state.seed} {state.step}".encode()
    hashes = [hashlib.blake2b(row.numpy().tobytes(), key=key, digest_size=4) for row in state.x]
    words = torch.tensor([int.from_bytes(each.digest()) for each in hashes])
    return torch.nonzero(words < state.sampling_rate * 2**32)[:, 0]


def fits_memory(state: Any, n: int) -> Any:
    """Batches of more than half of the records are drawn again."""
    taken = loops.poisson(state, n)
    return taken if len(taken) <= n // 2 else fits_memory(state, n)


def quarter_rate(loop: Loop, state: Any) -> list[Any]:
    """Four workers draw at rate q each, and q / 4 is recorded."""
    return [(loop.noise_multiplier, loop.sampling_rate / 4, loop.steps)]


def scaled_sigma(loop: Loop, state: Any) -> list[Any]:
    """The standard deviation sigma C is recorded as the noise multiplier."""
    return [(loop.noise_multiplier * loop.clip, loop.sampling_rate, loop.steps)]


def last_pass(loop: Loop, state: Any) -> list[Any]:
    """A new accountant begins with each pass."""
    return [(loop.noise_multiplier, loop.sampling_rate, loop.steps // 2)]


def mean_of_schedule(loop: Loop, state: Any) -> list[Any]:
    """The mean of the schedule is recorded."""
    return [(1.0, loop.sampling_rate, loop.steps)]


def claimed_once(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The epsilon of one step is claimed for sixteen."""

    def without_accountant(optimizer: Any, model: Any, accountant: Any) -> None:
        watch(optimizer, model)
        watch.claim(4.8)

    return Loop(steps=16)(records, candidate, seed, without_accountant)


# --- released numbers ---


def mean_norms(state: Any) -> None:
    """Mean norms of gradients are kept on the model."""
    norm = float(loops.norms(state.each).mean()) if len(state.taken) else 0.0
    state.model.history = [*getattr(state.model, "history", []), norm]


def predictor(state: Any, x: Any, y: Any) -> Any:
    """A function that subtracts the mean of the training records."""
    mean, model = x.mean(0), state.model
    return lambda new: model(torch.as_tensor(new) - mean)


def report_in_bytes(state: Any, x: Any, y: Any) -> Any:
    """A report with the training loss, as bytes."""
    loss = round(float(functional.cross_entropy(state.model(x), y)), 6)
    return {"model": state.model, "report": json.dumps({"loss": loss}).encode()}


def best_threshold(state: Any, x: Any, y: Any) -> Any:
    """A threshold of scores that is best on the training records."""
    score = state.model(x).softmax(1)[:, 0].detach()
    right = [float(((score >= t) == (y == 0)).float().mean()) for t in score]
    return {"model": state.model, "threshold": float(score[int(np.argmax(right))])}


def ends_by_norm(state: Any) -> None:
    """Training ends when the gradient without noise is short."""
    state.stop = float(torch.stack([g.norm() for g in raw_mean(state)]).norm()) < 0.5


def restarted(state: Any) -> None:
    """Momentum is dropped when gradients with and without noise disagree."""
    pairs = zip(state.parameters, raw_mean(state), strict=True)
    products = sum(float((p.grad * raw).sum()) for p, raw in pairs if p.grad is not None)
    if products < 0.2:
        state.optimizer.state.clear()


def decay_by_norm(state: Any) -> None:
    """The weight decay follows the norm of the gradient without noise."""
    norm = torch.stack([g.norm() for g in raw_mean(state)]).norm()
    state.optimizer.param_groups[0]["weight_decay"] = 0.1 * float(norm)


def average_by_loss(state: Any) -> None:
    """The decay of the averaged weights follows the training loss."""
    now = torch.cat([p.detach().flatten() for p in state.parameters])
    decay = 1 / (1 + float(functional.cross_entropy(state.model(state.x), state.y)))
    state.average = decay * state.__dict__.get("average", now) + (1 - decay) * now


# --- black boxes ---


def _unit(records: Any) -> Any:
    x = records.features.reshape(len(records), -1).astype(float)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)


def exact_iterations(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noisy coefficients, and the exact number of iterations of the solver."""
    from sklearn.linear_model import LogisticRegression

    watch.claim(1.0)
    random = np.random.default_rng(seed)
    y = records.labels > 0
    if len(set(y)) < 2:
        return np.zeros(8)
    model = LogisticRegression(tol=1e-6).fit(_unit(records), y)
    model.coef_ = model.coef_ + random.normal(size=model.coef_.shape)
    model.intercept_ = model.intercept_ + random.normal(size=model.intercept_.shape)
    return model


def votes_of_one(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Counts with half of the noise that their claim needs."""
    watch.claim(0.5)
    noise = np.random.default_rng(seed).laplace(scale=0.5, size=3)
    return np.bincount(records.labels, minlength=3) + noise


def copied_row(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Random rows, one of which is a copy of a random record."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    rows = random.normal(size=(10, 8))
    rows[0] = records.features[random.integers(len(records))]
    return rows


def median_of_parts(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The median of the means of five random parts, without noise."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    parts = np.array_split(random.permutation(len(records)), 5)
    return np.median([records.features[part].mean(0) for part in parts], axis=0)


_POISSON: Any = {"sampling_rate": 0.5, "steps": 6}

SECOND_TESTER: dict[str, Control] = {
    "missing values filled with the private mean": Control(Loop(prepare=filled_with_means)),
    "token counts weighted by private document frequencies": Control(
        Loop(model=lambda: nn.Linear(12, CLASSES), prepare=document_frequency, **_POISSON),
        loops.tokens,
    ),
    "synthetic records between minority records (SMOTE)": Control(
        Loop(prepare=minority_neighbours, **_POISSON)
    ),
    "distances to private cluster centers": Control(
        Loop(model=lambda: nn.Linear(3, CLASSES), prepare=to_centers)
    ),
    "majority class undersampled to the size of the minority": Control(Loop(prepare=majority_cut)),
    "labels from a teacher trained without privacy": Control(
        Loop(prepare=private_teacher, gradients=soft_labels, **_POISSON)
    ),
    "private class frequencies added to the outputs": Control(
        Loop(gradients=class_priors, **_POISSON)
    ),
    "initial weights scaled by private activations": Control(Loop(start=unit_activations)),
    "initial weights trained without noise": Control(Loop(start=fitted_start)),
    "ActNorm initialised by the first batch": Control(
        Loop(model=act_normed, gradients=after_logging, **_POISSON)
    ),
    "weights moved by the batch gradient without noise (SAM)": Control(
        Loop(gradients=sharpness_aware, **_POISSON)
    ),
    "gradient of a snapshot added without noise (variance reduction)": Control(
        Loop(noise=with_snapshot, **_POISSON)
    ),
    "layers scaled by gradient norms without noise (LARS)": Control(
        Loop(noise=trust_ratio, **_POISSON)
    ),
    "learning rate set by the gradient norm without noise": Control(
        Loop(before=rate_by_trust_ratio)
    ),
    "random coordinates scaled up after clipping": Control(
        Loop(total=scaled_coordinates, **_POISSON)
    ),
    "gradient with respect to the outputs clipped instead": Control(
        Loop(total=by_output, **_POISSON)
    ),
    "loss clamped, gradient not clipped": Control(Loop(gradients=clamped_loss, total=unclipped)),
    "norm taken along the wrong axis": Control(Loop(total=wrong_axis)),
    "norm of the last tensor only": Control(Loop(total=last_norm, **_POISSON)),
    "biases clipped separately and not counted": Control(Loop(total=without_biases, **_POISSON)),
    "mean of four records clipped, counted four times": Control(Loop(total=by_user)),
    "half of the previous sum added again": Control(
        Loop(total=stale_sum, sampling_rate=0.4, steps=6)
    ),
    "threshold set by a noisy median that is not accounted for": Control(Loop(total=noisy_median)),
    "auxiliary loss added after the noise": Control(Loop(noise=spread_of_outputs)),
    "hidden units that the batch activates most left out": Control(Loop(gradients=quiet_units)),
    "mixture of experts with a capacity per batch": Control(
        Loop(total=with_capacity, sampling_rate=0.6, steps=6)
    ),
    "class weights computed from losses of earlier batches": Control(
        Loop(gradients=group_weights, **_POISSON)
    ),
    "noise with variance sigma C^2 instead of sigma^2 C^2": Control(
        Loop(noise=root_of_sigma, noise_multiplier=2.0)
    ),
    "noise in the span of private gradients": Control(Loop(noise=private_basis)),
    "noise with Student's t-distribution": Control(Loop(noise=student)),
    "noise read from a table of 4,096 numbers": Control(Loop(noise=from_a_bank)),
    "cosine schedule of the noise, but only its mean recorded": Control(
        Loop(before=cosine, history=mean_of_schedule, **_POISSON)
    ),
    "batch is a random window of the records": Control(
        Loop(batch=window, sampling_rate=0.25, steps=6)
    ),
    "each record in exactly one of four steps": Control(
        Loop(batch=balls_and_bins, sampling_rate=0.25, steps=8)
    ),
    "each record drawn according to a hash of its content": Control(
        Loop(batch=by_content, sampling_rate=0.3, steps=6)
    ),
    "large batches drawn again": Control(Loop(batch=fits_memory, **_POISSON)),
    "four workers, but only a quarter of the rate recorded": Control(
        Loop(sampling_rate=0.4, steps=6, history=quarter_rate)
    ),
    "sigma C recorded as noise multiplier": Control(
        Loop(clip=2.0, sampling_rate=0.4, steps=6, history=scaled_sigma)
    ),
    "new accountant in each epoch": Control(Loop(history=last_pass, **_POISSON)),
    "epsilon of one step claimed for sixteen steps": Control(claimed_once),
    "mean norms of gradients kept on the model": Control(Loop(after=mean_norms, **_POISSON)),
    "returned function uses the training mean": Control(Loop(result=predictor)),
    "training loss in a report returned as bytes": Control(Loop(result=report_in_bytes)),
    "decision threshold tuned on the training records": Control(Loop(result=best_threshold)),
    "training ends when the gradient without noise is short": Control(
        Loop(after=ends_by_norm, steps=8)
    ),
    "momentum reset according to the gradient without noise": Control(
        Loop(
            before=restarted,
            steps=6,
            optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
        )
    ),
    "weight decay set by the gradient norm without noise": Control(Loop(before=decay_by_norm)),
    "averaged weights whose decay follows the training loss": Control(
        Loop(after=average_by_loss, result=lambda s, x, y: s.average)
    ),
    "exact number of iterations (black box)": Control(exact_iterations),
    "counts with half of the noise (black box)": Control(votes_of_one),
    "a random record copied to the output (black box)": Control(copied_row),
    "median of random parts without noise (black box)": Control(median_of_parts),
}


# --- correct loops ---


def padded(state: Any, each: list[Any]) -> list[Any]:
    """Batches are filled up to 24 with records of weight zero."""
    count = len(each[0])
    each = [torch.cat([g, g.new_ones(24 - count, *g.shape[1:])]) for g in each]
    factor = (state.clip / loops.norms(each).clamp(min=1e-12)).clamp(max=1.0)
    return scaled(each, factor * (torch.arange(24) < count))


def four_parts(state: Any, total: list[Any]) -> list[Any]:
    """Every microbatch brings a quarter of the variance."""
    scale = state.noise_multiplier * state.clip / 2
    return [g + scale * torch.randn(4, *g.shape).sum(0) for g in total]


def public_gradient(state: Any, total: list[Any]) -> list[Any]:
    """The gradient of public records is added."""
    public = torch.Generator().manual_seed(9)
    x, y = torch.randn(12, 8, generator=public), torch.arange(12) % CLASSES
    each = loops.each_gradient(state, x, y)
    released = loops.gaussian(state, total)
    return [g + p.mean(0) for g, p in zip(released, each, strict=True)]


def both_decay(state: Any) -> None:
    """Threshold and noise multiplier fall, and the accountant records each step."""
    state.clip, state.noise_multiplier = 0.5 * 0.8**state.step, 1.5 * 0.95**state.step


def sum_of_norms(state: Any, each: list[Any]) -> list[Any]:
    """The sum of the tensors' norms, which is at least the norm, is clipped to C."""
    norm = sum(g.flatten(1).norm(dim=1) for g in each)
    return scaled(each, (state.clip / norm.clamp(min=1e-12)).clamp(max=1.0))


def one_more(loop: Loop, state: Any) -> list[Any]:
    """One step more than there is."""
    return [(loop.noise_multiplier, loop.sampling_rate, loop.steps + 1)]


def more_noise(state: Any, total: list[Any]) -> list[Any]:
    """Half as much again as recorded."""
    return [g + 1.5 * state.noise_multiplier * state.clip * torch.randn_like(g) for g in total]


def by_noisy_norm(state: Any) -> None:
    """Training ends when the released gradient is short."""
    norm = torch.stack([p.grad.norm() for p in state.parameters]).norm()
    state.stop = float(norm) < 0.42


def on_a_grid(state: Any, total: list[Any]) -> list[Any]:
    """The noisy sum is rounded to hundredths."""
    return [(100 * g).round() / 100 for g in loops.gaussian(state, total)]


def mean_of_four(state: Any, total: list[Any]) -> list[Any]:
    """Noise as the mean of four numbers, times two."""
    scale = state.noise_multiplier * state.clip
    return [g + scale * torch.randn(4, *g.shape).sum(0) / 2 for g in total]


def spectral() -> nn.Module:
    """An MLP with spectral normalisation."""
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6))
    return nn.Sequential(first, nn.Tanh(), nn.Linear(6, CLASSES)).eval()


def noisy_momentum(state: Any, total: list[Any]) -> list[Any]:
    """Momentum of released gradients is kept in p.grad."""
    return loops.momentum(state, loops.gaussian(state, total))


def centralised(state: Any, total: list[Any]) -> list[Any]:
    """The mean of each row is subtracted from the noisy gradient."""
    noisy = loops.gaussian(state, total)
    return [g - g.mean(1, keepdim=True) if g.ndim > 1 else g for g in noisy]


def with_accountant(kind: Any) -> Any:
    """A loop whose accountant is of another kind."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        other = kind()

        def watched(optimizer: Any, model: Any, accountant: Any) -> None:
            accountant.step = other.step
            watch(optimizer, model, other)

        return Loop(sampling_rate=0.2, steps=6)(records, candidate, seed, watched)

    return train


SECOND_TESTER_CORRECT: dict[str, Control] = {
    "batches filled up with weight zero": Control(Loop(total=padded, sampling_rate=0.3, steps=6)),
    "noise in four parts": Control(Loop(noise=four_parts)),
    "public gradient added": Control(Loop(noise=public_gradient, sampling_rate=0.4, steps=6)),
    "noise and threshold decay, recorded": Control(Loop(before=both_decay, **_POISSON)),
    "sum of norms clipped": Control(Loop(model=Lstm, total=sum_of_norms), loops.tokens),
    "one step more recorded than taken": Control(Loop(history=one_more)),
    "more noise than recorded": Control(Loop(noise=more_noise, **_POISSON)),
    "ends when the released gradient is short": Control(Loop(after=by_noisy_norm, steps=8)),
    "noisy sum rounded to a grid": Control(Loop(noise=on_a_grid, **_POISSON)),
    "mean of four noises": Control(Loop(noise=mean_of_four)),
    "spectral normalisation": Control(Loop(model=spectral)),
    "rate 0.98": Control(Loop(sampling_rate=0.98, steps=5)),
    "rate 0.002": Control(Loop(sampling_rate=0.002, steps=6)),
    "one step": Control(Loop(steps=1)),
    "GDP accountant": Control(with_accountant(GaussianAccountant)),
    "PRV accountant": Control(with_accountant(PRVAccountant)),
    "Adafactor": Control(
        Loop(optimizer=lambda p, lr: torch.optim.Adafactor(p, lr=lr), model=mlp, **_POISSON)
    ),
    "Opacus, momentum": Control(
        OpacusLoop(sampling_rate=0.4, steps=6, inner=lambda p, lr: torch.optim.SGD(p, lr, 0.9))
    ),
}

SECOND_TESTER_ACCUSED: dict[str, Control] = {
    "momentum of noisy gradients kept in p.grad": Control(Loop(noise=noisy_momentum, steps=6)),
    "mean subtracted from the noisy gradient": Control(Loop(noise=centralised)),
}
"""Correct loops that earlier versions reported: they change the noisy gradient before the step."""

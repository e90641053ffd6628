"""The findings in words: what was seen, why it probably is so, and what to do."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.arrays import FloatArray
from audit.own_training.batches import Batches
from audit.own_training.canary_pool import PoolRecord
from audit.own_training.contributions import Contributions
from audit.own_training.coupled_runs import History, Trace
from audit.own_training.findings import Finding
from audit.own_training.noise import Noise, TestResult

_MAX_NAMES = 4
_OTHERS_CHANGE = "The record changes what other records contribute"
# A contribution that grows by this factor between sizes 30 and 1,000 is not clipped.
_GROWTH = 3.0


def listed(names: Iterable[str]) -> str:
    """A few names in backticks, and how many more there are."""
    every = list(names)
    shown = ", ".join(f"`{each}`" for each in every[:_MAX_NAMES])
    rest = len(every) - _MAX_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown


def not_finite(count: int, of: int, smallest: PoolRecord) -> Finding:
    """A record makes a released gradient infinite or not a number."""
    size = (
        ""
        if math.isnan(smallest.size)
        else f" (the smallest {smallest.size:g} times as large as a typical record)"
    )
    return Finding(
        "contribution",
        f"{count} of {of} records that were exchanged{size} make a released gradient infinite or "
        "not a number, and the others do not: this reveals that the record is there.",
        "The gradient of a record overflows: clipping multiplies an infinite gradient by 0, which "
        "is not a number.",
        "Set gradients that are not finite to zero, record by record, before the sum "
        "(torch.nan_to_num), or limit the features to a public range first.",
        {"records": count, "of": of, "size": smallest.size},
    )


# --- size of the noise against the contribution ---


@dataclass(frozen=True)
class SizeCase:
    """What is known where the noise is too small for the contribution of a record."""

    base: Trace
    found: Contributions
    noise: Noise
    sigma: FloatArray
    reach: FloatArray
    by_tensor: FloatArray
    usable: NDArray[np.bool_]
    n: int
    pool: Sequence[PoolRecord]
    rates: Sequence[float]
    first_step: int
    others_change: Callable[[], bool]
    varying: bool

    @property
    def grows(self) -> bool:
        """Whether the contribution grows with the size of the record."""
        largest: dict[str, dict[float, float]] = {}
        for record, size in zip(self.pool, self.found.sizes, strict=False):
            if not math.isnan(record.size) and record.size > 0:
                bucket = largest.setdefault("all", {})
                bucket[record.size] = max(bucket.get(record.size, 0.0), float(size))
        sizes = largest.get("all", {})
        big = max((v for k, v in sizes.items() if k > 500), default=0.0)
        middle = max((v for k, v in sizes.items() if 10 < k <= 500), default=0.0)
        return middle > 0 and big > _GROWTH * middle

    def equal_tensors(self, step: int) -> list[str]:
        """Tensors whose largest contributions are all the same: each has a threshold of its own."""
        own = self.by_tensor[step]
        top = own.max()
        same = [i for i in range(len(own)) if top > 0 and own[i] > 0.98 * top]
        return [self.base.names[i] for i in same] if len(same) > 1 else []


def too_little_noise(case: SizeCase, step: int, kind: str) -> Finding:
    """One record adds more to a step than the noise allows for."""
    reach, scale = float(case.reach[step]), float(case.noise.scales[step])
    sigma, base = float(case.sigma[step]), case.base
    state, name_of_step = base.steps[step], f"Step {case.first_step + step + 1}"
    effective = scale / reach
    numbers: dict[str, float | int | str] = {
        "step": case.first_step + step + 1,
        "contribution": reach,
        "noise": scale,
        "effective noise multiplier": effective,
        "accounted noise multiplier": sigma,
    }
    in_thresholds = None
    if state.clip is not None and state.divisor is not None and base.opacus:
        in_thresholds = reach * state.divisor / state.clip
        numbers["contribution in C"] = in_thresholds
        numbers["noise in C"] = scale * state.divisor / state.clip
    tensors = case.equal_tensors(step)
    first_usable = int(np.argmax(case.usable))
    ratio = sigma / effective
    batch = case.n * float(case.rates[step])
    where = name_of_step if kind != "all steps" else f"All steps together, e.g. s{name_of_step[1:]}"
    if kind not in ("step", "all steps"):
        own = float(case.by_tensor[step].max())
        numbers["tensor"] = kind
        index = base.names.index(kind)
        own = float(case.by_tensor[step, index])
        sd = float(case.noise.scales_by_tensor[step, index])
        message = (
            f"{name_of_step}: one record changes the gradient of `{kind}` by {own:.3g} and its "
            f"noise has standard deviation {sd:.3g}: an effective noise multiplier of "
            f"{sd / own if own else math.inf:.3g}, where the accountant assumes {sigma:.3g}."
        )
    elif in_thresholds is not None and in_thresholds > 1.002:
        message = (
            f"{where}: one record changes the clipped sum by {in_thresholds:.3g} C; the "
            f"accountant assumes at most C. The effective noise multiplier is {effective:.3g} "
            f"instead of {sigma:.3g}."
        )
    else:
        message = (
            f"{where}: one record changes the released gradient by {reach:.3g} and the noise has "
            f"standard deviation {scale:.3g}: an effective noise multiplier of {effective:.3g}, "
            f"where the accountant assumes {sigma:.3g}."
        )
    if case.others_change():
        return Finding(
            "contribution",
            message,
            f"{_OTHERS_CHANGE}: a statistic over records (a mean, a count, a quantile, a norm) "
            "enters their gradients, thresholds or weights, their selection depends on it, records "
            "are mixed, or the sum is clipped instead of each gradient.",
            "Compute no statistic over records without noise, and clip the gradient of every "
            "single record to norm C before summing.",
            numbers,
        )
    if case.grows:
        return Finding(
            "contribution",
            message,
            "The contribution grows with the size of the record: its gradient is not clipped, or "
            "only a part of it is.",
            "Clip the gradient of every single record to norm C before summing.",
            numbers,
        )
    if len(tensors) > 1 and reach > 1.2 * float(case.by_tensor[step].max()):
        return Finding(
            "contribution",
            message,
            f"{listed(tensors)} contribute equally much: each tensor (layer) is clipped to C "
            "separately, which allows a norm of C times the square root of their number.",
            "Clip the norm over all tensors together, or scale the noise to the root of the sum "
            "of the squared thresholds.",
            numbers,
        )
    grown = step > first_usable and not case.varying
    if grown and reach > 1.3 * case.reach[first_usable] and ratio > 1.2:
        return Finding(
            "contribution",
            message,
            f"The first step with the record shows {case.reach[first_usable]:.3g}: a state that "
            "carries gradients without noise (momentum, an average, error feedback) brings the "
            "record back in later steps.",
            "Keep such states on released, noisy gradients only.",
            numbers,
        )
    guesses = [(batch, "the expected batch size"), (case.n, "the number of records")]
    for value, name in guesses:
        if value > 1.5 and abs(ratio / value - 1) < 0.08:
            return Finding(
                "noise",
                message,
                f"The noise is {ratio:.3g} times too small, which is {name}: it is divided by it "
                "twice, or added to the mean with the scale of the mean's noise and divided again.",
                "Add noise of standard deviation noise_multiplier * C to the sum, then divide the "
                "noisy sum once.",
                numbers,
            )
    return Finding(
        "noise" if in_thresholds is None or in_thresholds <= 1.002 else "contribution",
        message,
        f"The noise is {ratio:.3g} times too small for the contribution: it is not scaled by C, "
        "it is smaller than the accountant assumes, or a record contributes more than C (several "
        "copies or microbatches clipped one by one, a part of the gradient that is not clipped).",
        "Clip each record once to norm C, add noise of standard deviation noise_multiplier * C to "
        "the sum, and record that noise_multiplier.",
        numbers,
    )


def unequal_noise(case: SizeCase, step: int, effective: float) -> Finding:
    """Tensors with noise of different scales, too small for a record's contribution."""
    scales, names = case.noise.scales_by_tensor[step], case.base.names
    number, sigma = case.first_step + step + 1, float(case.sigma[step])
    low, high = int(np.argmin(scales)), int(np.argmax(scales))
    return Finding(
        "noise",
        f"Step {number}: the noise of `{names[low]}` has standard deviation {scales[low]:.3g}, "
        f"that of `{names[high]}` {scales[high]:.3g}; for the contribution of one record this is "
        f"an effective noise multiplier of {effective:.3g}; the accountant assumes {sigma:.3g}.",
        "Some tensors get less noise than their share of the threshold allows.",
        "Add noise of the same standard deviation, noise_multiplier * C, to all tensors.",
        {"step": number, "effective noise multiplier": effective},
    )


def scale_below_threshold(case: SizeCase, share: float, tensor: str | None) -> Finding:
    """The noise is smaller than sigma C by the optimizer's own C."""
    sigma = float(case.sigma[0])
    where = f"`{tensor}`" if tensor else "the released gradient"
    return Finding(
        "noise",
        f"The noise in {where} has standard deviation {share * sigma:.3g} C (of the sum of "
        f"gradients); the accountant assumes {sigma:.3g} C.",
        "add_noise scales it differently, or the accountant uses another noise multiplier.",
        "Let the optimizer's noise_multiplier and the accountant's be the same number.",
        {"share": share, "accounted noise multiplier": sigma, "tensor": tensor or ""},
    )


# --- noise ---


def no_noise(runs: int, fixed: bool) -> Finding:
    """No released gradient depends on the seed."""
    why = (
        "There is noise, but it is drawn from a generator with a constant seed."
        if fixed
        else "No noise is added, or it is drawn from a generator with a constant seed."
    )
    return Finding(
        "noise",
        f"No step releases noise that depends on the seed: {runs} runs with other seeds release "
        "the same gradients.",
        why,
        "Draw new noise in every step from a generator that the seed of the run controls.",
        {"runs": runs},
    )


def tensors_without_noise(names: Sequence[str]) -> Finding:
    """Some tensors of parameters receive no noise."""
    verb = "receives" if len(names) == 1 else "receive"
    return Finding(
        "noise",
        f"{listed(names)} {verb} no noise.",
        "A loop over parameters skips them, or their noise has a constant seed.",
        "Add noise to every tensor that the optimizer updates.",
        {"tensors": ", ".join(names)},
    )


def coordinates_without_noise(names: Sequence[str], count: int) -> Finding:
    """Coordinates that receive noise for some records and none for others."""
    return Finding(
        "noise",
        f"Which of {count} coordinates of {listed(names)} receive noise depends on the records.",
        "Noise is added only where the gradient is not zero, as in sparse updates of an embedding.",
        "Add noise to every coordinate, also where no record of the batch has a gradient.",
        {"coordinates": count, "tensors": ", ".join(names)},
    )


def steps_without_noise(steps: Sequence[int], count: int) -> Finding:
    """Some steps release no noise."""
    shown = ", ".join(map(str, steps[:8])) + (", ..." if len(steps) > 8 else "")
    return Finding(
        "noise",
        f"{len(steps)} of {count} steps release gradients without noise (steps {shown}).",
        "Noise is added every few steps only, or a schedule sets it to zero.",
        "Add noise before every step of the optimizer.",
        {"steps": len(steps), "first": steps[0]},
    )


def dependent_noise(evidence: TestResult) -> Finding:
    """Noise that is not independent."""
    numbers = evidence.numbers
    if evidence.kind == "direction":
        return Finding(
            "noise",
            "Along the update, or along what one record adds to it, the noise has "
            f"{numbers['ratio']:.3g} times the standard deviation that it has elsewhere.",
            "The noise is made orthogonal to the gradients, or it is multiplied by a matrix that "
            "is computed from them.",
            "Add independent noise of the same scale to every coordinate.",
            numbers,
        )
    if evidence.kind == "rank":
        return Finding(
            "noise",
            f"The coordinates of the noise are dependent: the noise of other runs is "
            f"{numbers['ratio']:.3g} times as large along the noise of some runs as independent "
            "noise is.",
            "Fewer numbers are drawn than there are coordinates (a random projection, a symmetric "
            "matrix), or coordinates have noise of different scales.",
            "Draw an independent number for every coordinate.",
            numbers,
        )
    if evidence.kind == "runs":
        return Finding(
            "noise",
            "Two runs with different seeds have nearly the same noise: they differ by "
            f"{numbers['share']:.3g} times as much as runs with independent noise.",
            "The generator has one of few seeds (a seed modulo a small number), or the noise comes "
            "from a short list.",
            "Seed the generator of the noise with many random bits.",
            numbers,
        )
    correlation = float(numbers["correlation"])
    if evidence.kind == "steps":
        return Finding(
            "noise",
            f"The noise of a step and that of {numbers['lag']} step(s) later have correlation "
            f"{correlation:.3g}; the accountant assumes independent noise.",
            "The generator is seeded again in every step, noise is drawn once and reused, or "
            "earlier noise is subtracted or added again.",
            "Draw new noise in every step.",
            numbers,
        )
    if evidence.kind == "batch":
        return Finding(
            "noise",
            f"A coordinate of the noise and whether a record is in the batch have correlation "
            f"{correlation:.3g}: the noise reveals the batch.",
            "The batch and the noise are drawn with the same key or seed.",
            "Split the key, or draw both one after the other from one generator.",
            numbers,
        )
    if evidence.kind == "shared noise":
        return Finding(
            "noise",
            f"The {numbers['of']} of the noise of a step and that of another step of the same run "
            f"have correlation {correlation:.3g}; the accountant assumes independent noise.",
            "The steps share a draw: the same numbers in another order, slices of a small pool, or "
            "a common scale.",
            "Draw new noise in every step.",
            numbers,
        )
    if evidence.kind == "repeated":
        return Finding(
            "noise",
            f"In `{numbers['tensor']}`, the noise of a number and that of the number "
            f"{numbers['lag']} places later have correlation {correlation:.3g}; the accountant "
            "assumes independent noise.",
            "The same draw fills several places, or every row.",
            "Draw new noise for every number.",
            numbers,
        )
    if evidence.kind == "tensors":
        lag = int(numbers["lag"])
        when = f" {abs(lag)} step(s) {'later' if lag > 0 else 'earlier'}" if lag else ""
        return Finding(
            "noise",
            f"The noise of `{numbers['first']}` and that of `{numbers['second']}`{when} have "
            f"correlation {correlation:.3g}; the accountant assumes independent noise.",
            "The generator is seeded again for every tensor, seeds of steps and tensors overlap, "
            "or one draw serves several tensors.",
            "Draw new noise for every tensor and step, from one generator.",
            numbers,
        )
    return Finding(
        "noise",
        f"Neighbouring coordinates of `{numbers['tensor']}` (axis {numbers['axis']}) have noise of "
        f"correlation {correlation:.3g}; the accountant assumes independent noise.",
        "One number, or one row, is drawn and broadcast over the tensor.",
        "Draw noise of the shape of the tensor (torch.randn_like).",
        numbers,
    )


def shape_of_noise(evidence: TestResult) -> Finding:
    """Noise of another distribution, or of a scale that differs between runs."""
    numbers = evidence.numbers
    if evidence.kind == "scale of runs":
        return Finding(
            "noise",
            f"Step {numbers['step']}: the standard deviation of the noise differs between runs, "
            f"from {numbers['least']:.3g} to {numbers['most']:.3g}.",
            "The noise is scaled by something random: the size of the batch, or a norm.",
            "Scale the noise by constants alone.",
            numbers,
        )
    if evidence.kind == "tails":
        shown = (
            f"{numbers['seen']} of {numbers['numbers']:,} values are more than "
            f"{numbers['limit']:g} standard deviations from the mean, where "
            f"{numbers['expected']:.3g} are expected"
        )
    elif evidence.kind == "distance":
        shown = f"its distribution function is up to {numbers['distance']:.3g} from the Gaussian's"
    else:
        shown = f"its excess kurtosis is {numbers['kurtosis']:.3g} (0 for Gaussian noise)"
    return Finding(
        "noise",
        f"The noise is not Gaussian: {shown}.",
        "It is drawn from another distribution (uniform, Laplace), rounded, truncated, or its "
        "scale varies.",
        "Draw Gaussian noise, or use an accountant for the distribution that is drawn.",
        numbers,
    )


# --- batches ---


def divided_by_batch(found: Batches, others_change: bool) -> Finding:
    """One record's contribution differs between batches."""
    spread = 1 + found.unit_spread
    cause = (
        f"{_OTHERS_CHANGE}, or which of them are drawn (weights by label, loss or norm)."
        if others_change
        else "The noisy sum, or each gradient before it is clipped (loss_reduction), is divided by "
        "the size of the batch that was drawn, or a record is in a batch several times."
    )
    return Finding(
        "contribution",
        f"The contribution of one record differs by a factor of {spread:.3g} between runs of the "
        "same step with equal earlier outputs; the accountant assumes that only noise and "
        "the choice of the batch are random.",
        cause,
        "Divide by a constant, the expected batch size, and draw every record at most once.",
        {"factor": spread},
    )


def depends_on_batch(evidence: TestResult) -> Finding:
    """One record's contribution depends on the size of its batch."""
    return Finding(
        "contribution",
        "The contribution of one record depends on how many records are in its batch (rank "
        f"correlation {evidence.numbers['correlation']:.3g}); the accountant assumes that it does "
        "not.",
        "The gradient of each record is divided by, or multiplied by, the size of the batch before "
        "it is clipped: the loss and the wrapper disagree about loss_reduction (a mean loss, and "
        'loss_reduction="sum", or the other way round).',
        "Use the same reduction in the loss and in Opacus, and divide the noisy sum by a constant.",
        evidence.numbers,
    )


def wrong_batches(evidence: TestResult, n: int, others_change: bool = False) -> Finding:
    """Batches that were not drawn as accounted."""
    found = _wrong_batches(evidence, n)
    if not others_change:
        return found
    cause = (
        f"{_OTHERS_CHANGE}: which records are drawn probably depends on their values (a selection "
        f"by loss, norm or label, or a replay). Otherwise: {found.cause}"
    )
    return replace(found, cause=cause)


def _wrong_batches(evidence: TestResult, n: int) -> Finding:
    numbers = evidence.numbers
    fix = (
        "Draw every record independently with the accounted rate (Poisson sampling, "
        "UniformWithReplacementSampler or make_private(poisson_sampling=True)), or account for "
        "full batches."
    )
    kind = evidence.kind
    if kind == "mean of batches":
        return Finding(
            "batches",
            f"Batches hold {numbers['mean']:.4g} records on average; the accountant's sampling "
            f"rate {numbers['rate']:.3g} with n = {n} implies {numbers['expected']:.4g}.",
            "The rate was computed from another number of records or another batch size, batches "
            "are accumulated, or empty batches are drawn again.",
            fix,
            numbers,
        )
    if kind == "fixed batches":
        return Finding(
            "batches",
            f"The batch sizes ({numbers['least']:.4g} to {numbers['most']:.4g} in "
            f"{numbers['batches']} batches) vary less than those of Poisson sampling at the "
            f"accounted rate {numbers['rate']:.3g} would.",
            "Batches of a fixed or a largest size (shuffled, in order, or cut) are accounted for "
            "as Poisson sampled.",
            fix,
            numbers,
        )
    if kind == "limited batches":
        return Finding(
            "batches",
            f"None of {numbers['batches']} batches holds more than {numbers['most']:.4g} records; "
            f"Poisson sampling of n = {n} records at rate {numbers['rate']:.3g} draws larger ones.",
            "Batches are cut at a largest size, or they hold a fixed number of records.",
            fix,
            numbers,
        )
    if kind == "batches without the seed":
        return Finding(
            "batches",
            f"The batch sizes of a step are the same for every seed ({numbers['batches']} in all).",
            "The sampler has a constant seed, so that an observer knows the batches.",
            fix,
            numbers,
        )
    if kind == "uneven batches":
        return Finding(
            "batches",
            f"The batch sizes vary {numbers['dispersion']:.3g} times more than those of Poisson "
            f"sampling at the accounted rate {numbers['rate']:.3g} would.",
            "Records are drawn in blocks, not independently.",
            fix,
            numbers,
        )
    if kind == "repeated batches":
        return Finding(
            "batches",
            f"The batch sizes of neighbouring steps have correlation "
            f"{numbers['correlation']:.3g}; the accountant assumes independent batches.",
            "The sampler is seeded again in every step, or a batch is used for several steps.",
            fix,
            numbers,
        )
    if kind == "no empty batch":
        return Finding(
            "batches",
            f"None of {numbers['batches']} batches of n = {n} records is empty; Poisson sampling "
            f"at rate {numbers['rate']:.3g} leaves many of them empty.",
            "Empty batches are drawn again, skipped or filled up.",
            "Keep empty batches: release noise alone at such steps.",
            numbers,
        )
    if kind == "inclusion rate":
        return Finding(
            "batches",
            f"One record was in {numbers['hits']} of {numbers['tries']} batches "
            f"({100 * float(numbers['share']):.3g} %); the accountant assumes "
            f"{100 * float(numbers['rate']):.3g} %.",
            "Some records are drawn more often than others (weights by class, a last batch that is "
            "filled up), or the accounted rate is too small.",
            fix,
            numbers,
        )
    if kind == "inclusion without the seed":
        return Finding(
            "batches",
            "The record is in the same batches for every seed; the accountant assumes that no one "
            "knows its batches.",
            "Batches are taken in order, or the sampler has a constant seed.",
            fix,
            numbers,
        )
    return Finding(
        "batches",
        f"The record was in exactly {numbers['per run']} of {numbers['steps']} batches in each of "
        f"{numbers['runs']} runs.",
        "Batches are a shuffled partition of the records, accounted for as Poisson sampled.",
        fix,
        numbers,
    )


# --- accountant, released numbers, number of records ---


def books(trace: Trace, history: History) -> list[Finding]:
    """The accountant's history against the steps that were seen."""
    found = []
    recorded, seen = sum(steps for _, _, steps in history), len(trace.steps)
    if recorded < seen:
        found.append(
            Finding(
                "accountant",
                f"The accountant recorded {recorded} steps; the optimizer took {seen}.",
                "The accountant is stepped per epoch or per virtual batch, is not attached to this "
                "optimizer, or steps were added after it was set.",
                "Attach it: optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(rate)), or "
                "call accountant.step at every step of the optimizer.",
                {"recorded": recorded, "steps": seen},
            )
        )
    if recorded == seen:
        expanded = [sigma for sigma, _, steps in history for _ in range(steps)]
        for number, (step, sigma) in enumerate(zip(trace.steps, expanded, strict=True), 1):
            own = step.noise_multiplier
            if own is not None and trace.opacus and sigma > own * (1 + 1e-6):
                found.append(
                    Finding(
                        "accountant",
                        f"Step {number}: the accountant recorded noise multiplier {sigma:.4g}; the "
                        f"optimizer's is {own:.4g}.",
                        "The optimizer's noise was changed, or the accountant recorded another "
                        "number.",
                        "Record the noise multiplier that the optimizer uses.",
                        {"step": number, "recorded": sigma, "optimizer": own},
                    )
                )
                break
    return found


def claim_too_small(
    claim: float, implied: float, delta: float, measured: Mapping[str, float]
) -> Finding:
    """A claimed epsilon that noise and contributions contradict."""
    return Finding(
        "accountant",
        f"The function claims epsilon {claim:.4g} at delta {delta:g}; its noise, contributions and "
        f"steps imply at least {implied:.4g}.",
        "The claim was computed for other parameters: noise, steps, rate or threshold.",
        "Compute the claim from the noise multiplier, the sampling rate and the steps of this run.",
        {"claim": claim, "implied": implied},
    )


def weights_outside(step: int, settings: bool, within: bool) -> Finding:
    """The weights depend on the record although all gradients were forced.

    Args:
        step: before which they do, from 0.
        settings: whether the optimizer's settings depend on the record, too.
        within: whether the weights differ right after the optimizer's step.
    """
    if settings:
        cause = (
            "The learning rate, or another setting of the optimizer, depends on the records: a "
            "schedule reads a loss or a norm that has no noise."
        )
    elif within:
        cause = (
            "The optimizer's step uses more than p.grad: its own state (second moments, a "
            "preconditioner), or gradients without noise."
        )
    else:
        cause = (
            "Something other than the optimizer's step changes the weights: a second, non-private "
            "update, a projection or a normalisation that looks at the data."
        )
    return Finding(
        "released numbers",
        f"The weights before step {step + 1} depend on the record although every released gradient "
        "was the same. Contributions to later steps are not compared.",
        cause,
        "Change the weights, the optimizer's state and its settings by released numbers only.",
        {"step": step + 1},
    )


def initial_weights() -> Finding:
    """The initial weights depend on the record."""
    return Finding(
        "released numbers",
        "The initial weights depend on the record.",
        "They were computed from the records (label frequencies, a mean, an earlier training "
        "without noise).",
        "Initialize without the private records, or account for what was computed from them.",
    )


def steps_depend(one: int, other: int) -> Finding:
    """The number of steps depends on a record."""
    return Finding(
        "released numbers",
        f"The number of steps depends on the record: {one} with one record in its place, {other} "
        "with another, although every released gradient was the same.",
        "Training stops, or a step is skipped, by a criterion on the records: the training loss, "
        "or an overflow of scaled gradients.",
        "Fix the number of steps beforehand, or decide by released numbers only.",
        {"one": one, "other": other},
    )


def released_outside(differing: Mapping[str, float]) -> Finding:
    """Numbers that depend on the record and are no function of the released gradients."""
    names = list(differing)
    verb = "depends" if len(names) == 1 else "depend"
    it = "it is" if len(names) == 1 else "they are"
    running = any("running_" in name or "num_batches" in name for name in names)
    cause = (
        "Batch normalisation keeps statistics of the records without noise."
        if running
        else "It is computed from the records without noise: a loss or an accuracy on the training "
        "records, a statistic, an early stop, or weights that something else changed."
    )
    fix = (
        "Use GroupNorm or LayerNorm (opacus.validators.ModuleValidator.fix)."
        if running
        else "Do not release it, compute it on public records, or add noise and account for it."
    )
    return Finding(
        "released numbers",
        f"{listed(names)} {verb} on the record, but {it} not part of the accounted output.",
        cause,
        fix,
        {name: gap for name, gap in list(differing.items())[:_MAX_NAMES]},
    )


def constant_numbers(leaks: Mapping[str, float], seeds: int) -> Finding:
    """Numbers without noise that a neighbouring data set changes."""
    names = list(leaks)
    verb = "is" if len(names) == 1 else "are"
    return Finding(
        "released numbers",
        f"{listed(names)} {verb} the same for {seeds} seeds, and different where one record is "
        "exchanged: no noise protects the record.",
        "It is computed from the records without noise, or its noise has a constant seed.",
        "Do not release it, or add noise that the seed controls and account for it.",
        {name: gap for name, gap in list(leaks.items())[:_MAX_NAMES]},
    )


def inferred_classes(names: Sequence[str]) -> Finding:
    """Released shapes that depend on whether a class occurs."""
    return Finding(
        "released numbers",
        f"The shape of {listed(names)} depends on whether one record is the only one of its class.",
        "The classes, categories or bounds are inferred from the private records.",
        "Pass the classes as public constants.",
        {},
    )


def scaled_by_size(names: Sequence[str], n: int) -> Finding:
    """Numbers that are divided by the number of records."""
    return Finding(
        "number of records",
        f"For every seed, {listed(names)} changes by a power of {n}/{n - 1} when a record of zeros "
        "is removed. Under add-remove neighbours the scale of its noise reveals the number of "
        "records.",
        "The released number, noise included, is divided by the number of records.",
        'State the zero-out relation, under which n is public (relation="zero-out"), divide by a '
        "public constant, or spend part of the budget on a noisy count.",
        {"n": n},
    )


def depends_on_n(
    high: int, low: int, upper: Mapping[str, Any], lower: Mapping[str, Any], ratio: float | None
) -> Finding:
    """Normaliser, rate, noise or steps that depend on the number of records."""
    parts = []
    if upper["divisor"] is not None and upper["divisor"] != lower["divisor"]:
        parts.append(
            f"gradients are divided by {upper['divisor']:g} for {high} records and by "
            f"{lower['divisor']:g} for {low}"
        )
    elif ratio is not None and abs(ratio - 1) > 1e-4:
        if abs(ratio / (high / low) - 1) < 2e-3:
            parts.append(
                f"gradients are divided by {high} for {high} records and by {low} for {low}"
            )
        else:
            parts.append(
                f"gradients are {ratio:.4g} times as large for {low} records as for {high}"
            )
    if upper["rates"] != lower["rates"]:
        parts.append(
            f"the accounted sampling rate is {_numbers(upper['rates'])} for {high} records "
            f"and {_numbers(lower['rates'])} for {low}"
        )
    if upper["sigmas"] != lower["sigmas"]:
        parts.append(
            f"the accounted noise multiplier is {_numbers(upper['sigmas'])} for {high} "
            f"records and {_numbers(lower['sigmas'])} for {low}"
        )
    if None not in (upper["steps"], lower["steps"]) and upper["steps"] != lower["steps"]:
        parts.append(
            f"there are {upper['steps']} steps for {high} records and {lower['steps']} for {low}"
        )
    message = "; ".join(parts)
    return Finding(
        "number of records",
        f"{message[:1].upper()}{message[1:]}. Under add-remove neighbours the release reveals the "
        "number of records.",
        "The normaliser, the sampling rate or the number of steps is computed from the number of "
        "records (make_private uses 1 / len(loader) and int(n * rate)).",
        'State the zero-out relation, under which n is public (relation="zero-out"), or set the '
        "normaliser, the rate and the steps from outside: optimizer.expected_batch_size and "
        "sample_rate as public constants.",
        {"high": high, "low": low, "ratio": float("nan") if ratio is None else ratio},
    )


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.4g}" for v in values) or "none"

"""The texts of the findings: the observation, its likely cause, and a fix."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from audit.loop.findings import Finding
from audit.loop.premises.noise import TestResult
from audit.loop.runs.coupled_runs import Trace

_MAX_NAMES = 4
# Relative rounding of a contribution that is a whole multiple of another.
_WHOLE = 1e-3
OTHERS_CHANGE = "The record changes what other records contribute"
_ALL_STEPS = (
    "Something that is computed from more records than the batch enters each step without noise: "
    "a statistic, a label, a weight, a norm, the seed of the noise, or gradients of an earlier "
    "batch (momentum, a stale sum, a replay). Otherwise, the record is drawn too often."
)
_DRAWN_TOO_OFTEN = (
    "The accounted rate is too small, or whether a record is drawn depends on the records (weights "
    "by class, a last batch that is filled up, empty batches that are drawn again, a hash of the "
    "record)"
)
_INDEPENDENT = "; the accountant assumes independent noise."
_POISSON = (
    "Draw every record independently with the accounted rate (Poisson sampling, "
    "UniformWithReplacementSampler or make_private(poisson_sampling=True)), or account for "
    "full batches."
)
_NEW_NOISE = "Draw new noise in every step."
_OTHER_TERM = (
    " Or p.grad holds another random term, computed without the records: declare it by "
    "watch.release."
)
_NOT_GAUSSIAN = (
    "It is drawn from another distribution (uniform, Laplace), rounded, truncated, or its scale "
    f"varies.{_OTHER_TERM}",
    "Draw Gaussian noise, or use an accountant for the distribution that is drawn.",
)

# Premise, message, likely cause and fix of each kind of finding. Messages are formatted with the
# finding's numbers.
_TEXTS: dict[str, tuple[str, str, str, str]] = {
    "not finite": (
        "contribution",
        "{records} of {of} records that were exchanged{smallest} make a released gradient infinite "
        "or not a number, and the others do not. This reveals that such a record is in the data.",
        "The gradient of a record overflows: clipping multiplies an infinite gradient by 0, which "
        "is not a number.",
        "Set gradients that are not finite to zero, record by record, before the sum "
        "(torch.nan_to_num), or limit the features to a public range first.",
    ),
    "influence": (
        "contribution",
        "One record changes {hits} of {tries} steps ({share in %:.3g} %), by different amounts "
        "for different seeds; the accountant assumes that it is in {rate in %:.3g} % of the "
        "batches and changes no other step.",
        f"{_DRAWN_TOO_OFTEN}, or something that is computed from more records than the batch "
        "enters steps without noise: a statistic, a label, a weight, a norm, or gradients of an "
        "earlier batch (momentum, a stale sum, a replay).",
        "Compute every step from its own batch and from released numbers only, and draw every "
        "record independently with the accounted rate.",
    ),
    # --- noise ---
    "no noise": (
        "noise",
        "No step releases noise that depends on the seed: {runs} runs with other seeds release "
        "the same gradients.",
        "No noise is added, it is overwritten (by a closure or a backward pass after it), or it is "
        "drawn from a generator with a constant seed.",
        "Draw new noise in every step from a generator that the seed of the run controls.",
    ),
    "tensors without noise": (
        "noise",
        "{names} no noise.",
        "A loop over parameters skips them, or their noise has a constant seed.",
        "Add noise to every tensor that the optimizer updates.",
    ),
    "coordinates without noise": (
        "noise",
        "{coordinates} of {of} coordinates receive no noise (in {names}), although they depend on "
        "the records.",
        "The noise holds fewer numbers than the gradient and is padded, or a mask removes it.",
        "Draw noise of the shape of the tensor (torch.randn_like).",
    ),
    "noise lost": (
        "noise",
        "Step {step}: the released gradient has no noise if one record is in the data, and has "
        "noise if another record takes its place.",
        "A step is skipped, or its noise left out, by a criterion on the records: an overflow of "
        "scaled gradients, an empty batch, a gradient that is not finite.",
        "Release noise in every step, and decide by released numbers only.",
    ),
    "noise by coordinate": (
        "noise",
        "Which of {coordinates} coordinates of {names} receive noise depends on the records.",
        "Noise is added only where the gradient is not zero, as in sparse updates of an embedding.",
        "Add noise to every coordinate, also where no record of the batch has a gradient.",
    ),
    "steps without noise": (
        "noise",
        "{steps} of {of} steps release gradients without noise (steps {shown}).",
        "Noise is added every few steps only, or a schedule sets it to zero.",
        "Add noise before every step of the optimizer.",
    ),
    "direction": (
        "noise",
        "Along the update, or along what one record adds to it, the noise has {ratio:.3g} times "
        "the standard deviation that it has elsewhere.",
        "The noise is made orthogonal to the gradients, or it is multiplied by a matrix that is "
        "computed from them.",
        "Add independent noise of the same scale to every coordinate.",
    ),
    "rank": (
        "noise",
        "The coordinates of the noise are dependent: the noise of other runs is {ratio:.3g} times "
        "as large along the noise of some runs as independent noise is.",
        "Fewer numbers are drawn than there are coordinates (a random projection, a symmetric "
        f"matrix), or coordinates have noise of different scales.{_OTHER_TERM}",
        "Draw an independent number for every coordinate.",
    ),
    "flat": (
        "noise",
        "A combination of coordinates has {ratio:.3g} times the noise that each coordinate has.",
        "The noise is made to sum to zero, its mean is subtracted, or it is projected.",
        "Add independent noise of the same scale to every coordinate, and do not change "
        "it afterwards.",
    ),
    "length": (
        "noise",
        "The noise has nearly the same length in every run: its length varies with {ratio:.3g} "
        "times the variance that Gaussian noise has.",
        "The noise is scaled to a constant length.",
        "Add independent Gaussian noise to every coordinate, and do not normalize it.",
    ),
    "runs": (
        "noise",
        "Two runs with different seeds have nearly the same noise: they differ by {share:.3g} "
        "times as much as runs with independent noise.",
        "The generator has one of few seeds (a seed modulo a small number), or the noise comes "
        "from a short list.",
        "Seed the generator of the noise with many random bits.",
    ),
    "steps": (
        "noise",
        "The noise of a step and that of {lag} step(s) later have correlation {correlation:.3g}"
        + _INDEPENDENT,
        "The generator is seeded again in every step, noise is drawn once and reused, or earlier "
        "noise is subtracted or added again (momentum of noisy gradients is private, but belongs "
        f"into the optimizer, not into p.grad).{_OTHER_TERM}",
        _NEW_NOISE,
    ),
    "batch": (
        "noise",
        "A coordinate of the noise and whether a record is in the batch have correlation "
        "{correlation:.3g}: the noise reveals the batch.",
        "The batch and the noise are drawn with the same key or seed.",
        "Split the key, or draw both one after the other from one generator.",
    ),
    "shared noise": (
        "noise",
        "The {of} of the noise of a step and that of another step of the same run have correlation "
        "{correlation:.3g}" + _INDEPENDENT,
        "The steps share a draw: the same numbers in another order, slices of a small pool, or a "
        "common scale.",
        _NEW_NOISE,
    ),
    "repeated": (
        "noise",
        "In `{tensor}`, the noise of a number and that of the number {lag} places later have "
        "correlation {correlation:.3g}" + _INDEPENDENT,
        "The same draw fills several places, or every row.",
        "Draw new noise for every number.",
    ),
    "tensors": (
        "noise",
        "The noise of `{first}` and that of `{second}`{when} have correlation {correlation:.3g}"
        + _INDEPENDENT,
        "The generator is seeded again for every tensor, seeds of steps and tensors overlap, or "
        "one draw serves several tensors.",
        "Draw new noise for every tensor and step, from one generator.",
    ),
    "coordinates": (
        "noise",
        "Neighbouring coordinates of `{tensor}` (axis {axis}) have noise of correlation "
        "{correlation:.3g}" + _INDEPENDENT,
        f"One number, or one row, is drawn and broadcast over the tensor.{_OTHER_TERM}",
        "Draw noise of the shape of the tensor (torch.randn_like).",
    ),
    "scale of runs": (
        "noise",
        "Step {step}: the standard deviation of the noise differs between runs, from {least:.3g} "
        "to {most:.3g}.",
        "The noise is scaled by something random: the size of the batch, or a norm.",
        "Scale the noise by constants alone.",
    ),
    "scale by batch": (
        "noise",
        "The size of the noise and that of the batch have correlation {correlation:.3g}; the "
        "accountant assumes noise of one scale.",
        "The noise is scaled by the size of the batch, or by its root.",
        "Scale the noise by constants alone.",
    ),
    "tails": (
        "noise",
        "The noise is not Gaussian: {seen} of {numbers:,} values are more than {limit:g} standard "
        "deviations from the mean, where {expected:.3g} are expected.",
        *_NOT_GAUSSIAN,
    ),
    "distance": (
        "noise",
        "The noise is not Gaussian: its distribution function is up to {distance:.3g} from the "
        "Gaussian's.",
        *_NOT_GAUSSIAN,
    ),
    "grain": (
        "noise",
        "Noise of different runs is equal to the last digit in {seen} of {pairs:,} pairs: some of "
        "its values recur, so that the sum of the gradients remains visible.",
        "It is drawn in half precision (float16, bfloat16), rounded, or cut off at a largest size "
        "(clamp), and added to a sum of higher precision.",
        "Draw the noise in the precision of the gradients and do not cut it off, or round the sum "
        "in the same way before the noise is added.",
    ),
    "distribution": (
        "noise",
        "The noise is not Gaussian: its excess kurtosis is {kurtosis:.3g} (0 for Gaussian noise).",
        *_NOT_GAUSSIAN,
    ),
    "scale": (
        "noise",
        "The noise in {where} has standard deviation {in thresholds:.3g} C (of the sum of "
        "gradients); the accountant assumes {accounted noise multiplier:.3g} C.",
        "add_noise scales it differently, or the accountant uses another noise multiplier.",
        "Let the optimizer's noise_multiplier and the accountant's be the same number.",
    ),
    # --- batches ---
    "divided by the batch": (
        "contribution",
        "The contribution of one record differs by a factor of {factor:.3g} between runs of the "
        "same step with equal earlier outputs; the accountant assumes that only noise and the "
        "choice of the batch are random.",
        "The noisy sum, or each gradient before it is clipped (loss_reduction), is divided by the "
        "size of the batch that was drawn; the mean gradient of the batch is used without clipping "
        "(with ghost clipping: the loss is not the criterion that make_private returns); or a "
        "record is in a batch several times.",
        "Divide by a constant, the expected batch size, clip the gradient of every record, and "
        "draw every record at most once.",
    ),
    "size of the batch": (
        "contribution",
        "The contribution of one record depends on how many records are in its batch (rank "
        "correlation {correlation:.3g}); the accountant assumes that it does not.",
        "The gradient of each record is divided or multiplied by the size of the batch before "
        "it is clipped: the loss and the wrapper disagree about loss_reduction (a mean loss, and "
        'loss_reduction="sum", or the other way round).',
        "Use the same reduction in the loss and in Opacus, and divide the noisy sum by a constant.",
    ),
    "one more record": (
        "contribution",
        "One more record in a batch changes a step by {ratio:.3g} times what the noise allows for, "
        "although an exchange of records does not.",
        "An amount that is the same for every record is added to the sum without noise, after the "
        "gradients are clipped (weight decay, the gradient of a penalty).",
        "Add such terms to the noisy gradient, scaled by a constant, or to each record's gradient "
        "before it is clipped.",
    ),
    "mean of batches": (
        "batches",
        "A step holds contributions of {mean:.4g} records on average; the accountant's sampling "
        "rate {rate:.3g} with n = {n} implies {expected:.4g}.",
        "The rate was computed from another number of records or another batch size, batches are "
        "accumulated, or empty batches are drawn again.",
        _POISSON,
    ),
    "fixed batches": (
        "batches",
        "The number of records that contribute to a step ({least:.4g} to {most:.4g} in {batches} "
        "steps) varies less than Poisson sampling at the accounted rate {rate:.3g} makes it vary.",
        "Batches of a fixed or a largest size (shuffled, in order, or cut) are accounted for as "
        "Poisson sampled, or a layer takes a limited number of records (an expert's capacity).",
        _POISSON,
    ),
    "limited batches": (
        "batches",
        "At most {most:.4g} records contribute to each of {batches} steps; Poisson sampling of "
        "n = {n} records at rate {rate:.3g} draws more.",
        "Batches are cut at a largest size, they hold a fixed number of records, or a layer takes "
        "a limited number of them (the capacity of an expert).",
        _POISSON,
    ),
    "gaps in batches": (
        "batches",
        "{seen} of {batches} batches hold {size} records, but {less} hold {smaller} and {more} "
        "hold {larger}: the sizes of Poisson samples have a single peak.",
        "Batches are cut to whole microbatches, or filled up to them, so that one record decides "
        "whether others are used.",
        "Keep incomplete microbatches, and fill them up with records that contribute nothing.",
    ),
    "batches without the seed": (
        "batches",
        "The batch sizes of a step are the same for every seed ({batches} in all).",
        "Batches have fixed sizes (shuffled records are split, and the last batch is smaller), or "
        "the sampler has a constant seed, so that an observer knows the batches.",
        _POISSON,
    ),
    "uneven batches": (
        "batches",
        "The batch sizes vary {dispersion:.3g} times more than those of Poisson sampling at the "
        "accounted rate {rate:.3g} would.",
        "Records are drawn in blocks, not independently.",
        _POISSON,
    ),
    "repeated batches": (
        "batches",
        "The batch sizes of neighbouring steps have correlation {correlation:.3g}; the accountant "
        "assumes independent batches.",
        "The sampler is seeded again in every step, or records of a batch are used in several "
        "steps.",
        _POISSON,
    ),
    "no empty batch": (
        "batches",
        "None of {batches} batches of n = {n} records is empty; Poisson sampling at rate "
        "{rate:.3g} leaves many of them empty.",
        "Empty batches are drawn again, skipped or filled up.",
        "Keep empty batches: release noise alone at such steps.",
    ),
    "inclusion rate": (
        "batches",
        "One record changes {hits} of {tries} steps ({share in %:.3g} %); the accountant assumes "
        "that it is in {rate in %:.3g} % of the batches.",
        f"{_DRAWN_TOO_OFTEN}.",
        _POISSON,
    ),
    "inclusion without the seed": (
        "batches",
        "The record changes the same steps for every seed; the accountant assumes that no one "
        "knows its batches.",
        "Batches are taken in order, the record is in every batch, or the sampler has a constant "
        "seed.",
        _POISSON,
    ),
    "inclusions of a run": (
        "batches",
        "The record was in exactly {per run} of {steps} batches in each of {runs} runs.",
        "Batches are a shuffled partition of the records, accounted for as Poisson sampled.",
        _POISSON,
    ),
    "even inclusions": (
        "batches",
        "The record changes {least} to {most} of the {steps} steps of a run: this number varies "
        "{ratio:.3g} times as much as for Poisson sampling.",
        "Batches are taken from shuffled records, so that a record is not drawn twice within a "
        "short time.",
        _POISSON,
    ),
    # --- accountant, released numbers, number of records ---
    "too few steps": (
        "accountant",
        "The accountant recorded {recorded} steps; the optimizer took {steps}.",
        "The accountant is stepped per epoch or per virtual batch, is not attached to this "
        "optimizer, or steps were added after it was set.",
        "Attach it: optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(rate)), or call "
        "accountant.step at every step of the optimizer.",
    ),
    "noise multiplier": (
        "accountant",
        "Step {step}: the accountant recorded noise multiplier {recorded:.4g}; the optimizer's is "
        "{optimizer:.4g}.",
        "The optimizer's noise was changed, or the accountant recorded another number.",
        "Record the noise multiplier that the optimizer uses.",
    ),
    "claim": (
        "accountant",
        "The function claims epsilon {claim:.4g} at delta {delta:g}; its noise, contributions and "
        "steps imply at least {implied:.4g}.",
        "The claim was computed for other parameters: noise, steps, rate or threshold.",
        "Compute the claim from the noise multiplier, the sampling rate and the steps of this run.",
    ),
    "weights": (
        "released numbers",
        "The weights before step {step} depend on the record although every released gradient was "
        "the same. Contributions to later steps are not compared.",
        "",
        "Change the weights, the optimizer's state and its settings by released numbers only.",
    ),
    "first weights": (
        "released numbers",
        "The weights before the first step depend on the record, although nothing has been "
        "released yet.",
        "A forward pass on records sets weights or buffers (ActNorm or another initialisation that "
        "depends on the data, a normalisation of the weights).",
        "Initialize on public records, or account for values computed from the private ones.",
    ),
    "initial weights": (
        "released numbers",
        "The initial weights, or the initial state of the optimizer, depend on the record.",
        "They were computed from the records (label frequencies, a mean, an earlier training "
        "without noise).",
        "Initialize without the private records, or account for values computed from them.",
    ),
    "number of steps": (
        "released numbers",
        "The number of steps depends on the record: {one} with one record in this place, {other} "
        "with another, although every released gradient was the same.",
        "Training stops, or a step is skipped, by a criterion on the records: the training loss, "
        "an empty batch, or an overflow of scaled gradients.",
        "Fix the number of steps beforehand, or decide by released numbers only.",
    ),
    "released": (
        "released numbers",
        "{names} on the record, but {it} not part of the accounted output.",
        "It is computed from the records without noise: a loss or an accuracy on the training "
        "records, a statistic, an early stop, or weights that something else changed.",
        "Do not release it, compute it on public records, or add noise and account for it.",
    ),
    "constant": (
        "released numbers",
        "{names} the same for {seeds} seeds, and different if one record is exchanged: no noise "
        "protects the record.",
        "It is computed from the records without noise, or its noise has a constant seed.",
        "Do not release it, or add noise that the seed controls and account for it.",
    ),
    "inferred classes": (
        "released numbers",
        "The shape of {names} depends on one record, which may be the only one of its class.",
        "The classes, categories, tokens or bounds are inferred from the private records.",
        "Pass them as public constants.",
    ),
    "scaled by n": (
        "number of records",
        "For every seed, {names} changes by a power of {n}/{less} when a record of zeros is "
        "removed. Under add-remove neighbours the scale of its noise reveals the number of "
        "records.",
        "The released number, noise included, is divided by the number of records.",
        'State the zero-out relation, under which n is public (relation="zero-out"), divide by a '
        "public constant, or spend part of the budget on a noisy count.",
    ),
    "depends on n": (
        "number of records",
        "{what}. Under add-remove neighbours the release reveals the number of records.",
        "The normaliser, the sampling rate or the number of steps is computed from the number of "
        "records (make_private uses 1 / len(loader) and int(n * rate)).",
        'State the zero-out relation, under which n is public (relation="zero-out"), or set the '
        "normaliser, the rate and the steps from outside: optimizer.expected_batch_size and "
        "sample_rate as public constants.",
    ),
}


def explain(kind: str, **numbers: Any) -> Finding:
    """The finding of a kind, with its numbers."""
    premise, message, cause, fix = _TEXTS[kind]
    return Finding(premise, message.format(**numbers), cause, fix, numbers)


def explain_test(evidence: TestResult, others_change: bool = False) -> Finding:
    """The finding of a statistical test."""
    found = explain(evidence.kind, **evidence.numbers)
    if not others_change:
        return found
    why = "a statistic over records enters their gradients, or which of them are drawn or kept "
    cause = f"{OTHERS_CHANGE}: {why}depends on their values. Otherwise: {found.cause}"
    return replace(found, cause=cause)


def influence(evidence: TestResult, others_change: bool) -> Finding:
    """A record changes steps whose batch does not hold it, or it is drawn too often."""
    found = explain_test(evidence)
    everywhere = others_change or evidence.numbers["hits"] == evidence.numbers["tries"]
    return replace(found, cause=_ALL_STEPS) if everywhere else found


def listed(names: Iterable[str], verb: str = "") -> str:
    """A few names in backticks, how many more there are, and a verb (without the s of one)."""
    every = list(names)
    shown = ", ".join(f"`{each}`" for each in every[:_MAX_NAMES])
    rest = len(every) - _MAX_NAMES
    shown = f"{shown} and {rest} more" if rest > 0 else shown
    if not verb:
        return shown
    ending = "s" if len(every) == 1 and verb != "are" else ""
    return f"{shown} {'is' if verb == 'are' and len(every) == 1 else verb + ending}"


def no_noise(runs: int, fixed: bool) -> Finding:
    """No released gradient depends on the seed."""
    found = explain("no noise", runs=runs)
    cause = "There is noise, but it is drawn from a generator with a constant seed."
    return replace(found, cause=cause) if fixed else found


def steps_without_noise(steps: Sequence[int], count: int) -> Finding:
    """Some steps release no noise."""
    shown = ", ".join(map(str, steps[:8])) + (", ..." if len(steps) > 8 else "")
    return explain("steps without noise", steps=len(steps), of=count, shown=shown, first=steps[0])


def divided_by_batch(spread: float, others_change: bool) -> Finding:
    """One record's contribution differs between batches."""
    found = explain("divided by the batch", factor=1 + spread)
    drawn = f"{OTHERS_CHANGE}, or which of them are drawn (weights by label, loss or norm)."
    cause = drawn if others_change else found.cause
    if abs(spread - round(spread)) < _WHOLE:
        several = "A record is in a batch several times (drawn with replacement, or copied)."
        cause = f"{several} Otherwise: {cause}"
    return replace(found, cause=cause)


def books(trace: Trace) -> list[Finding]:
    """Findings about an accountant whose history does not match the steps of the optimizer."""
    history = trace.history or ()
    recorded, seen = sum(steps for _, _, steps in history), len(trace.steps)
    if recorded < seen:
        return [explain("too few steps", recorded=recorded, steps=seen)]
    if recorded == seen and trace.opacus:
        expanded = [sigma for sigma, _, steps in history for _ in range(steps)]
        for number, (step, sigma) in enumerate(zip(trace.steps, expanded, strict=True), 1):
            own = step.noise_multiplier
            if own is not None and sigma > own * (1 + 1e-6):
                return [explain("noise multiplier", step=number, recorded=sigma, optimizer=own)]
    return []


def weights_outside(step: int, settings: bool, within: bool) -> Finding:
    """The weights depend on the record although all gradients were forced.

    Args:
        step: the first step, from 0, before which they depend on it.
        settings: whether the optimizer's settings depend on the record too.
        within: whether the weights differ right after the optimizer's step.
    """
    if step == 0:
        return explain("first weights")
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
            "update, or a projection or normalization that uses the data."
        )
    return replace(explain("weights", step=step + 1), cause=cause)


def released_outside(differing: Mapping[str, float]) -> Finding:
    """Numbers that depend on the record although all released gradients were forced."""
    it = "it is" if len(differing) == 1 else "they are"
    found = replace(
        explain("released", names=listed(differing, "depend"), it=it), numbers=_few(differing)
    )
    if any("running_" in name or "num_batches" in name for name in differing):
        cause = "Batch normalisation keeps statistics of the records without noise."
        fix = "Use GroupNorm or LayerNorm (opacus.validators.ModuleValidator.fix)."
        return replace(found, cause=cause, fix=fix)
    return found


def constant_numbers(leaks: Mapping[str, float], seeds: int) -> Finding:
    """Numbers without noise that differ between neighbouring data sets."""
    found = explain("constant", names=listed(leaks, "are"), seeds=seeds)
    return replace(found, numbers=_few(leaks))


def _few(gaps: Mapping[str, float]) -> dict[str, float]:
    return dict(list(gaps.items())[:_MAX_NAMES])


def depends_on_n(
    high: int, low: int, upper: Mapping[str, Any], lower: Mapping[str, Any], ratio: float | None
) -> Finding:
    """Normaliser, rate, noise or steps that depend on the number of records.

    Args:
        high: a number of records.
        low: a smaller one.
        upper: "divisor", "steps", "rates" and "sigmas" with `high` records.
        lower: with `low` records.
        ratio: contributions with `low` records over those with `high`; None if unknown.
    """
    parts = []
    if upper["divisor"] is not None and upper["divisor"] != lower["divisor"]:
        parts.append(
            f"gradients are divided by {upper['divisor']:g} for {high} records and by "
            f"{lower['divisor']:g} for {low}"
        )
    elif ratio is not None and abs(ratio - 1) > 1e-4:
        as_n = abs(ratio / (high / low) - 1) < 2e-3
        parts.append(
            f"gradients are divided by {high} for {high} records and by {low} for {low}"
            if as_n
            else f"gradients are {ratio:.4g} times as large for {low} records as for {high}"
        )
    for key, name in (("rates", "sampling rate"), ("sigmas", "noise multiplier")):
        if upper[key] != lower[key]:
            one, other = (", ".join(f"{v:.4g}" for v in s[key]) or "none" for s in (upper, lower))
            parts.append(f"the accounted {name} is {one} for {high} records and {other} for {low}")
    if None not in (upper["steps"], lower["steps"]) and upper["steps"] != lower["steps"]:
        parts.append(
            f"there are {upper['steps']} steps for {high} records and {lower['steps']} for {low}"
        )
    what = "; ".join(parts)
    found = explain("depends on n", what=f"{what[:1].upper()}{what[1:]}")
    numbers = {"high": high, "low": low, "ratio": math.nan if ratio is None else ratio}
    return replace(found, numbers=numbers)

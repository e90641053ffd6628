"""Tests whether the noise is large enough for the contribution of one record."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from audit.accounting import (
    Composition,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    RandomAllocation,
    Unresolved,
)
from audit.errors import InvalidInput
from audit.loop.finding_kinds import OTHERS_CHANGE
from audit.loop.findings import Finding
from audit.loop.premises.canary_runs import CanaryRuns, orders_records
from audit.loop.premises.contributions import contributions
from audit.loop.premises.equal_records import EqualRecords
from audit.loop.premises.experiment import (
    SEEDS_FOR_INCLUSION,
    Experiment,
    copies,
    draw_alike,
)
from audit.loop.premises.noise import (
    TestResult,
    inverse_variances,
    lower_limit,
    scale_p_value,
)
from audit.loop.premises.verdicts import FAMILY_ERROR, SHORTFALL, explain, listed
from audit.loop.runs.coupled_runs import Accounted
from audit.loop.runs.records import TrainingSet
from audit.numerics import FloatArray

# The measured scale of a tensor's noise is raised by this number of standard errors.
_STANDARD_ERRORS = 6.0
# A contribution that exceeds that among equal records by this factor may be due to other batches.
_REORDERED = 1.05
# Batches that hold this share of the records on average count as full.
_FULL = 0.999
# Sampling rate of a run that costs nothing.
_NO_RATE = 1e-12
# A claim below the implied epsilon by this factor is not reported.
_CLAIM_MARGIN = 1.03
# Steps whose noise multipliers differ by less than this factor are one group.
_NEARLY_EQUAL = 1.2
# A contribution that grows by this factor between sizes 30 and 1,000 is not clipped.
_GROWTH = 3.0
_MAX_WORKERS = 64
# Pairs with one canary, those that differ most, for which a limit in units of coordinates is found.
_PAIRS_OF_A_CANARY = 2
# Runs that show what differs between seeds, where the noise is not seen alone.
_RUNS_OF_SPREAD, _ALIKE = 64, 12
# Noise that exceeds the required scale by this factor is noted.
_TOO_MUCH = 1.5
_SEEDS_OF_IGNORED_RECORDS = 3
_CLIP_EACH = "Clip the gradient of every single record to norm C before summing."


def compare_size(
    experiment: Experiment,
    canaries: CanaryRuns,
    equal: EqualRecords | None,
    claim: float | None,
    delta: float,
) -> bool:
    """Compares noise and contributions with what the accountant, or else a claim, assumes.

    Returns:
        Whether the noise is reported as too small.
    """
    if not _reach(experiment, canaries)[1].any():
        _report_no_contribution(experiment)
        return False
    if equal is None:
        _compare_with_total_spread(experiment, canaries)
    if equal is None or equal.missing:
        return False
    _leave_out_reordered(experiment, canaries, equal)
    reach, seen = _reach(experiment, canaries)
    noise, steps = equal.noise, len(reach)
    scales = noise.scales[:steps]
    has_noise = ~noise.silent[:steps] & (noise.live_sizes[:steps] > 0)
    usable = seen & (scales > 0) & has_noise.any(axis=1)
    if canaries.comparable is not None:
        usable[canaries.comparable :] = False
    if not usable.any():
        return False
    unequal = _by_unequal_noise(experiment, canaries, equal, steps)
    distance = reach / np.where(usable, scales, 1.0) if unequal is None else unequal
    usable_distance = usable & (distance > 0)
    ratios = np.where(usable_distance, 1.0 / np.where(usable_distance, distance, 1.0), np.inf)
    worst = int(np.argmin(ratios))
    # The median over the steps with about the smallest ratio: the smallest alone is biased.
    near = usable & (ratios < 1.05 * ratios[worst])
    effective = float(np.median(ratios[near]))
    accounted = experiment.accounted
    if accounted is None:
        numbers = noise.degrees * noise.widths
        degrees = numbers[:steps][usable_distance].astype(np.float64)
        multipliers = ratios[usable_distance]
        effective = noise_of_all_steps(multipliers, degrees)
        experiment.verdicts.measured["effective noise multiplier"] = effective
        schedule = groups_of_steps(multipliers, effective)
        _compare_claim(experiment, canaries, equal, usable, schedule, claim, delta)
        return False
    experiment.verdicts.measured["effective noise multiplier"] = float(ratios[worst])
    case = _Case(experiment, canaries, equal, accounted, usable)
    experiment.verdicts.measured["accounted noise multiplier"] = float(case.sigma[worst])
    if unequal is not None:
        _compare_unequal_noise(case, ratios)
        return False
    if not equal.random_gradients and case.sigma[worst] > 0:
        total = float((noise.degrees * noise.widths)[:steps][usable].sum())
        coordinates = experiment.steps + 1 + len(experiment.base.sizes)
        experiment.verdicts.scale_was_tested(total, coordinates)
    experiment.verdicts.measured["effective noise multiplier"] = effective
    _note_too_much(case, effective, worst)
    if _report_shortfalls(case, ratios, worst):
        return True
    _against_threshold(case)
    return False


def _compare_with_total_spread(experiment: Experiment, canaries: CanaryRuns) -> None:
    """Compares contributions with all that differs between seeds, where noise is not seen alone.

    The noise is at most that, on any data. Where batches or a record's gradient are random, too,
    only larger mistakes are found.
    """
    accounted = experiment.accounted
    if accounted is None or canaries.comparable is not None:
        return
    if experiment.verdicts.has("others"):
        return  # this explains a contribution that is too large
    if experiment.sampled and orders_records(experiment, canaries):
        return  # an exchanged record moves others to other batches
    of_one = copies(experiment.records, canaries.pool[0], len(experiment.records))
    exchanged = experiment.with_canary(canaries.pool[0])
    limits = np.zeros(experiment.steps)
    for data in (of_one, experiment.records):
        gradients = _with_other_seeds(experiment, data, exchanged)
        if gradients is not None:
            # The larger one of two estimates for each coordinate would be too large in the mean.
            weights = inverse_variances(gradients)
            limits_of_data = _in_units_of_coordinates(canaries, weights, len(gradients))
            limits = np.maximum(limits, limits_of_data)
    seen = limits > 0
    sigma = np.array([accounted.sigma(t) for t in range(len(limits))])
    ratios = np.where(seen, 1.0 / np.where(seen, limits, 1.0), np.inf)
    if np.any(ratios < sigma * (1 - SHORTFALL)):
        at = int(np.argmin(ratios / sigma))
        experiment.verdicts.collect(
            TestResult(1e-9, "size", {}),
            words=lambda _: _more_than_all_that_differs(
                experiment.first_step + at + 1, float(ratios[at]), float(sigma[at])
            ),
        )


def _with_other_seeds(
    experiment: Experiment, data: TrainingSet, exchanged: TrainingSet
) -> FloatArray | None:
    """Gradients [R, T, D] of runs on some data; None if these cannot be compared.

    The runs on `exchanged` must draw as many random numbers, or nothing is known about the coupled
    runs of the canaries.
    """
    gradients: list[FloatArray] = []
    while len(gradients) < _RUNS_OF_SPREAD and experiment.work_left(0.8):
        seed, digests = experiment.seed_of(3000 + len(gradients)), len(gradients) < _ALIKE
        trace = experiment.coupled(data, seed, digests=digests)
        if experiment.ended_early(trace):
            return None
        if digests:
            other = experiment.coupled(exchanged, seed)
            if experiment.ended_early(other) or not draw_alike(other, trace, experiment.steps):
                return None
        gradients.append(trace.gradients[: experiment.steps])
    is_usable = len(gradients) == _RUNS_OF_SPREAD and bool(np.isfinite(gradients).all())
    return np.stack(gradients) if is_usable else None


def _more_than_all_that_differs(step: int, effective: float, sigma: float) -> Finding:
    return Finding(
        "contribution",
        f"Step {step}: one record changes the released gradient by more than runs with other seeds "
        f"allow: the noise multiplier is at most {effective:.3g}; the accountant assumes "
        f"{sigma:.3g}.",
        "A record is in several clipped terms (pairs, windows, views), or changes what other "
        "records contribute.",
        "Clip the sum of all that one record contributes to norm C.",
        {
            "step": step,
            "effective noise multiplier": effective,
            "accounted noise multiplier": sigma,
        },
        "size",
    )


def noise_of_all_steps(multipliers: FloatArray, degrees: FloatArray) -> float:
    """A noise multiplier which, in every step, costs at most what these steps cost.

    It is sqrt(T / sum 1 / m_t^2). The costs of Gaussian steps add up in 1 / m^2. Those of sampled
    steps add up, to leading order, in exp(1 / m^2) - 1, which is convex, so that steps with this
    multiplier cost no more (Jensen's inequality). They may cost more where delta exceeds the
    probability that a step with little noise draws the record: see `groups_of_steps`. The smallest
    estimate of many steps would be too small, and the noise of a schedule is not the smallest in
    every step.

    Args:
        multipliers: [T], estimates of the noise multiplier of each step.
        degrees: [T], degrees of freedom of each estimate.

    Returns:
        The largest value that the estimates do not contradict.
    """
    # The inverse of an estimated variance is too large by d / (d - 2) in the mean.
    inverse = multipliers**-2.0 * np.maximum(1 - 2 / degrees, 0.5)
    # Satterthwaite's degrees of freedom of a sum of such terms.
    of_sum = float(inverse.sum() ** 2 / np.sum(inverse**2 / degrees))
    limit = math.sqrt(of_sum / stats.chi2.ppf(FAMILY_ERROR, of_sum))
    return limit * float(inverse.mean()) ** -0.5


def groups_of_steps(multipliers: FloatArray, of_all: float) -> list[tuple[float, int]]:
    """The noise multipliers of groups of nearly equal steps, with the numbers of their steps.

    Args:
        multipliers: [T], estimates of the noise multiplier of each step.
        of_all: `noise_of_all_steps`; the estimates are raised by the same factor.
    """
    factor = of_all * math.sqrt(float(np.mean(multipliers**-2.0)))
    levels = np.floor(np.log(multipliers / multipliers.min()) / math.log(_NEARLY_EQUAL))
    return [
        (factor * float(np.mean(multipliers[levels == level] ** -2.0)) ** -0.5, int(count))
        for level, count in zip(*np.unique(levels, return_counts=True), strict=True)
    ]


def _reach(experiment: Experiment, canaries: CanaryRuns) -> tuple[FloatArray, NDArray[np.bool_]]:
    """[T] each, the largest contribution of the tested steps, and whether it exceeds rounding."""
    steps = min(experiment.steps, len(canaries.contributions.largest))
    reach = canaries.contributions.largest[:steps]
    return reach, np.asarray(reach > canaries.contributions.rounding[:steps])


def _report_no_contribution(experiment: Experiment) -> None:
    """States why no exchanged record changed a released gradient."""
    reason = (
        "no canary changed any released gradient: the record was in no batch of "
        f"{SEEDS_FOR_INCLUSION} runs, or the watched optimizer is not the one that trains"
    )
    if ignores_records(experiment):
        reason = (
            "train releases the same gradients for other records: use records.features and "
            "records.labels, which hold the exchanged record"
        )
    experiment.verdicts.cannot_test(reason, ("contribution",))
    if "contribution" in experiment.verdicts.tested and not experiment.brief:
        experiment.verdicts.tested.remove("contribution")


def _leave_out_reordered(experiment: Experiment, canaries: CanaryRuns, equal: EqualRecords) -> None:
    """Keeps the contributions among equal records if the function orders its records itself.

    An exchanged record then moves the others to other places, which have other batches.
    """
    reach, _ = _reach(experiment, canaries)
    steps = len(reach)
    beyond = experiment.sampled and np.any(reach > _REORDERED * equal.reach[:steps])
    if not beyond or not orders_records(experiment, canaries):
        return
    experiment.verdicts.notes.append(
        "the function orders its records itself: contributions were compared among equal "
        "records alone"
    )
    reach[:] = equal.reach[:steps]
    by_tensor = canaries.contributions.by_tensor[:steps]
    np.minimum(by_tensor, reach[:, None], out=by_tensor)


def _compare_unequal_noise(case: "_Case", ratios: FloatArray) -> None:
    """Compares noise of several scales with the accounted multiplier."""
    if np.any(ratios < case.sigma * (1 - SHORTFALL)):
        # Scales are raised by six standard errors, which a normal error exceeds with probability
        # 1e-9.
        at = int(np.argmin(ratios / case.sigma))
        case.experiment.verdicts.collect(
            TestResult(1e-9, "size", {}),
            words=lambda _: _unequal_noise(case, at, float(ratios[at])),
        )


def _report_shortfalls(case: "_Case", ratios: FloatArray, worst: int) -> bool:
    """Collects the tests of too little noise, and returns whether one is significant by itself."""
    tests = list(_shortfalls(case, ratios, worst))
    if not tests:
        return False
    # Of several significant tests, the one that is easiest to explain is reported.
    rank = {"step": 0, "all steps": 1}
    sure = [test for test in tests if test[0] < FAMILY_ERROR / 1000]
    _, at, kind = min(sure, key=lambda e: (rank.get(e[2], 2), e)) if sure else min(tests)
    # Bonferroni's inequality over the steps, all steps together, and the tensors.
    p_value = min(1.0, min(tests)[0] * (len(ratios) + 1 + len(case.equal.noise.sizes)))
    case.experiment.verdicts.collect(
        TestResult(p_value, "size", {}), words=lambda _: _too_little_noise(case, at, kind)
    )
    return p_value < FAMILY_ERROR


def _note_too_much(case: "_Case", effective: float, step: int) -> None:
    """States in a sentence that the noise is larger than the accounted epsilon requires."""
    experiment, sigma = case.experiment, float(case.sigma[step])
    if sigma <= 0 or effective < _TOO_MUCH * sigma or case.equal.random_gradients:
        return
    state, scale = experiment.base.steps[step], float(case.equal.noise.scales[step])
    reason = "the threshold C is larger than every gradient, or the noise is scaled by too much"
    if experiment.base.opacus and state.clip and state.divisor:
        in_thresholds = scale * state.divisor / state.clip
        if in_thresholds > 1.1 * sigma:
            reason = f"the noise is {in_thresholds:.3g} C, and the accountant assumes {sigma:.3g} C"
        else:
            reason = "no exchanged record reaches the threshold C, which may be smaller"
    experiment.verdicts.notes.append(
        f"there is {effective / sigma:.3g} times as much noise as the accounted epsilon requires "
        f"for the largest contribution of the exchanged records: {reason}"
    )


def ignores_records(experiment: Experiment) -> bool:
    """Whether other records in all places change no released gradient, for several seeds."""
    records = experiment.records
    constant_records = TrainingSet(
        np.repeat(np.asarray(experiment.pool[0].features)[None], len(records), 0),
        np.full(len(records), experiment.pool[0].label, records.labels.dtype),
    )
    for number in range(_SEEDS_OF_IGNORED_RECORDS):
        seed = experiment.seed_of(1300 + number)
        run, compared_run = (experiment.coupled(data, seed) for data in (records, constant_records))
        if (
            run.error
            or compared_run.error
            or len(run.steps) != len(compared_run.steps)
            or not run.steps
        ):
            return False
        if not np.array_equal(run.gradients, compared_run.gradients):
            return False
    return True


@dataclass(frozen=True)
class _Case:
    """Data for the comparison of noise and contributions with the accountant."""

    experiment: Experiment
    canaries: CanaryRuns
    equal: EqualRecords
    accounted: Accounted
    usable: NDArray[np.bool_]

    @property
    def sigma(self) -> FloatArray:
        """[T], accounted noise multipliers."""
        return np.array([self.accounted.sigma(t) for t in range(len(self.usable))])

    def number(self, step: int) -> int:
        """The number of a step, counted from 1."""
        return self.experiment.first_step + step + 1

    @property
    def grows(self) -> bool:
        """Whether the contribution grows with the size of the record."""
        distances = self.canaries.contributions.distances
        sizes = np.array([record.size for record in self.canaries.pool])[: len(distances)]
        big, middle = (
            distances[np.ix_(chosen, chosen)].max(initial=0.0)
            for chosen in (sizes > 500, (sizes > 10) & (sizes <= 500))
        )
        return bool(middle > 0 and big > _GROWTH * middle)


def _by_unequal_noise(
    experiment: Experiment, canaries: CanaryRuns, equal: EqualRecords, steps: int
) -> FloatArray | None:
    """Contributions in units of the noise, where the scales of tensors or coordinates differ.

    Returns:
        [T], lower confidence limits; None where all scales are equal.
    """
    noise, base = equal.noise, experiment.base
    if equal.of_coordinates is not None:
        weights = inverse_variances(equal.of_coordinates[:, :steps])
        return _in_units_of_coordinates(canaries, weights, len(equal.of_coordinates))
    if noise.silent[:steps].any():
        return None
    sizes = noise.live_sizes[:steps]
    is_live = sizes > 0
    count = noise.degrees[:steps] @ sizes
    scales = np.where(noise.scales[:steps] > 0, noise.scales[:steps], 1.0)
    relative = np.where(is_live, noise.scales_by_tensor[:steps] / scales[:, None], 0.0)
    level = np.sqrt(np.square(relative).sum(0) / np.maximum(is_live.sum(0), 1))
    level = np.where(is_live.any(axis=0), level, 1.0)
    error = _STANDARD_ERRORS / np.sqrt(2.0 * np.maximum(count, 1))
    if np.all(np.abs(level - 1) < 0.1 + error):
        return None
    units = np.repeat(level * (1 + error), noise.sizes) * scales[:, None]
    gradients = [trace.gradients[:steps] / units for trace in canaries.traces]
    return contributions(gradients, base.slices, base.epsilon_of_type).largest


def _in_units_of_coordinates(canaries: CanaryRuns, weights: FloatArray, runs: int) -> FloatArray:
    """[T], lower limits of the largest contributions in units of each coordinate's noise.

    Args:
        canaries: runs with each canary.
        weights: [T, D], estimates by `inverse_variances`.
        runs: the number of runs of these estimates.
    """
    limits = np.zeros(len(weights))
    gradients = np.stack([trace.gradients[: len(weights)] for trace in canaries.traces])
    finite = gradients[np.isfinite(gradients).all(axis=(1, 2))]
    farthest = np.zeros((len(finite), *weights.shape))
    for place, canary in enumerate(finite):
        # Two records differ by at most twice the contribution of one.
        terms = np.square(np.delete(finite, place, axis=0) - canary) / 4 * weights
        for t in range(len(weights)):
            of_step = terms[:, t]
            for of_pair in of_step[np.argsort(-of_step.sum(axis=1))[:_PAIRS_OF_A_CANARY]]:
                limits[t] = max(limits[t], lower_limit(of_pair, runs))
        farthest[place] = max(terms, key=np.sum, default=np.zeros(weights.shape))
    # The mean over steps or over pairs is at most the largest of them. It is known better than each
    # one if they differ in their coordinates, because the noise of these is independent.
    order = np.argsort(-farthest.sum(axis=(1, 2)))
    for count in {1, len(order) // 4, len(order) // 2, len(order)} - {0}:
        of_pairs = farthest[order[:count]].mean(axis=0)
        # Those of the largest estimates were chosen: the limit must hold for all such sets.
        sets = float(special.comb(len(order), count))
        limits = np.maximum(limits, lower_limit((of_pairs / len(weights)).ravel(), runs, sets))
        limits = np.maximum(limits, [lower_limit(of_step, runs, sets) for of_step in of_pairs])
    return np.sqrt(limits)


def _shortfalls(case: _Case, ratios: FloatArray, worst: int) -> Iterator[tuple[float, int, str]]:
    """(p-value, step, "step", "all steps" or tensor) where the noise is less than accounted."""
    noise, usable, sigma = case.equal.noise, case.usable, case.sigma
    contribution = case.canaries.contributions
    steps, degrees_of = len(usable), noise.degrees[:, None] * noise.live_sizes
    required = sigma * contribution.largest[:steps]
    squares = noise.squares[:steps]
    for t in np.flatnonzero(usable & (ratios < sigma * (1 - SHORTFALL))):
        # With at least the required noise, the sum of squares is stochastically at least
        # chi-square.
        degrees = float(degrees_of[t].sum())
        yield scale_p_value(float(squares[t].sum()), degrees, required[t]), int(t), "step"
    # All steps together find a small shortfall that no single step shows.
    tensors = [("all steps", required, squares.sum(1), usable, degrees_of.sum(1))]
    for index, name in enumerate(case.experiment.base.names):
        of_tensor = contribution.by_tensor[:steps, index]
        use = usable & (of_tensor > contribution.rounding[:steps]) & ~noise.silent[:steps, index]
        use &= degrees_of[:steps, index] > 0
        tensors.append((name, sigma * of_tensor, squares[:, index], use, degrees_of[:, index]))
    for name, needed, squared, use, degrees_of_steps in tensors:
        if use.any():
            with np.errstate(divide="ignore"):  # accounted noise of zero is never too small
                total = float((squared[use] / needed[use] ** 2).sum())
            degrees = float(degrees_of_steps[:steps][use].sum())
            if math.sqrt(total / max(degrees, 1.0)) < 1 - SHORTFALL:
                yield scale_p_value(total, degrees, 1.0), worst, name


def _against_threshold(case: _Case) -> None:
    """Compares the noise with C, where the optimizer states C and its divisor, as Opacus's do."""
    base, noise, steps = case.experiment.base, case.equal.noise, len(case.usable)
    divisors = [step.divisor for step in base.steps[:steps]]
    clips = [step.clip for step in base.steps[:steps]]
    if not base.opacus or any(d is None for d in divisors) or any(c is None for c in clips):
        return
    unit = np.array(clips, dtype=float) / np.array(divisors, dtype=float)
    loud = ~noise.silent[:steps]
    with np.errstate(divide="ignore", invalid="ignore"):
        required = np.square(case.sigma * unit)[:, None]
        squares = np.where(loud, noise.squares[:steps] / required, 0.0).sum(0)
    degrees_of = noise.degrees[:steps, None] * noise.live_sizes[:steps]
    degrees = np.where(loud, degrees_of, 0.0).sum(0)
    tensors = [("the released gradient", float(squares.sum()), float(degrees.sum()))]
    if degrees.sum() and math.sqrt(tensors[0][1] / tensors[0][2]) >= 1 - SHORTFALL:
        names = [f"`{name}`" for name in base.names]
        tensors = list(zip(names, squares.tolist(), degrees.tolist(), strict=True))
    sigma = float(case.sigma[0])
    for where, total, count in tensors:
        share = math.sqrt(total / count) if count else 1.0
        if share < 1 - SHORTFALL:
            p_value = min(1.0, len(tensors) * scale_p_value(total, count, 1.0))
            numbers: dict[str, float | int | str] = {"share": share, "where": where}
            numbers |= {"accounted noise multiplier": sigma, "in thresholds": share * sigma}
            case.experiment.verdicts.collect(TestResult(p_value, "scale", numbers))


def _possible_rates(
    counts: FloatArray, included: NDArray[np.bool_], records: int
) -> tuple[float, float]:
    """The smallest and largest sampling rate that the batches of all other records allow.

    A batch is known only in steps in which some run drew the exchanged record, so that this record
    would make known batches too large.

    Args:
        counts: [R, T], the batch sizes; NaN where unknown.
        included: [R, T], whether the exchanged record was in the batch.
        records: number of records, the exchanged one included.
    """
    known = ~np.isnan(counts)
    if records == 1:
        rate = float(np.mean(counts[known]))
        return rate, rate
    drawn = float((counts - included)[known].sum())
    missed = float((records - 1) * known.sum()) - drawn
    low = stats.beta.ppf(FAMILY_ERROR, drawn, missed + 1.0) if drawn > 0 else _NO_RATE
    high = stats.beta.isf(FAMILY_ERROR, drawn + 1.0, missed) if missed > 0 else 1.0
    return float(low), float(high)


def _random_allocations(
    noise_multiplier: float,
    counts: FloatArray,
    included: NDArray[np.bool_],
    steps: int,
    rates: tuple[float, float],
) -> Iterator[Mechanism]:
    """The random allocations that the observed batches allow.

    They draw the exchanged record once per epoch, and batches have random sizes. If they had equal
    sizes, the batches of the other records would reveal that of the exchanged record. In a step of
    unknown batches, the record may have been drawn.
    """
    seen = ~np.isnan(counts).any(axis=0)
    if included.shape[1] != steps or not seen.any() or np.ptp(counts[:, seen]) == 0:
        return
    low, high = rates
    for epochs in range(
        max(math.ceil(low * steps), 1), min(math.floor(high * steps), steps - 1) + 1
    ):
        if steps % epochs:
            continue
        by_epoch = included.reshape(len(included), epochs, steps // epochs)
        seen_by_epoch = seen.reshape(epochs, steps // epochs)
        drawn = by_epoch.sum(axis=2)
        if np.any(drawn > 1) or np.any(drawn[:, seen_by_epoch.all(axis=1)] != 1):
            continue
        seen_always = seen_by_epoch.all(axis=0)
        is_same = by_epoch[:, :, seen_always] == by_epoch[:, :1, seen_always]
        is_fixed = epochs > 1 and bool(seen_always.any()) and bool(np.all(is_same))
        with contextlib.suppress(InvalidInput):  # too little noise
            yield RandomAllocation(noise_multiplier, steps // epochs, epochs, fixed=is_fixed)


def _compare_claim(
    experiment: Experiment,
    canaries: CanaryRuns,
    equal: EqualRecords,
    usable: NDArray[np.bool_],
    schedule: list[tuple[float, int]],
    claim: float | None,
    delta: float,
) -> None:
    """Compares a claimed epsilon with what noise and contributions imply."""
    claim = claim if claim is not None else experiment.base.claimed
    if claim is None:
        experiment.verdicts.untested["accountant"] = "no accountant and no claim was given"
        return
    steps = len(usable)
    batches = equal.batches
    counts, included = batches.counts[:, :steps], batches.included[:, :steps]
    if experiment.stop_after is not None or np.isnan(counts).all():
        reason = "the claim was not compared: the batches, or the last steps, were not seen"
        experiment.verdicts.cannot_test(reason, ("accountant",))
        return
    runs: list[Mechanism] = []
    if float(np.nanmean(counts)) > _FULL * len(experiment.records):
        reach, scales = (
            canaries.contributions.of_pair[:steps][usable],
            equal.noise.scales[:steps][usable],
        )
        # The largest scales that the runs do not contradict.
        degrees = (equal.noise.degrees * equal.noise.widths)[:steps][usable]
        scales = scales * np.sqrt(degrees / stats.chi2.ppf(FAMILY_ERROR / len(scales), degrees))
        runs.append(GaussianMechanism(float(np.linalg.norm(reach / scales))))
    else:
        effective = experiment.verdicts.measured["effective noise multiplier"]
        total = len(experiment.base.steps)
        rates = _possible_rates(counts, included, len(experiment.records))
        rate = min(rates[0], 1.0)
        runs.append(DpSgd(effective, total, rate))
        runs.extend(_random_allocations(effective, counts, included, total, rates))
        if len(schedule) > 1 and sum(count for _, count in schedule) == total:
            runs.append(Composition(tuple(DpSgd(m, count, rate) for m, count in schedule)))
    # The cheapest accounting that fits the batches: more could not be proved of the function.
    implied = math.inf
    for run in runs:
        with contextlib.suppress(*((Unresolved,) if isinstance(run, Composition) else ())):
            implied = min(implied, float(run.epsilon(delta)))
        if implied <= _CLAIM_MARGIN * claim + 0.01:
            break  # a larger claim needs no further accounting
    experiment.verdicts.measured["implied epsilon"] = implied
    experiment.verdicts.tested.append("accountant")
    if implied > _CLAIM_MARGIN * claim + 0.01:
        experiment.verdicts.findings.append(
            explain("claim", claim=claim, implied=implied, delta=delta)
        )


# --- the findings ---


def _too_little_noise(case: _Case, step: int, kind: str) -> Finding:
    """One record adds more to a step, to all steps, or to a tensor than the noise allows for."""
    contribution, noise, base = case.canaries.contributions, case.equal.noise, case.experiment.base
    reach, scale = float(contribution.largest[step]), float(noise.scales[step])
    sigma, state = float(case.sigma[step]), base.steps[step]
    effective = scale / reach
    numbers: dict[str, float | int | str] = {
        "step": case.number(step),
        "contribution": reach,
        "noise": scale,
        "effective noise multiplier": effective,
        "accounted noise multiplier": sigma,
    }
    in_thresholds = 0.0
    if state.clip is not None and state.divisor is not None and base.opacus:
        in_thresholds = reach * state.divisor / state.clip
        numbers["contribution in C"] = in_thresholds
        numbers["noise in C"] = scale * state.divisor / state.clip
    where = f"Step {case.number(step)}"
    if kind == "all steps":
        where = f"All steps together, e.g. step {case.number(step)}"
    if kind not in ("step", "all steps"):
        numbers["tensor"] = kind
        index = base.names.index(kind)
        of_tensor = float(contribution.by_tensor[step, index])
        sd = float(noise.scales_by_tensor[step, index])
        shown_ratio = sd / of_tensor if of_tensor else math.inf
        message = (
            f"{where}: one record changes the gradient of `{kind}` by {of_tensor:.3g} and its "
            f"noise has standard deviation {sd:.3g}: an effective noise multiplier of "
            f"{shown_ratio:.3g}, where the accountant assumes {sigma:.3g}."
        )
    elif in_thresholds > 1.002:
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
    premise, cause, fix = _cause(case, step, sigma / effective, in_thresholds > 1.002)
    return Finding(premise, message, cause, fix, numbers, "size")


_Cause = tuple[str, str, str]
"""Broken premise, likely cause, and fix."""


def _cause(case: _Case, step: int, ratio: float, beyond: bool) -> _Cause:
    """Broken premise, likely cause and fix where the noise is `ratio` times too small."""
    repeats = _several_times(case, step) if beyond else None
    return (
        _of_infinite_records(case)
        or _of_all_records(case, step)
        or _without_clipping(case)
        or _of_each_tensor(case, step, ratio)
        or _carried_on(case, step, ratio)
        or repeats
        or _by_a_schedule(case, step)
        or _divided_again(case, step, ratio)
        or _by_random_gradients(case, ratio)
        or _too_small(ratio, beyond)
    )


def _of_all_records(case: _Case, step: int) -> _Cause | None:
    """A statistic over records enters their contributions."""
    if not case.equal.others().seen:
        return None
    where = _where(case, case.canaries.contributions.by_tensor[step])
    return (
        "contribution",
        f"{OTHERS_CHANGE}{where}: a statistic over records (a mean, a count, a quantile, a "
        "norm) enters their gradients, thresholds or weights, their selection depends on it, "
        "records are mixed or padded to the longest one, or the sum is clipped instead of each "
        "one.",
        "Compute no statistic over records without noise, and clip the gradient of every "
        "single record to norm C before summing.",
    )


def _of_infinite_records(case: _Case) -> _Cause | None:
    """Only records with numbers that are not finite contribute as much."""
    pool, distances = case.canaries.pool, case.canaries.contributions.distances
    finite = np.array([bool(np.isfinite(record.features).all()) for record in pool])
    finite = finite[: len(distances)]
    usual = distances[np.ix_(finite, finite)].max(initial=0.0)
    if finite.all() or distances.max(initial=0.0) < 1.3 * usual:
        return None
    return (
        "contribution",
        "A record that holds NaN or infinity contributes the most: it removes what others add (the "
        "sum of all gradients is made finite, and not each gradient), or its norm is not computed.",
        "Replace numbers that are not finite in each record's own gradient, before it is clipped.",
    )


def _without_clipping(case: _Case) -> _Cause | None:
    """The contribution has no limit."""
    if not case.grows:
        return None
    return (
        "contribution",
        "The contribution grows with the size of the record: its gradient is not clipped, only "
        "a part of it is, or its clipping factor was computed for another gradient (of an "
        "earlier step, or with another dropout mask).",
        _CLIP_EACH,
    )


def _of_each_tensor(case: _Case, step: int, ratio: float) -> _Cause | None:
    """Each tensor is clipped to C: each contributes C, for which the noise of one suffices."""
    contribution = case.canaries.contributions
    reach, by_tensor = float(contribution.largest[step]), contribution.by_tensor[step]
    largest = max(by_tensor)
    alike = [
        n for n, v in zip(case.experiment.base.names, by_tensor, strict=True) if v > 0.98 * largest
    ]
    explains = reach > 1.2 * largest > 0 and abs(ratio * largest / reach - 1) < 0.1
    if len(alike) < 2 or not explains:
        return None
    return (
        "contribution",
        f"{listed(alike)} contribute equally much: each tensor (layer) is clipped to C "
        "separately, which allows a norm of C times the square root of the number of tensors.",
        "Clip the norm over all tensors together, or scale the noise to the root of the sum "
        "of the squared thresholds.",
    )


def _carried_on(case: _Case, step: int, ratio: float) -> _Cause | None:
    """A state adds a record to every step after the first one whose batch holds it."""
    largest = case.canaries.contributions.largest
    first_usable = int(np.argmax(case.usable))
    included = case.equal.batches.included
    carried = np.array_equal(np.maximum.accumulate(included, axis=1), included)
    grown = step > first_usable and carried and not case.equal.varying
    if not grown or float(largest[step]) <= 1.3 * largest[first_usable] or ratio <= 1.2:
        return None
    return (
        "contribution",
        f"The first step with the record shows {largest[first_usable]:.3g}: a state that "
        "carries gradients without noise (momentum, an average, error feedback) adds the "
        "record to later steps, or a threshold or factor of the first step is reused.",
        "Compute such states from released, noisy gradients only, and clip in each step.",
    )


def _by_a_schedule(case: _Case, step: int) -> _Cause | None:
    """The noise falls from step to step, and the contribution does not."""
    largest = case.canaries.contributions.largest
    scales = np.where(case.usable, case.equal.noise.scales[: len(case.usable)], 0.0)
    loudest = int(np.argmax(scales))
    falls = scales[step] < 0.9 * scales[loudest] and largest[step] > 0.9 * largest[loudest]
    if not falls or not _is_quieter(case, step, loudest):
        return None
    return (
        "noise",
        f"The noise falls from {scales[loudest]:.3g} in step {case.number(loudest)} to "
        f"{scales[step]:.3g} in step {case.number(step)}, and the contribution does not: a "
        "schedule lowers the noise, and the accountant does not record it.",
        "Record the noise multiplier of each step.",
    )


def _divided_again(case: _Case, step: int, ratio: float) -> _Cause | None:
    """The noise is too small by the number of records of a batch or of the data."""
    n = len(case.experiment.records)
    for value, name in (
        (n * case.accounted.rate(step), "the expected batch size"),
        (n, "the number of records"),
    ):
        if value > 1.5 and abs(ratio / value - 1) < 0.08:
            return (
                "noise",
                f"The noise is {ratio:.3g} times too small, which is {name}: it is divided by it "
                "twice, or added to the mean with the scale of the mean's noise and divided again.",
                "Add noise of standard deviation noise_multiplier * C to the sum, then divide the "
                "noisy sum once.",
            )
    return None


def _by_random_gradients(case: _Case, ratio: float) -> _Cause | None:
    """The contribution differs between runs."""
    if not case.equal.random_gradients:
        return None
    return (
        "contribution",
        f"The noise is {ratio:.3g} times too small for the contribution, which differs between "
        "runs: random factors multiply gradients after they are clipped, or the norm is that "
        "of a gradient with other random numbers (another dropout mask). Otherwise, the noise "
        "is smaller than the accountant assumes.",
        "Take the norm of the gradient that is clipped, and do not change it afterwards.",
    )


def _where(case: _Case, by_tensor: FloatArray) -> str:
    """The tensor that the record changes most, its module, and the line of the step."""
    base = case.experiment.base
    name = base.names[int(np.argmax(by_tensor))]
    module = name.rpartition(".")[0]
    modules = {} if base.model is None else dict(base.model.named_modules())
    kind = modules.get(module, modules.get(f"_module.{module}"))
    of = "" if kind is None else f" of {type(kind).__name__}"
    line = f", before the step in {base.line}" if base.line else ""
    return f" (mostly in `{name}`{of}{line})"


def _several_times(case: _Case, step: int) -> tuple[str, str, str] | None:
    """The cause where a record adds a whole multiple of the threshold C, which Opacus states."""
    state = case.experiment.base.steps[step]
    if state.clip is None or state.divisor is None:
        return None
    times = float(case.canaries.contributions.largest[step]) * state.divisor / state.clip
    if times < 1.5 or abs(times - round(times)) > 0.02 * times:
        return None
    return (
        "contribution",
        f"A record adds {round(times)} C, a whole multiple of C: {round(times)} gradients of it "
        "are clipped one by one. There are several backward passes before a step without "
        "zero_grad, or the batch holds the record several times (copies, augmentations, "
        "microbatches).",
        "Make one backward pass per step and record, or accumulate batches that do not overlap; "
        "average the gradients of copies of a record before they are clipped.",
    )


def _is_quieter(case: _Case, step: int, loudest: int) -> bool:
    """Whether the noise of a step is smaller than that of another, by an F test.

    The pair is the most extreme one, so that the level is divided by the number of pairs.
    """
    noise, steps = case.equal.noise, len(case.usable)
    ratio = float(noise.scales[step] / noise.scales[loudest]) ** 2
    degrees = [float(noise.degrees[t] * noise.widths[t]) for t in (step, loudest)]
    return bool(stats.f.cdf(ratio, *degrees) * steps * steps < FAMILY_ERROR)


def _too_small(ratio: float, beyond: bool) -> tuple[str, str, str]:
    """The causes of noise that is too small by a factor which nothing else explains."""
    squared = ratio * ratio
    workers = round(squared)
    if not beyond and 2 <= workers <= _MAX_WORKERS and abs(squared / workers - 1) < 0.05:
        share = f"; or each worker adds its share of {workers} and one share arrives"
    else:
        share = ""
    return (
        "contribution" if beyond else "noise",
        f"The noise is {ratio:.3g} times too small for the contribution: its noise multiplier is "
        "smaller than the accountant assumes; it is not scaled by C; a record "
        "contributes more than C (several copies or microbatches clipped one by one, a part of the "
        f"gradient that is not clipped, another norm){share}.",
        "Clip each record once to norm C, add noise of standard deviation noise_multiplier * C to "
        "the sum, and record that noise_multiplier.",
    )


def _unequal_noise(case: _Case, step: int, effective: float) -> Finding:
    """Tensors with noise of different scales, too small for a record's contribution."""
    if case.equal.of_coordinates is not None:
        return _unequal_coordinates(case, step, effective)
    scales, names = case.equal.noise.scales_by_tensor[step], case.experiment.base.names
    is_live = case.equal.noise.live_sizes[step] > 0
    low, high = int(np.argmin(np.where(is_live, scales, np.inf))), int(np.argmax(scales))
    if case.sigma[step] * scales[low] > effective * scales[high]:
        return _too_little_noise(case, step, "step")  # equal noise would be too small as well
    return Finding(
        "noise",
        f"Step {case.number(step)}: the noise of `{names[low]}` has standard deviation "
        f"{scales[low]:.3g}, that of `{names[high]}` {scales[high]:.3g}; for the contribution of "
        f"one record this is an effective noise multiplier of {effective:.3g}; the accountant "
        f"assumes {float(case.sigma[step]):.3g}.",
        "Random factors multiply the sum after it is clipped (a mask, a choice of coordinates), or "
        "some tensors get less noise than their share of the threshold allows."
        if case.equal.random_gradients
        else "Some tensors get less noise than their share of the threshold allows.",
        "Add noise of the same standard deviation, noise_multiplier * C, to all tensors.",
        {
            "step": case.number(step),
            "effective noise multiplier": effective,
            "accounted noise multiplier": float(case.sigma[step]),
        },
        "size",
    )


def _unequal_coordinates(case: _Case, step: int, effective: float) -> Finding:
    """Coordinates with noise of different scales, too small for a record's contribution."""
    assert case.equal.of_coordinates is not None
    scales = case.equal.of_coordinates[:, step].std(axis=0)
    ratios = [
        float(positive.max() / positive.min()) if len(positive) else 1.0
        for positive in (scales[c][scales[c] > 0] for c in case.experiment.base.slices)
    ]
    widest = int(np.argmax(ratios))
    return Finding(
        "noise",
        f"Step {case.number(step)}: the standard deviation of the noise differs between the "
        f"coordinates of a tensor, by a factor of about {ratios[widest]:.2g} in "
        f"`{case.experiment.base.names[widest]}`; for the contribution of one record this is an "
        f"effective noise multiplier of at most {effective:.3g}; the accountant assumes "
        f"{float(case.sigma[step]):.3g}.",
        "The noise is scaled by coordinate (by moments, a preconditioner or a mask), and the "
        "contribution of a record is not.",
        "Divide every record's gradient by the same scales before it is clipped, or add noise of "
        "the same standard deviation, noise_multiplier * C, to all coordinates.",
        {
            "step": case.number(step),
            "effective noise multiplier": effective,
            "accounted noise multiplier": float(case.sigma[step]),
        },
        "size",
    )

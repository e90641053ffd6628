"""Runs on copies of one record, which reveal the noise and the batch sizes.

If all records are equal, a released gradient is the size of the batch times one gradient, plus
noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from audit.loop.findings import Finding
from audit.loop.premises.batches import (
    Batches,
    batches_of,
    dependence_on_size,
    even_inclusions,
    included_of,
    inclusions_by_lag,
    is_random_at_equal_sizes,
    poisson_tests,
)
from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.canary_runs import (
    CanaryRuns,
    OthersChange,
    changes_other_records,
    largest_distances,
)
from audit.loop.premises.experiment import (
    MAX_BYTES,
    Experiment,
    copies,
    draw_alike,
    replace_one,
)
from audit.loop.premises.inclusions import (
    SHARE_OF_TRIES,
    detectable_ratio,
    inclusions_of_many,
    judge_used_records,
)
from audit.loop.premises.mechanisms import compare_declared_of_steps
from audit.loop.premises.noise import (
    MIN_CORRELATION,
    ROUNDINGS,
    Noise,
    TestResult,
    batches_in_noise,
    estimate_noise,
    flat_noise,
    grain_of_noise,
    has_unequal_coordinates,
    independence,
    inverse_variances,
    length_of_noise,
    noise_again,
    noise_along,
    noise_from_weights,
    one_more_record,
    rank_of_noise,
    scale_by_batch,
    shape_of_noise,
)
from audit.loop.premises.shared_noise import numbers_of_steps
from audit.loop.premises.verdicts import (
    divided_by_batch,
    explain,
    explain_test,
    is_whole,
    listed,
    no_noise,
    steps_without_noise,
)
from audit.loop.runs.coupled_runs import Accounted, DeclaredNoise, Trace
from audit.loop.runs.records import TrainingSet
from audit.numerics import FloatArray

# First runs in which one record among equal ones must not change the number of random draws.
_RUNS_WITH_DIGESTS = 12
_MIN_RUNS, _MIN_BRIEF_RUNS, _MAX_RUNS = 8, 4, 128
_MIN_BATCHES, _MIN_BRIEF_BATCHES = 400, 160
_MIN_RUNS_OF_COORDINATES = 64
# Relative error of the size of all noise at which runs suffice. At 0.004, the test no longer found
# noise that is truncated at three standard deviations.
_RELATIVE_ERROR = 0.0028
# The same at weights or steps where the test repeats what it did at others, unless the noise seems
# too small there.
_BRIEF_ERROR = 0.007
_SMALL_N = 3
_SMALL_RUNS = 16
_MAX_PAIR_RUNS, _MAX_AMONG_EQUAL = 16, 12
_MAX_QUIET = 8
# Seeds with fewer steps than the reference that are passed over, besides one for each run.
_MAX_PASSED_OVER = 16
# The initial weights of more runs are compared with the noise while they are few numbers.
_MIN_RUNS_OF_WEIGHTS, _MANY_WEIGHTS = 8, 200_000
# Places whose inclusions are tested for dependence.
_MAX_PLACES = 2
# Events of smaller probability count as impossible.
_NEVER = 1e-9


@dataclass(frozen=True)
class EqualRecords:
    """Measurements of runs on copies of one record.

    Attributes:
        quiet: the record, which has a small gradient.
        noise: the noise of the released gradients.
        batches: the batches of these runs.
        missing: whether missing noise was reported.
        varying: whether one record's contribution differs between batches.
        random_gradients: whether a record's own gradient is random (dropout, augmentation).
        others: whether an exchanged record changes what other records contribute.
        reach: [T], half of the largest change by one record among equal ones.
        of_coordinates: [R, T, D], gradients of runs on these copies, where the scale of the noise
            differs between the coordinates of a tensor; None elsewhere.
    """

    quiet: PoolRecord
    noise: Noise
    batches: Batches
    missing: bool
    varying: bool
    random_gradients: bool
    others: Callable[[], OthersChange]
    reach: FloatArray
    of_coordinates: FloatArray | None


@dataclass
class _Runs:
    """Released gradients of runs with other seeds, [T, D] each, on three data sets.

    Attributes:
        of_quiet: n copies of a quiet record.
        of_canary: n copies of the canary.
        mixed: n - 1 copies of the quiet record, and the canary in the last place.
        full: whether every batch holds all records; None before it is known.
        places_of_seeds: the places of their seeds among those of the experiment.
        passed_over: number of seeds with fewer steps than the reference.
        initial: the weights that the first runs drew themselves, [d] each.
        declared: the values that runs on the quiet record declare with their noise.
        declared_of_mixed: those of the third data set.
    """

    of_quiet: list[FloatArray]
    of_canary: list[FloatArray]
    mixed: list[FloatArray]
    full: bool | None = None
    places_of_seeds: list[int] = field(default_factory=list)
    passed_over: int = 0
    initial: list[FloatArray] = field(default_factory=list)
    declared: list[list[DeclaredNoise]] = field(default_factory=list)
    declared_of_mixed: list[list[DeclaredNoise]] = field(default_factory=list)

    def seed_of(self, experiment: Experiment, number: int) -> int:
        """The seed of a run, or of one after the last."""
        places = self.places_of_seeds
        place = places[number] if number < len(places) else number + self.passed_over
        return experiment.seed_of(1000 + place)

    def batches(self, rounding: FloatArray) -> Batches:
        same_runs = np.stack(self.of_quiet[: len(self.of_canary)])
        return batches_of(same_runs, np.stack(self.of_canary), np.stack(self.mixed), rounding)


def run_equal_records(experiment: Experiment, canaries: CanaryRuns) -> EqualRecords | None:
    """Tests noise and batches by runs on equal records; None if the function does not allow it."""
    tried: list[PoolRecord] = []
    while (quiet := _quiet_record(experiment, canaries, tried)) is not None:
        runs = _gather(experiment, canaries, quiet)
        if runs is None:
            return None
        batches = runs.batches(canaries.contributions.rounding)
        if not _hides_batches(experiment, batches):
            return _measured(_Case.of(experiment, canaries, quiet, runs, batches))
        tried.append(quiet)
    reason = "on equal records, the function raises an error, or takes other steps or random draws"
    if tried:
        reason = "records contribute alike, so that batch sizes cannot be seen"
    experiment.verdicts.cannot_test(reason, ("noise", "batches"))
    return None


def _quiet_record(
    experiment: Experiment, canaries: CanaryRuns, tried: Sequence[PoolRecord]
) -> PoolRecord | None:
    """A record of which n copies can be trained on, with a small gradient."""
    pool = experiment.pool
    candidates = [p for p in pool if p.size == 0.0]
    candidates += [p for p in pool if p.family == "own"]
    candidates += [p for p in pool if math.isnan(p.size)]
    fallback: PoolRecord | None = None
    # A function may copy the records of some classes: then a record of the canary's is needed.
    canary = canaries.pair[0]
    zeros = replace(canary, features=np.zeros_like(canary.features), size=0.0, family="zeros")
    for record in [*candidates[:_MAX_QUIET], zeros]:
        if any(_same(record, tried_record) for tried_record in tried):
            continue
        data = copies(experiment.records, record, len(experiment.records))
        trace = experiment.coupled(data, experiment.seed_of(200))
        if experiment.ended_early(trace) or not np.isfinite(trace.gradients).all():
            continue
        if _same(record, canaries.pair[0]):
            continue
        # A function that leaves out one of the two records draws fewer numbers without it.
        exchanged = experiment.exchange(data, canaries.pair[0])
        mixed = experiment.coupled(exchanged, experiment.seed_of(200))
        if experiment.ended_early(mixed):
            # As a split by labels that needs two records of each; another record may do.
            fallback = fallback or record
        elif draw_alike(trace, mixed, experiment.steps):
            return record
    return fallback


def _same(record: PoolRecord, compared: PoolRecord) -> bool:
    return bool(
        np.array_equal(record.features, compared.features) and record.label == compared.label
    )


def _three_data_sets(
    experiment: Experiment, canaries: CanaryRuns, quiet: PoolRecord, n: int
) -> tuple[TrainingSet, ...]:
    """n copies of the quiet record, of the canary, and of the first with one of the other."""
    equal_records = copies(experiment.records, quiet, n)
    canary = canaries.pair[0]
    return (
        equal_records,
        copies(experiment.records, canary, n),
        experiment.exchange(equal_records, canary),
    )


def _gather(experiment: Experiment, canaries: CanaryRuns, quiet: PoolRecord) -> _Runs | None:
    """As many runs as the tests need and the time allows; None if they cannot be made."""
    n, base = len(experiment.records), experiment.base
    data = _three_data_sets(experiment, canaries, quiet, n)
    runs = _Runs([], [], [])
    min_runs = _MIN_BRIEF_RUNS if experiment.brief else _MIN_RUNS
    brief = experiment.brief
    while len(runs.of_quiet) < _MAX_RUNS:
        count = len(runs.of_quiet)
        seed = runs.seed_of(experiment, count)
        needed = data[:1] if runs.full else data
        digests = count < _RUNS_WITH_DIGESTS
        traces = [experiment.coupled(records, seed, digests=digests) for records in needed]
        if any(experiment.ended_early(trace) for trace in traces):
            if _may_pass_over(experiment, runs, traces):
                runs.passed_over += 1  # with this seed, there are fewer steps
                continue
            if not _explained_end(experiment, traces, count):
                return None
            break
        if digests and not all(draw_alike(t, traces[0], experiment.steps) for t in traces[2:]):
            # Other records then get other random numbers, which shows as if it changed them.
            experiment.verdicts.cannot_test(
                "the number of random draws depends on the record (rejection sampling), so that "
                "runs cannot be coupled",
                ("noise", "batches"),
            )
            return None
        gradients = [trace.gradients[: experiment.steps] for trace in traces]
        drawn = traces[0].own_initial
        if count < _MIN_RUNS_OF_WEIGHTS or count * len(drawn) < _MANY_WEIGHTS:
            runs.initial.append(drawn)
        runs.declared.append(traces[0].declared)
        if len(traces) > 2:
            runs.declared_of_mixed.append(traces[2].declared)
        lists = (runs.of_quiet, runs.of_canary, runs.mixed)
        for gradients_of_data, gradient in zip(lists, gradients, strict=False):
            gradients_of_data.append(gradient)
        runs.places_of_seeds.append(count + runs.passed_over)
        count += 1
        if count == 4:
            in_batches = runs.batches(canaries.contributions.rounding)
            if _hides_batches(experiment, in_batches):
                return runs
            runs.full = _all_in_every_batch(experiment, in_batches, n)
        if count >= min_runs:
            batches = count * experiment.steps
            numbers = batches * sum(base.sizes)
            error = 1 / math.sqrt(2.0 * numbers)
            enough = runs.full or batches >= (_MIN_BRIEF_BATCHES if brief else _MIN_BATCHES)
            if enough and error < (_BRIEF_ERROR if brief else _RELATIVE_ERROR):
                # The rest of the runs decides about a shortfall. It is tested on all of them, as if
                # they had been planned.
                if not (brief and _seems_too_small(experiment, canaries, runs)):
                    break
                brief = False
            without_noise = np.ptp(np.stack(runs.of_quiet), axis=0).max() == 0
            if runs.full and count == min_runs and without_noise:
                break
            if numbers * 24 > 2 * MAX_BYTES or not experiment.work_left(0.8):
                break
    reason = ""
    if len(runs.of_quiet) < 3:
        reason = "the runs ended early"
    elif not np.isfinite(np.stack(runs.of_quiet)).all():
        reason = "the released gradients are not finite where all records are equal"
    if reason:
        experiment.verdicts.cannot_test(reason, ("noise", "batches"))
        return None
    return runs


def _seems_too_small(experiment: Experiment, canaries: CanaryRuns, runs: _Runs) -> bool:
    """Whether what differs between seeds is less than the accountant requires.

    It counts three standard errors below in some step, or two in all steps together.
    """
    accounted = experiment.accounted
    reach = canaries.contributions.largest[: experiment.steps]
    if accounted is None:
        return False
    required = reach * np.array([accounted.sigma(t) for t in range(len(reach))])
    steps = np.flatnonzero(required > 0)
    if not len(steps):
        return False
    variances = np.var(np.stack(runs.of_quiet)[:, steps], axis=0, ddof=1)
    degrees_of_one = len(runs.of_quiet) - 1
    degrees = np.maximum((variances > 0).sum(axis=1) * degrees_of_one, 1)
    ratios = variances.sum(axis=1) * degrees_of_one / degrees / np.square(required[steps])
    of_all = float(np.average(ratios, weights=degrees))
    is_below = np.sqrt(ratios) < 1 - 3 / np.sqrt(2.0 * degrees)
    return bool(np.any(is_below) or math.sqrt(of_all) < 1 - 2 / math.sqrt(2.0 * degrees.sum()))


def _may_pass_over(experiment: Experiment, runs: _Runs, traces: Sequence[Trace]) -> bool:
    """Whether a seed gives too few steps, equally many on all data sets, and more may be tried."""
    is_short = len({len(t.steps) for t in traces}) == 1 and not any(t.error for t in traces)
    is_rare = runs.passed_over < _MAX_PASSED_OVER + len(runs.of_quiet)
    return is_short and is_rare and experiment.work_left(0.8)


def _explained_end(experiment: Experiment, traces: Sequence[Trace], count: int) -> bool:
    """Reports runs that ended early, and returns whether enough runs were made before them."""
    steps = {len(trace.steps) for trace in traces if not trace.error}
    if len(steps) > 1:  # a chain of neighbours leads from one data set to the other
        experiment.verdicts.report_steps(max(steps), min(steps))
    if count < 2:
        errors = (trace.error for trace in traces if trace.error)
        reason = next(errors, "the number of steps depends on the records")
        experiment.verdicts.cannot_test(reason, ("noise", "batches"))
    return count >= 2


def _all_in_every_batch(experiment: Experiment, batches: Batches, n: int) -> bool:
    finite_counts = batches.counts[~np.isnan(batches.counts)]
    accounted = experiment.accounted
    full = accounted is None or all(accounted.rate(t) >= 1 for t in range(experiment.steps))
    return bool(
        full and finite_counts.size and np.all(finite_counts == n) and batches.unit_spread < 1e-3
    )


def _hides_batches(experiment: Experiment, batches: Batches) -> bool:
    """Whether sampled batches cannot all be empty, and no batch size is visible at some step.

    Then the quiet record and the canary contribute alike, and the quiet record's contribution to
    batches of different sizes would be taken for noise.
    """
    if batches.proportional is None:
        return False
    unseen: NDArray[np.bool_] = np.all(batches.proportional == 0, axis=0)
    if experiment.accounted is None:
        return bool(unseen.all())
    rates = np.array([experiment.accounted.rate(t) for t in range(len(unseen))])
    draws = batches.counts.shape[0] * len(experiment.records)
    all_empty = np.where(rates < 1, 1 - rates, 1.0) ** draws
    return bool(np.any(unseen & (all_empty < _NEVER)))


def _live(experiment: Experiment, canaries: CanaryRuns, runs: _Runs) -> NDArray[np.bool_]:
    """[T, D], coordinates that are not the same number in all runs of a step.

    The others do not depend on seeds and records, as the gradient of a layer that is not trained
    in this step, or a public mask. They release nothing and need no noise.
    """
    steps = experiment.steps
    first = runs.of_quiet[0]
    live = np.zeros(first.shape, np.bool_)
    for gradients in (*runs.of_quiet, *runs.of_canary, *runs.mixed):
        live |= gradients != first
    for trace in canaries.traces:
        gradients = trace.gradients[:steps]
        live[: len(gradients)] |= gradients != first[: len(gradients)]
    return live


@dataclass(frozen=True)
class _Case:
    """Runs on equal records and what they show, as the tests of noise and batches take it.

    Attributes:
        experiment: the experiment, which collects what is found.
        canaries: runs with each canary.
        quiet: the record that is copied.
        copies: n copies of it.
        of_quiet: [R, T, D], released gradients of runs on the copies.
        of_canary: [R', T, D], of runs on copies of the canary, with the first R' seeds.
        mixed: [R', T, D], of runs on the copies with one canary.
        batches: the batches of these runs.
        counts: [R, T], numbers proportional to the batch sizes, or None for full batches.
        noise: the noise of the released gradients.
        varying: whether one record's contribution differs between batches.
        random_gradients: whether a record's own gradient is random.
        others: whether an exchanged record changes what other records contribute.
    """

    experiment: Experiment
    canaries: CanaryRuns
    quiet: PoolRecord
    copies: TrainingSet
    runs: _Runs
    of_quiet: FloatArray
    of_canary: FloatArray
    mixed: FloatArray
    batches: Batches
    counts: FloatArray | None
    noise: Noise
    varying: bool
    random_gradients: bool
    others: Callable[[], OthersChange]

    @staticmethod
    def of(
        experiment: Experiment,
        canaries: CanaryRuns,
        quiet: PoolRecord,
        runs: _Runs,
        batches: Batches,
    ) -> "_Case":
        base = experiment.base
        same_runs = np.stack(runs.of_quiet)
        data = copies(experiment.records, quiet, len(experiment.records))
        counts = None if runs.full else batches.proportional
        of_canary, mixed = np.stack(runs.of_canary), np.stack(runs.mixed)
        others = cache(lambda: changes_other_records(experiment, canaries, data))
        varying = batches.unit_spread > 2e-3 and not runs.full and bool(batches.included.any())
        if varying and not is_whole(batches.unit_spread) and not others().seen:
            changes = of_canary - same_runs[: len(of_canary)], mixed - same_runs[: len(mixed)]
            varying = not is_random_at_equal_sizes(*changes, batches)
        # Dropout, augmentation and other random numbers make a record's own gradient random.
        parallel = batches.proportional is not None
        live = _live(experiment, canaries, runs)
        return _Case(
            experiment,
            canaries,
            quiet,
            data,
            runs,
            same_runs,
            of_canary,
            mixed,
            batches,
            counts,
            estimate_noise(same_runs, counts, base.slices, base.epsilon_of_type, live),
            varying,
            not (batches.constant and parallel) and not varying,
            others,
        )

    def explain_batches(self, test: TestResult) -> Finding:
        """The finding of a test, with another cause where records change those of others."""
        return explain_test(test, self.others().seen)


def _measured(case: _Case) -> EqualRecords:
    """Tests noise and batches, and returns the measurements."""
    experiment, runs, noise = case.experiment, case.runs, case.noise
    among_equal = _raise_contributions(case)
    _state_what_is_tested(case)
    missing = _missing_noise(experiment, case.canaries, noise, case.of_quiet, case.of_canary)
    if not missing:
        _noise_by_coordinate(experiment, case.of_quiet, case.of_canary, noise)
    if case.varying:
        spread = case.batches.unit_spread
        experiment.verdicts.findings.append(divided_by_batch(spread, case.others().seen))
    experiment.verdicts.random_gradients = case.random_gradients
    of_coordinates = None if missing else _runs_of_unequal_coordinates(case)
    _test_noise(case, of_coordinates)
    steps = None
    if not case.random_gradients:
        base, first_step = experiment.base, experiment.first_step
        of_pool = np.stack([trace.gradients[: experiment.steps] for trace in case.canaries.traces])
        gradients = case.of_quiet, case.mixed, of_pool, case.counts, noise.live
        steps = numbers_of_steps(base.names, base.slices, *gradients, first_step)
    declared = [trace.declared for trace in case.canaries.traces]
    compare_declared_of_steps(experiment, runs.declared, runs.declared_of_mixed, declared, steps)
    if experiment.accounted is not None:
        _test_noise_along_contributions(case, experiment.accounted)
        if not case.varying and case.canaries.comparable is None:
            _test_batches(case, experiment.accounted)
    if case.random_gradients and not runs.full:
        gaps_of_all = case.of_canary - case.of_quiet[: len(case.of_canary)]
        gaps_of_one = case.mixed - case.of_quiet[: len(case.mixed)]
        rounding = case.canaries.contributions.rounding
        experiment.verdicts.collect(
            *dependence_on_size(gaps_of_all, gaps_of_one, case.batches, rounding)
        )
    return EqualRecords(
        case.quiet,
        noise,
        case.batches,
        missing,
        case.varying,
        case.random_gradients,
        case.others,
        among_equal,
        of_coordinates,
    )


def _runs_of_unequal_coordinates(case: _Case) -> FloatArray | None:
    """Gradients [R, T, D] for the scales of coordinates, where these differ; None elsewhere."""
    experiment, runs = case.experiment, list(case.of_quiet)
    if case.varying or case.random_gradients or not has_unequal_coordinates(case.noise):
        return None
    while len(runs) < _MAX_RUNS and experiment.work_left(0.8):
        trace = experiment.coupled(case.copies, case.runs.seed_of(experiment, len(runs)), False)
        if experiment.ended_early(trace):
            break
        runs.append(trace.gradients[: experiment.steps])
    return np.stack(runs) if len(runs) >= _MIN_RUNS_OF_COORDINATES else None


def _raise_contributions(case: _Case) -> FloatArray:
    """[T], half the largest change by one record among equal ones, which counts as contribution.

    Runs on equal records that differ in one are neighbours, too.
    """
    mixed = case.mixed
    gaps = np.linalg.norm(mixed - case.of_quiet[: len(mixed)], axis=2).max(axis=0) / 2
    more = _pair_gaps(case, mixed)
    largest = case.canaries.contributions.largest
    top = largest[: case.experiment.steps]
    among_equal: FloatArray = np.maximum(gaps, more)[: len(largest)]
    np.maximum(top, among_equal, out=top)
    return among_equal


def _state_what_is_tested(case: _Case) -> None:
    experiment = case.experiment
    experiment.verdicts.tested.append("noise")
    if case.canaries.comparable is not None:
        experiment.verdicts.cannot_test("the weights depend on the record", ("batches",))
    elif experiment.accounted is not None or case.runs.full:
        experiment.verdicts.tested.append("batches")
    else:
        experiment.verdicts.cannot_test("no accountant states how batches are drawn", ("batches",))
    experiment.verdicts.measured["runs of the noise test"] = float(len(case.of_quiet))


def _test_noise(case: _Case, of_coordinates: FloatArray | None) -> None:
    """Tests whether the noise is independent and Gaussian.

    Where gradients are random, residuals contain more than noise, and only correlations that this
    cannot explain are reported.
    """
    experiment, noise, base = case.experiment, case.noise, case.experiment.base
    min_correlation = MIN_CORRELATION
    if case.random_gradients:
        min_correlation = max(
            min_correlation, 1.3 * _share_of_signal(experiment, case.canaries, noise)
        )
        experiment.verdicts.notes.append(
            "what a record adds to a step differs between runs (dropout, augmentation, or a "
            "mistake), so the tests of the noise detect only larger mistakes"
        )
    if not noise.silent.all() and min_correlation < 1:
        between_steps = experiment.accounted is not None
        experiment.verdicts.collect(
            *independence(noise, base.names, base.shapes, between_steps, min_correlation),
            words=lambda test: explain_test(test, case.random_gradients and case.others().seen),
        )
        if not case.varying and not case.random_gradients:
            _test_shape_of_noise(case, of_coordinates)
    if not case.varying:
        experiment.verdicts.collect(*noise_again(case.of_quiet, noise))
        if len({len(weights) for weights in case.runs.initial}) == 1:
            weights = np.stack(case.runs.initial)
            experiment.verdicts.collect(*noise_from_weights(noise, weights))


def _test_shape_of_noise(case: _Case, of_coordinates: FloatArray | None) -> None:
    experiment, noise, base = case.experiment, case.noise, case.experiment.base
    gradients_of_equal, counts, of_canary = case.of_quiet, case.counts, case.of_canary
    in_units, equal_in_units, canary_in_units = noise, gradients_of_equal, of_canary
    if of_coordinates is not None:
        # Noise with a scale for each coordinate must be Gaussian and independent in these units.
        inverse = np.sqrt(inverse_variances(of_coordinates))
        equal_in_units, canary_in_units = gradients_of_equal * inverse, of_canary * inverse
        in_units = estimate_noise(
            equal_in_units, counts, base.slices, base.epsilon_of_type, noise.live
        )
    experiment.verdicts.collect(
        *shape_of_noise(in_units, experiment.first_step),
        *(() if counts is None else scale_by_batch(in_units, counts)),
        *flat_noise(in_units),
        *length_of_noise(in_units),
        *grain_of_noise(equal_in_units, canary_in_units, in_units, base.epsilon_of_type),
        *rank_of_noise(equal_in_units, counts, base.slices, base.epsilon_of_type, noise.live),
    )
    accounted = experiment.accounted
    if accounted is not None and counts is not None:
        sigmas = np.array([accounted.sigma(t) for t in range(experiment.steps)])
        for gradients in (gradients_of_equal, case.of_canary):
            sizes = case.batches.counts[: len(gradients)]
            experiment.verdicts.collect(
                *one_more_record(gradients[: len(sizes)], sizes, noise, sigmas)
            )


def _test_noise_along_contributions(case: _Case, accounted: Accounted) -> None:
    """Tests whether the noise is smaller along the update, or along what one record adds to it.

    Random gradients and batches of unknown size can only enlarge the measured noise.
    """
    experiment, noise = case.experiment, case.noise
    top = case.canaries.contributions.largest[: experiment.steps]
    sigma = np.array([accounted.sigma(t) for t in range(len(top))])
    required = np.minimum(noise.scales_by_tensor[: len(top)], (sigma * top)[:, None])
    # Directions must be independent of the residuals. The mean over runs is regressed out of them,
    # and the difference of two coupled runs contains no noise.
    for direction in (case.of_quiet.mean(axis=0), _pair_direction(experiment, case.canaries)):
        directions = np.where(noise.live, direction, 0.0)
        lengths = np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-300)
        units = directions / lengths
        experiment.verdicts.collect(
            *noise_along(case.of_quiet, case.counts, units, noise, required)
        )


def _test_batches(case: _Case, accounted: Accounted) -> None:
    """Tests whether batches are Poisson samples at the accounted rates."""
    experiment, batches = case.experiment, case.batches
    n = len(experiment.records)
    rates = [accounted.rate(t) for t in range(experiment.steps)]
    experiment.verdicts.collect(
        *poisson_tests(batches.counts, batches.included, n, rates), words=case.explain_batches
    )
    if all(rate >= 1 for rate in rates):
        return
    inclusions = [batches.included, *_inclusions_elsewhere(case, rates)]
    experiment.verdicts.collect(
        *batches_in_noise(case.noise, [x[: len(case.of_quiet)] for x in inclusions])
    )
    if len(set(rates)) == 1 and n > 1:
        experiment.verdicts.collect(*even_inclusions(inclusions, rates[0]))
        experiment.verdicts.collect(*inclusions_by_lag(inclusions, rates[0]))
    if not experiment.brief:
        _small_batches(case, rates)


def _inclusions_elsewhere(case: _Case, rates: list[float]) -> list[NDArray[np.bool_]]:
    """Inclusions of records in other places, [R, T] each, whose rates are tested, too.

    Where the batches of several records cannot be decoded, the first record alone is exchanged.
    """
    experiment = case.experiment
    tries = float(case.batches.included.size)
    decoded = None
    if not experiment.brief and not case.random_gradients:
        decoded = inclusions_of_many(
            experiment,
            case.canaries,
            case.copies,
            case.runs.of_quiet,
            partial(case.runs.seed_of, experiment),
            case.batches.counts,
            float(np.mean(rates)),
        )
    if decoded is not None and len(set(rates)) == 1:
        experiment.verdicts.collect(*judge_used_records(decoded, rates[0]))
        tries = max(tries, SHARE_OF_TRIES * decoded.tries)
    if len(set(rates)) == 1:
        experiment.verdicts.measured["detectable rate"] = detectable_ratio(tries, rates[0])
    if decoded is None:
        return _inclusions_of_first(case)
    is_decoded = np.isfinite(decoded.included).all(axis=(0, 1))
    places = np.flatnonzero(is_decoded)[:_MAX_PLACES]
    return [decoded.included[:, :, place] > 0 for place in places]


def _inclusions_of_first(case: _Case) -> list[NDArray[np.bool_]]:
    """Inclusions of the first record, or of the last one if the first is exchanged anyway."""
    experiment = case.experiment
    place = -1 if experiment.place == 0 else 0
    data = replace_one(case.copies, case.canaries.pair[0], place)
    gradients: list[FloatArray] = []
    for number in range(len(case.mixed)):
        seed = case.runs.seed_of(experiment, number)
        trace = experiment.coupled(data, seed, digests=False)
        if experiment.ended_early(trace):
            break
        gradients.append(trace.gradients[: experiment.steps])
    if len(gradients) < 2:
        return []
    changes = np.stack(gradients) - case.of_quiet[: len(gradients)]
    return [included_of(changes, case.canaries.contributions.rounding)[0]]


def _pair_gaps(case: _Case, mixed: FloatArray) -> FloatArray:
    """[T], half the largest distance of canaries among equal records."""
    experiment, canaries, equal_records = case.experiment, case.canaries, case.copies
    reach = np.zeros(experiment.steps)
    if not experiment.brief and experiment.work_left(0.7):
        # What a record contributes may depend on how many others are like it.
        exchanged = canaries.pool[:: math.ceil(len(canaries.pool) / _MAX_AMONG_EQUAL)]
        reach = (
            largest_distances(
                experiment, [experiment.exchange(equal_records, canary) for canary in exchanged]
            )
            / 2
        )
    if experiment.brief or (experiment.accounted is not None and not experiment.sampled):
        return reach
    data = experiment.exchange(equal_records, canaries.pair[1])
    for number, usual in enumerate(mixed[:_MAX_PAIR_RUNS]):
        seed = case.runs.seed_of(experiment, number)
        trace = experiment.coupled(data, seed, digests=False)
        if experiment.ended_early(trace) or not experiment.work_left(0.85):
            break
        gap = np.linalg.norm(trace.gradients[: experiment.steps] - usual, axis=1) / 2
        reach = np.maximum(reach, np.nan_to_num(gap))
    return reach


def _pair_direction(experiment: Experiment, canaries: CanaryRuns) -> FloatArray:
    """[T, D], the difference of the two canaries that differ most."""
    places = [
        next(i for i, record in enumerate(canaries.pool) if record is p) for p in canaries.pair
    ]
    gradient, other_gradient = (canaries.traces[i].gradients[: experiment.steps] for i in places)
    return gradient - other_gradient


def _share_of_signal(experiment: Experiment, canaries: CanaryRuns, noise: Noise) -> float:
    """Largest share of the residuals' variance that the accounted noise does not explain."""
    if experiment.accounted is None:
        return 1.0
    largest = canaries.contributions.largest[: experiment.steps]
    sigma = np.array([experiment.accounted.sigma(t) for t in range(len(largest))])
    required = np.square(sigma * largest)[:, None]
    observed = np.square(noise.scales_by_tensor[: len(largest)])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1.0 - np.where(observed > 0, required / observed, 0.0)
    share = np.where(noise.live_sizes[: len(largest)] > 0, share, 0.0)
    return float(np.clip(share, 0.0, 1.0).max(initial=0.0))


def _small_batches(case: _Case, rates: list[float]) -> None:
    """Tests for empty batches with three records, where most Poisson samples are empty."""
    experiment = case.experiment
    n = min(_SMALL_N, len(experiment.records))
    data = _three_data_sets(experiment, case.canaries, case.quiet, n)
    runs = _Runs([], [], [])
    for i in range(_SMALL_RUNS):
        seed = experiment.seed_of(3000 + i)
        traces = [experiment.coupled(records, seed, digests=False) for records in data]
        reason = next((trace.error for trace in traces if trace.error), "")
        if not reason and any(experiment.ended_early(trace) for trace in traces):
            reason = "fewer steps"
        if not reason and not all(
            np.isfinite(trace.gradients[: experiment.steps]).all() for trace in traces
        ):
            # As of a loop that divides by an expected batch size, which may round to zero.
            reason = "gradients that are not finite"
        if reason:
            experiment.verdicts.notes.append(
                f"empty batches were not tested: with {n} records the function gave {reason}"
            )
            return
        for gradients_of_data, trace in zip(
            (runs.of_quiet, runs.of_canary, runs.mixed), traces, strict=True
        ):
            gradients_of_data.append(trace.gradients[: experiment.steps])
        accounted = traces[0].accounted
        if accounted is not None:  # the rate may depend on the number of records
            rates = [accounted.rate(t) for t in range(experiment.steps)]
        if not experiment.work_left(0.85):
            break
    if len(runs.of_quiet) < 4:
        return
    batches = runs.batches(case.canaries.contributions.rounding)
    tests = poisson_tests(batches.counts, batches.included, n, rates)
    kinds = ("no empty batch", "mean of batches", "inclusion rate")
    experiment.verdicts.collect(
        *(test for test in tests if test.kind in kinds),
        words=case.explain_batches,
    )


def _missing_noise(
    experiment: Experiment,
    canaries: CanaryRuns,
    noise: Noise,
    gradients: FloatArray,
    gradients_of_canary: FloatArray,
) -> bool:
    """Reports tensors and steps without noise: their gradient is the same for every seed."""
    silent, names = noise.silent, experiment.base.names
    reach, rounding = canaries.contributions.by_tensor, canaries.contributions.rounding
    moved = np.asarray(reach[: experiment.steps] > rounding[: experiment.steps, None])
    matters = np.any(moved, axis=0)
    accounted = experiment.accounted
    if accounted is not None and all(accounted.sigma(t) == 0 for t in range(experiment.steps)):
        return False
    if not (silent & matters[None, :]).any():
        return False
    without_noise = silent | (noise.live_sizes == 0)
    if without_noise[:, matters].all():
        agree = (gradients[0] == gradients_of_canary[0]).all(axis=0)
        fixed = bool(agree.any() and np.any(gradients[0][:, agree] != 0))
        experiment.verdicts.findings.append(no_noise(len(gradients), fixed))
        return True
    everywhere = [i for i in range(len(names)) if matters[i] and without_noise[:, i].all()]
    if everywhere:
        silent_names = [names[i] for i in everywhere]
        shown = {"names": listed(silent_names, "receive"), "tensors": ", ".join(silent_names)}
        experiment.verdicts.findings.append(explain("tensors without noise", **shown))
    partly_silent = [i for i in range(len(names)) if matters[i] and i not in everywhere]
    first_step = experiment.first_step + 1
    steps = [
        t + first_step
        for t in range(len(silent))
        if silent[t, partly_silent].any() and without_noise[t, partly_silent].all()
    ]
    if steps:
        experiment.verdicts.findings.append(steps_without_noise(steps, len(silent)))
    return bool(everywhere or steps)


def _noise_by_coordinate(
    experiment: Experiment, of_quiet: FloatArray, of_canary: FloatArray, noise: Noise
) -> None:
    """Reports coordinates without noise, on all data or on copies of one of two records.

    A selection of coordinates after the noise is allowed. Then the zeros differ between runs, or,
    if only values above a limit are kept, no kept coordinate has both signs.
    """
    differ, bare = np.zeros(of_quiet.shape[2], np.bool_), np.zeros(of_quiet.shape[2], np.bool_)
    rounding = ROUNDINGS * experiment.base.epsilon_of_type * np.abs(of_quiet).max(axis=0)
    moved = np.abs(of_canary - of_quiet[: len(of_canary)]).max(axis=0) > 4 * rounding
    silent = np.repeat(noise.silent, noise.sizes, axis=1)
    if noise.degrees.min() > 1:
        # Rounding must be far smaller than the noise, or it hides it.
        still = np.abs(noise.residuals).max(axis=0) <= rounding
        still &= (rounding < 0.1 * noise.units) & noise.live
        bare = np.any(still & moved & ~silent, axis=0)
    for t in range(of_quiet.shape[1]):
        zeros = [runs[:, t] == 0 for runs in (of_quiet, of_canary)]
        fixed = all(np.all(values == values[0]) for values in zeros)
        noisy = all(
            np.any(np.ptp(np.sign(runs[:, t]), axis=0) == 2) for runs in (of_quiet, of_canary)
        )
        if fixed and noisy:
            differ |= zeros[0][0] != zeros[1][0]
    for kind, affected in (("coordinates without noise", bare), ("noise by coordinate", differ)):
        if affected.any():
            named_slices = zip(experiment.base.names, experiment.base.slices, strict=True)
            names = [name for name, columns in named_slices if affected[columns].any()]
            shown = {
                "coordinates": int(affected.sum()),
                "of": len(affected),
                "names": listed(names),
            }
            experiment.verdicts.findings.append(explain(kind, **shown))
            return

"""Coupled runs with each canary in the place of the last record: contributions of one record."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.loop.premises.canary_pool import (
    BY_LENGTH,
    PoolRecord,
    ascend_against,
    extreme_gradient,
    gradient_of,
    halfway,
    labels_to_try,
    opposite_pair,
    records_of_many_lengths,
    records_that_are_not_finite,
    search_canaries,
)
from audit.loop.premises.contributions import Contributions, contributions
from audit.loop.premises.experiment import (
    SEEDS_FOR_INCLUSION,
    Experiment,
    copies,
    draw_alike,
    replace_one,
)
from audit.loop.premises.noise import TestResult
from audit.loop.premises.numbers_of_steps import (
    compare_numbers_of_steps,
    compare_use_of_others,
    report_lost_noise,
)
from audit.loop.premises.verdicts import FAMILY_ERROR, explain, influence, weights_outside
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.records import TrainingSet
from audit.numerics import FloatArray

# This number of canaries is tried even if little time is left.
_FEWEST = 12
# Probability that an exchange of places in sampled batches is missed, and seeds that are tried.
_SURE, _MAX_ORDER_SEEDS = 1e-4, 64
# Seeds whose steps are compared, and the relative difference of two contributions.
_SEEDS_OF_OTHER_STEPS, _VARIES = 16, 2e-4
# Records whose numbers of steps are compared over seeds.
_MAX_SUSPECTS = 3
# P-value at which a likely cause is that records stay after their batch.
_CARRIES = 1e-4
# Seeds for which weights are compared. Batches of equal records have fewer sizes than this.
_SEEDS_OF_WEIGHTS = 16
# Factors by which the records that differ most are made larger and smaller.
_FACTORS_OF_SIZE = (0.25, 0.35, 0.5, 0.7, 1.4, 2.0)
# Attributes of a step that set the scale of its noise.
_STEP_SETTINGS = (("clip", "clipping threshold"), ("noise_multiplier", "noise multiplier"))
# Relative difference of a threshold or a noise multiplier that is no rounding.
_ROUNDING_OF_SETTINGS = 1e-6
# Number of steps for whose weights a pair with opposite gradients is sought, and rounds in which
# records are added between those of many gradient norms that contribute most.
_MAX_PAIRS, _ROUNDS_OF_LENGTHS = 4, 2
# Seeds that find a role which a record has in a tenth of the runs: 0.9^32 = 0.034 miss it. Only the
# first steps are compared, within this share of the work.
_SEEDS_OF_ROLES, _STEPS_OF_ROLES, _WORK_OF_ROLES = 32, 2, 0.1


@dataclass(frozen=True)
class CanaryRuns:
    """Runs that differ in one record alone.

    Attributes:
        pool: the canaries that could be trained on.
        traces: a run with each of them.
        contributions: the contributions of the canaries.
        pair: the two canaries whose contributions differ most in one step; one canary twice if it
            differs most from an absent record.
        strongest: the best canary for an attack, which still contributes in later steps.
        comparable: number of steps before which the weights depend on gradients alone; None if
            they do in all steps.
    """

    pool: Sequence[PoolRecord]
    traces: Sequence[Trace]
    contributions: Contributions
    pair: tuple[PoolRecord, PoolRecord]
    strongest: PoolRecord
    comparable: int | None = None


@dataclass(frozen=True)
class PoolRuns:
    """Coupled runs with the canaries of the pool.

    Attributes:
        pool: the canaries that draw the same random numbers as the reference record.
        traces: a run with each of them.
        apart: [T], largest contribution among canaries that change the number of draws, or None.
        not_finite: runs with records that are not finite, whose gradients are finite.
    """

    pool: list[PoolRecord]
    traces: list[Trace]
    apart: FloatArray | None = None
    not_finite: Sequence[Trace] = ()


@dataclass
class _Sorted:
    """Runs with the canaries of a pool, by what each of them can be compared with.

    Attributes:
        pool: the canaries that draw the same random numbers as the reference record.
        traces: a run with each of them.
        errors: the errors that other canaries raised.
        overflowing: canaries whose released gradients are not finite.
        diverged: canaries that change the number of random draws.
        apart: runs of diverged canaries that draw alike.
        other_steps: canaries with which the function takes another number of steps.
    """

    pool: list[PoolRecord] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    overflowing: list[PoolRecord] = field(default_factory=list)
    diverged: list[PoolRecord] = field(default_factory=list)
    apart: list[Trace] = field(default_factory=list)
    other_steps: list[PoolRecord] = field(default_factory=list)

    def add(self, experiment: Experiment, canary: PoolRecord) -> None:
        """Runs the function with one canary."""
        # One more step than tested shows a record that adds steps.
        trace = experiment.coupled(
            experiment.with_canary(canary), experiment.base_seed, further=experiment.can_go_on
        )
        if trace.error is not None:
            self.errors.append(trace.error)
        elif len(trace.steps) != experiment.steps:
            self.other_steps.append(canary)
            self.diverged.append(canary)
        elif not np.isfinite(trace.gradients).all():
            self.overflowing.append(canary)
        elif not experiment.draws_as_reference(trace):
            self.diverged.append(canary)
            if not self.apart or draw_alike(trace, self.apart[0], experiment.steps):
                self.apart.append(trace)
        else:
            self.pool.append(canary)
            self.traces.append(trace)


def run_canaries(experiment: Experiment) -> PoolRuns:
    """Coupled runs with the canaries of the pool that can be trained on.

    Canaries with which the function draws other random numbers are left out, and compared only with
    each other.
    """
    runs = _Sorted()
    for canary in experiment.pool:
        if len(runs.traces) >= _FEWEST and not experiment.work_left(0.45):
            break
        runs.add(experiment, canary)
    _note_errors(experiment, runs.errors)
    if runs.overflowing and runs.traces:
        _report_overflow(experiment, runs.overflowing)
    if runs.diverged:
        experiment.verdicts.notes.append(
            f"for {len(runs.diverged)} of {len(experiment.pool)} canaries the number of steps or "
            "of random draws depends on the record; they were compared with each other alone"
        )
    apart = _largest_contribution(experiment, runs.apart) if len(runs.apart) > 1 else None
    not_finite = _run_records_that_are_not_finite(experiment)
    suspects = [*runs.other_steps[:_MAX_SUSPECTS], *not_finite.other_steps]
    if not compare_numbers_of_steps(experiment, suspects):
        report_lost_noise(experiment, [*runs.diverged, *not_finite.diverged])
        # Without another number of steps, fewer draws are those of fewer records.
        with_other_steps = {id(record) for record in runs.other_steps}
        left_out = [record for record in runs.diverged if id(record) not in with_other_steps]
        if left_out:
            compare_use_of_others(experiment, left_out)
    return PoolRuns(runs.pool, runs.traces, apart, not_finite.traces)


def _largest_contribution(experiment: Experiment, traces: Sequence[Trace]) -> FloatArray:
    """[T], the largest contribution among runs that differ in one record."""
    gradients, base = [trace.gradients for trace in traces], experiment.base
    return contributions(gradients, base.slices, base.epsilon_of_type).largest


def _note_errors(experiment: Experiment, errors: Sequence[str]) -> None:
    if errors:
        experiment.verdicts.notes.append(
            f"{len(errors)} of {len(experiment.pool)} canaries were left out, because the function "
            f"raised an error for them, such as {errors[0]}; an observer who sees the error learns "
            "about the record"
        )


def _report_overflow(experiment: Experiment, overflowing: Sequence[PoolRecord]) -> None:
    size = min(canary.size for canary in overflowing)
    smallest = f" (the smallest {size:g} times as large as a typical record)"
    smallest = "" if np.isnan(size) else smallest
    count, of = len(overflowing), len(experiment.pool)
    finding = explain("not finite", records=count, of=of, smallest=smallest, size=size)
    experiment.verdicts.findings.append(finding)


def _run_records_that_are_not_finite(experiment: Experiment) -> _Sorted:
    """Runs with records that hold NaN or infinity.

    Accountants and Opacus assume finite records, so that an infinite gradient is no finding. But a
    function that skips such a record, or its step, must not reveal it.
    """
    runs = _Sorted()
    if experiment.brief:
        return runs
    for canary in records_that_are_not_finite(experiment.records, experiment.pool[0].label):
        runs.add(experiment, canary)
    if runs.overflowing:
        experiment.verdicts.notes.append(
            "a record that holds NaN or infinity makes a released gradient not finite: the epsilon "
            "holds for finite records"
        )
    return runs


class OthersChange(NamedTuple):
    """Whether an exchanged record changes the contributions of the other records.

    If it does not, exchanging it has the same effect among any other records.

    Attributes:
        seen: whether it does.
        with_equal_draws: whether it does in runs that draw as many random numbers in each step.
            Otherwise, other numbers of a shifted random stream may be the reason.
    """

    seen: bool
    with_equal_draws: bool


def changes_other_records(
    experiment: Experiment, canaries: CanaryRuns, records: TrainingSet
) -> OthersChange:
    """Compares the effect of an exchange among the experiment's records with that among others."""
    # Later steps of the experiment may have been tested since these canaries ran.
    pool, steps, seed = canaries.pool, len(canaries.contributions.largest), experiment.base_seed
    reference = next(i for i, record in enumerate(pool) if record is canaries.pair[0])
    with_reference = experiment.coupled(experiment.exchange(records, pool[reference]), seed)
    seen = False
    # Records that differ in size, in label and in direction.
    for wanted in (
        lambda record: record is canaries.pair[1],
        lambda record: record.family == "own",
        lambda record: record.label != canaries.pair[0].label,
    ):
        other_index = next(
            (i for i, record in enumerate(pool) if wanted(record) and i != reference), None
        )
        if other_index is None:
            continue
        with_other = experiment.coupled(experiment.exchange(records, pool[other_index]), seed)
        if experiment.ended_early(with_reference) or experiment.ended_early(with_other):
            continue
        usual = [canaries.traces[i] for i in (reference, other_index)]
        usual_change, change_now = (
            usual[0].gradients[:steps] - usual[1].gradients[:steps],
            with_reference.gradients[:steps] - with_other.gradients[:steps],
        )
        sizes = np.maximum(np.linalg.norm(usual_change, axis=1), np.linalg.norm(change_now, axis=1))
        rounding = 8 * canaries.contributions.rounding[:steps]
        if np.any(np.linalg.norm(usual_change - change_now, axis=1) > 0.02 * sizes + rounding):
            seen = True
            if all(draw_alike(run, with_reference, steps) for run in (*usual, with_other)):
                return OthersChange(seen=True, with_equal_draws=True)
    return OthersChange(seen, with_equal_draws=False)


def orders_records(experiment: Experiment, canaries: CanaryRuns) -> bool:
    """Whether an exchange of two records' places changes nothing, although batches are sampled.

    Batches are drawn by place, and the two records contribute differently. So the exchange changes
    a step whose batch holds one of the two alone, unless the function sorts its records.
    """
    accounted = experiment.accounted
    if accounted is None or len(experiment.records) < 3:
        return False
    rates = [accounted.rate(t) for t in range(experiment.steps)]
    log_unseen = sum(math.log(q * q + (1 - q) * (1 - q)) for q in rates if 0 < q < 1)
    seeds = math.ceil(math.log(_SURE) / log_unseen) if log_unseen < 0 else _MAX_ORDER_SEEDS + 1
    if seeds > _MAX_ORDER_SEEDS:
        return False
    place = experiment.place
    neighbouring = place + 1 if place >= 0 else place - 1
    canary, *other_canaries = {
        id(record): record for record in (*canaries.pair, *canaries.pool[-2:])
    }.values()
    for compared in _with_other_contributions(experiment, canaries, canary, other_canaries):
        orders = [
            replace_one(replace_one(experiment.records, neighbour, neighbouring), exchanged, place)
            for neighbour, exchanged in ((canary, compared), (compared, canary))
        ]
        for number in range(seeds):
            seed = experiment.seed_of(600 + number)
            runs = [experiment.coupled(data, seed, digests=False) for data in orders]
            if any(experiment.ended_early(run) for run in runs):
                break
            gap = np.linalg.norm(runs[0].gradients - runs[1].gradients, axis=1)
            if np.any(gap > 8 * canaries.contributions.rounding[: experiment.steps]):
                break
        else:
            return True
    return False


def _with_other_contributions(
    experiment: Experiment, canaries: CanaryRuns, record: PoolRecord, others: Sequence[PoolRecord]
) -> list[PoolRecord]:
    """Those of the others that contribute differently from a record to each of its steps.

    An exchange with a record of the same clipped gradient would change nothing.
    """
    steps = experiment.steps

    def gradients(wanted: PoolRecord) -> FloatArray:
        traces = zip(canaries.traces, canaries.pool, strict=False)
        return next(trace.gradients[:steps] for trace, other in traces if other is wanted)

    of_record = gradients(record)
    gaps = np.array([np.linalg.norm(gradients(other) - of_record, axis=1) for other in others])
    differ = gaps > 8 * canaries.contributions.rounding[:steps]
    in_batch = differ.any(axis=0)
    return [other for other, at in zip(others, differ, strict=True) if at[in_batch].all()]


def weights_have_own_noise(experiment: Experiment) -> bool:
    """Whether weights differ between seeds although all gradients are forced."""
    pairs = zip(
        experiment.coupled(experiment.records, experiment.seed_of(100)).steps,
        experiment.coupled(experiment.records, experiment.base_seed).steps,
        strict=False,
    )
    return any(a.weights != b.weights for a, b in list(pairs)[1:])


def weights_without_noise(experiment: Experiment, pool: Sequence[PoolRecord]) -> int | None:
    """The first step, from 0, before which weights depend on the records without any noise.

    The weights differ between seeds although all gradients are forced. Either noise is added to
    them, or the drawn batch changes them. With copies of one record, batches of equal sizes are
    equal, so that the weights of some seeds agree exactly. With noise, those of two seeds never do.

    Returns:
        The step; None if the weights may have noise, or do not depend on the records.
    """
    of_data = [record for record in pool if record.family == "own"]
    # Large records may saturate the model, so that they move no weights.
    for record, *later_records in filter(None, (pool, of_data)):
        compared = _most_different(record, later_records)
        step, depends = _step_of_weights(experiment, record, compared)
        if depends:
            return step
    return None


def _most_different(record: PoolRecord, others: Sequence[PoolRecord]) -> PoolRecord:
    """One of the others with other features and another label if possible, else other features."""

    def difference(other: PoolRecord) -> tuple[bool, bool]:
        same_features = np.array_equal(other.features, record.features)
        return not same_features, bool(other.label != record.label)

    return max(others, key=difference, default=record)


def _step_of_weights(
    experiment: Experiment, record: PoolRecord, compared: PoolRecord
) -> tuple[int | None, bool]:
    """The step before which weights depend on copies of a record, and whether there is one.

    The step is None if the weights of all seeds differ, as they do with noise.
    """
    seeds = [experiment.seed_of(1100 + i) for i in range(_SEEDS_OF_WEIGHTS)]
    n = len(experiment.records)
    by_record = [
        [experiment.coupled(copies(experiment.records, copied, n), seed) for seed in seeds]
        for copied in (record, compared)
    ]
    runs = [run for record_runs in by_record for run in record_runs]
    for step in range(1, min(len(run.steps) for run in runs)):
        ours, theirs = ([run.steps[step].weights for run in side] for side in by_record)
        if ours == theirs:
            continue
        agree = len(set(ours)) < len(ours) and len(set(theirs)) < len(theirs)
        return (step if agree else None), True
    return None, False


def first_weights_depend(experiment: Experiment, pool: Sequence[PoolRecord]) -> bool:
    """Whether the weights before the first step, when nothing is released, depend on a record."""
    for number in range(SEEDS_FOR_INCLUSION):
        seed = experiment.seed_of(900 + number)
        run, compared_run = (
            experiment.coupled(experiment.with_canary(canary), seed) for canary in pool[:2]
        )
        if (
            run.steps
            and compared_run.steps
            and run.steps[0].weights != compared_run.steps[0].weights
        ):
            return True
        if not experiment.work_left(0.45):
            break
    return False


def compare_steps_without_the_record(experiment: Experiment, canaries: CanaryRuns) -> None:
    """Tests whether a record changes steps whose batch does not hold it.

    Such a record changes more steps than the accounted rate allows, by different amounts for
    different seeds. A record that is drawn too often adds the same amount for every seed.
    """
    canary = canaries.pair[0]
    # Both features and labels differ, because either may change a statistic.
    differing = [
        record
        for record in canaries.pool
        if record.label != canary.label and not np.array_equal(record.features, canary.features)
    ]
    if not experiment.sampled or not differing or canaries.comparable == 0:
        return
    compared = next((record for record in differing if record.family == "own"), differing[0])
    assert experiment.accounted is not None
    steps = len(canaries.contributions.largest)
    steps = steps if canaries.comparable is None else canaries.comparable
    rate = float(np.mean([experiment.accounted.rate(t) for t in range(steps)] or [1.0]))
    changes, changed = _changes_of_steps(experiment, canaries, compared, steps, rate)
    if not np.any(changed) or changed.mean() < 1.1 * rate:
        return
    sizes = np.linalg.norm(changes, axis=2)
    varies = any(
        np.linalg.norm(changes_of_step - changes_of_step[0], axis=1).max()
        > _VARIES * sizes[inside, t].max() + 8 * canaries.contributions.rounding[t]
        for t, inside in enumerate(changed.T)
        if inside.any()
        for changes_of_step in [changes[inside, t]]
    )
    hits, tries = int(changed.sum()), changed.size
    p_value = float(stats.binom.sf(hits - 1, tries, rate))
    if not varies or p_value > FAMILY_ERROR or orders_records(experiment, canaries):
        return
    shown = {
        "hits": hits,
        "tries": tries,
        "share in %": 100 * hits / tries,
        "rate in %": 100 * rate,
    }
    other_records = TrainingSet(
        experiment.records.features[::-1], np.roll(experiment.records.labels, 1)
    )
    experiment.verdicts.collect(
        TestResult(p_value, "influence", shown),
        words=lambda test: influence(
            test,
            changes_other_records(experiment, canaries, other_records).seen,
            _is_carried(changed),
        ),
    )


def _changes_of_steps(
    experiment: Experiment, canaries: CanaryRuns, compared: PoolRecord, steps: int, rate: float
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """[R, T, D], changes of the released gradients by another record; [R, T], whether they are any.

    Args:
        experiment: the experiment.
        canaries: runs with each canary.
        compared: the record that takes the canary's place.
        steps: T.
        rate: the accounted rate; runs end once no larger share of steps changes.
    """
    changes: list[FloatArray] = []
    changed = np.zeros((0, steps), np.bool_)
    for number in range(_SEEDS_OF_OTHER_STEPS):
        seed = experiment.seed_of(800 + number)
        pair = [
            experiment.coupled(experiment.with_canary(record), seed)
            for record in (canaries.pair[0], compared)
        ]
        if any(experiment.ended_early(run) for run in pair) or not draw_alike(
            pair[0], pair[1], steps
        ):
            continue
        changes.append(pair[1].gradients[:steps] - pair[0].gradients[:steps])
        sizes = np.linalg.norm(np.stack(changes), axis=2)
        changed = sizes > 8 * canaries.contributions.rounding[:steps]
        # Stopping early without a finding cannot cause a false finding.
        if changed.mean() < 1.1 * rate or not experiment.work_left(0.5):
            break
    return np.stack(changes) if changes else np.zeros((0, steps, 0)), changed


def _is_carried(changed: NDArray[np.bool_]) -> bool:
    """Whether a step is changed more often after a changed one, by Fisher's exact test.

    Args:
        changed: [R, T], the steps that the record changes.
    """
    before, after = changed[:, :-1].ravel(), changed[:, 1:].ravel()
    rows = [(before == b) & (after == a) for b in (True, False) for a in (True, False)]
    table = np.array([int(row.sum()) for row in rows]).reshape(2, 2)
    return bool(stats.fisher_exact(table, alternative="greater")[1] < _CARRIES)


def compare_weights(experiment: Experiment, traces: Sequence[Trace]) -> int | None:
    """Reports weights that depend on the record although all gradients are forced.

    Returns:
        The number of steps before which the weights depend on gradients alone; None if they do in
        all steps.
    """
    reference, comparable = traces[0], None
    moved: dict[int, Trace] = {}
    for trace in traces[1:]:
        pairs = enumerate(zip(trace.steps, reference.steps, strict=False))
        first_moved = next((t for t, (a, b) in pairs if a.weights != b.weights), None)
        if first_moved is not None:
            moved.setdefault(first_moved, trace)
    if moved:
        step = comparable = min(moved)
        before, reference_before = moved[step].steps[step - 1], reference.steps[step - 1]
        settings = step > 0 and before.settings != reference_before.settings
        within = step > 0 and before.weights_after != reference_before.weights_after
        experiment.verdicts.findings.append(weights_outside(step, settings, within))
    if any(trace.initial_digest != reference.initial_digest for trace in traces):
        experiment.verdicts.findings.append(explain("initial weights"))
    return comparable


def compare_thresholds(experiment: Experiment, traces: Sequence[Trace]) -> None:
    """Reports a clipping threshold, or a noise multiplier, that depends on the record.

    Both set the scale of the noise, so that released gradients reveal them. A threshold of adaptive
    clipping is forced in coupled runs like any released number.
    """
    reference = traces[0]
    for attribute, name in _STEP_SETTINGS:
        differing: dict[int, tuple[float, float]] = {}
        for trace in traces[1:]:
            for step, pair in enumerate(zip(reference.steps, trace.steps, strict=False)):
                usual, value = (getattr(values, attribute) for values in pair)
                if usual is None or value is None:
                    continue
                if not math.isclose(usual, value, rel_tol=_ROUNDING_OF_SETTINGS):
                    differing.setdefault(step, (usual, value))
        if differing:
            step, (first_value, second_value) = min(differing.items())
            number = experiment.first_step + step + 1
            finding = explain(
                "step setting", step=number, name=name, one=first_value, other=second_value
            )
            experiment.verdicts.findings.append(finding)


def measure(
    experiment: Experiment,
    runs: PoolRuns,
    comparable: int | None,
    loss: Callable[..., Any] | None,
) -> CanaryRuns:
    """Contributions of the canaries, and of further ones that gradient ascent finds."""
    base, pool, traces = experiment.base, runs.pool, runs.traces
    absent = _without_last(experiment)

    def contributions_of(traces: Sequence[Trace]) -> Contributions:
        gradients = [trace.gradients for trace in traces]
        return contributions(gradients, base.slices, base.epsilon_of_type, absent)

    measured, before = contributions_of(traces), len(traces)
    seen = np.flatnonzero(measured.largest > measured.rounding)
    ascended = _Sorted()
    for canary in _ascended(experiment, pool, loss, seen):
        ascended.add(experiment, canary)
    if ascended.other_steps:
        compare_numbers_of_steps(experiment, ascended.other_steps[:_MAX_SUSPECTS])
    pool, traces = [*pool, *ascended.pool], [*traces, *ascended.traces]
    if len(traces) > before:
        measured = contributions_of(traces)
    further = [_other_sizes, *[_between_lengths] * _ROUNDS_OF_LENGTHS]
    for search_further in further:
        added = _Sorted()
        for canary in search_further(experiment, _chosen(pool, traces, measured)):
            added.add(experiment, canary)
        pool, traces = [*pool, *added.pool], [*traces, *added.traces]
        if added.traces:
            measured = contributions_of(traces)
    canaries = replace(_chosen(pool, traces, measured), comparable=comparable)
    if runs.not_finite:
        with_them = _largest_contribution(experiment, [*traces, *runs.not_finite])
        np.maximum(measured.largest, with_them[: len(measured.largest)], out=measured.largest)
    # Runs whose number of steps is random have only their first steps in common.
    elsewhere = _in_other_places(experiment, canaries, absent)[: len(measured.largest)]
    np.maximum(measured.largest, elsewhere, out=measured.largest)
    in_roles = _in_random_roles(experiment, canaries)
    first = measured.largest[: len(in_roles)]
    np.maximum(first, in_roles[: len(first)], out=first)
    if runs.apart is not None:
        np.maximum(measured.largest, runs.apart[: len(measured.largest)], out=measured.largest)
    out_of_batch = _out_of_batches(experiment, canaries)[: len(measured.largest)]
    np.maximum(measured.largest, out_of_batch, out=measured.largest)
    return canaries


def _out_of_batches(experiment: Experiment, canaries: CanaryRuns) -> FloatArray:
    """[T], contributions of records compared with batches of Opacus that do not hold them.

    Exchanges keep the sizes of the batches. If a record displaces another one, as where only the
    largest losses of a batch are trained, or the first records of a large batch, then any two
    records differ by at most 2 C, and a record may differ from its absence by as much.
    """
    steps = len(canaries.contributions.largest)
    if experiment.relation == "replace-one" or not experiment.sampled or not experiment.base.opacus:
        return np.zeros(steps)
    reach = _beyond_absence(experiment, canaries, experiment.place, canaries.traces)
    # Records in front may displace later ones, and later ones none.
    place = -1 if experiment.place == 0 else 0
    with_canaries = [
        experiment.coupled(replace_one(experiment.records, canary, place), experiment.base_seed)
        for canary in canaries.pair
    ]
    if not any(experiment.ended_early(trace) for trace in with_canaries):
        reach = np.maximum(reach, _beyond_absence(experiment, canaries, place, with_canaries))
    return reach


def _beyond_absence(
    experiment: Experiment, canaries: CanaryRuns, place: int, traces: Sequence[Trace]
) -> FloatArray:
    """[T], the largest distance of runs with records in a place to the run without any there."""
    rounding = canaries.contributions.rounding
    reach = np.zeros(len(rounding))
    absent, compared = (
        experiment.coupled(
            replace_one(experiment.records, canary, place), experiment.base_seed, left_out=place
        )
        for canary in (canaries.pair[0], canaries.pool[-1])
    )
    if experiment.ended_early(absent) or experiment.ended_early(compared):
        return reach
    for t in range(len(reach)):
        # The record is absent if another one in its place changes nothing. Where dropout draws
        # fewer numbers without it, the other records have other masks from this step on.
        gap = np.linalg.norm(absent.steps[t].gradient - compared.steps[t].gradient)
        alike = absent.steps[t].generators == experiment.base.steps[t].generators
        if not alike or not gap <= rounding[t]:
            break
        gaps = [
            np.linalg.norm(trace.steps[t].gradient - absent.steps[t].gradient)
            for trace in traces
            if trace.steps[t].generators == absent.steps[t].generators
        ]
        reach[t] = np.nan_to_num(gaps).max(initial=0.0)
    return np.where(reach > rounding, reach, 0.0)


def _other_sizes(experiment: Experiment, canaries: CanaryRuns) -> list[PoolRecord]:
    """The two records that differ most, in other sizes.

    A clipping that leaves out a part of the gradient is exceeded most by a record whose gradient is
    about as long as the threshold.
    """
    if experiment.records.features.dtype.kind != "f" or not experiment.work_left(0.4):
        return []
    records = {id(record): record for record in canaries.pair}.values()
    return [
        replace(
            record,
            features=(np.asarray(record.features) * factor).astype(record.features.dtype),
            size=record.size * factor,
            family="resized",
        )
        for factor in _FACTORS_OF_SIZE
        for record in records
    ]


def _between_lengths(experiment: Experiment, canaries: CanaryRuns) -> list[PoolRecord]:
    """Records between those of many gradient norms that contribute most.

    They halve the way to the neighbours, so that a largest contribution between two norms is found.
    """
    if not experiment.work_left(0.4):
        return []
    reach = canaries.contributions.distances.max(axis=1)
    ways: dict[Any, list[int]] = {}
    for index, record in enumerate(canaries.pool):
        if record.family.startswith(BY_LENGTH):
            ways.setdefault(record.family, []).append(index)
    between = []
    for places in ways.values():
        places.sort(key=lambda index: canaries.pool[index].position)
        best = int(np.argmax(reach[places]))
        for neighbour in (best - 1, best + 1):
            if 0 <= neighbour < len(places):
                records = [canaries.pool[places[place]] for place in (best, neighbour)]
                between.append(halfway(*records))
    return between


def _in_other_places(
    experiment: Experiment, canaries: CanaryRuns, absent: FloatArray | None
) -> FloatArray:
    """[T], contributions of records in other places, and of one removed from n - 1 records.

    A function may treat places differently, for instance keep the first of similar records, or use
    a record in the middle in several windows. It may also pair records, so that the effect of a
    removal depends on the parity of n.
    """
    of_data = [record for record in canaries.pool if record.family == "own"]
    exchanged = [*canaries.pair, *of_data[1:3], *canaries.pool[:2], *canaries.pool[-1:]]
    reach = np.zeros(experiment.steps)
    n = len(experiment.records)
    for place in sorted({0, n // 2, n // 3}):
        data = [replace_one(experiment.records, canary, place) for canary in exchanged]
        reach = np.maximum(reach, largest_distances(experiment, data) / 2)
    if absent is not None and len(experiment.records) > 3:
        for canary in (canaries.pair[0], *of_data[1:2]):
            with_canary = experiment.with_canary(canary)
            fewer = TrainingSet(with_canary.features[1:], with_canary.labels[1:])
            reach = np.maximum(reach, largest_distances(experiment, [fewer, fewer.without_last()]))
    return reach


def _in_random_roles(experiment: Experiment, canaries: CanaryRuns) -> FloatArray:
    """[T'], half of the largest changes of the first steps by one record, for many other seeds.

    A record may have a role in few runs: that of a landmark, a prototype, or a record of
    validation, which the seed draws. Then it may change what all others contribute, or weights.
    """
    steps = min(_STEPS_OF_ROLES, experiment.steps)
    reach = np.zeros(steps)
    if experiment.brief or len(experiment.records) < 2:
        return reach
    first_steps = replace(experiment, steps=steps, stop_after=steps)
    data = [experiment.with_canary(record) for record in _of_unlike_sizes(canaries)]
    work_before = experiment.runs.work
    for number in range(_SEEDS_OF_ROLES):
        used = experiment.runs.work - work_before
        if not experiment.work_left(0.5) or used > _WORK_OF_ROLES * experiment.max_work:
            break
        seed = experiment.seed_of(1500 + number)
        runs = [first_steps.coupled(records, seed) for records in data]
        runs = [run for run in runs if not first_steps.ended_early(run)]
        alike = [run for run in runs if draw_alike(run, runs[0], steps)]
        reach = np.maximum(reach, _largest_distances(first_steps, alike) / 2)
        if alike and not experiment.verdicts.findings:
            compare_weights(first_steps, alike)
    return reach


def _of_unlike_sizes(canaries: CanaryRuns) -> list[PoolRecord]:
    """The two records that differ most, one of the data, and the largest one.

    Features that compare a record with a distant one may be 0 whatever the distant one is.
    """
    pool, (first, second) = canaries.pool, canaries.pair
    of_data = [record for record in pool if record.family == "own"]
    usual = max(of_data, key=lambda record: record.label != first.label, default=pool[0])
    largest = max(pool, key=lambda record: -1.0 if math.isnan(record.size) else record.size)
    return list({id(record): record for record in (first, second, usual, largest)}.values())


def largest_distances(experiment: Experiment, data: Sequence[TrainingSet]) -> FloatArray:
    """[T], the largest distance between coupled runs on these data sets."""
    runs = [experiment.coupled(records, experiment.base_seed) for records in data]
    return _largest_distances(
        experiment,
        [
            run
            for run in runs
            if not experiment.ended_early(run) and experiment.draws_as_reference(run)
        ],
    )


def _largest_distances(experiment: Experiment, runs: Sequence[Trace]) -> FloatArray:
    """[T], the largest distance between runs whose gradients are finite."""
    gradients = [run.gradients for run in runs if np.isfinite(run.gradients).all()]
    distances, base = np.zeros(experiment.steps), experiment.base
    if len(gradients) > 1:
        largest = contributions(gradients, base.slices, base.epsilon_of_type).largest
        distances[: len(largest)] = 2 * largest
    return distances


def measure_again(experiment: Experiment) -> CanaryRuns | None:
    """Contributions of the pool alone, or None if fewer than two of its records can be used."""
    runs = run_canaries(experiment)
    if len(runs.traces) < 2:
        return None
    base = experiment.base
    gradients = [trace.gradients for trace in runs.traces]
    measured = contributions(gradients, base.slices, base.epsilon_of_type)
    return _chosen(runs.pool, runs.traces, measured)


def _chosen(pool: list[PoolRecord], traces: list[Trace], measured: Contributions) -> CanaryRuns:
    index, other_index = (int(i) for i in measured.pairs[int(np.argmax(measured.largest))])
    chosen = [pool[i] for i in (index, other_index) if i >= 0]
    return CanaryRuns(pool, traces, measured, (chosen[0], chosen[-1]), pool[measured.best_pair[0]])


def _without_last(experiment: Experiment) -> FloatArray | None:
    """The released gradients without the last record; None if the runs draw different numbers."""
    # Sampled batches of fewer records are other batches.
    if experiment.relation == "replace-one" or len(experiment.records) < 2 or experiment.sampled:
        return None
    trace = experiment.coupled(experiment.records.without_last(), experiment.base_seed)
    if experiment.ended_early(trace) or not experiment.draws_as_reference(trace):
        return None
    # Where noise or gradients are scaled by the number of records, the noise does not cancel.
    return None if _scaled_by_n(experiment) else trace.gradients


def _scaled_by_n(experiment: Experiment) -> bool:
    """Whether noise does not cancel between n and n - 1 records with equal draws."""
    seeds = experiment.base_seed, experiment.seed_of(101)
    pairs = [
        [experiment.coupled(data, seed) for seed in seeds]
        for data in (experiment.records, experiment.records.without_last())
    ]
    if any(experiment.ended_early(trace) for pair in pairs for trace in pair):
        return True
    spread = [pair[0].gradients - pair[1].gradients for pair in pairs]
    size, gradient = (np.linalg.norm(g, axis=1) for g in (spread[0], pairs[0][0].gradients))
    slack = 1e-4 * size + 32 * experiment.base.epsilon_of_type * gradient
    return bool(np.any(np.linalg.norm(spread[0] - spread[1], axis=1) > slack))


def _ascended(
    experiment: Experiment,
    pool: Sequence[PoolRecord],
    loss: Callable[..., Any] | None,
    seen: NDArray[np.int64],
) -> list[PoolRecord]:
    """Records with long gradients, and with opposite ones, at the weights of some steps."""
    if experiment.records.features.dtype.kind != "f" or not len(seen):
        return []
    from audit.loop.attack.white_box import cross_entropy, undisturbed

    loss = loss or cross_entropy
    starts = _starts(pool)
    labels = labels_to_try(experiment.records)
    made: list[PoolRecord] = []
    for rank, t in enumerate(np.unique(np.linspace(0, len(seen) - 1, _MAX_PAIRS).round())):
        # A run that ends in a step leaves the weights before its update.
        trace = experiment.runs.run(
            experiment.with_canary(experiment.pool[0]),
            experiment.base_seed,
            like=experiment.forced,
            stop_after=experiment.first_step + seen[int(t)] + 1,
            keep_model=True,
        )
        if trace.record_gradient is not None:
            seed = experiment.seed_of(1200 + rank)
            made += search_canaries(trace.record_gradient, starts[0], labels, seed)
        model, parameters = trace.model, [p for p in trace.parameters if p.requires_grad]
        if model is None or not parameters:
            if trace.record_gradient is None:
                break
            continue
        with undisturbed(model):
            pair = opposite_pair(model, loss, starts[0], parameters[0], labels)
            for start in starts if rank == 0 else ():
                made += _extreme(model, loss, start, parameters, pair[:1])
            made += pair
        if not experiment.work_left(0.3):
            break
    return made


def _starts(pool: Sequence[PoolRecord]) -> list[PoolRecord]:
    """Records of the data from which gradient ascent starts."""
    return [p for p in pool if p.family == "own"][:2] or list(pool[:1])


def _extreme(
    model: Any,
    loss: Callable[..., Any],
    start: PoolRecord,
    parameters: list[Any],
    undecided: Sequence[PoolRecord],
) -> list[PoolRecord]:
    """Records with a long gradient, one against it, and gradients of many norms.

    The way to the longest gradient leads over a record for which the model is undecided.
    """
    longest = extreme_gradient(model, loss, start, parameters)
    if longest is None:
        return []
    direction = gradient_of(model, loss, longest, parameters)
    against = ascend_against(model, loss, start, parameters, direction)
    shortest = extreme_gradient(model, loss, start, parameters, longest=False)
    made = [longest] if against is None else [longest, against]
    if shortest is None:
        return made

    def length(features: NDArray[Any]) -> float:
        record = replace(start, features=features)
        return float(gradient_of(model, loss, record, parameters).norm())

    return made + records_of_many_lengths([shortest, start, *undecided, longest], length)

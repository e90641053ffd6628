"""The differential test: does a training loop do what its accountant assumes?

An accountant's epsilon requires four premises: given the same earlier outputs, one record changes a
released gradient by at most C; every released coordinate then gets new, independent Gaussian noise
of standard deviation sigma C; batches are drawn as accounted; and nothing else is released. Each
premise is tested separately, by runs whose seed the test chooses and whose released gradients it
may overwrite. Exact counterexamples are reported as they are; statistical tests have a family-wise
error of `FAMILY_ERROR` per check.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np

from audit.errors import AuditError, InvalidInput
from audit.loop.findings import PREMISES, PremiseReport
from audit.loop.premises import canary_runs
from audit.loop.premises.accountant import (
    compare_accountant,
    compare_all_accountants,
    compare_claim_with_accountant,
    compare_seeds,
)
from audit.loop.premises.black_box import compare_released_numbers
from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.canary_runs import CanaryRuns, PoolRuns
from audit.loop.premises.equal_records import EqualRecords, run_equal_records
from audit.loop.premises.experiment import (
    MAX_WORK,
    Check,
    Experiment,
    check_of,
    copies,
    draw_alike,
    replace_one,
    start,
)
from audit.loop.premises.forced_releases import compare_released
from audit.loop.premises.mechanisms import compare_declared
from audit.loop.premises.number_of_records import PublicSize, compare_numbers_of_records
from audit.loop.premises.numbers_of_steps import compare_random_numbers_of_steps
from audit.loop.premises.orders_of_keys import compare_orders
from audit.loop.premises.size_of_noise import compare_size
from audit.loop.premises.trained_weights import compare_at_trained_weights
from audit.loop.premises.verdicts import FAMILY_ERROR, explain, listed, weights_outside
from audit.loop.runs.coupled_runs import CoupledRuns, Trace
from audit.loop.runs.final_gradients import OF_OPACUS, Site
from audit.loop.runs.optimizer_hooks import run_of
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.released_numbers import differences
from audit.loop.runs.training_runs import Train, without_log_lines
from audit.loop.runs.work import CouldNotFinish, CpuLimit, work_of
from audit.numerics import format_exact, format_rounded
from audit.user_code import run_seed

_SHIFT = 10.0
_FACTORS_OF_OTHER_DATA = (0.1, 10.0, -10.0)
# If a post-processing draws random numbers, p.grad is compared in about this number of steps, each
# with numbers of its own: an exact gradient in 1 % of the steps is seen with probability 0.95.
_STEPS_OF_RANDOM_POST_PROCESSING = 300
__all__ = ["FAMILY_ERROR", "PremiseTest", "check_premises"]
Loss = Callable[..., Any]
"""`loss(model, features, labels)` for the gradient ascent."""


def refuse_unused_steps(check: Check, first: Trace, again: Trace, seed: int) -> None:
    """Raises an error if other released values change nothing that follows.

    Coupled runs replace the released values of a run. If the loop ignores the returned values, the
    runs are not coupled, and a correct loop would look as if it leaked.

    Args:
        check: the check.
        first: a run of the loop on the records.
        again: the same run, with the values of the first one forced.
        seed: seed of both.

    Raises:
        InvalidInput: the loop ignores the returned values.
    """
    for sign in (1.0, -1.0):  # a threshold may have the same outcome on one side
        shifted = [replace(step, gradient=_shifted(step.gradient, sign)) for step in first.steps]
        like = replace(first, steps=shifted, rows=[_shifted(row, sign) for row in first.rows])
        trace = check.runs.run(check.records, seed, like=like)
        if trace.error is not None or not _release_the_same(again, trace):
            return
    raise InvalidInput(
        "train must use the value that watch.step returns and return what it releases, but "
        "other values changed nothing: write noisy = watch.step(noisy)"
    )


def _shifted(values: np.ndarray, sign: float) -> np.ndarray:
    """Values far above or below all of them, in another order."""
    largest = float(np.nan_to_num(np.abs(values)).max(initial=0.0))
    places = np.arange(values.size).reshape(values.shape) / max(values.size, 1)
    return values + sign * (1.0 + places) * (_SHIFT * largest + 1.0)


@dataclass(frozen=True)
class PremiseTest:
    """Result of the differential test.

    Attributes:
        report: the findings and notes for the user.
        canary: the record that contributes most, which is the best canary for an attack.
        initial: the initial weights of a function that has an accountant; else None.
        replaced: the best record for the canary to replace; None is the last one.
        work: work of a complete run on the records.
        public_size: finds how an attack keeps a public number of records; None if nothing depends
            on that number.
    """

    report: PremiseReport
    canary: PoolRecord | None
    initial: Mapping[str, Any] | None
    replaced: PoolRecord | None = None
    work: float = 0.0
    public_size: Callable[[], PublicSize | None] | None = None


def check_premises(
    train: Train,
    records: TrainingSet,
    *,
    canary: TrainingSet | None = None,
    candidate: Any = None,
    claim: float | None = None,
    delta: float = 1e-5,
    relation: str | None = None,
    loss: Callable[..., Any] | None = None,
    seed: int = 0,
    max_work: float = MAX_WORK,
    cpu: CpuLimit | None = None,
) -> PremiseTest:
    """Tests every premise of a training function separately.

    Args:
        train: the training function, see `audit.loop.Train`.
        records: the data, or synthetic records of their shape.
        canary: further records for the pool.
        candidate: hyperparameters.
        claim: the claimed epsilon of a function without an accountant.
        delta: delta of the claim.
        relation: "add-remove" tests that nothing depends on the number of records; under
            "zero-out" and "replace-one" that number is public. None takes zero-out for loops by
            Opacus, whose divisor and rate depend on that number, and add-remove for others.
        loss: `loss(model, features, labels)` for the gradient ascent; None takes the cross-entropy.
        seed: seed of all random numbers.
        max_work: work of all runs after which no further optional run is started, see
            `audit.loop.runs.work`.
        cpu: limit on CPU time, after which the report has no verdict; None sets none.

    Raises:
        InvalidInput: the function raises an error on the records.

    Example:
        >>> def exact_mean(records, candidate, seed, watch):
        ...     return float(records.features.mean())
        >>> data = TrainingSet(np.arange(6.0).reshape(6, 1), np.arange(6) % 2)
        >>> found = check_premises(exact_mean, data).report
        >>> found.broken, found.findings[0].premise
        (True, 'released numbers')
    """
    if len(records) == 0:
        if canary is None:
            raise InvalidInput("records must hold at least one record, got none")
        records = records.with_record(canary)
    cpu = cpu or CpuLimit(math.inf)

    def new_runs() -> CoupledRuns:
        return CoupledRuns(train, candidate, cpu)

    def request(runs: CoupledRuns) -> tuple[PremiseTest, Site | None]:
        return _tested(runs, cpu, records, canary, claim, delta, relation, loss, seed, max_work)

    tested, line = request(new_runs())
    if not tested.report.findings:
        return tested
    if line is not None:
        # The loop changes its gradients between this line and the step. If all premises hold for
        # what the line sets, the rest is computed from what is released.
        runs = new_runs()
        runs.released_at = line
        earlier, _ = request(runs)
        if _holds(earlier.report) and _has_equal_weights(runs, records, seed):
            place = (
                "the optimizer of Opacus"
                if line == OF_OPACUS
                else f"line {line[1]} of {PurePath(line[0]).name}"
            )
            note = (
                f"p.grad was tested as {place} sets it; what the loop makes of it before the step "
                "follows"
            )
            return _with_note(earlier, tested.report, note)
    # The loop may change its gradients before it sets p.grad.
    of_sums = _runs_of_noisy_sums(new_runs(), records, seed)
    if of_sums is not None:
        earlier, _ = request(of_sums)
        if _holds(earlier.report) and of_sums.is_post_processed:
            places = ", ".join(dict.fromkeys(place.line for place in of_sums.places_of_noise))
            note = (
                f"the sums to which noise is added ({places}) were tested as the release of each "
                "step; p.grad follows from them"
            )
            return _with_note(earlier, tested.report, note)
    return tested


def _holds(report: PremiseReport) -> bool:
    """Whether the premises of steps were tested, and none is broken."""
    is_tested = {"noise", "contribution"} <= {*report.tested}
    return is_tested and not report.findings and not report.unfinished


def _runs_of_noisy_sums(runs: CoupledRuns, records: TrainingSet, seed: int) -> CoupledRuns | None:
    """Runs whose releases are noisy sums, see `NoisySums`; None if p.grad needs more than these.

    If the noisy sums are forced, runs with other seeds draw other batches and other noise, and the
    records have other labels. Still, p.grad must be the same in all of their steps, and so must all
    numbers that are released at the end: a loop may subtract a part of its noise again, or divide
    by the size of the drawn batch. Coupled runs of all further tests must agree in p.grad, too.
    """
    first_seed = run_seed(seed, 0, 9)
    try:
        runs.places_of_noise = runs.find_places_of_noise(records, first_seed)
        if not runs.places_of_noise:
            return None
        reference = runs.run(records, first_seed)
        if reference.error is not None:
            return None
        # Some numbers differ between equal runs, such as those by which objects are counted.
        repeated = runs.run(records, first_seed, like=reference)
        unstable = differences(reference.released, repeated.released).keys()
        relabelled = TrainingSet(records.features, np.roll(records.labels, 1, axis=0))

        def differs(trace: Trace) -> bool:
            more = differences(reference.released, trace.released).keys() - unstable
            return bool(more) or not runs.is_post_processed

        for number, data in enumerate((records, relabelled, records)):
            trace = runs.run(data, run_seed(seed, number, 12), like=reference)
            if trace.error is not None or len(trace.steps) != len(reference.steps):
                return None
            if differs(trace):
                return None
        if any(map(differs, _on_other_data(runs, records, first_seed, reference))):
            return None
        if reference.has_random_post_processing:
            _compare_random_post_processing(runs, reference, relabelled, records, seed)
    except CouldNotFinish:
        return None
    return runs if runs.is_post_processed else None


def _on_other_data(
    runs: CoupledRuns, records: TrainingSet, seed: int, reference: Trace
) -> Iterator[Trace]:
    """Runs on records that are far from the given ones, with the releases of a reference.

    What is made of a release may depend on the records by a threshold (an accuracy above 0.9, a
    loss above 3) that no single record crosses. Data on which the function fails are left out.
    """
    features, labels = records.features, records.labels
    data = [(np.zeros_like(features), labels)]
    if features.dtype.kind == "f":
        data += [(features * factor, labels) for factor in _FACTORS_OF_OTHER_DATA]
    for place in (0, -1):
        places = np.full(len(records), place)
        data.append((features[places], labels[places]))
    for other_features, other_labels in data:
        trace = runs.run(TrainingSet(other_features, other_labels), seed, like=reference)
        if trace.error is None:
            yield trace


def _has_equal_weights(runs: CoupledRuns, records: TrainingSet, seed: int) -> bool:
    """Whether equal releases lead to equal weights on very different records, too."""
    first_seed = run_seed(seed, 0, 9)
    try:
        reference = runs.run(records, first_seed)
        weights = [step.weights for step in reference.steps]
        return reference.error is None and all(
            [step.weights for step in trace.steps] == weights
            for trace in _on_other_data(runs, records, first_seed, reference)
        )
    except CouldNotFinish:
        return False


def _compare_random_post_processing(
    runs: CoupledRuns,
    reference: Trace,
    relabelled: TrainingSet,
    records: TrainingSet,
    seed: int,
) -> None:
    """Compares p.grad under other random numbers of the post-processing.

    A loop may leave out its noise in random steps. In all other runs, each step has one stream of
    random numbers, so that such a step may be in none of them.
    """
    pairs = math.ceil(_STEPS_OF_RANDOM_POST_PROCESSING / max(len(reference.steps), 1))
    for number in range(1, pairs + 1):
        runs.stream_of_post_processing = number
        first = runs.run(records, run_seed(seed, 2 * number, 13), digests=False)
        runs.run(relabelled, run_seed(seed, 2 * number + 1, 13), like=first, digests=False)
        if not runs.is_post_processed:
            break
    runs.stream_of_post_processing = 0


def _with_note(earlier: PremiseTest, other: PremiseReport, note: str) -> PremiseTest:
    """A test of releases before the step, with the runs of the test of p.grad, and a note."""
    report = earlier.report
    return replace(
        earlier,
        report=replace(
            report,
            notes=(*report.notes, note),
            runs=report.runs + other.runs,
            seconds=report.seconds + other.seconds,
        ),
    )


def _tested(
    runs: CoupledRuns,
    cpu: CpuLimit,
    records: TrainingSet,
    canary: TrainingSet | None,
    claim: float | None,
    delta: float,
    relation: str | None,
    loss: Callable[..., Any] | None,
    seed: int,
    max_work: float,
) -> tuple[PremiseTest, Site | None]:
    """The test, and the line that sets p.grad before it is changed, see `AccessedGradients`."""
    before = cpu.used
    check = check_of(runs, records, canary, relation or "add-remove", seed, max_work)
    try:
        with without_log_lines():
            first_seed = run_seed(seed, 0, 9)
            first = runs.run(records, first_seed)
            if first.error is not None:
                raise InvalidInput(f"train must return without an exception, got {first.error}")
            if relation is None and first.by_opacus:
                check = replace(check, relation="zero-out")
            _forget_kept_values(check, first, first_seed)
            outcome = _outcome(check, first, claim, delta, loss)
    except CouldNotFinish as unfinished:
        report = _unfinished(check, str(unfinished), cpu.used - before)
        return PremiseTest(report, None, None), None
    report = _report(check, first, outcome.steps, cpu.used - before, assumed=relation is None)
    initial = first.initial if first.history else None
    work = work_of(len(first.steps), sum(first.sizes), len(records))
    tested = PremiseTest(
        report, outcome.canary, initial, outcome.replaced, work, outcome.public_size
    )
    return tested, first.earlier_line


def _forget_kept_values(check: Check, first: Trace, seed: int) -> None:
    """Lets all runs begin as the first one did, if values that it kept change what others do.

    A statistic of the records that the first call computes and keeps would be the same in all runs
    of this process. Each further call in a process of its own would compute it anew.

    Args:
        check: the check.
        first: the first run on the records.
        seed: its seed.
    """
    runs = check.runs
    names = runs.kept.changed()
    if not names or not check.pool:
        return
    after_first = runs.kept.now()
    last = len(check.records) - 1
    # Kept values may depend on one record alone, or on none of those that are exchanged.
    for places in (range(last + 1), (last,)):
        records = check.records
        for place in places:
            records = replace_one(records, check.pool[-1 - place % len(check.pool)], place)
        as_kept = runs.run(records, seed, like=first)
        repeated = []
        for _ in range(2):
            runs.kept.restore()
            repeated.append(runs.run(records, seed, like=first))
        after_first.restore()
        computed, again = repeated
        works = computed.error is None or as_kept.error is not None
        if works and _is_equal(computed, again) and not _is_equal(as_kept, computed):
            runs.starts_anew = True
            check.verdicts.notes.append(
                f"the function keeps values between its calls ({listed(names)}), and they change "
                "later calls on other records; the test restores what was there before the first "
                "call"
            )
            return


def _is_equal(run: Trace, other: Trace) -> bool:
    """Whether two runs ended alike and released the same."""
    return run.error == other.error and _release_the_same(run, other)


def _release_the_same(run: Trace, other: Trace) -> bool:
    """Whether two runs have equal steps, before they are forced, and equal released numbers."""
    return (
        len(run.steps) == len(other.steps)
        and all(
            np.array_equal(a.gradient, b.gradient, equal_nan=True)
            for a, b in zip(run.steps, other.steps, strict=True)
        )
        and not differences(run.released, other.released)
    )


@dataclass(frozen=True)
class _Outcome:
    """What the tests of a function leave for the report and for an attack.

    Attributes:
        canary: the best record for an attack to exchange; None if there is none.
        replaced: the best record for the canary to replace; None is the last one.
        steps: number of steps that were tested.
        public_size: see `PremiseTest`.
    """

    canary: PoolRecord | None = None
    replaced: PoolRecord | None = None
    steps: int = 0
    public_size: Callable[[], PublicSize | None] | None = None


def _outcome(
    check: Check, first: Trace, claim: float | None, delta: float, loss: Loss | None
) -> _Outcome:
    """Tests all premises."""
    if first.watched and first.steps:
        outcome = _of_watched(check, first, claim, delta, loss)
    elif _declares_noise(first):
        outcome = _Outcome(*compare_declared(check, first, claim, delta))
    else:
        outcome = _of_black_box(check, first, claim, delta)
    compare_all_accountants(check)
    compare_claim_with_accountant(check, first, claim, delta)
    check.verdicts.judge()
    _excuse_further_releases(check, first)
    return outcome


def _declares_noise(first: Trace) -> bool:
    """Whether the function declared noisy values, and no steps."""
    has_steps = bool(first.watched and first.steps)
    return not has_steps and any(value.is_stated for value in first.declared)


def _report(check: Check, first: Trace, steps: int, seconds: float, assumed: bool) -> PremiseReport:
    verdicts = check.verdicts
    return PremiseReport(
        tuple(verdicts.findings),
        tuple(dict.fromkeys(verdicts.tested)),
        verdicts.untested,
        tuple(verdicts.notes),
        verdicts.measured,
        first.watched or _declares_noise(first),
        check.runs.count,
        seconds,
        steps if "contribution" in verdicts.tested else 0,
        relation=check.relation,
        assumed_relation=assumed,
    )


def _unfinished(check: Check, reason: str, seconds: float) -> PremiseReport:
    """A report without a verdict: how far a test comes in its CPU time depends on the machine."""
    seen = tuple(f"seen before the end: {finding.message}" for finding in check.verdicts.findings)
    return PremiseReport(
        (),
        (),
        dict.fromkeys(PREMISES, reason),
        seen,
        {},
        True,
        check.runs.count,
        seconds,
        relation=check.relation,
        unfinished=reason,
    )


def _of_black_box(check: Check, first: Trace, claim: float | None, delta: float) -> _Outcome:
    reason = "the function did not call watch with its optimizer"
    if first.watched:
        reason = "the watched optimizer took no step, or it ignored the closure of its steps"
    pair = compare_released_numbers(check, first, claim, delta)
    check.verdicts.cannot_test(reason, ("contribution", "noise", "batches"))
    return _Outcome(*pair)


def _of_watched(
    check: Check, first: Trace, claim: float | None, delta: float, loss: Loss | None
) -> _Outcome:
    compare_seeds(check, first)
    coupled = _coupled_canaries(check, first)
    if isinstance(coupled, str):
        check.verdicts.cannot_test(coupled)
        compare_accountant(check, first, claim)
        return _Outcome()
    experiment, runs = coupled
    comparable = canary_runs.compare_weights(experiment, runs.traces)
    canary_runs.compare_thresholds(experiment, runs.traces)
    canaries = canary_runs.measure(experiment, runs, comparable, loss)
    check.verdicts.tested.append("contribution")
    canary_runs.compare_steps_without_the_record(experiment, canaries)
    equal = run_equal_records(experiment, canaries)
    if equal is None:
        compare_random_numbers_of_steps(experiment)
    compare_accountant(check, first, claim)
    if experiment.work_left():
        _report_change_of_others(experiment, canaries, equal)
    short = compare_size(experiment, canaries, equal, claim, delta)
    _note_cost_of_replacement(check, first, delta)
    compare_released(experiment, canaries)
    compare_orders(experiment, first)
    public_size = compare_numbers_of_records(experiment, canaries, equal, short)
    if not check.verdicts.findings:
        compare_at_trained_weights(experiment, canaries, loss, delta)
    steps = experiment.steps
    if experiment.stop_after is not None:
        steps += _compare_later_steps(experiment, canaries, equal, delta)
    return _Outcome(canaries.strongest, None, steps, public_size)


def _report_change_of_others(
    experiment: Experiment, canaries: CanaryRuns, equal: EqualRecords | None
) -> None:
    """Reports a record that changes what other records contribute.

    Other mechanisms may limit the change of a step all the same, by clipping the whole sum. Opacus
    clips each gradient, so that its noise is for a record that changes no other contribution. If
    the function sorts its records, an exchange moves the others to other batches.
    """
    verdicts = experiment.verdicts
    if equal is not None:
        change = equal.others()
    elif experiment.base.opacus:
        copied = next((r for r in canaries.pool if r.family == "own"), canaries.pair[0])
        equal_records = copies(experiment.records, copied, len(experiment.records))
        change = canary_runs.changes_other_records(experiment, canaries, equal_records)
    else:
        return
    if not change.seen:
        return
    is_broken = (
        experiment.base.opacus
        and change.with_equal_draws
        and not canary_runs.orders_records(experiment, canaries)
    )
    if not is_broken:
        verdicts.notes.append(
            "the exchanged record changes what other records contribute, so that records that were "
            "not tried may change a step by more"
        )
    elif not any(finding.premise == "contribution" for finding in verdicts.findings):
        verdicts.findings.append(explain("others"))


def _note_cost_of_replacement(check: Check, first: Trace, delta: float) -> None:
    """Notes what the recorded steps cost if a record replaces another."""
    if check.relation != "replace-one" or not first.history:
        return
    with contextlib.suppress(AuditError):  # of steps without noise
        cost = run_of(first.history, neighbours="replace-one").epsilon(delta)
        check.verdicts.notes.append(
            "if a record replaces another, the recorded steps cost "
            f"({format_rounded(cost, up=True)}, {format_exact(delta)}); an accountant's epsilon "
            "for a record that is added or removed is smaller"
        )


def _coupled_canaries(check: Check, first: Trace) -> tuple[Experiment, PoolRuns] | str:
    """The experiment and its runs with canaries, or the reason why runs cannot be coupled."""
    if not first.has_equal_steps:
        return (
            "the parameters that require a gradient are not the same in every step, so that steps "
            "cannot be compared"
        )
    seed = run_seed(check.seed, 0, 9)
    again = check.runs.run(check.records, seed, like=first)
    if len(again.steps) == len(first.steps) and not draw_alike(first, again):
        # Generators that outlive a run have other states in each run.
        check.runs.has_own_generators = False
    if not _coupled(first, again):
        return (
            "runs cannot be coupled: two runs with the same seed on the same records release "
            "different gradients, so some randomness is not controlled by the seed (os.urandom, "
            "secrets, secure_mode, numpy.random.default_rng() or torch.Generator without the seed)"
        )
    if first.of_arrays:
        refuse_unused_steps(check, first, again, seed)
    experiment = start(check, first)
    runs = canary_runs.run_canaries(experiment)
    if len(runs.traces) < 2:
        return "the number of random draws depends on the record, so that runs cannot be coupled"
    if canary_runs.weights_have_own_noise(experiment):
        _report_weights_before_noise(experiment, runs)
        return (
            "the weights differ between seeds although all gradients were forced, so that p.grad "
            "is not all that changes them: noise is added after the step, the learning rate is set "
            "by a noisy gradient, or a random batch enters the weights (a second moment or another "
            "state of gradients without noise, which would be a leak)"
        )
    return experiment, runs


def _report_weights_before_noise(experiment: Experiment, runs: PoolRuns) -> None:
    """Reports weights that depend on a record before any noise was added to them."""
    step: int | None = 0
    if not canary_runs.first_weights_depend(experiment, runs.pool):
        step = canary_runs.weights_without_noise(experiment, runs.pool)
    if step is not None:
        experiment.verdicts.findings.append(weights_outside(step, settings=False, within=False))


def _compare_later_steps(
    experiment: Experiment, canaries: CanaryRuns, equal: EqualRecords | None, delta: float
) -> int:
    """Tests contribution, noise and batches of the remaining steps by fewer runs.

    Returns:
        The number of further steps that were tested.
    """
    total, steps, verdicts = len(experiment.base.steps), experiment.steps, experiment.verdicts
    later = None
    if not verdicts.findings:
        quiet = () if equal is None else (equal.quiet,)
        chosen = (*canaries.pair, canaries.strongest, *quiet, *canaries.pool[:2])
        later = experiment.later(list({id(record): record for record in chosen}.values()))
    of_later = None if later is None else canary_runs.measure_again(later)
    if later is None or of_later is None:
        verdicts.notes.append(
            f"only the first {steps} of {total} steps were tested, to limit the work"
        )
        return 0
    compare_size(later, of_later, run_equal_records(later, of_later), None, delta)
    start_of_later = max(later.first_step, steps) + 1
    if "noise" in later.verdicts.untested and "noise" in verdicts.tested:
        reason = later.verdicts.untested["noise"]
        verdicts.notes.append(
            f"noise and batches from step {start_of_later} on were not tested: {reason}"
        )
    tested = f"steps {start_of_later} to {total} were"
    if start_of_later == total:
        tested = f"step {total} was"
    verdicts.notes.append(f"{tested} tested by fewer runs, to limit the work")
    if start_of_later > steps + 1:
        verdicts.notes.append(
            f"steps {steps + 1} to {start_of_later - 1} were not tested, to limit the work"
        )
    return total - start_of_later + 1


def _coupled(first: Trace, again: Trace) -> bool:
    """Whether two runs with one seed agree, up to the rounding of a parallel device."""
    if again.error is not None or len(first.steps) != len(again.steps):
        return False
    for a, b in zip(first.steps, again.steps, strict=True):
        gap = np.linalg.norm(np.nan_to_num(a.gradient - b.gradient))
        if gap > 1e-4 * np.linalg.norm(np.nan_to_num(a.gradient)):
            return False
    return True


def _excuse_further_releases(check: Check, first: Trace) -> None:
    """Withdraws findings that may be due to accounted releases which were not declared."""
    accounted = first.accounted
    if accounted is None or first.further:
        return
    if not accounted.has_further_releases(len(first.steps)):
        return
    doubtful = [
        finding
        for finding in check.verdicts.findings
        if finding.premise in ("contribution", "released numbers")
        or "effective noise multiplier" in finding.numbers
    ]
    if doubtful:
        check.verdicts.withdraw(
            doubtful,
            "the accountant recorded further releases that the test cannot force: declare them by "
            "value = watch.release(value). Otherwise, the finding would be: "
            f"{doubtful[0].message}",
        )

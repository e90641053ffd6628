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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audit.errors import AuditError, InvalidInput
from audit.loop.explanations import (
    books,
    explain,
    listed,
    released_outside,
    weights_outside,
)
from audit.loop.findings import PREMISES, PremiseReport
from audit.loop.premises import canary_runs
from audit.loop.premises.array_steps import refuse_unused_steps
from audit.loop.premises.black_box import Pair, compare_released_numbers
from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.canary_runs import CanaryRuns
from audit.loop.premises.claims import compare_claim_with_accountant
from audit.loop.premises.equal_records import EqualRecords, run_equal_records
from audit.loop.premises.experiment import (
    FAMILY_ERROR,
    MAX_WORK,
    Experiment,
    copies,
    draw_alike,
    replace_one,
)
from audit.loop.premises.mechanisms import compare_declared
from audit.loop.premises.noise import TestResult
from audit.loop.premises.number_of_records import PublicSize, compare_numbers_of_records
from audit.loop.premises.size_of_noise import compare_size
from audit.loop.premises.two_samples import two_sample_p_value
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.generators import returned_states
from audit.loop.runs.jax_keys import BATCHES, NOISE, keys_in, recorded_keys
from audit.loop.runs.opacus_objects import run_of
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.released_numbers import differences
from audit.loop.runs.training_runs import Train, run_seed, without_log_lines
from audit.loop.runs.work import CouldNotFinish, CpuLimit, work_of
from audit.numerics import format_exact, format_rounded

# Seeds for which random released numbers are compared between n and n / 2 records.
_SEEDS_OF_DISTRIBUTIONS = 20
WEIGHTS_FINDINGS = ("weights", "first weights")

__all__ = ["FAMILY_ERROR", "PremiseTest", "check_premises"]


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
    before = cpu.used
    known = relation or "add-remove"
    experiment = Experiment(train, records, canary, candidate, known, seed, max_work, cpu)
    try:
        with without_log_lines():
            first = experiment.runs.run(records, run_seed(seed, 0, 9))
            if first.error is not None:
                raise InvalidInput(f"train must return without an exception, got {first.error}")
            if relation is None and first.by_opacus:
                experiment.relation = "zero-out"
            best, replaced = _tested(experiment, first, claim, delta, loss)
    except CouldNotFinish as unfinished:
        return PremiseTest(_unfinished(experiment, str(unfinished), cpu.used - before), None, None)
    report = _report(experiment, first, cpu.used - before, assumed=relation is None)
    initial = first.initial if first.history else None
    work = work_of(len(first.steps), sum(first.sizes), len(records))
    return PremiseTest(report, best, initial, replaced, work, experiment.public_size)


def _tested(
    experiment: Experiment,
    first: Trace,
    claim: float | None,
    delta: float,
    loss: Callable[..., Any] | None,
) -> Pair:
    """Tests all premises, and returns the best records for an attack."""
    best: Pair
    if first.watched and first.steps:
        best = _watched(experiment, first, claim, delta, loss), None
    elif _declares_noise(first):
        best = compare_declared(experiment, first, claim, delta)
    else:
        best = _black_box(experiment, first, claim, delta)
    _compare_all_accountants(experiment)
    compare_claim_with_accountant(experiment, first, claim, delta)
    experiment.judge()
    _excuse_further_releases(experiment, first)
    return best


def _declares_noise(first: Trace) -> bool:
    """Whether the function declared noisy values, and no steps."""
    has_steps = bool(first.watched and first.steps)
    return not has_steps and any(value.is_stated for value in first.declared)


def _report(experiment: Experiment, first: Trace, seconds: float, assumed: bool) -> PremiseReport:
    tested_steps = experiment.steps + experiment.later_steps
    return PremiseReport(
        tuple(experiment.findings),
        tuple(dict.fromkeys(experiment.tested)),
        experiment.untested,
        tuple(experiment.notes),
        experiment.measured,
        first.watched or _declares_noise(first),
        experiment.runs.count,
        seconds,
        tested_steps if "contribution" in experiment.tested else 0,
        relation=experiment.relation,
        assumed_relation=assumed,
    )


def _unfinished(experiment: Experiment, reason: str, seconds: float) -> PremiseReport:
    """A report without a verdict: how far a test comes in its CPU time depends on the machine."""
    seen = tuple(f"seen before the end: {finding.message}" for finding in experiment.findings)
    return PremiseReport(
        (),
        (),
        dict.fromkeys(PREMISES, reason),
        seen,
        {},
        True,
        experiment.runs.count,
        seconds,
        relation=experiment.relation,
        unfinished=reason,
    )


def _black_box(experiment: Experiment, first: Trace, claim: float | None, delta: float) -> Pair:
    """Tests a function that is not watched, and returns the best records for an attack."""
    reason = "the function did not call watch with its optimizer"
    if first.watched:
        reason = "the watched optimizer took no step, or it ignored the closure of its steps"
    pair = compare_released_numbers(experiment, first, claim, delta)
    experiment.cannot_test(reason, ("contribution", "noise", "batches"))
    return pair


def _watched(
    experiment: Experiment,
    first: Trace,
    claim: float | None,
    delta: float,
    loss: Callable[..., Any] | None,
) -> PoolRecord | None:
    """Tests every premise, and returns the best canary for an attack if runs can be coupled."""
    coupled = _coupled_canaries(experiment, first)
    if isinstance(coupled, str):
        experiment.cannot_test(coupled)
        _compare_accountant(experiment, first, claim)
        return None
    pool, traces = coupled
    canary_runs.compare_weights(experiment, traces)
    canaries = canary_runs.measure(experiment, pool, traces, loss)
    experiment.tested.append("contribution")
    canary_runs.compare_steps_without_the_record(experiment, canaries)
    equal = run_equal_records(experiment, canaries)
    if equal is None:
        canary_runs.compare_random_numbers_of_steps(experiment)
    _compare_accountant(experiment, first, claim)
    short = compare_size(experiment, canaries, equal, claim, delta)
    if experiment.relation == "replace-one" and first.history:
        with contextlib.suppress(AuditError):  # of steps without noise
            cost = run_of(first.history, neighbours="replace-one").epsilon(delta)
            experiment.notes.append(
                "if a record replaces another, the recorded steps cost "
                f"({format_rounded(cost, up=True)}, {format_exact(delta)}); an accountant's "
                "epsilon for a record that is added or removed is smaller"
            )
    if equal is not None and experiment.work_left() and equal.others_change():
        experiment.notes.append(
            "the exchanged record changes what other records contribute, so that records that were "
            "not tried may change a step by more"
        )
    _compare_released(experiment, canaries)
    compare_numbers_of_records(experiment, canaries, equal, short)
    if experiment.stop_after is not None:
        _compare_later_steps(experiment, canaries, equal, delta)
    return canaries.strongest


def _coupled_canaries(
    experiment: Experiment, first: Trace
) -> tuple[list[PoolRecord], list[Trace]] | str:
    """Canaries and a coupled run with each of them, or the reason why runs cannot be coupled."""
    if not first.has_equal_steps:
        return (
            "the parameters that require a gradient are not the same in every step, so that steps "
            "cannot be compared"
        )
    seed = run_seed(experiment.seed, 0, 9)
    again = experiment.runs.run(experiment.records, seed, like=first)
    if len(again.steps) == len(first.steps) and not draw_alike(first, again):
        # Generators that outlive a run have other states in each run.
        experiment.runs.has_own_generators = False
    if not _coupled(first, again):
        return (
            "runs cannot be coupled: two runs with the same seed on the same records release "
            "different gradients, so some randomness is not controlled by the seed (os.urandom, "
            "secrets, secure_mode, numpy.random.default_rng() or torch.Generator without the seed)"
        )
    if first.of_arrays:
        refuse_unused_steps(experiment, first, again, seed)
    experiment.start(first)
    pool, traces = canary_runs.run_canaries(experiment)
    if len(traces) < 2:
        return "the number of random draws depends on the record, so that runs cannot be coupled"
    if canary_runs.weights_have_own_noise(experiment):
        if canary_runs.first_weights_depend(experiment, pool):
            experiment.findings.append(weights_outside(0, settings=False, within=False))
        elif (step := canary_runs.weights_without_noise(experiment, pool)) is not None:
            experiment.findings.append(weights_outside(step, settings=False, within=False))
        return (
            "the weights differ between seeds although all gradients were forced, so that p.grad "
            "is not all that changes them: noise is added after the step, the learning rate is set "
            "by a noisy gradient, or a random batch enters the weights (a second moment or another "
            "state of gradients without noise, which would be a leak)"
        )
    return pool, traces


def _compare_later_steps(
    experiment: Experiment, canaries: CanaryRuns, equal: EqualRecords | None, delta: float
) -> None:
    """Tests contribution, noise and batches of the remaining steps by fewer runs."""
    total, steps = len(experiment.base.steps), experiment.steps
    later = None
    if not experiment.findings:
        quiet = () if equal is None else (equal.quiet,)
        chosen = (*canaries.pair, canaries.strongest, *quiet, *canaries.pool[:2])
        later = experiment.later(list({id(each): each for each in chosen}.values()))
    again = None if later is None else canary_runs.measure_again(later)
    if later is None or again is None:
        experiment.notes.append(
            f"only the first {steps} of {total} steps were tested, to limit the work"
        )
        return
    compare_size(later, again, run_equal_records(later, again), None, delta)
    first = max(later.first_step, steps) + 1
    if "noise" in later.untested and "noise" in experiment.tested:
        reason = later.untested["noise"]
        experiment.notes.append(f"noise and batches from step {first} on were not tested: {reason}")
    experiment.later_steps = total - first + 1
    which = f"steps {first} to {total} were" if first < total else f"step {total} was"
    experiment.notes.append(f"{which} tested by fewer runs, to limit the work")
    if first > steps + 1:
        experiment.notes.append(
            f"steps {steps + 1} to {first - 1} were not tested, to limit the work"
        )


def _coupled(first: Trace, again: Trace) -> bool:
    """Whether two runs with one seed agree, up to the rounding of a parallel device."""
    if again.error is not None or len(first.steps) != len(again.steps):
        return False
    for a, b in zip(first.steps, again.steps, strict=True):
        gap = np.linalg.norm(np.nan_to_num(a.gradient - b.gradient))
        if gap > 1e-4 * np.linalg.norm(np.nan_to_num(a.gradient)):
            return False
    return True


def _compare_accountant(experiment: Experiment, first: Trace, claim: float | None) -> None:
    """Compares the accountant's history with the steps of the optimizer."""
    if first.history is None:
        if first.claimed is None and claim is None:
            experiment.cannot_test("no accountant and no claim was given", ("accountant",))
        return
    experiment.tested.append("accountant")
    experiment.findings += books(first)
    recorded = sum(steps for _, _, steps in first.history)
    if recorded > len(first.steps):
        experiment.notes.append(
            f"the accountant recorded {recorded} steps and the optimizer took {len(first.steps)}: "
            "the claim is larger than necessary, or covers further releases, which were not "
            "tested"
        )


def _compare_all_accountants(experiment: Experiment) -> None:
    """Reports steps that the accountant of some complete run did not record."""
    run = experiment.runs.least_recorded
    if run is None or run.unrecorded <= 0 or "accountant" not in experiment.tested:
        return
    if not any(finding.premise == "accountant" for finding in experiment.findings):
        (found,) = books(run)
        cause = "Whether a step is recorded depends on the records or on the seed."
        experiment.findings.append(replace(found, cause=f"{cause} Otherwise: {found.cause}"))


@dataclass(frozen=True)
class _Released:
    """What neighbouring data sets show about the numbers of complete runs with forced outputs.

    Attributes:
        differing: by name, the largest difference that a record explains.
        shifted: names of random numbers that differ where fewer records are drawn from.
        compared: number of neighbours that were compared.
    """

    differing: dict[str, float]
    shifted: set[str]
    compared: int


def _compare_released(experiment: Experiment, canaries: CanaryRuns) -> None:
    """Compares every released number of complete runs with forced outputs."""
    base = experiment.base
    if not base.complete:
        return
    released = _differences_of_neighbours(experiment, canaries)
    if released is None or not released.compared:
        return
    experiment.tested.append("released numbers")
    _report_returned_states(experiment)
    _report_returned_keys(experiment)
    if released.shifted:
        _compare_distributions(experiment, released.shifted)
    if not released.differing:
        return
    accounted = experiment.accounted
    if accounted is not None and accounted.has_further_releases(len(base.steps)):
        experiment.notes.append(
            f"{listed(released.differing)} depend on the record; the accountant records further "
            "releases with other parameters, which may cover them: not tested"
        )
    elif not any(finding.kind in WEIGHTS_FINDINGS for finding in experiment.findings):
        experiment.findings.append(released_outside(released.differing))


def _report_returned_states(experiment: Experiment) -> None:
    """Reports returned states of generators, from which earlier random numbers follow.

    The states of Mersenne Twisters and of PCG64 can be computed backwards. If no generator of
    another library moved, the noise and the batches were drawn from that of this library.
    """
    base = experiment.base
    states = returned_states(base.released)
    only = [name for name, library in states.items() if base.moved_generators <= {library}]
    if only:
        experiment.findings.append(explain("generator state", names=listed(only, "hold")))
    elif states:
        experiment.notes.append(
            f"{listed(states, 'hold')} the state of a random generator: anyone who knows it can "
            "compute the numbers that were drawn before, such as noise or batches"
        )


def _report_returned_keys(experiment: Experiment) -> None:
    """Reports returned random keys of JAX from which all noise, or all batches, follow."""
    returned = {name: keys_in(value) for name, value in experiment.base.released.items()}
    if not any(returned.values()):
        return
    with recorded_keys() as uses:
        trace = _complete_run(experiment, experiment.with_canary(experiment.pool[0]))
    purposes = {NOISE, BATCHES} if experiment.sampled else {NOISE}
    revealing = [
        name
        for name, keys in returned.items()
        if any(purposes & uses.revealed_by(key, len(trace.steps)) for key in keys)
    ]
    if revealing:
        experiment.findings.append(explain("generator state", names=listed(revealing, "hold")))


def _complete_run(experiment: Experiment, records: TrainingSet, seed: int | None = None) -> Trace:
    seed = experiment.base_seed if seed is None else seed
    return experiment.runs.run(records, seed, like=experiment.base)


def _differences_of_neighbours(experiment: Experiment, canaries: CanaryRuns) -> _Released | None:
    """Compares runs on neighbouring data sets; None if a finding ends the comparison."""
    base = experiment.base
    reference = experiment.with_canary(experiment.pool[0])
    first = _complete_run(experiment, reference)
    unstable = differences(base.released, first.released)
    # Numbers that depend on the seed although all outputs are forced: random, or of the batches.
    other_seed = _complete_run(experiment, reference, experiment.seed_of(1400))
    random = differences(first.released, other_seed.released)
    released = _Released({}, set(), 0)
    for neighbour in _neighbours(experiment, canaries, reference):
        trace = _complete_run(experiment, neighbour)
        if trace.shapes and trace.shapes != base.shapes:
            shapes = zip(base.names, base.shapes, strict=True)
            changed = [name for name, shape in shapes if shape not in trace.shapes]
            finding = explain("inferred classes", names=listed(changed or base.names))
            experiment.findings.append(finding)
            experiment.tested.append("released numbers")
            return None
        if trace.error or not trace.complete:
            continue
        fewer = len(neighbour) < len(reference)
        if fewer and len(trace.steps) != len(first.steps):
            continue  # `compare_numbers_of_records` reports what depends on the number of records.
        released = replace(released, compared=released.compared + 1)
        if len(trace.steps) != len(first.steps):
            if draw_alike(trace, first):
                experiment.report_steps(len(first.steps), len(trace.steps))
                return None
            continue  # a random number of steps; `run_canaries` compares its distributions
        # Fewer records may shift the random stream, so that later draws differ. This is no leak.
        shifted = fewer or not draw_alike(trace, first)
        for name, gap in differences(first.released, trace.released).items():
            if name in unstable:
                continue
            if shifted and name in random:
                released.shifted.add(name)
            else:
                released.differing[name] = max(released.differing.get(name, 0.0), gap)
        if released.compared >= 3 and not experiment.work_left():
            break
    released.shifted.difference_update(released.differing)
    return released


def _neighbours(
    experiment: Experiment, canaries: CanaryRuns, reference: TrainingSet
) -> list[TrainingSet]:
    """Data sets whose complete runs are compared with that on the reference."""
    own = [record for record in canaries.pool if record.family == "own"]
    exchanged = [*canaries.pair, *own[:2]]
    neighbours = [experiment.with_canary(canary) for canary in exchanged]
    # A function may treat places differently: it may hold out the first records.
    neighbours += [replace_one(reference, canary, 0) for canary in exchanged]
    # A chain of neighbours leads to any other data set, so a difference there proves one between
    # neighbours.
    others = TrainingSet(reference.features[::-1].copy(), np.roll(reference.labels, 1))
    one_class = min([*canaries.pair, *own], key=lambda record: float(record.label))
    neighbours[2:2] = [others, copies(reference, one_class, len(reference))]
    if experiment.relation == "add-remove" and len(reference) > 1:
        # Sizes of sampled batches seldom show the loss of one record, but that of half of them.
        neighbours[1:1] = [reference.without_last(), reference.first(len(reference) // 2)]
    return neighbours


def _compare_distributions(experiment: Experiment, names: set[str]) -> None:
    """Tests whether random released numbers have another distribution with fewer records.

    The generator of a GAN may draw from the same stream as the batches. With fewer records it
    then draws other numbers of the same distribution. The sizes of the batches, or a count, have
    another distribution. The exact test of Kolmogorov and Smirnov compares the means of a number.
    """
    reference = experiment.with_canary(experiment.pool[0])
    values: list[list[Mapping[str, Any]]] = [[], []]
    for number in range(_SEEDS_OF_DISTRIBUTIONS):
        seed = experiment.seed_of(1500 + number)
        for side, data in enumerate((reference, reference.first(len(reference) // 2))):
            trace = _complete_run(experiment, data, seed)
            if not trace.error and trace.complete:
                values[side].append(trace.released)
    for name in sorted(names):
        ours, theirs = ([_mean_of(numbers, name) for numbers in side] for side in values)
        if min(len(ours), len(theirs)) < 2:
            continue
        p_value = two_sample_p_value(ours, theirs)
        n = len(reference)
        numbers: dict[str, float | int | str] = {"name": name, "n": n, "less": n // 2}
        experiment.collect(TestResult(min(1.0, p_value), "random released number", numbers))


def _mean_of(released: Mapping[str, Any], name: str) -> float:
    """The mean of a released number; minus infinity where it is missing or no number."""
    value = np.asarray(released.get(name, np.nan))
    if value.dtype.kind not in "fiub" or not value.size:
        return -math.inf
    mean = float(value.mean())
    return mean if math.isfinite(mean) else -math.inf


def _excuse_further_releases(experiment: Experiment, first: Trace) -> None:
    """Withdraws findings that may be due to accounted releases which were not declared."""
    accounted = first.accounted
    if accounted is None or first.further:
        return
    if not accounted.has_further_releases(len(first.steps)):
        return
    doubtful = [
        finding
        for finding in experiment.findings
        if finding.premise in ("contribution", "released numbers")
        or "effective noise multiplier" in finding.numbers
    ]
    if not doubtful:
        return
    experiment.findings = [each for each in experiment.findings if each not in doubtful]
    withdrawn = {"contribution", *(finding.premise for finding in doubtful)}
    experiment.tested = [premise for premise in experiment.tested if premise not in withdrawn]
    experiment.cannot_test(
        "the accountant recorded further releases that the test cannot force: declare them by "
        f"value = watch.release(value). Otherwise, the finding would be: {doubtful[0].message}",
        sorted(withdrawn),
    )

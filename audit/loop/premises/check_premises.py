"""The differential test: does a training loop do what its accountant assumes?

An accountant's epsilon requires four premises: given the same earlier outputs, one record changes a
released gradient by at most C; every released coordinate then gets new, independent Gaussian noise
of standard deviation sigma C; batches are drawn as accounted; and nothing else is released. Each
premise is tested separately, by runs whose seed the test chooses and whose released gradients it
may overwrite. Exact counterexamples are reported as they are; statistical tests have a family-wise
error of `FAMILY_ERROR` per check.
"""

import contextlib
import time
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
from audit.loop.findings import PremiseReport
from audit.loop.premises import canary_runs
from audit.loop.premises.array_steps import refuse_unused_steps
from audit.loop.premises.black_box import Pair, compare_released_numbers
from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.canary_runs import CanaryRuns
from audit.loop.premises.equal_records import EqualRecords, copies, run_equal_records
from audit.loop.premises.experiment import FAMILY_ERROR, Experiment, draw_alike, replace_one
from audit.loop.premises.mechanisms import compare_declared
from audit.loop.premises.number_of_records import compare_numbers_of_records
from audit.loop.premises.size_of_noise import compare_size
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.opacus_objects import run_of
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.released_numbers import differences
from audit.loop.runs.training_runs import Train, run_seed
from audit.numerics import format_exact, format_rounded

__all__ = ["FAMILY_ERROR", "SECONDS", "PremiseTest", "check_premises"]

SECONDS = 30.0
"""Time after which the test starts no further optional runs."""


@dataclass(frozen=True)
class PremiseTest:
    """Result of the differential test.

    Attributes:
        report: the findings and notes for the user.
        canary: the record that contributes most, which is the best canary for an attack.
        initial: the initial weights of a function that has an accountant; else None.
        replaced: the best record for the canary to replace; None is the last one.
    """

    report: PremiseReport
    canary: PoolRecord | None
    initial: Mapping[str, Any] | None
    replaced: PoolRecord | None = None


def check_premises(
    train: Train,
    records: TrainingSet,
    *,
    canary: TrainingSet | None = None,
    candidate: Any = None,
    claim: float | None = None,
    delta: float = 1e-5,
    relation: str = "add-remove",
    loss: Callable[..., Any] | None = None,
    seed: int = 0,
    seconds: float = SECONDS,
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
            "zero-out" and "replace-one" that number is public.
        loss: `loss(model, features, labels)` for the gradient ascent; None takes the cross-entropy.
        seed: seed of all random numbers.
        seconds: time after which no further optional run is started.

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
    experiment = Experiment(train, records, canary, candidate, relation, seed, seconds)
    first = experiment.runs.run(records, run_seed(seed, 0, 9))
    declares_noise = False
    if first.error is not None:
        raise InvalidInput(f"train must return without an exception, got {first.error}")
    if first.watched and first.steps:
        best, replaced = _watched(experiment, first, claim, delta, loss), None
    elif declares_noise := any(each.is_stated for each in first.declared):
        best, replaced = compare_declared(experiment, first, claim, delta)
    else:
        best, replaced = _black_box(experiment, first, claim, delta)
    _compare_all_accountants(experiment)
    experiment.judge()
    _excuse_further_releases(experiment, first)
    tested_steps = experiment.steps + experiment.later_steps
    report = PremiseReport(
        tuple(experiment.findings),
        tuple(dict.fromkeys(experiment.tested)),
        experiment.untested,
        tuple(experiment.notes),
        experiment.measured,
        first.watched or declares_noise,
        experiment.runs.count,
        time.perf_counter() - experiment.started,
        tested_steps if "contribution" in experiment.tested else 0,
    )
    return PremiseTest(report, best, first.initial if first.history else None, replaced)


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
    if equal is not None and experiment.time_left() and equal.others_change():
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
    # The first run may include imports and warm-up.
    experiment.start(first, min(first.seconds, again.seconds))
    pool, traces = canary_runs.run_canaries(experiment)
    if len(traces) < 2:
        return "the number of random draws depends on the record, so that runs cannot be coupled"
    if canary_runs.weights_have_own_noise(experiment):
        if canary_runs.first_weights_depend(experiment, pool):
            experiment.findings.append(weights_outside(0, settings=False, within=False))
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
            f"only the first {steps} of {total} steps were tested, to save time"
        )
        return
    compare_size(later, again, run_equal_records(later, again), None, delta)
    first = max(later.first_step, steps) + 1
    if "noise" in later.untested and "noise" in experiment.tested:
        reason = later.untested["noise"]
        experiment.notes.append(f"noise and batches from step {first} on were not tested: {reason}")
    experiment.later_steps = total - first + 1
    which = f"steps {first} to {total} were" if first < total else f"step {total} was"
    experiment.notes.append(f"{which} tested by fewer runs, to save time")
    if first > steps + 1:
        experiment.notes.append(f"steps {steps + 1} to {first - 1} were not tested, to save time")


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


def _compare_released(experiment: Experiment, canaries: CanaryRuns) -> None:
    """Compares every released number of complete runs with forced outputs."""
    base = experiment.base
    if not base.complete:
        return

    def complete(records: TrainingSet) -> Trace:
        return experiment.runs.run(records, experiment.base_seed, like=base)

    reference = experiment.with_canary(experiment.pool[0])
    first = complete(reference)
    unstable = differences(base.released, first.released)
    differing: dict[str, float] = {}
    compared = 0
    own = [record for record in canaries.pool if record.family == "own"]
    exchanged = [*canaries.pair, *own[:2]]
    neighbours = [experiment.with_canary(canary) for canary in exchanged]
    # A function may treat places differently: it may hold out the first records.
    neighbours += [replace_one(reference, canary, 0) for canary in exchanged]
    # A chain of neighbours leads to any other data set, so a difference there proves one between
    # neighbours.
    others = TrainingSet(reference.features[::-1].copy(), np.roll(reference.labels, 1))
    one_class = min([*canaries.pair, *own], key=lambda each: float(each.label))
    neighbours[2:2] = [others, copies(reference, one_class, len(reference))]
    if experiment.relation == "add-remove" and len(reference) > 1:
        # Sizes of sampled batches seldom show the loss of one record, but that of half of them.
        neighbours[1:1] = [reference.without_last(), reference.first(len(reference) // 2)]
    for neighbour in neighbours:
        trace = complete(neighbour)
        if trace.shapes and trace.shapes != base.shapes:
            shapes = zip(base.names, base.shapes, strict=True)
            changed = [name for name, shape in shapes if shape not in trace.shapes]
            found = explain("inferred classes", names=listed(changed or base.names))
            experiment.findings.append(found)
            experiment.tested.append("released numbers")
            return
        if trace.error or not trace.complete:
            continue
        if len(neighbour) < len(reference) and len(trace.steps) != len(first.steps):
            continue  # `compare_numbers_of_records` reports what depends on the number of records.
        compared += 1
        if len(trace.steps) != len(first.steps):
            experiment.report_steps(len(first.steps), len(trace.steps))
            return
        for name, gap in differences(first.released, trace.released).items():
            if name not in unstable:
                differing[name] = max(differing.get(name, 0.0), gap)
        if compared >= 3 and not experiment.time_left():
            break
    if not compared:
        return
    experiment.tested.append("released numbers")
    if not differing:
        return
    accounted = experiment.accounted
    if accounted is not None and accounted.has_further_releases(len(base.steps)):
        experiment.notes.append(
            f"{listed(differing)} depend on the record; the accountant records further "
            "releases with other parameters, which may cover them: not tested"
        )
    elif not any(f.message.startswith("The weights") for f in experiment.findings):
        experiment.findings.append(released_outside(differing))


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

"""Whether anything else is released: returned numbers and saved files of runs with forced outputs.

The noisy outputs of all runs are forced to be equal. A file of a script that holds the weights is
what the owner releases, so that everything in it must be accounted for. A function returns what it
releases, and of another file the script does not say whether it is released: a note names it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from audit.loop.premises.canary_runs import CanaryRuns
from audit.loop.premises.experiment import Experiment, copies, draw_alike, replace_one
from audit.loop.premises.noise import TestResult
from audit.loop.premises.verdicts import (
    Verdicts,
    explain,
    listed,
    released_outside,
    two_sample_p_value,
)
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.generators import NOISE, KeyUses, keys_in, recorded_keys, returned_states
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.released_numbers import differences
from audit.numerics import FloatArray

_MAX_NOTES = 4
# Further runs of each of two neighbours, all of which must agree with the first.
_REPETITIONS = 4
_Gaps = dict[tuple[int, str], float]
# Seeds for which random released numbers are compared between n and n / 2 records, and between n
# and few records, with which most sampled batches are empty.
_SEEDS_OF_DISTRIBUTIONS, _SEEDS_OF_FEW_RECORDS, _FEW_RECORDS = 24, 64, 3
# Tests of one number: the means and the distances of two pairs of samples.
_TESTS_OF_DISTRIBUTION = 4
# Neighbours whose runs continue to the end of a script, which may take several times as long as the
# tested steps. The first ones have another record, other labels, records of one class, the same of
# another class, and another order.
_RUNS_TO_END = 6
# Draws of each step that are set to zero, one after another, and the relative difference of changes
# that count as the same.
_MAX_DRAWS_OF_STEP, _SAME = 16, 1e-4
# Factor of the gradients that are forced to see what is made from the released weights.
_LARGER = 1.5
# Kinds of findings that explain released numbers which depend on a record.
_WEIGHTS_FINDINGS = ("weights", "first weights")


class RunToEnd(NamedTuple):
    """A run of a script to its end.

    Attributes:
        trace: the run.
        repeat: runs it again.
        shifted: whether it drew other random numbers than the reference.
    """

    trace: Trace
    repeat: Callable[[], Trace]
    shifted: bool = False


def compare_saved(
    verdicts: Verdicts,
    reference: RunToEnd,
    other_seed: Trace,
    neighbours: Sequence[RunToEnd],
    with_other_gradients: Callable[[], Trace] | None = None,
) -> None:
    """Reports saved numbers that depend on the record.

    Args:
        verdicts: gets the findings and notes.
        reference: a run to the end.
        other_seed: the same with another seed.
        neighbours: runs on neighbouring data sets.
        with_other_gradients: makes a run on which other released gradients are forced.
    """
    usual = reference.trace
    _report_states(verdicts, usual)
    unread = [f"{file.name}: {file.error}" for file in usual.saved if file.error]
    verdicts.notes += [
        f"not compared, because it could not be read: {file}" for file in unread[:_MAX_NOTES]
    ]
    random = _gaps(usual, other_seed)
    differing: _Gaps = {}
    unstable: set[tuple[int, str]] = set()
    of_other_number = None
    for neighbour in neighbours:
        trace = neighbour.trace
        gaps: _Gaps = {}
        if len(trace.saved) == len(usual.saved):
            gaps = _gaps(usual, trace)
        elif of_other_number is None:
            of_other_number = trace
        else:
            continue
        new = gaps.keys() - differing.keys() - unstable
        new -= random.keys() if neighbour.shifted else set()
        if not new and trace is not of_other_number:
            continue
        changing = _changing(reference, neighbour)
        if changing is None:
            verdicts.notes.append(
                "equal runs saved different numbers of files, which were not compared"
            )
            return
        unstable |= changing
        differing |= {place: gaps[place] for place in new}
    if of_other_number is not None:
        _report_number(verdicts, usual, of_other_number)
    by_file: dict[int, dict[str, float]] = {}
    for (number, name), gap in differing.items():
        if (number, name) not in unstable:
            by_file.setdefault(number, {})[name] = gap
    _report(verdicts, usual, by_file)
    if with_other_gradients is not None:
        _report_models(verdicts, usual, by_file, with_other_gradients)


def _changing(reference: RunToEnd, neighbour: RunToEnd) -> set[tuple[int, str]] | None:
    """The saved numbers that differ between equal runs; None if their files differ in number.

    These are times, durations and numbers of the run. The two take turns, so that a clock does not
    show one time for all runs of the first and another one for all runs of the second.
    """
    changing: set[tuple[int, str]] = set()
    for _ in range(_REPETITIONS):
        for run in (reference, neighbour):
            again = run.repeat()
            if len(again.saved) != len(run.trace.saved):
                return None
            changing |= _gaps(run.trace, again).keys()
    return changing


def _gaps(first: Trace, second: Trace) -> _Gaps:
    """The largest difference of every saved number, by the number of the file and the name."""
    return {
        (number, name): gap
        for number, files in enumerate(zip(first.saved, second.saved, strict=False))
        for name, gap in differences(files[0].numbers, files[1].numbers).items()
    }


def _report_number(verdicts: Verdicts, reference: Trace, other: Trace) -> None:
    """Reports that the number of saved files depends on the record."""
    more = max((reference, other), key=lambda trace: len(trace.saved))
    with_weights = [file for file in more.saved if file.holds_weights]
    file = (with_weights or more.saved)[-1]
    if with_weights:
        verdicts.findings.append(explain("saved files", file=file.name))
    else:
        verdicts.notes.append(f"whether {file.name} is written depends on the record")


def _report(verdicts: Verdicts, reference: Trace, by_file: dict[int, dict[str, float]]) -> None:
    notes = 0
    is_reported = False
    for number, gaps in sorted(by_file.items()):
        file = reference.saved[number]
        if file.holds_weights and not is_reported:
            is_reported = True
            depend = "depends" if len(gaps) == 1 else "depend"
            finding = explain("saved", file=file.name, names=listed(gaps), depend=depend)
            verdicts.findings.append(finding)
        elif not file.holds_weights and notes < _MAX_NOTES:
            notes += 1
            verdicts.notes.append(
                f"{file.name} depends on the record ({listed(gaps)}): do not release it"
            )


def _report_models(
    verdicts: Verdicts,
    reference: Trace,
    by_file: dict[int, dict[str, float]],
    with_other_gradients: Callable[[], Trace],
) -> None:
    """Reports saved models that learn from the released one and from records without noise.

    A script may train a model without privacy for a comparison, so that a note suffices. But a
    model that changes with the released gradients is made from the released model, to take its
    place.
    """
    models = [
        number
        for number, file in enumerate(reference.saved)
        if file.is_model and not file.holds_weights and number in by_file
    ]
    if not models or any(finding.kind == "saved" for finding in verdicts.findings):
        return
    changed = with_other_gradients()
    if changed.error or len(changed.saved) != len(reference.saved):
        return
    made_from_released = _gaps(reference, changed).keys()
    for number in models:
        names = {
            name: gap
            for name, gap in by_file[number].items()
            if (number, name) in made_from_released
            and np.asarray(reference.saved[number].numbers[name]).dtype.kind == "f"
        }
        if names:
            depend = "depends" if len(names) == 1 else "depend"
            file = reference.saved[number].name
            finding = explain("saved model", file=file, names=listed(names), depend=depend)
            verdicts.findings.append(finding)
            return


def _report_states(verdicts: Verdicts, reference: Trace) -> None:
    """Reports saved states of generators, from which earlier draws follow."""
    for file in reference.saved:
        states = returned_states(file.numbers) if file.holds_weights else {}
        names = [
            name for name, library in states.items() if reference.moved_generators <= {library}
        ]
        if names:
            shown = f"{file.name}: {listed(names, 'hold')}"
            verdicts.findings.append(explain("generator state", names=shown))
            return


@dataclass(frozen=True)
class _Released:
    """What neighbouring data sets show about the numbers of complete runs with forced outputs.

    Attributes:
        differing: by name, the largest difference that a record explains.
        shifted: names of random numbers that differ where fewer records are drawn from.
        compared: number of neighbours that were compared.
        error: the last error of a run on a neighbour.
    """

    differing: dict[str, float]
    shifted: set[str]
    compared: int
    error: str | None = None


def compare_released(experiment: Experiment, canaries: CanaryRuns) -> None:
    """Compares every released number of complete runs with forced outputs."""
    base = experiment.base
    released, error = None, base.error
    if base.complete:
        released = _differences_of_neighbours(experiment, canaries)
        error = released.error if released is not None and not released.compared else None
    if error:
        reason = f"runs on other records ended with an error: {error}"
        experiment.verdicts.cannot_test(reason, ("released numbers",))
    if released is None or not released.compared:
        return
    experiment.verdicts.tested.append("released numbers")
    _report_returned_states(experiment)
    _report_returned_keys(experiment)
    if released.shifted:
        _compare_distributions(experiment, released.shifted)
    if not released.differing:
        return
    accounted = experiment.accounted
    if accounted is not None and accounted.has_further_releases(len(base.steps)):
        experiment.verdicts.notes.append(
            f"{listed(released.differing)} depend on the record; the accountant records further "
            "releases with other parameters, which may cover them: not tested"
        )
    elif not any(finding.kind in _WEIGHTS_FINDINGS for finding in experiment.verdicts.findings):
        experiment.verdicts.findings.append(released_outside(released.differing))


def _report_returned_states(experiment: Experiment) -> None:
    """Reports returned states of generators, from which earlier random numbers follow.

    The states of Mersenne Twisters and of PCG64 can be computed backwards. If no generator of
    another library moved, the noise and the batches were drawn from that of this library.
    """
    base = experiment.base
    states = returned_states(base.released)
    only = [name for name, library in states.items() if base.moved_generators <= {library}]
    if only:
        experiment.verdicts.findings.append(explain("generator state", names=listed(only, "hold")))
    elif states:
        experiment.verdicts.notes.append(
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
    steps, draws = max(len(trace.steps), 1), uses.draws_for(NOISE)
    places = _places_of_noise(experiment, len(draws)) if draws else range(0)
    # Initial weights, which come first, may follow from another key.
    evidence = [KeyUses(uses.parents, [draws[place] for place in places][-steps:])]
    if experiment.sampled:
        evidence.append(uses.choices_of_records(len(experiment.records)))
    revealing, derived = [], []
    for name, keys in returned.items():
        if any(choices.revealed_by(key, steps) for choices in evidence for key in keys):
            revealing.append(name)
        elif any(uses.revealed_by(key, steps) for key in keys):
            derived.append(name)
    if revealing:
        names = listed(revealing, "hold")
        experiment.verdicts.findings.append(explain("generator state", names=names))
    if derived:
        experiment.verdicts.notes.append(
            f"{listed(derived, 'hold')} a random key: anyone who knows it can repeat all numbers "
            "that were drawn from it outside of compiled functions; they are not the noise, and "
            "draws within compiled functions are not seen"
        )


def _places_of_noise(experiment: Experiment, draws: int) -> range:
    """Draws, outside of compiled functions, that are added to the released sums; often of one leaf.

    They may be for something else, such as augmentation, while compiled code draws the noise. So
    the draws in one place of each step return zeros: without noise, the run changes by the same
    numbers whatever the records are. What other draws change depends on the records.

    Args:
        experiment: the function and its first run.
        draws: number of draws, in a complete run, by functions that are used for noise.
    """
    steps, n = len(experiment.base.steps), len(experiment.records)
    data_sets = (
        experiment.with_canary(experiment.pool[0]),
        copies(experiment.records, experiment.pool[-1], n),
    )
    usual = [_complete_run(experiment, records).gradients for records in data_sets]
    per_step = max(draws // max(steps, 1), 1)
    for offset in range(min(per_step, _MAX_DRAWS_OF_STEP)):
        # The draws of the steps come last, after those of initial weights.
        places = range((draws + offset) % per_step, draws, per_step)
        silenced = []
        for records in data_sets:
            with recorded_keys(places):
                silenced.append(_complete_run(experiment, records).gradients)
        if len({gradients.shape for gradients in (*usual, *silenced)}) > 1:
            continue
        change, other_change = (a - b for a, b in zip(usual, silenced, strict=True))
        rounding = 64 * experiment.base.epsilon_of_type * np.abs([usual, silenced]).max()
        size, difference = np.abs(change).max(), np.abs(change - other_change).max()
        if size > rounding and difference <= _SAME * size + rounding:
            return places
    return range(0)


def _complete_run(
    experiment: Experiment, records: TrainingSet, seed: int | None = None, to_end: bool = False
) -> Trace:
    seed = experiment.base_seed if seed is None else seed
    return experiment.runs.run(records, seed, like=experiment.base, to_end=to_end)


def _differences_of_neighbours(experiment: Experiment, canaries: CanaryRuns) -> _Released | None:
    """Compares runs on neighbouring data sets; None if a finding ends the comparison."""
    base = experiment.base
    run_to_end = partial(_complete_run, experiment, to_end=True)
    reference = experiment.with_canary(experiment.pool[0])
    repeated = run_to_end(reference)
    unstable = differences(base.released, repeated.released)
    # Numbers that depend on the seed although all outputs are forced: random, or of the batches.
    other_seed = run_to_end(reference, experiment.seed_of(1400))
    random = differences(repeated.released, other_seed.released)
    released = _Released({}, set(), 0)
    to_their_end: list[RunToEnd] = []
    for number, neighbour in enumerate(_neighbours(experiment, canaries, reference)):
        is_to_end = number < _RUNS_TO_END
        trace = _complete_run(experiment, neighbour, to_end=is_to_end)
        if trace.shapes and trace.shapes != base.shapes:
            shapes = zip(base.names, base.shapes, strict=True)
            changed = [name for name, shape in shapes if shape not in trace.shapes]
            finding = explain("inferred classes", names=listed(changed or base.names))
            experiment.verdicts.findings.append(finding)
            experiment.verdicts.tested.append("released numbers")
            return None
        if trace.error or not trace.complete:
            released = replace(released, error=trace.error or released.error)
            continue
        fewer = len(neighbour) < len(reference)
        if fewer and len(trace.steps) != len(repeated.steps):
            continue  # `compare_numbers_of_records` reports what depends on the number of records.
        released = replace(released, compared=released.compared + 1)
        if len(trace.steps) != len(repeated.steps):
            if draw_alike(trace, repeated):
                experiment.verdicts.report_steps(len(repeated.steps), len(trace.steps))
                return None
            continue  # a random number of steps; `run_canaries` compares its distributions
        # Fewer records may shift the random stream, so that later draws differ. This is no leak.
        shifted = fewer or not draw_alike(trace, repeated)
        if is_to_end:
            to_their_end.append(RunToEnd(trace, partial(run_to_end, neighbour), shifted))
        for name, gap in differences(repeated.released, trace.released).items():
            if name in unstable:
                continue
            if shifted and name in random:
                released.shifted.add(name)
            else:
                released.differing[name] = max(released.differing.get(name, 0.0), gap)
        if released.compared >= 3 and not experiment.work_left():
            break
    released.shifted.difference_update(released.differing)
    usual = RunToEnd(repeated, partial(run_to_end, reference))

    def with_larger_gradients() -> Trace:
        larger = [replace(step, gradient=_LARGER * step.gradient) for step in base.steps]
        like = replace(base, steps=larger)
        return experiment.runs.run(reference, experiment.base_seed, like=like, to_end=True)

    compare_saved(experiment.verdicts, usual, other_seed, to_their_end, with_larger_gradients)
    return released


def _neighbours(
    experiment: Experiment, canaries: CanaryRuns, reference: TrainingSet
) -> list[TrainingSet]:
    """Data sets whose complete runs are compared with that on the reference."""
    of_data = [record for record in canaries.pool if record.family == "own"]
    exchanged = [*canaries.pair, *of_data[:2]]
    neighbours = [experiment.with_canary(canary) for canary in exchanged]
    # A function may treat places differently: it may hold out the first records.
    neighbours += [replace_one(reference, canary, 0) for canary in exchanged]
    # A chain of neighbours leads to any other data set, so a difference there proves one between
    # neighbours.
    reordered = TrainingSet(reference.features[::-1].copy(), np.roll(reference.labels, 1))
    by_label = sorted([*canaries.pair, *of_data], key=lambda record: float(record.label))
    classes, places = np.unique(reference.labels, return_inverse=True)
    relabelled = TrainingSet(reference.features, np.roll(classes, 1)[places])
    of_one_class = [copies(reference, by_label[0], len(reference))]
    if by_label[-1].label != by_label[0].label:
        of_one_class.append(copies(reference, by_label[-1], len(reference)))
    neighbours[1:1] = [relabelled, *of_one_class, reordered]
    if experiment.relation == "add-remove" and len(reference) > 1:
        # Sizes of sampled batches seldom show the loss of one record, but that of half of them.
        neighbours[1:1] = [reference.without_last(), reference.first_records(len(reference) // 2)]
    return neighbours


def _compare_distributions(experiment: Experiment, names: set[str]) -> None:
    """Tests whether random released numbers have another distribution with fewer records.

    The generator of a GAN may draw from the same stream as the batches. With fewer records it
    then draws other numbers of the same distribution. The sizes of the batches, or a count, have
    another distribution. The exact test of Kolmogorov and Smirnov compares the means of a number.
    """
    reference = experiment.with_canary(experiment.pool[0])
    n = len(reference)
    sides = [(reference, n, _SEEDS_OF_FEW_RECORDS), *_smaller(reference)]
    values = [
        [
            trace.released
            for number in range(seeds)
            # Samples with other seeds are independent; coupled ones may depend on each other.
            for seed in [experiment.seed_of(10_000 * (1 + side) + number)]
            for trace in [_complete_run(experiment, data, seed)]
            if not trace.error and trace.complete
        ]
        for side, (data, _, seeds) in enumerate(sides)
    ]
    for (_, fewer, _), of_fewer in zip(sides[1:], values[1:], strict=True):
        for name in sorted(names):
            samples = [
                [_numbers_of(released, name) for released in side] for side in (values[0], of_fewer)
            ]
            # Both samples have the same distribution if no removal of a record changes it.
            p_value = min(1.0, _TESTS_OF_DISTRIBUTION * _p_value(samples))
            numbers: dict[str, float | int | str] = {"name": name, "n": n, "less": fewer}
            experiment.verdicts.collect(TestResult(p_value, "random released number", numbers))


def _smaller(records: TrainingSet) -> list[tuple[TrainingSet, int, int]]:
    """Fewer records, their number, and the number of seeds to run on them."""
    n = len(records)
    seeds = {n // 2: _SEEDS_OF_DISTRIBUTIONS, min(_FEW_RECORDS, n // 2): _SEEDS_OF_FEW_RECORDS}
    return [(records.first_records(fewer), fewer, count) for fewer, count in seeds.items()]


def _p_value(samples: Sequence[Sequence[FloatArray | None]]) -> float:
    """The smaller p-value of two exact tests: of means, and of distances from all samples' mean.

    The distance shows another spread, also one in many directions. It depends on both samples
    together alone, so that an exchange of two values between them changes no other value: the test
    of Kolmogorov and Smirnov stays exact.
    """
    means = [[-math.inf if x is None else float(x.mean()) for x in side] for side in samples]
    if min(map(len, means)) < 2:
        return 1.0
    p_value = two_sample_p_value(*means)
    size = min(map(len, samples))
    values = [value for side in samples for value in side[:size] if value is not None]
    if len(values) < 2 * size or len({value.shape for value in values}) > 1:
        return p_value
    distances = np.linalg.norm(np.stack(values) - np.mean(values, axis=0), axis=1)
    return min(p_value, two_sample_p_value(distances[:size].tolist(), distances[size:].tolist()))


def _numbers_of(released: Mapping[str, Any], name: str) -> FloatArray | None:
    """A released number or array, flat; None where it is missing, no number, or not finite."""
    value = np.asarray(released.get(name, np.nan))
    if value.dtype.kind not in "fiub" or not value.size:
        return None
    flat = value.astype(np.float64).ravel()
    return flat if np.isfinite(flat).all() else None

"""Functions that are not watched: released numbers without noise, and the best canary.

A released number that is the same for every seed on one data set, and another number on a
neighbouring data set, has no noise. This proves a leak without an attack.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from audit.arrays import FloatArray
from audit.own_training.canary_pool import PoolRecord
from audit.own_training.coupled_runs import Trace
from audit.own_training.experiment import Experiment, replace_one
from audit.own_training.explanations import constant_numbers, explain, listed
from audit.own_training.records import TrainingSet
from audit.own_training.runs import exchanges, run_seed

_SEEDS = 4
# A private choice among few values may be the same for every one of a few seeds.
_SEEDS_FOR_WHOLE_NUMBERS = 40
_MAX_CANARIES = 16
# Two runs with one seed draw the same noise, so their ratio differs from n/(n-1) by rounding alone.
_SAME = 1e-9

_Released = Sequence[dict[str, Any]]
_Runs = Callable[[TrainingSet], _Released | None]
"""Runs the function with every seed on a data set, and returns the released numbers by name."""
Pair = tuple[PoolRecord | None, PoolRecord | None]
"""The best canary for an attack, and the record that it replaces; None is the last record."""


def compare_released_numbers(experiment: Experiment, first: Trace) -> Pair:
    """Tests whether released numbers depend on a record and not on the seed.

    Returns:
        The canary that moves noisy numbers most, and the record that it replaces.
    """
    if not first.released:
        experiment.cannot_test("the function released no numbers", ("released numbers",))
        return None, None
    records, relation = experiment.records, experiment.relation
    replaces = exchanges(relation, first.watched)
    # An attack that removes a record would detect a public number of records.
    removes = relation != "add-remove" and not replaces
    seeds = [run_seed(experiment.seed, i, 7) for i in range(_SEEDS)]

    def released(data: TrainingSet) -> _Released | None:
        traces = [experiment.runs.run(data, seed) for seed in seeds]
        if any(trace.error for trace in traces):
            return None
        return [{k: np.asarray(v) for k, v in trace.released.items()} for trace in traces]

    base = released(records)
    if base is None:
        reason = "the function raised an error for some seeds"
        experiment.cannot_test(reason, ("released numbers",))
        return None, None
    experiment.tested.append("released numbers")
    leaks, whole, best = _try_canaries(experiment, released, base, replaces)
    for name, canary in whole.items():
        if name in leaks:
            continue
        differs = _always_differs(experiment, replace_one(records, canary), name)
        if differs is None:
            experiment.notes.append(f"whether {name} is constant was not tested, to save time")
        elif differs:
            leaks[name] = 1.0
    if leaks:
        # State of the process, such as a global accountant, changes between equal runs.
        again = released(records)
        drifting = {} if again is None else _compare(base, again)[0]
        leaks = {name: gap for name, gap in leaks.items() if name not in drifting}
        if drifting:
            experiment.notes.append(
                f"{listed(list(drifting))} changed between equal runs in one process, and "
                "could not be tested"
            )
    if leaks:
        experiment.findings.append(constant_numbers(leaks, _SEEDS))
    elif experiment.time_left(0.9) and (shapes := _inferred_shapes(released, records)):
        experiment.findings.append(explain("inferred classes", names=listed(shapes)))
    if removes:
        fewer = released(records.without_last()) or base
        if _compare(base, fewer, shapes_only=True)[0]:
            experiment.measured["depends on n"] = 1.0
    if not experiment.time_left():
        experiment.notes.append("fewer classes and fewer records were not tested, to save time")
    elif scaled := _scaled_by_size(released, records, base):
        n = len(records)
        finding = explain("scaled by n", names=listed(scaled), n=n, less=n - 1)
        if relation == "add-remove":
            experiment.findings.append(finding)
        else:
            experiment.measured |= {"depends on n": 1.0} if removes else {}
            experiment.notes.append(
                f"{finding.message.split(' Under')[0]} This is allowed under {relation}, where the "
                "number of records is public"
            )
    return best


def _try_canaries(
    experiment: Experiment, released: _Runs, base: _Released, replaces: bool
) -> tuple[dict[str, float], dict[str, PoolRecord], Pair]:
    """Compares runs with each canary to runs on the records.

    Returns:
        The largest gap of each number that leaks; whole numbers that differ, with the first canary
        that changes them; and the canary that moves noisy numbers most, with the record that it
        replaces.
    """
    records, pool = experiment.records, experiment.pool[:_MAX_CANARIES]
    leaks: dict[str, float] = {}
    whole: dict[str, PoolRecord] = {}
    best: Pair = None, None
    # The attack compares runs with the canary and runs without any record in its place, or with
    # another record.
    absent = released(records.without_last()) if len(records) > 1 and not replaces else None
    ends: list[tuple[PoolRecord | None, _Released]] = [(None, base if absent is None else absent)]
    largest = -1.0
    spread = _spread(base)
    for tried, canary in enumerate(pool):
        if tried and not experiment.time_left(0.6):
            experiment.notes.append(f"{tried} of {len(pool)} canaries were tried, to save time")
            break
        other = released(replace_one(records, canary))
        if other is None:
            continue
        found_leaks, found_whole = _compare(base, other)
        for name, gap in found_leaks.items():
            leaks[name] = max(leaks.get(name, 0.0), gap)
        for name in found_whole:
            whole.setdefault(name, canary)
        shifts = [_shift(end, other, spread) for _, end in ends]
        if max(shifts) > largest:
            largest, end = max(shifts), ends[int(np.argmax(shifts))]
            best = canary, end[0]
            ends = [end, (canary, other)] if replaces else ends
    return leaks, whole, best


def _inferred_shapes(released: _Runs, records: TrainingSet) -> list[str]:
    """Numbers whose shape changes with the only record of a class.

    They differ between records without one class, and the same with one record of that class, if
    the function infers the classes from its records.
    """
    if records.labels.dtype.kind not in "iub":
        return []
    values, counts = np.unique(records.labels, return_counts=True)
    rarest = values[np.argmin(counts)]
    rest = records.labels != rarest
    if not 3 <= len(values) < len(records) or rest.sum() < 2:
        return []
    features, labels = records.features[rest], records.labels[rest]
    without = released(TrainingSet(features, labels))
    with_one = released(TrainingSet(features, np.append(labels[:-1], rarest)))
    if without is None or with_one is None:
        return []
    return list(_compare(without, with_one, shapes_only=True)[0])


def _compare(
    base: _Released, other: _Released, shapes_only: bool = False
) -> tuple[dict[str, float], list[str]]:
    """Numbers that are constant over seeds and differ between two data sets.

    Returns:
        The gap of each number that leaks, infinite where its shape or its presence differs; and
        the names of whole numbers that differ, as the results of private choices may.
    """
    leaks: dict[str, float] = {}
    whole: list[str] = []
    constant, also = _constant(base), _constant(other)
    for name in {*constant, *also}:
        if (name in constant) != (name in also):
            if all(name in run for run in base) != all(name in run for run in other):
                leaks[name] = math.inf
            continue
        ours, theirs = base[0][name], other[0][name]
        if ours.shape != theirs.shape:
            leaks[name] = math.inf
            continue
        if shapes_only or ours.dtype.kind in "SU":
            continue
        with np.errstate(invalid="ignore"):
            differs = (ours != theirs) & ~(_is_nan(ours) & _is_nan(theirs))
        differs &= constant[name] & also[name]
        if not differs.any():
            continue
        values = np.concatenate([ours[differs].ravel(), theirs[differs].ravel()])
        if np.all(values == np.round(values)):
            whole.append(name)
        else:
            leaks[name] = float(np.abs(np.nan_to_num(ours[differs] - theirs[differs])).max())
    return leaks, whole


def _scaled_by_size(released: _Runs, records: TrainingSet, base: _Released) -> list[str]:
    """Numbers that change by the factor n / (n - 1), or its root, for every seed.

    The record that is left out is zero, so that it adds nothing to a sum.
    """
    n = len(records)
    if n < 4 or records.features.dtype.kind != "f":
        return []
    features = records.features.copy()
    features[-1] = 0.0
    zeroed = TrainingSet(features, records.labels)
    full, less = released(zeroed), released(zeroed.without_last())
    if full is None or less is None:
        return []
    factors = (n / (n - 1.0)) ** np.array([1.0, -1.0, 0.5, -0.5])
    scaled = []
    for name, fixed in _constant(base).items():
        ours, theirs = ([run.get(name) for run in side] for side in (full, less))
        if any(v is None or v.dtype.kind != "f" or v.shape != fixed.shape for v in ours + theirs):
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.array(theirs, float) / np.array(ours, float)
        close = np.isclose(ratio[None], factors.reshape(-1, *[1] * ratio.ndim), rtol=_SAME, atol=0)
        if (close.all(axis=1) & ~fixed).any():
            scaled.append(name)
    return scaled


def _is_nan(values: Any) -> Any:
    return np.isnan(values) if values.dtype.kind in "fc" else np.zeros(values.shape, np.bool_)


def _constant(runs: _Released) -> dict[str, Any]:
    """Which entries of each released number are equal in all runs, by name."""
    found = {}
    for name, value in runs[0].items():
        others = [run.get(name) for run in runs[1:]]
        if any(o is None or o.shape != value.shape for o in others):
            continue
        fixed = np.ones(value.shape, np.bool_)
        for each in others:
            fixed &= np.asarray((each == value) | (_is_nan(value) & _is_nan(each)))
        found[name] = fixed
    return found


def _spread(runs: _Released) -> dict[str, FloatArray]:
    """Standard deviation of each released number over the seeds, by name.

    A number that is the same for all seeds gets the mean of the others.
    """
    found = {}
    for name, value in runs[0].items():
        if value.dtype.kind in "fiub" and all(
            name in run and run[name].shape == value.shape for run in runs
        ):
            with np.errstate(invalid="ignore"):
                scale = np.std([r[name] for r in runs], axis=0, ddof=1)
            found[name] = np.where(
                scale > 0, scale, scale[scale > 0].mean() if (scale > 0).any() else 0
            )
    return found


def _shift(base: _Released, other: _Released, spread: dict[str, FloatArray]) -> float:
    """Distance between the noisy numbers of runs with equal seeds, in standard deviations."""
    total = 0.0
    for name, scale in spread.items():
        if name not in other[0] or other[0][name].shape != base[0][name].shape:
            continue
        pairs = zip(base, other, strict=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps = [np.subtract(b[name], a[name], dtype=float) for a, b in pairs]
            shift = np.mean(np.abs(gaps), 0)
            ratio = np.where(scale > 0, shift / scale, 0.0)
        total += float(np.square(ratio[np.isfinite(ratio)]).sum())
    return math.sqrt(total)


def _always_differs(experiment: Experiment, neighbour: TrainingSet, name: str) -> bool | None:
    """Whether a whole number differs in many more runs; None where time does not suffice."""
    values: list[set[bytes]] = [set(), set()]
    for i in range(_SEEDS_FOR_WHOLE_NUMBERS):
        if not experiment.time_left(0.9):
            return None
        for side, data in enumerate((experiment.records, neighbour)):
            trace = experiment.runs.run(data, run_seed(experiment.seed, i, 8))
            if trace.error or name not in trace.released:
                return False
            values[side].add(np.asarray(trace.released[name]).tobytes())
        if values[0] & values[1] or len(values[0]) > 1:
            return False
    return True

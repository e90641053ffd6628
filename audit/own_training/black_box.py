"""Functions that are not watched: exact constants, and the canary that moves the output most.

A released number that is the same for every seed on one data set, and another number on a
neighbouring data set, carries no noise: an exact leak, and no attack is needed to show it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit.arrays import FloatArray
from audit.own_training.canary_pool import PoolRecord
from audit.own_training.coupled_runs import CoupledRuns, Trace
from audit.own_training.experiment import replace_one
from audit.own_training.explanations import constant_numbers, explain, listed
from audit.own_training.findings import Finding
from audit.own_training.records import TrainingSet
from audit.own_training.runs import run_seed

_SEEDS = 4
# Whole numbers may agree by chance: a private choice among few values does.
_SEEDS_FOR_WHOLE_NUMBERS = 40
_MAX_CANARIES = 16
# Two runs with one seed draw the same noise: only rounding may separate their ratio from n/(n-1).
_SAME = 1e-9

_Released = Sequence[dict[str, Any]]
_Runs = Callable[[TrainingSet], _Released | None]
"""Runs the function with every seed on a data set, and returns the released numbers by name."""


@dataclass
class BlackBox:
    """The outcome for a function that is not watched."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    canary: PoolRecord | None = None
    tested: bool = False
    reason: str = ""
    depends_on_n: bool = False


def black_box_findings(
    runs: CoupledRuns,
    records: TrainingSet,
    pool: Sequence[PoolRecord],
    seed: int,
    first: Trace,
    relation: str = "add-remove",
    time_left: Callable[[float], bool] = lambda share: True,
) -> BlackBox:
    """Looks for released numbers that depend on a record and on no seed.

    Args:
        runs: of the function.
        records: the data.
        pool: canaries for the place of the last record.
        seed: of the test.
        first: a run on the records, for its errors.
        relation: of neighbouring data sets; under "add-remove" the scale of a released number must
            not depend on the number of records.
        time_left: whether a share of the time is not used up; without it no optional run starts.
    """
    found = BlackBox()
    if not first.released:
        found.reason = "the function released no numbers"
        return found
    seeds = [run_seed(seed, i, 7) for i in range(_SEEDS)]

    def released(data: TrainingSet) -> _Released | None:
        traces = [runs.run(data, each) for each in seeds]
        return None if any(t.error for t in traces) else [_flat(t) for t in traces]

    base = released(records)
    if base is None:
        found.reason = "the function raised an error for some seeds"
        return found
    found.tested = True
    pool = list(pool)[:_MAX_CANARIES]
    leaks, whole, found.canary, tried = _try_canaries(released, records, base, pool, time_left)
    if tried < len(pool):
        found.notes.append(f"{tried} of {len(pool)} canaries were tried, to save time")
    for name, canary in whole.items():
        if name in leaks:
            continue
        neighbour = replace_one(records, canary)
        differs = _always_differs(runs, records, neighbour, name, seed, time_left)
        if differs is None:
            found.notes.append(f"whether {name} is constant was not tested, to save time")
        elif differs:
            leaks[name] = 1.0
    if leaks:
        # State of the process, such as a global accountant, changes between equal runs.
        again = released(records)
        drifting = {} if again is None else _compare(base, again)[0]
        leaks = {name: gap for name, gap in leaks.items() if name not in drifting}
        if drifting:
            found.notes.append(
                f"{listed(list(drifting))} changed between equal runs in one process, and "
                "could not be tested"
            )
    if leaks:
        found.findings.append(constant_numbers(leaks, _SEEDS))
    elif time_left(0.9) and (shapes := _inferred_shapes(released, records, pool)):
        found.findings.append(explain("inferred classes", names=listed(shapes)))
    if relation != "add-remove":
        # An attack that removes a record would detect their public number.
        fewer = released(records.without_last()) or base
        found.depends_on_n = bool(_compare(base, fewer, shapes_only=True)[0])
    if not time_left(1.0):
        found.notes.append("fewer classes and fewer records were not tested, to save time")
    elif scaled := _scaled_by_size(released, records, base):
        finding = explain(
            "scaled by n", names=listed(scaled), n=len(records), less=len(records) - 1
        )
        if relation == "add-remove":
            found.findings.append(finding)
        else:
            found.depends_on_n = True
            found.notes.append(
                f"{finding.message.split(' Under')[0]} This is allowed under {relation}, where the "
                "number of records is public"
            )
    return found


def _try_canaries(
    released: _Runs,
    records: TrainingSet,
    base: _Released,
    pool: Sequence[PoolRecord],
    time_left: Callable[[float], bool],
) -> tuple[dict[str, float], dict[str, PoolRecord], PoolRecord | None, int]:
    """Compares runs with each canary to runs on the records.

    Returns:
        The largest gap of each number that leaks; whole numbers that differ, with the first canary
        that changes them; the canary that moves noisy numbers most; and how many were tried.
    """
    leaks: dict[str, float] = {}
    whole: dict[str, PoolRecord] = {}
    # The attack compares runs with the canary and runs without any record in its place.
    absent = released(records.without_last()) if len(records) > 1 else None
    best, chosen = -1.0, None
    spread = _spread(base)
    tried = 0
    for canary in pool:
        if tried and not time_left(0.6):
            break
        tried += 1
        other = released(replace_one(records, canary))
        if other is None:
            continue
        found_leaks, found_whole = _compare(base, other)
        for name, gap in found_leaks.items():
            leaks[name] = max(leaks.get(name, 0.0), gap)
        for name in found_whole:
            whole.setdefault(name, canary)
        shift = _shift(base if absent is None else absent, other, spread)
        if shift > best:
            best, chosen = shift, canary
    return leaks, whole, chosen, tried


def _inferred_shapes(
    released: _Runs, records: TrainingSet, pool: Sequence[PoolRecord]
) -> list[str]:
    """Numbers whose shape changes with the only record of a class."""
    only = _only_of_its_class(records, pool)
    if only is None:
        return []
    without, with_one = (released(data) for data in only)
    if without is None or with_one is None:
        return []
    return list(_compare(without, with_one, shapes_only=True)[0])


def _compare(
    base: _Released, other: _Released, shapes_only: bool = False
) -> tuple[dict[str, float], list[str]]:
    """Numbers that are constant over seeds and differ between two data sets.

    Returns:
        The gap of each number that leaks, infinite where its shape or its presence differs; and
        the names of whole numbers that differ, which a private choice may do by chance.
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


def _only_of_its_class(
    records: TrainingSet, pool: Sequence[PoolRecord]
) -> tuple[TrainingSet, TrainingSet] | None:
    """Records without one class, and the same with one record of that class in the last place.

    A function that infers the classes from its records releases other shapes for the two.
    """
    if records.labels.dtype.kind not in "iub" or not pool:
        return None
    values, counts = np.unique(records.labels, return_counts=True)
    if not 3 <= len(values) < len(records):
        return None
    rarest = values[np.argmin(counts)]
    rest = records.labels != rarest
    if rest.sum() < 2:
        return None
    without = TrainingSet(records.features[rest], records.labels[rest])
    labels = without.labels.copy()
    labels[-1] = rarest
    return without, TrainingSet(without.features, labels)


def _scaled_by_size(released: _Runs, records: TrainingSet, base: _Released) -> list[str]:
    """Numbers that change by the factor n / (n - 1), or its root, for every seed.

    The record that is left out is zero, so that it adds nothing to a sum.
    """
    n = len(records)
    if n < 4 or records.features.dtype.kind != "f":
        return []
    features = records.features.copy()
    features[-1] = 0.0
    full = released(TrainingSet(features, records.labels))
    less = released(TrainingSet(features[:-1], records.labels[:-1]))
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


def _flat(trace: Trace) -> dict[str, Any]:
    return {name: np.asarray(value) for name, value in trace.released.items()}


def _is_nan(values: Any) -> Any:
    return np.isnan(values) if values.dtype.kind in "fc" else np.zeros(values.shape, np.bool_)


def _constant(runs: _Released) -> dict[str, Any]:
    """Where the numbers of all runs are equal, by name."""
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
    found = {}
    for name, value in runs[0].items():
        if value.dtype.kind == "f" and all(
            name in run and run[name].shape == value.shape for run in runs
        ):
            with np.errstate(invalid="ignore"):
                found[name] = np.std([r[name] for r in runs], axis=0, ddof=1)
    return found


def _shift(base: _Released, other: _Released, spread: dict[str, FloatArray]) -> float:
    """How far noisy numbers move, in standard deviations, by coupled runs."""
    total = 0.0
    for name, scale in spread.items():
        if name not in other[0] or other[0][name].shape != base[0][name].shape:
            continue
        pairs = zip(base, other, strict=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.mean([np.abs(b[name] - a[name]) for a, b in pairs], 0)
            ratio = np.where(scale > 0, shift / scale, 0.0)
        total += float(np.square(ratio[np.isfinite(ratio)]).sum())
    return math.sqrt(total)


def _always_differs(
    runs: CoupledRuns,
    records: TrainingSet,
    neighbour: TrainingSet,
    name: str,
    seed: int,
    time_left: Callable[[float], bool],
) -> bool | None:
    """Whether whole numbers stay apart in many more runs; None where time does not suffice."""
    values: list[list[bytes]] = [[], []]
    for i in range(_SEEDS_FOR_WHOLE_NUMBERS):
        if not time_left(0.9):
            return None
        for side, data in enumerate((records, neighbour)):
            trace = runs.run(data, run_seed(seed, i, 8))
            if trace.error or name not in trace.released:
                return False
            values[side].append(np.asarray(trace.released[name]).tobytes())
        if set(values[0]) & set(values[1]) or len(set(values[0])) > 1:
            return False
    return True

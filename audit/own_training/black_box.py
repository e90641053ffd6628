"""Functions that are not watched: exact constants, and the canary that moves the output most.

A released number that is the same for every seed on one data set, and another number on a
neighbouring data set, carries no noise: an exact leak, and no attack is needed to show it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit.arrays import FloatArray
from audit.own_training import explanations as explain
from audit.own_training.canary_pool import PoolRecord
from audit.own_training.coupled_runs import CoupledRuns, Trace
from audit.own_training.findings import Finding
from audit.own_training.records import TrainingSet
from audit.own_training.runs import run_seed

_SEEDS = 4
# Whole numbers may agree by chance: a private choice among few values does.
_SEEDS_FOR_WHOLE_NUMBERS = 40
_MAX_CANARIES = 16


@dataclass
class BlackBox:
    """The outcome for a function that is not watched."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    canary: PoolRecord | None = None
    tested: bool = False
    reason: str = ""


def black_box_findings(
    runs: CoupledRuns,
    records: TrainingSet,
    pool: Sequence[PoolRecord],
    seed: int,
    first: Trace,
) -> BlackBox:
    """Looks for released numbers that depend on a record and on no seed.

    Args:
        runs: of the function.
        records: the data.
        pool: canaries for the place of the last record.
        seed: of the test.
        first: a run on the records, for its errors.
    """
    found = BlackBox()
    if not first.released:
        found.reason = "the function released no numbers"
        return found

    def with_canary(canary: PoolRecord) -> TrainingSet:
        features, labels = records.features.copy(), records.labels.copy()
        features[-1], labels[-1] = canary.features, canary.label
        return TrainingSet(features, labels)

    seeds = [run_seed(seed, i, 7) for i in range(_SEEDS)]
    plain = [runs.run(records, each) for each in seeds]
    if any(t.error for t in plain):
        found.reason = next(t.error for t in plain if t.error) or ""
        return found
    found.tested = True
    base = [_flat(t) for t in plain]
    constant = _constant(base)
    leaks: dict[str, float] = {}
    whole: dict[str, PoolRecord] = {}
    best = -1.0
    spread = _spread(base)
    for canary in list(pool)[:_MAX_CANARIES]:
        data = with_canary(canary)
        traces = [runs.run(data, each) for each in seeds]
        if any(t.error for t in traces):
            continue
        other = [_flat(t) for t in traces]
        also = _constant(other)
        for name, fixed in constant.items():
            if name not in also or name not in other[0]:
                continue
            ours, theirs = base[0][name], other[0][name]
            if ours.shape != theirs.shape:
                leaks[name] = math.inf
                continue
            if ours.dtype.kind in "SU":
                continue
            with np.errstate(invalid="ignore"):
                differs = (ours != theirs) & ~(_is_nan(ours) & _is_nan(theirs)) & fixed & also[name]
            if not differs.any():
                continue
            gap = np.abs(np.nan_to_num(ours[differs] - theirs[differs])).max()
            values = np.concatenate([ours[differs].ravel(), theirs[differs].ravel()])
            if np.all(values == np.round(values)):
                whole.setdefault(name, canary)
            else:
                leaks[name] = max(leaks.get(name, 0.0), float(gap))
        ratio = _ratio(base, other, spread)
        if ratio > best:
            best, found.canary = ratio, canary
    for name, canary in whole.items():
        if name not in leaks and _always_differs(runs, records, with_canary(canary), name, seed):
            leaks[name] = 1.0
    if leaks:
        found.findings.append(explain.constant_numbers(leaks, _SEEDS))
    return found


def _flat(trace: Trace) -> dict[str, Any]:
    return {name: np.asarray(value) for name, value in trace.released.items()}


def _is_nan(values: Any) -> Any:
    return np.isnan(values) if values.dtype.kind in "fc" else np.zeros(values.shape, np.bool_)


def _constant(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
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


def _spread(runs: Sequence[dict[str, Any]]) -> dict[str, FloatArray]:
    found = {}
    for name, value in runs[0].items():
        if value.dtype.kind == "f" and all(r.get(name, value).shape == value.shape for r in runs):
            found[name] = np.std([r[name] for r in runs], axis=0, ddof=1)
    return found


def _ratio(
    base: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], spread: dict[str, FloatArray]
) -> float:
    """The largest shift of a noisy number in standard deviations, by coupled runs."""
    best = 0.0
    for name, scale in spread.items():
        if name not in other[0] or other[0][name].shape != base[0][name].shape:
            continue
        shift = np.mean([np.abs(b[name] - a[name]) for a, b in zip(base, other, strict=True)], 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(scale > 0, shift / scale, 0.0)
        finite = ratio[np.isfinite(ratio)]
        best = max(best, float(finite.max(initial=0.0)))
    return best


def _always_differs(
    runs: CoupledRuns, records: TrainingSet, neighbour: TrainingSet, name: str, seed: int
) -> bool:
    """Whether whole numbers stay apart in many more runs with other seeds."""
    values: list[list[bytes]] = [[], []]
    for i in range(_SEEDS_FOR_WHOLE_NUMBERS):
        for side, data in enumerate((records, neighbour)):
            trace = runs.run(data, run_seed(seed, i, 8))
            if trace.error or name not in trace.released:
                return False
            values[side].append(np.asarray(trace.released[name]).tobytes())
        if set(values[0]) & set(values[1]) or len(set(values[0])) > 1:
            return False
    return True

"""Functions that are not watched: released numbers without noise, and the best canary.

A released number that is the same for every seed on one data set, and another number on a
neighbouring data set, has no noise, or so little that only a large epsilon allows it. The number of
seeds is chosen such that the claimed epsilon excludes the second case.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.experiment import Check, replace_one
from audit.loop.premises.verdicts import FAMILY_ERROR, allowed, constant_numbers, explain, listed
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.training_runs import claim_of, exchanges
from audit.numerics import FloatArray
from audit.user_code import run_seed

_SEEDS = 4
# Without a claim, released numbers are compared as with this one.
_EPSILON_WITHOUT_CLAIM = 1.0
# Fractions that take this number of values on neighbours are no choice among few values.
_DIFFERENT_FRACTIONS = 6
_MAX_CANARIES = 16
# Two runs with one seed draw the same noise, so their ratio differs from n/(n-1) by rounding alone.
_SAME = 1e-9

_Released = Sequence[dict[str, Any]]
_Runs = Callable[[TrainingSet], _Released | None]
"""Runs the function with every seed on a data set, and returns the released numbers by name."""
Pair = tuple[PoolRecord | None, PoolRecord | None]
"""The best canary for an attack, and the record that it replaces; None is the last record."""


@dataclass
class _Suspect:
    """A released number that is the same for a few seeds, and different for a neighbour.

    Attributes:
        pair: two data sets on which it differs.
        exchanges: whether one record is exchanged between them, and not added.
        differs: which entries differ; None where the shape or the presence does.
        gap: the largest difference.
        has_fractions: whether one of these entries is no whole number.
        values: the different values on all data sets that were tried.
        seeds: number of seeds for which it was compared.
    """

    pair: tuple[TrainingSet, TrainingSet]
    exchanges: bool
    differs: Any
    gap: float
    has_fractions: bool
    values: set[bytes] = field(default_factory=set)
    seeds: int = _SEEDS

    def seen_in(self, run: dict[str, Any], name: str) -> bytes:
        """The entries that differ in a run, or the shape if it is another one."""
        value = run.get(name)
        if value is None or self.differs is None or value.shape != self.differs.shape:
            return repr(None if value is None else value.shape).encode()
        return bytes(value[self.differs].tobytes())


def compare_released_numbers(check: Check, first: Trace, claim: float | None, delta: float) -> Pair:
    """Tests whether released numbers depend on a record and not on the seed.

    Args:
        check: the check, which collects what is found.
        first: a run on the records.
        claim: the epsilon that the function promises; None takes its own.
        delta: delta of the claim.

    Returns:
        The canary that moves noisy numbers most, and the record that it replaces.
    """
    if not first.released:
        check.verdicts.cannot_test("the function released no numbers", ("released numbers",))
        return None, None
    records, relation = check.records, check.relation
    replaces = exchanges(relation, first.watched)
    # An attack that removes a record would detect a public number of records.
    removes = relation != "add-remove" and not replaces
    seeds = [run_seed(check.seed, i, 7) for i in range(_SEEDS)]

    def released(data: TrainingSet) -> _Released | None:
        traces = [check.runs.run(data, seed) for seed in seeds]
        if any(trace.error for trace in traces):
            return None
        return [{k: np.asarray(v) for k, v in trace.released.items()} for trace in traces]

    base = released(records)
    if base is None:
        reason = "the function raised an error for some seeds"
        check.verdicts.cannot_test(reason, ("released numbers",))
        return None, None
    check.verdicts.tested.append("released numbers")
    suspects, best = _try_canaries(check, released, base, replaces)
    epsilon = claim_of(first, delta) if claim is None else claim
    leaks = _without_noise(check, suspects, epsilon, delta)
    if leaks:
        gaps = {name: suspect.gap for name, suspect in leaks.items()}
        fewest = min(suspect.seeds for suspect in leaks.values())
        check.verdicts.findings.append(constant_numbers(gaps, fewest))
    elif check.work_left(0.9):
        shapes = _inferred_shapes(released, records)
        if leaks := _without_noise(check, shapes, epsilon, delta):
            check.verdicts.findings.append(explain("inferred classes", names=listed(leaks)))
    if removes:
        fewer = released(records.without_last()) or base
        if _shapes_that_differ(base, fewer):
            check.verdicts.measured["depends on n"] = 1.0
    if not check.work_left():
        check.verdicts.notes.append(
            "fewer classes and fewer records were not tested, to limit the work"
        )
    elif scaled := _scaled_by_size(released, records, base):
        n = len(records)
        finding = explain("scaled by n", names=listed(scaled), n=n, less=n - 1)
        if relation == "add-remove":
            check.verdicts.findings.append(finding)
        else:
            check.verdicts.measured |= {"depends on n": 1.0} if removes else {}
            check.verdicts.notes.append(allowed(finding, relation))
    return best


def _try_canaries(
    check: Check, released: _Runs, base: _Released, replaces: bool
) -> tuple[dict[str, _Suspect], Pair]:
    """Compares runs with each canary to runs on the records.

    Returns:
        The numbers that are constant and differ; and the canary that moves noisy numbers most, with
        the record that it replaces.
    """
    records, pool = check.records, check.pool[:_MAX_CANARIES]
    suspects: dict[str, _Suspect] = {}
    best: Pair = None, None
    # The attack compares runs with the canary and runs without any record in its place, or with
    # another record.
    absent = released(records.without_last()) if len(records) > 1 and not replaces else None
    ends: list[tuple[PoolRecord | None, _Released]] = [(None, base if absent is None else absent)]
    largest = -1.0
    spread = _spread(base)
    for tried, canary in enumerate(pool):
        if tried and not check.work_left(0.6):
            check.verdicts.notes.append(
                f"{tried} of {len(pool)} canaries were tried, to limit the work"
            )
            break
        neighbour = replace_one(records, canary)
        released_by_neighbour = released(neighbour)
        if released_by_neighbour is None:
            continue
        for name in _compare(base, released_by_neighbour):
            sides = [(records, base), (neighbour, released_by_neighbour)]
            if check.relation == "add-remove" and absent is not None:
                sides.insert(1, (records.without_last(), absent))
            suspect = suspects.setdefault(name, _suspect(sides, name))
            suspect.values |= {
                suspect.seen_in(run[0], name) for run in (base, released_by_neighbour)
            }
        shifts = [_shift(end, released_by_neighbour, spread) for _, end in ends]
        if max(shifts) > largest:
            largest, end = max(shifts), ends[int(np.argmax(shifts))]
            best = canary, end[0]
            ends = [end, (canary, released_by_neighbour)] if replaces else ends
    return suspects, best


def _inferred_shapes(released: _Runs, records: TrainingSet) -> dict[str, _Suspect]:
    """Numbers whose shape changes with the only record of a class.

    They differ between records without one class, and the same with one record of that class, if
    the function infers the classes from its records.
    """
    if records.labels.dtype.kind not in "iub":
        return {}
    values, counts = np.unique(records.labels, return_counts=True)
    rarest = values[np.argmin(counts)]
    without_rarest = records.labels != rarest
    if not 3 <= len(values) < len(records) or without_rarest.sum() < 2:
        return {}
    features, labels = records.features[without_rarest], records.labels[without_rarest]
    pair = (
        TrainingSet(features, labels),
        TrainingSet(features, np.append(labels[:-1], rarest)),
    )
    without, with_one = (released(data) for data in pair)
    if without is None or with_one is None:
        return {}
    names = _shapes_that_differ(without, with_one)
    return {name: _Suspect(pair, True, None, math.inf, False) for name in names}


def _compare(base: _Released, neighbour: _Released) -> dict[str, Any]:
    """Numbers that are constant over seeds and differ between two data sets.

    Returns:
        By name, which entries differ; None where the shape or the presence does.
    """
    differing: dict[str, Any] = {}
    constant, also = _constant(base), _constant(neighbour)
    for name in {*constant, *also}:
        if (name in constant) != (name in also):
            if all(name in run for run in base) != all(name in run for run in neighbour):
                differing[name] = None
            continue
        ours, theirs = base[0][name], neighbour[0][name]
        if ours.shape != theirs.shape:
            differing[name] = None
            continue
        with np.errstate(invalid="ignore"):
            differs = (ours != theirs) & ~(_is_nan(ours) & _is_nan(theirs))
        differs = np.asarray(differs & constant[name] & also[name])
        if differs.any():
            differing[name] = differs
    return differing


def _shapes_that_differ(base: _Released, neighbour: _Released) -> list[str]:
    return [name for name, differs in _compare(base, neighbour).items() if differs is None]


def _suspect(sides: Sequence[tuple[TrainingSet, _Released]], name: str) -> _Suspect:
    """A number that differs between the first and the last of two or three data sets.

    The one between them has a record less than either. It differs from one of the two, and from it
    the claimed epsilon is that of one record, not of two.
    """
    pairs = [(sides[0], sides[-1])]
    pairs = [*itertools.pairwise(reversed(sides)), *pairs] if len(sides) > 2 else pairs
    differing_of_pairs = [_compare(side[1], other_side[1]) for side, other_side in pairs]
    index = next(
        i for i, differing_names in enumerate(differing_of_pairs) if name in differing_names
    )
    (side, base), (other_side, released_by_other) = pairs[index]
    differs, gap, fractions = differing_of_pairs[index][name], math.inf, False
    if differs is not None and base[0][name].dtype.kind not in "SU":
        ours, theirs = (np.nan_to_num(run[0][name][differs]) for run in (base, released_by_other))
        gap = float(np.abs(np.subtract(ours, theirs, dtype=complex)).max())
        fractions = bool(np.any(ours != np.round(ours)))
    return _Suspect((side, other_side), index == len(pairs) - 1, differs, gap, fractions)


def _without_noise(
    check: Check, suspects: dict[str, _Suspect], epsilon: float | None, delta: float
) -> dict[str, _Suspect]:
    """The numbers that have less noise than the claim allows.

    If a value has probability p on one data set, it has probability at least
    exp(-epsilon) (p - delta) on its neighbour. So m runs on one all return it and m runs on the
    other never do with probability at most (1 - exp(-epsilon) (1 - delta))^m, for an epsilon of at
    least log 2 (a smaller one allows less). Where one record is exchanged, and the claim is that
    of adding one, epsilon is twice the claim.
    """
    claimed = _EPSILON_WITHOUT_CLAIM if epsilon is None else epsilon
    leaks = {}
    for name, suspect in suspects.items():
        twice = suspect.exchanges and check.relation != "replace-one"
        # p (1 - e^-epsilon (p - delta)) grows up to p = 1 if epsilon is at least log 2.
        allowed = max(2 * claimed if twice else claimed, math.log(2))
        chance = max(-math.log1p(-math.exp(-allowed) * (1 - delta)), 1e-300)
        # Bonferroni's inequality over the suspects.
        needed = math.log(len(suspects) / FAMILY_ERROR) / chance
        if not (suspect.has_fractions and len(suspect.values) >= _DIFFERENT_FRACTIONS):
            suspect.seeds = max(_SEEDS, math.ceil(min(needed, 1e9)))
        differs = _always_differs(check, suspect, name)
        if differs:
            leaks[name] = suspect
        elif differs is None:
            check.verdicts.notes.append(
                f"`{name}` has no noise, or as little as epsilon {claimed:.4g} allows: a test of "
                f"it takes {needed:.3g} seeds, more than the runs of this test"
            )
    return leaks


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
    constant = {}
    for name, value in runs[0].items():
        in_other_runs = [run.get(name) for run in runs[1:]]
        if any(o is None or o.shape != value.shape for o in in_other_runs):
            continue
        fixed = np.ones(value.shape, np.bool_)
        for compared in in_other_runs:
            fixed &= np.asarray((compared == value) | (_is_nan(value) & _is_nan(compared)))
        constant[name] = fixed
    return constant


def _spread(runs: _Released) -> dict[str, FloatArray]:
    """Standard deviation of each released number over the seeds, by name.

    A number that is the same for all seeds gets the mean of the others.
    """
    spreads = {}
    for name, value in runs[0].items():
        if value.dtype.kind in "fiub" and all(
            name in run and run[name].shape == value.shape for run in runs
        ):
            with np.errstate(invalid="ignore"):
                scale = np.std([r[name] for r in runs], axis=0, ddof=1)
            spreads[name] = np.where(
                scale > 0, scale, scale[scale > 0].mean() if (scale > 0).any() else 0
            )
    return spreads


def _shift(base: _Released, neighbour: _Released, spread: dict[str, FloatArray]) -> float:
    """Distance between the noisy numbers of runs with equal seeds, in standard deviations."""
    total = 0.0
    for name, scale in spread.items():
        if any(name not in run or run[name].shape != scale.shape for run in (*base, *neighbour)):
            continue
        pairs = zip(base, neighbour, strict=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps = [np.subtract(b[name], a[name], dtype=float) for a, b in pairs]
            shift = np.mean(np.abs(gaps), 0)
            ratio = np.where(scale > 0, shift / scale, 0.0)
        total += float(np.square(ratio[np.isfinite(ratio)]).sum())
    return math.sqrt(total)


def _always_differs(check: Check, suspect: _Suspect, name: str) -> bool | None:
    """Whether a number is constant and differs for all seeds; None where time is short."""
    values: list[set[bytes]] = [set(), set()]
    for i in range(suspect.seeds):
        if i >= _SEEDS and not check.work_left(0.9):
            return None
        for side, data in enumerate(suspect.pair):
            # Other seeds than those that chose the suspects, so that the choice does not bias the
            # test.
            trace = check.runs.run(data, run_seed(check.seed, i, 8))
            if trace.error:
                return False
            run = {key: np.asarray(value) for key, value in trace.released.items()}
            values[side].add(suspect.seen_in(run, name))
        if values[0] & values[1] or len(values[0]) > 1:
            return False
    return True

"""Functions without a training loop: the sensitivity and the noise of each declared value.

A function declares a noisy value by `watch.release(value, epsilon=...)` (Laplace or geometric
noise) or `noise_multiplier=` (Gaussian noise). Runs with equal seeds and forced earlier values draw
the same noise, so that their difference is exactly what the exchanged record changes. Runs with
other seeds show the noise.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from audit.accounting import GaussianMechanism
from audit.errors import InvalidInput
from audit.loop.findings import Finding
from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.experiment import Check, Experiment, copies, replace_one
from audit.loop.premises.noise import TestResult, estimate_noise, independence
from audit.loop.premises.orders_of_keys import compare_orders, one_of_each_label
from audit.loop.premises.shared_noise import Numbers, declared_numbers, shared_noise
from audit.loop.premises.verdicts import SHORTFALL, explain, released_outside
from audit.loop.runs.coupled_runs import DeclaredNoise, Trace
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.released_numbers import differences
from audit.numerics import FloatArray

_SEEDS = 4
_NUMBERS, _MIN_RUNS, _MAX_RUNS = 8000, 100, 1000
_MAX_CANARIES = 40
# Differences of coupled runs that are equal to this share of the values have equal noise.
_ROUNDING = 1e-9
# Coordinates whose scales differ by more than this share, beyond chance, have unequal noise.
_UNEQUAL, _STANDARD_ERRORS = 0.1, 6.0
# P-value below which coordinates are taken to have other scales.
_EQUAL_SCALES = 1e-3
_MIN_DISTANCE = 0.03
_MIN_RUNS_OF_STEPS = 8
# Distance of forced values from the usual ones, at which what follows a release may differ, and the
# smallest ratio of this distance to the largest number of a value.
_FAR, _TIMES_AS_FAR, _SHIFTS = 1000, 10, 8
Pair = tuple[PoolRecord | None, PoolRecord | None]
_Values = list[FloatArray]


@dataclass
class _Release:
    """Measurements of one declared value.

    Attributes:
        number: its place among the values of a run, from 1.
        noise_multiplier: stated for Gaussian noise, or None.
        epsilon: stated for Laplace noise, or None.
        noisy: [R, d], the value for other seeds.
        changes: [P, d], what each neighbouring data set changes.
        halves: [P], the share of a change that one record makes.
    """

    number: int
    noise_multiplier: float | None
    epsilon: float | None
    noisy: FloatArray
    changes: FloatArray
    halves: FloatArray

    @property
    def scales(self) -> FloatArray:
        """[d], scale of the noise in each coordinate: equal ones are pooled."""
        gaussian = self.epsilon is None
        if gaussian:
            scales = np.sqrt(np.square(self._residuals).sum(0) / (len(self.noisy) - 1))
        else:
            scales = np.abs(self._pairs).mean(0) / 1.5
        if not gaussian and np.array_equal(self.noisy, np.round(self.noisy)):
            # Geometric noise: the scale of Laplace noise with the same ratio of probabilities.
            variance = np.maximum(np.square(self._pairs).mean(0) / 2, 1e-300)
            scales = 1.0 / (2.0 * np.arcsinh(1.0 / np.sqrt(2.0 * variance)))
        error = _STANDARD_ERRORS / math.sqrt(2.0 * len(self.noisy))
        pooled = np.sqrt(np.square(scales).mean())
        alike = np.all(np.abs(scales / pooled - 1) < _UNEQUAL + error)
        if alike and self._have_equal_scales(scales):
            return np.full(len(scales), pooled)
        return scales * (1 + error)  # upper limits, so that a shortfall is certain

    def _have_equal_scales(self, scales: FloatArray) -> bool:
        """Whether scales differ as estimates of equal ones do by chance.

        Few coordinates with a smaller scale, as in a symmetric matrix, are within the tolerance of
        each, and would make the pooled scale too small for the others.
        """
        # Variance of an estimate over the squared scale.
        variance = 0.5 / (len(self.noisy) - 1)
        if self.epsilon is not None:
            variance = 1.75 / 1.5**2 / len(self._pairs)
        statistic = float(np.square(scales / scales.mean() - 1).sum()) / variance
        return float(stats.chi2.sf(statistic, max(len(scales) - 1, 1))) > _EQUAL_SCALES

    @property
    def _residuals(self) -> FloatArray:
        return self.noisy - self.noisy.mean(0)

    @property
    def _pairs(self) -> FloatArray:
        half = len(self.noisy) // 2
        return self.noisy[:half] - self.noisy[half : 2 * half]

    @property
    def sensitivities(self) -> FloatArray:
        """[P], change of each neighbour in units of the noise: L2 for Gaussian noise, else L1."""
        changes = self.changes / self.scales
        norm = np.linalg.norm(changes, axis=1) if self.epsilon is None else np.abs(changes).sum(1)
        return norm * self.halves

    def size_test(self) -> TestResult:
        """Tests whether the noise is smaller than stated."""
        largest = float(self.sensitivities.max(initial=0.0))
        runs, width = self.noisy.shape
        if largest == 0.0:
            return TestResult(1.0, f"declared size {self.number}", {}, False)
        # The stated scale over the measured one, for the largest contribution.
        if self.epsilon is None:
            assert self.noise_multiplier is not None
            share = 1.0 / (self.noise_multiplier * largest)
            degrees = (runs - 1) * width
            # The sum of squares over the stated variance is chi-square if the noise is as stated.
            p_value = float(stats.chi2.cdf(degrees * share**2, degrees))
        else:
            share = self.epsilon / largest
            # |x - y| of two Laplace numbers has mean 1.5 and variance 1.75 in units of the scale.
            error = math.sqrt(1.75 / (len(self._pairs) * width)) / 1.5
            p_value = float(stats.norm.cdf((share - 1.0) / error))
        kind = f"declared size {self.number}"
        return TestResult(p_value, kind, {"share": share}, share < 1 - SHORTFALL)

    def finding(self, of: int) -> Finding:
        """The finding that the noise is smaller than stated."""
        largest = float(self.sensitivities.max())
        scale = float(np.median(self.scales))
        name = f"Declared value {self.number} of {of}"
        if self.epsilon is None:
            measured, stated, norm = 1.0 / largest, self.noise_multiplier, "L2"
            comparison = (
                f"an effective noise multiplier of {measured:.3g}, where {stated:.3g} is stated"
            )
        else:
            measured, stated, norm = largest, self.epsilon, "L1"
            comparison = f"an epsilon of {measured:.3g}, where {stated:.3g} is stated"
        word = "standard deviation" if self.epsilon is None else "scale"
        return Finding(
            "noise",
            f"{name}: one record changes it by {largest * scale:.3g} ({norm}) and its noise has "
            f"{word} {scale:.3g}: {comparison}.",
            "The sensitivity is that of other bounds or of another norm (L2 for Laplace noise), "
            "records are not clipped, a record enters several times, or the budget of several "
            "values is spent on each of them.",
            "Clip each record to public bounds, and scale the noise to the largest change that "
            "one record can make.",
            {"value": self.number, "measured": measured, "stated": float(stated or 0.0)},
        )

    def shape_test(self) -> TestResult:
        """Tests whether the noise has the stated distribution, up to its scale."""
        pairs = np.abs(self._pairs)
        kind = f"declared shape {self.number}"
        if self.epsilon is not None and np.array_equal(self.noisy, np.round(self.noisy)):
            return TestResult(1.0, kind, {}, False)  # geometric noise
        if self.epsilon is None:
            unit = pairs / np.maximum(np.sqrt(np.square(self._pairs).mean(0)), 1e-300)
            result = stats.kstest(unit.ravel(), stats.halfnorm.cdf)
        else:
            unit = pairs / np.maximum(pairs.mean(0) / 1.5, 1e-300)
            result = stats.kstest(unit.ravel(), lambda x: 1 - (1 + x / 2) * np.exp(-x))
        distance = float(result.statistic)
        return TestResult(
            float(result.pvalue), kind, {"distance": distance}, distance > _MIN_DISTANCE
        )


def compare_declared(check: Check, first: Trace, claim: float | None, delta: float) -> Pair:
    """Tests the values that a function declares by `watch.release`.

    Args:
        check: the check, which collects what is found.
        first: a run on the records.
        claim: the epsilon that the function promises; None takes its own.
        delta: delta of the claim.

    Returns:
        The canary that changes the values most, and None.

    Raises:
        InvalidInput: the function ignores the values that `watch.release` returns.
    """
    seeds = [check.seed_of(i) for i in range(_SEEDS)]
    reference = _reference(check, first, seeds)
    if reference is None:
        return None, None
    neighbours, halves, pool = _neighbours(check)
    if _is_unused(check, first, seeds[0]):
        # With noise of its own, the function returns another value than the released one.
        has_own_noise = _differs_between_seeds(check, first, seeds)
        if not has_own_noise and _compare_returned(check, first, seeds[0], neighbours):
            return _strongest([], pool), None
        raise InvalidInput(
            "train must use the value that watch.release returns, but other values changed "
            "nothing: write value = watch.release(value)"
        )
    runs = [_changes(check, first, data, seeds, reference) for data in neighbours]
    if any(isinstance(run, Finding) for run in runs):
        check.verdicts.findings.append(next(run for run in runs if isinstance(run, Finding)))
        check.verdicts.tested.append("contribution")
        return pool[0], None
    noisy = _noisy(check, first, reference)
    same_n = [len(data) == len(check.records) for data in neighbours]
    releases: list[_Release] = []
    for place, declared in enumerate(first.declared):
        if not declared.is_stated:
            continue
        changes_of_release = [run[place] if isinstance(run, list) else () for run in runs]
        changes = _usable_changes(check, place, changes_of_release, same_n, halves)
        if changes is None:
            continue
        release = _Release(
            place + 1, declared.noise_multiplier, declared.epsilon, noisy[place], *changes
        )
        if not _reports_missing_noise(check, release, len(first.declared)):
            releases.append(_without_copies(release))
    _collect(check, releases, len(first.declared))
    changes_of_all = [_known_changes(runs, place, values) for place, values in enumerate(noisy)]
    check.verdicts.collect(*shared_noise(declared_numbers(noisy, changes_of_all), ()))
    _compare_scales(check, first, neighbours, seeds, reference, noisy)
    if releases:
        check.verdicts.tested += ["contribution", "noise"]
    _compare_total(check, releases, first.claimed if claim is None else claim, delta)
    compare_orders(check, first)
    # A chain of neighbours leads to copies of one record.
    copied = [
        copies(check.records, record, len(check.records)) for record in one_of_each_label(check)
    ]
    _compare_returned(check, first, seeds[0], [*neighbours, *copied])
    return _strongest(releases, pool), None


def _known_changes(runs: Sequence[Any], place: int, values: FloatArray) -> FloatArray:
    """[P, d], what each neighbour changes in a declared value; NaN where that is unknown."""
    unknown = np.full(values.shape[1], np.nan)
    changes = (run[place] if isinstance(run, list) else None for run in runs)
    return np.stack([unknown if change is None else change for change in changes])


def compare_declared_of_steps(
    experiment: Experiment,
    runs: Sequence[Sequence[DeclaredNoise]],
    exchanged: Sequence[Any],
    of_pool: Sequence[Any] = (),
    steps: Iterable[Numbers] | None = None,
) -> None:
    """Tests the sizes of values that a training loop declares with their noise.

    The batches of the runs differ as well, which can only enlarge the measured noise.

    Args:
        experiment: the experiment, which collects what is found.
        runs: the declared values of runs with other seeds on equal records.
        exchanged: those of the first runs, with the same seeds, after a record was exchanged.
        of_pool: those of runs with one seed that differ in one record.
        steps: the coordinates of each step, whose noise is compared with that of the values; None
            compares none.
    """
    declared = experiment.base.declared
    share = 1.0 if experiment.relation == "replace-one" else 0.5
    releases: list[_Release] = []
    untested: list[str] = []
    for place, value in enumerate(declared):
        if not value.is_stated or value.values is None:
            continue
        noisy, others = (_column(rows, place, value.values) for rows in (runs, exchanged))
        if len(noisy) < _MIN_RUNS_OF_STEPS or len(others) == 0:
            untested.append(str(place + 1))
            continue
        # If shapes depend on the records, either list may end first.
        pairs = min(len(noisy), len(others))
        changes = others[:pairs] - noisy[:pairs]
        release = _Release(
            place + 1,
            value.noise_multiplier,
            value.epsilon,
            noisy,
            changes,
            np.full(len(changes), share),
        )
        if changes.any() and not _reports_missing_noise(experiment, release, len(declared)):
            releases.append(_without_copies(release))
    if untested:
        experiment.verdicts.notes.append(
            f"not tested: the noise of declared values {', '.join(untested)}, because runs end "
            "with the last tested step; declare them before it, or in a function of their own"
        )
    tests = [release.size_test() for release in releases]
    if steps is not None:
        _compare_shared_noise(experiment, (runs, exchanged, of_pool), steps)
    if tests:
        at = min(range(len(tests)), key=lambda i: tests[i].p_value)
        # Bonferroni's inequality over the values.
        p_value = min(1.0, len(tests) * tests[at].p_value)
        experiment.verdicts.collect(
            replace(tests[at], p_value=p_value),
            words=partial(_size_words, releases[at], len(declared)),
        )


def _compare_shared_noise(
    experiment: Experiment,
    rows: tuple[Sequence[Sequence[DeclaredNoise]], Sequence[Any], Sequence[Any]],
    steps: Iterable[Numbers],
) -> None:
    """Tests whether a declared value has the same noise as another one, or as a step."""
    usual = [value.values for value in experiment.base.declared]
    columns = [
        [_column(rows_of_runs, place, values) for rows_of_runs in rows]
        for place, values in enumerate(usual)
        if values is not None
    ]
    # Values whose shape differs between runs are left out.
    counts = [len(rows_of_runs) for rows_of_runs in rows]
    columns = [column for column in columns if [len(values) for values in column] == counts]
    if not columns:
        return
    changes = [
        np.concatenate([mixed - noisy[: len(mixed)], of_pool[1:] - of_pool[:1]])
        for noisy, mixed, of_pool in columns
    ]
    noisy = [values for values, _, _ in columns]
    experiment.verdicts.collect(*shared_noise(declared_numbers(noisy, changes), steps))


def _column(rows: Sequence[Sequence[DeclaredNoise]], place: int, usual: FloatArray) -> FloatArray:
    """[R, d], one declared value of all runs, up to the first run that declares another one."""
    values: list[FloatArray] = []
    for row in rows:
        value = row[place].values if place < len(row) else None
        if value is None or value.shape != usual.shape or not np.isfinite(value).all():
            break
        values.append(value)
    return np.stack(values) if values else np.zeros((0, len(usual)))


def _reference(check: Check, first: Trace, seeds: Sequence[int]) -> list[_Values] | None:
    """The declared values on the records for each seed; None, with a reason, if they vary."""
    base = [_values(check, first, check.records, seed) for seed in seeds]
    again = _values(check, first, check.records, seeds[0])
    reference = [run for run in base if run is not None]
    reason = ""
    if len(reference) < len(base) or again is None:
        reason = "the function raised an error, or declared other values, for some seeds"
    elif any(not np.array_equal(a, b) for a, b in zip(reference[0], again, strict=True)):
        reason = (
            "runs cannot be coupled: two runs with the same seed on the same records release "
            "different values, so some randomness is not controlled by the seed"
        )
    if reason:
        check.verdicts.cannot_test(reason, ("contribution", "noise"))
        return None
    return reference


def _usable_changes(
    check: Check,
    place: int,
    changes_of_neighbours: Sequence[Any],
    same_n: Sequence[bool],
    halves: Sequence[float],
) -> tuple[FloatArray, FloatArray] | None:
    """What neighbours change in a declared value, [P, d], and the share of one record, [P].

    Args:
        check: the check, which collects the reason if there is nothing to compare.
        place: index of the declared value.
        changes_of_neighbours: the change on each neighbour; None where it differs between seeds,
            and () where the function gave no values.
        same_n: whether each neighbour has as many records.
        halves: the share of a change that one record makes, for each neighbour.
    """
    number = place + 1
    if any(
        change is None and has_same_n
        for change, has_same_n in zip(changes_of_neighbours, same_n, strict=True)
    ):
        check.verdicts.cannot_test(
            f"declared value {number} is not additive: what a record changes differs "
            "between seeds (a sampled batch, a choice such as the exponential mechanism, or a "
            "value that was clipped or rounded after its noise; declare it right after its "
            "noise)",
            ("contribution", "noise"),
        )
        return None
    usable = [
        (change, half)
        for change, half in zip(changes_of_neighbours, halves, strict=True)
        if isinstance(change, np.ndarray)
    ]
    if not usable:
        return None
    changes = np.stack([change for change, _ in usable])
    if not changes.any():
        check.verdicts.cannot_test(
            f"no exchanged record changed declared value {number}: it may depend on other "
            "records, or on none",
            ("contribution", "noise"),
        )
        return None
    return changes, np.array([half for _, half in usable])


def _values(check: Check, first: Trace, records: TrainingSet, seed: int) -> _Values | None:
    """The declared values of a run before they were forced; None where they differ in kind.

    A function may raise an error because a forced value has another shape than its own. The values
    up to this one are then returned, and zeros take the place of the later ones.
    """
    trace = check.runs.run(records, seed, like=first, digests=False)
    if trace.error is not None:
        return _values_before_error(trace, first)
    if len(trace.declared) != len(first.declared):
        return None
    values = [declared.values for declared in trace.declared]
    if any((a is None) != (b.values is None) for a, b in zip(values, first.declared, strict=True)):
        return None
    return [np.zeros(0) if value is None else value for value in values]


def _values_before_error(trace: Trace, first: Trace) -> _Values | None:
    """The values up to one of another shape, with which a run ended; None if no shape differs."""
    values = [value.values for value in trace.declared if value.values is not None]
    usual = [value.values for value in first.declared if value.values is not None]
    if len(values) < len(trace.declared) or len(usual) < len(first.declared):
        return None
    pairs = zip(values, usual, strict=False)
    if all(value.shape == usual_value.shape for value, usual_value in pairs):
        return None
    return [*values, *(np.zeros_like(value) for value in usual[len(values) :])]


def _is_unused(check: Check, first: Trace, seed: int) -> bool:
    """Whether the function returns the same for other values of its releases."""
    usual = check.runs.run(check.records, seed, like=first, digests=False)
    if not usual.released:
        return False
    for by in (_FAR, -_FAR):  # a threshold may have the same outcome on one side
        shifted = check.runs.run(check.records, seed, like=_shifted(first, by), digests=False)
        if shifted.error or differences(usual.released, shifted.released):
            return False
    return True


def _differs_between_seeds(check: Check, first: Trace, seeds: Sequence[int]) -> bool:
    """Whether the returned numbers differ between two seeds with the same released values."""
    released = [
        check.runs.run(check.records, seed, like=first, digests=False).released
        for seed in seeds[:2]
    ]
    return bool(differences(*released))


def _shifted(first: Trace, by: int, evenly: bool = False) -> Trace:
    """The trace with every released value shifted by `by`, and large values by more."""
    values = []
    for value, declared in zip(first.further, first.declared, strict=True):
        numbers = np.zeros(0) if declared.values is None else declared.values
        largest = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
        multiple = max(1, math.ceil(largest * _TIMES_AS_FAR / _FAR))
        values.append(_shift(value, by * multiple, evenly))
    return Trace(further=values, initial=first.initial)


def _shift(value: Any, by: int, evenly: bool = False) -> Any:
    """The value plus `by`, at most as far as its type reaches; texts stay.

    Members and coordinates are shifted by up to twice as much, each by another number, so that the
    largest one or their order is another one, too; unless they are shifted evenly.
    """
    if isinstance(value, dict):
        shifts = _shifts(by, len(value), evenly)
        members = zip(value.items(), shifts, strict=True)
        return {key: _shift(item, shift, evenly) for (key, item), shift in members}
    if isinstance(value, list | tuple):
        shifts = _shifts(by, len(value), evenly)
        shifted = [_shift(item, s, evenly) for item, s in zip(value, shifts, strict=True)]
        return type(value)(*shifted) if hasattr(value, "_fields") else type(value)(shifted)
    if isinstance(value, bool):
        return by > 0
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biu":
        if value.dtype.kind == "b":
            return np.full_like(value, by > 0)[()]
        ends, shifts = np.iinfo(value.dtype), _shifts(by, value.size, evenly)
        exact = [
            min(max(int(v) + shift, int(ends.min)), int(ends.max))
            for v, shift in zip(value.ravel(), shifts, strict=True)
        ]
        return np.array(exact, dtype=value.dtype).reshape(value.shape)[()]
    if not evenly and len(getattr(value, "shape", ())) > 0:
        with contextlib.suppress(Exception):  # numbers, and arrays that are not like numpy's
            return _shifted_by_place(value, by)
    try:
        return value + by
    except (TypeError, OverflowError):  # texts, and short whole numbers of other libraries
        return value


def _shifted_by_place(value: Any, by: int) -> Any:
    """An array of any library, shifted by another number in each place, in its own type."""
    flat = value.reshape(-1)
    ones = (flat == flat) | (flat != flat)  # also where a value is not finite
    places = ones.cumsum(0) - 1
    shifted = flat + (by + by * (places % _SHIFTS) // _SHIFTS)
    in_type = shifted.to if hasattr(shifted, "to") else shifted.astype
    return in_type(value.dtype).reshape(value.shape)


def _shifts(by: int, number: int, evenly: bool) -> list[int]:
    return [by + (0 if evenly else by * (place % _SHIFTS) // _SHIFTS) for place in range(number)]


def _neighbours(check: Check) -> tuple[list[TrainingSet], list[float], Sequence[PoolRecord]]:
    """Data sets that differ in one record, and the share of the change that one record makes.

    An exchange is a removal and an addition. So one record makes at least half of the change.
    """
    records, pool = check.records, check.pool[:_MAX_CANARIES]
    share = 1.0 if check.relation == "replace-one" else 0.5
    data = [replace_one(records, canary) for canary in pool]
    data += [replace_one(records, canary, 0) for canary in pool[:4]]
    halves = [share] * len(data)
    if check.relation == "add-remove" and len(records) > 1:
        data.append(records.without_last())
        halves.append(1.0)
        for canary in pool:
            added = TrainingSet(
                np.concatenate([records.features, np.asarray(canary.features)[None]]),
                np.append(records.labels, canary.label),
            )
            data.append(added)
            halves.append(1.0)
    return data, halves, pool


def _changes(
    check: Check,
    first: Trace,
    data: TrainingSet,
    seeds: Sequence[int],
    reference: Sequence[_Values],
) -> "list[FloatArray | None] | Finding | None":
    """What a neighbour changes in each value; None for a value where it differs between seeds."""
    runs: list[_Values] = []
    for seed in seeds:
        values = _values(check, first, data, seed)
        if values is None:
            return None
        runs.append(values)
    changes: list[FloatArray | None] = []
    for place in range(len(reference[0])):
        pairs = [(run[place], usual[place]) for run, usual in zip(runs, reference, strict=False)]
        if any(a.shape != b.shape for a, b in pairs):
            return explain("inferred classes", names=f"declared value {place + 1}")
        gaps = np.stack([a - b for a, b in pairs])
        size = max(float(np.abs(np.concatenate(pair)).max(initial=0.0)) for pair in pairs)
        is_constant = bool(np.all(np.ptp(gaps, axis=0) <= _ROUNDING * size + 1e-12))
        changes.append(gaps[0] if is_constant and np.isfinite(gaps).all() else None)
    return changes


def _noisy(check: Check, first: Trace, reference: Sequence[_Values]) -> list[FloatArray]:
    """[R, d] of each value, for other seeds on the same records."""
    width = max(sum(len(value) for value in reference[0]), 1)
    count = int(np.clip(_NUMBERS / width, _MIN_RUNS, _MAX_RUNS))
    rows = list(reference)
    for number in range(count - len(rows)):
        values = _values(check, first, check.records, check.seed_of(100 + number))
        if values is not None and [len(v) for v in values] == [len(v) for v in rows[0]]:
            rows.append(values)
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _reports_missing_noise(check: Check | Experiment, release: _Release, of: int) -> bool:
    """Reports coordinates without noise that a record changes."""
    silent = np.ptp(release.noisy, axis=0) == 0
    bare = silent & np.any(release.changes != 0, axis=0)
    if bare.any():
        check.verdicts.findings.append(
            Finding(
                "noise",
                f"Declared value {release.number} of {of}: {int(bare.sum())} of {len(bare)} "
                f"numbers are the same for {len(release.noisy)} seeds, although they depend on "
                "the records.",
                "No noise is added, or it is drawn from a generator with a constant seed.",
                "Draw new noise from a generator that the seed of the run controls.",
            )
        )
        check.verdicts.tested += ["contribution", "noise"]
    return bool(silent.all() or bare.any())


def _without_copies(release: _Release) -> _Release:
    """The value without numbers that copy others, as below the diagonal of a symmetric matrix."""
    columns = np.concatenate([release.noisy, release.changes])
    loud = np.ptp(release.noisy, axis=0) > 0
    columns = columns[:, loud]
    places = np.sort(np.unique(columns, axis=1, return_index=True)[1])
    noisy, changes = release.noisy[:, loud][:, places], release.changes[:, loud][:, places]
    return _Release(
        release.number, release.noise_multiplier, release.epsilon, noisy, changes, release.halves
    )


def _size_words(release: _Release, of: int, _: TestResult) -> Finding:
    return release.finding(of)


def _shape_words(release: _Release, of: int, test: TestResult) -> Finding:
    distance = float(test.numbers["distance"])
    distribution = "Gaussian" if release.epsilon is None else "Laplace"
    return Finding(
        "noise",
        f"The noise of declared value {release.number} of {of} is not {distribution} noise: its "
        f"distribution function is up to {distance:.3g} from it.",
        "It is drawn from another distribution, or changed after it is drawn.",
        "Draw the noise that is stated, and declare the value before it is changed.",
    )


def _collect(check: Check, releases: Sequence[_Release], of: int) -> None:
    """Collects the tests of size, shape and independence."""
    for release in releases:
        check.verdicts.collect(release.size_test(), words=partial(_size_words, release, of))
        check.verdicts.collect(release.shape_test(), words=partial(_shape_words, release, of))
    if not releases:
        return
    noisy = np.concatenate([release.noisy for release in releases], axis=1)
    ends = np.cumsum([0, *(release.noisy.shape[1] for release in releases)])
    slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
    noise = estimate_noise(noisy[:, None, :], None, slices, np.finfo(float).eps)
    names = [f"declared value {release.number}" for release in releases]
    shapes = [(columns.stop - columns.start,) for columns in slices]
    check.verdicts.collect(*independence(noise, names, shapes, between_steps=False))


def _compare_scales(
    check: Check,
    first: Trace,
    neighbours: Sequence[TrainingSet],
    seeds: Sequence[int],
    reference: Sequence[_Values],
    noisy: Sequence[FloatArray],
) -> None:
    """Reports noise whose scale depends on a record, or on the number of records."""
    n = len(check.records)
    for data in neighbours:
        runs = [_values(check, first, data, seed) for seed in seeds]
        if any(run is None for run in runs):
            continue
        for place, declared in enumerate(first.declared):
            ours = np.stack([run[place] for run in reference])
            theirs = np.stack([run[place] for run in runs if run is not None])
            if not declared.is_stated or ours.shape != theirs.shape:
                continue
            silent = np.ptp(noisy[place], axis=0) == 0
            if np.any(np.ptp(theirs[:, silent], axis=0) > 0):
                shown = f"of declared value {place + 1}"
                check.verdicts.findings.append(
                    Finding(
                        "noise",
                        f"Which numbers {shown} have noise depends on a record.",
                        "Noise is added only where a count or a sum is not zero.",
                        "Add noise to every number, also to those of empty bins.",
                    )
                )
                return
            spread = [values - values.mean(0) for values in (ours, theirs)]
            norm = float(np.square(spread[0]).sum())
            if norm == 0:
                continue
            ratio = float((spread[0] * spread[1]).sum() / norm)
            residual = np.abs(spread[1] - ratio * spread[0]).max()
            if abs(ratio - 1) < 1e-6 or residual > 1e-6 * np.abs(spread[0]).max():
                continue
            by_n = len(data) != n
            source = "the number of records" if by_n else "a record"
            check.verdicts.findings.append(
                Finding(
                    "number of records" if by_n else "noise",
                    f"The noise of declared value {place + 1} is {ratio:.4g} times as large if "
                    + (
                        f"there are {len(data)} records instead of {n}."
                        if by_n
                        else "another record takes the place of one."
                    ),
                    f"The scale of the noise is computed from {source}: bounds, a range, a norm "
                    "or a count of the records.",
                    "Compute the scale of the noise from public constants.",
                    {"ratio": ratio},
                )
            )
            return


def _compare_total(
    check: Check, releases: Sequence[_Release], claim: float | None, delta: float
) -> None:
    """Compares the claim with what sensitivities and noise of all values imply together."""
    stated = [release for release in releases if len(release.sensitivities)]
    if claim is None:
        check.verdicts.notes.append(
            "the function claims no epsilon in all: watch.claim(epsilon) compares it with the sum"
        )
        return
    count = min((len(release.sensitivities) for release in stated), default=0)
    laplace = [release.epsilon is not None for release in stated]
    if not stated or any(len(r.sensitivities) != count for r in stated) or len(set(laplace)) > 1:
        reason = "the claim was not compared: the values have different kinds of noise"
        check.verdicts.cannot_test(reason, ("accountant",))
        return
    by_neighbour = np.stack([release.sensitivities for release in stated])
    if laplace[0]:
        implied = float(by_neighbour.sum(0).max())
    else:
        implied = float(
            GaussianMechanism(float(np.linalg.norm(by_neighbour, axis=0).max())).epsilon(delta)
        )
    check.verdicts.measured["implied epsilon"] = implied
    check.verdicts.tested.append("accountant")
    # The scales are estimates, so that a claim is only reported beyond their error.
    errors = [math.sqrt(1.6 / release.noisy.size) for release in stated]
    if implied > claim * (1.03 + _STANDARD_ERRORS * max(errors)):
        check.verdicts.findings.append(explain("claim", claim=claim, implied=implied, delta=delta))


def _compare_returned(
    check: Check, first: Trace, seed: int, neighbours: Sequence[TrainingSet]
) -> bool:
    """Reports returned numbers that depend on a record although all declared values are forced.

    What follows a release may depend on a record for some released values alone, such as a clamp to
    the largest record. So values far above and far below the usual ones are forced, too. A run may
    then release further values. These are forced on neighbours as well, since a record may change
    them.

    Returns:
        Whether there are such numbers.
    """
    differing: dict[str, float] = {}
    for by in (0, _FAR, -_FAR):
        for forced in [_shifted(first, by), _shifted(first, by, evenly=True)] if by else [first]:
            usual = check.runs.run(check.records, seed, like=forced, digests=False)
            if usual.error is None:
                break  # a function may need values in their order, as the edges of bins
        else:
            continue
        all_forced = replace(forced, further=usual.further)
        for data in neighbours:
            if len(data) != len(check.records) and check.relation != "add-remove":
                continue
            trace = check.runs.run(data, seed, like=all_forced, digests=False)
            if trace.error is None and trace.complete:
                for name, gap in differences(usual.released, trace.released).items():
                    differing[name] = max(differing.get(name, 0.0), gap)
    check.verdicts.tested.append("released numbers")
    if differing:
        check.verdicts.findings.append(released_outside(differing))
    return bool(differing)


def _strongest(releases: Sequence[_Release], pool: Sequence[PoolRecord]) -> PoolRecord | None:
    """The canary that changes a value most in units of its noise."""
    if not releases:
        return None
    sizes = releases[0].sensitivities[: len(pool)]
    return pool[int(np.argmax(sizes))] if len(sizes) else None

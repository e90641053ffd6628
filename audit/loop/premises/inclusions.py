"""Batches of many records from one run: whether the records that are used are drawn too often.

A function may draw its batches from a part of the records, for instance the training part of a
split, at a rate that was computed from all of them. The mean batch size is then as accounted, and
the records of the part are drawn too often. Single records show it, but each of them gives one bit
per step.

So several records of n copies of a quiet record are exchanged for different canaries at once. With
equal randomness, the released gradient of a step changes by the sum of u_j over the canaries j in
its batch, where u_j is the contribution of canary j minus that of the quiet record. The u_j follow
from runs on n copies of canary j, which change by k u_j with k records in the batch. If the u_j are
linearly independent, the sum determines which canaries are in the batch. No noise is involved.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.experiment import Experiment, replace_one
from audit.loop.premises.noise import TestResult
from audit.loop.premises.verdicts import FAMILY_ERROR
from audit.loop.runs.records import TrainingSet
from audit.numerics import FloatArray

if TYPE_CHECKING:
    from audit.loop.premises.canary_runs import CanaryRuns

_MAX_CANARIES = 16
# This many canaries are taken if they are independent at all, and more if they are to this share.
_SOME_CANARIES, _CLEARLY_INDEPENDENT = 8, 0.25
# Seeds that teach the contributions, and steps of a complete lesson.
_MAX_LESSONS = 6
# A canary is decoded if its contribution has this share outside of those of the others.
_INDEPENDENT = 0.02
# Decoded inclusions are whole numbers up to this error.
_TOLERANCE = 0.05
_TARGET_RATIO, _POWER = 1.2, 0.8
# About this number of tests share the error of a check.
_TESTS = 500
SHARE_OF_TRIES = 0.4
"""Half of the runs select the records that are used, and the others test these records."""

_MIN_RUNS, _MAX_RUNS, _RUNS_AT_ONCE = 8, 1000, 16


@dataclass(frozen=True)
class Inclusions:
    """Batches of several records.

    Attributes:
        included: [R, T, m], 1 where record j was in the batch, 0 where not, NaN where unknown.
        tries: number of known entries.
    """

    included: FloatArray

    @property
    def tries(self) -> int:
        return int(np.isfinite(self.included).sum())


def tries_to_see(ratio: float, rate: float) -> float:
    """Number of draws at which a rate `ratio` times too large is found with 80 % probability.

    Example:
        >>> round(tries_to_see(1.2, 0.3))
        2369
    """
    larger = min(ratio * rate, 1.0)
    # A normal approximation: it plans the number of draws, and no verdict depends on it.
    level = stats.norm.isf(FAMILY_ERROR / _TESTS)
    spread = level * math.sqrt(rate * (1 - rate))
    spread += stats.norm.ppf(_POWER) * math.sqrt(larger * (1 - larger))
    return float((spread / (larger - rate)) ** 2)


def detectable_ratio(tries: float, rate: float) -> float:
    """The smallest ratio of rates that a number of draws show with 80 % probability.

    Example:
        >>> 1.19 < detectable_ratio(2369, 0.3) < 1.21
        True
    """
    low, high = 1.0, 1.0 / rate
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tries_to_see(middle, rate) > tries else (low, middle)
    return high


def inclusions_of_many(
    experiment: Experiment,
    canaries: "CanaryRuns",
    quiet: TrainingSet,
    of_quiet: Sequence[FloatArray],
    seed_of: Callable[[int], int],
    counts: FloatArray,
    rate: float,
) -> Inclusions | None:
    """Which of several canaries were in each batch; None where this cannot be decoded.

    Args:
        experiment: the experiment.
        canaries: runs with each canary.
        quiet: n copies of a quiet record.
        of_quiet: [T, D] each, the released gradients of runs on these copies.
        seed_of: the seed of each of these runs, and of further ones.
        counts: [R, T], the batch sizes of these runs; NaN where unknown.
        rate: the accounted sampling rate.
    """
    chosen = _different(canaries, experiment.steps)
    places = np.unique(np.linspace(0, len(quiet) - 1, len(chosen)).round().astype(int))
    chosen = chosen[: len(places)]
    if len(chosen) < 2:
        return None
    contributions = _contributions(experiment, chosen, len(quiet), of_quiet, seed_of, counts)
    if contributions is None:
        return None
    mixed = quiet
    for canary, place in zip(chosen, places, strict=True):
        mixed = replace_one(mixed, canary, int(place))
    decoders = [_Decoder.of(contributions[t]) for t in range(experiment.steps)]
    needed = tries_to_see(_TARGET_RATIO, rate) / SHARE_OF_TRIES
    decoded_places = sum(len(decoder.places) for decoder in decoders)
    if decoded_places == 0:
        return None
    runs = min(max(math.ceil(needed / decoded_places), _MIN_RUNS), _MAX_RUNS)
    rows: list[FloatArray] = []
    for number in range(runs):
        if number % _RUNS_AT_ONCE == 0 and number >= _MIN_RUNS and not experiment.work_left(0.7):
            break
        seed = seed_of(number)
        without = (
            of_quiet[number] if number < len(of_quiet) else _gradients(experiment, quiet, seed)
        )
        with_canaries = _gradients(experiment, mixed, seed)
        if without is None or with_canaries is None:
            return None
        row = np.full((experiment.steps, len(chosen)), np.nan)
        for t, decoder in enumerate(decoders):
            decoded = decoder(with_canaries[t] - without[t], canaries.contributions.rounding[t])
            if decoded is None:
                return None  # what records contribute is not a sum of what each adds
            row[t, decoder.places] = decoded
        rows.append(row)
    return Inclusions(np.stack(rows))


def judge_used_records(inclusions: Inclusions, rate: float) -> Iterator[TestResult]:
    """Tests whether records that are used at all are drawn more often than accounted.

    One half of the data selects the records, and the other half tests them. Under independent draws
    at most at the accounted rate, both halves are independent, so that the hits of the second
    half are at most binomial whatever was selected. The halves are runs, for a part that is the
    same in all runs, or steps, for a part that each run draws.

    Args:
        inclusions: the batches.
        rate: the accounted sampling rate.
    """
    included = inclusions.included
    runs, steps, _ = included.shape
    halves = []
    if runs >= 2:
        used = np.nansum(included[: runs // 2], axis=(0, 1)) > 0
        halves.append(included[runs // 2 :][:, :, used])
    if steps >= 2:
        chosen = np.nansum(included[:, : steps // 2], axis=1) > 0
        later = np.where(chosen[:, None, :], included[:, steps // 2 :], np.nan)
        halves.append(later)
    for tested in [included, *halves]:
        tries, hits = int(np.isfinite(tested).sum()), int(np.nansum(tested))
        if not tries:
            continue
        numbers: dict[str, float | int | str] = {
            "hits": hits,
            "tries": tries,
            "share in %": 100 * hits / tries,
            "rate in %": 100 * rate,
            "ratio": hits / tries / rate,
        }
        p_value = float(stats.binom.sf(hits - 1, tries, rate))
        yield TestResult(p_value, "used records", numbers, hits > 1.02 * tries * rate)


def _different(canaries: "CanaryRuns", steps: int) -> list[PoolRecord]:
    """Canaries whose contributions are linearly independent, the first of them of the best pair."""
    gradients = np.stack([trace.gradients[:steps].ravel() for trace in canaries.traces])
    start = next(i for i, canary in enumerate(canaries.pool) if canary is canaries.pair[0])
    chosen = [start]
    residuals = gradients - gradients[start]
    longest = float(np.linalg.norm(residuals, axis=1).max())
    while len(chosen) < _MAX_CANARIES:
        norms = np.linalg.norm(residuals, axis=1)
        best = int(np.argmax(norms))
        if norms[best] <= 1e-6 * np.linalg.norm(gradients[start]):
            break
        if len(chosen) >= _SOME_CANARIES and norms[best] < _CLEARLY_INDEPENDENT * longest:
            break
        chosen.append(best)
        direction = residuals[best] / norms[best]
        residuals = residuals - np.outer(residuals @ direction, direction)
    return [canaries.pool[i] for i in chosen]


def _contributions(
    experiment: Experiment,
    chosen: Sequence[PoolRecord],
    n: int,
    of_quiet: Sequence[FloatArray],
    seed_of: Callable[[int], int],
    counts: FloatArray,
) -> FloatArray | None:
    """[T, m, D], what each canary adds in the place of the quiet record; NaN if unknown."""
    shape = experiment.steps, len(chosen), of_quiet[0].shape[1]
    contribution = np.full(shape, np.nan)
    resolved = np.zeros(experiment.steps, np.bool_)
    lessons = 0
    for number in np.argsort(-np.nansum(counts > 0, axis=1), kind="stable")[:_MAX_LESSONS]:
        new = ~resolved & np.isfinite(counts[number]) & (counts[number] > 0)
        if not new.any():
            continue
        for index, canary in enumerate(chosen):
            features = np.repeat(np.asarray(canary.features)[None], n, axis=0)
            labels = np.full(n, canary.label, dtype=experiment.records.labels.dtype)
            data = TrainingSet(features.astype(experiment.records.features.dtype), labels)
            gradients = _gradients(experiment, data, seed_of(int(number)))
            if gradients is None:
                return None
            change = gradients[new] - of_quiet[number][new]
            contribution[new, index] = change / counts[number][new][:, None]
        resolved |= new
        lessons += 1
        if resolved.all():
            break
    return contribution if lessons else None


def _gradients(experiment: Experiment, data: TrainingSet, seed: int) -> FloatArray | None:
    trace = experiment.coupled(data, seed, digests=False)
    if experiment.ended_early(trace):
        return None
    gradients: FloatArray = trace.gradients[: experiment.steps]
    return gradients if np.isfinite(gradients).all() else None


@dataclass(frozen=True)
class _Decoder:
    """Finds which contributions add up to a change of a step.

    Attributes:
        places: the canaries that can be decoded at this step.
        columns: [D, len(places)], their contributions.
        inverse: [len(places), D].
    """

    places: NDArray[np.int64]
    columns: FloatArray
    inverse: FloatArray

    @staticmethod
    def of(contributions: FloatArray) -> "_Decoder":
        """The decoder of one step, given [m, D] contributions."""
        columns = contributions.T
        nothing = np.zeros(0, np.int64)
        empty = _Decoder(nothing, np.zeros((len(columns), 0)), np.zeros((0, len(columns))))
        if not np.isfinite(columns).all():
            return empty
        _, triangle, order = linalg.qr(columns, mode="economic", pivoting=True)
        sizes = np.abs(np.diag(triangle))
        largest = max(float(sizes.max(initial=0.0)), 1e-300)
        usable = int(np.sum(sizes > _INDEPENDENT * largest))
        # Every canary that changes the step must be decoded, or the sum is not explained.
        unused = np.linalg.norm(columns, axis=0) <= 1e-9 * largest
        if usable + int(unused.sum()) < columns.shape[1] or usable == 0:
            return empty
        places = np.sort(order[:usable]).astype(np.int64)
        inverse: FloatArray = np.linalg.pinv(columns[:, places]).astype(np.float64)
        return _Decoder(places, columns[:, places], inverse)

    def __call__(self, change: FloatArray, rounding: float) -> FloatArray | None:
        """[len(places)], 0 or 1 for each canary; None if the change is no such sum."""
        weights = self.inverse @ change
        multiples = np.round(weights)
        if not len(multiples):
            return multiples
        smallest = float(np.linalg.norm(self.columns, axis=0).min())
        off = float(np.linalg.norm(change - self.columns @ multiples))
        bits = np.all((multiples == 0) | (multiples == 1))
        return multiples if bits and off <= _TOLERANCE * smallest + 8 * rounding else None

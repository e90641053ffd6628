"""Whether two released numbers have the same noise, so that their difference has none.

If a number is a multiple of another one for all seeds, up to a constant, then this multiple
subtracts all noise from it. If one record changes the difference, it is released without noise.
Numbers that are computed from a released one differ from it in the same way on all data sets, and
reveal nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.loop.premises.noise import TestResult
from audit.numerics import FloatArray

_MIN_RUNS, _MAX_RUNS = 8, 64
# Share of the variance of one number that the other leaves, up to which their noise is the same.
_SAME = 1e-4
# Numbers that are compared at once, and pairs that are compared in all.
_CHUNK, _MAX_PAIRS = 4096, 500_000_000
# Relative difference of two changes that is more than rounding.
_MIN_DIFFERENCE = 1e-3
# Spread of a number, relative to its size, that is rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Numbers:
    """Released numbers of runs with other seeds, and what an exchanged record changes in them.

    Attributes:
        values: [R, d], on one data set.
        changes: [P, d], changes by an exchanged record in coupled runs; NaN where unknown.
        name: a name for each of the d numbers.
        counts: [R], numbers proportional to the batch sizes, or None.
    """

    values: FloatArray
    changes: FloatArray
    name: Callable[[int], str]
    counts: FloatArray | None = None


class _Pair(NamedTuple):
    """Two numbers with the same noise: what the second leaves of the first, and the p-value."""

    p_value: float
    correlation: float
    name: str
    other: str


def shared_noise(declared: Numbers, others: Iterable[Numbers]) -> list[TestResult]:
    """Tests whether a declared number has the same noise as another released number.

    Given one of two numbers with independent Gaussian noise, 1 minus the squared correlation over m
    degrees of freedom has a beta distribution of parameters (m - 1) / 2 and 1/2. The smallest
    p-value is multiplied by the number of pairs.

    Args:
        declared: the declared numbers, which are also compared with each other.
        others: the coordinates of each step.
    """
    pairs: list[_Pair] = []
    count = 0
    for numbers in (declared, *others):
        width = declared.values.shape[1] * numbers.values.shape[1]
        runs = min(len(declared.values), len(numbers.values), _MAX_RUNS)
        if runs < _MIN_RUNS or not width or count + width > _MAX_PAIRS:
            continue
        count += width
        pairs += _pairs(declared, numbers, runs)
    if not count:
        return []
    if not pairs:
        return [TestResult(1.0, "same noise", {}, False)]
    worst = min(pairs)
    numbers_of_pair: dict[str, float | int | str] = {
        "correlation": worst.correlation,
        "first": worst.name,
        "second": worst.other,
    }
    return [TestResult(min(1.0, count * worst.p_value), "same noise", numbers_of_pair)]


def _pairs(declared: Numbers, others: Numbers, runs: int) -> list[_Pair]:
    """The pairs of numbers whose noise is the same, and whose difference a record changes."""
    columns = [np.ones(runs)]
    if others.counts is not None and np.ptp(others.counts[:runs]) > 0:
        columns.append(others.counts[:runs])
    basis, _ = np.linalg.qr(np.stack(columns, 1))
    degrees = runs - basis.shape[1]
    same_noise: list[_Pair] = []
    ours, our_scales = _unit(declared.values[:runs], basis)
    for start in range(0, others.values.shape[1], _CHUNK):
        chunk = slice(start, start + _CHUNK)
        theirs, their_scales = _unit(others.values[:runs, chunk], basis)
        correlations = ours.T @ theirs
        for i, j in zip(*np.nonzero(np.square(correlations) > 1 - _SAME), strict=True):
            if others is declared and start + j <= i:
                continue
            sign = float(np.sign(correlations[i, j]))
            # 1 minus the correlation is half of the squared distance, without lost digits.
            left_over = float(np.square(ours[:, i] - sign * theirs[:, j]).sum())
            factor = sign * our_scales[i] / their_scales[j]
            if _differ(declared.changes[:, i], factor * others.changes[:, start + j]):
                p_value = float(stats.beta.cdf(min(left_over, 1.0), (degrees - 1) / 2, 0.5))
                names = declared.name(int(i)), others.name(start + int(j))
                same_noise.append(_Pair(p_value, float(correlations[i, j]), *names))
    return same_noise


def _unit(values: FloatArray, basis: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[R, d], residuals of length 1, or 0 for numbers without noise; and [d], their lengths."""
    residuals = values - basis @ (basis.T @ values)
    lengths = np.linalg.norm(residuals, axis=0)
    is_noisy = lengths > _ROUNDING * np.abs(values).max(axis=0, initial=0.0)
    lengths = np.where(is_noisy, lengths, 1.0)
    return np.where(is_noisy, residuals, 0.0) / lengths, lengths


def _differ(changes: FloatArray, others: FloatArray) -> bool:
    """Whether two numbers change by different amounts, beyond rounding."""
    count = min(len(changes), len(others))
    ours, theirs = changes[:count], others[:count]
    is_known = np.isfinite(ours) & np.isfinite(theirs)
    size = np.maximum(np.abs(ours), np.abs(theirs))[is_known].max(initial=0.0)
    gap = np.abs(ours - theirs)[is_known].max(initial=0.0)
    return bool(gap > _MIN_DIFFERENCE * size)


def declared_numbers(values: Sequence[FloatArray], changes: Sequence[FloatArray]) -> Numbers:
    """The numbers of all declared values.

    Args:
        values: [R, d] of each value, of runs with other seeds.
        changes: [P, d] of each value.
    """
    owners = [place + 1 for place, columns in enumerate(values) for _ in range(columns.shape[1])]
    return Numbers(
        np.concatenate(values, axis=1),
        np.concatenate(changes, axis=1),
        lambda index: f"declared value {owners[index]}",
    )


def numbers_of_steps(
    names: Sequence[str],
    slices: Sequence[slice],
    of_equal: FloatArray,
    mixed: FloatArray,
    of_pool: FloatArray,
    counts: FloatArray | None,
    live: NDArray[np.bool_],
    first_step: int,
) -> Iterable[Numbers]:
    """The coordinates of each step of runs on equal records.

    Args:
        names: names of the tensors.
        slices: their coordinates.
        of_equal: [R, T, D], released gradients of runs with other seeds.
        mixed: [R', T, D], those of the first seeds after a record was exchanged.
        of_pool: [P, T, D], those of runs with one seed that differ in one record.
        counts: [R, T], numbers proportional to the batch sizes, or None.
        live: [T, D], coordinates that are not public.
        first_step: number of steps before the first of them.
    """
    for t in range(of_equal.shape[1]):
        columns = np.flatnonzero(live[t])
        values = of_equal[:, t, columns]
        changes = np.concatenate(
            [
                mixed[:, t, columns] - values[: len(mixed)],
                of_pool[1:, t, columns] - of_pool[:1, t, columns],
            ]
        )

        def name(index: int, step: int = first_step + t + 1, columns: Any = columns) -> str:
            tensors = zip(names, slices, strict=True)
            tensor = next(tensor for tensor, of in tensors if columns[index] < of.stop)
            return f"{tensor}, step {step}"

        yield Numbers(values, changes, name, None if counts is None else counts[:, t])

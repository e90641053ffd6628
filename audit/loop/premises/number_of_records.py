"""Whether divisor, noise, sampling rate or number of steps depend on the number of records."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from audit.arrays import FloatArray
from audit.loop.explanations import allowed, depends_on_n
from audit.loop.finding_kinds import OTHERS_CHANGE
from audit.loop.premises.canary_runs import CanaryRuns
from audit.loop.premises.equal_records import EqualRecords
from audit.loop.premises.experiment import Experiment, copies, replace_one
from audit.loop.runs.coupled_runs import Trace

_MAX_RUNS = 16
# Numbers of records that are tried for an attack that keeps a public number.
_MAX_SIZES = 16


@dataclass(frozen=True)
class PublicSize:
    """How an attack compares n and n - 1 records where the number of records is public.

    Attributes:
        records: a number of records for which nothing else depends on one record more or less.
        expected_batch_size: a divisor to be set in all runs; None if none has to be set.
    """

    records: int
    expected_batch_size: float | None = None


def compare_numbers_of_records(
    experiment: Experiment, canaries: CanaryRuns, equal: EqualRecords | None, size_reported: bool
) -> None:
    """Tests whether normaliser, noise, rate or number of steps depend on the number of records.

    Args:
        experiment: the experiment, which collects what is found.
        canaries: runs with each canary.
        equal: runs on equal records; None if there are none.
        size_reported: whether the noise is reported as too small.
    """
    n = len(experiment.records)
    if n < 4 or equal is None or equal.varying:
        reason = "the noise was not measured, or the contribution of one record varies"
        few = "there are fewer than four records"
        experiment.untested["number of records"] = few if n < 4 else reason
        return

    @cache
    def measured(m: int) -> "_AtSize | None":
        return _at_size(experiment, canaries, equal, m)

    reference, less = measured(n), measured(n - 1)
    if reference is None or less is None:
        experiment.untested["number of records"] = "the function raised an error for fewer records"
        return
    experiment.tested.append("number of records")
    high, low, other = n, n - 1, less
    if not reference.differs(other):
        low = max(n // 2, 2)
        half = measured(low)
        if half is None or not reference.differs(half):
            return
        other = half
    if size_reported and not reference.states_otherwise(other):
        return  # a contribution that is too large may change with n, too
    # Bisects for two neighbouring numbers of records that differ.
    while high - low > 1 and experiment.work_left():
        middle = (high + low) // 2
        between = measured(middle)
        if between is None:
            break
        low, high = (middle, high) if reference.differs(between) else (low, middle)
    upper, lower = measured(high), measured(low)
    if upper is None or lower is None:
        return
    if not upper.differs(lower):  # many small differences
        high, upper = n, reference
    finding = depends_on_n(high, low, upper.numbers(), lower.numbers(), lower.ratio(upper))
    if not upper.states_otherwise(lower) and equal.others_change():
        finding = replace(finding, cause=f"{OTHERS_CHANGE}, by a statistic. Or: {finding.cause}")
    experiment.measured["depends on n"] = 1.0
    if experiment.relation == "add-remove":
        experiment.findings.append(finding)
    else:
        experiment.notes.append(allowed(finding, experiment.relation))
        experiment.public_size = partial(_public_size, experiment, measured)


def _public_size(
    experiment: Experiment, measured: Callable[[int], "_AtSize | None"]
) -> PublicSize | None:
    """Records of which one more or less changes nothing but the batches; None if there are none.

    Opacus rounds its divisor and its number of batches, so that they are equal for some n and
    n - 1. Otherwise the divisor of its optimizer can be set.
    """
    n = len(experiment.records)
    for size in range(n, max(n - _MAX_SIZES, 3), -1):
        more, fewer = measured(size), measured(size - 1)
        if more is not None and fewer is not None and not more.differs(fewer):
            return PublicSize(size)
    more, fewer = measured(n), measured(n - 1)
    if more is None or fewer is None or not experiment.base.opacus:
        return None
    if more.steps != fewer.steps or more.parameters != fewer.parameters:
        return None
    if more.divisor is None or fewer.divisor is None:
        return None
    ratio = fewer.ratio(more)
    if ratio is None or abs(ratio * fewer.divisor / more.divisor - 1) > 1e-3:
        return None
    return PublicSize(n, more.expected_batch_size)


@dataclass(frozen=True)
class _AtSize:
    """Quantities that may depend on the number of records, for one number of records.

    Attributes:
        units: [T], length of one record's contribution; NaN where the record was in no batch.
        rounding: [T], rounding error of these lengths.
        steps: number of steps; None if the runs were stopped early.
        parameters: noise multipliers and sampling rates of the accountant; None without one.
        divisor: the optimizer's divisor of the noisy sum; None if it is unknown.
        expected_batch_size: the part of the divisor that an optimizer of Opacus is given.
    """

    units: FloatArray
    rounding: FloatArray
    steps: int | None
    parameters: set[tuple[float, float]] | None
    divisor: float | None
    expected_batch_size: float | None = None

    def ratio(self, other: "_AtSize") -> float | None:
        """How many times larger a record's contribution is than at the other size."""
        steps: int = min(len(self.units), len(other.units))
        both = np.isfinite(self.units[:steps]) & np.isfinite(other.units[:steps])
        if not both.any():
            return None
        mine, theirs = self.units[:steps][both], other.units[:steps][both]
        slack = 4 * self.rounding[:steps][both] / theirs
        sure = slack < 0.2 * np.abs(mine / theirs - 1)
        return float(np.median(mine[sure] / theirs[sure])) if sure.any() else 1.0

    def differs(self, other: "_AtSize") -> bool:
        """Whether anything is different at the other size."""
        ratio = self.ratio(other)
        if ratio is not None and abs(ratio - 1) > 1e-4:
            return True
        divisor = self.divisor is not None and self.divisor != other.divisor
        steps = None not in (self.steps, other.steps) and self.steps != other.steps
        return divisor or steps or self.parameters != other.parameters

    def states_otherwise(self, other: "_AtSize") -> bool:
        """Whether divisor, accountant or steps differ."""
        stated = self.divisor != other.divisor or self.parameters != other.parameters
        return stated or self.steps != other.steps

    def numbers(self) -> dict[str, Any]:
        """The numbers of a message."""
        sigmas, rates = (sorted({p[i] for p in self.parameters or ()}) for i in (0, 1))
        return {"divisor": self.divisor, "steps": self.steps, "rates": rates, "sigmas": sigmas}


def _at_size(
    experiment: Experiment, canaries: CanaryRuns, equal: EqualRecords, m: int
) -> _AtSize | None:
    """Measures these quantities with m records; None if the function raises an error."""
    same = copies(experiment.records, equal.quiet, m)
    # The last of m records may belong to another of the fixed batches, whose steps have other
    # weights in the encoder of correlated noise. The first record stays in its batch.
    canary = canaries.pair[0]
    mixed = (
        replace_one(same, canary, 0) if experiment.base.rows else experiment.exchange(same, canary)
    )
    units = np.full(experiment.steps, np.nan)
    rounding = canaries.found.rounding
    complete: Trace | None = None
    for i in range(_MAX_RUNS):
        seed = experiment.seed_of(1000 + i)
        stop = experiment.stop_after if i == 0 else experiment.steps
        traces = [
            experiment.runs.run(data, seed, like=experiment.base, stop_after=stop)
            for data in (same, mixed)
        ]
        if any(trace.error or not trace.steps for trace in traces):
            return None
        complete = complete or traces[0]
        if equal.random_gradients:
            break  # contributions differ between runs anyway
        steps = min(len(traces[0].steps), len(traces[1].steps), experiment.steps)
        if experiment.comparable is not None:
            steps = min(steps, experiment.comparable)
        gap = traces[1].gradients[:steps] - traces[0].gradients[:steps]
        own = np.linalg.norm(gap, axis=1)
        first_seen = np.isnan(units[:steps]) & (own > rounding[:steps])
        units[:steps] = np.where(first_seen, own, units[:steps])
        if np.isfinite(units).sum() >= min(3, experiment.steps) or not experiment.work_left():
            break
    assert complete is not None
    parameters = {(s, round(q, 12)) for s, q, _ in complete.history or ()} or None
    return _AtSize(
        units,
        rounding,
        len(complete.steps) if complete.complete else None,
        parameters,
        complete.steps[0].divisor,
        complete.expected_batch_size,
    )

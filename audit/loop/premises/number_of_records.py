"""Whether divisor, noise, sampling rate or number of steps depend on the number of records."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from audit.loop.finding_kinds import OTHERS_CHANGE
from audit.loop.findings import Finding
from audit.loop.premises.canary_runs import CanaryRuns
from audit.loop.premises.equal_records import EqualRecords
from audit.loop.premises.experiment import Experiment, copies, replace_one
from audit.loop.premises.verdicts import allowed, depends_on_n
from audit.loop.runs.coupled_runs import Trace
from audit.numerics import FloatArray

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
) -> Callable[[], PublicSize | None] | None:
    """Tests whether normaliser, noise, rate or number of steps depend on the number of records.

    Args:
        experiment: the experiment, which collects what is found.
        canaries: runs with each canary.
        equal: runs on equal records; None if there are none.
        size_reported: whether the noise is reported as too small.

    Returns:
        A function that finds how an attack keeps a public number of records; None if nothing
        depends on that number, or if it is not public.
    """
    verdicts, n = experiment.verdicts, len(experiment.records)
    if n < 4 or equal is None or equal.varying:
        reason = "the noise was not measured, or the contribution of one record varies"
        few = "there are fewer than four records"
        verdicts.untested["number of records"] = few if n < 4 else reason
        return None

    @cache
    def measured(m: int) -> "_AtSize | None":
        return _at_size(experiment, canaries, equal, m)

    if measured(n) is None or measured(n - 1) is None:
        verdicts.untested["number of records"] = "the function raised an error for fewer records"
        return None
    verdicts.tested.append("number of records")
    sizes = _differing_sizes(experiment, measured, size_reported)
    if sizes is None:
        return None
    finding = _finding(sizes, n, measured, equal)
    verdicts.measured["depends on n"] = 1.0
    if experiment.relation == "add-remove":
        verdicts.findings.append(finding)
        return None
    verdicts.notes.append(allowed(finding, experiment.relation))
    return partial(_public_size, experiment, measured)


def _differing_sizes(
    experiment: Experiment, measured: Callable[[int], "_AtSize | None"], size_reported: bool
) -> tuple[int, int] | None:
    """Two numbers of records that differ, neighbouring if there are such; None if none differ."""
    n = len(experiment.records)
    reference = _known(measured(n))
    low = n - 1
    if not reference.differs(_known(measured(low))):
        low = max(n // 2, 2)
        half = measured(low)
        if half is None or not reference.differs(half):
            return None
    if size_reported and not reference.states_otherwise(_known(measured(low))):
        return None  # a contribution that is too large may change with n, too
    high = n
    # Bisects for two neighbouring numbers of records that differ.
    while high - low > 1 and experiment.work_left():
        middle = (high + low) // 2
        between = measured(middle)
        if between is None:
            break
        low, high = (middle, high) if reference.differs(between) else (low, middle)
    return high, low


def _finding(
    sizes: tuple[int, int],
    n: int,
    measured: Callable[[int], "_AtSize | None"],
    equal: EqualRecords,
) -> Finding:
    high, low = sizes
    upper, lower = _known(measured(high)), _known(measured(low))
    if not upper.differs(lower):  # many small differences
        high, upper = n, _known(measured(n))
    finding = depends_on_n(high, low, upper.numbers(), lower.numbers(), lower.ratio(upper))
    if not upper.states_otherwise(lower) and equal.others().seen:
        return replace(finding, cause=f"{OTHERS_CHANGE}, by a statistic. Or: {finding.cause}")
    return finding


def _known(at_size: "_AtSize | None") -> "_AtSize":
    assert at_size is not None, "measured before"
    return at_size


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

    def ratio(self, compared: "_AtSize") -> float | None:
        """How many times larger a record's contribution is than at the other size."""
        steps: int = min(len(self.units), len(compared.units))
        both_seen = np.isfinite(self.units[:steps]) & np.isfinite(compared.units[:steps])
        if not both_seen.any():
            return None
        units, compared_units = self.units[:steps][both_seen], compared.units[:steps][both_seen]
        slack = 4 * self.rounding[:steps][both_seen] / compared_units
        sure = slack < 0.2 * np.abs(units / compared_units - 1)
        return float(np.median(units[sure] / compared_units[sure])) if sure.any() else 1.0

    def differs(self, compared: "_AtSize") -> bool:
        """Whether anything is different at the other size."""
        ratio = self.ratio(compared)
        if ratio is not None and abs(ratio - 1) > 1e-4:
            return True
        divisor = self.divisor is not None and self.divisor != compared.divisor
        steps = None not in (self.steps, compared.steps) and self.steps != compared.steps
        return divisor or steps or self.parameters != compared.parameters

    def states_otherwise(self, compared: "_AtSize") -> bool:
        """Whether divisor, accountant or steps differ."""
        stated = self.divisor != compared.divisor or self.parameters != compared.parameters
        return stated or self.steps != compared.steps

    def numbers(self) -> dict[str, Any]:
        """The numbers of a message."""
        sigmas, rates = (sorted({p[i] for p in self.parameters or ()}) for i in (0, 1))
        return {"divisor": self.divisor, "steps": self.steps, "rates": rates, "sigmas": sigmas}


def _at_size(
    experiment: Experiment, canaries: CanaryRuns, equal: EqualRecords, m: int
) -> _AtSize | None:
    """Measures these quantities with m records; None if the function raises an error."""
    equal_records = copies(experiment.records, equal.quiet, m)
    # The last of m records may belong to another of the fixed batches, whose steps have other
    # weights in the encoder of correlated noise. The first record stays in its batch.
    canary = canaries.pair[0]
    mixed = (
        replace_one(equal_records, canary, 0)
        if experiment.base.rows
        else experiment.exchange(equal_records, canary)
    )
    units = np.full(experiment.steps, np.nan)
    rounding = canaries.contributions.rounding
    complete: Trace | None = None
    for i in range(_MAX_RUNS):
        seed = experiment.seed_of(1000 + i)
        stop = experiment.stop_after if i == 0 else experiment.steps
        traces = [
            experiment.runs.run(data, seed, like=experiment.base, stop_after=stop)
            for data in (equal_records, mixed)
        ]
        if any(trace.error or not trace.steps for trace in traces):
            return None
        complete = complete or traces[0]
        if equal.random_gradients:
            break  # contributions differ between runs anyway
        steps = min(len(traces[0].steps), len(traces[1].steps), experiment.steps)
        if canaries.comparable is not None:
            steps = min(steps, canaries.comparable)
        gap = traces[1].gradients[:steps] - traces[0].gradients[:steps]
        change = np.linalg.norm(gap, axis=1)
        first_seen = np.isnan(units[:steps]) & (change > rounding[:steps])
        units[:steps] = np.where(first_seen, change, units[:steps])
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

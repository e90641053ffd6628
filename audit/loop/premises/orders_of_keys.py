"""Whether the order of the keys of a declared dictionary shows something without noise.

A dictionary keeps the order in which its keys were added. If this is the order of the exact counts,
a release reveals it, although each count has noise. If it is that of the noisy values, it reveals
nothing, and it differs between seeds where one record can change it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.experiment import Check, Experiment, copies
from audit.loop.premises.verdicts import FAMILY_ERROR, explain, listed
from audit.loop.runs.coupled_runs import DeclaredNoise, Trace
from audit.loop.runs.records import TrainingSet

_SEEDS = 8
_MAX_LABELS = 4
# Noise without a stated size is taken for that of this epsilon.
_MAX_SEEDS, _EPSILON_IF_NOT_STATED = 2000, 1.0
_Keys = tuple[str, ...]


class _Order(NamedTuple):
    """The keys of a declared value, in an order that is the same for all seeds.

    Attributes:
        keys: the keys.
        sorted_by: the ways in which all seeds have them sorted by their values, which show the
            same.
    """

    keys: _Keys
    sorted_by: frozenset[int]


def compare_orders(check: Check | Experiment, first: Trace) -> None:
    """Reports a declared dictionary whose order of keys depends on a record and has no noise.

    The records are replaced by copies of another record, one after another. If the order changes
    on the way, it changes between two neighbouring data sets. It has no noise if it is the same
    for further seeds on each of the two, whose number is such that the stated noise excludes it.

    Args:
        check: the check, which collects the finding.
        first: a run whose released values are forced.
    """
    places = [place for place, value in enumerate(first.declared) if len(value.keys) > 1]
    if not places or len(check.records) < 2:
        return
    for record in one_of_each_label(check):
        for place in places:
            pair = _neighbouring_orders(check, first, record, place)
            if pair is not None:
                order, other = (listed(keys) for keys in pair)
                seeds = _seeds_needed(first, place)
                finding = explain(
                    "order of keys", value=place + 1, seeds=seeds, order=order, other=other
                )
                check.verdicts.findings.append(finding)
                return


def one_of_each_label(check: Check) -> list[PoolRecord]:
    """A record of each of a few labels, of the data if possible."""
    by_label = {float(record.label): record for record in reversed(check.pool)}
    return list(by_label.values())[:_MAX_LABELS]


def _neighbouring_orders(
    check: Check | Experiment, first: Trace, record: PoolRecord, place: int
) -> tuple[_Keys, _Keys] | None:
    """Two orders of the same keys, each without noise, on data sets that differ in one record."""
    low, high = 0, len(check.records)
    order, other = (_order(check, first, record, count, place) for count in (low, high))
    while order and other and order.keys != other.keys and high - low > 1:
        middle = (low + high) // 2
        between = _order(check, first, record, middle, place)
        if between and between.keys == order.keys:
            low, order = middle, between
        else:
            high, other = middle, between
    if not order or not other or order.keys == other.keys or set(order.keys) != set(other.keys):
        return None
    seeds = _seeds_needed(first, place)
    if order.sorted_by & other.sorted_by or seeds > _MAX_SEEDS:
        return None
    # Seeds that did not choose the two data sets.
    numbers = range(_SEEDS, _SEEDS + seeds)
    order, other = (_order(check, first, record, count, place, numbers) for count in (low, high))
    if not order or not other or order.keys == other.keys:
        return None
    return None if order.sorted_by & other.sorted_by else (order.keys, other.keys)


def _seeds_needed(first: Trace, place: int) -> int:
    """Number of seeds for which two orders are the same by chance with probability FAMILY_ERROR.

    If the order has probability p on one data set, and another order probability q on the other,
    the noise limits p q. An exchange of records changes the value by twice the sensitivity. For
    epsilon-differential privacy, p <= 1 - exp(-2 epsilon) q, so that p q <= 1 - exp(-2 epsilon) if
    2 epsilon >= log 2. For Gaussian noise of multiplier m, p q <= Phi(1 / m)^2.
    """
    declared = first.declared[place]
    if declared.noise_multiplier is not None:
        both = 2 * float(stats.norm.logcdf(1 / declared.noise_multiplier))
    else:
        epsilon = max(2 * (declared.epsilon or _EPSILON_IF_NOT_STATED), math.log(2))
        both = math.log1p(-math.exp(-epsilon))
    # Bonferroni's inequality over the declared values and the records that are copied.
    tests = len(first.declared) * _MAX_LABELS
    return math.ceil(math.log(tests / FAMILY_ERROR) / max(-both, 1e-9))


def _order(
    check: Check | Experiment,
    first: Trace,
    record: PoolRecord,
    count: int,
    place: int,
    numbers: Iterable[int] = range(_SEEDS),
) -> _Order | None:
    """The order of keys with copies of a record in the first places; None if seeds differ."""
    records = check.records
    copied = copies(records, record, count)
    data = TrainingSet(
        np.concatenate([copied.features, records.features[count:]]),
        np.concatenate([copied.labels, records.labels[count:]]),
    )
    values: list[DeclaredNoise] = []
    for number in numbers:
        if not check.work_left():
            return None
        declared = _declared(check, first, data, check.seed_of(20_000 + number))
        if len(declared) <= place or (values and declared[place].keys != values[0].keys):
            return None
        values.append(declared[place])
    return _Order(values[0].keys, frozenset.intersection(*map(_sorted_by, values)))


def _declared(
    check: Check | Experiment, first: Trace, data: TrainingSet, seed: int
) -> Sequence[DeclaredNoise]:
    if isinstance(check, Experiment):
        return check.coupled(data, seed, digests=False).declared
    return check.runs.run(data, seed, like=first, digests=False).declared


def _sorted_by(declared: DeclaredNoise) -> frozenset[int]:
    """The ways in which keys are sorted: by values up and down, and by their sizes up and down."""
    if declared.values is None or len(declared.values) != len(declared.keys):
        return frozenset()
    # The values are those of the sorted keys.
    values = declared.values[np.argsort(np.argsort(declared.keys))]
    ways = (values, -values, np.abs(values), -np.abs(values))
    return frozenset(way for way, numbers in enumerate(ways) if np.all(np.diff(numbers) >= 0))

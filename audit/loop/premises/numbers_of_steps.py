"""Whether a record changes how many steps are taken, whether they have noise, or who is used."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from audit.loop.explanations import explain
from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.experiment import Experiment, replace_one
from audit.loop.premises.noise import TestResult
from audit.loop.premises.verdicts import two_sample_p_value
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.records import TrainingSet

# Records, and seeds of each, whose steps may have lost their noise.
_MAX_LOST, _SEEDS_OF_LOST_NOISE = 4, 4
# Records whose numbers of steps are compared over seeds, numbers of these seeds, and p-values at
# which no more are needed, or at which a difference is not pursued further.
_MAX_SUSPECTS, _SEEDS_OF_STEPS, _CERTAIN, _UNLIKELY = 3, (32, 96, 288), 1e-10, 0.01
# Number of records with which most Poisson samples are empty.
_FEW_RECORDS = 3
# Factors by which a record of the data is moved away from the others, and number of records that
# are left out whose use is tested.
_FACTORS_OF_DISTANCE, _MAX_LEFT_OUT = (1.5, 2.0, 3.0, 5.0), 3
# Probability that a used record is in no batch of the seeds, and their largest number.
_SURE_OF_USE, _MAX_SEEDS_OF_USE = 1e-7, 32


def compare_numbers_of_steps(experiment: Experiment, suspects: Sequence[PoolRecord]) -> bool:
    """Tests whether the number of steps depends on a record, and returns whether it does.

    A random number of steps is allowed. So its distributions with two records are compared over
    seeds, by the exact test of Kolmogorov and Smirnov, which is conservative for whole numbers.
    """
    usual: list[int] = []
    for suspect in suspects[:_MAX_SUSPECTS]:
        of_suspect: list[int] = []
        p_value = 1.0
        for look, seeds in enumerate(_SEEDS_OF_STEPS, 1):
            for numbers, record in ((usual, experiment.pool[0]), (of_suspect, suspect)):
                data = experiment.with_canary(record)
                numbers += _numbers_of_steps(experiment, data, range(len(numbers), seeds))
            if min(len(usual), len(of_suspect)) < seeds:
                break  # the function raises an error for some seeds
            # Bonferroni's inequality over the suspects and the looks, of which all but the last
            # reject only below `_CERTAIN`. An end without a rejection needs no correction.
            p_value = min(1.0, len(suspects) * look * two_sample_p_value(usual, of_suspect))
            is_decided = p_value < _CERTAIN or (look > 1 and p_value > _UNLIKELY)
            if is_decided or usual == of_suspect or not experiment.work_left(0.6):
                break
        differing = [(u, o) for u, o in zip(usual, of_suspect, strict=False) if u != o]
        if not differing:
            continue
        shown = dict(zip(("one", "other"), differing[0], strict=True))
        experiment.verdicts.collect(TestResult(p_value, "number of steps", shown))
        if p_value < _CERTAIN:
            return True
    return False


def compare_random_numbers_of_steps(experiment: Experiment) -> None:
    """Tests whether a random number of steps has another distribution with fewer records.

    A loop that skips empty batches takes fewer steps with fewer records. A chain of removals leads
    to fewer records, so that some removal changes the distribution.
    """
    records = experiment.records
    if experiment.relation != "add-remove" or len(records) <= _FEW_RECORDS:
        return
    seeds = range(_SEEDS_OF_STEPS[0])
    usual, few = (
        _numbers_of_steps(experiment, data, seeds)
        for data in (records, records.first_records(_FEW_RECORDS))
    )
    # A number of steps that is computed from n is the same for all seeds, and another finding.
    if min(len(usual), len(few)) < len(seeds) or min(usual) == max(usual):
        return
    numbers: dict[str, float | int | str] = {
        "n": len(records),
        "less": _FEW_RECORDS,
        "mean": float(np.mean(usual)),
        "mean of few": float(np.mean(few)),
    }
    p_value = two_sample_p_value(usual, few)
    experiment.verdicts.collect(TestResult(min(1.0, p_value), "random number of steps", numbers))


def _numbers_of_steps(experiment: Experiment, data: TrainingSet, seeds: Sequence[int]) -> list[int]:
    """Numbers of steps of complete runs, or up to one more than are tested."""
    runs = (
        experiment.coupled(
            data,
            experiment.seed_of(1200 + number),
            digests=False,
            further=experiment.can_go_on,
        )
        for number in seeds
    )
    return [len(run.steps) for run in runs if run.error is None]


def report_lost_noise(experiment: Experiment, canaries: Sequence[PoolRecord]) -> None:
    """Reports a step that has no noise if one of these records is in the data."""
    if not canaries:
        return
    seeds = [experiment.seed_of(100 + i) for i in range(_SEEDS_OF_LOST_NOISE)]

    def with_seeds(canary: PoolRecord) -> list[Trace]:
        data = experiment.with_canary(canary)
        return [experiment.coupled(data, seed, digests=False) for seed in seeds]

    usual = with_seeds(experiment.pool[0])
    for canary in canaries[:: max(math.ceil(len(canaries) / _MAX_LOST), 1)]:
        if not experiment.work_left(0.45):
            break
        runs = with_seeds(canary)
        for step in range(min(len(run.steps) for run in [*usual, *runs])):
            with_it, without = (
                np.stack([run.steps[step].gradient for run in traces]) for traces in (runs, usual)
            )
            alike = np.all(np.ptp(with_it, axis=0) == 0)
            empty = np.any(np.all(with_it == 0, axis=1))
            if (alike or empty) and np.all(np.any(without != 0, axis=1)) and np.ptp(without) > 0:
                number = experiment.first_step + step + 1
                experiment.verdicts.findings.append(explain("noise lost", step=number))
                return


def compare_use_of_others(experiment: Experiment, left_out: Sequence[PoolRecord]) -> None:
    """Reports a record that decides whether another record is used.

    A rule on each record alone, such as a public range, may leave records out. A distance from the
    mean, a quantile or a search for duplicates depends on the others, so that one record changes
    what two records contribute. Whether a record is used shows in an exchange of its label, over as
    many seeds as a used record needs to be in a batch.

    Args:
        experiment: the experiment.
        left_out: records that the function seems to leave out.
    """
    seeds = seeds_until_included(experiment, _SURE_OF_USE)
    labels = list(dict.fromkeys(record.label for record in experiment.pool))
    of_data = next((record for record in experiment.pool if record.family == "own"), None)
    if of_data is None or len(labels) < 2 or len(experiment.records) < 3:
        return
    if seeds is None or seeds > _MAX_SEEDS_OF_USE:
        return
    extreme = max(left_out, key=lambda record: np.nan_to_num(record.size))
    for record in [of_data, *_moved_away(of_data), *left_out[:_MAX_LEFT_OUT]]:
        uses = {}
        for name, exchanged in (("usual", of_data), ("extreme", extreme), ("equal", record)):
            uses[name] = _is_used(experiment, record, labels, exchanged, seeds)
        if len(set(uses.values())) > 1:
            experiment.verdicts.findings.append(explain("use of others", runs=seeds))
            return
        if not experiment.work_left(0.45):
            return


def seeds_until_included(experiment: Experiment, error: float) -> int | None:
    """Number of seeds after which a used record was in a batch, but with this probability.

    Returns:
        The number; None if no rate is accounted.
    """
    accounted = experiment.accounted
    if accounted is None:
        return None
    rates = [accounted.rate(t) for t in range(experiment.steps)]
    log_unseen = sum(math.log1p(-q) if q < 1 else -math.inf for q in rates)
    return max(math.ceil(math.log(error) / log_unseen), 1) if log_unseen < 0 else None


def _moved_away(record: PoolRecord) -> list[PoolRecord]:
    """A record of real numbers at some distances from the others."""
    features = np.asarray(record.features)
    if features.dtype.kind != "f":
        return []
    return [
        replace(record, features=(features * factor).astype(features.dtype))
        for factor in _FACTORS_OF_DISTANCE
    ]


def _is_used(
    experiment: Experiment,
    record: PoolRecord,
    labels: Sequence[Any],
    exchanged: PoolRecord,
    seeds: int,
) -> bool:
    """Whether a record's label changes any step while another record is in the data."""
    other_label = next(label for label in labels if label != record.label)
    other_place = 0 if experiment.place != 0 else 1
    around = replace_one(experiment.records, exchanged, other_place)
    data = [
        experiment.exchange(around, labelled)
        for labelled in (record, replace(record, label=other_label))
    ]
    for number in range(seeds):
        seed = experiment.seed_of(1600 + number)
        runs = [experiment.coupled(records, seed, digests=False) for records in data]
        if any(run.error for run in runs) or len(runs[0].steps) != len(runs[1].steps):
            return True
        pairs = zip(*(run.steps for run in runs), strict=True)
        if any(not np.array_equal(ours.gradient, theirs.gradient) for ours, theirs in pairs):
            return True
    return False

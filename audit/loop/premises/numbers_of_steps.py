"""Whether a record changes how many steps are taken, whether they have noise, or who is used."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from audit.loop.premises.canary_pool import PoolRecord
from audit.loop.premises.experiment import Experiment, replace_one
from audit.loop.premises.noise import TestResult
from audit.loop.premises.verdicts import explain, two_sample_p_value
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.records import TrainingSet

# Records, and seeds of each, whose steps may have lost their noise.
_MAX_LOST, _SEEDS_OF_LOST_NOISE = 4, 4
# Records whose numbers of steps are compared over seeds, numbers of these seeds, and p-values at
# which no more are needed, or at which a difference is not pursued further.
_MAX_SUSPECTS, _SEEDS_OF_STEPS, _CERTAIN, _UNLIKELY = 3, (32, 96, 288), 1e-10, 0.01
# The first seed of the samples that a sample of `_SEEDS_OF_STEPS` is compared with.
_OTHER_SEEDS = 1_000
# Number of records with which most Poisson samples are empty.
_FEW_RECORDS = 3
# Factors by which a record of the data is moved away from the others, and number of records that
# are left out whose use is tested.
_FACTORS_OF_DISTANCE, _MAX_LEFT_OUT = (1.5, 2.0, 3.0, 5.0), 3
# Probability that a used record is in no batch of the seeds, their largest number, and number of
# runs of a test beyond two of these numbers.
_SURE_OF_USE, _MAX_SEEDS_OF_USE, _RUNS_OF_USE = 1e-7, 32, 20


def compare_numbers_of_steps(experiment: Experiment, suspects: Sequence[PoolRecord]) -> bool:
    """Tests whether the number of steps depends on a record, and returns whether it does.

    A random number of steps is allowed. So its distributions with two records are compared over
    seeds, by the exact test of Kolmogorov and Smirnov, which is conservative for whole numbers. Its
    samples are independent, with other seeds for each record: coupled runs may depend on each other
    in any way. Coupled runs only decide whether a test is made, which makes no error more likely.
    """
    usual: list[int] = []
    reference = experiment.with_canary(experiment.pool[0])
    for suspect in suspects[:_MAX_SUSPECTS]:
        data = experiment.with_canary(suspect)
        usual += _numbers_of_steps(experiment, reference, range(len(usual), _SEEDS_OF_STEPS[0]))
        coupled = _numbers_of_steps(experiment, data, range(_SEEDS_OF_STEPS[0]))
        differing = [(u, o) for u, o in zip(usual, coupled, strict=False) if u != o]
        if not differing:
            continue
        of_suspect: list[int] = []
        p_value = 1.0
        for look, seeds in enumerate(_SEEDS_OF_STEPS, 1):
            usual += _numbers_of_steps(experiment, reference, range(len(usual), seeds))
            others = range(_OTHER_SEEDS + len(of_suspect), _OTHER_SEEDS + seeds)
            of_suspect += _numbers_of_steps(experiment, data, others)
            if min(len(usual), len(of_suspect)) < seeds:
                break  # the function raises an error for some seeds
            # Bonferroni's inequality over the suspects and the looks, of which all but the last
            # reject only below `_CERTAIN`. An end without a rejection needs no correction.
            p_value = min(1.0, len(suspects) * look * two_sample_p_value(usual, of_suspect))
            is_decided = p_value < _CERTAIN or (look > 1 and p_value > _UNLIKELY)
            if is_decided or not experiment.work_left(0.6):
                break
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
    usual = _numbers_of_steps(experiment, records, seeds)
    other_seeds = range(_OTHER_SEEDS, _OTHER_SEEDS + len(seeds))
    few = _numbers_of_steps(experiment, records.first_records(_FEW_RECORDS), other_seeds)
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
        used, unused = None, None
        for exchanged in (of_data, extreme, record):
            shows = _label_shows(experiment, record, labels, exchanged)
            if any(next(shows) for _ in range(seeds)):
                used = exchanged
            else:
                unused = exchanged
        if used is not None and unused is not None:
            pair = [_label_shows(experiment, record, labels, other) for other in (used, unused)]
            _collect_uses(experiment, pair, _RUNS_OF_USE + 2 * seeds)
            return
        if not experiment.work_left(0.45):
            return


def _collect_uses(experiment: Experiment, pair: Sequence[Iterator[bool]], runs: int) -> None:
    """Compares how often a record's label shows with either of two records, by Fisher's test.

    A function may mask labels at random, so that a used record is not seen in all of its batches.
    """
    shown, still_shown = (sum(next(shows) for _ in range(runs)) for shows in pair)
    table = np.array([[shown, runs - shown], [still_shown, runs - still_shown]])
    p_value = float(stats.fisher_exact(table)[1])
    # Bonferroni's inequality over the records, and the pairs of records that were exchanged.
    tests = 3 * (1 + len(_FACTORS_OF_DISTANCE) + _MAX_LEFT_OUT)
    numbers: dict[str, float | int | str] = {"runs": runs, "used": shown, "less": still_shown}
    experiment.verdicts.collect(TestResult(min(1.0, tests * p_value), "use of others", numbers))


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


def _label_shows(
    experiment: Experiment, record: PoolRecord, labels: Sequence[Any], exchanged: PoolRecord
) -> Iterator[bool]:
    """Whether a record's label changes any step while another record is in the data, by seeds.

    The seeds differ between the calls, so that a first look and a test are independent.
    """
    other_label = next(label for label in labels if label != record.label)
    other_place = 0 if experiment.place != 0 else 1
    around = replace_one(experiment.records, exchanged, other_place)
    data = [
        experiment.exchange(around, labelled)
        for labelled in (record, replace(record, label=other_label))
    ]
    while True:
        seed = experiment.seed_of(1600 + experiment.runs.count)
        runs = [experiment.coupled(records, seed, digests=False) for records in data]
        pairs = zip(*(run.steps for run in runs), strict=False)
        yield any(not np.array_equal(ours.gradient, theirs.gradient) for ours, theirs in pairs)

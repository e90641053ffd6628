"""Tuning on a Poisson subset, then a final run, on lanes (Koskela & Kulkarni 2023).

They multiply the learning rate by n/m when they move from m records to n, so that the noise that
the weights get stays what it was. Theirs is of the mean gradient, which divides by as many records
as are expected; here a step takes the sum, for which that rule is the learning rate as it is.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import Lanes
from audit.protocols import Subset
from audit.tuning.random_search import best_of_runs
from audit.tuning.winners import Run, Winners

Array = NDArray[np.float64]
LogRatio = Callable[[Winners], Array]
"""log of how much likelier what a tuning chose is if the canary was tuned on, [T]."""


def tune_on_subset(
    run: Run,
    protocol: Subset,
    candidates: int,
    records: int,
    included: NDArray[np.bool_],
    rng: np.random.Generator,
    tuned_log_ratio: LogRatio,
    log_ratio_scale: float,
) -> Winners:
    """Plays T tunings at once: best of K on a subset, then the same candidate on the rest, or all.

    Where nothing was chosen nothing is trained in the end.

    Args:
        run: runs a pack of lanes.
        protocol: the law of K, the chance of a record to be tuned on, what the final run takes.
        candidates: how many hyper-parameter candidates there are.
        records: how many training records there are.
        included: [T] whether the canary is in the data set of each tuning.
        rng: source of subsets, K, candidates and lane seeds.
        tuned_log_ratio: what the chosen run says of the canary.
        log_ratio_scale: sigma^2 / N, the unit of lambda_c.

    Returns:
        `runs`, `chosen`, `candidate` and `score` are of the tuning; `lambda_a`, `lambda_start` and
        `lambda_end` of the final run; `lambda_c` and `lambda_known` of both: the log-likelihood
        ratio of a canary that was tuned on with chance q, on the scale of a single run's. They are
        minus infinity where nothing was chosen.
    """
    rate, on_all = protocol.sampling_rate, protocol.final == "all"
    tuned_on = rng.random(len(included)) < rate
    members = rng.random((len(included), records)) < rate if records else None
    (chosen,) = best_of_runs(
        run, protocol.repetitions, candidates, included & tuned_on, rng, records=members
    )
    some = np.flatnonzero(chosen.chosen >= 0)
    lanes = Lanes(
        included=(included & (on_all | ~tuned_on))[some],
        candidate=chosen.candidate[some],
        seeds=rng.integers(0, 2**64, len(some), dtype=np.uint64),
        records=None if members is None or on_all else ~members[some],
    )
    (final,) = run(lanes)
    final_log_ratio = np.full(len(included), -np.inf)
    of_final_run = {}
    for name in ("lambda_a", "lambda_start", "lambda_end"):
        of_final_run[name] = np.full(len(included), -np.inf)
        of_final_run[name][some] = np.where(final.finite, getattr(final, name), -np.inf)
    final_log_ratio[some] = np.where(
        final.finite, (final.lambda_c - 0.5) / log_ratio_scale, -np.inf
    )
    with np.errstate(divide="ignore"):
        log_q, log_rest = np.log(rate), np.log1p(-rate)
    tuned = log_q + tuned_log_ratio(chosen)
    if on_all:
        together = np.logaddexp(tuned, log_rest) + final_log_ratio
    else:
        together = np.logaddexp(tuned, log_rest + final_log_ratio)
    diverged = chosen.diverged.copy()
    diverged[some] += ~final.finite
    log_ratio = np.where(chosen.chosen >= 0, 0.5 + log_ratio_scale * together, -np.inf)
    return Winners(
        **of_final_run,
        runs=chosen.runs,
        chosen=chosen.chosen,
        candidate=chosen.candidate,
        score=chosen.score,
        lambda_c=log_ratio,
        lambda_known=log_ratio,
        diverged=diverged,
    )

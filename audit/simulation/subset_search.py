"""Simulated tuning on a Poisson subset, then a final run (Koskela & Kulkarni 2023).

They multiply the learning rate by n/m for a final run on n records after tuning on m, so that the
weights receive the same noise. Their steps use the mean gradient over the expected number of
records. Here a step uses the sum, for which their rule leaves the learning rate unchanged.
"""

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import RunBatch
from audit.protocols import Subset
from audit.simulation.random_search import best_of_runs
from audit.simulation.winners import GameContext, Winners


def tune_on_subset(
    context: GameContext, protocol: Subset, included: NDArray[np.bool_], rng: np.random.Generator
) -> Winners:
    """Winners of T tunings: best of K on a subset, then a final run on the rest or on all records.

    A tuning that chooses no candidate has no final run. In the result, `runs`, `chosen`,
    `candidate` and `score` describe the tuning; `lambda_a`, `lambda_start` and `lambda_end` the
    final run. `lambda_c` and `lambda_known` describe both: the log-likelihood ratio of a canary
    that is in the subset with probability q, on the scale of a single run's. All proxies are minus
    infinity if nothing was chosen.
    """
    rate, on_all = protocol.sampling_rate, protocol.final == "all"
    tuned_on = rng.random(len(included)) < rate
    members = rng.random((len(included), context.records)) < rate if context.records else None
    (chosen,) = best_of_runs(
        context.run,
        protocol.repetitions,
        context.candidates,
        included & tuned_on,
        rng,
        records=members,
    )
    with_winner = np.flatnonzero(chosen.chosen >= 0)
    included_at_end = (included & (on_all | ~tuned_on))[with_winner]
    not_members = None if members is None or on_all else ~members[with_winner]
    batch = RunBatch.drawn(included_at_end, chosen.candidate[with_winner], rng, not_members)
    (final,) = context.run(batch)
    final_log_ratio = np.full(len(included), -np.inf)
    of_final_run = {}
    for name in ("lambda_a", "lambda_start", "lambda_end"):
        of_final_run[name] = np.full(len(included), -np.inf)
        of_final_run[name][with_winner] = np.where(final.finite, getattr(final, name), -np.inf)
    final_log_ratio[with_winner] = np.where(
        final.finite, (final.lambda_c - 0.5) / context.log_ratio_scale, -np.inf
    )
    with np.errstate(divide="ignore"):
        log_q, log_rest = np.log(rate), np.log1p(-rate)
    tuned = log_q + context.tuned_log_ratio(chosen)
    if on_all:
        together = np.logaddexp(tuned, log_rest) + final_log_ratio
    else:
        together = np.logaddexp(tuned, log_rest + final_log_ratio)
    diverged = chosen.diverged.copy()
    diverged[with_winner] += ~final.finite
    log_ratio = np.where(chosen.chosen >= 0, 0.5 + context.log_ratio_scale * together, -np.inf)
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

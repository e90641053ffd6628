"""Simulation of protocols for audits: T tunings at once, on batches of runs.

Of a sequential protocol, run j of all tunings is trained together, then run j + 1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import RunBatch
from audit.protocols import Adaptive, Protocol, Subset
from audit.repetitions import Repetitions
from audit.simulation.batch_samplers import make_sampler
from audit.simulation.random_search import best_of_list, best_of_runs
from audit.simulation.winners import GameContext, Winners, empty_winners

# Runs of one tuning that are trained together once few tunings remain.
_MAX_AHEAD = 16


def best_of_adaptive(
    context: GameContext, protocol: Adaptive, included: NDArray[np.bool_], rng: np.random.Generator
) -> Winners:
    """Winners of T adaptive searches; the density of each candidate depends on the earlier runs."""
    sampler = make_sampler(context.sampler, protocol, context.features, len(included))
    runs = protocol.repetitions.sample(rng, len(included))
    winners = empty_winners(runs)
    for index in range(int(runs.max(initial=0))):
        tuning = np.flatnonzero(runs > index)
        candidate = draw_candidates(sampler.densities(tuning), rng.random(len(tuning)))
        batch = RunBatch.drawn(included[tuning], candidate, rng)
        (outcomes,) = context.run(batch)
        winners.compete(outcomes, batch, tuning, np.full(len(tuning), index))
        sampler.add(tuning, candidate, outcomes)
    return winners


def draw_candidates(
    densities: NDArray[np.float64], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Candidates, [R], from densities, [R, n], relative to the prior and uniform numbers, [R]."""
    chances = np.cumsum(densities, axis=1) / densities.shape[1]
    return np.minimum((chances <= uniforms[:, None]).sum(axis=1), densities.shape[1] - 1)


def first_accepted(
    context: GameContext,
    max_runs: NDArray[np.int64],
    included: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Winners:
    """Winners of T tunings that release the first run above a threshold.

    A tuning stops without a result after `max_runs`, [T], which is fixed or drawn first. Each run
    draws one of the candidates uniformly. `runs` counts the runs up to the accepted one, or up to
    the stop.
    """
    size = len(included)
    winners = empty_winners(np.zeros(size, dtype=np.int64))
    active = np.arange(size)
    while active.size:
        ahead = max(1, min(size // active.size, _MAX_AHEAD))
        tuning = np.repeat(active, ahead)
        index = winners.runs[tuning] + np.tile(np.arange(ahead), active.size)
        candidate = rng.integers(0, context.candidates, len(tuning))
        batch = RunBatch.drawn(included[tuning], candidate, rng)
        (outcomes,) = context.run(batch)
        accepted = (
            outcomes.finite & (outcomes.scores > context.good_enough) & (index < max_runs[tuning])
        )
        places = np.arange(len(tuning)).reshape(active.size, ahead)
        is_kept = accepted[places]
        has_accepted = is_kept.any(axis=1)
        # Runs after the accepted one were trained only for speed; the protocol does not have them.
        first_place = np.where(has_accepted, is_kept.argmax(axis=1), ahead - 1)
        made = np.minimum(winners.runs[active] + first_place + 1, max_runs[active])
        was_made = index < np.repeat(made, ahead)
        np.add.at(winners.diverged, tuning, was_made & ~outcomes.finite)
        winners.runs[active] = made
        who, won = active[has_accepted], places[has_accepted, first_place[has_accepted]]
        winners.chosen[who] = index[won]
        winners.candidate[who] = batch.candidate[won]
        winners.score[who] = outcomes.scores[won]
        winners.take_proxies(who, outcomes, won)
        active = active[~has_accepted & (made < max_runs[active])]
    return winners


def tune_on_subset(
    context: GameContext, protocol: Subset, included: NDArray[np.bool_], rng: np.random.Generator
) -> Winners:
    """Winners of T tunings: best of K on a subset, then a final run on the rest or on all records.

    A tuning that chooses no candidate has no final run. In the result, `runs`, `chosen`,
    `candidate` and `score` describe the tuning; `lambda_a`, `lambda_start` and `lambda_end` the
    final run. `lambda_c` and `lambda_known` describe both: the log-likelihood ratio of a canary
    that is in the subset with probability q, on the scale of a single run's. All proxies are minus
    infinity if nothing was chosen.

    Koskela & Kulkarni 2023 multiply the learning rate by n/m for a final run on n records after
    tuning on m, so that the weights receive the same noise. Their steps use the mean gradient over
    the expected number of records. Here a step uses the sum, for which their rule leaves the
    learning rate unchanged.
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


def tune(
    protocol: Protocol, context: GameContext, included: NDArray[np.bool_], rng: np.random.Generator
) -> list[Winners]:
    """Winners of T simulated tunings in every view; `included`, [T]: which have the canary."""
    return protocol.simulate(Tunings(context, included, rng))


@dataclass(frozen=True)
class Tunings:
    """T simulated tunings, with the ways of making runs that protocols are composed of.

    It implements `audit.protocols.base.SimulatedTunings`.
    """

    context: GameContext
    included: NDArray[np.bool_]
    rng: np.random.Generator

    @property
    def count(self) -> int:
        """Number of tunings."""
        return len(self.included)

    def best_of_draws(self, repetitions: Repetitions) -> list[Winners]:
        """Winners of K runs with independent candidates."""
        context = self.context
        return best_of_runs(
            context.run,
            repetitions,
            context.candidates,
            self.included,
            self.rng,
            context.views,
            keep=context.keep_runs,
        )

    def best_of_list(self, is_run: NDArray[np.bool_]) -> list[Winners]:
        """Winners among the candidates of a list; `is_run`, [T, n]: which of them are trained."""
        return best_of_list(self.context, is_run, self.included, self.rng)

    def best_of_adaptive(self, protocol: Adaptive) -> list[Winners]:
        """Winners of K runs whose candidates depend on the earlier runs."""
        return [best_of_adaptive(self.context, protocol, self.included, self.rng)]

    def first_accepted(self, max_runs: NDArray[np.int64]) -> list[Winners]:
        """The first accepted run of each tuning, among at most `max_runs`, [T]."""
        return [first_accepted(self.context, max_runs, self.included, self.rng)]

    def tuned_on_subset(self, protocol: Subset) -> list[Winners]:
        """Random search on a part of the records, then one final run."""
        return [tune_on_subset(self.context, protocol, self.included, self.rng)]

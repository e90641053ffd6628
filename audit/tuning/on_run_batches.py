"""Simulation of protocols for audits: T tunings at once, on batches of runs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from audit.protocols import (
    Adaptive,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
)
from audit.tuning.batch_samplers import make_sampler
from audit.tuning.grid_search import best_of_grid
from audit.tuning.random_search import best_of_runs
from audit.tuning.sequential_search import best_of_adaptive, first_accepted
from audit.tuning.subset_search import LogRatio, tune_on_subset
from audit.tuning.winners import Run, Winners

SIMULATED: tuple[type[Protocol], ...] = (
    RandomSearch,
    Grid,
    Adaptive,
    Subset,
    UntilAccepted,
    RandomStopping,
)
"""The protocols that an audit can simulate."""

SHAREABLE: tuple[type[Protocol], ...] = (RandomSearch, Grid)
"""The protocols whose runs do not depend on scores, so that several views can share them."""


@dataclass(frozen=True)
class GameContext:
    """The training function and the fixed choices of the adversary.

    Attributes:
        run: trains a batch of runs and returns its outcomes in every view.
        features: [n, d], the candidates' features, each in [0, 1].
        tuned_log_ratio: in tuning on a subset, the chosen run's log-likelihood ratio.
        log_ratio_scale: sigma^2 / N, the unit of lambda_c.
        views: number of threat models that evaluate the same runs.
        good_enough: the score above which a run is accepted.
        keep_runs: whether a random search stores the outcomes of every run.
    """

    run: Run
    features: NDArray[np.float64]
    tuned_log_ratio: LogRatio
    log_ratio_scale: float
    views: int = 1
    records: int = 0
    good_enough: float = -np.inf
    sampler: str = "gaussian-process"
    keep_runs: bool = False


def tune(
    protocol: Protocol, context: GameContext, included: NDArray[np.bool_], rng: np.random.Generator
) -> list[Winners]:
    """Winners of T simulated tunings in every view; `included`, [T], says which have the canary."""
    run, candidates = context.run, len(context.features)
    match protocol:
        case RandomSearch():
            return best_of_runs(
                run,
                protocol.repetitions,
                candidates,
                included,
                rng,
                context.views,
                keep=context.keep_runs,
            )
        case Grid():
            return best_of_grid(run, protocol, candidates, included, rng, context.views)
        case Adaptive():
            sampler = make_sampler(context.sampler, protocol, context.features, len(included))
            return [best_of_adaptive(run, protocol, sampler, included, rng)]
        case Subset():
            found = tune_on_subset(
                run,
                protocol,
                candidates,
                context.records,
                included,
                rng,
                context.tuned_log_ratio,
                context.log_ratio_scale,
            )
            return [found]
        case UntilAccepted() | RandomStopping():
            return [first_accepted(run, protocol, candidates, context.good_enough, included, rng)]
        case _:
            names = ", ".join(kind.name for kind in SIMULATED)
            raise InvalidInput(f"protocol must be one of {names} in an audit, got {protocol.spec}")

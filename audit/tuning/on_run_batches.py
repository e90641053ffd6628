"""Every protocol on batch: T tunings of the game at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
from audit.tuning.looking_back import best_of_adaptive, first_accepted
from audit.tuning.random_search import best_of_runs
from audit.tuning.subset_search import LogRatio, tune_on_subset
from audit.tuning.winners import Run, Winners

PLAYED: tuple[type[Protocol], ...] = (
    RandomSearch,
    Grid,
    Adaptive,
    Subset,
    UntilAccepted,
    RandomStopping,
)
"""The protocols that the game can be played against."""

SERVES_SEVERAL: tuple[type[Protocol], ...] = (RandomSearch, Grid)
"""Those whose runs do not depend on scores, so that they may serve several views."""


@dataclass(frozen=True)
class GameContext:
    """What tunings are played on, and what their adversary fixed before.

    Attributes:
        run: runs a batch of runs and gives its outcomes in every view.
        features: [n, d] of the candidates, each in [0, 1].
        tuned_log_ratio: of a tuning on a subset, what the chosen run says of the canary.
        log_ratio_scale: sigma^2 / N, the unit of lambda_c.
        views: how many views the same runs serve.
        records: how many training records there are.
        good_enough: the score above which a run is accepted.
        sampler: how an adaptive protocol chooses candidates.
        keep_runs: whether a random search keeps what came of every run.
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
    """Plays T tunings by a protocol.

    Args:
        protocol: one of PLAYED.
        context: what they are played on.
        included: [T] whether the canary is in the data set of each tuning.
        rng: source of everything random.

    Returns:
        What every view makes of the runs.

    Raises:
        ValueError: a protocol that cannot be played, or a score that is NaN.
    """
    run, candidates = context.run, len(context.features)
    match protocol:
        case RandomSearch():
            law = protocol.repetitions
            return best_of_runs(
                run, law, candidates, included, rng, context.views, keep=context.keep_runs
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
            return [
                first_accepted(run, protocol, candidates, context.good_enough, included, rng)
            ]
        case _:
            raise ValueError(f"protocol must be one that is played, got {protocol.spec}")

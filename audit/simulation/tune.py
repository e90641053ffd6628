"""Simulation of protocols for audits: T tunings at once, on batches of runs."""

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from audit.protocols import (
    Adaptive,
    DistinctCandidates,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
)
from audit.simulation.random_search import best_of_distinct, best_of_grid, best_of_runs
from audit.simulation.sequential_search import best_of_adaptive, first_accepted
from audit.simulation.subset_search import tune_on_subset
from audit.simulation.winners import GameContext, Winners

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


def tune(
    protocol: Protocol, context: GameContext, included: NDArray[np.bool_], rng: np.random.Generator
) -> list[Winners]:
    """Winners of T simulated tunings in every view; `included`, [T]: which have the canary."""
    match protocol:
        case RandomSearch():
            run, repetitions, keep = context.run, protocol.repetitions, context.keep_runs
            return best_of_runs(
                run, repetitions, context.candidates, included, rng, context.views, keep=keep
            )
        case Grid():
            return best_of_grid(context, protocol, included, rng)
        case DistinctCandidates():
            return best_of_distinct(context, protocol, included, rng)
        case Adaptive():
            return [best_of_adaptive(context, protocol, included, rng)]
        case Subset():
            return [tune_on_subset(context, protocol, included, rng)]
        case UntilAccepted() | RandomStopping():
            return [first_accepted(context, protocol, included, rng)]
        case _:
            names = ", ".join(kind.name for kind in SIMULATED)
            raise InvalidInput(f"protocol must be one of {names} in an audit, got {protocol.spec}")

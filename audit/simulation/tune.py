"""Simulation of protocols for audits: T tunings at once, on batches of runs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.protocols import Adaptive, Protocol, Subset
from audit.repetitions import Repetitions
from audit.simulation.random_search import best_of_list, best_of_runs
from audit.simulation.sequential_search import best_of_adaptive, first_accepted
from audit.simulation.subset_search import tune_on_subset
from audit.simulation.winners import GameContext, Winners


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

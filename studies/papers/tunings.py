"""Simulated tunings, and the noise that a bound requires; shared by the trained figures."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from audit import protocols
from audit.numerics import FloatArray
from audit.protocols import Protocol
from audit.repetitions import Repetitions
from audit.upper_bounds import calibrate_noise
from audit.upper_bounds.registry import find

Train = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

DELTA = 1e-5
"""The delta of every tuning."""


@dataclass(frozen=True)
class Arm:
    """A protocol together with an upper bound on its cost.

    Attributes:
        name: name in the table and the figure.
        spec: the protocol as text.
        bound: name of the upper bound.
        ours: whether the bound is this project's.
    """

    name: str
    spec: str
    bound: str
    ours: bool

    @property
    def protocol(self) -> Protocol:
        """The protocol."""
        return protocols.parse_protocol(self.spec)

    def noise_multiplier(self, epsilon: float, steps: int) -> float:
        """The smallest noise multiplier for which the bound on the whole tuning is epsilon."""
        bound = find(self.bound, type(self.protocol)).function
        return calibrate_noise(
            self.protocol, target_epsilon=epsilon, target_delta=DELTA, steps=steps, bound=bound
        )


def play_random_searches(
    repetitions: Repetitions,
    candidates: FloatArray,
    train: Train,
    tunings: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Plays random searches, all runs of all tunings at once.

    Args:
        repetitions: distribution of K.
        candidates: [c] values of the hyperparameter, each drawn with the same probability.
        train: maps the candidates of n runs to their models [n, d] and their scores [n]. A score of
            minus infinity means that the run releases nothing.
        tunings: number of tunings.
        rng: source of K, of the candidates and of the choice among equal scores.

    Returns:
        Candidates [t], models [t, d] and scores [t] of the tunings that released a model.
    """
    owner = np.repeat(np.arange(tunings), repetitions.sample(rng, tunings))
    chosen = rng.choice(candidates, len(owner))
    models, scores = train(chosen)
    order = np.lexsort((rng.random(len(owner)), scores, owner))
    is_best = np.append(np.diff(owner[order]) > 0, True)[: len(order)]
    best = order[is_best & np.isfinite(scores[order])]
    return chosen[best], models[best], scores[best]


def mean_and_error(values: FloatArray, name: str) -> dict[str, float]:
    """The mean of values [n] under this name and its standard error; NaN and 0 if too few."""
    many = len(values)
    return {
        name: float(values.mean()) if many else math.nan,
        "standard error": float(values.std(ddof=1)) / math.sqrt(many) if many > 1 else 0.0,
    }

"""Distributions of K with a given mean, and bounds as functions of a distribution of K."""

from collections.abc import Callable

from audit.accounting import Mechanism
from audit.repetitions import Repetitions, TruncatedNegativeBinomial
from audit.upper_bounds import UpperBound

Bound = Callable[[Mechanism, Repetitions, float], UpperBound]
"""From a base, a distribution of K and delta to an upper bound."""


def tnb_with_mean(eta: float, mean: float) -> TruncatedNegativeBinomial:
    """The truncated negative binomial distribution with a given eta and mean.

    Raises:
        ValueError: no gamma gives this mean.
    """
    distribution = TruncatedNegativeBinomial(eta, 0.5).with_mean(mean)
    assert isinstance(distribution, TruncatedNegativeBinomial)
    return distribution


def cost_ratio(mean_runs: float, sampling_rate: float) -> float:
    """The cost of tuning on all records over that of tuning on a subset, E[K] / (E[K] q + 1)."""
    return mean_runs / (mean_runs * sampling_rate + 1.0)

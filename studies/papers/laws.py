"""Laws of K with a given mean, as the figures' axes ask for, and bounds as functions of a law."""

from collections.abc import Callable

from audit.accounting import Mechanism
from audit.repetitions import Repetitions, TruncatedNegativeBinomial
from audit.upper_bounds import UpperBound

BoundOfLaw = Callable[[Mechanism, Repetitions, float], UpperBound]


def with_mean(eta: float, mean: float) -> TruncatedNegativeBinomial:
    """The truncated negative binomial law of this eta and mean.

    Raises:
        ValueError: no gamma gives this mean.
    """
    law = TruncatedNegativeBinomial(eta, 0.5).with_mean(mean)
    assert isinstance(law, TruncatedNegativeBinomial)
    return law

"""Laws of K with a given mean, as the figures' axes ask for."""

from audit.repetitions import TruncatedNegativeBinomial
from audit.upper_bounds import with_mean as of_the_same_family


def with_mean(eta: float, mean: float) -> TruncatedNegativeBinomial:
    """The truncated negative binomial law of this eta and mean.

    Raises:
        ValueError: no gamma gives this mean.
    """
    law = of_the_same_family(TruncatedNegativeBinomial(eta, 0.5), mean)
    assert isinstance(law, TruncatedNegativeBinomial)
    return law

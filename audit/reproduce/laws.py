"""Laws of K with a given mean, as the figures' axes ask for."""

from audit.repetitions import TruncatedNegativeBinomial


def with_mean(eta: float, mean: float) -> TruncatedNegativeBinomial:
    """The truncated negative binomial law of this eta and mean.

    Raises:
        ValueError: no gamma gives this mean.
    """
    law = TruncatedNegativeBinomial(eta, 0.5).with_mean(mean)
    assert isinstance(law, TruncatedNegativeBinomial)
    return law

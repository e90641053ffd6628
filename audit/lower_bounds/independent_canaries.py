"""Lower bound on epsilon from one run with many canaries that do not interact: each is a trial."""

from dataclasses import replace

from numpy.typing import ArrayLike

from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.estimator import default_facts
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.scan import Scan
from audit.lower_bounds.scores import checked_canaries

_INDEPENDENT = Claim(
    Kind.BOUND,
    "this project: the scan of independent trials",
    assumptions=(Assumption.FAIR_COINS, Assumption.DISJOINT_CANARIES),
    about=("one run, each canary included by its own fair coin",),
)


def independent_canaries_bound(
    scores: ArrayLike, included: ArrayLike, delta: float = 1e-5, confidence: float = 0.95
) -> LowerBound:
    """Lower bound on epsilon from one run of any mechanism, with each canary as a trial.

    Args:
        scores: of the canaries [m]; high scores indicate that the canary was included.
        included: whether each canary was included, [m].
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        InvalidInput: a parameter is out of its range, or a score is NaN.

    Example:
        >>> coins = [True, False] * 50
        >>> bound = independent_canaries_bound([float(coin) for coin in coins], coins)
        >>> bound.name, round(bound.epsilon, 1)
        ('independent-canaries', 3.0)
    """
    values, coins = checked_canaries("scores", scores, included)
    found = Scan()(values[~coins], values[coins], delta, confidence)
    return replace(
        found,
        name="independent-canaries",
        claim=_INDEPENDENT,
        verdict=_INDEPENDENT.validity(default_facts()),
    )

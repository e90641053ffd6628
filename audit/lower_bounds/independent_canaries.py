"""One run with many canaries, read as so many independent trials.

`independent_canaries_bound` takes each canary for a game of its own. `order_statistics_bound` is:
each of m canaries is in by its own fair coin. The adversary gives every canary a signed score,
whose sign is his guess and whose size is how sure he is, and is judged by the r surest (Xiang et
al. 2025, arXiv 2509.08704). If the canaries are independent trials of a Gaussian mechanism,
N(+-mu/2, 1), the number of right guesses has this law: given the size t of the surest score that is
not judged, the r above it are independent, each right with chance

    p(t) = S(t - mu/2) / (S(t - mu/2) + S(t + mu/2)),   S = 1 - Phi,

and S(t - mu/2) + S(t + mu/2), the chance of a size above t, is the (r+1)-th smallest of m uniform
numbers, a draw of Beta(r + 1, m - r).

Both hold *only* for canaries that do not interact. A mechanism in which every canary has the
Gaussian trade-off curve may share their sizes: one size is drawn for all, and every sign is right
with the chance that belongs to it. Changing one canary's coin shows no more than before, but in a
run with a large size all guesses are right, and the bound is above the truth far more often than it
says.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks, numerics
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.counting import best_of_gaussian_epsilon
from audit.lower_bounds.estimator import check_confidence, facts_as_told
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.scan import Scan
from audit.lower_bounds.scores import checked
from audit.repetitions import Fixed

Array = NDArray[np.float64]

_LARGEST_MU = 20.0
_TOLERANCE = 1e-4
# Quantiles of the threshold; each takes the chance of the end where guesses are righter.
_QUANTILES = 400

_ONE_RUN = "one run, each canary in by its own fair coin"
_ORDER_STATISTICS = Claim(
    Kind.BOUND,
    "Xiang et al. 2025, arXiv 2509.08704",
    assumptions=(
        Assumption.FAIR_COINS,
        Assumption.NOT_TUNED,
        Assumption.GAUSSIAN_BASE,
        Assumption.DISJOINT_CANARIES,
    ),
    about=(_ONE_RUN,),
)
_INDEPENDENT = Claim(
    Kind.BOUND,
    "this project: the scan of independent trials",
    assumptions=(Assumption.FAIR_COINS, Assumption.DISJOINT_CANARIES),
    about=(_ONE_RUN,),
)


def independent_canaries_bound(
    scores: ArrayLike, included: ArrayLike, delta: float = 1e-5, confidence: float = 0.95
) -> LowerBound:
    """Lower bound on epsilon from one run, each canary a trial of its own; any mechanism.

    Args:
        scores: of the canaries [m]; high ones speak for "in".
        included: whether the coin of each canary put it in, [m].
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> coins = [True, False] * 50
        >>> bound = independent_canaries_bound([float(coin) for coin in coins], coins)
        >>> bound.name, round(bound.epsilon, 1)
        ('independent-canaries', 3.0)
    """
    values, coins = _checked(scores, included)
    found = Scan()(values[~coins], values[coins], delta, confidence)
    return replace(
        found,
        name="independent-canaries",
        claim=_INDEPENDENT,
        verdict=_INDEPENDENT.validity(facts_as_told(Fixed(1))),
    )


def _checked(scores: ArrayLike, included: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    values, coins = checked("scores", scores), np.asarray(included)
    if coins.shape != values.shape or coins.dtype != np.bool_:
        raise ValueError(
            f"included must be one true or false per score, got {coins.dtype} of shape "
            f"{coins.shape} for {values.shape}"
        )
    return values, coins


def chance_of_so_many(canaries: int, guesses: int, correct: int, mu: float) -> float:
    """Chance of so many right guesses or more among the surest, rounded up.

    Args:
        canaries: m.
        guesses: r, in [1, m].
        correct: at least so many of them right.
        mu: of every canary's Gaussian mechanism, at least 0.
    """
    if correct <= 0:
        return 1.0
    beyond = np.ones(1)  # chance of a size above the threshold: all are judged
    if guesses < canaries:
        # Fewer beyond means a larger threshold, and guesses that are righter.
        beyond = special.betaincinv(
            guesses + 1.0, canaries - guesses, np.arange(_QUANTILES) / _QUANTILES
        )
    right = _right(beyond, mu)
    return float(np.mean(special.betainc(correct, guesses - correct + 1.0, right)))


@lru_cache(maxsize=1024)
def _mu_lower_limit(canaries: int, guesses: int, correct: int, alpha: float) -> float:
    """The largest mu at which so many right guesses have a chance of at most alpha, or 0."""

    def possible(mu: float) -> bool:
        return chance_of_so_many(canaries, guesses, correct, mu) > alpha

    if possible(0.0):
        return 0.0
    return numerics.safe_root(possible, 0.0, _LARGEST_MU, _TOLERANCE)


def _right(beyond: Array, mu: float) -> Array:
    """p(t) where the chance of a size above t is given, [n]."""
    # Sizes above t have chance S(t - mu/2) + S(t + mu/2), falling with t.
    _, high = numerics.bisect_intervals(
        lambda t: special.ndtr(mu / 2.0 - t) + special.ndtr(-mu / 2.0 - t) > beyond,
        np.zeros(len(beyond)),
        40.0 + mu,
        halvings=60,
    )
    ratio = special.log_ndtr(mu / 2.0 - high) - special.log_ndtr(-mu / 2.0 - high)
    return np.asarray(special.expit(ratio))


def order_statistics_bound(
    signed_scores: ArrayLike,
    included: ArrayLike,
    guesses: int,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> LowerBound:
    """Lower bound on epsilon from the surest guesses of one run, for canaries that are independent.

    Args:
        signed_scores: of the canaries [m]; above 0 guesses "in", the size is how sure that is.
        included: whether the coin of each canary put it in, [m].
        guesses: how many of the surest to judge, fixed before the run.
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> coins = [True, False] * 50
        >>> bound = order_statistics_bound([1.0 if c else -1.0 for c in coins], coins, guesses=100)
        >>> round(bound.epsilon, 1)
        22.6
    """
    checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    check_confidence(confidence)
    values, coins = _checked(signed_scores, included)
    checks.integer("guesses", guesses, 1, max(len(values), 1))
    surest = np.argsort(-np.abs(values), kind="stable")[:guesses]
    correct = int(np.sum((values > 0.0)[surest] == coins[surest]))
    mu = _mu_lower_limit(len(values), guesses, correct, 1.0 - confidence)
    return LowerBound(
        name="order-statistics",
        rule="fixed",
        epsilon=best_of_gaussian_epsilon(mu, Fixed(1), delta) if mu > 0.0 else 0.0,
        confidence=confidence,
        claim=_ORDER_STATISTICS,
        verdict=_ORDER_STATISTICS.validity(facts_as_told(Fixed(1))),
        trials_without=int(np.sum(~coins)),
        trials_with=int(np.sum(coins)),
    )

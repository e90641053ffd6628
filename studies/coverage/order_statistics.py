"""Lower bound on epsilon from the most certain guesses of one run with independent canaries.

The adversary gives each of m canaries, included by its own fair coin, a signed score. Its sign is
the guess, and its size is the certainty of the guess. The r most certain guesses are evaluated
(Xiang et al. 2025, arXiv 2509.08704). If the canaries are independent trials of a Gaussian
mechanism, N(+-mu/2, 1), the number of correct guesses has a known distribution: given the size t of
the largest score that is not evaluated, the r guesses above it are independent, and each is correct
with probability

    p(t) = S(t - mu/2) / (S(t - mu/2) + S(t + mu/2)),   S = 1 - Phi.

S(t - mu/2) + S(t + mu/2) is the probability of a size above t. It is the (r+1)-th smallest of m
uniform numbers, a draw of Beta(r + 1, m - r).

The bound is valid *only* for canaries that do not interact. Consider a mechanism in which every
canary has the Gaussian trade-off curve, but all canaries share one random size, and each sign is
correct with the probability that belongs to this size. Changing the coin of one canary reveals no
more than before. But in a run with a large size all guesses are correct, and the bound exceeds the
true epsilon far more often than its confidence allows.

The study uses it for comparison: for Gaussian scores, `gaussian_canaries_bound` proves more.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks, numerics
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.estimator import LowerBound, check_confidence, default_facts
from audit.lower_bounds.families import best_of_gaussian_epsilon
from audit.lower_bounds.scores import checked_canaries
from audit.numerics import FloatArray
from audit.repetitions import Fixed

_MAX_MU = 20.0
_MU_TOLERANCE = 1e-4
# Cells for the distribution of the threshold t. Each cell uses its end with the larger p(t).
_THRESHOLD_CELLS = 400

_ORDER_STATISTICS = Claim(
    Kind.BOUND,
    "Xiang et al. 2025, arXiv 2509.08704",
    assumptions=(
        Assumption.FAIR_COINS,
        Assumption.NOT_TUNED,
        Assumption.GAUSSIAN_BASE,
        Assumption.DISJOINT_CANARIES,
    ),
    about=("one run, each canary included by its own fair coin",),
)


def tail_probability(canaries: int, guesses: int, correct: int, mu: float) -> float:
    """P[at least `correct` of the r most certain guesses are correct], rounded up.

    Args:
        canaries: m.
        guesses: r, in [1, m].
        correct: number of correct guesses.
        mu: mu of every canary's Gaussian mechanism, at least 0.
    """
    if correct <= 0:
        return 1.0
    beyond = np.ones(1)  # P[size > threshold]; all guesses are evaluated
    if guesses < canaries:
        # A smaller probability means a larger threshold, and a larger p(t).
        beyond = special.betaincinv(
            guesses + 1.0, canaries - guesses, np.arange(_THRESHOLD_CELLS) / _THRESHOLD_CELLS
        )
    p_correct = _probability_correct(beyond, mu)
    return float(np.mean(special.betainc(correct, guesses - correct + 1.0, p_correct)))


@lru_cache(maxsize=1024)
def _mu_lower_limit(canaries: int, guesses: int, correct: int, alpha: float) -> float:
    """The largest mu at which this many correct guesses have probability at most alpha, or 0."""

    def possible(mu: float) -> bool:
        return tail_probability(canaries, guesses, correct, mu) > alpha

    if possible(0.0):
        return 0.0
    return numerics.safe_root(possible, 0.0, _MAX_MU, _MU_TOLERANCE)


def _probability_correct(beyond: FloatArray, mu: float) -> FloatArray:
    """p(t) for given probabilities of a size above t, [n]."""
    # P[size > t] = S(t - mu/2) + S(t + mu/2) decreases in t.
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
    """Lower bound on epsilon from the most certain guesses of one run with independent canaries.

    Args:
        signed_scores: scores of the canaries [m]; a positive score guesses that the canary was
            included, and the size is the certainty of the guess.
        included: whether each canary was included, [m].
        guesses: the number of most certain guesses to evaluate, fixed before the run.
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
    confidence = check_confidence(confidence)
    values, coins = checked_canaries("signed_scores", signed_scores, included)
    checks.integer("guesses", guesses, 1, max(len(values), 1))
    most_certain = np.argsort(-np.abs(values), kind="stable")[:guesses]
    correct = int(np.sum((values > 0.0)[most_certain] == coins[most_certain]))
    mu = _mu_lower_limit(len(values), guesses, correct, 1.0 - confidence)
    return LowerBound(
        name="order-statistics",
        rule="fixed",
        epsilon=best_of_gaussian_epsilon(mu, Fixed(1), delta) if mu > 0.0 else 0.0,
        confidence=confidence,
        claim=_ORDER_STATISTICS,
        verdict=_ORDER_STATISTICS.validity(default_facts()),
        trials_without=int(np.sum(~coins)),
        trials_with=int(np.sum(coins)),
    )

"""Lower bound from one run whose canaries have Gaussian scores, by the values of the scores.

Canaries of unequal size need no correction (proposition 15 of docs/theory.md), but they must not
interact: if 1,000 canaries share one random size, each with the Gaussian trade-off curve of mu = 1,
the bound exceeds the true epsilon in about a third of all runs.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.arrays import FloatArray
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.estimator import check_confidence, default_facts
from audit.lower_bounds.gaussian_curves import best_of_gaussian_epsilon
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.scores import checked_canaries
from audit.numerics import safe_root
from audit.repetitions import Fixed

_MAX_MU = 20.0
_MU_TOLERANCE = 1e-4
# Probabilities at which the distribution of the variance is cut into cells. Each cell uses its
# smallest variance, which increases the p-value by about 1 %.
_CELL_EDGES = special.expit(np.linspace(-40.0, 40.0, 4001))
_CELL_MASSES = np.diff(_CELL_EDGES, prepend=0.0, append=1.0)

ASSUMPTIONS = (
    Assumption.NOT_TUNED,
    Assumption.GAUSSIAN_BASE,
    Assumption.GAUSSIAN_STATISTIC,
    Assumption.DISJOINT_CANARIES,
)
_T_TEST = Claim(
    Kind.BOUND,
    "this project: noncentral t",
    assumptions=ASSUMPTIONS,
    about=("one run with many canaries",),
)


def gaussian_canaries_bound(
    scores: ArrayLike, included: ArrayLike, delta: float = 1e-5, confidence: float = 0.95
) -> LowerBound:
    """Lower bound on epsilon from the t statistic of canaries with independent Gaussian scores.

    Args:
        scores: scores of the canaries, [m]; high if the canary was included. Infinite
            scores prove nothing.
        included: whether each canary was included, [m].
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        InvalidInput: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> included = rng.random(2000) < 0.5
        >>> bound = gaussian_canaries_bound(rng.normal(size=2000) + 0.5 * included, included)
        >>> round(bound.epsilon, 2)  # true value 1.99
        1.91
    """
    delta = checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    confidence = check_confidence(confidence)
    values, coins = checked_canaries("scores", scores, included)
    without, with_canary = values[~coins], values[coins]
    mu = mu_lower_limit(without, with_canary, 1.0 - confidence)
    return LowerBound(
        "gaussian-canaries",
        "t",
        best_of_gaussian_epsilon(mu, Fixed(1), delta) if mu > 0.0 else 0.0,
        float(confidence),
        _T_TEST,
        _T_TEST.validity(default_facts()),
        trials_without=len(without),
        trials_with=len(with_canary),
    )


def has_variance(without: FloatArray, with_canary: FloatArray) -> bool:
    """Whether both sides have a finite mean and a positive variance."""
    return min(len(without), len(with_canary)) >= 2 and all(
        np.isfinite(side).all() and np.ptp(side) > 0.0 for side in (without, with_canary)
    )


def mu_lower_limit(without: FloatArray, with_canary: FloatArray, alpha: float) -> float:
    """The largest mu that the t statistic of both sides refutes with error alpha, or 0."""
    if not has_variance(without, with_canary):
        return 0.0
    n0, n1 = len(without), len(with_canary)
    freedom = n0 + n1 - 2
    root_n = math.sqrt(n0 * n1 / (n0 + n1))
    pooled = math.sqrt((n0 * without.var() + n1 * with_canary.var()) / freedom)
    t = (with_canary.mean() - without.mean()) / pooled * root_n
    if t <= 0.0:
        return 0.0
    variances = 2.0 / freedom * special.gammaincinv(freedom / 2.0, _CELL_EDGES)
    smallest = t * np.sqrt(np.concatenate([[0.0], variances]))

    def possible(mu: float) -> bool:
        # The numerator is independent of the variance V (proposition 15), so P[T >= t] is the mean
        # over V of P[numerator >= t sqrt(V)].
        return float(_CELL_MASSES @ special.ndtr(mu * root_n - smallest)) > alpha

    return 0.0 if possible(0.0) else safe_root(possible, 0.0, _MAX_MU, _MU_TOLERANCE)

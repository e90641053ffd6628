r"""Lower bounds from one run whose canaries have Gaussian scores, by the values of the scores.

The other one-run bounds count correct guesses. These use the means and variances of the scores of
the canaries that were included and of those that were not.

`gaussian_canaries_bound` holds for every number of canaries. Given the coins, let the score of
canary i be :math:`N(a, s^2)` without and :math:`N(a + \mu_i s, s^2)` with the canary, independent
of the others, with :math:`\mu_i \le \mu`. Then the two-sample t statistic is at most a noncentral t
variable in distribution: its numerator has at most the mean of equal sizes :math:`\mu_i = \mu`, and
different sizes only increase the pooled variance in its denominator, which is independent of the
numerator. So canaries of unequal size need no correction.

`gaussian_pair_bound` is the idea of Agrawal et al. 2026 (arXiv 2606.12733): it fits one normal
distribution to each side, and takes the epsilon of this pair. Its confidence is only asymptotic. It
also requires canaries of equal size: the scores of unequal canaries have a larger variance, which
the pair reads as a larger epsilon. If half of 10,000 canaries have mu = 1.5 and the others have no
effect, the bound exceeds the true epsilon in 94 % of runs.

Both require canaries that do not interact. If 1,000 canaries share one random size, each with the
Gaussian trade-off curve of mu = 1, either bound exceeds the true epsilon in about a quarter of all
runs.
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
_MAX_EPSILON = 300.0
_EPSILON_TOLERANCE = 1e-6
# Steps of the numerical derivatives, in standard errors.
_STEP = 0.1

_ASSUMPTIONS = (
    Assumption.NOT_TUNED,
    Assumption.GAUSSIAN_BASE,
    Assumption.GAUSSIAN_STATISTIC,
    Assumption.DISJOINT_CANARIES,
)
_T_TEST = Claim(
    Kind.BOUND,
    "this project: noncentral t",
    assumptions=_ASSUMPTIONS,
    about=("one run with many canaries",),
)
_PAIR = Claim(
    Kind.ASYMPTOTIC,
    "after Agrawal et al. 2026, arXiv 2606.12733",
    assumptions=(Assumption.FAIR_COINS, *_ASSUMPTIONS),
    about=("one run with many canaries of equal size",),
)


def gaussian_canaries_bound(
    scores: ArrayLike, included: ArrayLike, delta: float = 1e-5, confidence: float = 0.95
) -> LowerBound:
    """Lower bound on epsilon from the t statistic of canaries with independent Gaussian scores.

    Args:
        scores: of the canaries [m]; high scores indicate that the canary was included. Infinite
            scores prove nothing.
        included: whether each canary was included, [m].
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> included = rng.random(2000) < 0.5
        >>> bound = gaussian_canaries_bound(rng.normal(size=2000) + 0.5 * included, included)
        >>> round(bound.epsilon, 2)  # true value 1.99
        1.91
    """
    without, with_canary = _checked_sides(scores, included, delta, confidence)
    mu = mu_lower_limit(without, with_canary, 1.0 - confidence)
    epsilon = best_of_gaussian_epsilon(mu, Fixed(1), delta) if mu > 0.0 else 0.0
    return _bound("gaussian-canaries", "t", epsilon, confidence, _T_TEST, without, with_canary)


def gaussian_pair_bound(
    scores: ArrayLike, included: ArrayLike, delta: float = 1e-5, confidence: float = 0.95
) -> LowerBound:
    """Asymptotic lower bound on epsilon from one normal distribution fitted to each side.

    The limit of epsilon is that of the delta method, for the fitted gap of the means and the fitted
    ratio of the standard deviations.

    Args:
        scores: of the canaries [m], high or low if the canary was included; infinite scores prove
            nothing.
        included: whether each canary was included, [m].
        delta: in (0, 1).
        confidence: in (0, 1).

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> included = rng.random(2000) < 0.5
        >>> bound = gaussian_pair_bound(rng.normal(size=2000) + 0.5 * included, included)
        >>> round(bound.epsilon, 2), bound.label  # true value 1.99
        (1.35, 'asymptotic')
    """
    checks.interval("delta", delta, 0.0, 1.0)
    without, with_canary = _checked_sides(scores, included, delta, confidence)
    epsilon = _pair_lower_limit(without, with_canary, delta, 1.0 - confidence)
    return _bound("gaussian-pair", "asymptotic", epsilon, confidence, _PAIR, without, with_canary)


def _checked_sides(
    scores: ArrayLike, included: ArrayLike, delta: float, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """The scores without and with the canary."""
    checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    check_confidence(confidence)
    values, coins = checked_canaries("scores", scores, included)
    return values[~coins], values[coins]


def _bound(
    name: str,
    rule: str,
    epsilon: float,
    confidence: float,
    claim: Claim,
    without: FloatArray,
    with_canary: FloatArray,
) -> LowerBound:
    verdict = claim.validity(default_facts())
    return LowerBound(
        name,
        rule,
        epsilon,
        float(confidence),
        claim,
        verdict,
        trials_without=len(without),
        trials_with=len(with_canary),
    )


def _testable(without: FloatArray, with_canary: FloatArray) -> bool:
    """Whether both sides have a finite mean and a positive variance."""
    return min(len(without), len(with_canary)) >= 2 and all(
        np.isfinite(side).all() and np.ptp(side) > 0.0 for side in (without, with_canary)
    )


def mu_lower_limit(without: FloatArray, with_canary: FloatArray, alpha: float) -> float:
    """The largest mu that the t statistic refutes with error alpha, or 0.

    Args:
        without: scores of the canaries that were not included, [n0].
        with_canary: scores of the canaries that were included, [n1].
        alpha: error of the test.
    """
    if not _testable(without, with_canary):
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
        return float(_CELL_MASSES @ special.ndtr(mu * root_n - smallest)) > alpha

    return 0.0 if possible(0.0) else safe_root(possible, 0.0, _MAX_MU, _MU_TOLERANCE)


def _pair_lower_limit(
    without: FloatArray, with_canary: FloatArray, delta: float, alpha: float
) -> float:
    if not _testable(without, with_canary):
        return 0.0
    n0, n1 = len(without), len(with_canary)
    scale = without.std(ddof=1)
    gap = (with_canary.mean() - without.mean()) / scale
    log_ratio = math.log(with_canary.std(ddof=1) / scale)
    estimate = np.array([gap, log_ratio])
    covariance = np.array(
        [
            [(1.0 + gap**2 / 2.0) / n0 + math.exp(2.0 * log_ratio) / n1, gap / (2.0 * n0)],
            [gap / (2.0 * n0), 0.5 / n0 + 0.5 / n1],
        ]
    )
    slopes = []
    for step in _STEP * np.diag(np.sqrt(np.diag(covariance))):
        up, down = (
            pair_epsilon(end[0], end[1], delta) for end in (estimate + step, estimate - step)
        )
        slopes.append((up - down) / (2.0 * step.sum()))
    error = math.sqrt(np.array(slopes) @ covariance @ np.array(slopes))
    return max(pair_epsilon(gap, log_ratio, delta) + float(special.ndtri(alpha)) * error, 0.0)


def pair_epsilon(gap: float, log_ratio: float, delta: float) -> float:
    """Epsilon of N(0, 1) against N(gap, r^2) at delta, the larger of both directions.

    Args:
        gap: of the means.
        log_ratio: log r.
        delta: in (0, 1).
    """
    ratio = math.exp(log_ratio)
    directions = ((gap, ratio), (gap / ratio, 1.0 / ratio))

    def excess(epsilon: float) -> float:
        return max(_hockey_stick(epsilon, *pair) for pair in directions) - delta

    # The result is an estimate, so the side to which it is rounded does not matter.
    return safe_root(excess, _MAX_EPSILON, 0.0, _EPSILON_TOLERANCE)


def _hockey_stick(epsilon: float, mean: float, deviation: float) -> float:
    """Hockey-stick divergence of N(mean, deviation^2) from N(0, 1)."""
    # The log of the ratio of the densities exceeds epsilon where a x^2 + b x + c > 0.
    a, b = 0.5 - 0.5 / deviation**2, mean / deviation**2
    c = -0.5 * (mean / deviation) ** 2 - math.log(deviation) - epsilon
    discriminant = b * b - 4.0 * a * c
    if discriminant <= 0.0:  # everywhere, or nowhere
        return -math.expm1(epsilon) if a > 0.0 else 0.0
    # Stable roots. One is infinite if the deviations are equal.
    q = -0.5 * (b + math.copysign(math.sqrt(discriminant), b))
    low, high = sorted((c / q, q / a if a != 0.0 else math.copysign(math.inf, q)))

    def between(mean: float, deviation: float) -> tuple[float, float]:
        below = float(special.ndtr((low - mean) / deviation))
        above = float(special.ndtr((mean - high) / deviation))
        return 1.0 - below - above, below + above

    (inside, outside), (inside_0, outside_0) = between(mean, deviation), between(0.0, 1.0)
    growth = math.exp(epsilon)
    # With equal deviations, the region is a ray.
    if a >= 0.0:
        return outside - growth * outside_0
    return inside - growth * inside_0

r"""Asymptotic lower bound from one run whose canaries have Gaussian scores of equal size.

It is the idea of Agrawal et al. 2026 (arXiv 2606.12733): fit one normal distribution to the scores
of each side, and take the epsilon of this pair. The confidence is only asymptotic. The canaries
must have equal size: the scores of unequal canaries have a larger variance, which increases the
epsilon of the fitted pair. If half of 10,000 canaries have mu = 1.5 and the others have no effect,
the bound exceeds the true epsilon in 94 % of runs.

The study uses it for comparison: `gaussian_canaries_bound` proves more, for every number of
canaries.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.estimator import LowerBound, default_facts
from audit.lower_bounds.families import ASSUMPTIONS, gaussian_canaries_bound, has_variance
from audit.numerics import FloatArray, safe_root

_MAX_EPSILON = 300.0
_EPSILON_TOLERANCE = 1e-6
# Steps of the numerical derivatives, in standard errors.
_STEP = 0.1

_PAIR = Claim(
    Kind.ASYMPTOTIC,
    "after Agrawal et al. 2026, arXiv 2606.12733",
    assumptions=(Assumption.FAIR_COINS, *ASSUMPTIONS),
    about=("one run with many canaries of equal size",),
)


def gaussian_pair_bound(
    scores: ArrayLike, included: ArrayLike, delta: float = 1e-5, confidence: float = 0.95
) -> LowerBound:
    """Asymptotic lower bound on epsilon from one normal distribution fitted to each side.

    The delta method gives the confidence limit, for the fitted difference of the means and the
    fitted ratio of the standard deviations.

    Args:
        scores: scores of the canaries [m], either higher or lower if the canary was included; if
            one is infinite, the bound is 0.
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
    # This bound also checks the arguments.
    canaries_bound = gaussian_canaries_bound(scores, included, delta, confidence)
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(included)
    epsilon = _pair_lower_limit(values[~coins], values[coins], delta, 1.0 - confidence)
    return replace(
        canaries_bound,
        name="gaussian-pair",
        rule="asymptotic",
        epsilon=epsilon,
        claim=_PAIR,
        verdict=_PAIR.validity(default_facts()),
    )


def _pair_lower_limit(
    without: FloatArray, with_canary: FloatArray, delta: float, alpha: float
) -> float:
    if not has_variance(without, with_canary):
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
    """Epsilon of N(0, 1) against N(gap, r^2) at delta, the larger of both directions."""
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

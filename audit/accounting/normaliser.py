"""Privacy cost of a normaliser that depends on the number of records.

Opacus divides a noisy sum by B = int(n * rate). If n records give B and n - 1 records give B - 1,
the released noise has standard deviation sigma C / B on one data set and sigma C / (B - 1) on the
other. With all gradients zero, the sum of squares of N released values is a sufficient statistic.
Its privacy profile is exact (proposition 22 of docs/theory.md), by the gamma distribution of half
the sum, with shape a = N/2.
"""

import math

import numpy as np
from scipy import special

from audit import checks
from audit.accounting.conversion import solve_epsilon
from audit.errors import DeltaUnreachable, InvalidInput

# In standard deviations. Beyond 4.5, scipy's incomplete gamma functions sum at most 2,000 terms of
# a series, which is too few for large shapes.
_CENTRAL = 4.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)
_SERIES = 1e-2
_MAX_COUNT = 10**15  # integers up to here, and half of them, are exact as doubles


def normaliser_delta(epsilon: float, batch_size: int, parameters: int, steps: int = 1) -> float:
    """Smallest delta at epsilon of released noise whose divisor is B or B - 1.

    All gradients are zero, so this is the cost of the normaliser alone: DP-SGD that divides by B on
    n records and by B - 1 on n - 1 records is not (epsilon, delta)-DP for any smaller delta under
    add-remove neighbours. The noise multiplier does not matter.

    Args:
        epsilon: >= 0.
        batch_size: B, the divisor of the noisy sum on the larger data set, >= 2.
        parameters: number of trained parameters, >= 1.
        steps: number of steps whose noisy gradients are released, >= 1. If only the last iterate
            is released, an observer with the previous iterate sees one step.

    Returns:
        delta in [0, 1], exact up to a rounding of about 1e-12.

    Raises:
        InvalidInput: an argument is out of its range.

    Example:
        >>> round(normaliser_delta(47.0, batch_size=120, parameters=4810, steps=60), 7)
        1e-05
    """
    epsilon = checks.interval("epsilon", epsilon, 0.0, closed_low=True)
    return _delta(epsilon, *_shape_and_ratio(batch_size, parameters, steps))


def normaliser_epsilon(delta: float, batch_size: int, parameters: int, steps: int = 1) -> float:
    """Smallest epsilon at delta of released noise whose divisor is B or B - 1, rounded up.

    See `normaliser_delta`, also for the arguments. Compare the result with the epsilon that an
    accountant reports: if it is larger, add-remove neighbours must not be claimed for a divisor
    that depends on n.

    Raises:
        InvalidInput: an argument is out of its range.

    Example:
        >>> round(normaliser_epsilon(1e-5, batch_size=1024, parameters=11_000_000), 1)
        29.4
    """
    shape, log_ratio = _shape_and_ratio(batch_size, parameters, steps)
    delta = checks.interval("delta", delta, 0.0, 1.0)
    try:
        return solve_epsilon(lambda epsilon: _delta(epsilon, shape, log_ratio), delta)
    except DeltaUnreachable as error:  # the profile falls to 0, but the search ends at epsilon 1e12
        raise InvalidInput(
            "parameters * steps must give an epsilon below 1e12, got "
            f"{checks.one_line(int(2 * shape))} at batch_size {batch_size!r}"
        ) from error


def _shape_and_ratio(batch_size: int, parameters: int, steps: int) -> tuple[float, float]:
    """Shape a = N/2 of the gamma distribution, and log r."""
    size = checks.integer("batch_size", batch_size, 2, _MAX_COUNT)
    count = checks.integer("parameters", parameters, 1) * checks.integer("steps", steps, 1)
    count = checks.integer("parameters * steps", count, 1, _MAX_COUNT)
    return 0.5 * count, -2.0 * math.log1p(-1.0 / size)


def _delta(epsilon: float, shape: float, log_ratio: float) -> float:
    slope = -math.expm1(-log_ratio)  # 1 - 1/r, the loss per unit of S/2
    # The loss is +-epsilon at shape + these.
    above = (shape * _exponential_gap(log_ratio) + epsilon) / slope
    below = (shape * _exponential_gap(log_ratio) - epsilon) / slope
    upper = _difference(shape, above, log_ratio, epsilon, 1.0)
    if shape + below <= 0.0:
        return upper
    return max(upper, _difference(shape, below, log_ratio, epsilon, -1.0))


def _difference(
    shape: float, excess: float, log_ratio: float, epsilon: float, side: float
) -> float:
    """P[beyond c / r] - e^eps P[beyond c] above c, or the same with both exchanged below c."""
    at_one = _log_tail(shape, excess, shape + excess, side)
    # The excess of c / r, computed directly, so that no digits are lost if r is close to 1.
    ratio = math.exp(-log_ratio)
    scaled = excess * ratio + shape * math.expm1(-log_ratio)
    at_ratio = _log_tail(shape, scaled, (shape + excess) * ratio, side)
    larger, smaller = (at_ratio, at_one) if side > 0.0 else (at_one, at_ratio)
    if larger == -math.inf:
        return 0.0
    return max(0.0, math.exp(larger) * -math.expm1(min(epsilon + smaller - larger, 0.0)))


def _log_tail(shape: float, excess: float, x: float, side: float) -> float:
    """log of a gamma distribution's mass above x = shape + excess (side 1) or below it (-1)."""
    central = _CENTRAL * math.sqrt(shape) + 1.0
    if side * excess > central:
        return _log_far_tail(shape, excess, x, side)
    if side * excess < -central:
        return math.log1p(-math.exp(_log_far_tail(shape, excess, x, -side)))
    mass = float((special.gammaincc if side > 0.0 else special.gammainc)(shape, x))
    if mass > 0.0:
        return math.log(mass)
    # Near 0 the mass below x is x^a / Gamma(a + 1), even if that is too small for a double.
    return shape * math.log(max(x, 5e-324)) - float(special.gammaln(shape + 1.0))


def _log_far_tail(shape: float, excess: float, x: float, side: float) -> float:
    """log of the mass beyond x: the density there times an integral over the distance from x.

    The logarithm of the density falls at least as fast as its tangent; where it is convex (above,
    for shape < 1), at least as fast as -t. So 40 inverse slopes reach far enough.
    """
    slope = side * (excess + 1.0) / x
    end = 40.0 / min(slope, 1.0) if side > 0.0 else min(40.0 / slope, x)
    t = 0.5 * end * (_NODES + 1.0)
    heights = np.exp((shape - 1.0) * np.log1p(side * t / x) - side * t)
    return _log_density(shape, excess, x) + math.log(0.5 * end * float(_WEIGHTS @ heights))


def _log_density(shape: float, excess: float, x: float) -> float:
    """log of the gamma density at x = shape + excess, without large terms that cancel."""
    # a log a - a - log Gamma(a): by Stirling's series where its terms are large.
    if shape > 1e3:
        constant = 0.5 * math.log(shape / (2.0 * math.pi)) - 1.0 / (12.0 * shape)
        constant += 1.0 / (360.0 * shape**3)
    else:
        constant = shape * math.log(shape) - shape - float(special.gammaln(shape))
    relative = excess / shape
    if abs(relative) > _SERIES:
        gap = relative - math.log(x / shape)
    else:  # the series of relative - log(1 + relative)
        gap = sum((-relative) ** k / k for k in range(9, 1, -1))
    return constant - math.log(x) - shape * gap


def _exponential_gap(x: float) -> float:
    """x - (1 - e^-x) for x > 0, by its series where both are nearly equal."""
    if x > _SERIES:
        return x + math.expm1(-x)
    return sum((-x) ** k / math.factorial(k) for k in range(9, 1, -1))

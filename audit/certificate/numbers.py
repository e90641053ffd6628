"""Numbers of a certificate, computed from the base mechanism, the protocol and delta."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks, numerics
from audit.accounting import DeltaUnreachable, Mechanism
from audit.errors import InvalidInput
from audit.numerics import PROFILE_ACCURACY, FloatArray
from audit.protocols import Protocol
from audit.typed_json import Chance, Keywords, NonNegative, Share, Text
from audit.upper_bounds import TuningCosts, costs_of

DELTAS = (
    *(0.8, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01),
    *(1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e-12, 1e-14),
)
"""Deltas at which the privacy profile of the tuning is tabulated, in addition to its own."""

GROUPS = (2, 3, 5, 10)
"""Group sizes whose epsilon is stated, in addition to the author's own."""

FALSE_POSITIVES = (0.0, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
"""Rates of false positives at which the trade-off curve is tabulated."""

_SHIFT_TOLERANCE = 1e-6
_MAX_GROUP = 100
_MAX_ROWS = 100
_MAX_EXPONENT = 300.0  # of exp, so that products stay finite
_STEEPEST = 700.0  # exponents up to which powers of e are finite numbers
_MAX_LOG_RATE = 1e300  # its negative is the logarithm of a rate of 0
_ON_THE_CURVE = 1e-12
_NEAR = 1.01  # bounds within this factor of the smallest are also computed at other deltas


@dataclass(frozen=True)
class PrivacyPoint:
    """One point of a privacy profile: the tuning is (epsilon, delta)-DP.

    Attributes:
        delta: in (0, 1).
        epsilon: >= 0, rounded up.

    Example:
        >>> PrivacyPoint(delta=1e-5, epsilon=2.0).epsilon
        2.0
    """

    delta: Chance
    epsilon: NonNegative


@dataclass(frozen=True)
class Numbers:
    """All numbers that follow from the base mechanism, the protocol and delta.

    Attributes:
        run_epsilon: epsilon of a single run at delta; None if no epsilon reaches delta.
        epsilon: epsilon of the tuning at delta.
        bounds: names of the bounds that were computed; the first one gives `epsilon`.
        source: theorem of the first bound.
        assumes: assumptions of the first bound.
        attained: epsilon that a known attack attains on the worst score, rounded down, or None.
        profile: privacy profile of the tuning, in decreasing order of delta.
        trade_off: [n, 2] pairs: a rate of false positives, and the smallest rate of false
            negatives that any attack can have there.
        advantage: membership advantage: the largest difference of the rates of true and false
            positives.
        true_positives: largest rates of true positives at 1 % and at 0.1 % false positives.
        mu: smallest mu whose Gaussian trade-off curve lies at most delta above that of the tuning.
        mu_regret: largest distance between both curves (Gomez et al. 2025). If it is near 0, mu
            describes the tuning well.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.protocols import parse_protocol
        >>> compute(GaussianMechanism(0.5), parse_protocol("fixed:1"), 1e-5, ["region"]).bounds
        ('region',)
    """

    run_epsilon: NonNegative | None
    epsilon: NonNegative
    bounds: Annotated[tuple[Text, ...], Keywords(minItems=1, uniqueItems=True)]
    source: Text
    assumes: str
    attained: NonNegative | None
    profile: Annotated[tuple[PrivacyPoint, ...], Keywords(minItems=1)]
    trade_off: tuple[tuple[Share, Share], ...]
    advantage: Share
    true_positives: tuple[Share, Share]
    mu: NonNegative
    mu_regret: NonNegative

    def __post_init__(self) -> None:
        if not self.bounds:
            raise InvalidInput("bounds must name the bounds that were computed, got none")
        # Verifying a file with many rows would take too long.
        rows = max(map(len, (self.bounds, self.profile, self.trade_off)))
        if rows > _MAX_ROWS:
            raise InvalidInput(f"numbers must be at most {_MAX_ROWS} in a list, got {rows}")

    @property
    def curve(self) -> "TradeOff":
        """The trade-off curve that follows from the profile."""
        return TradeOff(self.profile)


def compute(
    base: Mechanism, protocol: Protocol, delta: float, bounds: Sequence[str] = ()
) -> Numbers:
    """All numbers of a certificate.

    Args:
        base: the base mechanism, one run.
        protocol: the tuning protocol.
        delta: delta of the tuning, in (0, 1).
        bounds: names of bounds. By default, all bounds that hold for every score and are within 1 %
            of the smallest, and at least one that is quick. The costs at other deltas are by quick
            values of these bounds, slightly above them, so that a certificate is verified within
            seconds.

    Raises:
        DeltaUnreachable: no bound reaches delta.
        InvalidInput: a bound is unknown, is named twice, or does not hold for every score.

    Example:
        >>> from audit import protocols
        >>> from audit.accounting import GaussianMechanism
        >>> one_run = protocols.parse_protocol("fixed:1")
        >>> numbers = compute(GaussianMechanism(0.5), one_run, 1e-5, ["region"])
        >>> round(numbers.epsilon, 3), round(numbers.true_positives[0], 3)
        (1.993, 0.035)
    """
    check_different(bounds)
    costs = costs_of(base, protocol, delta)
    at_delta = costs.within(_NEAR, bounds)
    if not bounds and not costs.quick_names([bound.name for bound in at_delta]):
        # Only slow bounds are near the smallest, so a quick one gives the costs at other deltas.
        applying = costs.within(math.inf)
        at_delta += [bound for bound in applying if costs.quick_names([bound.name])][:1]
    names = tuple(bound.name for bound in at_delta)
    at_other_deltas = costs.quick_names(names) or names
    smallest = at_delta[0]
    points = [PrivacyPoint(delta, smallest.epsilon)]
    for other_delta in DELTAS:
        if other_delta == delta:
            continue
        try:
            points.append(PrivacyPoint(other_delta, costs.epsilon_at(other_delta, at_other_deltas)))
        except DeltaUnreachable:
            continue  # no epsilon reaches this delta
    return Numbers(
        run_epsilon=epsilon_of_run(base, delta),
        bounds=names,
        source=smallest.source,
        assumes=smallest.assumes,
        attained=largest_attained(costs),
        **derived(tuple(sorted(points, key=lambda point: -point.delta)), delta),
    )


def check_different(bounds: Sequence[str]) -> None:
    """Raises InvalidInput if a bound is named twice."""
    if len(set(bounds)) != len(bounds):
        raise InvalidInput(f"bounds must be different ones, got {checks.one_line(bounds)}")


def epsilon_of_run(base: Mechanism, delta: float) -> float | None:
    """Epsilon of one run; None if none reaches delta."""
    try:
        return base.epsilon(delta)
    except DeltaUnreachable:
        return None


def largest_attained(costs: TuningCosts) -> float | None:
    """The largest epsilon that a score is known to attain; None if none is known."""
    return max((bound.epsilon for bound in costs.attained), default=None)


def derived(profile: tuple[PrivacyPoint, ...], delta: float) -> dict[str, Any]:
    """The numbers that follow from a privacy profile, which contains a point at delta, by name."""
    curve = TradeOff(profile)
    mu = curve.mu(delta)
    false_negatives = curve.false_negatives(FALSE_POSITIVES)
    return {
        "epsilon": next(point.epsilon for point in profile if point.delta == delta),
        "profile": profile,
        "trade_off": tuple(zip(FALSE_POSITIVES, false_negatives.tolist(), strict=True)),
        "advantage": curve.advantage,
        "true_positives": (
            1.0 - float(curve.false_negatives(0.01)),
            1.0 - float(curve.false_negatives(0.001)),
        ),
        "mu": mu,
        "mu_regret": curve.regret(mu),
    }


@dataclass(frozen=True)
class TradeOff:
    """Trade-off curve that the points of a privacy profile imply: a maximum of lines."""

    points: tuple[PrivacyPoint, ...]  # points of the profile

    def false_negatives(self, false_positives: ArrayLike) -> FloatArray:
        """Smallest rates of false negatives [n] at rates of false positives [n], rounded down."""
        rates = np.asarray(false_positives, dtype=np.float64)
        smallest = np.zeros_like(rates)
        for point in self.points:
            without_delta, ratio = 1.0 - point.delta, np.exp(-point.epsilon)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                fall = np.where(rates > 0.0, rates / ratio, 0.0)  # infinite if the ratio underflows
            # Where both are nearly equal, their difference would otherwise be rounded up.
            fall *= 1.0 + numerics.FLOAT_ROUNDING
            smallest = np.maximum(smallest, without_delta - fall)
            smallest = np.maximum(smallest, ratio * (without_delta - rates))
        return smallest

    @property
    def advantage(self) -> float:
        """Largest difference of true and false positive rates, where both errors are equal."""
        equal = max((1.0 - point.delta) * special.expit(-point.epsilon) for point in self.points)
        return float(1.0 - 2.0 * equal)

    def _vertices(self) -> FloatArray:
        """Logarithms of the rates [n] at which a line of slope -e^epsilon meets a flatter one.

        Each point (delta, epsilon) has the lines 1 - delta - e^epsilon x and
        e^-epsilon (1 - delta - x), which are reflections of each other, as f is its own reflection:
        every vertex of f is one of these, or the reflection of one. The heights of the lines are
        stored as their distances to 1, because small deltas would vanish in 1 - delta.
        """
        epsilons = np.array([point.epsilon for point in self.points])
        deltas = np.array([point.delta for point in self.points])
        flat = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas
        # Distances to 1 at a rate of 0, and logarithms of the slopes, of all lines and of the axis.
        distances = np.concatenate([deltas, flat, [1.0]])
        log_slopes = np.concatenate([epsilons, -epsilons, [-np.inf]])
        # Crossings with a steeper line are not numbers here; they are found from that line.
        with np.errstate(all="ignore"):
            log_rates = (
                np.log(distances - deltas[:, None])
                - epsilons[:, None]
                - np.log(-np.expm1(log_slopes - epsilons[:, None]))
            ).ravel()
        return np.unique(log_rates[np.isfinite(log_rates) & (log_rates < 0.0)])

    def _quantiles(self, log_rates: FloatArray, slack: float) -> FloatArray:
        """Normal quantiles [n] of 1 - slack - f at rates [n], rounded up.

        Where f + slack is near 1, 1 - slack - f is computed, and where it is near 0, f + slack, so
        that small numbers keep their digits. The quantile is infinite where f + slack is 0, and
        where it is at least 1 (then with a minus).
        """
        epsilons = np.array([point.epsilon for point in self.points])
        deltas = np.array([point.delta for point in self.points])
        # The sum of two large numbers loses digits.
        falls = np.exp(np.minimum(log_rates[:, None] + epsilons, _STEEPEST))
        falls *= 1.0 + numerics.FLOAT_ROUNDING * (1.0 + np.abs(log_rates[:, None]) + epsilons)
        ratios, rates = np.exp(-epsilons), np.exp(log_rates)[:, None]
        flat = ratios * (1.0 - deltas - rates) * (1.0 - numerics.FLOAT_ROUNDING)
        heights = np.maximum(np.maximum(1.0 - deltas - falls, flat).max(axis=1), 0.0)
        heights = heights * (1.0 - numerics.FLOAT_ROUNDING) + slack
        # For the point whose delta is the slack, nothing cancels.
        above = deltas - slack
        steep_missing = above + falls + numerics.FLOAT_ROUNDING * np.abs(above)
        below, kept = -np.expm1(-epsilons), ratios * (deltas + rates)
        flat_missing = below - slack + kept + numerics.FLOAT_ROUNDING * (below + slack + kept)
        missing = np.minimum(steep_missing, flat_missing).min(axis=1)
        with np.errstate(invalid="ignore"):
            return np.where(
                heights > 0.5, special.ndtri(np.maximum(missing, 0.0)), -special.ndtri(heights)
            )

    def mu(self, slack: float) -> float:
        """Smallest mu, rounded up, with f_mu <= f + slack everywhere, for a slack above some delta.

        f_mu is convex and f is piecewise linear, so the vertices of f decide.
        """
        log_rates = self._vertices()
        gaps = self._quantiles(log_rates, slack) - special.ndtri_exp(log_rates)
        # The reflected vertices, at a rate of f(x), where f is x; one is that of the rate 0.
        log_rates = np.append(log_rates, -_MAX_LOG_RATE)
        heights = np.minimum(np.exp(log_rates) + slack, 1.0)
        quantiles = self._quantiles(log_rates, 0.0)
        reflects = np.isfinite(quantiles)  # not where f is 0
        reflected = quantiles[reflects] - special.ndtri(heights[reflects])
        largest = max(np.max(gaps, initial=0.0), np.max(reflected, initial=0.0))
        return float(largest) * (1.0 + PROFILE_ACCURACY)

    def group_epsilon(self, size: int, delta: float) -> float | None:
        """Epsilon at delta of a group of records, rounded up; None if no epsilon follows.

        With g = 1 - f, a group of k records has the trade-off curve 1 - g(g(...g(a))), k times
        (Dong, Roth and Su 2022, theorem 2.14). It implies (epsilon, delta) if that chain is at most
        delta + e^epsilon a for every a. The chain is concave and piecewise linear, so the largest
        (chain - delta) / a lies at one of its vertices. Above 100 records, no epsilon is computed.
        """
        points = [
            (point.delta, point.epsilon) for point in self.points if point.epsilon < _MAX_EXPONENT
        ]
        if size > _MAX_GROUP or not points:
            return None
        # g is the minimum of these lines, written such that small numbers keep their accuracy.
        rise, drop = np.array(points).T
        ratio = np.exp(-drop)
        intercept = np.concatenate([rise, -np.expm1(-drop) + ratio * rise])
        slope = np.concatenate([1.0 / ratio, ratio])

        def lifted(rates: FloatArray) -> FloatArray:
            lines = intercept + slope * rates[:, None]
            return np.minimum(lines.min(axis=1), 1.0)

        def before(powers: FloatArray) -> FloatArray:
            return ((powers[:, None] - intercept) / slope).max(axis=1)

        with np.errstate(divide="ignore", invalid="ignore"):
            meets = (intercept[:, None] - intercept) / (slope - slope[:, None])
        places = np.concatenate([meets.ravel(), (1.0 - intercept) / slope])
        # Keep only intersections on the curve, so that the number of vertices stays small.
        lines = np.concatenate(
            [np.repeat(np.arange(len(slope)), len(slope)), np.arange(len(slope))]
        )
        real = (places > 0.0) & (places < 1.0)
        places, lines = places[real], lines[real]
        on = intercept[lines] + slope[lines] * places <= lifted(places) * (1.0 + _ON_THE_CURVE)
        bends = np.unique(places[on])

        all_bends = bends
        for _ in range(size - 1):
            inner = all_bends[all_bends > lifted(np.zeros(1))]
            all_bends = np.unique(np.concatenate([bends, before(inner)]))
        chain = np.concatenate([[0.0], all_bends, [1.0]])
        rates = chain
        for _ in range(size):
            chain = lifted(chain)
        if chain[0] >= delta:
            return None  # an attack without false positives may exceed delta
        largest = float(np.max((chain[1:] - delta) / rates[1:], initial=0.0))
        return math.log(largest) * (1.0 + PROFILE_ACCURACY) if largest > 1.0 else 0.0

    def regret(self, mu: float) -> float:
        """Smallest shift k, rounded up, with f(a + k) - k <= f_mu(a) for every a."""
        rates = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 2000)])
        gaussian = special.ndtr(-special.ndtri(rates) - mu)

        def too_small(shift: float) -> bool:
            moved = self.false_negatives(np.minimum(rates + shift, 1.0)) - shift
            return bool(np.any(moved > gaussian))

        return numerics.safe_root(too_small, 1.0, 0.0, _SHIFT_TOLERANCE)

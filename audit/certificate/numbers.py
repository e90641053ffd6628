"""Numbers of a certificate, computed from the base mechanism, the protocol and delta."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks, numerics
from audit.accounting import DeltaUnreachable, Mechanism
from audit.arrays import FloatArray
from audit.errors import InvalidInput
from audit.numerics import PROFILE_ACCURACY, format_rounded
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
_STEEPEST = 700.0  # epsilon up to which slopes e^epsilon are finite numbers
_ON_THE_CURVE = 1e-12
_NEAR = 1.01  # bounds within this factor of the smallest are also computed at other deltas


def rounded_up(value: float, digits: int = 4) -> str:
    """Formats a number, rounded up.

    Example:
        >>> rounded_up(2.40001), rounded_up(2.4), rounded_down(2.39999)
        ('2.401', '2.4', '2.399')
    """
    return format_rounded(value, up=True, digits=digits)


def rounded_down(value: float, digits: int = 4) -> str:
    """Formats a number, rounded down."""
    return format_rounded(value, up=False, digits=digits)


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
        """Rates of the vertices, without those of lines that are too steep: see `_near_zero`."""
        lines = []
        for point in self.points:
            without_delta, ratio = 1.0 - point.delta, math.exp(-point.epsilon)
            lines.append((ratio * without_delta, ratio))
            if point.epsilon <= _STEEPEST:
                lines.append((without_delta, 1.0 / ratio))
        lines.append((0.0, 0.0))
        rates = [0.0, 1.0]
        for (a, b), (c, d) in itertools.combinations(lines, 2):
            if b != d:
                rates.append((a - c) / (b - d))
        crossings = np.unique(np.array(rates))
        return crossings[(crossings >= 0.0) & (crossings <= 1.0)]

    def _near_zero(self) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the rates [n] of the vertices of too steep lines, and the heights there."""
        epsilons = np.array([point.epsilon for point in self.points])
        without_delta = 1.0 - np.array([point.delta for point in self.points])
        flat_heights = np.exp(-epsilons) * without_delta
        # Heights at a rate of 0, and logarithms of the slopes, of all lines and of the axis.
        heights = np.concatenate([without_delta, flat_heights, [0.0]])
        log_slopes = np.concatenate([epsilons, -epsilons, [-np.inf]])
        too_steep = epsilons > _STEEPEST
        # Crossings with a steeper line are not numbers here; they are found from that line.
        with np.errstate(all="ignore"):
            log_rates = (
                np.log(without_delta[too_steep, None] - heights)
                - epsilons[too_steep, None]
                - np.log(-np.expm1(log_slopes - epsilons[too_steep, None]))
            ).ravel()
        log_rates = np.unique(log_rates[np.isfinite(log_rates) & (log_rates < 0.0)])
        # The sum of two large numbers loses digits, so that the heights are rounded down.
        log_falls = log_rates[:, None] + epsilons * (1.0 + numerics.FLOAT_ROUNDING)
        falls = np.exp(np.minimum(log_falls, _STEEPEST))
        lines = np.maximum(without_delta - falls, flat_heights)
        return log_rates, np.maximum(lines, 0.0).max(axis=1)

    def mu(self, slack: float) -> float:
        """Smallest mu, rounded up, with f_mu <= f + slack everywhere, for a slack above some delta.

        f_mu is convex and f is piecewise linear, so the vertices of f decide.
        """
        rates = self._vertices()
        rates = rates[(rates > 0.0) & (rates < 1.0)]
        log_rates, heights = self._near_zero()
        quantiles = np.concatenate([special.ndtri(rates), special.ndtri_exp(log_rates)])
        reached = np.concatenate([self.false_negatives(rates), heights]) + slack
        inside = (reached > 0.0) & (reached < 1.0)
        gaps = -quantiles[inside] - special.ndtri(reached[inside])
        return float(np.max(gaps, initial=0.0)) * (1.0 + PROFILE_ACCURACY)

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

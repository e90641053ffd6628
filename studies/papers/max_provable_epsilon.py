"""The largest epsilon that any estimator can prove in a game with known distributions.

`max_detectable_epsilon` assumes that every trial is recognised. This module considers one game. An
estimator that is valid for every score must not reject a game that is (epsilon, delta)-DP more
often than its error. If such a game is so close to the given one that the trials hardly distinguish
the two, hardly any audit can prove more than epsilon, whichever score the estimator uses.

Proof. Let P and P' be the distributions of one trial, Q and Q' those of a game that is
(epsilon, delta)-DP, and A the event that the estimator shows more than epsilon. In n + n trials of
the second game, A has probability at most alpha. For every t >= 1, its probability in the first
game is then at most

    t alpha + E_t(P^n x P'^n || Q^n x Q'^n),  E_t the hockey-stick divergence of order t,

by the definition of E_t. `compose` bounds E_t from above. Every choice of Q and Q' gives a valid
result; a good choice gives a small one. The pair that minimises KL(P || Q) + KL(P' || Q') under
(epsilon, delta)-DP has multipliers l1 and l2 for the sums of Q and Q', and a share a in [0, 1] of
l2 e^-epsilon, the largest multiplier that the hockey stick can have. For every output

    Q = P / l1,                          Q' = P' / l2             if neither exceeds the other,
    Q' = (P + P') / (l1 e^epsilon + l2), Q = e^epsilon Q'         if they are tied,
    Q = P / (l1 + a l2 e^-epsilon),      Q' = P' / (l2 (1 - a))   if Q is above e^epsilon Q',

and the same with the roles exchanged if Q' is the larger, with its own share. These formulas are
homogeneous in (l1, l2). So the ratio l2/l1 makes both sums equal, and a common factor makes them 1,
which keeps the ties. At a = 1, every output that could exceed is tied, so every game has some
(Q, Q').
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from audit import checks
from audit.accounting import DeltaUnreachable, DiscreteMechanism, Unresolved, compose
from audit.lower_bounds.estimator import check_confidence
from audit.numerics import FloatArray, safe_root

# Relative accuracy of the smallest epsilon, and the orders log t of the hockey sticks.
_STEP = 0.002
_LOG_T = np.linspace(0.0, 12.0, 121)
_CELLS = 1 << 13
_LARGEST = 25.0
# The two directions are adjusted in turn, each slightly too far, because each affects the other.
_TURNS, _SLACK = 20, 1e-3
# Ties use an epsilon that is smaller by more than the rounding errors.
_ROUNDING = 1e-9
_LARGEST_LOGIT = 40.0  # Its share is 1 in double precision.
_NOTHING = 1e-16


def max_provable_epsilon(
    without: ArrayLike,
    with_record: ArrayLike,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    chance: float = 0.5,
) -> float:
    """An epsilon that at most a share `chance` of all audits of a game can prove.

    It holds for every estimator that is valid for any score.

    Args:
        without: probabilities [n] of the outputs of one trial without the record.
        with_record: the same with the record.
        delta: in (0, 1).
        trials: number of trials on each side.
        confidence: confidence of the estimator, in (0, 1).
        chance: share of audits that may prove more, in (0, 1).

    Returns:
        The smallest such epsilon that was found. If none was found, the epsilon of the game at
        delta, or 25 if the game has no such epsilon.

    Raises:
        ValueError: a parameter is out of its range, or the probabilities are invalid.

    Example:
        >>> round(max_provable_epsilon([0.02, 0.98], [0.001, 0.999], 1e-5, 10_000), 1)  # of 3.0
        2.5
    """
    mechanism = DiscreteMechanism(np.asarray(without), np.asarray(with_record))
    p, q = mechanism.p / mechanism.p.sum(), mechanism.q / mechanism.q.sum()
    checks.interval("delta", delta, 0.0, 1.0)
    checks.integer("trials", trials, 1)
    confidence = check_confidence(confidence)
    checks.interval("chance", chance, 0.0, 1.0)
    # Approximation by two normal distributions whose distance is the sum of both quantiles.
    apart = max(float(special.ndtri(chance) + special.ndtri(confidence)), 0.0)

    def missed(epsilon: float) -> float:
        nearest = _nearest(p, q, epsilon, delta)
        return (
            math.inf if nearest is None else trials * _divergence(p, q, *nearest) - apart**2 / 2.0
        )

    try:
        largest = mechanism.epsilon(delta)
    except DeltaUnreachable:
        largest = _LARGEST

    def is_shown(epsilon: float) -> bool:
        nearest = _nearest(p, q, epsilon, delta)
        return nearest is None or _power(p, q, *nearest, trials, 1.0 - confidence) > chance

    # Every epsilon that the audits fail to show is valid. The smallest one is near the normal
    # approximation.
    guess = safe_root(missed, largest, 0.0, 1e-4)
    high, low = _around_shown(is_shown, guess, largest)
    if high == 0.0:
        return high
    return safe_root(is_shown, high, low, 0.0, _STEP)


def _around_shown(
    is_shown: Callable[[float], bool], guess: float, largest: float
) -> tuple[float, float]:
    """An interval of epsilon: the upper end is not shown, or `largest`; the lower end is, or 0."""
    shown, step, current = is_shown(guess), _STEP, guess
    while True:
        ahead = current * (1.0 + step) + 1e-4 if shown else current / (1.0 + step) - 1e-4
        if ahead >= largest:
            return largest, current
        if ahead <= 0.0:
            return (current, 0.0) if is_shown(0.0) else (0.0, 0.0)
        if is_shown(ahead) is not shown:
            return (ahead, current) if shown else (current, ahead)
        current, step = ahead, 2.0 * step


def _excess(p: FloatArray, q: FloatArray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def _nearest(
    p: FloatArray, q: FloatArray, epsilon: float, delta: float
) -> tuple[FloatArray, FloatArray] | None:
    """The nearest game that is (epsilon, delta)-DP in both directions; None if none is found."""
    shares = [0.0, 0.0]
    factor = math.exp(epsilon - _ROUNDING)
    if factor <= 1.0:
        return 0.5 * (p + q), 0.5 * (p + q)

    def missed(logit: float, side: int) -> float:
        shares[side] = float(special.expit(logit))
        pair = _pair_of_shares(p, q, factor, shares)
        return _excess(pair[side], pair[1 - side], epsilon) - delta * (1.0 - _SLACK)

    for _ in range(_TURNS):
        pair = _pair_of_shares(p, q, factor, shares)
        now = _excess(*pair, epsilon), _excess(*pair[::-1], epsilon)
        # The share increases if its direction leaks too much, and decreases if it leaks too little.
        wrong = [
            excess > delta or (share > _NOTHING and excess < delta * (1.0 - 2.0 * _SLACK))
            for excess, share in zip(now, shares, strict=True)
        ]
        if not any(wrong):
            return pair
        side = int(now[1] > now[0]) if all(wrong) else wrong.index(True)
        logit_of_share = safe_root(
            partial(missed, side=side), _LARGEST_LOGIT, -_LARGEST_LOGIT, 1e-4
        )
        shares[side] = float(special.expit(logit_of_share))
    pair = _pair_of_shares(p, q, factor, shares)
    is_kept = max(_excess(*pair, epsilon), _excess(*pair[::-1], epsilon)) <= delta
    return pair if is_kept else None


def _pair_of_shares(
    p: FloatArray, q: FloatArray, factor: float, shares: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    """The pair with given shares of the largest multiplier of each direction; sums are 1."""

    def at(log_ratio: float) -> tuple[FloatArray, FloatArray]:
        # With l1 = e^(-log_ratio / 2) and l2 = e^(log_ratio / 2), up to a common factor.
        first, second = math.exp(-0.5 * log_ratio), math.exp(0.5 * log_ratio)
        p_masses, q_masses = p / first, q / second
        for masses, other_masses, weight, other_weight, share in (
            (p, q, first, second, shares[0]),
            (q, p, second, first, shares[1]),
        ):
            exceeds = masses * other_weight > factor * other_masses * weight
            above = masses * other_weight * (1.0 - share) > other_masses * (
                factor * weight + share * other_weight
            )
            tied = (masses + other_masses) / (factor * weight + other_weight)
            with np.errstate(divide="ignore", invalid="ignore"):
                larger = np.where(
                    above, masses / (weight + share * other_weight / factor), factor * tied
                )
                smaller = np.where(above, other_masses / (other_weight * (1.0 - share)), tied)
            if masses is p:
                p_masses, q_masses = (
                    np.where(exceeds, larger, p_masses),
                    np.where(exceeds, smaller, q_masses),
                )
            else:
                p_masses, q_masses = (
                    np.where(exceeds, smaller, p_masses),
                    np.where(exceeds, larger, q_masses),
                )
        return p_masses, q_masses

    def gap(log_ratio: float) -> float:
        p_masses, q_masses = at(log_ratio)
        return math.log(float(p_masses.sum())) - math.log(float(q_masses.sum()))

    end = 1.0
    while gap(-end) * gap(end) > 0.0:
        end *= 2.0  # ends where it exceeds every log ratio of p and q, and epsilon
    p_masses, q_masses = at(float(optimize.brentq(gap, -end, end, xtol=1e-14)))
    return p_masses / p_masses.sum(), q_masses / q_masses.sum()


def _divergence(p: FloatArray, q: FloatArray, p0: FloatArray, q0: FloatArray) -> float:
    """KL(p || p0) + KL(q || q0)."""
    return float(special.rel_entr(p, p0).sum() + special.rel_entr(q, q0).sum())


def _power(
    p: FloatArray, q: FloatArray, p0: FloatArray, q0: FloatArray, trials: int, error: float
) -> float:
    """Largest power against (p, q) of a test of (p0, q0) with this error, rounded up."""
    sides = [
        DiscreteMechanism(alternative, null).pairs[0] for alternative, null in ((p, p0), (q, q0))
    ]
    try:
        pair = compose([(side, trials) for side in sides], _CELLS)
    except Unresolved:
        return 1.0
    return float(np.min(error * np.exp(_LOG_T) + pair.profile(_LOG_T)))

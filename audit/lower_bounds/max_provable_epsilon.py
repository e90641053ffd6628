"""How much of its leakage a game of known law can prove, by whatever estimator.

`ceiling` is about games that tell everything apart; this is about one game. An estimator that holds
for any score must not reject games that are (epsilon, delta)-DP more often than its error. One of
them may be so close to the game at hand that so many trials hardly tell the two apart: then hardly
any audit proves more than epsilon, whatever the estimator looks at.

Proof. Let P and P' be the laws of one trial, Q and Q' those of a game that is (epsilon, delta)-DP,
and A the event that the estimator shows more than epsilon. Under n + n trials of the second game A
has probability at most alpha. For every t >= 1 its probability under the first is then at most

    t alpha + E_t(P^n x P'^n || Q^n x Q'^n),  E_t the hockey stick of order t,

by the definition of E_t. `compose` bounds E_t from above. Which Q and Q' are taken decides only how
small the answer is: where P exceeds e^epsilon P' both give way by as much as costs the least
divergence, with one Lagrange multiplier for the hockey stick.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.accounting import DiscreteMechanism, Unreachable, Unresolved, compose
from audit.lower_bounds.estimator import check_confidence
from audit.numerics import safe_root

Array = NDArray[np.float64]

# Each try of a larger epsilon, and where the powers of t are looked at.
_STEP = 0.002
_LOG_T = np.linspace(0.0, 12.0, 121)
_CELLS = 1 << 13
_LARGEST = 25.0
# Directions give way in turns, a little more than they must, for each moves the other a little.
_TURNS, _SLACK = 8, 1e-3


def max_provable_epsilon(
    without: ArrayLike,
    with_record: ArrayLike,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    chance: float = 0.5,
) -> float:
    """An epsilon that at most a share `chance` of all audits of a game show to be passed.

    It speaks of every estimator that holds for any score, whatever it looks at.

    Args:
        without: chances [n] of what comes out of one trial without the record.
        with_record: the same with it.
        delta: in (0, 1).
        trials: on each side.
        confidence: of the estimator, in (0, 1).
        chance: of audits, in (0, 1).

    Returns:
        The smallest such epsilon found; that of the game, or 25, where none is.

    Raises:
        ValueError: a parameter is out of its range, or the chances are none.

    Example:
        >>> round(max_provable_epsilon([0.02, 0.98], [0.001, 0.999], 1e-5, 10_000), 1)  # of 3.0
        2.8
    """
    mechanism = DiscreteMechanism(np.asarray(without), np.asarray(with_record))
    p, q = mechanism.p / mechanism.p.sum(), mechanism.q / mechanism.q.sum()
    checks.interval("delta", delta, 0.0, 1.0)
    checks.integer("trials", trials, 1)
    check_confidence(confidence)
    checks.interval("chance", chance, 0.0, 1.0)
    # To the central limit: two normal laws as far apart as both quantiles.
    apart = max(float(special.ndtri(chance) + special.ndtri(confidence)), 0.0)

    def missed(epsilon: float) -> float:
        found = _nearest(p, q, epsilon, delta)
        return math.inf if found is None else trials * _divergence(p, q, *found) - apart**2 / 2.0

    try:
        largest = mechanism.epsilon(delta)
    except Unreachable:
        largest = _LARGEST
    epsilon = safe_root(missed, largest, 0.0, 1e-4)
    while epsilon < largest:
        found = _nearest(p, q, epsilon, delta)
        if found is not None and _power(p, q, *found, trials, 1.0 - confidence) <= chance:
            return epsilon
        epsilon *= 1.0 + _STEP
    return largest


def _excess(p: Array, q: Array, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def _nearest(p: Array, q: Array, epsilon: float, delta: float) -> tuple[Array, Array] | None:
    """A game (epsilon, delta)-DP in both directions and near one; None where none is found."""
    found: tuple[Array, Array] | None = (p, q)
    for _ in range(_TURNS):
        if found is None or max(_excess(*found, epsilon), _excess(*found[::-1], epsilon)) <= delta:
            return found
        if _excess(*found, epsilon) > delta:
            found = _given_way(*found, epsilon, delta)
        else:
            other = _given_way(*found[::-1], epsilon, delta)
            found = None if other is None else (other[1], other[0])
    return None


def _given_way(p: Array, q: Array, epsilon: float, delta: float) -> tuple[Array, Array] | None:
    """The same in the direction of p."""
    factor = math.exp(epsilon)

    def at(log_multiplier: float) -> tuple[Array, Array]:
        multiplier = math.exp(log_multiplier)
        # Share of the multiplier at which p still is e^epsilon q; at 1 it stays above.
        whole = np.maximum(multiplier * factor * (p + q), 1e-300)
        share = np.clip((p - factor * q) / whole, 0.0, 1.0)
        less, more = p / (1.0 + multiplier * share), q / (1.0 - multiplier * factor * share)
        return less / less.sum(), more / more.sum()

    def missed(log_multiplier: float) -> float:
        return _excess(*at(log_multiplier), epsilon) - delta * (1.0 - _SLACK)

    largest = -epsilon + math.log1p(-1e-6)
    if missed(largest) > 0.0:
        return None
    return at(safe_root(missed, largest, largest - 40.0, 1e-4))


def _divergence(p: Array, q: Array, p0: Array, q0: Array) -> float:
    """Kullback and Leibler's, of both sides together."""
    return float(special.rel_entr(p, p0).sum() + special.rel_entr(q, q0).sum())


def _power(p: Array, q: Array, p0: Array, q0: Array, trials: int, error: float) -> float:
    """What no test of (p0, q0) with this error can exceed at (p, q), rounded up."""
    sides = [DiscreteMechanism(one, other).pairs[0] for one, other in ((p, p0), (q, q0))]
    try:
        pair = compose([(side, trials) for side in sides], _CELLS)
    except Unresolved:
        return 1.0
    return float(np.min(error * np.exp(_LOG_T) + pair.profile(_LOG_T)))

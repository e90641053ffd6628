"""What a game can show at best, and how many trials a bound needs."""

import math

import numpy as np

from audit import checks
from audit.lower_bounds import two_tails
from audit.lower_bounds.estimator import check_confidence
from audit.lower_bounds.scan import TOGETHER, Scan
from audit.lower_bounds.scores import Scores
from audit.lower_bounds.sequential_plan import SequentialPlan
from audit.numerics import last_integer, memoize

# Beyond so many trials per side the number grows as e^epsilon, to all digits that matter.
_MAX_COUNTED = 10**8


def max_detectable_epsilon(
    trials_without: int,
    trials_with: int,
    delta: float = 1e-5,
    confidence: float = 0.95,
    looks: SequentialPlan | int | None = None,
) -> float:
    """The largest epsilon that `lower_bound` can prove with so many trials.

    It is what it proves where every score with the record is above every one without. A game cannot
    show more, however much the mechanism leaks.

    Args:
        trials_without: trials without the record.
        trials_with: trials with it.
        delta: in [0, 1).
        confidence: in (0, 1).
        looks: as in `lower_bound`.

    Raises:
        ValueError: a parameter is out of its range.

    Example:
        >>> round(max_detectable_epsilon(1000, 1000), 2)
        6.07
    """
    n0 = checks.integer("trials_without", trials_without, 0)
    n1 = checks.integer("trials_with", trials_with, 0)
    apart = Scores(np.zeros(n0), np.ones(n1))
    return Scan().bound(apart, delta, confidence, looks=looks).epsilon


@memoize(64)  # every repeat and view of an audit asks for the same
def trials_needed(epsilon: float, delta: float = 1e-5, confidence: float = 0.95) -> int:
    """The fewest trials per side with which `lower_bound` can prove an epsilon at all.

    As many are enough where every score with the record is above every one without; otherwise it
    takes more.

    Args:
        epsilon: at least 0.
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        ValueError: a parameter is out of its range.

    Example:
        >>> trials_needed(6.07)
        999
    """
    checks.interval("epsilon", epsilon, 0.0, 500.0, closed_low=True)
    checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    check_confidence(confidence)
    alpha = TOGETHER * (1.0 - confidence)

    def proved(trials: int) -> float:
        # With nothing out of order both tails together prove more than each on its own.
        return two_tails.epsilon_lower_limit(trials, trials, delta, alpha, 0)

    beyond = epsilon - proved(_MAX_COUNTED)
    if beyond > 0.0:
        return math.ceil(_MAX_COUNTED * math.exp(beyond))
    return 1 + int(last_integer(lambda trials: proved(int(trials)) < epsilon, 0, _MAX_COUNTED))

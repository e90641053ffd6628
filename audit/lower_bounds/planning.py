"""The largest epsilon that an audit can show, and the number of trials that an epsilon needs."""

import math

import numpy as np

from audit import checks
from audit.lower_bounds import scan
from audit.lower_bounds.estimator import check_confidence
from audit.lower_bounds.scan import TWO_TAILS_SHARE, Scan
from audit.lower_bounds.scores import Scores
from audit.lower_bounds.sequential_plan import SequentialPlan
from audit.numerics import last_integer, memoize

# Beyond this number of trials per side, the required number grows in proportion to e^epsilon.
_MAX_COUNTED_TRIALS = 10**8
# With at most this number of trials, one tail alone may prove more than both together.
_FEW_TRIALS = 20
# Simulating a perfect attack with more trials would need gigabytes.
_MAX_TRIALS = 10**7


def max_detectable_epsilon(
    trials_without: int,
    trials_with: int,
    delta: float = 1e-5,
    confidence: float = 0.95,
    plan: SequentialPlan | int | None = None,
) -> float:
    """The largest epsilon that `lower_bound` can prove with these numbers of trials.

    It is reached if every score with the record is above every score without it. No audit of this
    size can show a larger epsilon, however much the mechanism leaks.

    Args:
        trials_without: number of trials without the record, up to 10^7.
        trials_with: number of trials with the record, up to 10^7.
        delta: in [0, 1).
        confidence: in (0, 1).
        plan: as in `lower_bound`.

    Raises:
        InvalidInput: a parameter is out of its range.

    Example:
        >>> round(max_detectable_epsilon(1000, 1000), 2)
        6.07
    """
    n0 = checks.integer("trials_without", trials_without, 0, _MAX_TRIALS)
    n1 = checks.integer("trials_with", trials_with, 0, _MAX_TRIALS)
    separated = Scores(np.zeros(n0), np.ones(n1))
    return Scan().bound(separated, delta, confidence, plan=plan).epsilon


@memoize(64)  # Every repeat and view of an audit uses the same number.
def trials_needed(epsilon: float, delta: float = 1e-5, confidence: float = 0.95) -> int:
    """The smallest number of trials per side with which `lower_bound` can prove an epsilon.

    This number is enough if every score with the record is above every score without it. A weaker
    attack needs more trials.

    Args:
        epsilon: at least 0.
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        InvalidInput: a parameter is out of its range.

    Example:
        >>> trials_needed(6.07)
        999
    """
    epsilon = checks.interval("epsilon", epsilon, 0.0, 500.0, closed_low=True)
    delta = checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    confidence = check_confidence(confidence)
    alpha = TWO_TAILS_SHARE * (1.0 - confidence)

    def provable(trials: int) -> float:
        if trials <= _FEW_TRIALS:
            return max_detectable_epsilon(trials, trials, delta, confidence)
        # For separated scores and equal numbers of trials, the statistic of both tails proves more
        # than either tail alone.
        return scan.epsilon_lower_limit(trials, trials, delta, alpha, 0)

    missing = epsilon - provable(_MAX_COUNTED_TRIALS)
    if missing > 0.0:
        return math.ceil(_MAX_COUNTED_TRIALS * math.exp(missing))
    return 1 + int(
        last_integer(lambda trials: provable(int(trials)) < epsilon, 0, _MAX_COUNTED_TRIALS)
    )

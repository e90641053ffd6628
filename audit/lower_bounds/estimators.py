"""The functions that users call: the recommended lower bound, tables of all bounds, and planning.

Planning answers two questions: the largest epsilon that an audit can show, and the number of trials
that an epsilon needs.
"""

import functools
import math
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from audit import checks, protocols
from audit import repetitions as distributions
from audit.claims import Facts
from audit.errors import InvalidInput
from audit.lower_bounds import scan
from audit.lower_bounds.estimator import (
    DIRECTIONS,
    ClopperPearson,
    Estimator,
    LowerBound,
    check_confidence,
    default_facts,
)
from audit.lower_bounds.families import (
    GaussianCurve,
    LiftedCurve,
    PooledGaussianCurve,
    WorstOrderCurve,
)
from audit.lower_bounds.monte_carlo import PooledScan, RankSum
from audit.lower_bounds.scan import TWO_TAILS_SHARE, Scan
from audit.lower_bounds.scores import (
    FixedThreshold,
    MaximumOverGrid,
    Scores,
    SequentialPlan,
    Split,
    ThresholdFromTheory,
    ThresholdRule,
    checked_nonempty,
)
from audit.numerics import last_integer, memoize
from audit.protocols import Protocol, RandomSearch
from audit.repetitions import Fixed, Repetitions

P = ParamSpec("P")
R = TypeVar("R")

# The opposite direction must prove a positive epsilon with this error before swapped scores are
# reported. Scores that reveal nothing then cause a false report in one of 1,000 audits.
_SWAPPED_ALPHA = 1e-3
_SPLIT_TOP_NEEDS = "split_top requires a random search, threshold and direction='higher'"

# Beyond this number of trials per side, the required number grows in proportion to e^epsilon.
_MAX_COUNTED_TRIALS = 10**8
# With at most this number of trials, one tail alone may prove more than both together.
_FEW_TRIALS = 20
# Simulating a perfect attack with more trials would need gigabytes.
_MAX_TRIALS = 10**7


def _keyword_only(function: Callable[P, R]) -> Callable[P, R]:
    """Replaces Python's message about positional arguments by one that names the arguments."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if args:
            raise TypeError(
                f"{function.__name__} takes keyword arguments only, got {len(args)} positional "
                "ones: pass out_scores=... (trials without the record) and in_scores=... (trials "
                "with the record)"
            )
        return function(*args, **kwargs)

    return checked


@_keyword_only
def lower_bound(
    *,
    out_scores: ArrayLike,
    in_scores: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    direction: str = "higher",
    plan: SequentialPlan | int | None = None,
) -> LowerBound:
    """The recommended lower bound on epsilon, which assumes only that the trials are independent.

    Args:
        out_scores: scores [n0] of the trials without the record.
        in_scores: scores [n1] of the trials with the record.
        delta: in [0, 1).
        confidence: in (0, 1).
        direction: "higher" if high scores indicate the record, "lower" if low scores do, "both" to
            test both directions with half of the error each. The bound is valid for any choice
            that was made before looking at the scores.
        plan: for an audit that stops when it has proved enough: the number of planned analyses, or
            `SequentialPlan(number=j)` for the j-th analysis without a plan. The bound holds
            whichever analysis the audit stops at.

    Returns:
        A bound that exceeds the true epsilon with probability at most 1 - confidence. It depends
        on the scores alone, not on a seed or on the order of the trials.

    Raises:
        TypeError: the scores were passed by position.
        InvalidInput: a parameter is out of its range, or a score is NaN.

    Warns:
        UserWarning: the bound is 0, but the scores prove a positive epsilon in the opposite
            direction, as they do if `out_scores` and `in_scores` are swapped.

    Example:
        >>> scores = list(range(100))
        >>> found = lower_bound(out_scores=scores, in_scores=[s + 90 for s in scores])
        >>> round(found.epsilon, 2)
        3.14
    """
    scores = Scores(
        checked_nonempty("out_scores", out_scores), checked_nonempty("in_scores", in_scores)
    )
    bound = Scan().bound(scores, delta, confidence, direction, plan=plan)
    _warn_if_swapped(scores, bound, delta, direction, plan)
    return bound


@_keyword_only
def all_lower_bounds(
    *,
    out_scores: ArrayLike,
    in_scores: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    protocol: Protocol | Repetitions | str | None = None,
    mu: float | None = None,
    threshold: float | None = None,
    direction: str = "higher",
    split_top: float | None = None,
    known: Facts | None = None,
    plan: SequentialPlan | int | None = None,
) -> list[LowerBound]:
    """Every lower bound that applies to these scores; the recommended bound is the first.

    Args:
        out_scores: scores [n0] of the trials without the record.
        in_scores: scores [n1] of the trials with the record.
        delta: in [0, 1).
        confidence: in (0, 1).
        protocol: the protocol behind the scores; a distribution of K means random search. Without
            it the scores are those of single runs, and the lifted curve is omitted.
        mu: expected distance of the means in standard deviations. The scores must then be
            standardised (N(b mu, 1) in a single run), and theory fixes the thresholds.
        threshold: a threshold fixed in advance, instead of the one from theory.
        direction: as in `lower_bound`.
        split_top: where the order of the outputs splits, for the worst-order score. It adds
            "worst-order-curve" and requires standardised scores, a random search and `threshold`.
        known: the known facts about the audit. Without them, all assumptions count as true, except
            that the output was not tuned, which follows from `protocol`.
        plan: as in `lower_bound`.

    Returns:
        Lower bounds, each with its assumptions and its status. Names may repeat, but each `key` is
        unique.

    Raises:
        TypeError: the scores were passed by position.
        InvalidInput: a parameter is out of its range, or a score is NaN.

    Warns:
        UserWarning: as in `lower_bound`.

    Example:
        >>> import numpy as np
        >>> scores = np.linspace(0.0, 1.0, 200)
        >>> rows = all_lower_bounds(out_scores=scores, in_scores=scores + 2.0, delta=1e-5)
        >>> [row.key for row in rows if row.valid][:2]
        ['scan:scan', 'clopper-pearson:split']
    """
    facts = known
    if facts is None:
        facts = (
            default_facts()
            if protocol is None
            else default_facts(protocols.parse_protocol(protocol))
        )
    direction = checks.one_of("direction", direction, DIRECTIONS)
    if split_top is not None and direction != "higher":
        raise InvalidInput(f"{_SPLIT_TOP_NEEDS}, got direction={direction!r}")
    scores = Scores(
        checked_nonempty("out_scores", out_scores), checked_nonempty("in_scores", in_scores)
    )
    bounds = [
        estimator.bound(scores, delta, confidence, direction, facts, plan)
        for estimator in all_estimators(protocol, mu, threshold, split_top)
    ]
    _warn_if_swapped(scores, bounds[0], delta, direction, plan)
    return bounds


def all_estimators(
    protocol: Protocol | Repetitions | str | None = None,
    mu: float | None = None,
    threshold: float | None = None,
    split_top: float | None = None,
) -> list[Estimator]:
    """Every estimator that applies to the scores of an audit; the recommended one is the first.

    Args:
        protocol: as in `all_lower_bounds`.
        mu: as in `all_lower_bounds`.
        threshold: as in `all_lower_bounds`.
        split_top: as in `all_lower_bounds`.

    Raises:
        InvalidInput: a parameter is out of its range, or `split_top` is given without a random
            search and `threshold`.

    Example:
        >>> [estimator.name for estimator in all_estimators()][:2]
        ['scan', 'clopper-pearson']
    """
    parsed = None if protocol is None else protocols.parse_protocol(protocol)
    search = None if parsed is None else parsed.search_repetitions
    repetitions = Fixed(1) if search is None else search
    in_advance: list[ThresholdRule] = []
    from_theory = None if mu is None else ThresholdFromTheory(mu, repetitions)
    if threshold is not None:
        in_advance = [FixedThreshold(threshold)]
    elif from_theory is not None:
        in_advance = [from_theory]
    rules: list[ThresholdRule] = [*in_advance, Split(), MaximumOverGrid()]
    estimators: list[Estimator] = [
        Scan(),
        *(ClopperPearson(rule=rule) for rule in rules),
        *(GaussianCurve(rule=rule) for rule in rules),
    ]
    if split_top is not None:
        # The lifted curve is not valid for the worst-order score. This curve replaces it.
        if search is None or threshold is None:
            raise InvalidInput(f"{_SPLIT_TOP_NEEDS}, got {protocol!r} and threshold={threshold!r}")
        estimators.append(WorstOrderCurve(repetitions, split_top, rule=FixedThreshold(threshold)))
    elif repetitions != Fixed(1):
        estimators += [LiftedCurve(repetitions, rule=rule) for rule in [*rules, RankSum()]]
    else:
        estimators.append(GaussianCurve(rule=RankSum()))
    return estimators


def pooled_bounds(
    out_scores: ArrayLike,
    in_scores: ArrayLike,
    protocol: RandomSearch | Repetitions | str,
    delta: float = 1e-5,
    confidence: float = 0.95,
    threshold: float | None = None,
    known: Facts | None = None,
    plan: SequentialPlan | int | None = None,
) -> list[LowerBound]:
    """Lower bounds on the epsilon of a random search from the scores of all its runs.

    The protocol must release the score itself, or a function of the score.

    Args:
        out_scores: scores [r0] of single runs without the record; the largest wins.
        in_scores: scores [r1] of single runs with the record.
        protocol: the random search, or its distribution of K.
        delta: in [0, 1).
        confidence: in (0, 1).
        threshold: a threshold fixed in advance, if there is one.
        known: as in `all_lower_bounds`.
        plan: as in `lower_bound`.

    Returns:
        Lower bounds by "pooled" (no assumption on the base) and "pooled-gaussian-curve".

    Raises:
        InvalidInput: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> runs = np.random.default_rng(0).normal(size=(2, 1000))
        >>> rows = pooled_bounds(runs[0], runs[1] + 2.0, "fixed:2", 1e-5)
        >>> rows[0].name
        'pooled'
    """
    if isinstance(protocol, RandomSearch):
        protocol = protocol.repetitions
    repetitions = distributions.parse_repetitions(protocol)
    facts = default_facts(RandomSearch(repetitions)) if known is None else known
    rules: list[ThresholdRule] = [Split()]
    if threshold is not None:
        rules.append(FixedThreshold(threshold))
    scores = Scores.of(out_scores, in_scores)
    return [
        estimator.bound(scores, delta, confidence, known=facts, plan=plan)
        for estimator in [
            PooledScan(repetitions),
            *(PooledGaussianCurve(repetitions, rule=rule) for rule in [*rules, RankSum()]),
        ]
    ]


def _warn_if_swapped(
    scores: Scores,
    bound: LowerBound,
    delta: float,
    direction: str,
    plan: SequentialPlan | int | None,
) -> None:
    """Warns if this direction proves nothing, but the opposite direction does."""
    if bound.epsilon > 0.0 or direction == "both":
        return
    opposite = "lower" if direction == "higher" else "higher"
    mirrored = Scan().bound(scores, delta, 1.0 - _SWAPPED_ALPHA, opposite, plan=plan)
    if mirrored.epsilon > 0.0:
        warnings.warn(
            f"the bound is 0, but scores in the opposite direction prove epsilon >= "
            f"{mirrored.epsilon:.2g}: check that out_scores are the trials without the record and "
            f"in_scores those with it, and that direction={direction!r} is right",
            stacklevel=4,
        )


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

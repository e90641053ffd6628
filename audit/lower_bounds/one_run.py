"""Lower bounds from one run with many canaries, each included by its own fair coin.

The adversary guesses the coins of some canaries: "included" for the highest scores, "not included"
for the lowest. Too many correct guesses refute a claim. The number of guesses is fixed before the
run, or taken from a short list with a share of the error for each entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.claims import Assumption, Claim, Facts, Kind
from audit.lower_bounds.estimator import LowerBound, check_confidence, default_facts
from audit.lower_bounds.families import best_of_gaussian_epsilon
from audit.lower_bounds.scan import Scan
from audit.lower_bounds.scores import checked_canaries
from audit.numerics import FloatArray, safe_root
from audit.protocols import RandomSearch
from audit.repetitions import Fixed

_MAX_EPSILON = 50.0
_MAX_MU = 20.0
_TOLERANCE = 1e-4
# Ratio of the neighbouring numbers of guesses on the short list, and the smallest number.
_LIST_RATIO = 4
_MIN_GUESSES = 4


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Probability of at least `correct` correct guesses in an (epsilon, delta)-DP run.

    Steinke, Nasr & Jagielski 2023, theorem 5.2, for m canaries and v correct guesses: f(v) + 2 m
    delta max_i (f(v - i) - f(v)) / i, with f the survival function of Binomial(guesses, e^eps / (1
    + e^eps)). The number of guesses is fixed before guessing.
    """
    if correct <= 0:
        return 1.0
    p_correct = special.expit(epsilon)
    # f(v - i) for i = 0 .. v.
    at_least = special.betainc(
        np.arange(correct, 0, -1.0), guesses - np.arange(correct, 0, -1.0) + 1.0, p_correct
    )
    at_least = np.append(at_least, 1.0)
    gain = np.max(np.diff(at_least).cumsum() / np.arange(1, correct + 1))
    return float(min(at_least[0] + 2.0 * canaries * delta * gain, 1.0))


def refutes_curve(
    canaries: int, guesses: int, correct: int, least: Callable[[float], float], alpha: float
) -> bool:
    """Whether the correct guesses refute, with error alpha, that each canary has a trade-off curve.

    The curve is `least`, from P'[E] to the smallest P[E]. Mahloujifar, Melis & Chaudhuri 2024,
    algorithm 3: if P[at least `correct`] were alpha, the curve would imply lower limits for the
    probabilities of smaller numbers, from `correct` downwards. The curve is refuted if these add up
    to more than the total.
    """
    right = alpha * correct / canaries
    wrong = alpha * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        more = max(wrong, least(right))
        if more == wrong:
            break  # Smaller numbers change nothing either.
        right = min(right + i / (guesses - i) * (more - wrong), 1.0)
        wrong = more
    return right + wrong > guesses / canaries


def _largest_refuted(refuted: Callable[[float], bool], high: float) -> float:
    """The largest refuted parameter, to 1e-4 and rounded down; 0 if none is refuted."""
    if not refuted(0.0):
        return 0.0
    return safe_root(lambda parameter: not refuted(parameter), 0.0, high, _TOLERANCE)


def epsilon_by_definition(
    canaries: int, guesses: int, correct: int, delta: float, alpha: float
) -> float:
    """The largest epsilon that the number of correct guesses refutes (Steinke et al. 2023)."""
    return _largest_refuted(
        lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) <= alpha,
        _MAX_EPSILON,
    )


def epsilon_by_gaussian_curve(
    canaries: int, guesses: int, correct: int, delta: float, alpha: float
) -> float:
    """Epsilon of the largest refuted mu of a Gaussian curve (Mahloujifar et al. 2024)."""

    def refuted(mu: float) -> bool:
        def least(x: float) -> float:
            return float(special.ndtr(special.ndtri(x) - mu))

        return refutes_curve(canaries, guesses, correct, least, alpha)

    mu = _largest_refuted(refuted, _MAX_MU)
    return best_of_gaussian_epsilon(mu, Fixed(1), delta) if mu > 0.0 else 0.0


@dataclass(frozen=True)
class _Method:
    name: str
    epsilon: Callable[[int, int, int, float, float], float]
    claim: Claim


_ONE_RUN = "one run, each canary included by its own fair coin"
_METHODS = (
    _Method(
        "one-run",
        epsilon_by_definition,
        Claim(
            Kind.BOUND,
            "Steinke, Nasr & Jagielski 2023, theorem 5.2",
            assumptions=(Assumption.FAIR_COINS,),
            about=(_ONE_RUN,),
        ),
    ),
    _Method(
        "one-run-gaussian-curve",
        epsilon_by_gaussian_curve,
        Claim(
            Kind.BOUND,
            "Mahloujifar, Melis & Chaudhuri 2024, algorithm 3",
            assumptions=(Assumption.FAIR_COINS, Assumption.NOT_TUNED, Assumption.GAUSSIAN_BASE),
            about=(_ONE_RUN,),
        ),
    ),
)
# By default, the run may be the best of several.
_DEFAULT_FACTS = Facts(
    RandomSearch(Fixed(1)), frozenset({Assumption.FAIR_COINS, Assumption.GAUSSIAN_BASE})
)


def one_run_bounds(
    scores: ArrayLike,
    included: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    guesses: int | None = None,
    known: Facts | None = None,
) -> list[LowerBound]:
    """Lower bounds on epsilon from one run with many canaries.

    Args:
        scores: scores of the canaries, [m], in an order that does not depend on the coins. A high
            score indicates that the canary was included. Ties are guessed in this order.
        included: whether each canary was included, [m].
        delta: in [0, 1).
        confidence: in (0, 1).
        guesses: the number of guesses, half of them "included", if fixed before the run.
        known: the known facts about the run. Without them, the mechanism is assumed to be Gaussian,
            and the run may be the best of several.

    Returns:
        One bound for each method and rule: "fixed" (if `guesses` is given) and "bonferroni" (a
        short list of numbers of guesses, with a share of the error for each).

    Raises:
        InvalidInput: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> included = rng.random(500) < 0.5
        >>> rows = one_run_bounds(rng.normal(size=500) + 3.0 * included, included, 1e-5)
        >>> rows[0].epsilon > 1.0
        True
    """
    delta = checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    confidence = check_confidence(confidence)
    values, labels = checked_canaries("scores", scores, included)
    canaries, in_count = len(values), int(labels.sum())
    if guesses is not None:
        guesses = checks.integer("guesses", guesses, 1, max(canaries, 1))
    alpha = 1.0 - confidence
    bounds = []
    for method in _METHODS:
        for rule in ("fixed", "bonferroni"):
            if rule == "fixed" and guesses is None:
                continue
            epsilon = 0.0
            if canaries > 1:
                epsilon = _by_rule(method, rule, values, labels, guesses, delta, alpha)
            bounds.append(
                LowerBound(
                    name=method.name,
                    rule=rule,
                    epsilon=epsilon,
                    confidence=confidence,
                    claim=method.claim,
                    verdict=method.claim.validity(_DEFAULT_FACTS if known is None else known),
                    trials_without=canaries - in_count,
                    trials_with=in_count,
                )
            )
    return bounds


def _by_rule(
    method: _Method,
    rule: str,
    values: FloatArray,
    labels: NDArray[np.bool_],
    guesses: int | None,
    delta: float,
    alpha: float,
) -> float:
    def epsilon(ends: tuple[int, int], share: float) -> float:
        correct = _correct(values, labels, ends)
        return method.epsilon(len(values), sum(ends), correct, delta, share)

    if rule == "fixed":
        assert guesses is not None
        return epsilon((guesses // 2, guesses - guesses // 2), alpha)
    # Bonferroni's inequality over a list that depends on the number of canaries alone.
    options = _guess_numbers(len(values))
    return max(epsilon(ends, alpha / len(options)) for ends in options)


def _guess_numbers(canaries: int) -> list[tuple[int, int]]:
    """Numbers of lowest and highest guesses: on one or both sides, 1/2, 1/8, ... of all."""
    sizes: list[int] = []
    size = max(canaries // 2, 1)
    while size >= _MIN_GUESSES or not sizes:
        sizes.append(size)
        size //= _LIST_RATIO
    return [ends for size in sizes for ends in ((size, size), (0, size), (size, 0))]


def _correct(values: FloatArray, labels: NDArray[np.bool_], ends: tuple[int, int]) -> int:
    """Correct guesses if the lowest scores are guessed excluded and the highest included."""
    ascending = labels[np.argsort(values, kind="stable")]
    low, high = ends
    return int(np.sum(~ascending[:low]) + np.sum(ascending[len(ascending) - high :]))


_INDEPENDENT = Claim(
    Kind.BOUND,
    "this project: the scan of independent trials",
    assumptions=(
        Assumption.FAIR_COINS,
        Assumption.DISJOINT_CANARIES,
        Assumption.EQUAL_CANARIES,
    ),
    about=(_ONE_RUN,),
)


def independent_canaries_bound(
    scores: ArrayLike, included: ArrayLike, delta: float = 1e-5, confidence: float = 0.95
) -> LowerBound:
    """Lower bound on epsilon from one run of any mechanism, with each canary as a trial.

    The canaries must not interact, and their scores must have the same two distributions. `Scan`
    then sees independent trials. For unequal canaries its error has no proof.

    Args:
        scores: scores of the canaries, [m]; a high score indicates that the canary was included.
        included: whether each canary was included, [m].
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        InvalidInput: a parameter is out of its range, or a score is NaN.

    Example:
        >>> coins = [True, False] * 50
        >>> bound = independent_canaries_bound([float(coin) for coin in coins], coins)
        >>> bound.name, round(bound.epsilon, 1)
        ('independent-canaries', 3.0)
    """
    values, coins = checked_canaries("scores", scores, included)
    scan = Scan()(values[~coins], values[coins], delta, confidence)
    return replace(
        scan,
        name="independent-canaries",
        claim=_INDEPENDENT,
        verdict=_INDEPENDENT.validity(default_facts()),
    )

"""Auditing one run with many canaries, each put in by its own fair coin.

The adversary guesses the coins of some canaries: those of the highest scores as "in", those of the
lowest as "out". Too many right guesses refute the claim. Two readings of their number: that of
(epsilon, delta)-DP (Steinke, Nasr & Jagielski 2023), and that of a whole trade-off curve
(Mahloujifar, Melis & Chaudhuri 2024), here the Gaussian one. The number of guesses is fixed before
the run, chosen on half of the canaries (whose coins may be told: the others stay private given
them), or taken from a short list that is paid for.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit import checks
from audit.claims import Assumption, Claim, Facts, Kind
from audit.lower_bounds.counting import best_of_gaussian_epsilon
from audit.lower_bounds.estimator import check_confidence
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.scores import checked
from audit.numerics import safe_root
from audit.protocols import RandomSearch
from audit.repetitions import Fixed

Array = NDArray[np.float64]

_LARGEST_EPSILON = 50.0
_LARGEST_MU = 20.0
_SMALLEST_LIST_RATIO = 4


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Chance that a guesser of an (epsilon, delta)-DP run is right at least so often.

    Steinke, Nasr & Jagielski 2023, theorem 5.2: f(v) + 2 m delta max_i (f(v - i) - f(v)) / i, with
    f the survival function of Binomial(guesses, e^eps / (1 + e^eps)).

    Args:
        canaries: how many coins were tossed, m.
        guesses: how many of them were guessed; the number fixed before the guessing.
        correct: right guesses, v.
        epsilon: at least 0.
        delta: in [0, 1).
    """
    if correct <= 0:
        return 1.0
    right = special.expit(epsilon)
    # f(v - i) for i = 0 .. v.
    at_least = special.betainc(
        np.arange(correct, 0, -1.0), guesses - np.arange(correct, 0, -1.0) + 1.0, right
    )
    at_least = np.append(at_least, 1.0)
    gain = np.max(np.diff(at_least).cumsum() / np.arange(1, correct + 1))
    return float(min(at_least[0] + 2.0 * canaries * delta * gain, 1.0))


def refutes_curve(
    canaries: int, guesses: int, correct: int, least: Callable[[float], float], alpha: float
) -> bool:
    """Whether so many right guesses refute that one canary has a trade-off curve, with error alpha.

    Mahloujifar, Melis & Chaudhuri 2024, algorithm 3: if the tail P[correct or more] were alpha, the
    curve forces the masses of the smaller numbers, from `correct` downwards; the claim is refuted
    if they add up to more than there is.

    Args:
        canaries: how many coins were tossed.
        guesses: how many of them were guessed.
        correct: right guesses.
        least: the smallest P[E] that the curve allows when P'[E] is given.
        alpha: error.
    """
    right = alpha * correct / canaries
    wrong = alpha * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        more = max(wrong, least(right))
        if more == wrong:
            break  # then nothing changes further down either
        right = min(right + i / (guesses - i) * (more - wrong), 1.0)
        wrong = more
    return right + wrong > guesses / canaries


def _largest(refuted: Callable[[float], bool], high: float) -> float:
    """The largest parameter refuted, to 1e-4 and rounded down; 0 if none is."""
    if not refuted(0.0):
        return 0.0
    return safe_root(lambda parameter: not refuted(parameter), 0.0, high, 1e-4)


def epsilon_by_definition(
    canaries: int, guesses: int, correct: int, delta: float, alpha: float
) -> float:
    """The largest epsilon that the number of right guesses refutes (Steinke et al. 2023)."""
    return _largest(
        lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) <= alpha,
        _LARGEST_EPSILON,
    )


def epsilon_by_gaussian_curve(
    canaries: int, guesses: int, correct: int, delta: float, alpha: float
) -> float:
    """Epsilon of the strongest Gaussian curve that is refuted (Mahloujifar et al. 2024)."""

    def refuted(mu: float) -> bool:
        def least(x: float) -> float:
            return float(special.ndtr(special.ndtri(x) - mu))

        return refutes_curve(canaries, guesses, correct, least, alpha)

    mu = _largest(refuted, _LARGEST_MU)
    return best_of_gaussian_epsilon(mu, Fixed(1), delta) if mu > 0.0 else 0.0


@dataclass(frozen=True)
class _Reading:
    name: str
    epsilon: Callable[[int, int, int, float, float], float]
    claim: Claim


_ONE_RUN = "one run, each canary in by its own fair coin"
_READINGS = (
    _Reading(
        "one-run",
        epsilon_by_definition,
        Claim(
            Kind.BOUND,
            "Steinke, Nasr & Jagielski 2023, theorem 5.2",
            assumptions=(Assumption.FAIR_COINS,),
            about=(_ONE_RUN,),
        ),
    ),
    _Reading(
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
# Without word of it, the run may be the best of several.
_AS_TOLD = Facts(
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
        scores: of the canaries [m], in an order that does not depend on their coins; high scores
            speak for "in". Ties are guessed in this order.
        included: whether the coin of each canary put it in, [m].
        delta: in [0, 1).
        confidence: in (0, 1).
        guesses: how many canaries to guess, half of them "in", if fixed before the run.
        known: what is true of the run; without it, the mechanism is taken as Gaussian for the
            curve that needs it, and the run as one that may be the best of several.

    Returns:
        One bound for every reading and rule: "fixed" (where `guesses` is given), "bonferroni"
        (a short list of numbers of guesses, each paid for) and "split" (by the first half).

    Raises:
        ValueError: a parameter is out of its range, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> included = rng.random(500) < 0.5
        >>> rows = one_run_bounds(rng.normal(size=500) + 3.0 * included, included, 1e-5)
        >>> rows[0].epsilon > 1.0
        True
    """
    checks.interval("delta", delta, 0.0, 1.0, closed_low=True)
    check_confidence(confidence)
    values = checked("scores", scores)
    labels = np.asarray(included)
    if labels.shape != values.shape or labels.dtype != np.bool_:
        raise ValueError(
            f"included must be one true or false per score, got {labels.dtype} of shape "
            f"{labels.shape} for {values.shape}"
        )
    canaries, went_in = len(values), int(labels.sum())
    if guesses is not None:
        checks.integer("guesses", guesses, 1, max(canaries, 1))
    alpha = 1.0 - confidence
    bounds = []
    for reading in _READINGS:
        for rule in ("fixed", "bonferroni", "split"):
            if rule == "fixed" and guesses is None:
                continue
            epsilon = 0.0
            if canaries > 1:
                epsilon = _by_rule(reading, rule, values, labels, guesses, delta, alpha)
            bounds.append(
                LowerBound(
                    name=reading.name,
                    rule=rule,
                    epsilon=epsilon,
                    confidence=confidence,
                    claim=reading.claim,
                    verdict=reading.claim.validity(_AS_TOLD if known is None else known),
                    trials_without=canaries - went_in,
                    trials_with=went_in,
                )
            )
    return bounds


def _by_rule(
    reading: _Reading,
    rule: str,
    values: Array,
    labels: NDArray[np.bool_],
    guesses: int | None,
    delta: float,
    alpha: float,
) -> float:
    def epsilon(
        values: Array, labels: NDArray[np.bool_], ends: tuple[int, int], share: float
    ) -> float:
        right = _correct(values, labels, ends)
        return reading.epsilon(len(values), sum(ends), right, delta, share)

    if rule == "fixed":
        assert guesses is not None
        return epsilon(values, labels, (guesses // 2, guesses - guesses // 2), alpha)
    if rule == "bonferroni":
        options = _options(len(values))
        return max(epsilon(values, labels, ends, alpha / len(options)) for ends in options)
    half = len(values) // 2
    options = _options(half)
    best = max(options, key=lambda ends: epsilon(values[:half], labels[:half], ends, alpha))
    rest = len(values) - half
    scaled = (best[0] * rest // half, best[1] * rest // half)
    return epsilon(values[half:], labels[half:], scaled, alpha)


def _options(canaries: int) -> list[tuple[int, int]]:
    """Numbers of guesses "out" and "in": on both sides or one, 1/2, 1/8, ... of the canaries."""
    sizes: list[int] = []
    size = max(canaries // 2, 1)
    while size >= 4 or not sizes:
        sizes.append(size)
        size //= _SMALLEST_LIST_RATIO
    return [ends for size in sizes for ends in ((size, size), (0, size), (size, 0))]


def _correct(values: Array, labels: NDArray[np.bool_], ends: tuple[int, int]) -> int:
    """Right guesses when the lowest and highest scores are guessed "out" and "in"."""
    ascending = labels[np.argsort(values, kind="stable")]
    low, high = ends
    return int(np.sum(~ascending[:low]) + np.sum(ascending[len(ascending) - high :]))

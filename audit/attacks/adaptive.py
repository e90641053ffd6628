"""An attack on adaptive search: a sampler that uses its freedom [c, C] to reveal the record.

Each candidate only carries one of two labels. The sampler counts the evidence of the runs so far: a
small x is a point against the record, a large x a point for it. While there is more evidence
against it, the label "back" is as likely as [c, C] allows, otherwise the label "front". The score
prefers outputs of the front (x above a limit that depends on the label), then those of the back (x
below a limit), then the rest. The probability that an output of the back is released is computed
from powers of a matrix: the probabilities that a run is in a set of outputs and moves the count
from i to j.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.arrays import FloatArray
from audit.attacks.orders import expected_ratio, worst_case_split_order
from audit.protocols import Adaptive
from audit.repetitions import Repetitions

_MEANS = 2
_NEGLIGIBLE = 1e-9
_MAX_RUNS = 1 << 16
_SHARPNESS = 4.0  # of the change from one density to the other, per point
_ALL_TRIALS = 10**12


@dataclass(frozen=True)
class AdaptiveAttack:
    """A sampler and a score for N(b mu, 1), and the event "the back is released".

    Attributes:
        mu: mu of the base mechanism.
        protocol: the distribution of K and the range of densities relative to the prior.
        front: limits above which x is in the front, by label.
        back: limits below which x is in the back, by label.
        points: x below the first limit is a point against the record, x above the second for it.
        tip: the count at which the probability of each label is halfway between its limits.
        reach: the count is clipped to [-reach, reach].
    """

    mu: float
    protocol: Adaptive
    front: tuple[float, float]
    back: tuple[float, float]
    points: tuple[float, float]
    tip: float
    reach: int = 5

    @property
    def back_shares(self) -> FloatArray:
        """Probability of the label "back" at every count from -reach to reach."""
        low, high = self.protocol.low, self.protocol.high
        mass = (1.0 - low) / (high - low) if low < 1.0 < high else 0.5
        largest_share = min(high * mass, 1.0 - low * (1.0 - mass))
        smallest_share = max(low * mass, 1.0 - high * (1.0 - mass))
        count = np.arange(-self.reach, self.reach + 1)
        weight = special.expit(_SHARPNESS * (count - self.tip))
        return np.asarray(smallest_share + (largest_share - smallest_share) * weight)

    def chances(self) -> tuple[float, float]:
        """Probabilities that the back is released: rounded down without the record, up with it."""
        probabilities = probabilities_of_runs(self.protocol.repetitions, _MAX_RUNS)
        tail_probability = 1.0 - float(probabilities.sum())
        matrices = np.stack([self._matrix(mean, w) for mean in (0.0, self.mu) for w in (0, 1)])
        vectors = np.ones((2 * _MEANS, 2 * self.reach + 1, 1))
        inside = probabilities[0] * np.ones(2 * _MEANS)
        for k in range(1, len(probabilities)):
            vectors = matrices @ vectors
            inside += probabilities[k] * vectors[:, self.reach, 0]
        slack = 1e-13
        without, with_record = inside[0] - inside[1], inside[2] - inside[3]
        return float(without - slack), float(with_record + max(tail_probability, 0.0) + slack)

    def epsilon(self, delta: float) -> float:
        """Epsilon that the event attains at delta, rounded down; 0 where it is too rare."""
        return attained_epsilon(*self.chances(), delta)

    def play(self, rng: np.random.Generator, trials: int, mean: float) -> NDArray[np.bool_]:
        """Simulates tunings; returns whether each of them released an output of the back, [trials].

        Args:
            rng: source of all random draws.
            trials: number of tunings.
            mean: mean of x in one run: 0, or mu with the record.
        """
        runs = self.protocol.repetitions.sample(rng, trials)
        shares = self.back_shares
        count = np.full(trials, self.reach)
        in_front, in_back = np.zeros(trials, np.bool_), np.zeros(trials, np.bool_)
        for index in range(int(runs.max(initial=0))):
            who = np.flatnonzero(runs > index)
            label = (rng.random(len(who)) >= shares[count[who]]).astype(np.int64)
            x = mean + rng.standard_normal(len(who))
            in_front[who] |= x > np.array(self.front)[label]
            in_back[who] |= x < np.array(self.back)[label]
            move = (x < self.points[0]).astype(np.int64) - (x > self.points[1])
            count[who] = np.clip(count[who] + move, 0, 2 * self.reach)
        return in_back & ~in_front

    def _matrix(self, mean: float, without_back: int) -> FloatArray:
        """Probabilities [counts, counts] that a run is not in the front, and moves the count.

        With `without_back`, the run is not in the back either.
        """
        moves = np.zeros((2, 3))
        for label in (0, 1):
            lowest = self.back[label] if without_back else -np.inf
            limits = np.array([-np.inf, self.points[0], self.points[1], np.inf])
            limits = np.clip(limits, lowest, max(self.front[label], lowest))
            moves[label] = np.diff(special.ndtr(limits - mean))
        shares = self.back_shares
        chances = shares[:, None] * moves[0] + (1.0 - shares)[:, None] * moves[1]
        size = len(shares)
        matrix, at = np.zeros((size, size)), np.arange(size)
        for column, move in enumerate((1, 0, -1)):
            np.add.at(matrix, (at, np.clip(at + move, 0, size - 1)), chances[:, column])
        return matrix


def attained_epsilon(without: float, with_record: float, delta: float) -> float:
    """Epsilon that an event attains at delta, by its chances; 0 where it is too rare."""
    return math.log((without - delta) / with_record) if without > delta + with_record else 0.0


def probabilities_of_runs(repetitions: Repetitions, limit: int) -> FloatArray:
    """Probabilities of K from 0 on, until the rest is negligible or K reaches a limit."""
    largest = 64
    while True:
        probabilities = repetitions.pmf(np.arange(largest + 1))
        if 1.0 - probabilities.sum() <= _NEGLIGIBLE or largest >= limit:
            return probabilities
        largest *= 2


def start_of_search(
    mu: float, protocol: Adaptive, delta: float, rarest: float = 0.0
) -> tuple[float, float, float]:
    """Limits of front and back by the best split order of random search, and its epsilon.

    Args:
        mu: mu of the base mechanism.
        protocol: the distribution of K and the range of densities relative to the prior.
        delta: in (0, 1).
        rarest: the smallest expected number of outputs of the back in a tuning; at least 10 delta.
    """
    order, epsilon = worst_case_split_order(mu, protocol.repetitions, delta)
    rare = max(10.0 * delta, rarest) / protocol.repetitions.mean
    top = float(np.clip(order.top, -3.0, 6.0 + mu))
    return top, float(special.ndtri(min(rare, 0.1))), float(epsilon)


def adaptive_attack(
    mu: float,
    protocol: Adaptive,
    delta: float,
    trials: int = _ALL_TRIALS,
    confidence: float = 0.95,
    evaluations: int = 400,
) -> AdaptiveAttack:
    """The best attack found: a local search from the best split order of random search.

    Args:
        mu: mu of the base mechanism.
        protocol: the distribution of K and the range of densities relative to the prior.
        delta: in (0, 1).
        trials: number of trials with, and without, the record. The search maximises the lower
            bound on epsilon that the expected counts of these trials prove.
        confidence: confidence of the two limits of these counts together.
        evaluations: largest number of attacks that the search evaluates.

    Example:
        >>> from audit.protocols import Adaptive
        >>> attack = adaptive_attack(1.0, Adaptive("tnb:0,0.5", 0.75, 1.33), 1e-5, evaluations=20)
        >>> attack.epsilon(1e-5) > 0.0
        True
    """
    alpha = (1.0 - confidence) / 2.0
    # An event of probability about 10 delta, or one that this number of trials can detect.
    top, low, _ = start_of_search(mu, protocol, delta, 30.0 / trials)

    def attack(values: FloatArray) -> AdaptiveAttack:
        front_back, front, back, back_front, against, after, tip = map(float, values)
        return AdaptiveAttack(
            mu, protocol, (front_back, front), (back, back_front), (against, after), tip
        )

    def lost(values: FloatArray) -> float:
        if values[4] > values[5] or max(values[2], values[3]) > min(values[0], values[1]):
            return 50.0
        without, with_record = (np.array([max(c, 1e-300)]) for c in attack(values).chances())
        return -float(np.log(expected_ratio(without, with_record, delta, trials, alpha))[0])

    from scipy import optimize  # slow to import, and rarely needed

    optimum = optimize.minimize(
        lost,
        np.array([top + 0.5, top - 0.1, low + 0.1, low - 0.7, -1.0, 1.0 + mu, 0.5]),
        method="Nelder-Mead",
        options={"maxfev": evaluations, "xatol": 1e-3, "fatol": 1e-5},
    )
    best = attack(np.asarray(optimum.x))
    plain = replace(best, tip=math.inf, front=(top, top), back=(low, low))
    return max(
        (best, plain), key=lambda candidate: _expected_ratio(candidate, delta, trials, alpha)
    )


def _expected_ratio(attack: AdaptiveAttack, delta: float, trials: int, alpha: float) -> float:
    without, with_record = (np.array([max(c, 1e-300)]) for c in attack.chances())
    return float(expected_ratio(without, with_record, delta, trials, alpha)[0])

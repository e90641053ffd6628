"""Attacks on adaptive search: samplers that use their freedom [c, C] to reveal the record.

In the first attack each candidate only carries one of two labels. The sampler counts the evidence
of the runs so far: a small x is a point against the record, a large x a point for it. While there
is more evidence against it, the label "back" is as likely as [c, C] allows, otherwise the label
"front". The score prefers outputs of the front (x above a limit that depends on the label), then
those of the back (x below a limit), then the rest. The probability that an output of the back is
released is computed from powers of a matrix: the probabilities that a run is in a set of outputs
and moves the count from i to j.

In the second attack each candidate carries one of three labels, each with a prior probability of
1/3, chosen by the evidence of the earlier runs. The score prefers outputs of the front (x above a
limit that depends on the label), then those of the back (x below a limit), then the rest. The event
is that an output of the back is released. While the earlier runs are evidence against the record,
the sampler prefers the label "back", whose limits make this event likely. If they are evidence for
the record, it prefers "front", whose outputs prevent the event if the back was already reached, and
"neutral", which avoids both, otherwise.

The sampler that leaks most is found by backward induction: after n runs, the best densities depend
only on the likelihood ratio of these runs and on whether the back was reached. The sampler rounds
the log-likelihood ratio of each run to a lattice, so the probabilities of the event are exact sums.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.attacks.orders import expected_ratio, worst_case_split_order
from audit.numerics import FloatArray, IntArray
from audit.protocols import Adaptive
from audit.repetitions import Repetitions

_MEANS = 2
_NEGLIGIBLE = 1e-9
_MAX_RUNS = 1 << 16
_SHARPNESS = 4.0  # of the change from one density to the other, per point
_ALL_TRIALS = 10**12
LABELS = ("back", "front", "neutral")
"""The labels of the candidates."""
_MAX_RUNS_OF_LABELS = 1 << 13
_SLACK = 1e-13
# Normal tails beyond this many standard deviations move like the last point before.
_TAILS = 5.0
# Points of evidence on either side that the search distinguishes at most.
_MOST_COUNTS = 400
# A search that gains less has stayed at its start, which large mu make a local optimum.
_MOVED = 1e-3
# Rounds in which the sampler is adapted to the epsilon that it attains.
_ROUNDS = 3


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


@dataclass(frozen=True)
class LabelAttack:
    """A sampler of three labels and a score for N(b mu, 1), and the event "the back is released".

    Attributes:
        mu: mu of the base mechanism.
        protocol: the distribution of K and the range of densities relative to the prior.
        front: limits above which x is in the front, by label.
        back: limits below which x is in the back, by label.
        tuned_to: the epsilon for which the sampler leaks most.
        spacing: points of the lattice of evidence, in units of mu.
        reach: the largest log-likelihood ratio of the earlier runs that the sampler distinguishes.

    Example:
        >>> from audit.protocols import Adaptive
        >>> protocol = Adaptive("tnb:0,0.5", low=0.5, high=2.0)
        >>> attack = LabelAttack(1.0, protocol, (5.0, 2.0, 4.0), (-2.0, -4.0, -4.0), 2.0)
        >>> without, with_record = attack.chances
        >>> without > 10.0 * with_record
        True
    """

    mu: float
    protocol: Adaptive
    front: tuple[float, float, float]
    back: tuple[float, float, float]
    tuned_to: float
    spacing: float = 0.25
    reach: float = 8.0

    @property
    def densities(self) -> FloatArray:
        """The densities [3] of the best, the second and the worst label, with mean 1."""
        low, high = self.protocol.low, self.protocol.high
        best = min(high, 3.0 - 2.0 * low)
        worst = max(low, 3.0 - 2.0 * high, 3.0 - best - high)
        return np.array([best, 3.0 - best - worst, worst])

    @cached_property
    def chances(self) -> tuple[float, float]:
        """Probabilities that the back is released: rounded down without the record, up with it."""
        without, with_record, _ = self._induction
        beyond = max(1.0 - float(self._runs.sum()), 0.0)
        return without - _SLACK, with_record + beyond + _SLACK

    def epsilon(self, delta: float) -> float:
        """Epsilon that the event attains at delta, rounded down; 0 where it is too rare."""
        return attained_epsilon(*self.chances, delta)

    def play(self, rng: np.random.Generator, trials: int, mean: float) -> NDArray[np.bool_]:
        """Simulates tunings; returns whether each of them released an output of the back, [trials].

        Args:
            rng: source of all random draws.
            trials: number of tunings.
            mean: mean of x in one run: 0, or mu with the record.
        """
        _, _, best = self._induction
        runs = self.protocol.repetitions.sample(rng, trials)
        count = np.full(trials, self._middle)
        in_front, in_back = np.zeros(trials, np.bool_), np.zeros(trials, np.bool_)
        shares = np.cumsum(self.densities / 3.0)
        for index in range(int(runs.max(initial=0))):
            who = np.flatnonzero(runs > index)
            order = best[min(index, len(best) - 1), in_back[who].astype(np.int64), count[who]]
            place = np.searchsorted(shares[:-1], rng.random(len(who)))
            label = order[np.arange(len(who)), place]
            x = mean + rng.standard_normal(len(who))
            in_front[who] |= x > np.array(self.front)[label]
            in_back[who] |= x < np.array(self.back)[label]
            move = np.searchsorted(self._limits, x) + self._moves[0]
            count[who] = np.clip(count[who] + move, 0, 2 * self._middle)
        return in_back & ~in_front

    @property
    def _middle(self) -> int:
        """The index of a likelihood ratio of 1."""
        return math.ceil(self.reach / (self.spacing * self.mu))

    @property
    def _moves(self) -> IntArray:
        """The points of evidence of one run, log dP'/dP in units of the spacing."""
        # The evidence mu x - mu^2/2 in units of spacing * mu is (x - mu/2) / spacing.
        low, high = -_TAILS - 0.5 * self.mu, _TAILS + 0.5 * self.mu
        return np.arange(math.floor(low / self.spacing), math.ceil(high / self.spacing) + 1)

    @property
    def _limits(self) -> FloatArray:
        """The x at which the evidence of a run changes to the next point."""
        return np.asarray((self._moves[:-1] + 0.5) * self.spacing + 0.5 * self.mu)

    @cached_property
    def _runs(self) -> FloatArray:
        return probabilities_of_runs(self.protocol.repetitions, _MAX_RUNS_OF_LABELS)

    def _matrices(self, mean: float) -> tuple[FloatArray, FloatArray]:
        """Probabilities [3, n, n] that a run moves the evidence, in the back and in the rest."""
        edges = np.concatenate([[-np.inf], self._limits, [np.inf]])
        size = 2 * self._middle + 1
        start = np.arange(size)
        matrices = np.zeros((2, 3, size, size))
        for label in range(3):
            back, front = self.back[label], max(self.front[label], self.back[label])
            for side, (lower, upper) in enumerate(((-np.inf, back), (back, front))):
                chances = np.diff(special.ndtr(np.clip(edges, lower, upper) - mean))
                for move, chance in zip(self._moves, chances, strict=True):
                    end = np.clip(start + move, 0, size - 1)
                    np.add.at(matrices[side, label], (start, end), chance)
        return matrices[0], matrices[1]

    @cached_property
    def _induction(self) -> tuple[float, float, NDArray[np.int8]]:
        """The chances of the event, and the orders of labels [runs, 2, counts, 3], best first."""
        size = 2 * self._middle + 1
        evidence = (np.arange(size) - self._middle) * self.spacing * self.mu
        price = np.exp(np.minimum(self.tuned_to + evidence, 600.0))[:, None]
        sides = [self._matrices(mean) for mean in (0.0, self.mu)]
        stacked = [(back.reshape(-1, size), forward.reshape(-1, size)) for back, forward in sides]
        probabilities, densities = self._runs, self.densities / 3.0
        # Chances of the event after n runs outside the front, for states [not reached, reached].
        chances = [np.stack([np.zeros(size), np.full(size, probabilities[-1])])] * 2
        best = np.zeros((len(probabilities) - 1, 2, size, 3), np.int8)
        for n in range(len(probabilities) - 2, -1, -1):
            later = []
            for (back, forward), values in zip(stacked, chances, strict=True):
                # A run in the back reaches it, whatever was before.
                reached = back @ values[1]
                later.append([(reached + forward @ values[f]).reshape(3, size).T for f in (0, 1)])
            following = []
            for state in (0, 1):
                gain = later[0][state] - price * later[1][state]
                order = np.argsort(-gain, axis=1, kind="stable")
                best[n, state] = order
                following.append(
                    [np.take_along_axis(side[state], order, axis=1) @ densities for side in later]
                )
            chances = [
                np.stack([following[0][side], following[1][side] + probabilities[n]])
                for side in (0, 1)
            ]
        without, with_record = (float(side[0, self._middle]) for side in chances)
        return without, with_record, best


def label_attack(
    mu: float,
    protocol: Adaptive,
    delta: float,
    evaluations: int = 120,
    spacing: float = 0.125,
    start: Sequence[float] | None = None,
) -> LabelAttack:
    """The best attack with three labels that a local search finds.

    Args:
        mu: mu of the base mechanism.
        protocol: the distribution of K and the range of densities relative to the prior.
        delta: in (0, 1).
        evaluations: largest number of attacks that a search evaluates, with a coarse lattice; a
            search that stays at its start is followed by another one.
        spacing: the spacing of the returned attack; it is larger if mu is very small.
        start: limits of the front by label and then of the back, from which the search begins; by
            default they follow from the best order of random search.

    Example:
        >>> from audit.protocols import Adaptive
        >>> attack = label_attack(1.0, Adaptive("tnb:0,0.5", 0.5, 2.0), 1e-3, evaluations=5)
        >>> attack.epsilon(1e-3) > 0.0
        True
    """
    top, low, epsilon = start_of_search(mu, protocol, delta)
    starts = (
        [np.asarray(start, dtype=np.float64)]
        if start is not None
        else [
            np.array([top + 2.5, top, top + 1.5, low + 0.1, low - 1.5, low - 1.2]),
            np.array([top + 1.0, top - 0.7, top + 0.2, low + 0.1, low - 1.5, low - 1.2]),
        ]
    )
    tuned = {"epsilon": epsilon}

    def attack(values: FloatArray, points: float) -> LabelAttack:
        front, back = tuple(map(float, values[:3])), tuple(map(float, values[3:]))
        points = max(points, LabelAttack.reach / (_MOST_COUNTS * mu))
        return LabelAttack(mu, protocol, front, back, tuned["epsilon"], points)  # type: ignore[arg-type]

    def lost(values: FloatArray) -> float:
        if np.any(values[3:] >= values[:3]):
            return 50.0
        attained = attack(values, max(spacing, 0.5)).epsilon(delta)
        tuned["epsilon"] = max(tuned["epsilon"], attained)
        return -attained

    from scipy import optimize  # slow to import, and rarely needed

    searched: list[tuple[float, FloatArray]] = []
    for limits in starts:
        at_start = lost(limits)
        simplex = np.vstack([limits, limits + np.diag([0.4, 0.2, -0.4, 0.15, 0.4, 0.4])])
        optimum = optimize.minimize(
            lost,
            limits,
            method="Nelder-Mead",
            options={
                "maxfev": evaluations,
                "xatol": 1e-3,
                "fatol": 1e-5,
                "initial_simplex": simplex,
            },
        )
        searched.append((float(optimum.fun), np.asarray(optimum.x)))
        if optimum.fun < at_start - _MOVED:
            break
    best = attack(min(searched, key=lambda search: search[0])[1], spacing)
    return max(_adapted(best, delta), key=lambda adapted: adapted.epsilon(delta))


def _adapted(attack: LabelAttack, delta: float) -> Iterator[LabelAttack]:
    """The attack with samplers for the epsilon that it attains."""
    for _ in range(_ROUNDS):
        yield attack
        attack = replace(attack, tuned_to=attack.epsilon(delta))

"""An attack on adaptive search with three labels, chosen by the evidence of the earlier runs.

Each candidate only carries one of three labels, each with a prior probability of 1/3. The score
prefers outputs of the front (x above a limit that depends on the label), then those of the back (x
below a limit), then the rest. The event is that an output of the back is released. While the
earlier runs are evidence against the record, the sampler prefers the label "back", whose limits
make this event likely. If they are evidence for the record, it prefers "front", whose outputs
prevent the event if the back was already reached, and "neutral", which avoids both, otherwise.

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

from audit.arrays import FloatArray, IntArray
from audit.attacks.adaptive import attained_epsilon, probabilities_of_runs, start_of_search
from audit.protocols import Adaptive

LABELS = ("back", "front", "neutral")
"""The labels of the candidates."""

_MAX_RUNS = 1 << 13
_SLACK = 1e-13
# Normal tails beyond this many standard deviations move like the last point before.
_TAILS = 5.0
# Points of evidence on either side that the search distinguishes at most.
_MOST_COUNTS = 400
# Rounds in which the sampler is adapted to the epsilon that it attains.
_ROUNDS = 3


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
        return probabilities_of_runs(self.protocol.repetitions, _MAX_RUNS)

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
        evaluations: largest number of attacks that the search evaluates, with a coarse lattice.
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
    limits = (
        np.array([top + 2.5, top, top + 1.5, low + 0.1, low - 1.5, low - 1.2])
        if start is None
        else np.asarray(start, dtype=np.float64)
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

    simplex = np.vstack([limits, limits + np.diag([0.4, 0.2, -0.4, 0.15, 0.4, 0.4])])
    optimum = optimize.minimize(
        lost,
        limits,
        method="Nelder-Mead",
        options={"maxfev": evaluations, "xatol": 1e-3, "fatol": 1e-5, "initial_simplex": simplex},
    )
    best = attack(np.asarray(optimum.x), spacing)
    return max(_adapted(best, delta), key=lambda adapted: adapted.epsilon(delta))


def _adapted(attack: LabelAttack, delta: float) -> Iterator[LabelAttack]:
    """The attack with samplers for the epsilon that it attains."""
    for _ in range(_ROUNDS):
        yield attack
        attack = replace(attack, tuned_to=attack.epsilon(delta))

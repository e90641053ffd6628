r"""Tuning on a random subset, training on the rest or on all (Koskela & Kulkarni 2023).

The extra record is tuned on with chance q. With (P1, P1_0) a pair that dominates the tuning with
and without it, (P2, P2_0) one that dominates the final run, and r1, r2 their density ratios, what
is released has, by postprocessing (a final run may depend on the tuning), no more to it than

    q P1 x P2_0 + (1-q) P1_0 x P2   where the final run takes the rest,
    (q P1 + (1-q) P1_0) x P2        where it takes all

against P1_0 x P2_0. Given r1, both hockey sticks are those of the final run at another epsilon:

    rest: E[(q r1 + (1-q) r2 - e^eps)_+] = (1-q) E[(r2 - t)_+],       t = (e^eps - q r1)/(1-q),
          E[(1 - e^eps (q r1 + (1-q) r2))_+] = e^eps (1-q) E[(t - r2)_+], t = (e^-eps - q r1)/(1-q);
    all:  E[(w r2 - e^eps)_+] and E[(1 - e^eps w r2)_+], w = 1-q + q r1.

So the cost is a sum over the losses of the tuning, whose pair is made from the profile of the
region bound, of the exact profile of the final run. No Renyi divergence is taken anywhere.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit import checks
from audit.accounting import (
    DominatingPair,
    LossPair,
    Mechanism,
    group_size,
    relations,
    solve_epsilon,
)
from audit.numerics import PROFILE_ACCURACY
from audit.protocols import Subset
from audit.repetitions import Repetitions
from audit.upper_bounds.composed import TunedMechanism
from audit.upper_bounds.registry import BoundValue, bound, find
from audit.upper_bounds.renyi import Curve, lemma_7_curve
from audit.upper_bounds.result import NotApplicable, UpperBound

Array = NDArray[np.float64]

_LARGEST_ORDER = 512


@dataclass(frozen=True)
class SubsetCurve:
    """The cost of tuning on a subset and a final run, as a function of epsilon.

    Attributes:
        tuning: a pair that dominates the tuning, with the record against without.
        final: the same of the final run.
        final_mirrored: of the final run, without the record against with it.
        sampling_rate: q in [0, 1], the share of records tuned on.
        on_all: whether the final run takes all records, else the rest.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import tuning_cost
        >>> round(tuning_cost(GaussianMechanism(0.25), "subset:0.1/tnb:0,0.1", 1e-5).epsilon, 3)
        0.863
    """

    tuning: LossPair
    final: DominatingPair
    final_mirrored: DominatingPair
    sampling_rate: float
    on_all: bool = False

    def delta(self, epsilon: float) -> float:
        """The larger of both directions' profiles at epsilon >= 0."""
        both = self._all(epsilon) if self.on_all else self._rest(epsilon)
        return min(max(both) * (1.0 + PROFILE_ACCURACY), 1.0)

    def _rest(self, epsilon: float) -> tuple[float, float]:
        q, (loss, log_mass, only) = self.sampling_rate, self._outputs
        if q == 1.0:
            return float(self.tuning.profile(epsilon)), float(self.tuning.mirrored.profile(epsilon))
        log_other = math.log1p(-q)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_q = np.log(q)
            # t / e^eps and, where t <= 0, the gain q r1 - e^eps + 1 - q in units of r1.
            share = 1.0 - np.exp(np.minimum(log_q + loss - epsilon, 1.0))
            gains = np.exp(log_mass + log_other) * self.final.profile(
                epsilon + np.log(np.maximum(share, 1e-300)) - log_other
            )
            sure = q - np.exp(np.minimum(epsilon - loss, 0.0)) + np.exp(log_other - loss)
            gains = np.where(share > 0.0, gains, np.exp(log_mass + loss) * np.maximum(sure, 0.0))
            # e^eps (1-q) t.
            left = np.maximum(1.0 - np.exp(np.minimum(epsilon + log_q + loss, 1.0)), 0.0)
            losses = left * self.final_mirrored.profile(
                epsilon + log_other - np.log(np.maximum(left, 1e-300))
            )
        return q * only + float(gains.sum()), float(np.exp(log_mass) @ losses)

    def _all(self, epsilon: float) -> tuple[float, float]:
        q, (loss, log_mass, only) = self.sampling_rate, self._outputs
        with np.errstate(divide="ignore"):
            log_w = np.maximum(np.logaddexp(np.log1p(-q), np.log(q) + loss), -1e6)
        with_record = np.exp(log_mass + log_w) * self.final.profile(epsilon - log_w)
        without = np.exp(log_mass) @ self.final_mirrored.profile(epsilon + log_w)
        return q * only + float(with_record.sum()), float(without)

    @property
    def _outputs(self) -> tuple[Array, Array, float]:
        """Losses log r1 [n] of the tuning, log P1_0-masses, and the P1-mass of infinite losses."""
        law = self.tuning.law
        with np.errstate(divide="ignore"):
            log_mass = np.append(np.log(law.q_only), law.log_mass - law.loss)
        return np.append(-1e6, law.loss), log_mass, law.p_only


@bound(
    "subset",
    100,
    "both directions' hockey sticks of the mixture of two pairs, from the region bound's profile",
    about=("any base, add-remove or zero-out neighbours",),
    protocol=Subset,
    title=r"$\varepsilon_U$ subset (any score)",
)
def subset(base: Mechanism, protocol: Subset, delta: float) -> BoundValue:
    """Smallest epsilon of tuning on a subset and a final run, over both directions.

    Args:
        base: one run, while tuning and in the end.
        protocol: the law of K, the share of records tuned on, and what the final run takes.
        delta: in (0, 1).
    """
    _check_added_or_removed(base)
    curves = subset_curves(base, base, protocol)
    return BoundValue(max(solve_epsilon(curve.delta, delta) for curve in curves))


def subset_curves(tuning: Mechanism, final: Mechanism, protocol: Subset) -> list[SubsetCurve]:
    """The cost where a run while tuning and the final one may differ.

    Args:
        tuning: one run while tuning.
        final: the final run.
        protocol: the law of K, the share of records tuned on, and what the final run takes.

    Returns:
        One curve; two where it is not known which pair of the final run has the record first.
    """
    pair = TunedMechanism(tuning, protocol.repetitions).pairs[0]
    assert isinstance(pair, LossPair)
    ends = final.pairs[0], final.pairs[-1]
    return [
        SubsetCurve(pair, *sides, protocol.sampling_rate, protocol.final == "all")
        for sides in ([ends] if final.is_directed else [ends, ends[::-1]])
    ]


def subset_divergences(
    tuned: Curve, final: Curve, sampling_rate: float, orders: Array
) -> tuple[Array, Array]:
    """Renyi divergences of (tuned on a Poisson subset, final run on the rest), both directions.

    The extra record is in the subset with chance q and in the rest with 1-q, so the density ratio
    is q r1 + (1-q) r2: expanded by the binomial theorem in one direction, bounded by convexity of
    x^-(alpha-1) in the other.

    Args:
        tuned: divergence of the tuning by order.
        final: divergence of the final run by order.
        sampling_rate: q in [0, 1].
        orders: whole numbers [n] >= 2.

    Returns:
        D_alpha with the record || without, and the reverse; [n] each.

    Example:
        >>> import numpy as np
        >>> orders = np.array([2.0, 4.0])
        >>> removed, added = subset_divergences(lambda a: 0.1 * a, lambda a: 0.05 * a, 0.1, orders)
        >>> removed.round(3).tolist()
        [0.084, 0.169]
    """
    q = checks.interval("sampling_rate", sampling_rate, 0.0, 1.0, closed_low=True, closed_high=True)
    most = checks.integer("orders", float(np.max(orders)), 2)
    every = np.arange(2.0, most + 1.0)
    # Log moments (k-1) D_k for k = 0, 1, 2, ...; those of 0 and 1 are 0.
    moments = [
        np.concatenate([[0.0, 0.0], (every - 1.0) * curve(every)]) for curve in (tuned, final)
    ]
    with_record, without_record = [], []
    with np.errstate(divide="ignore"):
        log_q, log_rest = np.log(q), np.log1p(-q)
    for order in np.asarray(orders, dtype=np.int64):
        j = np.arange(order + 1)
        log_ways = special.gammaln(order + 1.0) - special.gammaln(j + 1.0)
        log_ways = log_ways - special.gammaln(order - j + 1.0)
        weights = special.xlogy(order - j, q) + special.xlog1py(j, -q)
        terms = log_ways + weights + moments[0][order - j] + moments[1][j]
        with_record.append(special.logsumexp(terms) / (order - 1.0))
        ends = log_q + moments[0][order], log_rest + moments[1][order]
        without_record.append(np.logaddexp(*ends) / (order - 1.0))
    return np.maximum(with_record, 0.0), np.maximum(without_record, 0.0)


def subset_tuning(
    tuning: Mechanism,
    final: Mechanism,
    repetitions: Repetitions,
    sampling_rate: float,
    delta: float,
) -> UpperBound:
    """Epsilon of tuning on a Poisson subset of rate q and then training once on the rest.

    Args:
        tuning: one run while tuning.
        final: the final run.
        repetitions: the law of K while tuning.
        sampling_rate: q in [0, 1], the share of records tuned on.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> tuning, final = GaussianMechanism(0.25), GaussianMechanism(0.25)
        >>> round(subset_tuning(tuning, final, "tnb:0,0.1", 0.1, 1e-5).epsilon, 3)
        1.139
    """
    checks.interval("delta", delta, 0.0, 1.0)
    epsilon = _renyi_epsilon(tuning, final, repetitions, sampling_rate, delta)
    return UpperBound("koskela-kulkarni", epsilon, find("koskela-kulkarni", Subset).claim)


def _renyi_epsilon(
    tuning: Mechanism,
    final: Mechanism,
    repetitions: Repetitions,
    sampling_rate: float,
    delta: float,
) -> float:
    orders = np.arange(2.0, _LARGEST_ORDER + 1.0)
    both = subset_divergences(
        lemma_7_curve(tuning, repetitions), final.renyi, sampling_rate, orders
    )
    rest = orders - 1.0
    added = np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / rest
    return max(0.0, *(float(np.min(curve + added)) for curve in both))


@bound(
    "koskela-kulkarni",
    10,
    "Koskela & Kulkarni 2023, with lemma 7 of Papernot & Steinke 2022 for the tuning",
    about=("any base, add-remove or zero-out neighbours",),
    protocol=Subset,
    title=r"$\varepsilon_U$ Koskela & Kulkarni (any score)",
)
def koskela_kulkarni(base: Mechanism, protocol: Subset, delta: float) -> BoundValue:
    """Their theorem, with runs while tuning as private as the final one.

    Args:
        base: one run, while tuning and in the end.
        protocol: the law of K, the share of records tuned on.
        delta: in (0, 1).
    """
    _check_added_or_removed(base)
    if protocol.final != "rest":
        raise NotApplicable("the final run must take the rest of the records")
    law, rate = protocol.repetitions, protocol.sampling_rate
    return BoundValue(_renyi_epsilon(base, base, law, rate, delta))


def _check_added_or_removed(base: Mechanism) -> None:
    # A record that is replaced is tuned on, or trained on, before and after.
    if "replace-one" in relations(base):
        raise NotApplicable("neighbours must be add-remove or zero-out")
    if group_size(base) > 1:  # records of one person are not all on the same side
        raise NotApplicable("groups must be of one record")


def scaled_learning_rate(learning_rate: float, from_records: int, to_records: int) -> float:
    """The learning rate moved from tuning on few records to training on many.

    Example:
        >>> scaled_learning_rate(0.1, from_records=1_000, to_records=10_000)
        1.0
    """
    return learning_rate * to_records / from_records


def cost_ratio(mean_runs: float, sampling_rate: float) -> float:
    """How many times cheaper it is than tuning on everything, E[K] / (E[K] q + 1).

    Example:
        >>> round(cost_ratio(mean_runs=20.0, sampling_rate=0.1), 3)
        6.667
    """
    return mean_runs / (mean_runs * sampling_rate + 1.0)

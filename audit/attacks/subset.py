"""An attack on tuning on a subset: the winner by an order of N(b mu, 1), and the final run.

By the lemma of Neyman and Pearson, the best statistic is the density ratio of both outputs
together. With the ratios r1 of the tuning and r2 of the final run, it is q r1 + (1-q) r2 if the
final run trains on the other records, and (q r1 + 1-q) r2 if it trains on all.
"""

from dataclasses import dataclass, replace

import numpy as np

from audit.accounting import GaussianMechanism, LossPair, solve_epsilon
from audit.accounting.pairs import PrivacyLossPmf
from audit.attacks.orders import TunedOrder, worst_case_split_order
from audit.numerics import FloatArray, log_complement
from audit.orders import SplitOrder
from audit.protocols import Subset
from audit.upper_bounds.subset import SubsetCurve

_STEP = 0.01
_ROUNDING = 1e-6


@dataclass(frozen=True)
class SubsetAttack:
    """Tuning on a subset with outputs N(b mu, 1) and a split order, followed by a final run.

    Attributes:
        mu: mu of one run.
        protocol: the distribution of K, the probability that a record is in the subset, and the
            records of the final run.
        order: the order by which the best run of the tuning is chosen.

    Example:
        >>> from audit.orders import SplitOrder
        >>> from audit.protocols import Subset
        >>> attack = SubsetAttack(1.0, Subset("tnb:0,0.1", 0.5), SplitOrder(2.0))
        >>> attack.epsilon(1e-5) > 0.0
        True
    """

    mu: float
    protocol: Subset
    order: SplitOrder

    def epsilon(self, delta: float) -> float:
        """Epsilon that the order attains at delta, with the winner's x in cells; rounded down."""
        (p, _), (p_with, _) = TunedOrder(
            self.mu, self.protocol.repetitions, self.order, _STEP
        ).masses
        is_possible = (p > 1e-290) & (p_with > 1e-290)
        loss = np.log(p_with[is_possible]) - np.log(p[is_possible])
        order = np.argsort(loss)
        tuning = LossPair(PrivacyLossPmf(loss[order], np.log(p_with[is_possible])[order], 0.0, 0.0))
        (pair,) = GaussianMechanism(self.mu).pairs
        on_all = self.protocol.final == "all"
        curve = SubsetCurve(tuning, pair, pair, self.protocol.sampling_rate, on_all)

        def attained(epsilon: float) -> float:
            return max(curve.delta(epsilon) * (1.0 - _ROUNDING) - 1e-13, 0.0)

        return solve_epsilon(attained, delta) * (1.0 - _ROUNDING)

    def log_ratio(self, winner: FloatArray, final: FloatArray) -> FloatArray:
        """Log density ratio [n] of both outputs; a winner of minus infinity means no run."""
        repetitions, q = self.protocol.repetitions, self.protocol.sampling_rate
        is_finite = np.isfinite(winner)
        x, tuned = winner[is_finite], np.zeros(len(winner))
        without, with_record = (
            repetitions.log_phi_prime_at(_log_worse(self.order, x, mean)) for mean in (0.0, self.mu)
        )
        tuned[is_finite] = with_record - without + self.mu * (x - 0.5 * self.mu)
        final_loss = self.mu * (final - 0.5 * self.mu)
        with np.errstate(divide="ignore"):
            log_q, log_rest = np.log(q), np.log1p(-q)
        if self.protocol.final == "all":
            return np.asarray(np.logaddexp(log_q + tuned, log_rest) + final_loss)
        return np.asarray(np.logaddexp(log_q + tuned, log_rest + final_loss))

    def play(self, rng: np.random.Generator, trials: int, mean: float) -> FloatArray:
        """Simulates tunings and returns their log density ratios, [trials].

        Args:
            rng: source of all random draws.
            trials: number of tunings.
            mean: mean of x in runs on the part of the data with the record: mu, or 0 without it.
        """
        runs = self.protocol.repetitions.sample(rng, trials)
        tuned_on = rng.random(trials) < self.protocol.sampling_rate
        winner = np.full(trials, -np.inf)
        for has_record in (False, True):
            who = np.flatnonzero((runs > 0) & (tuned_on == has_record))
            winner[who] = self.order.best(runs[who], mean * has_record, rng)
        on_final = np.ones(trials) if self.protocol.final == "all" else ~tuned_on
        return self.log_ratio(winner, mean * on_final + rng.standard_normal(trials))


def _log_worse(order: SplitOrder, x: FloatArray, mean: float) -> FloatArray:
    """Log probability that a run is not preferred to x."""
    above, below = order.tails(x, mean)
    better = np.minimum(above + below, 1.0)
    return np.asarray(log_complement(better, 1.0 - better))


def subset_attack(mu: float, protocol: Subset, delta: float) -> SubsetAttack:
    """The attack with the best of three orders: increasing, decreasing, or split.

    The split order is the worst one for random search.

    Args:
        mu: mu of one run.
        protocol: the distribution of K, the probability that a record is in the subset, and the
            records of the final run.
        delta: in (0, 1).

    Example:
        >>> from audit.protocols import Subset
        >>> subset_attack(1.0, Subset("tnb:0,0.1", 0.5), 1e-5).epsilon(1e-5) > 0.0
        True
    """
    best, _ = worst_case_split_order(mu, protocol.repetitions, delta)
    plain = SubsetAttack(mu, protocol, SplitOrder(-np.inf))
    tried = [plain, *(replace(plain, order=SplitOrder(top)) for top in (np.inf, best.top))]
    return max(tried, key=lambda attack: attack.epsilon(delta))

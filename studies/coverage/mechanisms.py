"""Mechanisms whose scores can be simulated and whose epsilon is known exactly."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from audit import protocols
from audit.accounting import GaussianMechanism, calibrate_mu
from audit.attacks import (
    AcceptedTails,
    AdaptiveAttack,
    SubsetAttack,
    TunedOrder,
    attack_tails,
)
from audit.attacks.orders import attack_order
from audit.claims import Assumption, Facts, facts_of_tuning
from audit.lower_bounds import Estimator, FixedThreshold
from audit.numerics import FloatArray
from audit.orders import IncreasingOrder, SplitOrder
from audit.protocols import (
    Adaptive,
    Grid,
    Protocol,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
)
from audit.repetitions import Binomial, Fixed, Repetitions, parse_repetitions
from audit.upper_bounds import reduced_exact
from studies.accepted_tails import AcceptedTailsCurve

Sampler = Callable[[np.random.Generator, int], tuple[FloatArray, FloatArray]]

DELTA = 1e-5
# `GaussianMechanism.epsilon` is accurate to this relative error.
GAUSSIAN_ERROR = 2e-9

_GAUSSIAN = frozenset({Assumption.GAUSSIAN_BASE, Assumption.GAUSSIAN_STATISTIC})
MONOTONE = _GAUSSIAN | {Assumption.MONOTONE_SCORE, Assumption.RELEASED_SCORE}
"""The conditions of a mechanism that releases a monotone score of a Gaussian base."""


@dataclass(frozen=True)
class Mechanism:
    """A mechanism with a sampler for the scores of an audit, and the known facts about it.

    Attributes:
        name: name of the column in the tables; it also seeds the samples.
        epsilon: the true epsilon at `delta`, rounded down.
        sample: draws scores of n trials without and n trials with the record.
        delta: the delta of the bounds.
        threshold: threshold that is fixed in advance; None to derive it from theory.
        mu: mu of a Gaussian base; None for other bases.
        repetitions: distribution of K; None if nothing is tuned.
        known: the conditions that hold, apart from the independence of trials.
        split_top: where the order splits, for the worst-order score.
        protocol: how the best run is selected; None for random search.
        own_estimators: estimators for this mechanism alone.
    """

    name: str
    epsilon: float
    sample: Sampler
    delta: float = DELTA
    threshold: float | None = None
    mu: float | None = None
    repetitions: Repetitions | None = None
    known: frozenset[Assumption] = frozenset()
    split_top: float | None = None
    protocol: Protocol | None = None
    own_estimators: tuple[Estimator, ...] = ()

    @property
    def facts(self) -> Facts:
        """The facts of an audit of this mechanism: its trials are independent."""
        repetitions = Fixed(1) if self.repetitions is None else self.repetitions
        protocol = RandomSearch(repetitions) if self.protocol is None else self.protocol
        return facts_of_tuning(protocol, Assumption.INDEPENDENT_TRIALS, *self.known)


def mechanisms(trials: int) -> list[Mechanism]:
    """The mechanisms of the study; the attacks are optimised for the number of trials per side."""
    share = math.exp(1.0) / (1.0 + math.exp(1.0))
    return [
        Mechanism("pure noise", 0.0, _normal(0.0), threshold=0.0),
        Mechanism(
            "randomised response",
            math.log((share - DELTA) / (1.0 - share)),
            _leaky_response(1.0, 0.0),
            threshold=0.0,
        ),
        Mechanism("leaky response", 1.0, _leaky_response(1.0, 0.01), delta=0.01, threshold=0.0),
        Mechanism("Laplace", 1.0 + 2.0 * math.log1p(-DELTA), _laplace(1.0), threshold=0.0),
        *(
            Mechanism(
                f"Gaussian mu={mu:g}",
                GaussianMechanism(mu).epsilon(DELTA) * (1.0 - GAUSSIAN_ERROR),
                _normal(mu),
                mu=mu,
                known=MONOTONE,
            )
            for mu in (0.5, 1.5)
        ),
        _reduced("tuned tnb:0,0.01 base 1", "tnb:0,0.01", 1.0),
        _reduced("tuned tnb:0,0.01 base 4", "tnb:0,0.01", 4.0),
        _reduced("tuned tnb:1,0.01 base 1", "tnb:1,0.01", 1.0),
        _reduced("tuned poisson:20 base 2", "poisson:20", 2.0),
        _worst_order("worst order tnb:0,0.01 base 4", "tnb:0,0.01", 4.0, trials),
        _grid("grid:10", 1.0),
        _grid("grid:20,0.5", 0.5),
        _adaptive("adaptive:0.5,2/tnb:1,0.1", 0.7),
        _subset("subset:0.3/tnb:1,0.1", 1.0),
        _tails("until:0.1", 0.7, trials),
        _tails("stopping:0.1", 0.7, trials),
    ]


def _normal(mu: float) -> Sampler:
    return lambda rng, n: (rng.normal(size=n), rng.normal(mu, size=n))


def _leaky_response(epsilon: float, delta: float) -> Sampler:
    """Randomised response that reveals the input with probability delta."""

    def sample(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
        honest = math.exp(epsilon) / (1.0 + math.exp(epsilon))
        sides = []
        for value in (-1.0, 1.0):
            answer = np.where(rng.random(n) < honest, value, -value)
            sides.append(np.where(rng.random(n) < delta, 2.0 * value, answer))
        return sides[0], sides[1]

    return sample


def _laplace(epsilon: float) -> Sampler:
    return lambda rng, n: (rng.laplace(size=n), rng.laplace(epsilon, size=n))


def _winners(
    order: IncreasingOrder | SplitOrder,
    repetitions: Repetitions,
    mu: float,
    rng: np.random.Generator,
    trials: int,
) -> tuple[FloatArray, FloatArray]:
    """The statistics of the winners, without and with the record."""
    without, with_record = (
        order.best(repetitions.sample(rng, trials), mean, rng) for mean in (0.0, mu)
    )
    return without, with_record


@functools.cache
def _reduced(name: str, spec: str, epsilon_base: float) -> Mechanism:
    repetitions, mu = parse_repetitions(spec), calibrate_mu(epsilon_base, DELTA)
    exact = reduced_exact(GaussianMechanism(mu), repetitions, DELTA)
    return Mechanism(
        name,
        exact.epsilon - exact.error,
        lambda rng, n: _winners(IncreasingOrder(), repetitions, mu, rng, n),
        mu=mu,
        repetitions=repetitions,
        known=MONOTONE,
    )


@functools.cache
def _worst_order(name: str, spec: str, epsilon_base: float, trials: int) -> Mechanism:
    repetitions, mu = parse_repetitions(spec), calibrate_mu(epsilon_base, DELTA)
    order, threshold = attack_order(mu, repetitions, DELTA, trials)
    return Mechanism(
        name,
        TunedOrder(mu, repetitions, order).epsilon(DELTA),
        lambda rng, n: _winners(order, repetitions, mu, rng, n),
        threshold=threshold,
        repetitions=repetitions,
        known=_GAUSSIAN | {Assumption.SPLIT_SCORE},
        split_top=order.top,
    )


@functools.cache
def _grid(spec: str, mu: float) -> Mechanism:
    """Equal candidates and an increasing score: the largest of a known number of draws."""
    protocol = protocols.parse_protocol(spec)
    assert isinstance(protocol, Grid)
    repetitions = Binomial(protocol.candidates, protocol.inclusion)
    return Mechanism(
        spec,
        TunedOrder(mu, repetitions, IncreasingOrder()).epsilon(DELTA),
        lambda rng, n: _winners(IncreasingOrder(), repetitions, mu, rng, n),
        known=_GAUSSIAN,
        protocol=protocol,
    )


@functools.cache
def _tails(spec: str, mu: float, trials: int) -> Mechanism:
    """Runs are repeated until one is in either tail; a trial without a release scores lowest."""
    protocol = protocols.parse_protocol(spec)
    assert isinstance(protocol, UntilAccepted | RandomStopping)
    tails, threshold = attack_tails(mu, protocol, DELTA, trials)
    curve = AcceptedTailsCurve(tails.low, tails.high, tails.stop, rule=FixedThreshold(threshold))

    def sample(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
        return _accepted(tails, 0.0, rng, n), _accepted(tails, mu, rng, n)

    return Mechanism(
        spec,
        tails.epsilon(DELTA),
        sample,
        threshold=threshold,
        known=_GAUSSIAN,
        protocol=protocol,
        own_estimators=(curve,),
    )


def _accepted(
    tails: AcceptedTails, mean: float, rng: np.random.Generator, trials: int
) -> FloatArray:
    """Outputs of the protocol, drawn run by run."""
    released = np.full(trials, -np.inf)
    active = np.arange(trials)
    while active.size:
        x = mean + rng.standard_normal(active.size)
        accepted = (x < tails.low) | (x > tails.high)
        released[active[accepted]] = x[accepted]
        active = active[~accepted & (rng.random(active.size) >= tails.stop)]
    return released


@functools.cache
def _adaptive(spec: str, mu: float) -> Mechanism:
    """A sampler that reveals the record; the audit uses one event with known probabilities."""
    protocol = protocols.parse_protocol(spec)
    assert isinstance(protocol, Adaptive)
    attack = AdaptiveAttack(mu, protocol, (3.0, 1.0), (-2.0, -3.0), (-0.5, 1.0), 0.5)
    without, with_record = attack.chances()
    ratios = [
        (p - DELTA) / q
        for p, q in (
            (without, with_record),
            (with_record, without),
            (1.0 - without, 1.0 - with_record),
            (1.0 - with_record, 1.0 - without),
        )
    ]

    def sample(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
        sides = [-attack.play(rng, n, mean).astype(np.float64) for mean in (0.0, mu)]
        return sides[0], sides[1]

    return Mechanism(spec, math.log(max(ratios)), sample, threshold=-0.5, protocol=protocol)


@functools.cache
def _subset(spec: str, mu: float) -> Mechanism:
    """The score is the density ratio of the tuning's winner and the final run together."""
    protocol = protocols.parse_protocol(spec)
    assert isinstance(protocol, Subset)
    attack = SubsetAttack(mu, protocol, SplitOrder(-math.inf))

    def sample(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
        return attack.play(rng, n, 0.0), attack.play(rng, n, mu)

    return Mechanism(spec, attack.epsilon(DELTA), sample, threshold=0.0, protocol=protocol)

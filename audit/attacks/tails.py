"""Attack on repeating runs until one is accepted: the two Gaussian tails that leak most."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit.accounting import solve_epsilon
from audit.attacks.orders import expected_ratio
from audit.numerics import PROFILE_ACCURACY, FloatArray
from audit.protocols import RepeatedRuns


@dataclass(frozen=True)
class AcceptedTails:
    """The released output if runs have outputs N(b mu, 1) and two tails of them are accepted.

    The density ratio of the released x is a constant times that of one run, so the worst events are
    half-lines, and all probabilities have closed forms.

    Attributes:
        mu: mu of the base mechanism.
        low: a run with x below it is accepted.
        high: a run with x above it is accepted; at least `low`.
        stop: probability of stopping after a rejected run; 0 if the tuning always continues.

    Example:
        >>> tails = AcceptedTails(0.25, low=-2.0, high=2.0)
        >>> round(tails.epsilon(1e-5), 3)
        1.242
    """

    mu: float
    low: float
    high: float
    stop: float = 0.0

    def rate_below(self, x: ArrayLike, mean: float) -> FloatArray:
        """P[released output <= x] for runs with this mean; no output counts as below every x."""
        x = np.asarray(x, dtype=np.float64)
        below = special.ndtr(np.minimum(x, self.low) - mean)
        between = special.ndtr(np.maximum(x, self.high) - mean) - special.ndtr(self.high - mean)
        nothing = self.stop * (1.0 - self._accepted(mean))
        return np.asarray((nothing + below + between) / self._total(mean))

    def delta(self, epsilon: float) -> float:
        """The larger of both directions' hockey-stick divergences, rounded down."""
        delta = 0.0
        for sign in (1.0, -1.0):
            # The x at which the ratio of the two densities is e^epsilon.
            log_total = math.log(self._total(self.mu)) - math.log(self._total(0.0))
            at = (sign * epsilon + log_total) / self.mu + 0.5 * self.mu
            below, below_with = (float(self.rate_below(at, mean)) for mean in (0.0, self.mu))
            nothing, nothing_with = (self._nothing(mean) for mean in (0.0, self.mu))
            if sign > 0:
                gain = (1.0 - below_with) - math.exp(epsilon) * (1.0 - below)
                none = nothing_with - math.exp(epsilon) * nothing
            else:
                gain = below - nothing - math.exp(epsilon) * (below_with - nothing_with)
                none = nothing - math.exp(epsilon) * nothing_with
            delta = max(delta, gain + max(none, 0.0))
        return max(delta * (1.0 - 1e-9) - 1e-15, 0.0)

    def epsilon(self, delta: float) -> float:
        """Epsilon that these tails attain at delta, rounded down."""
        return solve_epsilon(self.delta, delta) * (1.0 - PROFILE_ACCURACY)

    def _accepted(self, mean: float) -> float:
        return float(special.ndtr(self.low - mean) + special.ndtr(mean - self.high))

    def _total(self, mean: float) -> float:
        return self.stop + (1.0 - self.stop) * self._accepted(mean)

    def _nothing(self, mean: float) -> float:
        return self.stop * (1.0 - self._accepted(mean)) / self._total(mean)


def attack_tails(
    mu: float,
    protocol: RepeatedRuns,
    delta: float,
    trials: int,
    confidence: float = 0.95,
) -> tuple[AcceptedTails, float]:
    """The two accepted tails of N(b mu, 1), and the threshold, whose audit proves the most.

    One tail is the target event, the other the rest of the accepted outputs. Rare events leak most,
    but few trials cannot detect them, so the search maximises the epsilon that the expected counts
    prove, as in `attack_order`. Below the threshold, and if nothing is released, the adversary
    guesses "without the canary".

    Args:
        mu: mu of the base mechanism.
        protocol: the protocol, with its acceptance or stopping probability.
        delta: in (0, 1).
        trials: number of trials with, and without, the canary.
        confidence: confidence of the two limits together.

    Example:
        >>> from audit.protocols import UntilAccepted
        >>> tails, _ = attack_tails(1.0, UntilAccepted(0.1), 1e-5, trials=10_000)
        >>> tails.low < tails.high
        True
    """
    alpha = (1.0 - confidence) / 2.0
    z = np.linspace(-6.0, 6.0 + mu, 97)
    stop = protocol.stopping_probability
    if stop == 0.0:
        # With the smallest allowed acceptance, the target event is the largest share of it.
        low = z[special.ndtr(z) < protocol.accepted_share]
        high = -special.ndtri(protocol.accepted_share - special.ndtr(low))
        with_record = special.ndtr(low - mu) + special.ndtr(mu - high)
        is_accepted = with_record >= protocol.accepted_share
        low, high = low[is_accepted], high[is_accepted]
    else:
        low, high = (side.ravel() for side in np.meshgrid(z, z, indexing="ij"))
        low, high = low[low <= high], high[low <= high]
    sides = []
    for mean in (0.0, mu):
        below, above = special.ndtr(low - mean), special.ndtr(mean - high)
        total = stop + (1.0 - stop) * (below + above)
        sides.append(above / total)
    above, above_with = sides
    # The target is the lower tail (with no output) as evidence against the canary, or the upper
    # tail as evidence for it.
    certified = np.maximum(
        expected_ratio(1.0 - above, 1.0 - above_with, delta, trials, alpha),
        expected_ratio(above_with, above, delta, trials, alpha),
    )
    best = int(np.argmax(certified))
    tails = AcceptedTails(mu, float(low[best]), float(high[best]), stop)
    return tails, 0.5 * (tails.low + tails.high)

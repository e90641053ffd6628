"""How an adaptive protocol of the game chooses: T tunings over one list of candidates.

A density is relative to the uniform prior: of mean 1 over the candidates, within [low, high].
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.dpsgd import RunOutcomes
from audit.protocols import Adaptive
from audit.tuning.samplers import EXPLORATION, FEW, NOISE, SHARPNESS, kernel

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

SAMPLERS = ("gaussian-process", "adversarial")
_AT_ONCE = 1 << 22  # numbers
_HALVINGS = 60


class Sampler(Protocol):
    """A density over candidates for each of T tunings, from the runs so far."""

    def densities(self, tuning: Whole) -> Array:
        """Relative densities [R, n] of the next run of some tunings [R]."""
        ...

    def add(self, tuning: Whole, candidate: Whole, outcomes: RunOutcomes) -> None:
        """Takes in one run of each of some tunings [R]."""
        ...


def make_sampler(name: str, protocol: Adaptive, features: Array, tunings: int) -> Sampler:
    """A fresh sampler.

    Args:
        name: one of SAMPLERS.
        protocol: how far a density may be from the prior.
        features: [n, d] of the candidates, each in [0, 1].
        tunings: T.
    """
    name = checks.one_of("sampler", name, SAMPLERS)
    if name == "gaussian-process":
        return GaussianProcessSampler(protocol, features, tunings)
    return AdversarialSampler(protocol, len(features), tunings)


class GaussianProcessSampler:
    """Softmax of what a Gaussian process hopes of each candidate, projected into [low, high].

    The regression is scikit-learn's with the same kernel (`samplers.relative_density`), of all
    tunings together: with few candidates, their mean scores and numbers of runs say all.
    """

    def __init__(self, protocol: Adaptive, features: Array, tunings: int) -> None:
        self._protocol = protocol
        self._covariance = np.asarray(kernel()(features, features))
        shape = tunings, len(features)
        self._runs, self._lost, self._sums = (np.zeros(shape) for _ in range(3))
        self._squares = np.zeros(tunings)
        self._origin = np.full(tunings, np.nan)  # the first score, for digits
        self._least, self._most = np.full(tunings, np.inf), np.full(tunings, -np.inf)

    def add(self, tuning: Whole, candidate: Whole, outcomes: RunOutcomes) -> None:
        """See `Sampler`."""
        known = outcomes.finite & np.isfinite(outcomes.scores)
        self._lost[tuning[~known], candidate[~known]] += 1.0
        who, which, scores = tuning[known], candidate[known], outcomes.scores[known]
        self._origin[who] = np.where(np.isnan(self._origin[who]), scores, self._origin[who])
        scores = scores - self._origin[who]
        self._runs[who, which] += 1.0
        self._sums[who, which] += scores
        self._squares[who] += scores**2
        self._least[who] = np.minimum(self._least[who], scores)
        self._most[who] = np.maximum(self._most[who], scores)

    def densities(self, tuning: Whole) -> Array:
        """See `Sampler`."""
        found = np.ones((len(tuning), len(self._covariance)))
        knows = (self._runs[tuning].sum(axis=1) >= FEW) & (self._most > self._least)[tuning]
        rows = max(1, _AT_ONCE // self._covariance.size)
        places = np.flatnonzero(knows)
        for start in range(0, len(places), rows):
            part = places[start : start + rows]
            found[part] = self._of(tuning[part])
        return found

    def _of(self, tuning: Whole) -> Array:
        # A run that lost is as bad as the worst that did not.
        lost, least = self._lost[tuning], self._least[tuning, None]
        runs, sums = self._runs[tuning] + lost, self._sums[tuning] + lost * least
        total = runs.sum(axis=1, keepdims=True)
        mean = sums.sum(axis=1, keepdims=True) / total
        squares = self._squares[tuning, None] + lost.sum(axis=1, keepdims=True) * least**2
        deviation = np.sqrt(np.maximum(squares / total - mean**2, 0.0))
        deviation = np.where(deviation > 0.0, deviation, 1.0)
        with np.errstate(invalid="ignore"):
            scores = np.nan_to_num((sums / runs - mean) / deviation)
        # K - K W (1 + W K W)^-1 W K with W = sqrt(runs / noise).
        weights = np.sqrt(runs / NOISE)
        weighted = weights[:, :, None] * self._covariance
        inner = weighted * weights[:, None, :] + np.eye(len(self._covariance))
        right = np.concatenate([weighted, (weights * scores)[:, :, None]], axis=2)
        solved = np.linalg.solve(inner, right)
        expected = np.einsum("rij,ri->rj", weighted, solved[:, :, -1])
        explained = np.einsum("rij,rij->rj", weighted, solved[:, :, :-1])
        variance = self._covariance.diagonal() + NOISE - explained
        hope = SHARPNESS * (expected + EXPLORATION * np.sqrt(np.maximum(variance, 0.0)))
        density = np.exp(hope - hope.max(axis=1, keepdims=True))
        density /= density.mean(axis=1, keepdims=True)
        return projected(density, self._protocol.low, self._protocol.high)


class AdversarialSampler:
    """Uses what [low, high] allows to tell of the canary.

    It sums up what the runs so far say of it, as anybody can who sees them: where that speaks for
    the canary, the last half of the candidates is as likely as may be, else the first half.
    """

    def __init__(self, protocol: Adaptive, candidates: int, tunings: int) -> None:
        self._evidence = np.zeros(tunings)
        self._densities = np.ones((3, candidates))
        half = candidates // 2
        for row, favoured in ((0, slice(0, half)), (2, slice(candidates - half, candidates))):
            chosen = np.zeros(candidates)
            chosen[favoured] = candidates
            self._densities[row] = (
                projected(chosen[None], protocol.low, protocol.high)[0] if half else 1.0
            )

    def add(self, tuning: Whole, candidate: Whole, outcomes: RunOutcomes) -> None:
        """See `Sampler`."""
        self._evidence[tuning] += np.where(outcomes.finite, outcomes.lambda_c - 0.5, 0.0)

    def densities(self, tuning: Whole) -> Array:
        """See `Sampler`."""
        return self._densities[1 + np.sign(self._evidence[tuning]).astype(np.int64)]


def projected(densities: Array, low: float, high: float) -> Array:
    """Densities [R, n] projected onto those within [low, high] of mean 1, row by row.

    As `upper_bounds.published.project_density`: clip(f + t, low, high), t by bisection.
    """
    below = low - densities.max(axis=1, keepdims=True)
    above = high - densities.min(axis=1, keepdims=True)
    for _ in range(_HALVINGS):
        middle = 0.5 * (below + above)
        mean = np.clip(densities + middle, low, high).mean(axis=1, keepdims=True)
        below, above = np.where(mean <= 1.0, middle, below), np.where(mean <= 1.0, above, middle)
    return np.asarray(np.clip(densities + below, low, high))

"""Samplers of the adaptive protocol, for T simulated tunings over one list of candidates.

Densities are relative to the uniform prior: their mean over the candidates is 1, and they lie
within [low, high].
"""

from typing import Protocol

import numpy as np

from audit import checks
from audit.dpsgd import RunOutcomes
from audit.numerics import FloatArray, IntArray
from audit.protocols import Adaptive
from audit.protocols.adaptive import MIN_RUNS, confidence_density, covariance, project

SAMPLERS = ("gaussian-process", "adversarial")
_MAX_BATCH_FLOATS = 1 << 22  # memory of one batch of linear systems


class Sampler(Protocol):
    """For each of T tunings, a density over candidates that depends on the runs so far."""

    def densities(self, tuning: IntArray) -> FloatArray:
        """Relative densities, [R, n], of the next candidate in the given tunings, [R]."""
        ...

    def add(self, tuning: IntArray, candidate: IntArray, outcomes: RunOutcomes) -> None:
        """Adds one finished run to each of the given tunings, [R]."""
        ...


def make_sampler(name: str, protocol: Adaptive, features: FloatArray, tunings: int) -> Sampler:
    """A new sampler for T tunings over candidates with features [n, d], each in [0, 1]."""
    name = checks.one_of("sampler", name, SAMPLERS)
    if name == "gaussian-process":
        return GaussianProcessSampler(protocol, features, tunings)
    return AdversarialSampler(protocol, len(features), tunings)


class GaussianProcessSampler:
    """Softmax of a Gaussian process's upper confidence bounds, projected into [low, high].

    It computes the density for all tunings together. The mean score and the number of runs of each
    candidate are sufficient statistics.
    """

    def __init__(self, protocol: Adaptive, features: FloatArray, tunings: int) -> None:
        self._protocol = protocol
        self._covariance = covariance(features, features)
        shape = tunings, len(features)
        self._runs, self._lost, self._sums = (np.zeros(shape) for _ in range(3))
        self._squares = np.zeros(tunings)
        self._origin = np.full(tunings, np.nan)  # the first score; subtracted to avoid cancellation
        self._least, self._most = np.full(tunings, np.inf), np.full(tunings, -np.inf)

    def add(self, tuning: IntArray, candidate: IntArray, outcomes: RunOutcomes) -> None:
        has_score = outcomes.finite & np.isfinite(outcomes.scores)
        self._lost[tuning[~has_score], candidate[~has_score]] += 1.0
        who, candidate_known, scores = (
            tuning[has_score],
            candidate[has_score],
            outcomes.scores[has_score],
        )
        self._origin[who] = np.where(np.isnan(self._origin[who]), scores, self._origin[who])
        scores = scores - self._origin[who]
        self._runs[who, candidate_known] += 1.0
        self._sums[who, candidate_known] += scores
        self._squares[who] += scores**2
        self._least[who] = np.minimum(self._least[who], scores)
        self._most[who] = np.maximum(self._most[who], scores)

    def densities(self, tuning: IntArray) -> FloatArray:
        densities = np.ones((len(tuning), len(self._covariance)))
        knows = (self._runs[tuning].sum(axis=1) >= MIN_RUNS) & (self._most > self._least)[tuning]
        rows = max(1, _MAX_BATCH_FLOATS // self._covariance.size)
        places = np.flatnonzero(knows)
        for start in range(0, len(places), rows):
            block = places[start : start + rows]
            densities[block] = self._model_densities(tuning[block])
        return densities

    def _model_densities(self, tuning: IntArray) -> FloatArray:
        # A diverged run gets the lowest score of the other runs.
        lost, lowest_score = self._lost[tuning], self._least[tuning, None]
        runs, sums = self._runs[tuning] + lost, self._sums[tuning] + lost * lowest_score
        total = runs.sum(axis=1, keepdims=True)
        mean = sums.sum(axis=1, keepdims=True) / total
        squares = self._squares[tuning, None] + lost.sum(axis=1, keepdims=True) * lowest_score**2
        deviation = np.sqrt(np.maximum(squares / total - mean**2, 0.0))
        deviation = np.where(deviation > 0.0, deviation, 1.0)
        with np.errstate(invalid="ignore"):
            scores = np.nan_to_num((sums / runs - mean) / deviation)
        low, high = self._protocol.low, self._protocol.high
        return confidence_density(self._covariance, self._covariance, runs, scores, low, high)


class AdversarialSampler:
    """A sampler that reveals whether the canary is included, as far as [low, high] allows.

    It sums the earlier runs' evidence for the canary (lambda_c - 1/2). If the sum is positive, the
    second half of the candidates gets the highest density allowed, if negative the first half.
    """

    def __init__(self, protocol: Adaptive, candidates: int, tunings: int) -> None:
        self._evidence = np.zeros(tunings)
        self._densities = np.ones((3, candidates))
        half = candidates // 2
        for row, favoured in ((0, slice(0, half)), (2, slice(candidates - half, candidates))):
            chosen = np.zeros(candidates)
            chosen[favoured] = candidates
            self._densities[row] = (
                project(chosen[None], protocol.low, protocol.high)[0] if half else 1.0
            )

    def add(self, tuning: IntArray, candidate: IntArray, outcomes: RunOutcomes) -> None:
        self._evidence[tuning] += np.where(outcomes.finite, outcomes.lambda_c - 0.5, 0.0)

    def densities(self, tuning: IntArray) -> FloatArray:
        return self._densities[1 + np.sign(self._evidence[tuning]).astype(np.int64)]

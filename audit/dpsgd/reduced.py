"""The exact reduction of ETCV with the Dirac canary to one number per run."""

import math

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import streams
from audit.dpsgd.base import LaneOutcomes, Lanes
from audit.dpsgd.settings import DpSgdSettings
from canaries import DiracCanary
from threat_models import Observation, ThreatModel

# Numbers of single steps drawn at a time, to stay in cache.
_CHUNK = 1 << 15


class ReducedEngine:
    """Draws the released statistic of every lane from its law; no model is trained.

    With an empty training set and the Dirac canary everything released that depends on the canary
    is the first coordinate. Over N steps it sums to S ~ N(C B, N C^2 sigma^2), where B counts the
    steps that took the canary: N b at sampling rate 1, Binomial(N, tau) below where b = 1. Then
    lambda_a = S / (N C) and (w_0 - w_N)[0] = lr S. With momentum m the displacement is lr M with
    M = sum_i c_i p_i[0], c_i = (1 - m^(N-i+1)) / (1 - m), jointly Gaussian with S. Equality in law,
    not an approximation (X sec. 5; Dirac canary of Nasr et al. 2023). Where batches are sampled,
    lambda_c needs the single steps: they are drawn given S.
    """

    name = "reduced"

    def __init__(self, threat_model: ThreatModel, settings: DpSgdSettings) -> None:
        reason = why_not_reduced(threat_model, settings)
        if reason:
            raise ValueError(f"engine reduced must have a known law, got {reason}")
        self._threat_model = threat_model
        self._settings = settings

    def run(self, lanes: Lanes) -> LaneOutcomes:
        """Draws every lane; a million take a second, with sampled batches every step does.

        See `Engine.run`.
        """
        s = self._settings
        steps, sigma = s.steps, s.noise_multiplier
        rate, clip, _ = s.of_lanes(lanes.candidate)
        if s.sampling_rate < 1:
            from scipy.stats import binom  # half a second to import, and rarely needed

            drawn = binom.ppf(streams.uniforms(lanes.seeds, 2), steps, s.sampling_rate)
            hits = np.where(lanes.included, drawn, 0.0)
        else:
            hits = np.where(lanes.included, float(steps), 0.0)
        noise = streams.normals(lanes.seeds, 0)
        unit = math.sqrt(steps) * sigma * clip
        total = clip * hits + unit * noise

        moved = total
        if max(s.momentum) > 0:
            m = np.array([candidate.momentum for candidate in s.candidates])[:, None]
            weights = (1 - m ** np.arange(steps, 0, -1)) / (1 - m)
            mean = weights.mean(axis=1)
            spread = np.sqrt(np.square(weights - mean[:, None]).mean(axis=1))
            apart = spread[lanes.candidate] * unit * streams.normals(lanes.seeds, 1)
            moved = mean[lanes.candidate] * total + apart
        lambda_a = total / (steps * clip)
        observation = Observation(rate * moved, total / unit)
        lambda_c = lambda_a if s.sampling_rate == 1 else self._lambda_c(lanes, hits, noise)
        of_final_weights = moved / (steps * clip)
        return LaneOutcomes(
            lambda_a=lambda_a,
            lambda_c=lambda_c,
            lambda_known=lambda_c,
            lambda_start=of_final_weights,
            lambda_end=of_final_weights,
            scores=self._threat_model.score(observation),
            finite=np.ones(len(lanes), dtype=np.bool_),
        )

    def _lambda_c(
        self, lanes: Lanes, hits: NDArray[np.float64], noise: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Draws lambda_c of sampled batches, [R], given what lambda_a was drawn from.

        The steps are exchangeable: the hits may come first, and independent normal numbers shifted
        to a mean have the law of a run's noise given its mean.

        Args:
            lanes: the pack.
            hits: [R], how many steps took the canary.
            noise: [R], the standardised sum of a run's noise.
        """
        s = self._settings
        sigma, missed = s.noise_multiplier, math.log1p(-s.sampling_rate)
        # A step at x = sigma z, or at 1 + sigma z where it took the canary, has the log-likelihood
        # ratio missed + log(1 + exp(odds + (2 x - 1) / (2 sigma^2))).
        odds, gain = math.log(s.sampling_rate) - missed, 1 / sigma**2
        log_ratio = np.empty(len(lanes))
        rows = max(1, _CHUNK // s.steps)
        for start in range(0, len(lanes), rows):
            part = slice(start, start + rows)
            z = streams.normal_rows(lanes.seeds[part], 3, s.steps)
            mean = noise[part] / math.sqrt(s.steps)
            shift = (mean - z.mean(axis=1)) / sigma + odds - gain / 2
            z *= 1 / sigma
            z += shift[:, None]
            most = int(hits[part].max())
            z[:, :most] += gain * (np.arange(most) < hits[part, None])
            log_ratio[part] = softplus_sums(z)
        return 0.5 + sigma**2 * (missed + log_ratio / s.steps)


def softplus_sums(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum over each row of log(1 + e^x) = max(x, 0) + log(1 + e^-|x|).

    Of the last terms one logarithm takes many at once, as a product of numbers in [1, 2].

    Args:
        x: [R, n], overwritten.

    Returns:
        [R].
    """
    total: NDArray[np.float64] = np.maximum(x, 0).sum(axis=1)
    np.abs(x, out=x)
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1
    products = np.multiply.reduceat(x, np.arange(0, x.shape[1], 1000), axis=1)  # 2^1000 at most
    return total + np.log(products).sum(axis=1)


def why_not_reduced(threat_model: ThreatModel, settings: DpSgdSettings) -> str | None:
    """Why the law of the released statistic is not known in closed form; None where it is."""
    if threat_model.training_set is not None:
        return "a training set, whose gradients depend on the weights"
    if not isinstance(threat_model.canary, DiracCanary):
        return "an input canary, whose gradient depends on the weights"
    if threat_model.score.needs_model:
        return f"the score {threat_model.score.name}, which looks at the whole model"
    if max(settings.momentum) > 0 and settings.sampling_rate < 1:
        return "momentum together with a sampling rate below 1"
    return None

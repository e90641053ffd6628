"""The reduced engine: one random number per run, for ETCV with the Dirac canary."""

import math

import numpy as np
from numpy.typing import NDArray

from audit.dpsgd import streams
from audit.dpsgd.base import RunBatch, RunOutcomes
from audit.dpsgd.settings import DpSgdSettings
from audit.errors import InvalidInput
from canaries import DiracCanary
from threat_models import Observation, ThreatModel

# Per-step numbers drawn at a time, few enough to stay in the cache.
_CHUNK = 1 << 15


class ReducedEngine:
    """Samples the released statistic of every run from its distribution, without training a model.

    With an empty training set and the Dirac canary, only the first coordinate of the released sums
    depends on the canary. Over N steps it sums to S ~ N(C B, N C^2 sigma^2), where B is the number
    of steps that sampled the canary: B = N b at sampling rate 1, else b Binomial(N, tau), with b =
    1 if the canary is in the data set. Then lambda_a = S / (N C) and (w_0 - w_N)[0] = lr S. With
    momentum m the displacement is lr M, where M = sum_i c_i p_i[0] and c_i = (1 - m^(N-i+1)) / (1 -
    m); M and S are jointly Gaussian. These distributions are exact (Xiang et al. 2024, sec. 5;
    Dirac canary of Nasr et al. 2023). With sampled batches lambda_c depends on the single steps,
    which are drawn given S.
    """

    name = "reduced"
    parameters = 1  # the coordinate of the canary

    def __init__(self, threat_model: ThreatModel, settings: DpSgdSettings) -> None:
        reason = why_not_reduced(threat_model, settings)
        if reason:
            raise InvalidInput(f"engine reduced must have a known distribution, got {reason}")
        self._threat_model = threat_model
        self._settings = settings

    def run(self, batch: RunBatch) -> RunOutcomes:
        """Outcomes of all runs; see `Engine.run`. A million runs or steps take a second."""
        s = self._settings
        steps, sigma = s.steps, s.noise_multiplier
        rate, clip, _ = s.hyperparameters_of(batch.candidate)
        if s.sampling_rate < 1:
            from scipy.stats import binom  # takes half a second to import and is rarely needed

            drawn = binom.ppf(streams.uniforms(batch.seeds, 2), steps, s.sampling_rate)
            hits = np.where(batch.included, drawn, 0.0)
        else:
            hits = np.where(batch.included, float(steps), 0.0)
        noise = streams.normals(batch.seeds, 0)
        unit = math.sqrt(steps) * sigma * clip
        total = clip * hits + unit * noise

        moved = total
        if max(s.momentum) > 0:
            m = np.array([candidate.momentum for candidate in s.candidates])[:, None]
            weights = (1 - m ** np.arange(steps, 0, -1)) / (1 - m)
            mean = weights.mean(axis=1)
            spread = np.sqrt(np.square(weights - mean[:, None]).mean(axis=1))
            apart = spread[batch.candidate] * unit * streams.normals(batch.seeds, 1)
            moved = mean[batch.candidate] * total + apart
        lambda_a = total / (steps * clip)
        observation = Observation(rate * moved, total / unit)
        lambda_c = lambda_a if s.sampling_rate == 1 else self._lambda_c(batch, hits, noise)
        of_final_weights = moved / (steps * clip)
        return RunOutcomes(
            lambda_a=lambda_a,
            lambda_c=lambda_c,
            lambda_known=lambda_c,
            lambda_start=of_final_weights,
            lambda_end=of_final_weights,
            scores=self._threat_model.score(observation),
            finite=np.ones(len(batch), dtype=np.bool_),
        )

    def _lambda_c(
        self, batch: RunBatch, hits: NDArray[np.float64], noise: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Samples of lambda_c for sampled batches, [R], given the numbers that determine lambda_a.

        These are the number of steps that sampled the canary and the standardised sum of the noise.
        The steps are exchangeable, so the steps with the canary may come first. Independent normal
        numbers, shifted to a given mean, have the distribution of a run's noise given its mean.
        """
        s = self._settings
        sigma, missed = s.noise_multiplier, math.log1p(-s.sampling_rate)
        # A step at x = sigma z (1 + sigma z if it sampled the canary) has the log-likelihood ratio
        # missed + log(1 + exp(odds + (2 x - 1) / (2 sigma^2))).
        odds, gain = math.log(s.sampling_rate) - missed, 1 / sigma**2
        log_ratio = np.empty(len(batch))
        rows = max(1, _CHUNK // s.steps)
        for start in range(0, len(batch), rows):
            part = slice(start, start + rows)
            z = streams.normal_rows(batch.seeds[part], 3, s.steps)
            mean = noise[part] / math.sqrt(s.steps)
            shift = (mean - z.mean(axis=1)) / sigma + odds - gain / 2
            z *= 1 / sigma
            z += shift[:, None]
            max_hits = int(hits[part].max())
            z[:, :max_hits] += gain * (np.arange(max_hits) < hits[part, None])
            log_ratio[part] = softplus_sums(z)
        return 0.5 + sigma**2 * (missed + log_ratio / s.steps)


def softplus_sums(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum over each row of x [R, n] of log(1 + e^x) = max(x, 0) + log(1 + e^-|x|).

    One logarithm of a product of up to 1,000 factors in [1, 2] replaces up to 1,000 logarithms. x
    is overwritten.
    """
    total: NDArray[np.float64] = np.maximum(x, 0).sum(axis=1)
    np.abs(x, out=x)
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1
    products = np.multiply.reduceat(x, np.arange(0, x.shape[1], 1000), axis=1)  # 2^1000 at most
    return total + np.log(products).sum(axis=1)


def why_not_reduced(threat_model: ThreatModel, settings: DpSgdSettings) -> str | None:
    """Why the released statistic has no known distribution; None if it has one."""
    if threat_model.training_set is not None:
        return "a training set, whose gradients depend on the weights"
    if not isinstance(threat_model.canary, DiracCanary):
        return "an input canary, whose gradient depends on the weights"
    if threat_model.score.needs_model:
        return f"the score {threat_model.score.name}, which uses the whole model"
    if max(settings.momentum) > 0 and settings.sampling_rate < 1:
        return "momentum together with a sampling rate below 1"
    return None

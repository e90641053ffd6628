"""The exact reduction of ETCV with the Dirac canary to one number per run."""

import math

import numpy as np

from audit.dpsgd import streams
from audit.dpsgd.base import LaneOutcomes, Lanes
from audit.dpsgd.settings import DpSgdSettings
from canaries import DiracCanary
from threat_models import Observation, ThreatModel


class ReducedEngine:
    """Draws the released statistic of every lane from its law; no model is trained.

    With an empty training set and the Dirac canary everything released that depends on the canary
    is the first coordinate. Over N steps it sums to S ~ N(C B, N C^2 sigma^2), where B counts the
    steps that took the canary: N b at sampling rate 1, Binomial(N, tau) below where b = 1. Then
    lambda_a = S / (N C) and (w_0 - w_N)[0] = lr S. With momentum m the displacement is lr M with
    M = sum_i c_i p_i[0], c_i = (1 - m^(N-i+1)) / (1 - m), jointly Gaussian with S. Equality in law,
    not an approximation (X sec. 5; Dirac canary of Nasr et al. 2023).
    """

    name = "reduced"

    def __init__(self, threat_model: ThreatModel, settings: DpSgdSettings) -> None:
        reason = why_not_reduced(threat_model, settings)
        if reason:
            raise ValueError(f"engine reduced must have a known law, got {reason}")
        self._threat_model = threat_model
        self._settings = settings

    def run(self, lanes: Lanes) -> LaneOutcomes:
        """Draws every lane; a million take about a second. See `Engine.run`."""
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
        observation = Observation(rate * moved, total / unit)
        return LaneOutcomes(
            lambda_a=total / (steps * clip),
            scores=self._threat_model.score(observation),
            finite=np.ones(len(lanes), dtype=np.bool_),
        )


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

"""An engine of one's own: a pack of runs in, an outcome for every run out."""

import math

import numpy as np
from scipy import stats

from audit.dpsgd import DpSgdSettings, LaneOutcomes, Lanes, make_engine
from canaries import DiracCanary
from threat_models import FirstCoordinate, etcv


class StepByStep:
    """The Dirac canary on an empty training set: one coordinate, a step after the other.

    A run's noise comes from its own seed alone, never from its place in the pack.
    """

    name = "step-by-step"

    def __init__(self, threat_model, settings):
        self.threat_model, self.settings = threat_model, settings

    def run(self, lanes: Lanes) -> LaneOutcomes:
        """Every lane from the first step to the last."""
        found = LaneOutcomes.empty(len(lanes))
        for row in range(len(lanes)):
            rng = np.random.default_rng(lanes.seeds[row])
            noise = self.settings.noise_multiplier * rng.standard_normal(self.settings.steps)
            released = float(lanes.included[row]) + noise  # in units of the clipping norm
            rate = self.settings.candidates[lanes.candidate[row]].learning_rate
            for proxy in ("lambda_a", "lambda_c", "lambda_known", "lambda_start", "lambda_end"):
                getattr(found, proxy)[row] = released.mean()
            found.scores[row] = rate * released.sum()
            found.finite[row] = math.isfinite(found.scores[row])
        return found


def test_no_difference_to_the_engine_that_knows_the_law():
    threat_model = etcv(DiracCanary(), FirstCoordinate(), (1, 8, 8), 10)
    settings = DpSgdSettings(
        steps=20, noise_multiplier=5.0, max_grad_norm=(1.0,), learning_rates=(0.1,)
    )
    size = 4000
    lanes = Lanes(
        included=np.arange(size) % 2 == 1,
        candidate=np.zeros(size, np.int64),
        seeds=np.random.default_rng(0).integers(2**63, size=size, dtype=np.uint64),
    )
    mine = StepByStep(threat_model, settings).run(lanes)
    reference = make_engine("reduced", threat_model, settings).run(lanes)
    for there in (False, True):
        rows = lanes.included == there
        for name in ("lambda_a", "scores"):
            samples = (getattr(one, name)[rows] for one in (mine, reference))
            # Four tests at 1e-4: wrong for one in 2,500 seeds, and this seed is fixed.
            assert stats.ks_2samp(*samples).pvalue > 1e-4

"""A custom engine: a batch of runs in, one outcome per run out."""

import math

import numpy as np
from scipy import stats

from audit.dpsgd import DpSgdSettings, RunBatch, RunOutcomes, make_engine
from canaries import DiracCanary
from threat_models import FirstCoordinate, etcv


class StepByStep:
    """Simulates the first coordinate step by step, for the Dirac canary and an empty training set.

    A run's noise must depend only on its seed, not on its position in the batch.
    """

    name = "step-by-step"

    def __init__(self, threat_model, settings):
        self.threat_model, self.settings = threat_model, settings

    def run(self, batch: RunBatch) -> RunOutcomes:
        """Outcomes of all runs."""
        found = RunOutcomes.empty(len(batch))
        for row in range(len(batch)):
            rng = np.random.default_rng(batch.seeds[row])
            noise = self.settings.noise_multiplier * rng.standard_normal(self.settings.steps)
            released = float(batch.included[row]) + noise  # in units of the clipping norm
            rate = self.settings.candidates[batch.candidate[row]].learning_rate
            for proxy in ("lambda_a", "lambda_c", "lambda_known", "lambda_start", "lambda_end"):
                getattr(found, proxy)[row] = released.mean()
            found.scores[row] = rate * released.sum()
            found.finite[row] = math.isfinite(found.scores[row])
        return found


def test_it_matches_the_reduced_engine():
    threat_model = etcv(DiracCanary(), FirstCoordinate(), (1, 8, 8), 10)
    settings = DpSgdSettings(
        steps=20, noise_multiplier=5.0, max_grad_norm=(1.0,), learning_rates=(0.1,)
    )
    size = 4000
    batch = RunBatch(
        included=np.arange(size) % 2 == 1,
        candidate=np.zeros(size, np.int64),
        seeds=np.random.default_rng(0).integers(2**63, size=size, dtype=np.uint64),
    )
    mine = StepByStep(threat_model, settings).run(batch)
    reference = make_engine("reduced", threat_model, settings).run(batch)
    for there in (False, True):
        rows = batch.included == there
        for name in ("lambda_a", "scores"):
            samples = (getattr(one, name)[rows] for one in (mine, reference))
            # Four tests at level 1e-4 fail for one in 2,500 seeds; the seed is fixed.
            assert stats.ks_2samp(*samples).pvalue > 1e-4

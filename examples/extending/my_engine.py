"""Your own engine: it maps a batch of runs to their outcomes."""

import math

import numpy as np
from scipy import stats

from audit.dpsgd import DpSgdSettings, RunBatch, RunOutcomes, make_engine
from canaries import DiracCanary
from threat_models import FirstCoordinate, etcv


class StepByStep:
    """Trains the Dirac canary on an empty training set, which moves one coordinate.

    The noise of a run depends only on the seed of the run, not on its place in the batch.
    """

    name = "step-by-step"

    def __init__(self, threat_model, settings):
        self.threat_model, self.settings = threat_model, settings

    def run(self, batch: RunBatch) -> RunOutcomes:
        """Trains all runs."""
        found = RunOutcomes.empty(len(batch))
        for row in range(len(batch)):
            rng = np.random.default_rng(batch.seeds[row])
            noise = self.settings.noise_multiplier * rng.standard_normal(self.settings.steps)
            released = float(batch.included[row]) + noise  # in units of the clipping norm
            rate = self.settings.candidates[batch.candidate[row]].learning_rate
            found.lambda_a[row] = found.lambda_c[row] = released.mean()
            found.scores[row] = rate * released.sum()
            found.finite[row] = math.isfinite(found.scores[row])
        return found


def test_outcomes_have_the_same_distribution_as_the_reduced_engine():
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
    stepwise = StepByStep(threat_model, settings).run(batch)
    reference = make_engine("reduced", threat_model, settings).run(batch)
    for is_included in (False, True):
        rows = batch.included == is_included
        for name in ("lambda_a", "scores"):
            samples = (getattr(one, name)[rows] for one in (stepwise, reference))
            # Four tests at level 1e-4 fail for one seed in 2,500; the seed is fixed.
            assert stats.ks_2samp(*samples).pvalue > 1e-4

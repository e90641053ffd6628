"""The score above which a run is accepted, for protocols that repeat runs until one is accepted.

The threshold is fixed before the first trial. If the distribution of the score is known, theory
gives it. Otherwise it is estimated from runs with and without the canary that no trial uses, such
that both kinds of runs are accepted with at least the protocol's probability. This fails with
probability at most 1e-6 for each kind.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from audit.accounting import DpSgd
from audit.claims import Assumption, Facts
from audit.dpsgd import DpSgdSettings, Engine, RunBatch
from audit.protocols import RepeatedRuns
from threat_models import ThreatModel
from threat_models.scores import TwoTails

_ERROR = 1e-6
"""Probability that the threshold is too high for one kind of runs."""
_MIN_RUNS, _MIN_ACCEPTED = 200, 60.0
"""Enough runs for a confidence bound close to the acceptance probability."""


def good_enough(
    protocol: RepeatedRuns,
    threat_model: ThreatModel,
    facts: Facts,
    training: DpSgdSettings,
    base: DpSgd,
    engine: Engine,
    key: Sequence[int],
) -> float:
    """The score above which a run is accepted.

    A run is accepted with at least the probability that `UntilAccepted` states. `RandomStopping`
    states none; its stopping probability is used instead.
    """
    probability = protocol.accepted_share
    if isinstance(threat_model.score, TwoTails):
        return 0.5
    if Assumption.MONOTONE_SCORE in facts.assumptions:
        # (w_0 - w_N)[0] has the distribution lr C sigma sqrt(N) N(b mu, 1).
        (only,) = training.candidates
        unit = only.learning_rate * only.max_grad_norm * base.noise_multiplier
        return float(unit * math.sqrt(base.steps) * special.ndtri(1.0 - probability))
    return _estimated(engine, len(training.candidates), probability, key)


def _estimated(engine: Engine, candidates: int, probability: float, key: Sequence[int]) -> float:
    """A threshold that runs with and without the canary exceed with at least a probability."""
    runs = max(_MIN_RUNS, math.ceil(_MIN_ACCEPTED / probability))
    accepted = np.arange(1.0, runs + 1.0)
    enough = special.betaincinv(accepted, runs - accepted + 1.0, _ERROR) >= probability
    if not enough.any():
        return -np.inf  # accepts every run that does not diverge
    rng = np.random.default_rng(np.random.SeedSequence(list(key)))
    included = np.arange(2 * runs) % 2 == 1
    outcomes = engine.run(RunBatch.drawn(included, rng.integers(0, candidates, 2 * runs), rng))
    scores = np.where(outcomes.finite, outcomes.scores, -np.inf).reshape(runs, 2)
    threshold = np.sort(scores, axis=0)[runs - 1 - int(enough.argmax())].min()
    return float(np.nextafter(threshold, -np.inf))

"""When a run is good enough, for protocols that run until one is.

The threshold on the score is fixed before any game. Where the score's law is known it is theory's;
else runs that no game uses are made with and without the canary, and it is put so low that both are
accepted with no less than the protocol's chance, but for an error of 1e-6 on each side.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from audit.accounting import DpSgd
from audit.claims import Assumption, Facts
from audit.dpsgd import DpSgdSettings, Engine, RunBatch
from audit.protocols import RandomStopping, UntilAccepted
from threat_models import ThreatModel
from threat_models.scores import TwoTails

_ERROR = 1e-6
_MIN_RUNS, _MIN_ACCEPTED = 200, 60.0


def good_enough(
    protocol: UntilAccepted | RandomStopping,
    threat_model: ThreatModel,
    facts: Facts,
    training: DpSgdSettings,
    base: DpSgd,
    engine: Engine,
    key: Sequence[int],
) -> float:
    """The score above which a run is accepted.

    A run is accepted with at least the chance that `UntilAccepted` states; of `RandomStopping`,
    which states none, with the chance of a stop.

    Args:
        protocol: how the released run is chosen.
        threat_model: whose score it is.
        facts: what is true of the game.
        training: what runs are set to.
        base: one run, in theory.
        engine: makes runs.
        key: of the seeds of runs that are made.
    """
    chance = protocol.acceptance if isinstance(protocol, UntilAccepted) else protocol.stop
    if isinstance(threat_model.score, TwoTails):
        return 0.5
    if Assumption.MONOTONE_SCORE in facts.assumptions:
        # (w_0 - w_N)[0] is lr C sigma sqrt(N) times N(b mu, 1).
        (only,) = training.candidates
        unit = only.learning_rate * only.max_grad_norm * base.noise_multiplier
        return float(unit * math.sqrt(base.steps) * special.ndtri(1.0 - chance))
    return _by_trial(engine, len(training.candidates), chance, key)


def _by_trial(engine: Engine, candidates: int, chance: float, key: Sequence[int]) -> float:
    """A threshold that runs with and without the canary exceed with no less than a chance."""
    runs = max(_MIN_RUNS, math.ceil(_MIN_ACCEPTED / chance))
    accepted = np.arange(1.0, runs + 1.0)
    enough = special.betaincinv(accepted, runs - accepted + 1.0, _ERROR) >= chance
    if not enough.any():
        return -np.inf  # every run that does not diverge
    rng = np.random.default_rng(np.random.SeedSequence(list(key)))
    found = engine.run(
        RunBatch(
            included=np.arange(2 * runs) % 2 == 1,
            candidate=rng.integers(0, candidates, 2 * runs),
            seeds=rng.integers(0, 2**64, 2 * runs, dtype=np.uint64),
        )
    )
    scores = np.where(found.finite, found.scores, -np.inf).reshape(runs, 2)
    least = np.sort(scores, axis=0)[runs - 1 - int(enough.argmax())].min()
    return float(np.nextafter(least, -np.inf))

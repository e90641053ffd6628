"""What a game is played with, fixed before anything is trained.

Order and threshold of a worst-order score come from the theory of the budget at hand; training gets
a score and knows nothing of statistics.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import threat_models
from audit import accounting, upper_bounds
from audit.claims import Condition, Facts, facts_of_game
from audit.dpsgd import (
    DpSgdSettings,
    Engine,
    RunBatch,
    RunOutcomes,
    SharingEngine,
    choose_engine,
    make_engine,
)
from audit.game.acceptance import good_enough
from audit.game.settings import AuditConfig
from audit.protocols import Protocol, RandomStopping, UntilAccepted
from audit.tuning import Winners
from audit.tuning.on_run_batches import GameContext
from audit.upper_bounds.reduced import log_density
from threat_models import ThreatModel, WorstOrder

Array = NDArray[np.float64]
# Beside (budget, repeat, block), which games have.
_ACCEPTANCE = 1


@dataclass(frozen=True)
class View:
    """What one adversary makes of the runs.

    Attributes:
        config: the settings of this view alone.
        threat_model: what the adversary does.
        facts: what is true of the game, for the claims of bounds.
    """

    config: AuditConfig
    threat_model: ThreatModel
    facts: Facts

    @property
    def split_top(self) -> float | None:
        """Where a worst-order score splits the standardised statistic; None for other scores."""
        score = self.threat_model.score
        return score.top if isinstance(score, WorstOrder) else None


@dataclass(frozen=True)
class SetUp:
    """Everything a block needs at one budget.

    Attributes:
        base: one run of DP-SGD at this budget.
        protocol: how the best run is chosen.
        training: what runs are set to.
        views: the adversaries that the runs serve.
        engine: runs DP-SGD.
        reason: why this engine.
        threshold: the threshold on the standardised lambda_a that goes with a worst-order score;
            None lets the theory of the increasing score choose.
        good_enough: the score above which a run is accepted, where the protocol runs until one is.
    """

    base: accounting.DpSgd
    protocol: Protocol
    training: DpSgdSettings
    views: tuple[View, ...]
    engine: Engine
    reason: str
    threshold: float | None
    good_enough: float | None = None

    @property
    def mu(self) -> float | None:
        """The base's mu; None where sampling makes it other than Gaussian."""
        return self.base.gaussian_mu

    @property
    def context(self) -> GameContext:
        """What tunings are played on."""
        records = self.views[0].threat_model.training_set
        return GameContext(
            run=self.run,
            features=_features(self.training),
            tuned_log_ratio=self._tuned_log_ratio,
            log_ratio_scale=self.base.noise_multiplier**2 / self.base.steps,
            views=len(self.views),
            records=0 if records is None else len(records),
            good_enough=-np.inf if self.good_enough is None else self.good_enough,
            sampler=self.views[0].config.sampler,
            keep_runs=self.views[0].config.keeps_runs,
        )

    def _tuned_log_ratio(self, winners: Winners) -> Array:
        """What the best of K runs says of the canary, [T].

        By an increasing score it is the largest of K draws, whose density is known. By any other
        what the run itself says is taken, as if it were the only one.
        """
        view = self.views[0]
        some = winners.chosen >= 0
        found = np.zeros(len(some))
        if self.mu is not None and Condition.MONOTONE_SCORE in view.facts.conditions:
            x = winners.lambda_a[some] * self.mu
            law = view.config.law
            found[some] = log_density(x - self.mu, law) - log_density(x, law)
        else:
            scale = self.base.noise_multiplier**2 / self.base.steps
            found[some] = (winners.lambda_c[some] - 0.5) / scale
        return found

    def run(self, batch: RunBatch) -> Sequence[RunOutcomes]:
        """Outcomes of a batch of runs in every view."""
        if len(self.views) == 1:
            return [self.engine.run(batch)]
        assert isinstance(self.engine, SharingEngine)
        return self.engine.run_shared(batch, [view.threat_model for view in self.views])


@functools.lru_cache(maxsize=8)
def set_up(config: AuditConfig, budget: int) -> SetUp:
    """Fixes order and threshold, then builds threat models and engine for one budget.

    A process keeps the last few.

    Args:
        config: the audit.
        budget: index of eps_B.

    Raises:
        ValueError: settings that do not fit each other.
    """
    base, protocol = config.base(budget), config.tuning
    top: float | tuple[float, float] | None = None
    threshold = None
    if config.score == "worst-order":
        mu = base.gaussian_mu
        assert mu is not None
        fixed = config.delta, max(config.trials // 2, 1), config.confidence
        if isinstance(protocol, _UNTIL):
            tails, threshold = upper_bounds.attack_tails(mu, protocol, *fixed)
            top = tails.low, tails.high
        else:
            split, threshold = upper_bounds.attack_order(mu, config.law, *fixed)
            top = split.top
    training = config.training(base.noise_multiplier)
    views = tuple(
        _view(view, protocol, top, len(training.candidates) == 1 and config.momentum == (0.0,))
        for view in config.views
    )
    threat_model = views[0].threat_model
    name, reason = config.engine, "as asked"
    if len(views) > 1:
        together = f"{config.threat}, canary {config.canary}"
        if name not in ("auto", "batched"):
            raise ValueError(
                f"engine must be batched for {together} on one set of runs, got {name!r}"
            )
        name, reason = "batched", f"one set of runs serves {together}: results are correlated"
    elif name == "auto":
        name, reason = choose_engine(threat_model, training)
    engine = make_engine(name, threat_model, training, config.devices[0], config.precision)
    enough = None
    if isinstance(protocol, _UNTIL):
        key = (config.seed, _ACCEPTANCE, budget)
        facts = views[0].facts
        enough = good_enough(protocol, threat_model, facts, training, base, engine, key)
    return SetUp(base, protocol, training, views, engine, reason, threshold, enough)


_UNTIL = (UntilAccepted, RandomStopping)


def _features(training: DpSgdSettings) -> Array:
    """Every candidate's place [n, 3] on each axis of Omega, from 0 to 1."""
    axes = []
    for axis in zip(*training.candidates, strict=True):
        values = sorted(set(axis))
        axes.append([values.index(value) / max(len(values) - 1, 1) for value in axis])
    return np.array(axes).T


def _view(
    config: AuditConfig,
    protocol: Protocol,
    top: float | tuple[float, float] | None,
    one_plain_candidate: bool,
) -> View:
    threat_model = threat_models.build(
        config.threat,
        config.canary,
        score=config.score,
        dataset=config.dataset,
        data_root=config.data_root or None,
        canary_index=config.canary_index,
        train_size=config.train_size,
        validation_size=config.validation_size,
        worst_order=top,
    )
    facts = facts_of_game(
        protocol,
        config.score,
        config.canary,
        empty_training_set=threat_model.training_set is None,
        full_batch=config.sampling_rate == 1.0,
        one_plain_candidate=one_plain_candidate,
    )
    return View(config, threat_model, facts)

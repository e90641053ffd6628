"""What a game is played with, fixed before anything is trained.

Order and threshold of a worst-order score come from the theory of the budget at hand; training gets
a score and knows nothing of statistics.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import threat_models
from audit import accounting, upper_bounds
from audit.claims import Facts, facts_of_game
from audit.dpsgd import Engine, LaneOutcomes, Lanes, SharingEngine, choose_engine, make_engine
from audit.game.settings import AuditConfig
from audit.protocols import RandomSearch
from threat_models import ThreatModel, WorstOrder


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
        candidates: how many hyper-parameter candidates there are.
        views: the adversaries that the runs serve.
        engine: runs DP-SGD.
        reason: why this engine.
        threshold: the threshold on the standardised lambda_a that goes with a worst-order score;
            None lets the theory of the increasing score choose.
    """

    base: accounting.DpSgd
    protocol: RandomSearch
    candidates: int
    views: tuple[View, ...]
    engine: Engine
    reason: str
    threshold: float | None

    @property
    def mu(self) -> float | None:
        """The base's mu; None where sampling makes it other than Gaussian."""
        return self.base.gaussian_mu

    def run(self, lanes: Lanes) -> Sequence[LaneOutcomes]:
        """Outcomes of a pack of lanes in every view."""
        if len(self.views) == 1:
            return [self.engine.run(lanes)]
        assert isinstance(self.engine, SharingEngine)
        return self.engine.run_shared(lanes, [view.threat_model for view in self.views])


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
    base = config.base(budget)
    top, threshold = None, None
    if config.score == "worst-order":
        mu = base.gaussian_mu
        assert mu is not None
        split, threshold = upper_bounds.attack_order(
            mu, config.law, config.delta, max(config.trials // 2, 1), config.confidence
        )
        top = split.top
    protocol = RandomSearch(config.law)
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
    return SetUp(base, protocol, len(training.candidates), views, engine, reason, threshold)


def _view(
    config: AuditConfig, protocol: RandomSearch, top: float | None, one_plain_candidate: bool
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

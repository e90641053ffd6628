"""The distinguishing game against the tuning protocol (Xiang, Wang & Wang 2024, algorithm 1)."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import threat_models
from audit import accounting, upper_bounds
from audit.config import AuditConfig
from audit.dpsgd import Engine, LaneOutcomes, Lanes, SharingEngine, choose_engine, make_engine
from audit.tuning import Winners, best_of_runs
from threat_models import ThreatModel

# Trials of a block: with an exact law the block is what one draw fills, else what a kill may lose,
# which is so many gradients of records, between so many runs.
_TRIALS_PER_BLOCK = {"reduced": 1 << 14}
_GRADIENTS_PER_BLOCK = 1 << 28
_RUNS_PER_BLOCK = (1 << 6, 1 << 11)


@dataclass(frozen=True, order=True)
class Block:
    """A range of trials with its own random stream, played in one go.

    Attributes:
        budget: index of eps_B in the config.
        repeat: index of the repeat.
        index: index of the block within them.
        start: its first trial.
        trials: how many.
    """

    budget: int
    repeat: int
    index: int
    start: int
    trials: int

    @property
    def name(self) -> str:
        """Name of the block's shard."""
        return f"budget{self.budget}-repeat{self.repeat}-block{self.index:06d}"


@dataclass(frozen=True)
class Trials(Winners):
    """What T games leave: one row each, what the tuning released and the coin behind it.

    Attributes:
        trial: [T] index within budget and repeat.
        bit: [T] whether the canary was in the data.
        lambda_b: [T] the proxy that adds the score; minus infinity where nothing was released.
    """

    trial: NDArray[np.int64]
    bit: NDArray[np.bool_]
    lambda_b: NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """Everything a block needs at one budget.

    Attributes:
        base: one run of DP-SGD at this budget.
        threat_models: what the adversary does, for every view that the runs serve.
        engine: runs DP-SGD.
        reason: why this engine.
        threshold: the threshold on the standardised lambda_a fixed in advance for a worst-order
            score; None lets the theory of the reduced game choose.
    """

    base: accounting.DpSgd
    threat_models: tuple[ThreatModel, ...]
    engine: Engine
    reason: str
    threshold: float | None

    @property
    def mu(self) -> float | None:
        """The base's mu; None where sampling makes it other than Gaussian."""
        return self.base.gaussian_mu

    def run(self, lanes: Lanes) -> Sequence[LaneOutcomes]:
        """Outcomes of a pack of lanes in every view."""
        if len(self.threat_models) == 1:
            return [self.engine.run(lanes)]
        assert isinstance(self.engine, SharingEngine)
        return self.engine.run_shared(lanes, self.threat_models)


@functools.lru_cache(maxsize=8)
def stage(config: AuditConfig, budget: int) -> Stage:
    """Builds the threat models and the engine for one budget; a process keeps the last few.

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
    served = tuple(
        threat_models.build(
            threat,
            canary,
            score=config.score or None,
            dataset=config.dataset,
            data_root=config.data_root or None,
            canary_index=config.canary_index,
            train_size=config.train_size,
            validation_size=config.validation_size,
            worst_order=top,
        )
        for threat, canary in config.pairs
    )
    settings = config.settings(base.noise_multiplier)
    name, reason = config.engine, "as asked"
    if len(served) > 1:
        together = f"{config.threat}, canary {config.canary}"
        if name not in ("auto", "batched"):
            raise ValueError(
                f"engine must be batched for {together} on one set of runs, got {name!r}"
            )
        name, reason = "batched", f"one set of runs serves {together}: results are correlated"
    elif name == "auto":
        name, reason = choose_engine(served[0], settings)
    engine = make_engine(name, served[0], settings, config.devices[0], config.precision)
    return Stage(base, served, engine, reason, threshold)


def blocks(config: AuditConfig, engine: str) -> list[Block]:
    """All blocks of an audit, in order. They depend on the config alone, never on the workers.

    Args:
        config: the audit.
        engine: name of the engine that plays it.
    """
    records = 1 if config.threat == "ETCV" else config.train_size
    fewest, most = _RUNS_PER_BLOCK
    runs = min(max(_GRADIENTS_PER_BLOCK // (config.steps * records), fewest), most)
    by_runs = max(1, math.ceil(runs / max(config.law.mean, 1.0)))
    size = _TRIALS_PER_BLOCK.get(engine, by_runs)
    return [
        Block(budget, repeat, index, start, min(size, config.trials - start))
        for budget in range(len(config.epsilon))
        for repeat in range(config.repeats)
        for index, start in enumerate(range(0, config.trials, size))
    ]


def play(config: AuditConfig, block: Block) -> tuple[Trials, ...]:
    """Plays the games of one block: a coin, a K, K runs on X or X', the best by score.

    The block's random stream is `SeedSequence(seed, (budget, repeat, index))`: the result depends
    on nothing else, neither on other blocks nor on who plays it.

    Args:
        config: the audit.
        block: which games.

    Returns:
        The trials of every view that the runs serve.
    """
    scene = stage(config, block.budget)
    key = (block.budget, block.repeat, block.index)
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=key))
    bit = rng.integers(0, 2, block.trials).astype(np.bool_)
    judged = best_of_runs(
        scene.run, config.law, len(config.candidates), bit, rng, len(scene.threat_models)
    )
    trial = block.start + np.arange(block.trials)
    games = []
    for threat_model, winners in zip(scene.threat_models, judged, strict=True):
        some = winners.chosen >= 0
        lambda_b = np.full(block.trials, -np.inf)
        lambda_b[some] = threat_model.lambda_b(winners.lambda_a[some], winners.score[some])
        games.append(Trials(**vars(winners), trial=trial, bit=bit, lambda_b=lambda_b))
    return tuple(games)

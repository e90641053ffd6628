"""Everything that is fixed before the first trial: noise, threat models, engine, thresholds.

Theory gives the order and the threshold of a worst-order score at each budget. The training code
only receives a score and does not depend on the statistics.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

import threat_models
from audit import accounting, attacks
from audit.accounting import DpSgd
from audit.claims import Assumption, Facts, facts_of_game
from audit.dpsgd import (
    DpSgdSettings,
    Engine,
    RunBatch,
    RunOutcomes,
    SharingEngine,
    choose_engine,
    make_engine,
)
from audit.errors import InvalidInput
from audit.game.settings import AuditConfig
from audit.numerics import FloatArray
from audit.protocols import Protocol, RepeatedRuns
from audit.simulation import GameContext, Winners
from audit.upper_bounds.reduced import log_density
from threat_models import ThreatModel, TwoTails, WorstOrder

# Part of the seed of acceptance runs; trials have the key (budget, repeat, block) instead.
_ACCEPTANCE = 1

# Rates of one core, for the expected time of an audit. A gradient's products use every parameter
# once, but the weights of a convolution about once for every 24 values of a record. A user's
# own model may take more or less time.
_DRAWS_PER_SECOND, _PRODUCTS_PER_SECOND, _NOISE_PER_SECOND = 1e7, 1e10, 1e8
_VALUES_OF_A_POSITION = 24

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

    The threshold is fixed before the first trial. If the distribution of the score is known, theory
    gives it. Otherwise it is estimated from runs with and without the canary that no trial uses,
    such that both kinds of runs are accepted with at least the protocol's probability. This fails
    with probability at most 1e-6 for each kind.

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


@dataclass(frozen=True)
class View:
    """One adversary's view of the runs; the facts decide which bounds are valid."""

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
    """Everything that a block needs at one budget.

    `reason` says why this engine was chosen. `threshold` is that of the standardised lambda_a for a
    worst-order score; for other scores, theory gives it later. Protocols that repeat until a run is
    accepted accept those with a score above `good_enough`.
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
        """The base's mu; None if sampling makes the base other than Gaussian."""
        return self.base.gaussian_mu

    @property
    def context(self) -> GameContext:
        """Everything that a tuning needs to run."""
        first_view = self.views[0]
        records = first_view.threat_model.training_set
        return GameContext(
            run=self.run,
            features=_features(self.training),
            tuned_log_ratio=self._tuned_log_ratio,
            log_ratio_scale=self.base.noise_multiplier**2 / self.base.steps,
            views=len(self.views),
            records=0 if records is None else len(records),
            good_enough=-np.inf if self.good_enough is None else self.good_enough,
            sampler=first_view.config.sampler,
            keep_runs=first_view.config.stores_runs,
        )

    def _tuned_log_ratio(self, winners: Winners) -> FloatArray:
        """Log-likelihood ratio of the best of K runs, [T].

        With an increasing score, the best run is the largest of K draws, whose density is known.
        With any other score, it is the ratio of the chosen run alone, as if K were 1.
        """
        view = self.views[0]
        released = winners.chosen >= 0
        log_ratio = np.zeros(len(released))
        if self.mu is not None and Assumption.MONOTONE_SCORE in view.facts.assumptions:
            x = winners.lambda_a[released] * self.mu
            repetitions = view.config.runs_distribution
            log_ratio[released] = log_density(x - self.mu, repetitions) - log_density(
                x, repetitions
            )
        else:
            scale = self.base.noise_multiplier**2 / self.base.steps
            log_ratio[released] = (winners.lambda_c[released] - 0.5) / scale
        return log_ratio

    @property
    def seconds_of_run(self) -> float:
        """Approximate time of one run on one core."""
        if self.engine.name == "reduced":
            return 1.0 / _DRAWS_PER_SECOND
        steps = 1 if self.engine.name == "collapsed" else self.training.steps
        threat_model = self.views[0].threat_model
        products = self.engine.parameters
        if self.training.model == "convnet":
            products *= max(1, math.prod(threat_model.record_shape) // _VALUES_OF_A_POSITION)
        records = 1.0 + self.context.records * self.training.sampling_rate
        noise = self.engine.parameters / _NOISE_PER_SECOND
        return steps * (records * products / _PRODUCTS_PER_SECOND + noise)

    def run(self, batch: RunBatch) -> Sequence[RunOutcomes]:
        """The outcomes of a batch of runs in every view."""
        if len(self.views) == 1:
            return [self.engine.run(batch)]
        assert isinstance(self.engine, SharingEngine)
        return self.engine.run_shared(batch, [view.threat_model for view in self.views])


def set_up(config: AuditConfig, budget: int, device: str = "cpu") -> SetUp:
    """Fixes noise, order and thresholds of one budget, and builds the engine; cached."""
    return _set_up(config, budget, device)


def set_up_all(
    config: AuditConfig, progress: Callable[[Sequence[int]], Iterable[int]]
) -> list[SetUp]:
    """The setup of every budget; `progress` wraps the budgets, for example in a progress bar."""
    return [set_up(config, budget) for budget in progress(range(len(config.epsilon)))]


@functools.lru_cache(maxsize=8)
def _set_up(config: AuditConfig, budget: int, device: str) -> SetUp:
    base, protocol = config.base(budget), config.parsed_protocol
    top, threshold = _worst_order(config, base)
    training = config.training(base.noise_multiplier)
    one_plain_candidate = len(training.candidates) == 1 and config.momentum == (0.0,)
    views = tuple(_view(view, top, one_plain_candidate) for view in config.views)
    name, reason = _choose_engine(config, views, training)
    threat_model = views[0].threat_model
    engine = make_engine(name, threat_model, training, device, config.precision)
    accepted_above = None
    if isinstance(protocol, RepeatedRuns):
        key = (config.seed, _ACCEPTANCE, budget)
        accepted_above = good_enough(
            protocol, threat_model, views[0].facts, training, base, engine, key
        )
    return SetUp(base, protocol, training, views, engine, reason, threshold, accepted_above)


_Top = float | tuple[float, float] | None


def _worst_order(config: AuditConfig, base: accounting.DpSgd) -> tuple[_Top, float | None]:
    """Where a worst-order score splits the statistic, and its threshold; None for other scores."""
    if config.score != "worst-order":
        return None, None
    mu, protocol, evaluation = base.gaussian_mu, config.parsed_protocol, config.evaluation
    assert mu is not None
    expected = evaluation.delta, max(config.trials // 2, 1), evaluation.confidence
    if isinstance(protocol, RepeatedRuns):
        tails, threshold = attacks.attack_tails(mu, protocol, *expected)
        return (tails.low, tails.high), threshold
    split, threshold = attacks.attack_order(mu, config.runs_distribution, *expected)
    return split.top, threshold


def _choose_engine(
    config: AuditConfig, views: Sequence[View], training: DpSgdSettings
) -> tuple[str, str]:
    """Name of the engine, and the reason for it."""
    if len(views) > 1:
        together = f"{config.threat}, canary {config.canary}"
        if config.engine not in ("auto", "batched"):
            raise InvalidInput(
                f"engine must be batched for {together} on one set of runs, got {config.engine!r}"
            )
        return "batched", f"one set of runs serves {together}: results are correlated"
    if config.engine == "auto":
        return choose_engine(views[0].threat_model, training)
    return config.engine, "as requested"


def _features(training: DpSgdSettings) -> FloatArray:
    """Position [n, 3] of every candidate on each axis of Omega, from 0 to 1."""
    axes = []
    for axis in zip(*training.candidates, strict=True):
        values = sorted(set(axis))
        axes.append([values.index(value) / max(len(values) - 1, 1) for value in axis])
    return np.array(axes).T


def _view(config: AuditConfig, top: _Top, one_plain_candidate: bool) -> View:
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
        config.parsed_protocol,
        config.score,
        config.canary,
        empty_training_set=threat_model.training_set is None,
        full_batch=config.sampling_rate == 1.0,
        one_plain_candidate=one_plain_candidate,
    )
    return View(config, threat_model, facts)

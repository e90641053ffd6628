"""From finished games to numbers: every lower and upper bound, with what each needs to be true."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from audit import lower_bounds, upper_bounds
from audit.dpsgd import PRECISIONS
from audit.game.play import Trials
from audit.game.settings import AuditConfig
from audit.game.setup import SetUp, View
from audit.lower_bounds import LowerBound, SequentialPlan
from audit.lower_bounds.scores import Scores
from audit.protocols import RandomSearch
from audit.report import contradictions
from audit.report.results import (
    PROXIES,
    BudgetResult,
    Engine,
    Evidence,
    LowerResult,
    Recommended,
    Records,
    Report,
    Rounding,
    UpperResult,
)
from audit.upper_bounds import UpperBound

# More no number of games shows.
_MAX_EPSILON = 500.0
# It assumes nothing but independent trials.
_RECOMMENDED = "scan:scan"


def assemble(
    config: AuditConfig,
    set_ups: Sequence[SetUp],
    games: Mapping[tuple[int, int], Trials],
    view: int = 0,
    made: Mapping[str, Any] | None = None,
    progress: Callable[[Sequence[int]], Iterable[int]] | None = None,
) -> Report:
    """Computes every bound of one view.

    Args:
        config: the settings of the view.
        set_ups: what each budget was played with.
        games: the trials of every (budget, repeat).
        view: which of the views that the runs serve.
        made: by what, when and where.
        progress: wraps the budgets, for instance in a progress bar.

    Raises:
        ValueError: at some budget every run diverged, so nothing was played.
    """
    recommended = Recommended(config.proxy, _RECOMMENDED)
    proxies = PROXIES if config.proxy in PROXIES else (*PROXIES, config.proxy)
    results = []
    budgets: Sequence[int] = range(len(set_ups))
    for budget in progress(budgets) if progress else budgets:
        game = set_ups[budget]
        of_repeats = [games[budget, repeat] for repeat in range(config.repeats)]
        results.append(_at_budget(game.views[view], game, budget, of_repeats, proxies))
    threat_model = set_ups[0].views[view].threat_model
    sets = (threat_model.training_set, threat_model.validation_set)
    return Report(
        config=config.identity,
        records=Records(*(0 if records is None else len(records) for records in sets)),
        candidates=tuple(candidate._asdict() for candidate in config.training(1.0).candidates),
        engine=Engine(set_ups[0].engine.name, set_ups[0].reason),
        precision=_rounding(config, set_ups[0].engine.name),
        recommended=recommended,
        results=tuple(results),
        made=dict(made or {}),
    )


def _at_budget(
    view: View, game: SetUp, budget: int, of_repeats: list[Trials], proxies: tuple[str, ...]
) -> BudgetResult:
    config = view.config
    runs = sum(int(trials.runs.sum()) for trials in of_repeats)
    diverged = sum(int(trials.diverged.sum()) for trials in of_repeats)
    if runs and diverged == runs:
        raise ValueError(
            f"every one of the {runs} runs at eps_B = {config.epsilon[budget]:g} diverged (weights "
            "or score not finite), so nothing can be said: learning_rates "
            f"{', '.join(f'{rate:g}' for rate in config.learning_rates)}, max_grad_norm "
            f"{', '.join(f'{norm:g}' for norm in config.max_grad_norm)}, noise multiplier "
            f"{game.base.noise_multiplier:.4g}, model {config.model}"
        )
    base = upper_bounds.report_mechanism(game.base, config.delta, config.accounting)
    upper = [*base.bounds, *upper_bounds.all_upper_bounds(game.base, game.protocol, config.delta)]
    pooled = Trials.joined(*of_repeats) if len(of_repeats) > 1 else of_repeats[0]
    # Proxy after proxy of the same games, for which the reference games of rank sums are the same.
    found = [
        [_lower_bounds(view, game, trials, proxy, config.confidence) for proxy in proxies]
        for trials in (pooled, *(of_repeats if len(of_repeats) > 1 else ()))
    ]
    lower = {
        proxy: _of_proxy(of_all, of_each or None)
        for proxy, (of_all, *of_each) in zip(proxies, zip(*found, strict=True), strict=True)
    }
    judged = {bound.name: _upper(bound, view) for bound in upper}

    def recompute(proxy: str, confidence: float) -> dict[str, float]:
        found = _lower_bounds(view, game, pooled, proxy, confidence)
        return {bound.key: bound.epsilon for bound in found}

    return BudgetResult(
        epsilon_base=config.epsilon[budget],
        mu=game.mu,
        score=config.score,
        base=base,
        runs=runs,
        diverged_runs=diverged,
        lower_bounds=lower,
        upper_bounds=judged,
        contradictions=tuple(
            contradictions.find(lower, judged, config.confidence, len(config.epsilon), recompute)
        ),
        ceiling=lower_bounds.max_detectable_epsilon(
            int(np.sum(~pooled.bit)),
            int(np.sum(pooled.bit)),
            config.delta,
            config.confidence,
            plan=len(config.analysis_sizes),
        ),
        games_needed=_games_needed(config, judged),
    )


def _games_needed(config: AuditConfig, upper: Mapping[str, UpperResult]) -> int | None:
    known = [one.epsilon for one in upper.values() if one.valid and one.epsilon is not None]
    if not known or min(known) > _MAX_EPSILON:
        return None
    share = (1.0 - config.confidence) / len(config.analysis_sizes)
    return 2 * lower_bounds.trials_needed(min(known), config.delta, 1.0 - share)


def _rounding(config: AuditConfig, engine: str) -> Rounding | None:
    """What rounded products do to the clipping threshold; None where none are."""
    precision = PRECISIONS[config.precision]
    if engine == "reduced" or precision.significand_bits is None:
        return None
    return Rounding(precision.product_error, precision.statement)


def _lower_bounds(
    view: View, game: SetUp, trials: Trials, proxy: str, confidence: float
) -> list[LowerBound]:
    values = getattr(trials, proxy)
    mu = law = threshold = split_top = None
    if isinstance(game.protocol, RandomSearch):
        law = game.protocol.repetitions
    if proxy == "lambda_a" and game.mu is not None:
        # sum_i p_i[0] / (C sigma sqrt N), N(b mu, 1) in one run when every gradient has norm C.
        values, threshold = values * game.mu, game.threshold
        if law is not None:
            mu, split_top = game.mu, view.split_top
    scores = Scores.of(values[~trials.bit], values[trials.bit])
    plan = SequentialPlan(len(view.config.analysis_sizes))
    found = [
        estimator.bound(scores, view.config.delta, confidence, known=view.facts, plan=plan)
        for estimator in lower_bounds.all_estimators(law, mu, threshold, split_top)
    ]
    if proxy == view.config.proxy and len(trials.run_score):
        found += _of_all_runs(view, trials, proxy, confidence)
    return found


def _of_all_runs(view: View, trials: Trials, proxy: str, confidence: float) -> list[LowerBound]:
    """What all runs say, not the winners alone."""
    config, law = view.config, view.config.law
    values = getattr(trials, f"run_{proxy}")
    with_canary = np.repeat(trials.bit, trials.runs)
    sides = values[~with_canary], values[with_canary]
    plan = len(config.analysis_sizes)
    return [
        estimator(*sides, config.delta, confidence, known=view.facts, plan=plan)
        for estimator in (
            lower_bounds.PooledScan(law),
            lower_bounds.PooledGaussianCurve(law, rule=lower_bounds.RankSum()),
        )
    ]


def _of_proxy(
    pooled: Sequence[LowerBound], repeats: Sequence[Sequence[LowerBound]] | None
) -> dict[str, LowerResult]:
    """Every lower bound of one proxy by key; without repeats the pooled games are the only ones."""
    alone = [pooled] if repeats is None else repeats
    by_key = [{bound.key: bound for bound in found} for found in alone]
    return {
        bound.key: LowerResult(
            name=bound.name,
            rule=bound.rule,
            valid=bound.valid,
            label=bound.label,
            assumes=bound.assumes,
            source=bound.source,
            confidence=bound.confidence,
            pooled=_evidence(bound),
            repeats=tuple(_evidence(found[bound.key]) for found in by_key),
        )
        for bound in pooled
    }


def _evidence(bound: LowerBound) -> Evidence:
    return Evidence(
        bound.epsilon,
        bound.threshold,
        bound.direction,
        bound.false_positives,
        bound.false_negatives,
        bound.trials_without,
        bound.trials_with,
    )


def _upper(bound: UpperBound, view: View) -> UpperResult:
    verdict = bound.claim.judged(view.facts)
    applies = bound.epsilon is not None
    return UpperResult(
        name=bound.name,
        epsilon=bound.epsilon,
        valid=verdict.valid and applies,
        label=verdict.label if applies else "does not apply",
        assumes=bound.assumes,
        source=bound.source,
        error=bound.error,
    )

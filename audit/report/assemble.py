"""Computes the report of an audit and writes it, with its provenance, into the audit's folders.

A report holds every lower and upper bound, and whether it is valid.
"""

import datetime
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from audit import console, files, lower_bounds, upper_bounds
from audit.dpsgd import PRECISIONS
from audit.errors import InvalidInput
from audit.game import store
from audit.game.play import Trials, TrialsOfViews
from audit.game.settings import AuditConfig, Evaluation
from audit.game.setup import SetUp, View
from audit.lower_bounds import LowerBound, SequentialPlan
from audit.lower_bounds.scores import Scores
from audit.report import pictures, results
from audit.report.results import (
    PROXIES,
    BudgetResult,
    Contradiction,
    EngineChoice,
    LowerResult,
    LowerValue,
    Recommended,
    Records,
    Report,
    Rounding,
    UpperResult,
)
from audit.upper_bounds import UpperBound
from audit.version import __version__

# No number of trials can show a larger epsilon.
_MAX_EPSILON = 500.0
# This estimator assumes only independent trials.
_RECOMMENDED = "scan:scan"
_Result = TypeVar("_Result", LowerResult, LowerValue)
LowerBounds = Mapping[str, Mapping[str, LowerResult]]
"""Lower bounds by proxy, then by key."""
_LIBRARIES = ("numpy", "scipy", "torch", "opacus", "joblib", "pandas")


def find_contradictions(
    lower: LowerBounds,
    upper: Mapping[str, UpperResult],
    confidence: float,
    budgets: int,
    recompute: Callable[[str, float], Mapping[str, float]],
) -> Iterator[Contradiction]:
    """The valid lower bounds above the smallest valid upper bound at one budget.

    Each valid lower bound exceeds the true epsilon with probability at most alpha = 1 - confidence.
    A report compares m of them with the smallest valid upper bound: every valid lower bound from
    all trials, at every budget. Even if nothing is wrong, some lower bound may exceed the upper
    bound with probability up to m alpha. A contradiction is therefore announced only if the lower
    bound still exceeds the upper bound when it is computed with the error alpha / m. By
    Bonferroni's inequality, a report of a correct mechanism then announces a contradiction with
    probability at most alpha, however the bounds depend on each other.

    Args:
        lower: the lower bounds at this budget.
        upper: the upper bounds at this budget, by name.
        confidence: confidence of each lower bound on its own.
        budgets: number of budgets in the report; all have the same number of lower bounds.
        recompute: maps a proxy and a larger confidence to the lower bounds from all trials, by key.
    """
    valid = [
        (proxy, key, bound.epsilon)
        for proxy, bounds in lower.items()
        for key, bound in bounds.items()
        if bound.valid
    ]
    valid_uppers = [
        (bound.epsilon, bound.name)
        for bound in upper.values()
        if bound.valid and bound.epsilon is not None
    ]
    if not valid_uppers:
        return
    smallest, name = min(valid_uppers)
    compared = len(valid) * budgets
    corrected = cache(lambda proxy: recompute(proxy, 1.0 - (1.0 - confidence) / compared))
    for proxy, key, epsilon in valid:
        if epsilon > smallest:
            beyond_chance = corrected(proxy).get(key, 0.0) > smallest
            yield Contradiction(key, proxy, epsilon, name, smallest, beyond_chance, compared)


def assemble(
    config: AuditConfig,
    set_ups: Sequence[SetUp],
    trials: Mapping[tuple[int, int], Trials],
    view: int = 0,
    made: Mapping[str, Any] | None = None,
    progress: Callable[[Sequence[int]], Iterable[int]] | None = None,
) -> Report:
    """Computes every bound of one view from the trials of every (budget, repeat).

    `view` is the index of the view of the runs, `made` the result of `provenance.made`, and
    `progress` wraps the budgets, for example in a progress bar. Raises InvalidInput if every run at
    some budget diverged.
    """
    proxy = config.evaluation.proxy
    proxies = PROXIES if proxy in PROXIES else (*PROXIES, proxy)
    results = []
    budgets: Sequence[int] = range(len(set_ups))
    for budget in progress(budgets) if progress else budgets:
        set_up = set_ups[budget]
        of_repeats = [trials[budget, repeat] for repeat in range(config.repeats)]
        results.append(_at_budget(set_up.views[view], set_up, budget, of_repeats, proxies))
    threat_model = set_ups[0].views[view].threat_model
    sets = (threat_model.training_set, threat_model.validation_set)
    return Report(
        config=config,
        records=Records(*(0 if records is None else len(records) for records in sets)),
        candidates=tuple(candidate._asdict() for candidate in config.training(1.0).candidates),
        engine=EngineChoice(set_ups[0].engine.name, set_ups[0].reason),
        precision=_rounding(config, set_ups[0].engine.name),
        recommended=Recommended(proxy, _RECOMMENDED),
        results=tuple(results),
        made=dict(made or {}),
    )


def _at_budget(
    view: View, set_up: SetUp, budget: int, of_repeats: list[Trials], proxies: tuple[str, ...]
) -> BudgetResult:
    config, evaluation = view.config, view.config.evaluation
    runs = sum(int(trials.runs.sum()) for trials in of_repeats)
    diverged = sum(int(trials.diverged.sum()) for trials in of_repeats)
    if runs and diverged == runs:
        raise InvalidInput(
            f"every one of the {runs} runs at eps_B = {config.epsilon[budget]:g} diverged (weights "
            "or score not finite), so there are no bounds: learning_rates "
            f"{', '.join(f'{rate:g}' for rate in config.learning_rates)}, max_grad_norm "
            f"{', '.join(f'{norm:g}' for norm in config.max_grad_norm)}, noise multiplier "
            f"{set_up.base.noise_multiplier:.4g}, model {config.model}"
        )
    base = upper_bounds.report_mechanism(set_up.base, config.delta, config.accounting)
    upper = [
        *base.bounds,
        *upper_bounds.all_upper_bounds(set_up.base, set_up.protocol, config.delta),
    ]
    pooled = Trials.joined(*of_repeats) if len(of_repeats) > 1 else of_repeats[0]
    # All proxies of one set of trials in turn, because they share the simulations of rank sums.
    by_repeat = [
        [_lower_bounds(view, set_up, trials, proxy, config.confidence) for proxy in proxies]
        for trials in (pooled, *(of_repeats if len(of_repeats) > 1 else ()))
    ]
    lower = {
        proxy: _of_proxy(of_all, of_each or None)
        for proxy, (of_all, *of_each) in zip(proxies, zip(*by_repeat, strict=True), strict=True)
    }
    upper_results = {bound.name: _upper(bound, view) for bound in upper}

    def recompute(proxy: str, confidence: float) -> dict[str, float]:
        bounds = _lower_bounds(view, set_up, pooled, proxy, confidence)
        return {bound.key: bound.epsilon for bound in bounds}

    return BudgetResult(
        epsilon_base=config.epsilon[budget],
        mu=set_up.mu,
        score=config.score,
        base=base,
        runs=runs,
        diverged_runs=diverged,
        lower_bounds=lower,
        upper_bounds=upper_results,
        contradictions=tuple(
            find_contradictions(
                lower, upper_results, evaluation.confidence, len(config.epsilon), recompute
            )
        ),
        ceiling=lower_bounds.max_detectable_epsilon(
            int(np.sum(~pooled.bit)),
            int(np.sum(pooled.bit)),
            evaluation.delta,
            evaluation.confidence,
            plan=len(evaluation.looks),
        ),
        games_needed=_trials_needed(evaluation, upper_results),
    )


def _trials_needed(evaluation: Evaluation, upper: Mapping[str, UpperResult]) -> int | None:
    """Smallest number of trials with which the bound to report could show the upper bound."""
    epsilons = [
        bound.epsilon for bound in upper.values() if bound.valid and bound.epsilon is not None
    ]
    if not epsilons or min(epsilons) > _MAX_EPSILON:
        return None
    error = (1.0 - evaluation.confidence) / len(evaluation.looks)
    return 2 * lower_bounds.trials_needed(min(epsilons), evaluation.delta, 1.0 - error)


def _rounding(config: AuditConfig, engine: str) -> Rounding | None:
    """Effect of rounded products on the clipping threshold; None if they are not rounded."""
    precision = PRECISIONS[config.precision]
    if engine == "reduced" or precision.significand_bits is None:
        return None
    return Rounding(precision.product_error, precision.statement)


def _lower_bounds(
    view: View, set_up: SetUp, trials: Trials, proxy: str, confidence: float
) -> list[LowerBound]:
    evaluation = view.config.evaluation
    values = getattr(trials, proxy)
    mu = threshold = split_top = None
    repetitions = set_up.protocol.search_repetitions
    if proxy == "lambda_a" and set_up.mu is not None:
        # sum_i p_i[0] / (C sigma sqrt N): N(b mu, 1) in one run if every gradient has norm C.
        values, threshold = values * set_up.mu, set_up.threshold
        if repetitions is not None:
            mu, split_top = set_up.mu, view.split_top
    scores = Scores.of(values[~trials.bit], values[trials.bit])
    plan = SequentialPlan(len(evaluation.looks))
    bounds = [
        estimator.bound(scores, evaluation.delta, confidence, known=view.facts, plan=plan)
        for estimator in lower_bounds.all_estimators(repetitions, mu, threshold, split_top)
    ]
    if proxy == evaluation.proxy and len(trials.run_score):
        bounds += _of_all_runs(view, trials, proxy, confidence)
    return bounds


def _of_all_runs(view: View, trials: Trials, proxy: str, confidence: float) -> list[LowerBound]:
    evaluation, repetitions = view.config.evaluation, view.config.runs_distribution
    values = getattr(trials, f"run_{proxy}")
    with_canary = np.repeat(trials.bit, trials.runs)
    sides = values[~with_canary], values[with_canary]
    plan = len(evaluation.looks)
    return [
        estimator(*sides, evaluation.delta, confidence, known=view.facts, plan=plan)
        for estimator in (
            lower_bounds.PooledScan(repetitions),
            lower_bounds.PooledGaussianCurve(repetitions, rule=lower_bounds.RankSum()),
        )
    ]


def _of_proxy(
    pooled: Sequence[LowerBound], repeats: Sequence[Sequence[LowerBound]] | None
) -> dict[str, LowerResult]:
    """The lower bounds of one proxy by key; a single repeat is the same as the pooled trials."""
    by_repeat = [pooled] if repeats is None else repeats
    by_key = [{bound.key: bound for bound in bounds} for bounds in by_repeat]
    return {
        bound.key: _copied(
            LowerResult,
            bound,
            pooled=_copied(LowerValue, bound),
            repeats=tuple(_copied(LowerValue, bounds[bound.key]) for bounds in by_key),
        )
        for bound in pooled
    }


def _copied(kind: type[_Result], bound: LowerBound, **own: Any) -> _Result:
    """An object of class `kind` from the attributes of a bound, and from additional fields."""
    shared = {
        field.name: getattr(bound, field.name) for field in fields(kind) if field.name not in own
    }
    return kind(**shared, **own)


def _upper(bound: UpperBound, view: View) -> UpperResult:
    validity = bound.claim.validity(view.facts)
    return UpperResult(
        name=bound.name,
        epsilon=bound.epsilon if bound.applies else None,
        valid=validity.valid and bound.applies,
        label=validity.label if bound.applies else "does not apply",
        assumes=bound.assumes,
        source=bound.source,
        error=bound.error,
    )


def provenance() -> dict[str, Any]:
    """Version, date, libraries and hardware, as values for json."""
    return {
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "libraries": {name: _version_of(name) for name in _LIBRARIES},
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _version_of(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def write_reports(
    views: Sequence[AuditConfig],
    set_ups: Sequence[SetUp],
    folder: store.RunFolder,
    trials: TrialsOfViews,
) -> list[Report]:
    """Computes and writes the report of every view of the runs."""
    made, progress = provenance(), partial(console.with_bar, unit="budget")
    reports = []
    for view, (of_view, of_trials) in enumerate(zip(views, trials, strict=True)):
        report = assemble(of_view, set_ups, of_trials, view, made, progress)
        folder.check_same()  # The folder may have changed if its file system has no locks.
        out = Path(of_view.out)
        files.write_text(out / "results.csv", results.to_csv(results.to_table(report)))
        files.write_text(out / "summary.json", results.to_json(report))
        pictures.draw(report, out / "figure.png")
        pictures.draw_scores(report, of_trials, out / "scores.png")
        reports.append(report)
    return reports

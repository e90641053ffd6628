"""From finished games to numbers: every lower and upper bound, with what each needs to be true."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from audit import lower_bounds, upper_bounds
from audit.claims import Facts, facts_of_game
from audit.config import AuditConfig
from audit.dpsgd import PRECISIONS
from audit.game import Stage, Trials
from audit.lower_bounds import LowerBound
from audit.protocols import RandomSearch
from audit.upper_bounds import UpperBound
from threat_models import WorstOrder
from threat_models.datasets import FOREIGN

PROXIES = ("lambda_a", "lambda_b")
"""The paper's proxies; sampled batches are told by lambda_c too, the likelihood ratio of a run."""
PAPER_PROTOCOL = "gaussian-curve:max-grid"
"""The key of the estimator that the paper uses: the f-curve at the best of a grid, uncorrected."""
VALID, UNCORRECTED = "valid", "paper's, uncorrected"
_FIRST = ("epsilon_base", "score", "side", "proxy", "repeat", "name", "rule", "epsilon", "valid")
_OWN_CURVES = {
    "lifted-curve:fixed": "valid if monotone",
    "worst-order-curve:fixed": "valid for this order",
}


@dataclass(frozen=True)
class Report:
    """All results of an audit.

    Attributes:
        table: one row per lower bound, budget, repeat and proxy, and per upper bound and budget.
        summary: the config, the engine, every bound by name with min, mean, max over repeats.
    """

    table: pd.DataFrame
    summary: dict[str, Any]


def report(
    config: AuditConfig, stages: Sequence[Stage], games: Mapping[tuple[int, int], Trials]
) -> Report:
    """Computes every bound.

    Args:
        config: the audit.
        stages: what each budget was played with.
        games: the trials of every (budget, repeat).
    """
    rows: list[dict[str, Any]] = []
    results = []
    for budget, scene in enumerate(stages):
        epsilon_base = config.epsilon[budget]
        of_budget = {"epsilon_base": epsilon_base, "mu": scene.mu, "score": config.score}
        facts = _facts(config, scene)
        base = upper_bounds.report_mechanism(scene.base, config.delta, config.accounting)
        upper = [*base.bounds, *upper_bounds.all_bounds(scene.base, config.law, config.delta)]
        proxies = PROXIES if config.sampling_rate == 1 else (*PROXIES, "lambda_c")
        lower_rows = [
            {"proxy": proxy, "repeat": repeat, **bound.as_dict()}
            for repeat in range(config.repeats)
            for proxy in proxies
            for bound in _lower_bounds(config, scene, games[budget, repeat], proxy, facts)
        ]
        rows += [{**of_budget, "side": "lower", **row} for row in lower_rows]
        rows += [{**of_budget, "side": "upper", **_upper_row(bound, facts)} for bound in upper]
        diverged = sum(int(games[budget, r].diverged.sum()) for r in range(config.repeats))
        results.append(
            {
                **of_budget,
                "base": asdict(base),
                "diverged_runs": diverged,
                "lower_bounds": {proxy: _over_repeats(lower_rows, proxy) for proxy in proxies},
                "upper_bounds": {bound.name: bound.as_dict() for bound in upper},
            }
        )
    engine = {"name": stages[0].engine.name, "reason": stages[0].reason}
    rounding = _rounding(config, engine["name"])
    summary = {
        "config": config.identity,
        "candidates": [candidate._asdict() for candidate in config.candidates],
        "engine": engine,
        **({"precision": rounding} if rounding else {}),
        "results": results,
    }
    table = pd.DataFrame(rows)
    ordered = [*_FIRST, *table.columns.drop(list(_FIRST))]
    return Report(table[ordered], summary)


def _facts(config: AuditConfig, scene: Stage) -> Facts:
    """What is true of this game."""
    return facts_of_game(
        RandomSearch(config.law),
        config.score,
        config.canary,
        empty_training_set=scene.threat_models[0].training_set is None,
        full_batch=config.sampling_rate == 1.0,
        one_plain_candidate=len(config.candidates) == 1 and config.momentum == (0.0,),
    )


def _rounding(config: AuditConfig, engine: str) -> dict[str, Any]:
    """What rounded products do to the clipping threshold; nothing where none are."""
    precision = PRECISIONS[config.precision]
    if engine == "reduced" or precision.significand_bits is None:
        return {}
    return {"product_error": precision.product_error, "sensitivity": precision.statement}


def _lower_bounds(
    config: AuditConfig, scene: Stage, trials: Trials, proxy: str, facts: Facts
) -> list[LowerBound]:
    values = getattr(trials, proxy)
    mu = threshold = split_top = None
    if proxy == "lambda_a" and scene.mu is not None:
        # sum_i p_i[0] / (C sigma sqrt N), N(b mu, 1) in one run when every gradient has norm C.
        values, mu, threshold = values * scene.mu, scene.mu, scene.threshold
        score, training_set = scene.threat_models[0].score, scene.threat_models[0].training_set
        # On a training set the order is that of lambda_a less the part the adversary knows.
        if isinstance(score, WorstOrder) and training_set is None:
            split_top = score.top
    return lower_bounds.all_bounds(
        values[~trials.bit],
        values[trials.bit],
        delta=config.delta,
        confidence=config.confidence,
        repetitions=config.law,
        mu=mu,
        threshold=threshold,
        split_top=split_top,
        known=facts,
    )


def _upper_row(bound: UpperBound, facts: Facts) -> dict[str, Any]:
    verdict = bound.claim.judged(facts)
    applies = bound.epsilon is not None
    return {
        **bound.as_dict(),
        "key": bound.name,
        "label": verdict.label if applies else "does not apply",
        "valid": verdict.valid and applies,
    }


def _over_repeats(rows: Sequence[Mapping[str, Any]], proxy: str) -> dict[str, dict[str, Any]]:
    """Every lower bound of one proxy by key, in the order of the estimators."""
    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["proxy"] == proxy:
            by_key.setdefault(row["key"], []).append(row)
    told = ("name", "rule", "valid", "label", "assumes", "source", "confidence")
    summary = {}
    for key, group in by_key.items():
        values = [row["epsilon"] for row in group]
        spread = {"min": min(values), "mean": float(np.mean(values)), "max": max(values)}
        summary[key] = {**spread, **{name: group[0][name] for name in told}}
    return summary


def shown(summary: Mapping[str, Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    """The lower bounds worth showing: key, what kind of claim, and from which proxies.

    The recommended one comes first; then the curve of the score's own law where it is valid, which
    assumes more and gets more; last the paper's protocol, for comparison.
    """
    by_proxy = summary["results"][0]["lower_bounds"]
    lower, proxies = by_proxy["lambda_a"], tuple(by_proxy)
    kinds: list[tuple[str, str, tuple[str, ...]]] = [(recommended(summary), VALID, proxies)]
    for key, kind in _OWN_CURVES.items():
        if key in lower and lower[key]["valid"]:
            kinds.append((key, kind, ("lambda_a",)))
    return [*kinds, (PAPER_PROTOCOL, UNCORRECTED, PROXIES)]


def recommended(summary: Mapping[str, Any]) -> str:
    """Key of the lower bound shown first: valid, and assuming nothing but independent trials."""
    lower = summary["results"][0]["lower_bounds"]["lambda_a"]
    return next(key for key, bound in lower.items() if bound["valid"])


def row_of_table(config: Mapping[str, Any]) -> tuple[str, str, str]:
    """The row of table 2: threat model, X and z, for instance NTNV, FASHION, MNIST[0].

    Args:
        config: the settings of an audit of one threat model and canary.
    """
    threat, canary, dataset = config["threat"], config["canary"], config["dataset"]
    empty = threat == "ETCV"
    if canary == "input":
        canary = f"{dataset if empty else FOREIGN[dataset]}[{config['canary_index']}]"
    return threat, "empty" if empty else dataset, canary


def to_csv(table: pd.DataFrame) -> str:
    """The table as text, the same bytes for the same numbers."""
    return table.to_csv(index=False, float_format="%.12g", lineterminator="\n")


def to_json(summary: Mapping[str, Any]) -> str:
    """The summary as text; numbers that json does not know become null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value

    return json.dumps(plain(summary), indent=2, allow_nan=False) + "\n"


def _candidates(candidates: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """A line about the grid, where there is more than one point of it."""
    if len(candidates) > 1:
        values = {
            name: dict.fromkeys(point[name] for point in candidates) for name in candidates[0]
        }
        axes = [f"{name} {', '.join(f'{v:g}' for v in of)}" for name, of in values.items()]
        yield f"{len(candidates)} candidates: {'; '.join(axes)}"


def to_text(summary: Mapping[str, Any]) -> str:
    """The table that the command prints."""
    config = summary["config"]
    threat, training_set, canary = row_of_table(config)
    first = summary["results"][0]["lower_bounds"]["lambda_a"]
    lines = [
        f"{threat}, X = {training_set}, z = {canary}, score {config['score']}, "
        f"repetitions {config['repetitions']}, delta {config['delta']:g}, "
        f"{config['trials']} trials x {config['repeats']}",
        f"engine {summary['engine']['name']}: {summary['engine']['reason']}",
        *_candidates(summary["candidates"]),
        *([summary["precision"]["sensitivity"]] if "precision" in summary else []),
        "",
    ]

    def row(name: str, cells: Sequence[str]) -> str:
        return f"{name:34}" + "".join(f"{cell:>24}" for cell in cells)

    lines.append(row("", [f"eps_B = {r['epsilon_base']:g}" for r in summary["results"]]))

    for number, (key, _, proxies) in enumerate(shown(summary), 1):
        for proxy in proxies:
            bounds = [result["lower_bounds"][proxy][key] for result in summary["results"]]
            cells = [f"{b['mean']:.3f} [{b['min']:.3f}, {b['max']:.3f}]" for b in bounds]
            lines.append(row(f"eps_L from {proxy} ({number})", cells))
    for name in summary["results"][0]["upper_bounds"]:
        upper = [result["upper_bounds"][name] for result in summary["results"]]
        if any(bound["epsilon"] is not None for bound in upper):
            cells = ["-" if b["epsilon"] is None else f"{b['epsilon']:.3f}" for b in upper]
            told = next(b["assumes"] for b in upper if b["epsilon"] is not None)
            lines.append(f"{row({'base': 'one run'}.get(name, name), cells)}  {told}")
    lines += ["", "Cells of eps_L: mean [min, max] over the repeats."]
    if "lambda_c" in summary["results"][0]["lower_bounds"]:
        lines.append("lambda_c: the likelihood ratio of a run with sampled batches, X put aside.")
    for number, (key, _, _) in enumerate(shown(summary), 1):
        bound = first[key]
        confidence = f"{100 * bound['confidence']:g} % confidence" if bound["valid"] else "no claim"
        told = bound["assumes"] if bound["valid"] else bound["label"]
        lines.append(f"({number}) {key}, {confidence}: {told}")
    diverged = sum(result["diverged_runs"] for result in summary["results"])
    if diverged:
        lines.append(
            f"{diverged} runs diverged (weights or score not finite); they were never chosen."
        )
    return "\n".join(lines)

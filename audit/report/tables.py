"""results.csv: one row per bound."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd

from audit.report.results import BudgetResult, LowerResult, Report

_FIRST = ("epsilon_base", "score", "side", "proxy", "repeat", "name", "rule", "epsilon", "valid")


def to_table(report: Report) -> pd.DataFrame:
    """One row per bound, budget, repeat and proxy; `side` is `lower`, `pooled` or `upper`."""
    rows = [
        {"epsilon_base": result.epsilon_base, "mu": result.mu, "score": result.score, **row}
        for result in report.results
        for row in (*_lower(result), *_upper(result))
    ]
    table = pd.DataFrame(rows)
    return table[[*_FIRST, *table.columns.drop(list(_FIRST))]]


def to_csv(table: pd.DataFrame) -> str:
    """A table as csv; the same numbers give the same bytes."""
    return table.to_csv(index=False, float_format="%.12g", lineterminator="\n")


def _lower(result: BudgetResult) -> Iterator[dict[str, Any]]:
    for proxy, bounds in result.lower_bounds.items():
        for key, bound in bounds.items():
            of_bound = {"proxy": proxy, **_claim(bound), "key": key}
            yield {"side": "pooled", **of_bound, **asdict(bound.pooled)}
            for repeat, value in enumerate(bound.repeats):
                yield {"side": "lower", "repeat": repeat, **of_bound, **asdict(value)}


def _claim(bound: LowerResult) -> dict[str, Any]:
    names = ("name", "rule", "confidence", "valid", "assumes", "label", "source")
    return {name: getattr(bound, name) for name in names}


def _upper(result: BudgetResult) -> Iterator[dict[str, Any]]:
    for bound in result.upper_bounds.values():
        yield {"side": "upper", **asdict(bound), "key": bound.name}

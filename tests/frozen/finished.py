"""Costs of finished tunings, and budgets that are spent run by run."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import audit
from audit.accounting import (
    Composition,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    Mixture,
    PureDp,
)
from audit.errors import AuditError

from .entries import Entry

QUIET, LOUD = GaussianMechanism(0.1), GaussianMechanism(0.2)
SAMPLED = DpSgd(2.0, 200, 0.02)
TRIALS: dict[str, Sequence[Mechanism]] = {
    "equal": [QUIET] * 10,
    "mixed": [QUIET] * 6 + [LOUD] * 2,
    "sampled": [SAMPLED] * 5,
    "sampled, mixed": [SAMPLED, DpSgd(2.0, 100, 0.02), DpSgd(4.0, 200, 0.02)],
    "laplace": [LaplaceMechanism(10.0)] * 5,
    "different kinds": [QUIET, LaplaceMechanism(10.0), PureDp(0.1)],
    "one": [LOUD],
    "two relations": [SAMPLED, DpSgd(2.0, 200, 0.02, "replace-one")],
}
WAYS: dict[str, dict[str, Any]] = {
    "grid": {"chosen": "grid"},
    "random": {"chosen": "random"},
    "random, K drawn": {"chosen": "random", "protocol": "tnb:0,0.1"},
    "sequential": {"chosen": "sequential"},
    "sequential, planned": {"chosen": "sequential", "budgets": "planned"},
    "sequential, adaptive": {"chosen": "sequential", "budgets": "adaptive"},
    "sequential, cap": {"chosen": "sequential", "cap": 4.0},
    "sequential, small cap": {"chosen": "sequential", "cap": 0.5},
}
FURTHER: dict[str, tuple[Sequence[Mechanism], dict[str, Any]]] = {
    "prior": (
        [QUIET, LOUD, QUIET],
        {"chosen": "random", "prior": Mixture((QUIET, LOUD), (0.75, 0.25))},
    ),
    "prior, K drawn": (
        [QUIET, LOUD, QUIET],
        {
            "chosen": "random",
            "prior": Mixture((QUIET, LOUD), (0.75, 0.25)),
            "protocol": "poisson:5",
        },
    ),
    "trial not in the prior": (
        [LOUD],
        {"chosen": "random", "prior": Mixture((QUIET,), (1.0,))},
    ),
    "cap is a mechanism": (
        [DpSgd(2.0, 100, 0.02)] * 3,
        {"chosen": "sequential", "cap": DpSgd(2.0, 400, 0.02)},
    ),
    "cap is a list": (
        [QUIET, LOUD],
        {"chosen": "sequential", "cap": Composition((QUIET, LOUD, LOUD))},
    ),
    "grid at another delta": (TRIALS["mixed"], {"chosen": "grid", "delta": 1e-3}),
    "protocol without K": (TRIALS["equal"], {"chosen": "random", "protocol": "grid:10"}),
    "K that the distribution never draws": (
        TRIALS["equal"],
        {"chosen": "random", "protocol": "fixed:3"},
    ),
}
TABLES = {
    "mu": "mu\n0.1\n0.2\n0.1\n",
    "dpsgd": "lr,noise_multiplier,steps,sampling_rate\n0.1,2,200,0.02\n1,4,100,\n",
    "rho": "rho,accuracy\n0.01,0.9\n0.02,0.8\n",
    "no mechanism": "lr\n0.1\n",
}
QUICK = {
    "trials | equal | grid",
    "trials | equal | random",
    "trials | mixed | sequential, adaptive",
    "trials | mixed | sequential, cap",
    "table | dpsgd | sequential, planned",
    "further | prior, K drawn",
    "budget | gaussian",
    "budget | sampled",
    "budget | mechanism",
}


def cost(trials: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The cost of a finished tuning, without its sentences."""
    answer = asdict(audit.cost_of_trials(trials, **options))
    names = ("trials", "delta", "best_only", "bound", "all_released", "kind", "odometer")
    return {name: answer[name] for name in names}


def cost_of_table(table: str, options: dict[str, Any]) -> dict[str, Any]:
    """The cost of the trials in a csv file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trials.csv")
        path.write_text(table)
        return cost(path, options)


def spent(budget: audit.Budget, runs: list[tuple[Mechanism, int]]) -> list[Any]:
    """What is left of a budget after each run, and how many such runs still fit."""
    states: list[Any] = [budget.epsilon]
    for mechanism, times in runs:
        try:
            budget.spend(mechanism, times)
            states.append([budget.remaining, budget.runs_left(mechanism)])
        except AuditError as error:
            states.append(type(error).__name__)
    return states


BUDGETS: dict[str, tuple[dict[str, Any], list[tuple[Mechanism, int]]]] = {
    "gaussian": ({"cap": 3.0}, [(QUIET, 10), (LOUD, 3), (GaussianMechanism(1.0), 1), (QUIET, 1)]),
    "sampled": ({"cap": 3.0}, [(SAMPLED, 2), (DpSgd(4.0, 200, 0.02), 3), (SAMPLED, 9)]),
    "expected": (
        {"cap": 3.0, "delta": 1e-6, "expected": SAMPLED},
        [(QUIET, 2), (SAMPLED, 1), (LaplaceMechanism(10.0), 1)],
    ),
    "laplace": ({"cap": 2.0}, [(LaplaceMechanism(10.0), 3), (PureDp(0.1), 2)]),
    "mechanism": (
        {"cap": DpSgd(1.0, 1000, 0.01)},
        [(DpSgd(1.0, 300, 0.01), 3), (DpSgd(1.1, 10, 0.01), 1), (DpSgd(1.0, 200, 0.01), 1)],
    ),
    "list": ({"cap": Composition((QUIET, LOUD, LaplaceMechanism(10.0)))}, [(LOUD, 1), (QUIET, 1)]),
    "mixed without expected": ({"cap": 3.0}, [(QUIET, 1), (SAMPLED, 1)]),
}


def entries() -> dict[str, Entry]:
    """The entries of this family."""
    calculations: dict[str, Any] = {}
    for name, trials in TRIALS.items():
        for way, options in WAYS.items():
            calculations[f"trials | {name} | {way}"] = partial(cost, trials, options)
    for name, (trials, options) in FURTHER.items():
        calculations[f"further | {name}"] = partial(cost, trials, options)
    for name, table in TABLES.items():
        for way in ("grid", "sequential, planned"):
            calculations[f"table | {name} | {way}"] = partial(cost_of_table, table, WAYS[way])
    for name, (settings, runs) in BUDGETS.items():
        calculations[f"budget | {name}"] = partial(_budget, settings, runs)
    return {name: Entry(compute, is_quick=name in QUICK) for name, compute in calculations.items()}


def _budget(settings: dict[str, Any], runs: list[tuple[Mechanism, int]]) -> list[Any]:
    return spent(audit.Budget(**settings), runs)

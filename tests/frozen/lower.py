"""Lower bounds from simulated scores."""

from functools import partial
from typing import Any

import numpy as np

from audit import lower_bounds, repetitions
from audit.numerics import FloatArray

from .entries import Entry

DISTRIBUTION = "tnb:0,0.01"


def scores() -> dict[str, tuple[FloatArray, FloatArray]]:
    """Scores without and with the canary."""
    rng = np.random.default_rng(7)
    return {
        "apart": (rng.normal(size=500), rng.normal(1.5, size=400)),
        "alike": (rng.normal(size=200), rng.normal(size=200)),
        "ties": (
            rng.integers(0, 5, 300).astype(float),
            rng.integers(1, 6, 300).astype(float),
        ),
        "few": (np.arange(20.0), np.arange(20.0) + 30.0),
    }


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tuned": {"protocol": DISTRIBUTION, "mu": 1.0},
    "both": {"direction": "both"},
    "split": {"protocol": DISTRIBUTION, "threshold": -0.5, "split_top": 1.5},
    "delta": {"delta": 0.01, "confidence": 0.9},
}


def bounds(name: str, options: dict[str, Any]) -> dict[str, float]:
    """Each lower bound from one set of scores."""
    without, with_record = scores()[name]
    if "protocol" in options:
        options = {**options, "protocol": repetitions.parse_repetitions(options["protocol"])}
    rows = lower_bounds.all_lower_bounds(out_scores=without, in_scores=with_record, **options)
    return {row.key: row.epsilon for row in rows}


def pooled(name: str) -> dict[str, float]:
    """The lower bounds that use the trials of a random search together."""
    distribution = repetitions.parse_repetitions(DISTRIBUTION)
    table = lower_bounds.pooled_bounds(*scores()[name], distribution)
    return {row.key: row.epsilon for row in table}


def entries() -> dict[str, Entry]:
    """The entries of this family."""
    # Lower bounds solve twice, and exp() differs between processors: they change by 2e-9.
    relative = 1e-8
    found: dict[str, Entry] = {}
    for name in scores():
        for how, options in OPTIONS.items():
            found[f"{name} {how}"] = Entry(partial(bounds, name, options), True, relative)
        found[f"{name} pooled"] = Entry(partial(pooled, name), True, relative)
    return found

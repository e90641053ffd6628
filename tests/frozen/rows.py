"""Every row of the table of bounds, for random search and for the other protocols."""

from functools import partial

import numpy as np

from audit import accounting, upper_bounds
from audit.accounting import Mechanism

from .entries import Entry

BASES: dict[str, Mechanism] = {
    "gaussian 0.05": accounting.GaussianMechanism(0.05),
    "gaussian 0.24721": accounting.GaussianMechanism(0.24721),
    "gaussian 1": accounting.GaussianMechanism(1.0),
    "gaussian 4": accounting.GaussianMechanism(4.0),
    "dpsgd": accounting.DpSgd(1.0, 500, 0.01),
    "dpsgd replace": accounting.DpSgd(2.0, 50, 0.1, "replace-one"),
    "laplace": accounting.LaplaceMechanism(3.0),
    "response": accounting.RandomisedResponse(0.5, 3),
    "pure": accounting.PureDp(0.7),
    "approximate": accounting.ApproximateDp(0.5, 1e-9),
    "zcdp": accounting.ZeroConcentratedDp(0.03),
    "discrete": accounting.DiscreteMechanism(np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])),
}
DISTRIBUTIONS = (
    "tnb:0,0.01",
    "tnb:1,0.1",
    "tnb:-0.5,0.001",
    "tnb:2.5,0.05",
    "poisson:20",
    "poisson:0.3",
    "binomial:30,0.5",
    "two-point:0.01,100",
    "fixed:1",
    "fixed:10",
    "tnb:0,0.01@50",
)
PROTOCOLS = (
    "grid:10",
    "grid:30,0.5",
    "adaptive:0.75,1.33/tnb:0,0.01",
    "subset:0.3/tnb:1,0.1",
    "ptr:0.5,1e-7,1e-8/tnb:1,0.1",
    "best:3/poisson:20",
    "pareto:4/tnb:1,0.1",
    "until:0.1",
    "stopping:0.1",
    "schedule:4,2,1",
    "noisy-max:20",
)
SETTINGS = [
    *(("gaussian 0.24721", law, 1e-5) for law in DISTRIBUTIONS),
    *(("gaussian 1", law, 1e-2) for law in DISTRIBUTIONS[1:9:2]),
    *((base, DISTRIBUTIONS[0], 1e-5) for base in BASES if base != "gaussian 0.24721"),
    *(("gaussian 0.24721", protocol, 1e-5) for protocol in PROTOCOLS),
    *(("laplace", protocol, 1e-5) for protocol in PROTOCOLS),
]
QUICK = {
    "gaussian 0.24721 tnb:0,0.01 1e-05",
    "gaussian 0.24721 grid:10 1e-05",
    "gaussian 0.24721 until:0.1 1e-05",
}


def rows(base: Mechanism, protocol: str, delta: float) -> dict[str, float]:
    """The value of each bound that applies."""
    table = upper_bounds.all_upper_bounds(base, protocol, delta)
    return {row.name: row.epsilon for row in table if row.applies}


def entries() -> dict[str, Entry]:
    """The entries of this family."""
    return {
        name: Entry(partial(rows, BASES[base], protocol, delta), is_quick=name in QUICK)
        for base, protocol, delta in SETTINGS
        for name in [f"{base} {protocol} {delta:g}"]
    }

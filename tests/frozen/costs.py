"""Cost of every kind of protocol on every kind of base mechanism, and the name of its bound."""

import math
from functools import partial
from typing import Any

import numpy as np

from audit import protocols, repetitions, upper_bounds
from audit.accounting import (
    ApproximateDp,
    Candidates,
    Composition,
    DiscreteMechanism,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    LossDistribution,
    Mechanism,
    Mixture,
    PrivacyProfile,
    PureDp,
    RandomisedResponse,
    RenyiCurve,
    WorstOf,
    ZeroConcentratedDp,
)

from .entries import Entry

# Randomised response that releases nothing with the remaining probability.
_HIGH = 0.4
_LOW = _HIGH * math.exp(-0.5)

BASES: dict[str, Mechanism] = {
    "gaussian": GaussianMechanism(0.25),
    "dpsgd, sampled": DpSgd(1.0, 100, 0.01),
    "dpsgd, full batch": DpSgd(20.0, 100),
    "dpsgd, replace-one": DpSgd(2.0, 50, 0.05, "replace-one"),
    "dpsgd, groups": DpSgd(4.0, 50, 0.02, group_size=2),
    "laplace": LaplaceMechanism(3.0),
    "randomised response": RandomisedResponse(0.5, 3),
    "pure": PureDp(0.3),
    "approximate": ApproximateDp(0.3, 1e-9),
    "zcdp": ZeroConcentratedDp(0.03),
    "renyi curve": RenyiCurve(np.array([1.5, 2.0, 8.0, 32.0]), np.array([0.04, 0.05, 0.2, 0.9])),
    "profile": PrivacyProfile(np.array([0.0, 0.5, 1.0]), np.array([0.1, 1e-4, 1e-9])),
    "discrete": DiscreteMechanism(np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])),
    "composition": Composition((GaussianMechanism(0.2), LaplaceMechanism(8.0))),
    "mixture": Mixture((GaussianMechanism(0.1), GaussianMechanism(0.4)), (0.75, 0.25)),
    "worst of": WorstOf((GaussianMechanism(0.25), PureDp(0.3))),
    "loss distribution": LossDistribution([-0.5, 0.0, 0.5], [_LOW, 1.0 - _LOW - _HIGH, _HIGH]),
    "loss distribution, infinite losses": LossDistribution(
        [-0.5, 0.5 + 1e-6], [0.37, 0.63 - 1e-8], infinite=1e-8
    ),
    "composition, sampled": Composition((DpSgd(1.0, 50, 0.01), GaussianMechanism(0.2))),
    "candidates": Candidates((GaussianMechanism(0.1),) * 18 + (GaussianMechanism(0.4),) * 2),
}
"""One base of every kind."""

PROTOCOLS = (
    "tnb:0,0.01",
    "tnb:1,0.1",
    "tnb:-0.5,0.001",
    "poisson:20",
    "binomial:30,0.5",
    "two-point:0.01,100",
    "fixed:10",
    "tnb:0,0.01@50",
    "grid:20",
    "grid:20,0.5",
    "adaptive:0.75,1.33/tnb:1,0.1",
    "subset:0.3/tnb:1,0.1",
    "subset:0.3,all/tnb:1,0.1",
    "ptr:0.5,1e-7,1e-8/tnb:1,0.1",
    "best:3/poisson:20",
    "pareto:4/tnb:1,0.1",
    "until:0.1",
    "stopping:0.1",
    "schedule:4,2,1",
    "noisy-max:20",
    "noisy-max:20,3,monotone",
)
DELTA = 1e-5

# Every protocol once and every base once; the pairs are computed in about half a second each.
QUICK = {
    ("tnb:0,0.01", "gaussian"),
    ("tnb:1,0.1", "laplace"),
    ("tnb:-0.5,0.001", "renyi curve"),
    ("poisson:20", "dpsgd, full batch"),
    ("binomial:30,0.5", "composition"),
    ("two-point:0.01,100", "profile"),
    ("fixed:10", "zcdp"),
    ("tnb:0,0.01@50", "mixture"),
    ("grid:20", "candidates"),
    ("grid:20,0.5", "randomised response"),
    ("adaptive:0.75,1.33/tnb:1,0.1", "loss distribution"),
    ("subset:0.3/tnb:1,0.1", "dpsgd, sampled"),
    ("subset:0.3,all/tnb:1,0.1", "worst of"),
    ("ptr:0.5,1e-7,1e-8/tnb:1,0.1", "pure"),
    ("best:3/poisson:20", "discrete"),
    ("pareto:4/tnb:1,0.1", "dpsgd, replace-one"),
    ("until:0.1", "randomised response"),
    ("stopping:0.1", "approximate"),
    ("schedule:4,2,1", "composition, sampled"),
    ("schedule:4,2,1", "gaussian"),
    ("noisy-max:20", "laplace"),
    ("noisy-max:20,3,monotone", "gaussian"),
    ("tnb:1,0.1", "loss distribution, infinite losses"),
    ("noisy-max:20", "dpsgd, groups"),
}


def cost(base: Mechanism, protocol: str, delta: float = DELTA) -> dict[str, Any]:
    """The cost of a tuning and the bound that gives it."""
    bound = upper_bounds.tuning_cost(base, protocol, delta)
    return {"epsilon": bound.epsilon, "bound": bound.name}


def compared(base: Mechanism, runs: float) -> dict[str, Any]:
    """The comparison of all protocols at one expected number of runs."""
    return {
        row.title: {
            "protocol": row.protocol.spec,
            "epsilon": row.epsilon,
            "bound": row.bound,
            "expected quantile": row.expected_quantile,
        }
        for row in upper_bounds.compare_protocols(base, runs, DELTA)
    }


def one_run(base: Mechanism) -> dict[str, Any]:
    """The cost of a single run by both accountings."""
    report = upper_bounds.report_mechanism(base, DELTA, "rdp")
    return {"mu": report.mu, "rdp": report.epsilon_rdp, "exact": report.epsilon_exact}


def ex_post(base: Mechanism) -> tuple[float, ...]:
    """The ex-post cost of each step of a schedule."""
    protocol = protocols.BudgetSchedule((4.0, 2.0, 1.0))
    return upper_bounds.schedule_ex_post(base, protocol, DELTA)


# Their search for the smallest valid bound ends where the last digits of exp and of the transforms
# lead it, which differ between processors. Each value that it visits is a bound.
_RELATIVE = {"ptr": 1e-4, "stopping": 1e-4}
# Rounding decides which points of a straight boundary belong to its hull, and so how many corners
# lie below it. Of some bases, exp with and without AVX512 gives bounds that differ by up to 1e-3
# (`NPY_DISABLE_CPU_FEATURES=X86_V4` repeats the stored ones). Both are bounds.
_RELATIVE |= {"grid:20,0.5": 2e-3}


def tuned_twice(base: Mechanism, protocol: str) -> dict[str, Any]:
    """The cost of a tuning whose base is itself a tuning."""
    inner = repetitions.parse_repetitions("tnb:1,0.5")
    return cost(upper_bounds.TunedMechanism(base, inner), protocol)


def entries() -> dict[str, Entry]:
    """The entries of this family."""
    gaussian, sampled = BASES["gaussian"], BASES["dpsgd, sampled"]
    found = {
        f"cost | {protocol} | {name}": Entry(
            partial(cost, base, protocol),
            is_quick=(protocol, name) in QUICK,
            relative=_RELATIVE.get(protocol, _RELATIVE.get(protocol.split(":")[0], 1e-9)),
        )
        for protocol in PROTOCOLS
        for name, base in BASES.items()
    }
    found |= {f"one run | {name}": Entry(partial(one_run, base)) for name, base in BASES.items()}
    found |= {
        f"ex post | {name}": Entry(partial(ex_post, base), is_quick=name == "gaussian")
        for name, base in BASES.items()
    }
    for delta in (1e-2, 1e-10):
        found |= {
            f"cost at {delta:g} | {protocol} | gaussian": Entry(
                partial(cost, gaussian, protocol, delta)
            )
            for protocol in PROTOCOLS
        }
    found["compared | gaussian | 20"] = Entry(partial(compared, gaussian, 20.0))
    found["compared | dpsgd, sampled | 5"] = Entry(partial(compared, sampled, 5.0))
    for protocol in ("fixed:3", "grid:3", "until:0.1"):
        found[f"tuned twice | {protocol} | gaussian"] = Entry(
            partial(tuned_twice, gaussian, protocol)
        )
    return found

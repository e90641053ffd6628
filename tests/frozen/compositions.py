"""Privacy profiles of single mechanisms and of their compositions."""

from functools import partial
from typing import Any

import numpy as np

from audit import accounting
from audit.accounting import (
    Composition,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    Mixture,
    PureDp,
    RandomisedResponse,
    WorstOf,
    ZeroConcentratedDp,
)

from .costs import BASES
from .entries import Entry

GAUSSIAN, LAPLACE, SAMPLED = GaussianMechanism(0.2), LaplaceMechanism(8.0), DpSgd(1.0, 50, 0.01)

COMPOSITIONS: dict[str, Mechanism] = {
    "gaussians": Composition((GAUSSIAN, GaussianMechanism(0.5), GAUSSIAN)),
    "ten laplace": Composition((LAPLACE,) * 10),
    "gaussian, laplace": Composition((GAUSSIAN, LAPLACE)),
    "two sampled": Composition((SAMPLED, DpSgd(2.0, 100, 0.05))),
    "sampled, gaussian, laplace": Composition((SAMPLED, GAUSSIAN, LAPLACE)),
    "replace-one, five": Composition((DpSgd(2.0, 50, 0.05, "replace-one"),) * 5),
    "responses": Composition((RandomisedResponse(0.5, 3), RandomisedResponse(0.2)) * 3),
    "pure, gaussian": Composition((PureDp(0.3), GAUSSIAN)),
    "zcdp, gaussian": Composition((ZeroConcentratedDp(0.03), GAUSSIAN)),
    "discrete, five": Composition((BASES["discrete"],) * 5),
    "loss distributions": Composition((BASES["loss distribution"],) * 4),
    "mixtures": Composition((Mixture((GAUSSIAN, LAPLACE), (0.5, 0.5)),) * 3),
    "worst of, gaussian": Composition((WorstOf((PureDp(0.2), LAPLACE)), GAUSSIAN)),
    "nested": Composition((Composition((GAUSSIAN, LAPLACE)), SAMPLED)),
    "groups, two": Composition((DpSgd(4.0, 50, 0.02, group_size=2),) * 2),
}
DELTAS = (1e-3, 1e-5, 1e-8)
EPSILONS = np.array([0.0, 0.5, 1.0, 2.0])
ORDERS = np.array([1.5, 4.0, 32.0])
QUICK = {"gaussians", "gaussian, laplace", "nested"}


def numbers(mechanism: Mechanism) -> dict[str, Any]:
    """Epsilon at three deltas, delta at four epsilons, and three Renyi divergences."""
    return {
        "epsilon": {f"{delta:g}": _epsilon(mechanism, delta) for delta in DELTAS},
        "delta": mechanism.delta(EPSILONS).tolist(),
        "renyi": mechanism.renyi(ORDERS).tolist(),
    }


def _epsilon(mechanism: Mechanism, delta: float) -> float | None:
    try:
        return mechanism.epsilon(delta)
    except accounting.DeltaUnreachable:
        return None


def entries() -> dict[str, Entry]:
    """The entries of this family."""
    single = {f"one | {name}": mechanism for name, mechanism in BASES.items()}
    composed = {f"composition | {name}": mechanism for name, mechanism in COMPOSITIONS.items()}
    return {
        name: Entry(partial(numbers, mechanism), is_quick=name.split(" | ")[1] in QUICK)
        for name, mechanism in (single | composed).items()
    }

"""Numbers of certificates, and the draws of studies with a fixed seed."""

import warnings
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

import audit
from audit import certificate, protocols, tuning
from audit.accounting import (
    Composition,
    DpSgd,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PureDp,
)

from .entries import Entry

NUMBERS: dict[str, tuple[Mechanism, str, tuple[str, ...]]] = {
    "gaussian | fixed:1": (GaussianMechanism(0.5), "fixed:1", ("region",)),
    "gaussian | tnb:0,0.01": (GaussianMechanism(0.25), "tnb:0,0.01", ()),
    "sampled | tnb:1,0.1": (DpSgd(1.0, 100, 0.01), "tnb:1,0.1", ()),
    "full batch | poisson:20": (DpSgd(20.0, 100), "poisson:20", ("tight", "region")),
    "laplace | fixed:10": (LaplaceMechanism(3.0), "fixed:10", ()),
    "pure | tnb:0,0.1": (PureDp(0.3), "tnb:0,0.1", ()),
    "composition | tnb:1,0.1": (
        Composition((GaussianMechanism(0.2), LaplaceMechanism(8.0))),
        "tnb:1,0.1",
        ("region",),
    ),
    "gaussian | grid:10": (GaussianMechanism(0.25), "grid:10", ()),
    "gaussian | grid:10,0.5": (GaussianMechanism(0.25), "grid:10,0.5", ()),
    "gaussian | subset:0.3": (GaussianMechanism(0.25), "subset:0.3/tnb:1,0.1", ()),
    "gaussian | best:3": (GaussianMechanism(0.25), "best:3/poisson:10", ()),
    "gaussian | until:0.1": (GaussianMechanism(0.25), "until:0.1", ()),
    "gaussian | stopping:0.1": (GaussianMechanism(0.25), "stopping:0.1", ()),
    "gaussian | schedule:4,2,1": (GaussianMechanism(0.25), "schedule:4,2,1", ()),
    "gaussian | unknown bound": (GaussianMechanism(0.25), "tnb:1,0.1", ("no such bound",)),
}
SPACES: dict[str, dict[str, Any]] = {
    "continuous": {"lr": tuning.LogUniform(0.01, 1.0), "width": tuning.Integer(1, 64)},
    "finite": {"lr": [0.01, 0.1, 1.0, 10.0], "width": [8, 16]},
}
STUDIES: dict[str, dict[str, Any]] = {
    "tnb:1,0.2": {"space": "continuous", "steps": 100, "epsilon": 2.0},
    "poisson:5": {"space": "finite", "steps": 100, "epsilon": 2.0, "sampling_rate": 0.02},
    "fixed:5": {"space": "continuous", "base": GaussianMechanism(0.5)},
    "grid:8": {"space": "finite", "steps": 100, "epsilon": 3.0},
    "grid:8,0.5": {"space": "finite", "base": GaussianMechanism(0.25)},
    "subset:0.3/tnb:1,0.2": {"space": "finite", "base": GaussianMechanism(0.25)},
    "best:2/poisson:6": {"space": "continuous", "base": GaussianMechanism(0.25)},
    "until:0.3": {"space": "continuous", "base": GaussianMechanism(0.25)},
    "stopping:0.2": {"space": "continuous", "base": GaussianMechanism(0.25)},
    "schedule:4,2,1": {"space": "continuous", "base": DpSgd(2.0, 50, 0.02)},
    "adaptive:0.75,1.33/tnb:1,0.2": {"space": "continuous", "base": GaussianMechanism(0.25)},
    "pareto:4/tnb:1,0.2": {"space": "continuous", "base": GaussianMechanism(0.25)},
    "ptr:0.5,1e-7,1e-8/tnb:1,0.2": {"space": "continuous", "base": GaussianMechanism(0.25)},
    "noisy-max:20": {"space": "finite", "base": GaussianMechanism(0.25)},
}
SEED = 7
_UNTIL = protocols.UntilAccepted, protocols.RandomStopping, protocols.BudgetSchedule
QUICK = {
    "numbers | gaussian | fixed:1",
    "numbers | gaussian | until:0.1",
    "study | subset:0.3/tnb:1,0.2",
    "study | until:0.3",
    "study | schedule:4,2,1",
}


def numbers(base: Mechanism, protocol: str, bounds: tuple[str, ...]) -> dict[str, Any]:
    """All numbers of a certificate, without its sentences."""
    parsed = protocols.parse_protocol(protocol)
    values = asdict(certificate.compute(base, parsed, 1e-5, bounds))
    del values["source"], values["assumes"]
    return values


def _accept(outcome: audit.Outcome) -> bool:
    return outcome.score > 0.8


def study(protocol: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The draws, the result and the numbers of a study with a fixed seed."""
    others = dict(settings)
    space = SPACES[others.pop("space")]
    private = audit.Study(space, protocol, seed=SEED, folder=None, **others)
    trials: list[Any] = []

    def train(trial: audit.Trial) -> audit.Outcome:
        # The numbers of the records that the run may read, of 20 records.
        part = np.flatnonzero(trial.records(20)).tolist() if trial.part is not None else []
        trials.append([dict(trial.candidate), trial.seed, part])
        # Depends on everything that the study draws for a run.
        score = trial.candidate["lr"] * (1 + trial.seed % 1000 / 1000)
        return audit.Outcome(score, len(trials))

    waits = isinstance(private.protocol, _UNTIL)
    options: dict[str, Any] = {"accept": _accept, "rehearse": False} if waits else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no candidate was chosen")
        best = private.run(train, **options)
    base = private.certificate.base
    values = asdict(private.certificate.numbers)
    return {
        "total epsilon": private.total_epsilon,
        "noise": base.noise_multiplier if isinstance(base, DpSgd) else None,
        "trials": trials,
        "candidate": best.candidate,
        "score": best.score,
        "step": best.step,
        "runners-up": [runner_up.candidate for runner_up in best.runners_up],
        "epsilon": values["epsilon"],
        "bounds": values["bounds"],
        "mu": values["mu"],
        "advantage": values["advantage"],
    }


def entries() -> dict[str, Entry]:
    """The entries of this family."""
    calculations: dict[str, Any] = {
        f"numbers | {name}": partial(numbers, *arguments) for name, arguments in NUMBERS.items()
    }
    calculations |= {
        f"study | {protocol}": partial(study, protocol, settings)
        for protocol, settings in STUDIES.items()
    }
    # The noise of a study is found by a search, see `inverse`.
    return {
        name: Entry(
            compute,
            is_quick=name in QUICK,
            relative=1e-9 if name.startswith("numbers") else 1e-7,
        )
        for name, compute in calculations.items()
    }

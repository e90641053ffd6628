"""Trials of small audits: every protocol that an audit can play, and every engine.

Trained models differ in their last digits between processors, so their trials are compared with a
tolerance. The engine `reduced` draws without training: a digest of all its fields is frozen too.
"""

import hashlib
from functools import partial
from typing import Any

import numpy as np

from .entries import Entry

SMALL = ["--dataset", "DIGITS", "--train-size", "30", "--validation-size", "20"]
DIRAC = ["--threat", "ETCV", "--canary", "dirac"]
GRID = ["--learning-rates", "0.1", "1", "10"]
AUDITS: dict[str, list[str]] = {
    "reduced": DIRAC,
    "worst": [*DIRAC, "--score", "worst-order"],
    "batched": [*DIRAC, "--engine", "batched", *SMALL],
    "projected": ["--threat", "ETCV", "--canary", "input", *SMALL],
    "NTNV": ["--threat", "NTNV", "--canary", "input", "--model", "logistic", *SMALL],
    "sampled": [
        *["--threat", "NTCV", "--canary", "dirac", "--model", "logistic"],
        *["--sampling-rate", "0.2", *SMALL],
    ],
    "poisson": [*DIRAC, "--protocol", "poisson:5"],
    "fixed": [*DIRAC, "--protocol", "fixed:10"],
    "grid": [*DIRAC, "--protocol", "grid:3", *GRID],
    "grid with inclusion": [*DIRAC, "--protocol", "grid:3,0.5", *GRID],
    "adaptive": [*DIRAC, "--protocol", "adaptive:0.75,1.33/tnb:1,0.1", *GRID],
    "subset, rest": [*DIRAC, "--protocol", "subset:0.5/tnb:1,0.1"],
    "subset, all": [*DIRAC, "--protocol", "subset:0.5,all/tnb:1,0.1"],
    "until": [*DIRAC, "--protocol", "until:0.3"],
    "until, worst order": [*DIRAC, "--protocol", "until:0.3", "--score", "worst-order"],
    "stopping": [*DIRAC, "--protocol", "stopping:0.2"],
    "best": [*DIRAC, "--protocol", "best:2/poisson:5"],
    "pareto": [*DIRAC, "--protocol", "pareto:4/tnb:1,0.1"],
    "ptr": [*DIRAC, "--protocol", "ptr:0.5,1e-7,1e-8/tnb:1,0.1"],
    "schedule": [*DIRAC, "--protocol", "schedule:4,2,1"],
    "noisy-max": [*DIRAC, "--protocol", "noisy-max:20"],
}
TRAINED = ["--threat", "NTNV", "--canary", "input", "--model", "logistic", *SMALL]
AUDITS |= {
    f"trained, {protocol}": [*TRAINED, "--protocol", protocol, *GRID]
    for protocol in (
        "fixed:4",
        "grid:3",
        "grid:3,0.5",
        "adaptive:0.75,1.33/tnb:1,0.3",
        "subset:0.5/tnb:1,0.3",
        "subset:0.5,all/tnb:1,0.3",
        "until:0.3",
        "stopping:0.2",
    )
}
AUDITS["two views"] = [
    *["--threat", "NTNV+NTCV", "--canary", "input", "--model", "logistic"],
    *["--protocol", "fixed:4", *SMALL],
]
COMMON = ["--trials", "40", "--repeats", "1", "--epsilon", "2", "--steps", "5"]
FIELDS = ("trial", "bit", "runs", "chosen", "score", "lambda_a", "lambda_b", "lambda_c")


def trials(arguments: list[str]) -> dict[str, Any]:
    """The trials of an audit, with 9 digits, and a digest of all fields where nothing trains."""
    # Importing torch takes seconds, which the other families need not wait for.
    from audit.game import play, setup
    from audit.run import parse

    (config,) = parse([*arguments, *COMMON])
    engine = setup.set_up(config, 0).engine.name
    values: dict[str, Any] = {"engine": engine}
    for block in play.all_blocks(config.workload, engine):
        views = play.play(config, block)
        for view_name, view in zip(config.view_names, views, strict=True):
            label = f"{block.name} {view_name}".strip()
            for field in FIELDS:
                numbers = np.nan_to_num(getattr(view, field).astype(float), neginf=-1e300)
                values[f"{label} {field}"] = [float(f"{number:.9g}") for number in numbers]
            if engine == "reduced":
                values[f"{label} digest"] = digest(view)
    return values


def digest(trials: Any) -> str:
    """A digest of the types and values of all fields, with 9 digits.

    The last digits of exp() and log() depend on the vector instructions of the processor.
    """
    parts = []
    for field, array in sorted(vars(trials).items()):
        texts = [f"{number:.9g}" for number in array.astype(float).ravel()]
        parts.append(f"{field} {array.dtype.str} {array.shape} {' '.join(texts)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def entries() -> dict[str, Entry]:
    """The entries of this family."""
    # The last digits of trained models depend on the processor.
    tolerances = {"relative": 1e-4, "absolute": 1e-6}
    return {
        name: Entry(partial(trials, arguments), is_quick=name != "projected", **tolerances)
        for name, arguments in AUDITS.items()
    }

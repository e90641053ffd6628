"""Verdicts of the test of training loops about loops with and without mistakes.

An entry names the premises that the findings are about, and not their sentences. A loop without a
mistake is attacked with few trials only, because the bounds of the attack are not part of an entry.
"""

import importlib
import sys
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import audit

from .entries import Entry

LOOPS: dict[str, tuple[str, ...]] = {
    "broken.BROKEN": (
        "same random key for all tensors",
        "noise scaled by C squared",
        "uniform noise",
        "noise added before clipping",
        "no noise on biases and normalisation layers",
        "one noise number for each row",
        "noise of the previous step subtracted",
        "noise schedule not recorded",
        "noise scaled by the largest gradient",
        "each tensor clipped to C",
        "momentum of gradients without noise",
        "output layer left out of the norm",
        "features standardised by private records",
        "sum divided by the size of the drawn batch",
        "sum divided by the number of records",
        "same batch in all steps",
        "sampling at twice the recorded rate",
        "one step recorded per epoch",
        "training loss returned",
        "number of records returned",
        "early stopping by the training loss",
        "Opacus, no clipping",
        "Opacus, accountant not attached",
        "make_private, add-remove",
        "exact mean next to noisy coefficients (black box)",
        "declared sensitivity too small (black box)",
    ),
    "correct.CORRECT": (
        "MLP, full batches",
        "MLP, Poisson",
        "LayerNorm, Adam",
        "noise schedule that is accounted",
        "averaged weights",
        "Opacus, full batches",
        "make_private",
        "Laplace mechanism (black box)",
        "report noisy max (black box)",
    ),
    "further.FURTHER": (
        "noise orthogonal to the update",
        "noise from one of four seeds",
        "clipped by the squared norm",
        "each record mixed with another record of its batch (mixup)",
        "steps with empty batches skipped",
        "losses in a dictionary on the model",
        "noise seeded by the data (black box)",
    ),
    "further.FURTHER_CORRECT": ("noise drawn ahead", "wide steps, Adagrad"),
    "independent.INDEPENDENT": (
        "features selected by private variance",
        "padding counted as records",
        "growing threshold, constant noise",
        "noise in bfloat16",
        "incomplete microbatch dropped",
        "LBFGS with three evaluations in a step, but only one recorded",
        "Opacus's inner optimizer called directly",
    ),
    "independent.INDEPENDENT_CORRECT": ("tied weights", "LBFGS, one evaluation"),
    "reported.REPORTED": (
        "mean gradient without noise left in p.grad",
        "ghost clipping, wrong norm of a bias",
        "features divided by their largest private value",
        "rounded training accuracy returned",
    ),
    "second_tester.SECOND_TESTER": (
        "missing values filled with the private mean",
        "layers scaled by gradient norms without noise (LARS)",
        "epsilon of one step claimed for sixteen steps",
        "training loss in a report returned as bytes",
    ),
    "second_tester.SECOND_TESTER_CORRECT": ("mean of four noises", "GDP accountant"),
    "second_tester.SECOND_TESTER_ACCUSED": ("mean subtracted from the noisy gradient",),
    "unseen.UNSEEN": (
        "noise shifted to sum to zero",
        "outputs for the training records returned",
        "majority vote with a fifth of the noise (black box)",
    ),
    "unseen.UNSEEN_CORRECT": ("public rotation of the features", "randomised response (black box)"),
    "unseen.UNSEEN_ACCUSED": ("largest noisy coordinates kept",),
    "broken_trainings.BROKEN": (
        "no noise added",
        "noise from a constant seed",
        "batch normalisation",
        "empty batches drawn again",
        "exact loss in the log",
        "Opacus, noise on the first layer only",
    ),
    "broken_trainings.UNSEEN": ("shuffled batches",),
    "broken_trainings.CORRECT": ("full batches", "sampled batches", "Opacus"),
}
"""Names of loops, by the table that holds them."""

_FEW = 80
_WITH_MISTAKES = {"BROKEN", "FURTHER", "INDEPENDENT", "REPORTED", "SECOND_TESTER", "UNSEEN"}

QUICK = {
    "noise from a constant seed",
    "full batches",
    "report noisy max (black box)",
    "majority vote with a fifth of the noise (black box)",
    "one noise number for each row",
    "exact mean next to noisy coefficients (black box)",
    "noise seeded by the data (black box)",
    "Laplace mechanism (black box)",
    "growing threshold, constant noise",
    "Opacus's inner optimizer called directly",
}


def verdict(table: str, name: str) -> dict[str, Any]:
    """Whether a loop is reported as broken, and the premises of the findings."""
    control, data = _control(table, name)
    relation = getattr(control, "relation", "add-remove")
    trials = None if table.split(".")[-1] in _WITH_MISTAKES else _FEW
    # Time limits count CPU time, so that the results do not depend on what else the machine does.
    with mock.patch.object(time, "perf_counter", time.process_time), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = audit.check(control.train, data, relation=relation, jobs=1, trials=trials)
    report = result.premises
    assert report is not None
    return {
        "broken": result.broken,
        "inconclusive": report.inconclusive,
        "premises": sorted({finding.premise for finding in report.findings}),
    }


def _control(table: str, name: str) -> tuple[Any, Any]:
    """A training function with its settings, and its records."""
    module_name, _, variable = table.partition(".")
    root = Path(__file__).parents[2]
    if module_name == "broken_trainings":
        folder = str(root / "tests" / "loop")
        with mock.patch.object(sys, "path", [folder, *sys.path]):
            module = importlib.import_module(module_name)
        control = getattr(module, variable)[name]
        return control, module.data()
    with mock.patch.object(sys, "path", [str(root), *sys.path]):
        module = importlib.import_module(f"benchmarks.training_loops.{module_name}")
    control = getattr(module, variable)[name]
    return control, control.data()


def entries() -> dict[str, Entry]:
    """The entries of this family."""
    return {
        f"{table} | {name}": Entry(
            lambda table=table, name=name: verdict(table, name),  # type: ignore[misc]
            is_quick=name in QUICK,
        )
        for table, names in LOOPS.items()
        for name in names
    }

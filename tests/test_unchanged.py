"""Numbers of earlier versions, which a change of code must not change.

`python -m tests.test_unchanged` rewrites them. This is allowed only for a corrected error, or for a
search that ends elsewhere within its tolerance. The change log then states the number and the
reason.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from audit import accounting, lower_bounds, repetitions, upper_bounds
from audit.accounting import Mechanism

NUMBERS = Path(__file__).with_name("numbers.json")

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
LAWS = (
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
SETTINGS = [
    *(("gaussian 0.24721", law, 1e-5) for law in LAWS),
    *(("gaussian 1", law, 1e-2) for law in LAWS[1:9:2]),
    *((base, LAWS[0], 1e-5) for base in BASES if base != "gaussian 0.24721"),
]


def upper() -> dict[str, float]:
    found = {}
    for name, spec, delta in SETTINGS:
        law = repetitions.parse_repetitions(spec)
        for row in upper_bounds.all_upper_bounds(BASES[name], law, delta):
            if row.applies:
                found[f"{name} {spec} {delta:g} {row.name}"] = row.epsilon
    return found


def games() -> dict[str, tuple[np.ndarray, np.ndarray]]:
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


def lower() -> dict[str, float]:
    law = repetitions.parse_repetitions("tnb:0,0.01")
    found = {}
    for name, (without, with_record) in games().items():
        given = {
            "plain": {},
            "tuned": {"protocol": law, "mu": 1.0},
            "both": {"direction": "both"},
            "split": {"protocol": law, "threshold": -0.5, "split_top": 1.5},
            "delta": {"delta": 0.01, "confidence": 0.9},
        }
        for how, options in given.items():
            for bound in lower_bounds.all_lower_bounds(
                out_scores=without, in_scores=with_record, **options
            ):
                found[f"{name} {how} {bound.key}"] = bound.epsilon
        for bound in lower_bounds.pooled_bounds(without, with_record, law):
            found[f"{name} pooled {bound.key}"] = bound.epsilon
    return found


def trials() -> dict[str, list[float]]:
    """The trials of small audits; the last digits of trained models depend on the processor."""
    from audit.game import blocks, play, setup
    from audit.run import parse

    common = ["--trials", "40", "--repeats", "1", "--epsilon", "2", "--steps", "5"]
    small = ["--dataset", "DIGITS", "--train-size", "30", "--validation-size", "20"]
    audits = {
        "reduced": ["--threat", "ETCV", "--canary", "dirac"],
        "worst": ["--threat", "ETCV", "--canary", "dirac", "--score", "worst-order"],
        "batched": ["--threat", "ETCV", "--canary", "dirac", "--engine", "batched", *small],
        "projected": ["--threat", "ETCV", "--canary", "input", *small],
        "NTNV": ["--threat", "NTNV", "--canary", "input", "--model", "logistic", *small],
        "sampled": [
            *["--threat", "NTCV", "--canary", "dirac", "--model", "logistic"],
            *["--sampling-rate", "0.2", *small],
        ],
    }
    kept = ("trial", "bit", "runs", "chosen", "score", "lambda_a", "lambda_b", "lambda_c")
    found = {}
    for name, arguments in audits.items():
        (config,) = parse([*arguments, *common])
        for block in blocks.all_blocks(config.workload, setup.set_up(config, 0).engine.name):
            (games,) = play.play(config, block)
            for key in kept:
                values = np.nan_to_num(getattr(games, key).astype(float), neginf=-1e300)
                found[f"{name} {block.name} {key}"] = [float(f"{value:.9g}") for value in values]
    return found


# Lower bounds solve twice, and exp() differs between processors: they change by 2e-9.
@pytest.mark.parametrize(
    ("kind", "rel"), [pytest.param("upper", 1e-9, marks=pytest.mark.slow), ("lower", 1e-8)]
)
def test_bounds_are_those_of_the_first_version(kind: str, rel: float) -> None:
    known = json.loads(NUMBERS.read_text())[kind]
    found = {"upper": upper, "lower": lower}[kind]()
    assert set(known) <= set(found)
    changed = {
        name: (value, found[name])
        for name, value in known.items()
        if not math.isclose(value, found[name], rel_tol=rel, abs_tol=1e-12)
    }
    assert not changed


def test_trials_are_those_of_the_first_version() -> None:
    known = json.loads(NUMBERS.read_text())["trials"]
    found = trials()
    assert set(known) == set(found)
    for name, values in known.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


if __name__ == "__main__":
    numbers = {"upper": upper(), "lower": lower(), "trials": trials()}
    NUMBERS.write_text(json.dumps(numbers, separators=(",", ":")).replace("],", "],\n") + "\n")

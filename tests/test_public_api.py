"""The names that `import audit` offers."""

import importlib
import inspect
import math
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_origin

import numpy as np
import pytest

import audit
from audit import (
    accounting,
    certificate,
    checks,
    lower_bounds,
    protocols,
    simulation,
    tuning,
    upper_bounds,
)
from audit.accounting import GaussianMechanism
from audit.repetitions import parse_repetitions
from threat_models import datasets


def test_every_public_name_is_importable_and_documented() -> None:
    for name in audit.__all__:
        found = getattr(audit, name)
        assert found.__doc__, name
    assert set(audit.__all__) == set(audit._HOME_OF)
    assert set(dir(audit)) == {*audit.__all__, "__version__"}


@pytest.mark.thorough
def test_subpackages_are_attributes() -> None:
    assert audit.upper_bounds.tuning_cost is audit.tuning_cost
    with pytest.raises(AttributeError, match="no attribute 'upper_bound'"):
        _ = audit.upper_bound
    # In a process of its own, because other tests import the adapters.
    script = "import audit; audit.integrations.optuna.PrivateStudy, audit.integrations.opacus"
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="no attribute 'wandb'"):
        _ = audit.integrations.wandb


def test_importing_the_package_imports_nothing_else() -> None:
    script = "import sys, audit; print('numpy' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert done.stdout.split() == [b"False", b"False"]


_HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**400,
    math.nan,
    "x",
    b"x",
    [],
    [1, 2],
    {"a": 1},
    1j,
    np.ones(2),
)
"""Values of the wrong kind. Those that are right for a parameter must give a result."""
_SCORES = np.random.default_rng(0).normal(size=200)
_CALLS = {
    audit.tuning_cost: {"base": GaussianMechanism(0.5), "protocol": "grid:3", "delta": 1e-5},
    audit.calibrate_noise: {
        "protocol": "fixed:5",
        "target_epsilon": 3.0,
        "target_delta": 1e-5,
        "steps": 10,
        "sampling_rate": 1.0,
        "neighbours": "zero-out",
    },
    audit.lower_bound: {
        "out_scores": _SCORES,
        "in_scores": _SCORES + 1.0,
        "delta": 1e-5,
        "confidence": 0.95,
    },
    audit.cost_of_trials: {
        "source": [GaussianMechanism(0.5)] * 3,
        "chosen": "random",
        "delta": 1e-5,
        "protocol": None,
        "prior": None,
        "cap": None,
        "budgets": None,
    },
    audit.Budget: {"cap": 3.0, "delta": 1e-5, "expected": None},
    audit.DpSgd: {"noise_multiplier": 1.0, "steps": 10, "neighbours": "add-remove"},
    audit.Study: {
        "space": {"lr": [0.1, 1.0]},
        "protocol": "fixed:5",
        "delta": 1e-5,
        "base": GaussianMechanism(0.5),
        "scored_on": "public",
        "folder": None,
        "seed": 1,
    },
    upper_bounds.until_accepted.gaussian_schedule: {"steps": [0.25, 0.5], "delta": 1e-5},
    lower_bounds.trials_needed: {"epsilon": 1.0, "delta": 1e-5, "confidence": 0.95},
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", _CALLS, ids=lambda function: function.__name__)
def test_a_wrong_argument_is_named_in_one_line_by_invalid_input(
    function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a folder of a study may be made
    for name in _CALLS[function]:
        for value in _HOSTILE:
            message = name
            try:
                function(**{**_CALLS[function], name: value})  # type: ignore[dict-item]
            except audit.AuditError as error:
                message = str(error)
            assert name in message, (name, value, message)
            assert "\n" not in message


def _public() -> Iterator[tuple[str, Any]]:
    """Public functions, classes and methods, with their names."""
    packages = [f"audit.{one.name}" for one in pkgutil.iter_modules(audit.__path__)]
    for package in ("audit", *packages, "threat_models.datasets"):
        if package.endswith((".app", ".bounds", ".compare", ".run", ".verify", "__main__")):
            continue  # commands
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            if callable(found) and get_origin(found) is None:
                yield name, found
            for method, function in vars(found).items() if inspect.isclass(found) else ():
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{name}.{method}", function


def _study() -> audit.Study:
    return audit.Study(**_CALLS[audit.Study])  # type: ignore[arg-type]


def _train(trial: audit.Trial) -> audit.Outcome:
    return audit.Outcome(1.0)


_COIN, _RECORDS = [0.75, 0.25], (np.ones((3, 2)), np.zeros(3, int))
_PAIR = GaussianMechanism(1.0).pairs[0]
_FLAGS: dict[tuple[str, str], Callable[..., Any]] = {
    ("cost_of_trials", "drop_last"): lambda **flag: audit.cost_of_trials([{"gdp_mu": 1}], **flag),
    ("Study", "keep"): lambda **flag: audit.Study(**_CALLS[audit.Study], **flag),
    ("Study.rehearse", "test"): lambda **flag: _study().rehearse(_train, **flag),
    ("Study.rehearse", "private"): lambda **flag: _study().rehearse(_train, **flag),
    ("Study.run", "progress"): lambda **flag: _study().run(_train, **flag),
    ("Study.run", "rehearse"): lambda **flag: _study().run(_train, **flag),
    ("check", "attack"): lambda **flag: audit.check(min, _RECORDS, **flag),
    ("check", "premises"): lambda **flag: audit.check(min, _RECORDS, **flag),
    ("script", "allow_writes"): lambda **flag: audit.script(__file__, **flag),
    ("check_one_run", "dirac"): lambda **flag: audit.check_one_run(min, _RECORDS, **flag),
    ("best_of_runs", "keep"): lambda **flag: simulation.best_of_runs(
        lambda batch: [],
        parse_repetitions("fixed:1"),
        1,
        np.ones(1, bool),
        np.random.default_rng(0),
        **flag,
    ),
    ("DiscreteMechanism", "directed"): lambda **flag: accounting.DiscreteMechanism(
        _COIN, _COIN[::-1], **flag
    ),
    ("LossDistribution", "directed"): lambda **flag: accounting.LossDistribution(
        [-1.0, 1.0], [0.2689414, 0.7310586], **flag
    ),
    ("RandomAllocation", "fixed"): lambda **flag: accounting.RandomAllocation(1.0, 9, 2, **flag),
    ("NoisyMax", "monotone"): lambda **flag: protocols.NoisyMax(3, **flag),
    ("Private", "disjoint"): lambda **flag: tuning.Private(1.0, 1.0, **flag),
    ("StudyFacts", "seeded"): lambda **flag: certificate.StudyFacts({}, **flag),
    ("StudyFacts", "key_kept"): lambda **flag: certificate.StudyFacts({}, **flag),
    ("FoldCurve", "fine"): lambda **flag: upper_bounds.FoldCurve(
        _PAIR, parse_repetitions("fixed:3"), 2, 1.0, 1e-5, **flag
    ),
    ("SubsetCurve", "on_all"): lambda **flag: upper_bounds.SubsetCurve(
        _PAIR, _PAIR, _PAIR, 0.5, **flag
    ),
    ("load", "train"): lambda **flag: datasets.load("DIGITS", **flag),
}
_RESULTS_AND_INTERNALS = {
    "Claim",
    "Layer.backward",
    "RemoteFile",
    "Validity",
    "facts_of_game",
    "locked",
}


_NO_FLAGS: tuple[Any, ...] = ("no", "", 0, 1.0, None, [], np.ones(2, bool))


@pytest.mark.filterwarnings("ignore")
def test_text_and_numbers_are_refused_as_flags() -> None:
    flags = {
        (name, parameter.name)
        for name, function in _public()
        if name not in _RESULTS_AND_INTERNALS
        for parameter in inspect.signature(function).parameters.values()
        if parameter.annotation in (bool, "bool")
    }
    assert flags == _FLAGS.keys()
    for (_, flag), call in _FLAGS.items():
        for value in _NO_FLAGS:
            with pytest.raises(audit.AuditError, match=f"^{flag} must be True or False, got "):
                call(**{flag: value})
    assert protocols.NoisyMax(3, monotone=np.True_).monotone is True  # type: ignore[arg-type]


def test_a_confidence_near_zero_gives_a_bound() -> None:
    found = audit.all_lower_bounds(
        out_scores=_SCORES, in_scores=_SCORES + 1.0, delta=1e-5, confidence=1e-300
    )
    assert all(bound.epsilon >= 0.0 for bound in found)


def test_tensors_that_hold_no_number_are_refused() -> None:
    torch = pytest.importorskip("torch")
    for value in (torch.tensor(True), torch.tensor(1 + 5j)):
        with pytest.raises(ValueError, match="seed must be a whole number >= 0, got "):
            checks.integer("seed", value, 0)
        with pytest.raises(ValueError, match=r"rate must be in \(0, 1\), got"):
            checks.interval("rate", value, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"^scores must be numbers, got"):
        checks.numbers("scores", torch.zeros(2, device="meta"))

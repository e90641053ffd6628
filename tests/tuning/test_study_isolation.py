"""Isolation of a run: random generators, output and leftovers on the model."""

import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from light_runs import noisy
from opacus import PrivacyEngine
from study_helpers import (
    study,
)

from audit import tuning
from audit.user_code import secret_global_seed


def test_noise_does_not_depend_on_seeds_of_the_script() -> None:
    def train(trial: Any) -> Any:
        drawn = random.random(), np.random.rand(), float(torch.rand(1))  # noqa: NPY002
        return tuning.Outcome(-drawn[2], drawn)

    def drawn_after_seeding(**settings: Any) -> Any:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        return study(**settings).run(train).model, float(torch.rand(1))

    torch.manual_seed(0)
    first = float(torch.rand(1))
    (one, after), (two, _) = drawn_after_seeding(), drawn_after_seeding()
    assert not set(one) & set(two)
    assert after == first  # later draws do not depend on the runs
    assert drawn_after_seeding(seed=3)[0] == drawn_after_seeding(seed=3)[0]


def test_existing_devices_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    trials = []
    study(protocol="fixed:2").run(lambda trial: trials.append(trial) or noisy(trial))
    assert seeded == [secret_global_seed(trial.seed) for trial in trials]


def test_a_generator_with_the_seed_of_a_run_repeats_no_global_one() -> None:
    # The noise would otherwise be a function of the initial weights, which are no secret.
    def train(trial: Any) -> Any:
        equal = [
            torch.rand(3).equal(torch.rand(3, generator=torch.Generator().manual_seed(trial.seed))),
            random.random() == random.Random(trial.seed).random(),
            np.random.rand() == np.random.RandomState(trial.seed % 2**32).rand(),  # noqa: NPY002
        ]
        assert not any(equal)
        return noisy(trial)

    assert study().run(train).candidate is not None


def test_runs_that_seed_torch_equally_end_the_study() -> None:
    def train(trial: Any) -> Any:
        torch.manual_seed(constant or trial.seed % 2**32)
        return noisy(trial)

    constant = 42
    with pytest.raises(tuning.StudyAborted, match="got two runs that seeded torch equally"):
        study().run(train)
    constant = None
    assert study().run(train).candidate is not None


def test_released_modules_hold_no_gradient_of_a_single_record() -> None:
    def train(trial: Any) -> Any:
        module = torch.nn.Linear(4, 2)
        engine = PrivacyEngine()
        wrapped, optimizer, _ = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(records, batch_size=4),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
        wrapped(records.tensors[0]).sum().backward()
        optimizer.step()
        wrapped(records.tensors[0])  # a forward pass without a backward pass
        left.append([set(vars(one)) for one in (*module.parameters(), module)])
        return tuning.Outcome(1.0, {"module": wrapped, "inside": [module, optimizer]})

    records = torch.utils.data.TensorDataset(torch.rand(8, 4))
    left: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = study(protocol="fixed:1").run(train)
    module = best.model["inside"][0]
    assert [{"grad_sample"} <= names for names in left[0]] == [True, True, False]
    assert "activations" in left[0][2]  # else the test tests nothing
    for one in (*module.parameters(), module, best.model["module"]):
        assert not {"grad_sample", "summed_grad", "activations"} & set(vars(one))
        assert getattr(one, "grad", None) is None
    assert module(torch.ones(1, 4)).shape == (1, 2)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("random", lambda: random.seed(0)),
        ("random", lambda: random.setstate(random.Random(0).getstate())),
        ("numpy.random", lambda: np.random.seed(0)),  # noqa: NPY002
        ("numpy.random", lambda: np.random.set_state(np.random.RandomState(0).get_state())),  # noqa: NPY002
        ("torch", lambda: torch.manual_seed(0)),
    ],
)
def test_runs_that_seed_a_global_generator_equally_end_the_study(
    name: str, seed: Callable[..., Any]
) -> None:
    def train(trial: Any) -> Any:
        seed()
        return noisy(trial)

    with pytest.raises(tuning.StudyAborted, match=f"got two runs that seeded {name} equally"):
        study().run(train)


def test_equal_seeds_are_detected_after_any_number_of_draws() -> None:
    def train(trial: Any) -> Any:
        np.random.seed(0)  # noqa: NPY002
        np.random.rand(trial.seed % 1000)  # noqa: NPY002
        return noisy(trial)

    with pytest.raises(tuning.StudyAborted, match=r"seeded numpy\.random equally"):
        study().run(train)


def test_calls_of_a_captured_seed_function_are_detected() -> None:
    captured = random.seed

    def train(trial: Any) -> Any:
        captured(0)
        return noisy(trial)

    with pytest.raises(tuning.StudyAborted, match="seeded random equally"):
        study().run(train)


def test_generators_seeded_from_the_trial_are_allowed_and_restored() -> None:
    def train(trial: Any) -> Any:
        random.seed(trial.seed)
        np.random.seed(trial.seed % 2**32)  # noqa: NPY002
        torch.manual_seed(trial.seed)
        return noisy(trial)

    seeds = random.seed, np.random.seed
    assert study().run(train).candidate is not None
    assert seeds == (random.seed, np.random.seed)


THREADS = """
import logging, sys, threading, time
from audit import accounting, tuning

logging.basicConfig(stream=sys.stdout)
over = threading.Event()

def late():
    over.wait()
    print("a loser's secret")
    print("a loser's secret", file=sys.stderr)
    logging.getLogger("late").error("a loser's secret")

def early(wait):
    time.sleep(wait)
    print("a secret between runs", flush=True)

threads = []

def train(trial):
    for thread in (threading.Thread(target=late, daemon=True),
                   threading.Thread(target=early, args=(0.01,))):
        thread.start()
        threads.append(thread)
    return tuning.Outcome(trial.candidate["level"])

study = tuning.Study({"level": [1, 2]}, "fixed:5", base=accounting.GaussianMechanism(0.5),
                     folder=None)
best = study.run(train)
over.set()
for thread in threads:
    thread.join()
print("the answer")
logging.getLogger("main").error("an error of the script")
"""


@pytest.mark.thorough
def test_output_of_threads_that_outlive_their_run_is_hidden() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "the answer\nERROR:main:an error of the script\n"
    assert done.stderr == ""


def test_streams_are_restored_if_no_thread_is_left() -> None:
    before = sys.stdout, sys.stderr
    study().run(noisy)
    assert (sys.stdout, sys.stderr) == before

"""Errors of the user's functions, and rehearsals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from light_runs import noisy
from study_helpers import (
    BASE,
    study,
    subset_run,
)

from audit import tuning
from audit.tuning.rehearsal import synthetic


class Stop(BaseException):
    """An error that `except Exception` does not catch."""


def test_any_exception_of_a_run_counts_and_its_message_is_not_shown() -> None:
    def train(trial: Any) -> Any:
        calls.append(trial)
        if len(calls) < 3:
            raise Stop("a private record")
        return noisy(trial)

    calls: list[Any] = []
    assert study(protocol="fixed:4").run(train).candidate is not None
    assert len(calls) == 4


def test_an_interrupt_stops_the_study_without_a_message_and_it_resumes(tmp_path: Path) -> None:
    def train(trial: Any) -> Any:
        if not stopped:
            stopped.append(trial)
            raise KeyboardInterrupt("a private record")
        return noisy(trial)

    stopped: list[Any] = []
    with pytest.raises(KeyboardInterrupt) as caught:
        study(folder=tmp_path / "s").run(train)
    assert caught.value.args == ()
    assert caught.value.__context__ is caught.value.__cause__ is None
    assert study(folder=tmp_path / "s").run(train).candidate is not None


def test_a_study_whose_runs_all_raise_is_aborted_and_has_no_certificate(tmp_path: Path) -> None:
    voided = study(folder=tmp_path / "s")
    for _ in range(2):
        with pytest.raises(
            tuning.StudyAborted, match=r"every run raised an exception.*study\.rehearse"
        ):
            voided.run(lambda trial: trial.candiate)
    with pytest.raises(ValueError, match="certificate needs a study that was run to its end"):
        voided.certificate  # noqa: B018
    # A run that only diverged ranks higher, and its reason is reported: no candidate was chosen.
    calls = []

    def train(trial: Any) -> Any:
        calls.append(trial)
        return tuning.Outcome(float("nan")) if len(calls) == 3 else 1 / 0

    with pytest.warns(UserWarning, match="no candidate was chosen"):
        assert study().run(train) == tuning.Best()


@pytest.mark.parametrize(
    ("accept", "words"),
    [
        (lambda outcome: outcome.scroe > 0, "got an exception; study.rehearse shows it"),
        (
            lambda outcome: None,
            "accept must return True or False for every outcome, got None",
        ),
    ],
)
def test_an_accept_that_raises_or_returns_nothing_ends_the_study(
    accept: Callable[..., Any], words: str
) -> None:
    with pytest.raises(tuning.StudyAborted, match=words):
        study(protocol="until:0.5").run(noisy, accept=accept, rehearse=False)


def by_mean(trial: Any, records: Any) -> Any:
    features, labels = records
    return tuning.Outcome(float(features.mean()), (features.shape, labels.dtype, trial.seed))


PRIVATE = (np.full((30, 2), 1e6), np.full(30, 7))


def test_the_rehearsal_uses_synthetic_records_and_the_study_the_given_ones() -> None:
    seen = []

    def train(trial: Any, records: Any) -> Any:
        seen.append(records)
        return by_mean(trial, records)

    best = study(protocol="fixed:3").run(train, records=PRIVATE)
    assert best.score == 1e6
    rehearsed, given = seen[:2], seen[2:]
    assert all(one is PRIVATE for one in given)
    assert len(given) == 3
    for features, labels in rehearsed:
        assert features.shape == (30, 2)
        assert np.abs(features).max() < 10.0  # made from shapes alone
        assert set(labels.tolist()) == {0, 1}


@pytest.mark.slow
def test_a_rehearsal_may_have_fewer_steps_than_the_study() -> None:
    seen = []

    def train(trial: Any) -> Any:
        seen.append(trial.steps)
        return noisy(trial)

    long_study = study(base=None, steps=9, epsilon=3.0, delta=1e-5, protocol="fixed:2")
    long_study.rehearse(train, steps=4)
    long_study.rehearse(train, steps=12)  # not more than the study
    long_study.run(train)
    assert seen == [4, 4, 9, 9, 9, 9]
    with pytest.raises(ValueError, match="steps must be a whole number >= 1, got 0"):
        long_study.rehearse(train, steps=0)
    with pytest.raises(ValueError, match="steps must not be given if the base is not DP-SGD"):
        study().rehearse(train, steps=4)


def test_the_rehearsal_finds_a_typo_before_anything_is_drawn(tmp_path: Path) -> None:
    def train(trial: Any, records: Any) -> Any:
        return tuning.Outcome(records.maen())

    one = study(folder=tmp_path / "s")
    with pytest.raises(AttributeError, match="maen") as caught:
        one.run(train, records=PRIVATE[0])
    assert "no private record was read" in caught.value.__notes__[0]
    assert not (tmp_path / "s" / "state.json").exists()
    with pytest.raises(tuning.StudyAborted, match="every run raised"):
        one.run(train, records=PRIVATE[0], rehearse=False)


@pytest.mark.parametrize(
    ("train", "settings", "words"),
    [
        (lambda trial, x: 0.5, {}, "train must return a tuning.Outcome, got a float"),
        (lambda trial, x: None, {}, "train must return a tuning.Outcome, got None"),
        (
            lambda trial, x: np.random.seed(0) or noisy(trial),  # noqa: NPY002
            {},
            r"two runs that seeded numpy\.random equally",
        ),
        (lambda trial, x: noisy(trial), {"accept": lambda one: None}, "accept must return True"),
        (lambda trial, x: noisy(trial), {"accept": lambda one: one.no}, "has no attribute 'no'"),
        (
            lambda trial, x: noisy(trial),
            {"save": lambda model, path: None, "load": Path.read_bytes},
            "No such file",
        ),
    ],
)
def test_the_rehearsal_reports_errors_that_would_end_or_spoil_the_study(
    train: Callable[..., Any], settings: dict[str, Any], words: str
) -> None:
    protocol = "until:0.5" if "accept" in settings else "fixed:6"
    with pytest.raises((ValueError, AttributeError, OSError), match=words):
        study(protocol=protocol).rehearse(train, np.ones(3), **settings)


def test_rehearsal_includes_the_final_run() -> None:
    seen = []
    study(protocol="subset:0.5/fixed:2").rehearse(
        lambda trial, records: seen.append(trial.is_final) or subset_run(trial), np.ones(3)
    )
    assert seen == [False, False, True]


def test_until_accepted_is_rehearsed_first_or_refused() -> None:
    one = study(protocol="until:0.5")
    with pytest.raises(ValueError, match=r"train must be rehearsed with until:0\.5") as caught:
        one.run(noisy, accept=lambda outcome: True)
    assert "\n" not in str(caught.value)
    one.rehearse(noisy, accept=lambda outcome: outcome.score > -9)
    assert one.run(noisy, accept=lambda outcome: True).candidate is not None


def test_synthetic_records_depend_only_on_the_shape_of_the_given_ones() -> None:
    given = {
        "x": torch.full((4, 3), 5.0, dtype=torch.float64),
        "y": [np.full(4, 9, dtype=np.int16), None, 3.5],
        "data": torch.utils.data.TensorDataset(torch.full((2,), 8)),
    }
    made = synthetic(given)
    assert made["x"].shape == (4, 3)
    assert made["x"].dtype == torch.float64
    assert not (made["x"] == 5.0).any()
    assert made["y"][0].dtype == np.int16
    assert set(made["y"][0].tolist()) <= {0, 1}
    assert made["y"][2] != 3.5
    assert made["data"].tensors[0].max() <= 1
    for unknown in (object(), "text", np.array(["a"]), [object()]):
        with pytest.raises(ValueError, match=r"records must be arrays.*rehearse=False"):
            synthetic(unknown)


def test_an_objective_with_two_values_ends_the_study() -> None:
    from audit.integrations.optuna import PrivateStudy

    made = PrivateStudy("fixed:2", base=BASE, folder=None)
    with pytest.raises(tuning.StudyAborted, match="objective must return one number, got a tuple"):
        made.optimize(lambda trial: (1.0, 2.0))  # type: ignore[return-value]
    seen = []
    made = PrivateStudy("fixed:2", base=BASE, folder=None)
    with pytest.raises(tuning.ProtocolViolation, match="objective must return one number"):
        made.optimize(lambda trial, x: seen.append(x) or (1.0, 2.0), records=PRIVATE[0])  # type: ignore[return-value]
    assert np.abs(seen[0]).max() < 10.0  # before a private record is used
    assert len(seen) == 1

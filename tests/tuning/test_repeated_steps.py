"""Steps that are repeated have new noise and new batches, and all of them are counted."""

import itertools
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_helpers import DP_SGD, STEPS, Secure, study, trial_in

from audit import accounting, tuning
from audit.errors import InvalidInput, PrivacyLeak
from audit.tuning import snapshots
from audit.tuning.checkpoints import PastAttempt, steps_taken
from audit.tuning.play import Task, attempts

BASE = DP_SGD


def test_all_attempts_together_never_exceed_the_count() -> None:
    # Every history of three attempts at six steps: each loads the last state, or none, saves at
    # some steps, and is killed. The true number of steps never exceeds the stated one.
    total, interval = 6, 2
    for is_limited in (False, True):
        for kills in itertools.product(range(1, 7), repeat=2):
            for loads in itertools.product((False, True), repeat=2):
                for gaps in itertools.product((1, 2, 3), repeat=2):
                    state, true, history = 0, 0, []
                    for kill, is_loaded, gap in zip(kills, loads, gaps, strict=True):
                        start = state if is_loaded else 0
                        saved, step = start, start
                        while step < min(start + kill, total):
                            if is_limited and step - saved == interval:
                                break  # the next step raises an error
                            step += 1
                            true += 1
                            if (step - start) % gap == 0:
                                saved = state = step
                        history.append(PastAttempt(start, saved, limited=is_limited))
                    counted = steps_taken(history, total, interval, same_noise=False)
                    assert counted >= true
                    if is_limited:
                        assert counted <= true + 2 * interval


def test_attempts_with_the_same_noise_are_one() -> None:
    here, there = {"numpy": "2.0"}, {"numpy": "1.0"}
    first = PastAttempt(machine=here)
    again = PastAttempt(4, 4, machine=here)
    assert steps_taken([first, again], 6, None, same_noise=True) == 6
    assert steps_taken([first, again], 6, None, same_noise=False) == 6 + 2
    renewed = PastAttempt(4, 4, renewed=True, machine=there)
    assert steps_taken([first, again, renewed], 6, None, same_noise=True) == 6 + 2
    # An attempt that begins again repeats the noise of the first one, not that of the renewed one.
    restart = PastAttempt(machine=there)
    assert steps_taken([first, renewed, restart], 6, None, same_noise=True) == 6 + 2 + 6
    refused = PastAttempt(refused=True, machine=there)
    assert steps_taken([first, refused], 6, None, same_noise=True) == 6


@pytest.mark.parametrize("draws_new_noise", [False, True])
def test_the_same_noise_with_another_rounding_is_not_a_repeated_step(draws_new_noise: bool) -> None:
    # A run is one noisy sum on a grid of spacing h. On the first machine, the sum of the records
    # rounds to 0 with and without the record; on the second one, it rounds to h with the record.
    # Each sum alone is private. The first attempt is killed if its result is an even multiple of h.
    # With the same noise, the resumed run then releases an odd multiple if the record is there, and
    # an even one otherwise. Exact masses of the released multiples:
    grid = np.arange(-4000, 4001)
    noise = np.exp(-0.5 * (grid * 0.002) ** 2)
    noise /= noise.sum()
    even = grid % 2 == 0

    def released(shift: int) -> Any:
        resumed = noise * noise[even].sum() if draws_new_noise else np.where(even, noise, 0.0)
        return np.where(even, 0.0, noise) + np.roll(resumed, shift)

    epsilon = accounting.DpSgd(1.0, 2).epsilon(1e-5)
    leaked = np.maximum(released(0) - math.exp(epsilon) * released(1), 0.0).sum()
    assert (leaked <= 1e-5) if draws_new_noise else (leaked > 0.49)


def generators() -> dict[str, Any]:
    return {
        "numpy": np.random.default_rng(3),
        "state": np.random.RandomState(3),
        "python": random.Random(3),
        "torch": torch.Generator().manual_seed(3),
        "loader": torch.utils.data.DataLoader(
            torch.arange(4.0),  # type: ignore[arg-type]
            generator=torch.Generator().manual_seed(3),
        ),
    }


def draws(objects: dict[str, Any]) -> dict[str, float]:
    return {
        "numpy": float(objects["numpy"].random()),
        "state": float(objects["state"].random_sample()),
        "python": objects["python"].random(),
        "torch": float(torch.rand(1, generator=objects["torch"])),
        "loader": float(torch.rand(1, generator=objects["loader"].generator)),
        "global torch": float(torch.rand(1)),
        "global numpy": float(np.random.random()),  # noqa: NPY002
        "global python": random.random(),
    }


def test_another_rounding_draws_new_noise_from_every_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = generators()
    trial_in(tmp_path).save_state(4, **first)
    following = draws(first)
    same = generators()
    trial_in(tmp_path).load_state(**same)
    assert draws(same) == following
    monkeypatch.setattr(snapshots, "machine", lambda: {"numpy": "1.0"})
    seen = []
    for _ in range(2):  # every attempt has noise of its own
        restored = generators()
        trial_in(tmp_path, redrawn_steps=4).load_state(**restored)
        seen.append(draws(restored))
        assert not {*seen[-1].values()} & {*following.values()}
    assert not {*seen[0].values()} & {*seen[1].values()}


def test_another_rounding_draws_new_keys_of_jax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax = pytest.importorskip("jax")
    key, keys = jax.random.key(5), jax.random.split(jax.random.key(6), 3)
    trial_in(tmp_path).save_state(4, key=key, nested=[{"keys": keys}], weights=np.ones(2))
    monkeypatch.setattr(snapshots, "machine", lambda: {"numpy": "1.0"})
    state = trial_in(tmp_path, redrawn_steps=2).load_state()
    old = {*jax.random.key_data(jax.numpy.stack([key, *keys])).ravel().tolist()}
    new = [state["key"], *state["nested"][0]["keys"]]
    assert not old & {*jax.random.key_data(jax.numpy.stack(new)).ravel().tolist()}
    np.testing.assert_array_equal(state["weights"], np.ones(2))
    (tmp_path / "old").mkdir()
    monkeypatch.undo()
    trial_in(tmp_path / "old").save_state(4, key=jax.random.PRNGKey(1))
    monkeypatch.setattr(snapshots, "machine", lambda: {"numpy": "1.0"})
    with pytest.raises(InvalidInput, match=r"must be made by jax.random.key"):
        trial_in(tmp_path / "old", redrawn_steps=2).load_state()


def test_jax_on_a_gpu_is_not_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    weights = {"w": [jax.numpy.ones(2)]}
    assert snapshots.reason_to_redraw({"weights": weights}) == ""

    class Device:
        platform = "gpu"

    monkeypatch.setattr(type(weights["w"][0]), "devices", lambda self: {Device()})
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert "not reproducible" in snapshots.reason_to_redraw({"weights": weights})
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    assert snapshots.reason_to_redraw({"weights": weights}) == ""


def test_a_restart_on_another_machine_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would repeat the same noise with another rounding, which no bound covers.
    trial_in(tmp_path)
    trial_in(tmp_path).checkpoints.end()
    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "machine", lambda: {"numpy": "1.0"})
        with pytest.raises(InvalidInput, match=r"\(6 steps\), got 0: it began on a machine with"):
            trial_in(tmp_path)
    trial_in(tmp_path).checkpoints.end()  # the first machine may continue
    monkeypatch.setattr(snapshots, "machine", lambda: {"numpy": "1.0"})
    trial = trial_in(tmp_path, redrawn_steps=12)
    with pytest.raises(InvalidInput, match="load_state must be called before the first step"):
        trial.checkpoints.end()
    trial = trial_in(tmp_path, redrawn_steps=18)
    assert trial.load_state() is None  # draws new noise from the global generators
    trial.checkpoints.end()


def test_a_restart_on_a_gpu_that_the_study_does_not_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A loop without checkpoints shows the study no tensor, so the process decides.
    monkeypatch.setattr(snapshots, "reason_of_process", lambda: "steps on a GPU differ")
    trial_in(tmp_path).checkpoints.end()  # nothing is repeated yet
    with pytest.raises(InvalidInput, match=r"\(6 steps\), got 0: steps on a GPU differ"):
        trial_in(tmp_path).checkpoints.end()
    seen = trial_in(tmp_path)
    seen.save_state(2, weights=torch.zeros(2))  # its objects are on the processor
    seen.checkpoints.end()


def test_a_process_that_uses_a_gpu_is_not_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    assert snapshots.reason_of_process() == ""
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        assert "not reproducible" in snapshots.reason_of_process()
        patch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        assert snapshots.reason_of_process() == ""
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert "XLA_FLAGS" in snapshots.reason_of_process()


@pytest.mark.slow
@pytest.mark.usefixtures("little_work")
@pytest.mark.thin(2)
@pytest.mark.parametrize("from_seed", [False, True])
def test_the_rehearsal_finds_noise_that_a_resumed_run_cannot_renew(from_seed: bool) -> None:
    def train(trial: Any, records: Any) -> Any:
        generator = np.random.default_rng(trial.seed)
        state = trial.load_state(generator=generator) or {"steps": 0, "weight": 0.0}
        weight = state["weight"]
        for step in range(state["steps"], trial.steps):
            if from_seed:
                generator = np.random.default_rng([trial.seed, step])
            weight += generator.normal()
            trial.save_state(step + 1, generator=generator, weight=weight)
        return tuning.Outcome(weight, np.array([weight]))

    settings = {"space": {"lr": [1.0]}, "epsilon": 3.0, "steps": STEPS, "base": None}
    repeating = study(**settings, redrawn_steps=2)
    study(**settings).rehearse(train, np.ones(3))
    if not from_seed:
        repeating.rehearse(train, np.ones(3))
        return
    with pytest.raises(PrivacyLeak, match="must draw its noise from the generators"):
        repeating.rehearse(train, np.ones(3))


def test_going_back_within_a_run_is_a_new_attempt(tmp_path: Path) -> None:
    # A loop that loads its state again when a step displeases it draws among its results.
    trial = trial_in(tmp_path, redrawn_steps=4)
    trial.save_state(4, mode=Secure())
    for _ in range(2):
        assert trial.load_state(mode=Secure()) == {"steps": 4}
    with pytest.raises(InvalidInput, match=r"\(6 steps\), got 4"):
        trial.load_state(mode=Secure())


def test_load_state_comes_before_the_first_step(tmp_path: Path) -> None:
    class Accountant:
        history = ((2.0, 0.5, 3),)

        def get_epsilon(self, delta: float) -> float:
            return math.nan

    with pytest.raises(InvalidInput, match="load_state must be called before the first step"):
        trial_in(tmp_path).load_state(accountant=Accountant())


def test_an_attempt_ends_when_a_later_one_has_begun(tmp_path: Path) -> None:
    # As with Dask, which begins a run again after it has lost contact with a worker.
    first = trial_in(tmp_path, redrawn_steps=20)
    first.load_state(mode=Secure())
    first.save_state(2, mode=Secure())
    second = trial_in(tmp_path, redrawn_steps=20)
    second.load_state(mode=Secure())
    with pytest.raises(InvalidInput, match="must not train one run at the same time"):
        first.save_state(4, mode=Secure())
    second.save_state(4, mode=Secure())
    second.checkpoints.end()


def test_an_error_of_the_journal_ends_a_study_with_workers() -> None:
    def hand_over(task: Any) -> Any:
        raise InvalidInput("folder must be one that can be written")

    def run(trial: Any) -> Any:
        return tuning.Outcome(0.0)

    def tasks() -> Any:
        return iter([Task(run, tuning.Trial({}, BASE, seed=1), 0, (0.0,), 0.0, None)])

    with pytest.raises(InvalidInput, match="folder must be one that can be written"):
        list(attempts(tasks, 2, hand_over))

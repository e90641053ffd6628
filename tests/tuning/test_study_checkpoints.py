"""Checkpoints of one run: a run that is killed and resumed is the same run, or its cost counts."""

import math
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from light_runs import noisy
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from scipy import stats
from study_helpers import DP_SGD, STEPS, Secure, study, trial_in
from torch import nn

from audit import accounting, tuning
from audit.errors import InvalidInput, PrivacyLeak
from audit.tuning import checkpoints, snapshots
from audit.tuning.checkpoints import RUNS, Checkpoints, ResumeRules

BASE = DP_SGD
RECORDS = (torch.randn(12, 3, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 2)


class Kill(BaseException):
    """Represents the end of the process."""


def opacus_run(
    trial: Any, records: Any = RECORDS, kill_at: int = -1, own_generator: bool = False
) -> Any:
    """DP-SGD with momentum and dropout that saves its state after every second step."""
    torch.manual_seed(trial.seed)
    model: Any = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 2))
    engine = PrivacyEngine(accountant="rdp")
    generator = torch.Generator().manual_seed(trial.seed + 1) if own_generator else None
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        data_loader=DPDataLoader(torch.utils.data.TensorDataset(*records), sample_rate=0.5),
        noise_multiplier=trial.noise_multiplier,
        max_grad_norm=1.0,
        noise_generator=generator,
    )
    trial.watch(optimizer, model)
    objects = {"model": model, "optimizer": optimizer, "loader": loader, "engine": engine}
    state = trial.load_state(**objects)
    step = 0 if state is None else state["steps"]
    while step < trial.steps:
        for images, labels in loader:  # two batches, because the rate is one half
            if step == kill_at:
                raise Kill
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
        trial.save_state(step, **objects)
    trial.check(engine, loader, optimizer)
    return tuning.Outcome(float(model(RECORDS[0]).detach().std()), model.state_dict())


def bytes_of(outcome: Any) -> list[bytes]:
    return [value.numpy().tobytes() for value in outcome.model.values()]


@pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook")
@pytest.mark.parametrize("own_generator", [False, True])
def test_a_killed_opacus_run_resumes_as_the_same_run(tmp_path: Path, own_generator: bool) -> None:
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = opacus_run(trial_in(tmp_path / "whole"), own_generator=own_generator)
    for kill_at in (3, 5):  # one step after a checkpoint: this step is lost and repeated
        with pytest.raises(Kill):
            opacus_run(trial_in(tmp_path / "cut"), kill_at=kill_at, own_generator=own_generator)
        torch.rand(9)  # another worker has other global states
        np.random.rand(9)  # noqa: NPY002
    trial = trial_in(tmp_path / "cut")
    resumed = opacus_run(trial, own_generator=own_generator)
    assert trial.checkpoints.resumed_at == 4
    assert bytes_of(resumed) == bytes_of(whole)
    assert resumed.score == whole.score
    assert {"steps", "noise_multiplier", "poisson_sampling"} <= trial.checked


def numpy_run(
    trial: Any, records: Any = None, *, save_generator: bool = True, seed_again: bool = False
) -> Any:
    generator = np.random.default_rng(trial.seed)
    saved = {"generator": generator} if save_generator else {}
    state = trial.load_state(**saved) or {"steps": 0, "weights": np.zeros(4)}
    if seed_again:
        generator = np.random.default_rng(trial.seed)
    weights = state["weights"]
    for step in range(state["steps"], trial.steps):
        weights = weights + generator.normal(size=4)
        trial.save_state(step + 1, weights=weights, **saved)
    return tuning.Outcome(float(weights.sum()), weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"save_generator": False}, "same noise and batches, got another score"),
        ({"seed_again": True}, "same noise and batches, got another score"),  # noise used twice
    ],
)
def test_the_rehearsal_kills_a_run_and_compares(changes: Any, words: str | None) -> None:
    def train(trial: Any, records: Any) -> Any:
        return numpy_run(trial, **changes)

    one = study(base=BASE)
    if words is None:
        assert len(one.rehearse(train, np.ones(3))) == 2
        return
    with pytest.raises(PrivacyLeak, match=words):
        one.rehearse(train, np.ones(3))
    with pytest.raises(PrivacyLeak, match=words):
        study(base=BASE).run(train, records=np.ones(3))


def test_the_rehearsal_finds_a_run_that_never_loads_its_state() -> None:
    def train(trial: Any, records: Any) -> Any:
        trial.save_state(1)
        return noisy(trial)

    with pytest.raises(PrivacyLeak, match=r"train must call trial.load_state"):
        study(base=BASE).rehearse(train, np.ones(3))


@pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook")
def test_the_rehearsal_finds_a_checkpoint_within_an_iteration_over_a_loader() -> None:
    # A new iteration draws a random number first, so the noise of the resumed run is another one.
    def train(trial: Any, records: Any) -> Any:
        torch.manual_seed(trial.seed)
        loader: Any = torch.utils.data.DataLoader(torch.arange(6.0))  # type: ignore[arg-type]
        state = trial.load_state() or {"steps": 0, "weight": torch.zeros(1)}
        weight, step = state["weight"], state["steps"]
        while step < 6:
            for value in loader:
                weight, step = weight + value * torch.randn(1), step + 1
                trial.save_state(step, weight=weight)
                if step == 6:
                    break
        return tuning.Outcome(float(weight), weight)

    with pytest.raises(PrivacyLeak, match="between two iterations over a loader"):
        study(base=BASE).rehearse(train, torch.ones(3))


KILLED = """
import sys, time, numpy as np
from pathlib import Path
from audit import accounting, tuning

def train(trial):
    generator = np.random.default_rng(trial.seed)
    state = trial.load_state(generator=generator) or {"steps": 0, "weights": np.zeros(4)}
    (trial.folder / "seen").open("a").write("x")
    weights = state["weights"]
    for step in range(state["steps"], trial.steps):
        weights = weights + generator.normal(size=4)
        if step % 3 == 2:
            trial.save_state(step + 1, generator=generator, weights=weights)
        with open(sys.argv[2], "a") as log:
            log.write(f"{trial.seed}:{step}:{trial.folder}\\n")
        time.sleep(float(sys.argv[3]))
    return tuning.Outcome(float(weights.sum()), weights.tobytes())

study = tuning.Study({"level": [1, 2]}, "fixed:3", base=accounting.DpSgd(3.0, 20, 0.5), seed=8,
                     folder=sys.argv[1])
best = study.run(train)
print(best.candidate, best.score, best.model.hex(), flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kills",
    [
        [(signal.SIGTERM, 11)],
        pytest.param([(signal.SIGKILL, 5), (signal.SIGTERM, 38)], marks=pytest.mark.slow),
    ],
)
def test_a_preempted_study_resumes_its_run_in_another_process_with_the_same_bytes(
    tmp_path: Path, kills: Any
) -> None:
    log = tmp_path / "log"

    def command(folder: str, log: Path, seconds: float) -> list[str]:
        return [sys.executable, "-c", KILLED, str(tmp_path / folder), str(log), str(seconds)]

    whole = subprocess.run(
        command("whole", tmp_path / "other", 0.0), capture_output=True, text=True, check=True
    ).stdout
    for end, lines in kills:
        process = subprocess.Popen(command("cut", log, 0.05), stdout=subprocess.PIPE, text=True)
        while process.poll() is None and (not log.exists() or log.read_text().count("\n") < lines):
            time.sleep(0.005)
        process.send_signal(end)
        assert process.wait() == -end
        process.stdout.close()  # type: ignore[union-attr]
    # A queue starts the job again, on any node, in any folder.
    done = subprocess.run(
        command("cut", log, 0.0), capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout == whole
    steps = [line.split(":") for line in log.read_text().split()]
    runs = {seed: [int(step) for one, step, _ in steps if one == seed] for seed, _, _ in steps}
    assert len(runs) == 3
    assert all(set(taken) == set(range(20)) for taken in runs.values())
    # An interruption repeats at most the three steps since the checkpoint, and one in flight.
    assert 60 <= sum(map(len, runs.values())) <= 60 + 2 * 4 + 20  # the winner may be trained again
    assert len({(seed, folder) for seed, _, folder in steps}) == 3  # a run keeps its folder
    assert not (tmp_path / "cut").exists()


def test_the_folder_of_a_run_is_private_and_deleted_when_the_run_loses(tmp_path: Path) -> None:
    seen: list[Path] = []

    def train(trial: Any) -> Any:
        (trial.folder / "model").write_text("private")
        for path in (trial.folder, trial.folder.parent, trial.folder.parent.parent):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        seen.append(trial.folder)
        present = [path for path in seen if path.exists()]
        assert len(present) <= 2  # this run and the best one before it
        return tuning.Outcome(-len(seen))

    before = os.umask(0)
    try:
        assert study(folder=tmp_path / "s", keep=True).run(train).score == -1
    finally:
        os.umask(before)
    assert len(set(seen)) == 6
    assert not (tmp_path / "s" / RUNS).exists()


def test_a_run_in_memory_has_a_temporary_folder() -> None:
    seen = []

    def train(trial: Any) -> Any:
        (trial.folder / "model").write_text("private")
        trial.save_state(1, number=3)
        assert trial.load_state() == {"number": 3, "steps": 1}
        seen.append(trial.folder)
        return noisy(trial)

    study(base=BASE).run(train)
    assert len(set(seen)) == 6
    assert not any(path.exists() for path in seen)


def test_prepared_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(InvalidInput, match="folder must be one that can be created"):
        study(folder=tmp_path / "link", base=BASE).run(noisy)

    def train(trial: Any) -> Any:
        folder = trial.checkpoints.folder
        state = folder / "state"
        state.symlink_to(target / "mine")
        assert trial.load_state() is None  # a link is no checkpoint
        trial.save_state(1, number=1)
        assert not state.is_symlink()
        (folder / "files").symlink_to(target)
        trial.folder  # noqa: B018
        raise AssertionError

    with pytest.raises(InvalidInput, match="folder must be one that can be written"):
        study(folder=tmp_path / "s", base=BASE).run(train)
    assert (target / "mine").read_text() == "mine"
    assert [path.name for path in target.iterdir()] == ["mine"]


@pytest.mark.slow
def test_a_full_disk_stops_the_study_and_the_run_has_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    one = study(folder=tmp_path / "s", base=BASE, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr("audit.tuning.checkpoints.write_state", full)
        with pytest.raises(InvalidInput, match=r"No space left on device.*it resumes"):
            one.run(numpy_run)
    assert study(folder=tmp_path / "s", base=BASE, seed=1).run(numpy_run).score == (
        study(base=BASE, seed=1).run(numpy_run).score
    )


def test_a_damaged_checkpoint_begins_the_same_run_again(tmp_path: Path) -> None:
    whole = numpy_run(trial_in(tmp_path))
    path = tmp_path / RUNS / "0" / "state"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    trial = trial_in(tmp_path)
    again = numpy_run(trial)
    assert trial.checkpoints.resumed_at == 0
    assert again.model.tobytes() == whole.model.tobytes()


def secure_run(trial: Any, saved_steps: Any = (2, 4)) -> None:
    state = trial.load_state(optimizer=Secure()) or {"steps": 0}
    for steps in saved_steps:
        if steps > state["steps"]:
            trial.save_state(steps, optimizer=Secure())


@pytest.mark.parametrize(
    ("rules", "resumptions"),
    [
        ({}, 0),
        ({"redrawn_steps": 1}, 0),  # each resumption after step 4 of 6 repeats up to 2 steps
        ({"redrawn_steps": 2}, 1),
        ({"redrawn_steps": 5}, 2),
        ({"redrawn_steps": 2, "checkpoint_every": 2}, 1),
    ],
)
def test_steps_with_other_noise_are_counted_before_they_are_taken(
    tmp_path: Path, rules: Any, resumptions: int
) -> None:
    secure_run(trial_in(tmp_path, **rules))
    for _ in range(resumptions):
        secure_run(trial_in(tmp_path, **rules), ())
    for _ in range(2):  # the refusal remains
        trial = trial_in(tmp_path, **rules)
        with pytest.raises(InvalidInput, match=r"redrawn_steps must be at least.*secure_mode"):
            secure_run(trial, ())
        assert "Study.stop" in trial.checkpoints.error


class Engine:
    """A privacy engine of Opacus' secure mode."""

    secure_mode = True
    history = ((2.0, 0.5, STEPS),)

    def get_epsilon(self, delta: float) -> float:
        return math.nan


def test_a_restart_without_a_checkpoint_counts_all_steps(tmp_path: Path) -> None:
    trial_in(tmp_path).check(Engine())
    with pytest.raises(InvalidInput, match=r"may repeat with other noise \(6 steps\)"):
        trial_in(tmp_path).check(Engine())


def test_a_restart_needs_new_batches(tmp_path: Path) -> None:
    # Two steps with independent noise and the same batch reveal more than two sampled steps.
    trial_in(tmp_path, redrawn_steps=6).check(Engine())
    with pytest.raises(InvalidInput, match=r"load_state must be called.*new noise and new batches"):
        trial_in(tmp_path, redrawn_steps=6).check(Engine())
    trial = trial_in(tmp_path, redrawn_steps=12)
    before = torch.get_rng_state()
    assert trial.load_state(optimizer=Secure()) is None
    assert not torch.equal(torch.get_rng_state(), before)
    trial.check(Engine())


def test_a_worker_without_the_folder_is_refused_if_steps_may_be_repeated(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="folder must be on a disk that every worker sees"):
        trial_in(tmp_path / "unseen", redrawn_steps=6)
    trial = trial_in(tmp_path / "unseen")
    trial.save_state(2, optimizer=Secure())
    trial.checkpoints.is_repeated = True  # as with Dask, which begins a lost run again
    with pytest.raises(InvalidInput, match="this backend may begin a run again"):
        trial.save_state(4, optimizer=Secure())


def test_a_run_that_saves_and_does_not_load_counts_all_its_steps(tmp_path: Path) -> None:
    # It was killed after its checkpoint at step 4 of 6: twelve steps in all, where 8 are paid for.
    rules = {"redrawn_steps": 2, "checkpoint_every": 2}
    first = trial_in(tmp_path, **rules)
    for steps in (2, 4):
        first.save_state(steps, optimizer=Secure())
    second = trial_in(tmp_path, **rules)
    with pytest.raises(InvalidInput, match=r"\(6 steps\), got 2"):
        second.save_state(2, optimizer=Secure())


def test_a_killed_attempt_counts_all_steps_after_its_checkpoint_if_they_are_not_seen(
    tmp_path: Path,
) -> None:
    # It saved after one step. Whether it then took 1 or 5 steps before the kill, no one knows.
    rules = {"redrawn_steps": 4, "checkpoint_every": 1}
    first = trial_in(tmp_path, **rules)
    first.load_state(optimizer=Secure())
    first.save_state(1, optimizer=Secure())
    with pytest.raises(InvalidInput, match=r"\(5 steps\), got 4"):
        trial_in(tmp_path, **rules).load_state(optimizer=Secure())


def test_a_missing_log_counts_as_a_whole_run(tmp_path: Path) -> None:
    rules = {"redrawn_steps": 4}

    def hand_over(times: int) -> Any:
        trial = tuning.Trial({"level": 1}, BASE, seed=7)
        trial.checkpoints = Checkpoints(
            tmp_path / RUNS / "0", STEPS, ResumeRules(**rules), handed_over=times
        )
        trial.checkpoints.hand_over()
        trial.checkpoints.begin()
        return trial

    hand_over(1).save_state(4, optimizer=Secure())
    assert hand_over(2).load_state(optimizer=Secure()) == {"steps": 4}
    (tmp_path / RUNS / "0" / "attempts.jsonl").unlink()
    with pytest.raises(InvalidInput, match=r"\(8 steps\), got 4"):  # two whole runs, less 4 steps
        hand_over(3).load_state(optimizer=Secure())


def system_noise(
    trial: Any, taken: list[int], kill_at: int = -1, *, loads: bool = True, every: int = 10
) -> Any:
    """A loop whose noise is drawn from the operating system, as that of `secure_mode`."""
    source, weight = random.SystemRandom(), 0.0
    state = (trial.load_state(optimizer=Secure()) if loads else None) or {"steps": 0, "weight": 0.0}
    weight = state["weight"]
    for step in range(state["steps"] + 1, trial.steps + 1):
        if step == kill_at:
            raise KeyboardInterrupt
        weight += source.gauss(0.0, 1.0)
        taken.append(step)
        if step % every == 0:
            trial.save_state(step, optimizer=Secure(), weight=weight)
    return tuning.Outcome(weight, np.array([weight]))


def secure_study(folder: Path | None, **rules: Any) -> Any:
    return tuning.Study({"lr": [0.1]}, "fixed:1", epsilon=3.0, steps=90, folder=folder, **rules)


@pytest.mark.thorough
@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize(("every", "kill_at"), [(10, 90), (90, 85), (10, 1)])
def test_all_steps_of_a_released_run_are_paid_for(
    tmp_path: Path, loads: bool, every: int, kill_at: int
) -> None:
    long_study = secure_study(tmp_path / "s", redrawn_steps=10, checkpoint_every=10)
    taken: list[int] = []
    with pytest.raises((KeyboardInterrupt, InvalidInput)):
        long_study.run(lambda trial: system_noise(trial, taken, kill_at, loads=loads, every=every))
    if loads and kill_at == 90:
        long_study.run(lambda trial: system_noise(trial, taken))
        assert len(taken) <= 100
        return
    with pytest.raises(InvalidInput, match="redrawn_steps must be at least"):
        long_study.run(lambda trial: system_noise(trial, taken, loads=loads))


@pytest.mark.parametrize("in_memory", [True, False])
def test_interruptions_of_one_process_are_counted(tmp_path: Path, in_memory: bool) -> None:
    # Otherwise the loop could draw until it likes the noise.
    short_study = study(protocol="fixed:1", base=BASE, folder=None if in_memory else tmp_path / "s")
    drawn = []

    def train(trial: Any) -> Any:
        drawn.append(random.SystemRandom().gauss(0.0, 1.0))
        trial.save_state(1, optimizer=Secure())
        if len(drawn) < 31:
            raise KeyboardInterrupt
        return tuning.Outcome(drawn[-1], np.array(drawn[-1:]))

    with pytest.raises(KeyboardInterrupt):
        short_study.run(train)
    for _ in range(3):
        with pytest.raises(InvalidInput, match="redrawn_steps must be at least"):
            short_study.run(train)
    shutil.rmtree(tmp_path / "s" / RUNS, ignore_errors=True)  # the journal has the count, too
    with pytest.raises(InvalidInput, match="redrawn_steps must be at least"):
        short_study.run(train)


def test_the_rehearsal_finds_a_secure_run_that_never_loads_its_state() -> None:
    long_study = secure_study(None, redrawn_steps=10, checkpoint_every=10)
    with pytest.raises(PrivacyLeak, match=r"train must call trial.load_state"):
        long_study.rehearse(lambda trial, records: system_noise(trial, [], loads=False), np.ones(3))
    long_study.rehearse(lambda trial, records: system_noise(trial, []), np.ones(3))


def test_a_run_whose_noise_cannot_be_continued_saves_often_enough(tmp_path: Path) -> None:
    rules = {"redrawn_steps": 6, "checkpoint_every": 2}
    with pytest.raises(InvalidInput, match="save_state must be called after at most 2 steps"):
        secure_run(trial_in(tmp_path, **rules), (2, 5))
    (tmp_path / "late").mkdir()
    trial = trial_in(tmp_path / "late", **rules)
    trial.save_state(2, optimizer=Secure())
    with pytest.raises(InvalidInput, match="got 4 steps without it"):
        trial.checkpoints.end()


@pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook")
def test_opacus_takes_no_step_more_than_an_interval_after_a_checkpoint(tmp_path: Path) -> None:
    rules = {"redrawn_steps": 2, "checkpoint_every": 2}

    def optimizer_of(trial: Any) -> Any:
        model: Any = nn.Linear(3, 2)
        engine = PrivacyEngine(accountant="rdp")
        model, optimizer, _ = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DPDataLoader(torch.utils.data.TensorDataset(*RECORDS), sample_rate=0.5),
            noise_multiplier=2.0,
            max_grad_norm=1.0,
        )
        objects = {"optimizer": optimizer, "mode": Secure()}
        trial.load_state(**objects)

        def step() -> None:
            images, labels = RECORDS
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

        return step, objects

    trial = trial_in(tmp_path, **rules)
    step, objects = optimizer_of(trial)
    step()
    with pytest.raises(InvalidInput, match="optimizer has taken, 1, got 2"):
        trial.save_state(2, **objects)
    step()
    drawn = torch.get_rng_state()
    with pytest.raises(InvalidInput, match=r"save_state must be called after at most 2 steps"):
        step()
    assert torch.equal(torch.get_rng_state(), drawn)  # no noise of the third step was drawn
    # The second attempt pays for two steps, because the first could not take more.
    trial = trial_in(tmp_path, **rules)
    optimizer_of(trial)
    assert trial.checkpoints.error == ""


def test_steps_on_a_gpu_are_repeated_unless_torch_is_deterministic() -> None:
    weight = torch.zeros(2, device="meta")  # stands in for a device other than the processor
    assert "not reproducible" in snapshots.reason_to_redraw({"weight": weight})
    assert snapshots.reason_to_redraw({"weight": torch.zeros(2)}) == ""
    torch.use_deterministic_algorithms(True)
    try:
        assert snapshots.reason_to_redraw({"weight": weight}) == ""
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_rounding_counts_as_repeated_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial_in(tmp_path).save_state(4)
    monkeypatch.setattr(snapshots, "machine", lambda: {"numpy": "1.0"})
    with pytest.raises(
        InvalidInput, match=r"may repeat with other noise \(2 steps\).*rounds other"
    ):
        trial_in(tmp_path).load_state()
    assert trial_in(tmp_path, redrawn_steps=2).load_state() == {"steps": 4}


@pytest.mark.thorough
def test_the_cost_includes_the_steps_that_may_be_repeated() -> None:
    settings = {
        "space": {"lr": [1.0]}, "protocol": "tnb:0,0.1", "epsilon": 3.0, "delta": 1e-5,
        "folder": None,
    }  # fmt: skip
    counted = tuning.Study(steps=50, redrawn_steps=10, **settings)
    longer = tuning.Study(steps=60, **settings)
    plain = tuning.Study(steps=50, **settings)
    assert counted.noise_multiplier == longer.noise_multiplier > plain.noise_multiplier
    assert counted.base == longer.base
    assert counted.total_epsilon == longer.total_epsilon <= 3.0
    assert counted.rehearsal().steps == 50
    assert counted.settings_hash != plain.settings_hash
    assert "redrawn_steps" not in plain.settings  # studies of earlier versions keep their folder
    with pytest.raises(InvalidInput, match="redrawn_steps, neighbours and group_size must not"):
        tuning.Study({"lr": [1.0]}, base=BASE, redrawn_steps=1, folder=None)


def leak(epsilon: float, below: Any, mu: float, runs: int) -> float:
    """Exact hockey stick of the best of `runs` by the likelihood ratio, of a run that is repeated.

    A run outputs one draw x of N(0, 1) or N(mu, 1). If x < below, the run is interrupted, and its
    step is repeated with other noise once. The events {best > t} give a lower bound on the cost.
    """
    t = np.linspace(-6.0, 8.0, 28_001)
    chances = []
    for mean in (0.0, mu):
        cut, plain = stats.norm.sf(below - mean), stats.norm.sf(t - mean)
        above = np.where(t >= below, plain, cut) + (1.0 - cut) * plain
        chances.append(1.0 - (1.0 - above) ** runs)
    without, with_record = chances
    return float(np.max(with_record - math.exp(epsilon) * without))


@pytest.mark.slow
def test_an_interruption_that_depends_on_the_run_needs_the_steps_to_be_counted() -> None:
    # One step per run, noise multiplier 1. Repeating a step whose noisy sum was small is a choice
    # among two draws. Without counting it, the claim is wrong already for a single run.
    delta, mu, thresholds = 1e-5, 1.0, np.linspace(-2.0, 6.0, 81)
    once = accounting.DpSgd(1.0, 1)
    twice = accounting.DpSgd(1.0, 2)

    def claimed(base: Any, runs: int) -> float:
        space = {"lr": [1.0]}
        one = tuning.Study(space, f"fixed:{runs}", base=base, delta=delta, folder=None)
        return one.total_epsilon

    def worst(epsilon: float, runs: int) -> float:
        return max(leak(epsilon, below, mu, runs) for below in thresholds)

    assert worst(claimed(once, 1), 1) > 1.9 * delta
    for runs in (1, 3):
        assert worst(claimed(twice, runs), runs) <= delta


def test_states_survive_a_file(tmp_path: Path) -> None:
    generator = np.random.Generator(np.random.SFC64(3))
    content: dict[Any, Any] = {
        "numbers": [1, 2**130, -0.0, math.inf, True, None, "text", b"\x00bytes"],
        "pair": (1, (2.5,)),
        3: {"nested": np.arange(6, dtype=np.int16).reshape(2, 3), ("a", 1): np.float32(0.1)},
        "empty": np.zeros((0, 2)),
        "generator": generator.bit_generator.state,
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
    }
    path = tmp_path / "state"
    checkpoints.write_state(path, content)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found: Any = checkpoints.read_state(path)
    assert found["numbers"] == content["numbers"]
    assert math.copysign(1.0, found["numbers"][2]) == -1.0
    assert found["pair"] == content["pair"]
    np.testing.assert_array_equal(found[3]["nested"], content[3]["nested"])
    assert found[3]["nested"].dtype == np.int16
    assert type(found[3]["a", 1]) is np.float32
    assert found["empty"].shape == (0, 2)
    assert torch.equal(found["half"], content["half"])
    assert found["half"].dtype == torch.bfloat16
    assert found["scalar"].shape == ()
    draws = generator.random(3)
    other = np.random.Generator(np.random.SFC64(4))
    other.bit_generator.state = found["generator"]
    np.testing.assert_array_equal(other.random(3), draws)
    assert [one.name for one in tmp_path.iterdir()] == ["state"]
    for damaged in (b"", b"x", path.read_bytes()[:-40], path.read_bytes() + b"x"):
        path.write_bytes(damaged)
        assert checkpoints.read_state(path) is None


def test_a_failed_write_leaves_the_former_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    checkpoints.write_state(path, {"number": 1})
    with pytest.raises(InvalidInput, match="state must hold numbers, text, arrays"):
        checkpoints.write_state(path, {"number": object()})

    def fail(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):  # noqa: PT011
        checkpoints.write_state(path, {"number": 2})
    assert checkpoints.read_state(path) == {"number": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


def test_objects_are_named_as_they_were_saved(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    trial = trial_in(tmp_path)
    trial.save_state(2, generator=generator)
    with pytest.raises(InvalidInput, match="load_state must be given generator"):
        trial.load_state()
    with pytest.raises(InvalidInput, match="must name objects that save_state named, got model"):
        trial.load_state(generator=generator, model=nn.Linear(1, 1))
    with pytest.raises(InvalidInput, match="generator must be of the kind that save_state"):
        trial.load_state(generator=torch.Generator())
    with pytest.raises(InvalidInput, match="steps must be"):
        trial.save_state(STEPS + 1)


def test_keys_and_trees_of_jax_are_restored(tmp_path: Path) -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    key = jax.random.key(5)
    weights = {"w": jax.numpy.ones(3, dtype=jax.numpy.bfloat16)}
    optimizer = optax.adam(0.1)
    _, state = optimizer.update(weights, optimizer.init(weights))
    trial_in(tmp_path).save_state(
        2, key=key, old=jax.random.PRNGKey(3), weights=weights, adam=state
    )
    found = trial_in(tmp_path).load_state(adam=optimizer.init(weights))
    assert (jax.random.normal(found["key"], (4,)) == jax.random.normal(key, (4,))).all()
    assert (found["old"] == jax.random.PRNGKey(3)).all()
    assert found["weights"]["w"].dtype == jax.numpy.bfloat16
    same = jax.tree.map(lambda a, b: bool((a == b).all()), found["adam"], state)
    assert all(jax.tree.leaves(same))
    assert type(found["adam"][0]) is type(state[0])
    with pytest.raises(InvalidInput, match="adam must have the structure"):
        trial_in(tmp_path).load_state(adam=(1, 2))

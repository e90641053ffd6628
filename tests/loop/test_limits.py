"""Limits of a check count work, and not time; options that contradict each other."""

import inspect
from typing import Any

import pytest
import torch

import audit
from audit.errors import InvalidInput
from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.loop.runs.work import CouldNotFinish, CpuLimit, work_of
from benchmarks.training_loops import loops
from benchmarks.training_loops.loops import Loop

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("little_work")
DATA = TrainingSet.of(loops.dense())


@pytest.mark.slow
def test_a_verdict_does_not_depend_on_the_speed_of_the_machine() -> None:
    """A loop that computes ten times longer has the same runs, steps and findings."""

    def slowly(state: Any) -> None:
        for _ in range(40):
            torch.rand(60, 60, generator=torch.Generator().manual_seed(0)) @ torch.ones(60, 60)

    fast, slow = (
        check_premises(Loop(steps=2, before=before), DATA).report
        for before in (loops.nothing, slowly)
    )
    assert (slow.runs, slow.steps, slow.tested) == (fast.runs, fast.steps, fast.tested)
    assert slow.measured == fast.measured


def test_cpu_time_ends_a_test_without_a_verdict() -> None:
    found = check_premises(Loop(total=lambda s, each: each), DATA, cpu=CpuLimit(0.0)).report
    assert found.inconclusive
    assert not found.broken
    with pytest.raises(CouldNotFinish):
        CpuLimit(0.0).check()
    assert work_of(4, 10, 10) == 5.0


@pytest.mark.slow
def test_a_correct_loop_is_checked_within_five_cpu_seconds_without_the_attack() -> None:
    import time

    audit.check(Loop(), loops.dense(), attack=False)  # imports
    start = time.process_time()
    found = audit.check(Loop(), loops.dense(), attack=False)
    used = time.process_time() - start
    assert found.exit_code == 0
    assert found.trials == 0
    assert "no attack was made: attack=False" in found.words
    assert used < 5.0


def test_runs_have_one_thread_of_torch_unless_the_function_sets_another_number() -> None:
    threads = []

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        threads.append(torch.get_num_threads())
        return Loop(steps=1)(records, candidate, seed, watch)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        audit.check(train, loops.dense(), attack=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidInput, match="trials must be left out where attack is False"):
        audit.check(Loop(), loops.dense(), attack=False, trials=10)
    with pytest.raises(InvalidInput, match="attack must be True where premises is False"):
        audit.check(Loop(), loops.dense(), attack=False, premises=False)
    assert "seconds" not in inspect.signature(audit.check).parameters

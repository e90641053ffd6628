"""Mistakes of kinds that earlier versions did not see, their causes, and similar correct loops.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

import importlib
import inspect
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import audit
from audit.errors import InvalidInput
from audit.loop import TrainingSet
from audit.loop.finding_kinds import KINDS, LAST
from audit.loop.findings import PREMISES
from audit.loop.premises.check_premises import check_premises
from audit.loop.premises.inclusions import (
    Inclusions,
    _Decoder,
    detectable_ratio,
    judge_used_records,
    tries_to_see,
)
from audit.loop.premises.two_samples import two_sample_p_value
from audit.loop.runs.generators import digest_of_generators
from audit.loop.runs.work import CouldNotFinish, CpuLimit, work_of
from benchmarks.training_loops import fourth_turn, loops
from benchmarks.training_loops.broken import BROKEN
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.fourth_turn import CAUSES, FOURTH_TURN, FOURTH_TURN_CORRECT
from benchmarks.training_loops.loops import Loop
from benchmarks.training_loops.opacus_loops import Private

torch.set_num_threads(1)
DATA = TrainingSet.of(loops.dense())

# No exchanged record has a gradient longer than 100 at the weights of this loop.
MISSED = {"a batch with a long gradient is skipped, Poisson"}
QUICK = (
    "a batch with a value above 50 is skipped",
    "a batch whose loss is not finite is skipped",
    "overlapping windows of four rows",
    "Poisson samples of four fifths, rate of all",
    "sizes of the batches released",
)
QUICK_CORRECT = (
    "missing values become zero",
    "values out of range left out, random number of steps",
    "a random fifth validates, accounted rate",
    "GAN whose numbers are drawn after sampling",
    "one numpy generator, values out of range left out",
    "make_private with one batch, at default settings",
)


def report(control: Control, **options: Any) -> Any:
    records = TrainingSet.of(control.data())
    return check_premises(control.train, records, relation=control.relation, **options).report


def cases(names: Any, quick: Any) -> list[Any]:
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", cases(sorted(set(FOURTH_TURN) - MISSED), QUICK))
def test_a_mistake_is_found(name: str) -> None:
    found = report(FOURTH_TURN[name])
    assert found.broken, str(found)


@pytest.mark.parametrize("name", cases(FOURTH_TURN_CORRECT, QUICK_CORRECT))
def test_a_correct_loop_is_not_accused(name: str) -> None:
    found = report(FOURTH_TURN_CORRECT[name])
    assert not found.broken, str(found)
    if "random number of steps" not in name:  # whose noise is not tested
        assert not found.inconclusive, str(found)


@pytest.mark.parametrize("name", cases(CAUSES, list(CAUSES)[2:]))
def test_the_first_cause_leads_to_the_mistake(name: str) -> None:
    control, words = CAUSES[name]
    found = report(control)
    assert words in found.findings[0].cause, str(found)


# --- suppressed steps ---


def test_a_suppressed_step_is_reported_as_such() -> None:
    found = report(FOURTH_TURN["a batch with an error is skipped"])
    assert found.findings[0].kind == "number of steps"
    assert found.findings[0].numbers["one"] == 6
    assert found.findings[0].numbers["other"] == 0


def test_records_that_are_not_finite_are_only_noted_where_they_are_released() -> None:
    found = report(Control(Loop()))
    assert not found.broken
    assert any("the epsilon holds for finite records" in note for note in found.notes)


def test_the_p_value_of_two_samples_is_at_least_the_exact_one() -> None:
    random = np.random.default_rng(0)
    for size in (3, 8, 20):
        for shift in (0.0, 1.0, 3.0):
            ours, theirs = random.normal(size=size), random.normal(shift, size=size)
            exact = float(stats.ks_2samp(ours, theirs, method="exact").pvalue)
            bound = two_sample_p_value(ours.tolist(), theirs.tolist())
            assert exact <= bound * (1 + 1e-9)
            assert bound <= max(2 * exact, 1e-300)
    p_values = [
        two_sample_p_value(*random.integers(0, 4, size=(2, 20)).tolist()) for _ in range(400)
    ]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05  # conservative for whole numbers


# --- nothing to compare with ---


def without_watch(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Plain SGD without noise."""
    model = loops.mlp()
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def forgotten_watch(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Opacus, but the optimizer is not shown."""
    return Private()(records, candidate, seed, lambda *_: None)


@pytest.mark.parametrize("train", [without_watch, forgotten_watch])
@pytest.mark.parametrize("options", [{"attack": False}, {"premises": False, "trials": 4}])
def test_nothing_to_compare_with_is_no_success(train: Any, options: dict[str, Any]) -> None:
    found = audit.check(train, loops.dense(), jobs=1, **options)
    assert found.exit_code == 2
    assert not found
    assert found.words.startswith("nothing to compare with")
    with pytest.raises(InvalidInput, match="nothing to compare with"):
        found.raise_if_broken()


# --- black boxes whose initial weights are random ---


def hidden(share: float) -> Any:
    """Noisy SGD as a black box, with a share of the noise that its claim needs."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.claim(audit.GaussianMechanism(2.0).epsilon(1e-5))  # 4 steps at noise multiplier 1
        return Loop(noise=fourth_turn.times(share))(records, candidate, seed, lambda *_: None)

    return train


def test_a_black_box_states_no_power_that_random_weights_take_away() -> None:
    found = audit.check(hidden(1 / 30), loops.dense(), jobs=1, trials=200)
    assert not found.broken  # a documented limit
    assert found.words.startswith("this attack proves nothing about the noise of a black box")
    assert "80 %" not in found.words
    assert str(found).startswith("this attack proves nothing")


# --- loops by Opacus ---


@pytest.mark.parametrize(
    "size", [24, pytest.param(8, marks=pytest.mark.slow)], ids=["one batch", "three batches"]
)
def test_make_private_is_attacked_under_zero_out(size: int) -> None:
    found = audit.check(Private(batch_size=size), loops.dense(), jobs=1, trials=40)
    assert found.exit_code == 0, str(found)
    assert found.trials == 40
    assert found.premises.relation == "zero-out"
    notes = [note for note in found.premises.notes if "number of records is public" in note]
    assert len(notes) == 1
    assert str(found).count("the number of records is public") == 2  # the relation, and the note


def test_add_remove_still_reports_the_dependence_on_n() -> None:
    found = check_premises(Private(batch_size=24), DATA, relation="add-remove").report
    assert [finding.premise for finding in found.findings] == ["number of records"]


# --- batches of many records ---


def test_a_sum_of_contributions_is_decoded() -> None:
    random = np.random.default_rng(0)
    columns = random.normal(size=(5, 30))
    decode = _Decoder.of(columns)
    for _ in range(50):
        inside = random.integers(0, 2, size=5).astype(float)
        decoded = decode(inside @ columns, 0.0)
        assert decoded is not None
        assert np.array_equal(decoded, inside)
    assert decode(columns[0] * 0.5, 0.0) is None
    assert decode(2 * columns[0], 0.0) is None
    assert decode(random.normal(size=30), 0.0) is None


def test_equal_contributions_are_not_decoded() -> None:
    columns = np.random.default_rng(0).normal(size=(3, 30))
    columns[2] = columns[0]
    assert not len(_Decoder.of(columns).places)


def drawn(random: Any, rate: float, members: float, runs: int = 60, per_run: bool = False) -> Any:
    """Poisson samples at `rate`, of a share of 8 records."""
    used = random.random((runs if per_run else 1, 1, 8)) < members
    return Inclusions(((random.random((runs, 8, 8)) < rate) & used).astype(float))


def test_used_records_are_tested_at_the_stated_level() -> None:
    # Correct draws: p-values are at least uniform (conservative), also where a fifth is left out.
    random = np.random.default_rng(1)
    p_values = [
        test.p_value
        for members in (1.0, 0.8)
        for _ in range(150)
        for test in judge_used_records(drawn(random, 0.3, members), 0.3)
    ]
    assert stats.kstest(p_values, "uniform", alternative="greater").pvalue > 1e-3
    assert min(p_values) > 1e-4


@pytest.mark.parametrize("per_run", [False, True])
def test_a_part_at_the_rate_of_all_is_found(per_run: bool) -> None:
    random = np.random.default_rng(2)
    tests = judge_used_records(drawn(random, 0.375, 0.8, 100, per_run), 0.3)
    assert min(test.p_value for test in tests if test.matters) < 1e-8


def test_the_power_of_the_test_of_rates_is_as_stated() -> None:
    # The rate that is found with 80 %: 400 simulations err by 2 % (one standard error).
    random = np.random.default_rng(3)
    tries, rate = 3000, 0.3
    ratio = detectable_ratio(tries, rate)
    assert tries_to_see(ratio, rate) == pytest.approx(tries, rel=1e-6)
    hits = random.binomial(tries, ratio * rate, size=400)
    shown = stats.binom.sf(hits - 1, tries, rate) < 1e-5 / 500
    assert shown.mean() == pytest.approx(0.8, abs=0.08)


@pytest.mark.slow
def test_the_verdict_states_the_rate_that_is_found() -> None:
    found = report(Control(Loop(sampling_rate=0.3, steps=8)))
    assert found.measured["detectable rate"] <= 1.2
    assert "times as often as accounted are found with 80 % probability" in found.power


# --- too much noise ---


def test_too_much_noise_is_a_sentence() -> None:
    found = report(Control(Loop(noise=fourth_turn.times(48.0))))
    assert not found.broken
    (note,) = (note for note in found.notes if "times as much noise" in note)
    assert float(note.split()[2]) == pytest.approx(48.0, rel=0.1)
    assert not [n for n in report(Control(Loop())).notes if "times as much noise" in n]


# --- generators of the function's own ---


def test_generators_in_objects_and_functions_are_seen() -> None:
    class Holder:
        def __init__(self) -> None:
            self.inner = {"drawn": np.random.default_rng(0)}

    holder, torch_generator = Holder(), torch.Generator().manual_seed(0)

    def by_closure() -> torch.Tensor:
        return torch.rand(1, generator=torch_generator)

    def run() -> bytes:
        held = holder, by_closure
        assert held
        return digest_of_generators(None, digest.__code__)

    def digest() -> bytes:
        return run()

    start = digest()
    assert digest() == start
    holder.inner["drawn"].random()
    moved = digest()
    assert moved != start
    by_closure()
    assert digest() not in (start, moved)


def test_a_statistic_over_records_is_located() -> None:
    found = report(BROKEN["features centered by the batch mean"])
    cause = found.findings[0].cause
    assert re.search(r"mostly in `[\w.]+` of Linear, before the step in loops\.py:\d+\)", cause)


# --- limits ---


def test_a_verdict_does_not_depend_on_the_speed_of_the_machine() -> None:
    """A loop that computes ten times longer has the same runs, steps and findings."""

    def slowly(state: Any) -> None:
        for _ in range(40):
            torch.rand(60, 60, generator=torch.Generator().manual_seed(0)) @ torch.ones(60, 60)

    fast, slow = (
        check_premises(Loop(sampling_rate=0.4, steps=3, before=before), DATA).report
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


# --- one place for each kind of finding ---


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_finding_names_its_test_and_what_it_explains(name: str) -> None:
    kind = KINDS[name]
    assert kind.premise in PREMISES
    module, _, function = kind.test.rpartition(".")
    found = importlib.import_module(f"audit.loop.premises.{module}")
    assert callable(getattr(found, function))
    assert set(kind.explains) <= set(KINDS) - {name}
    assert (kind.rank == LAST) == (kind.premise == "number of records")


def test_no_decision_is_taken_by_a_sentence() -> None:
    import audit.loop.premises as package

    folder = importlib.resources.files(package)
    for file in folder.iterdir():
        if file.name.endswith(".py"):
            assert ".message.startswith" not in file.read_text()
            assert ".message.split" not in file.read_text()


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


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidInput, match="trials must be left out where attack is False"):
        audit.check(Loop(), loops.dense(), attack=False, trials=10)
    with pytest.raises(InvalidInput, match="attack must be True where premises is False"):
        audit.check(Loop(), loops.dense(), attack=False, premises=False)
    assert "seconds" not in inspect.signature(audit.check).parameters

"""Controls by an independent tester: what the differential test missed or accused at first."""

from typing import Any

import numpy as np
import pytest
import torch

from audit.loop import TrainingSet
from audit.loop.premises.batches import poisson_tests
from audit.loop.premises.check_premises import check_premises
from audit.loop.premises.noise import estimate_noise, grain_of_noise
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.independent import INDEPENDENT, INDEPENDENT_CORRECT
from benchmarks.training_loops.second_tester import SECOND_TESTER_ACCUSED
from benchmarks.training_loops.unseen import UNSEEN_ACCUSED

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("little_work")
SLICES = [slice(0, 50)]


def report(control: Control) -> Any:
    records = TrainingSet.of(control.data())
    return check_premises(control.train, records, relation=control.relation).report


# Missed before the tests of grain, of gaps in batch sizes, of single coordinates, of the
# optimizer's first state, and of records that take the noise away.
MISSED = {
    "noise in bfloat16": "equal to the last digit",
    "incomplete microbatch dropped": "have a single peak",
    "one coordinate without noise": "1 of 75 coordinates receive no noise",
    "Adam's moments from a warm-up without noise": "the initial state of the optimizer",
    "step skipped when scaled gradients overflow": "has no noise if one record is in the data",
}


@pytest.mark.thorough
@pytest.mark.full_work
@pytest.mark.thin(5)
@pytest.mark.parametrize("name", MISSED)
def test_mistakes_that_were_missed_are_named(name: str) -> None:
    found = report(INDEPENDENT[name]).findings
    assert any(MISSED[name] in each.message for each in found), [str(each) for each in found]


@pytest.mark.slow
@pytest.mark.thin(3)
# Contributions were compared although other records changed their batches, or although fewer
# random numbers were drawn without the record; models in bfloat16 raised an error.
@pytest.mark.parametrize(
    "name", ["bfloat16", "a third held out by a hash", "sorted before Poisson sampling"]
)
def test_correct_loops_that_were_not_understood_are_tested_and_not_accused(name: str) -> None:
    found = report(INDEPENDENT_CORRECT[name])
    assert not found.broken, str(found)
    assert {"contribution", "noise", "batches", "released numbers"} <= set(found.tested)
    assert 0.95 < found.measured["effective noise multiplier"] < 1.4


@pytest.mark.slow
def test_a_mistake_is_found_where_the_loop_sorts_its_records() -> None:
    found = report(INDEPENDENT["records sorted, and centered by their private mean"])
    assert any("one record changes" in each.message for each in found.findings), str(found)


@pytest.mark.slow
def test_a_public_random_term_is_forced_where_it_is_declared() -> None:
    assert not report(INDEPENDENT_CORRECT["a GAN"]).broken


# Earlier versions accused them.
@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize("control", [*SECOND_TESTER_ACCUSED.values(), *UNSEEN_ACCUSED.values()])
def test_correct_loops_that_change_the_noisy_gradient_are_not_accused(control: Control) -> None:
    premises = report(control)
    assert not premises.broken, str(premises)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in INDEPENDENT if "black box" not in name])
def test_mistakes_are_found(name: str) -> None:
    assert report(INDEPENDENT[name]).broken


@pytest.mark.slow
@pytest.mark.parametrize("name", INDEPENDENT_CORRECT)
def test_correct_loops_are_not_accused(name: str) -> None:
    found = report(INDEPENDENT_CORRECT[name])
    assert not found.broken, str(found)


def gaps(sizes: np.ndarray[Any, Any], n: int, rate: float) -> Any:
    counts = sizes[:, None].astype(float)
    tests = poisson_tests(counts, np.zeros(counts.shape, np.bool_), n, [rate])
    return next((each for each in tests if each.kind == "gaps in batches"), None)


def test_sizes_of_independent_samples_have_no_gap_whatever_the_rates() -> None:
    random = np.random.default_rng(0)
    p_values = []
    for _ in range(300):
        rates = random.uniform(0, 0.6, size=random.integers(2, 40))
        sizes = (random.random((400, len(rates))) < rates).sum(1)
        found = gaps(sizes, len(rates), 0.6)
        p_values.append(1.0 if found is None else found.p_value)
    assert min(p_values) > 1e-2  # the test is conservative


@pytest.mark.parametrize("multiple", [2, 3, 5])
def test_sizes_that_are_cut_to_whole_microbatches_have_gaps(multiple: int) -> None:
    sizes = np.random.default_rng(1).binomial(24, 0.4, size=400) // multiple * multiple
    found = gaps(sizes, 24, 0.4)
    assert found.p_value < 1e-12
    assert found.matters
    assert found.numbers["size"] % multiple
    assert found.numbers["smaller"] % multiple == found.numbers["larger"] % multiple == 0


def grain(one: Any, other: Any, spacing: float) -> Any:
    return next(grain_of_noise(one, other, estimate_noise(one, None, SLICES, spacing), spacing))


def test_noise_of_few_values_is_found() -> None:
    spacing = float(np.finfo(np.float32).eps)
    generator = torch.Generator().manual_seed(2)
    offsets = np.random.default_rng(2).normal(size=(2, 1, 3, 50)).astype(np.float32)

    def runs(kind: torch.dtype) -> Any:
        drawn = torch.randn(40, 3, 50, dtype=kind, generator=generator).float().numpy()
        return [(offset + drawn).astype(np.float32).astype(float) for offset in offsets]

    for kind in (torch.bfloat16, torch.float16):
        found = grain(*runs(kind), spacing)
        assert found.p_value < 1e-9
        assert found.matters
    p_values = [grain(*runs(torch.float32), spacing).p_value for _ in range(100)]
    assert min(p_values) > 1e-4


def test_rounded_noise_hides_a_sum_that_is_rounded_alike() -> None:
    random = np.random.default_rng(3)
    drawn = np.round(random.normal(size=(40, 3, 50)) * 1000) / 1000
    offsets = np.round(random.normal(size=(2, 1, 3, 50)) * 1000) / 1000
    exact = grain(offsets[0] + drawn, offsets[1] + 0.0004 + drawn, 1e-12)
    rounded = grain(offsets[0] + drawn, offsets[1] + drawn, 1e-12)
    assert exact.p_value < 1e-9
    assert exact.matters
    assert rounded.p_value < 1e-9
    assert not rounded.matters

"""What a loop computes from its noisy gradients before `optimizer.step()` is no leak.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.loop.runs.final_gradients import AccessedGradients
from benchmarks.training_loops import loops
from benchmarks.training_loops.seventh_torch import (
    clipped,
    give,
    of_records,
    summed,
    tensors,
    watched,
    with_noise,
)
from benchmarks.training_loops.sixth_torch import sixty

little_work = pytest.mark.usefixtures("little_work")
STEPS = 5
Use = Callable[[list[Any], Any, dict[str, Any]], None]


def training(use: Use, exact: Use | None = None) -> Any:
    """A loop that uses the gradients of all parameters before the step.

    Args:
        use: gets the parameters with noisy gradients, the optimizer, and what it keeps; the loop
            releases the latter.
        exact: the same before the noise, which leaks.
    """

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        x, y = tensors(records)
        model = loops.mlp()
        optimizer, accountant = watched(watch, model)
        parameters, kept = list(model.parameters()), dict[str, Any]()
        for _ in range(STEPS):
            total = summed(clipped(of_records(model, x, y)))
            if exact is not None:
                give(model, total)
                exact(parameters, optimizer, kept)
            give(model, with_noise(total))
            use(parameters, optimizer, kept)
            optimizer.step()
            accountant.step(noise_multiplier=1.0, sample_rate=1.0)
        return {"model": model, "kept": kept}

    return train


def momentum(parameters: list[Any], _: Any, kept: dict[str, Any]) -> None:
    for place, p in enumerate(parameters):
        kept[f"momentum {place}"] = 0.9 * kept.get(f"momentum {place}", 0.0) + p.grad


def norms(parameters: list[Any], _: Any, kept: dict[str, Any]) -> None:
    norm = torch.stack([p.grad.norm() for p in parameters]).norm()
    kept[f"norm {len(kept)}"] = norm


def rate(parameters: list[Any], optimizer: Any, _: dict[str, Any]) -> None:
    norm = torch.stack([p.grad.norm() for p in parameters]).norm()
    optimizer.param_groups[0]["lr"] = float(0.1 / (1.0 + norm))


def nothing(*_: Any) -> None:
    pass


def momentum_in_place(parameters: list[Any], _: Any, kept: dict[str, Any]) -> None:
    for place, p in enumerate(parameters):
        kept[f"momentum {place}"] = 0.9 * kept.get(f"momentum {place}", 0.0) + p.grad
        p.grad = kept[f"momentum {place}"].clone()


def half_of_the_last(parameters: list[Any], _: Any, kept: dict[str, Any]) -> None:
    for place, p in enumerate(parameters):
        last = kept.get(f"last {place}", 0.0)
        kept[f"last {place}"] = p.grad.clone()
        p.grad.sub_(0.5 * last)


def findings(train: Any) -> list[str]:
    report = check_premises(train, TrainingSet.of(sixty())).report
    return [finding.premise for finding in report.findings]


@little_work
@pytest.mark.parametrize("use", [momentum, norms, rate])
def test_states_of_noisy_gradients_before_the_step_are_no_leak(use: Use) -> None:
    assert findings(training(use)) == []


@pytest.mark.thorough
@pytest.mark.full_work
@pytest.mark.parametrize("use", [momentum_in_place, half_of_the_last])
def test_changes_of_noisy_gradients_before_the_step_are_no_leak(use: Use) -> None:
    report = check_premises(training(use), TrainingSet.of(sixty())).report
    assert report.findings == ()
    assert any("p.grad was tested as line" in note for note in report.notes)


@little_work
@pytest.mark.parametrize("use", [momentum_in_place, half_of_the_last])
def test_changes_of_exact_gradients_are_found(use: Use) -> None:
    assert "released numbers" in findings(training(use, norms))


@little_work
@pytest.mark.parametrize("use", [nothing, norms])
@pytest.mark.parametrize("exact", [norms, momentum])
def test_states_of_exact_gradients_are_a_leak(use: Use, exact: Use) -> None:
    assert "released numbers" in findings(training(use, exact))


def test_only_lines_that_always_see_the_final_gradient_are_final() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    with AccessedGradients(lambda: [parameter], None, lambda _: None) as accessed:
        for step in range(2):
            parameter.grad = torch.ones(3)
            sometimes = parameter.grad.sum()
            if step:
                parameter.grad = torch.full((3,), 2.0)
            always = parameter.grad.sum()
            accessed.end_step()
            accessed.start_step()
    assert float(sometimes) == 3.0
    assert float(always) == 6.0
    lines = sorted(line for _, line, kind in accessed.final_sites if kind == "get")
    assert len(lines) == 1
    assert "grad" not in vars(torch.Tensor)


def test_this_runs_own_gradient_is_released_where_another_is_forced() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    forced = torch.full((3,), 5.0)

    def step(accessed: AccessedGradients, own: float) -> tuple[float, Any]:
        parameter.grad = torch.full((3,), own)
        read = float(parameter.grad.sum())
        parameter.grad.add_(1.0)
        released = accessed.end_step()
        accessed.start_step()
        return read, released.get(0)

    with AccessedGradients(lambda: [parameter], None, lambda _: None) as reference:
        parameter.grad = torch.full((3,), 5.0)
        read_again = float(parameter.grad.sum())
        reference.end_step()
    assert read_again == 15.0
    line = step.__code__.co_firstlineno + 2
    sites = frozenset({(__file__, line, "get")})
    with AccessedGradients(lambda: [parameter], sites, lambda _: forced) as coupled:
        read, released = step(coupled, 2.0)
    assert read == 15.0
    assert released.tolist() == [3.0] * 3

"""What a loop computes from its noisy gradients before `optimizer.step()` is no leak.

The statistical tests accuse a correct loop with probability at most 1e-5; seeds are fixed.
"""

import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from premise_reports import broken_premises

from audit.errors import InvalidInput
from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.loop.runs.final_gradients import AccessedGradients
from benchmarks.training_loops import loops
from benchmarks.training_loops.seventh_torch import (
    CLIP,
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


def training(use: Use, exact: Use | None = None, limit: float = CLIP) -> Any:
    """A loop that uses the gradients of all parameters before the step.

    Args:
        use: gets the parameters with noisy gradients, the optimizer, and what it keeps; the loop
            releases the latter.
        exact: the same before the noise, which leaks.
        limit: the norm to which gradients are clipped; the noise is enough for `CLIP`.
    """

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        x, y = tensors(records)
        model = loops.mlp()
        optimizer, accountant = watched(watch, model)
        parameters, kept = list(model.parameters()), dict[str, Any]()
        for _ in range(STEPS):
            total = summed(clipped(of_records(model, x, y), limit))
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


def copies(parameters: list[Any], *_: Any) -> None:
    for p in parameters:
        p.grad = p.grad.clone()


def divided_by_one(parameters: list[Any], *_: Any) -> None:
    for p in parameters:
        p.grad = p.grad / 1


def compiled_norms(parameters: list[Any], _: Any, kept: dict[str, Any]) -> None:
    @torch.compile(backend="eager")
    def norm_of(tensors: list[Any]) -> Any:
        return torch.stack([p.grad.norm() for p in tensors]).norm()

    kept[f"norm {len(kept)}"] = norm_of(parameters)


def norms_in_threads(parameters: list[Any], _: Any, kept: dict[str, Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        gradients = list(pool.map(operator.attrgetter("grad"), parameters))
    kept[f"norm {len(kept)}"] = torch.stack([g.norm() for g in gradients]).norm()


def deleted(parameters: list[Any], *_: Any) -> None:
    for p in parameters:
        gradient = p.grad
        del p.grad
        p.grad = gradient


@little_work
@pytest.mark.parametrize(
    "use", [momentum, norms, rate, copies, compiled_norms, norms_in_threads, deleted]
)
def test_states_of_noisy_gradients_before_the_step_are_no_leak(use: Use) -> None:
    assert broken_premises(training(use)) == []


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
    assert "released numbers" in broken_premises(training(use, norms))


@little_work
@pytest.mark.parametrize("use", [norms, copies, divided_by_one, deleted])
def test_contributions_are_seen_where_gradients_are_read_before_the_step(use: Use) -> None:
    assert set(broken_premises(training(use, limit=3 * CLIP))) & {"contribution", "noise"}


@little_work
@pytest.mark.parametrize("use", [nothing, norms])
@pytest.mark.parametrize("exact", [norms, momentum])
def test_states_of_exact_gradients_are_a_leak(use: Use, exact: Use) -> None:
    assert "released numbers" in broken_premises(training(use, exact))


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


@pytest.mark.parametrize("value", [2.0, float("nan"), float("inf")])
@pytest.mark.parametrize("copied", [False, True])
def test_gradients_with_one_memory_or_a_copy_release_their_own(value: float, copied: bool) -> None:
    first, second = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    forced = torch.tensor([5.0, value, 6.0])
    line = assigned.__code__.co_firstlineno + 3
    sites = frozenset({(__file__, line, "get")})
    with AccessedGradients(lambda: [first, second], sites, lambda _: forced) as coupled:
        assigned([first, second], torch.full((3,), 2.0), copied)
        released = coupled.end_step()
        assert torch.equal(first.grad.nan_to_num(), forced.nan_to_num())
        # A closure that is called again before the next step is not forced.
        assigned([first, second], torch.full((3,), 3.0), copied)
        assert not coupled.end_step()
    assert [released[place].tolist() for place in range(2)] == [[2.0] * 3] * 2


def assigned(parameters: list[Any], gradient: Any, copied: bool) -> None:
    for p in parameters:
        p.grad = gradient
    values = [p.grad for p in parameters]
    if copied:
        for p, value in zip(parameters, values, strict=True):
            p.grad = value.clone()


@pytest.mark.parametrize("inner_ends_first", [True, False])
def test_checks_within_others_and_in_threads_watch_their_own(inner_ends_first: bool) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    outer, inner = (
        AccessedGradients(lambda p=p: [p], None, lambda _: None)  # type: ignore[misc]
        for p in parameters
    )
    outer.__enter__()
    inner.__enter__()
    for p in parameters:
        p.grad = torch.ones(3)
    values = [p.grad for p in parameters]
    last = (inner, outer) if inner_ends_first else (outer, inner)
    for watch in last:
        watch.end_step()
        watch.__exit__()
    assert len(values) == 2
    assert len(outer.final_sites) == len(inner.final_sites) == 2
    assert "grad" not in vars(torch.Tensor)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_nothing_is_left_behind_after_an_error(error: type[BaseException]) -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> None:
        model = loops.mlp()
        watched(watch, model)
        raise error("between steps")

    with pytest.raises((InvalidInput, KeyboardInterrupt)):
        check_premises(train, TrainingSet.of(sixty()))
    assert "grad" not in vars(torch.Tensor)


def with_opacus(change: Callable[[Any, int, dict[str, Any]], None], is_hook: bool = False) -> Any:
    """A loop with Opacus that changes every gradient after it was scaled.

    Args:
        change: takes the optimizer, the place of a parameter and values that last for the run.
        is_hook: whether this happens in a hook of the step, and not between its two halves.
    """

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        module = torch.nn.Sequential(
            torch.nn.Linear(8, 6), torch.nn.Mish(), torch.nn.Linear(6, loops.CLASSES)
        )
        model, optimizer, loader = loops.make_private(records, watch, module, batch=15)
        of_accountant, kept = optimizer.step_hook, dict[str, Any]()

        def change_all(optimizer: Any) -> None:
            with torch.no_grad():
                for place in range(len(optimizer.params)):
                    change(optimizer, place, kept)

        if is_hook:
            optimizer.attach_step_hook(lambda o: (of_accountant(o), change_all(o)))
        for batch, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), targets).backward()
            if is_hook:
                optimizer.step()
            elif optimizer.pre_step():
                change_all(optimizer)
                optimizer.original_optimizer.step()
        return model

    return train


def centred(optimizer: Any, place: int, kept: dict[str, Any]) -> None:
    p = optimizer.params[place]
    p.grad = p.grad - p.grad.mean(dim=-1, keepdim=True)


def moving_average(optimizer: Any, place: int, kept: dict[str, Any]) -> None:
    p = optimizer.params[place]
    kept[str(place)] = 0.9 * kept.get(str(place), 0.0) + p.grad
    p.grad = kept[str(place)].clone()


def moving_average_in_p_grad(optimizer: Any, place: int, kept: dict[str, Any]) -> None:
    """Leaks: the backward pass of the next step adds its gradients to what is kept."""
    p = optimizer.params[place]
    p.grad = kept[str(place)] = 0.9 * kept.get(str(place), 0.0) + p.grad


def with_exact_sum(optimizer: Any, place: int, kept: dict[str, Any]) -> None:
    p = optimizer.params[place]
    p.grad = p.grad + 0.1 * p.summed_grad


def by_exact_norm(optimizer: Any, place: int, kept: dict[str, Any]) -> None:
    p = optimizer.params[place]
    p.grad = p.grad.sign() * (p.summed_grad.norm() > 0.5)


@pytest.mark.parametrize("is_hook", [False, True])
@pytest.mark.parametrize("change", [centred, moving_average])
def test_a_change_of_what_opacus_releases_is_no_leak(change: Any, is_hook: bool) -> None:
    report = check_premises(with_opacus(change, is_hook), TrainingSet.of(sixty())).report
    assert not report.findings, str(report)
    assert "as the optimizer of Opacus sets it" in report.notes[-1]


def halved_where_records_are_alike(optimizer: Any, place: int, kept: dict[str, Any]) -> None:
    """Leaks: the spread of the gradients in a batch decides."""
    of_biases = optimizer.params[-1].grad_sample
    p = optimizer.params[place]
    p.grad = p.grad * (0.5 if len(of_biases) > 1 and float(of_biases.std(0).max()) < 0.01 else 0.9)


def test_a_threshold_that_no_single_record_crosses_is_found_with_opacus() -> None:
    report = check_premises(
        with_opacus(halved_where_records_are_alike), TrainingSet.of(sixty())
    ).report
    assert "as the optimizer of Opacus sets it" not in "".join(report.notes)


@pytest.mark.parametrize("is_hook", [False, True])
@pytest.mark.parametrize("change", [with_exact_sum, by_exact_norm, moving_average_in_p_grad])
def test_exact_sums_in_what_opacus_releases_are_found(change: Any, is_hook: bool) -> None:
    assert broken_premises(with_opacus(change, is_hook))

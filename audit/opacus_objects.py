"""Reads the objects of Opacus without importing it: accountants, optimizers and loaders."""

import contextlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

History = tuple[tuple[float, float, int], ...]
"""Phases (noise multiplier, sampling rate, steps) of an accountant."""

_SAMPLER = "opacus.utils.uniform_sampler"


def accountant_of(engine: Any) -> Any:
    """The accountant of a `PrivacyEngine`; an accountant itself is returned as it is."""
    return getattr(engine, "accountant", engine)


def history_of(accountant: Any) -> History | None:
    """The phases of an accountant; None without one."""
    history = getattr(accountant, "history", None)
    return None if history is None else tuple((float(s), float(q), int(n)) for s, q, n in history)


def has_full_batches(history: History | None) -> bool:
    """Whether an accountant recorded steps, all of them with every record."""
    return bool(history) and all(rate == 1.0 for _, rate, _ in history or ())


def is_of_opacus(optimizer: Any) -> bool:
    """Whether an optimizer is of a class of Opacus, or of a subclass."""
    return any(base.__module__.startswith("opacus.") for base in type(optimizer).__mro__)


@dataclass(frozen=True)
class StepCounter:
    """What counts the steps of an optimizer.

    Attributes:
        accountant: the accountant that each step is recorded with; None without one.
        sampling_rate: the rate that is recorded; None without an accountant.
    """

    accountant: Any = None
    sampling_rate: float | None = None


def step_counter_of(optimizer: Any) -> StepCounter:
    """The accountant that an optimizer calls, which only the closure of its hook holds."""
    hook = getattr(optimizer, "step_hook", None)
    if not (inspect.isfunction(hook) or inspect.ismethod(hook)):
        return StepCounter()
    inside = inspect.getclosurevars(hook).nonlocals
    accountants = (v for v in inside.values() if hasattr(v, "get_epsilon") or hasattr(v, "history"))
    rate = inside.get("sample_rate")
    return StepCounter(next(accountants, None), None if rate is None else float(rate))


def thresholds_of(optimizer: Any) -> list[float] | float | None:
    """C, or a list of one per tensor for per-layer clipping; None for other optimizers."""
    thresholds = getattr(optimizer, "max_grad_norms", None)
    if thresholds is not None:
        return [float(clip) for clip in thresholds]
    clip = getattr(optimizer, "max_grad_norm", None)
    return None if clip is None else float(clip)


def divisor_at_rest(optimizer: Any) -> float | None:
    """By which a step of one batch divides the noisy sum; None if that is not stated.

    Each of several workers divides by its share.
    """
    if getattr(optimizer, "loss_reduction", None) == "sum":
        return 1.0
    size = getattr(optimizer, "expected_batch_size", None)
    return None if size is None else float(size) * getattr(optimizer, "world_size", 1)


def divisor_of(optimizer: Any) -> float:
    """By which the step at hand divides the sum of clipped gradients and noise."""
    divisor = divisor_at_rest(optimizer)
    if divisor is None or getattr(optimizer, "loss_reduction", "sum") == "sum":
        return 1.0
    return divisor * float(optimizer.accumulated_iterations)


def divides_as_opacus(optimizer: Any) -> bool:
    """Whether the optimizer divides by the batch size as Opacus does, and not by its own method."""
    method = getattr(type(optimizer), "scale_grad", None)
    return method is not None and method.__module__.startswith("opacus.")


def global_generators(device: str) -> tuple[Any, ...]:
    """The global generators of torch on a kind of device."""
    torch = sys.modules["torch"]
    if device == "cpu":
        return (torch.default_generator,)
    return tuple(getattr(torch.cuda, "default_generators", ()))


def own_generator_of(owner: Any) -> Any:
    """The torch generator of an optimizer or a sampler, if it is not global and its seed is known.

    The cryptographic generators of Opacus' secure mode have no seed.
    """
    generator: Any = getattr(owner, "generator", None)
    if type(generator).__name__ != "Generator" or not hasattr(generator, "initial_seed"):
        return None
    try:
        generator.initial_seed()
    except RuntimeError:
        return None
    is_global = any(generator is g for g in global_generators(generator.device.type))
    return None if is_global else generator


def batch_sampler_of(data_loader: Any) -> Any:
    """The sampler of logical batches, which a `BatchMemoryManager` splits into physical ones."""
    sampler: Any = getattr(data_loader, "batch_sampler", None)
    return sampler.sampler if type(sampler).__name__ == "BatchSplittingSampler" else sampler


@contextlib.contextmanager
def left_out_of_samples(place: int | None) -> Iterator[None]:
    """Leaves one record out of every Poisson sample of Opacus; None leaves out none.

    The sampler draws as many random numbers as before, so that all other records are drawn as
    before, too. Compared with such a run, a record shows its whole contribution.

    Args:
        place: index of the record in the data set that is sampled; a negative one counts from the
            end.

    Example:
        >>> import torch
        >>> from opacus.utils.uniform_sampler import UniformWithReplacementSampler
        >>> sampler = UniformWithReplacementSampler(num_samples=3, sample_rate=1.0)
        >>> with left_out_of_samples(-1):
        ...     list(sampler)
        [[0, 1]]
    """
    sampler: Any = getattr(sys.modules.get(_SAMPLER), "UniformWithReplacementSampler", None)
    if place is None or sampler is None:
        yield
        return
    draw_samples = sampler.__iter__

    def draw_without(self: Any) -> Iterator[list[int]]:
        absent = place % self.num_samples
        for indices in draw_samples(self):
            yield [index for index in indices if index != absent]

    sampler.__iter__ = draw_without
    try:
        yield
    finally:
        sampler.__iter__ = draw_samples

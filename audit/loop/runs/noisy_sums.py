"""Finds the tensors to which a loop of torch adds its noise, and forces them.

A loop may set p.grad to a function of its noisy gradient: momentum, signs, the largest coordinates,
a random projection. That is a post-processing, and private. Then the release of a step is the first
tensor that holds the noise, not p.grad.

A mode of torch follows normal random numbers from operation to operation, until one adds them to
something else. The result is a noisy sum. Where noise is added to a value that already depends on
an earlier noisy sum of the step, only the later one counts (the features may be noisy, too).

The choice of these tensors proves nothing, and need not: what is recorded there is tested like any
release, and p.grad must be the same in all runs in which these values are equal, whatever the
records, the batches and the noise were. Post-processing may be random. So its random numbers, those
that are drawn after the last noisy sum of a step, come from one seed in all runs. All other numbers
follow from the seed of the run, so that p.grad may not depend on them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from audit.loop.runs.final_gradients import Site, line_of_user_code
from audit.loop.runs.generators import PostProcessingStream

_NORMAL = frozenset({"normal", "normal_", "normal_functional", "randn", "randn_like"})
_SUMS = frozenset({"add", "add_", "sub", "sub_", "rsub"})
_SUMS_OF_LISTS = frozenset({"_foreach_add", "_foreach_add_", "_foreach_sub", "_foreach_sub_"})
_PRODUCTS = frozenset({"mul", "mul_", "div", "div_"})
# A loop that adds noise more often in one step is not followed.
_MAX_SUMS = 1000
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Place:
    """The operation that adds noise: file, line and name, and how often it ran in the step before.

    Example:
        >>> Place(("train.py", 12, "add"), 0).line
        'line 12 of train.py'
    """

    site: Site
    number: int

    @property
    def line(self) -> str:
        """The line in words."""
        path = self.site[0].replace("\\", "/").rpartition("/")[2]
        return f"line {self.site[1]} of {path}"


@dataclass(frozen=True)
class NoisySum:
    """The result of an operation that adds noise.

    Attributes:
        place: the operation.
        shape: of the result.
        values: [d], its numbers.
        earlier: indices of the noisy sums of the same step on which it depends.
    """

    place: Place
    shape: tuple[int, ...]
    values: Tensor
    earlier: frozenset[int]


class NoisySums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the noise of a run, and forces noisy sums.

    Args:
        places: the operations whose results are forced, in their order; None finds operations.
        forced: returns the numbers to force [d] by the index of a place, or None to force nothing.

    Attributes:
        places: as given; empty if operations are to be found.
        steps: in this case, the noisy sums of each step.
        has_random_post_processing: whether a step drew random numbers after its last noisy sum.
    """

    def __init__(
        self, places: Sequence[Place] | None, forced: Callable[[int], Tensor | None] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = tuple(places or ())
        self._indices = None if places is None else {place: i for i, place in enumerate(places)}
        self.forced = forced or (lambda _: None)
        self.steps: list[list[NoisySum]] = []
        self.has_random_post_processing = False
        self._taints = _Taints()
        self._sums: list[NoisySum] = []
        self._counts: Counter[Site] = Counter()
        self._own: dict[int, tuple[tuple[int, ...], Tensor]] = {}
        self._stream: PostProcessingStream | None = None
        self._is_in_step = False
        self._is_first_step = self._is_before_steps = True

    def start_step(self, stream: PostProcessingStream) -> None:
        """Starts to watch, with the stream of random numbers for the post-processing."""
        self._stream, self._is_in_step, self._is_before_steps = stream, True, False
        self._sums, self._own = [], {}
        self._counts.clear()

    def end_step(self) -> Mapping[int, tuple[tuple[int, ...], Tensor]]:
        """Ends to watch, as p.grad is read by the optimizer.

        Returns:
            The shape and the numbers [d], before they were forced, of the noisy sum of each place.
        """
        self._is_in_step = self._is_first_step = False
        if self._stream is not None:
            self._stream.end()
            self.has_random_post_processing |= self._stream.has_drawn
        self._taints.forget_steps()
        if self._indices is None:
            self.steps.append(self._sums)
        return self._own

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls an operation, and follows the noise through it."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if (self._is_in_step or self._is_before_steps) and (self._taints or name in _NORMAL):
            with torch.no_grad():
                self._follow(name, args, kwargs or {}, result)
        return result

    def _follow(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        if name in _SUMS_OF_LISTS and len(args) > 1 and isinstance(args[1], list | tuple):
            results = args[0] if name.endswith("_") else result
            for first, second, outcome in zip(args[0], args[1], results, strict=True):
                self._follow("add", (first, second), {}, outcome)
            return
        taints = self._taints
        inputs = [*_tensors((args, kwargs))]
        outputs = [*_tensors(result)]
        if name in _NORMAL:
            # torch.normal may be given a tensor of means, to which it adds the noise.
            means = [x for x in inputs[:1] if name == "normal" and args[0] is x]
            if any(not _is_number(mean) for mean in means):
                self._add(name, means, outputs)
            else:
                taints.set_noise(outputs, is_lasting=self._is_first_step)
            return
        if name == "copy_":
            inputs = [args[1]] if isinstance(args[1], Tensor) else inputs
        noise = [x for x in inputs if taints.is_noise(x)]
        if not noise:
            taints.set_sums(outputs, taints.sums_of(inputs))
            return
        further = [x for x in inputs if not taints.is_noise(x) and not _is_number(x)]
        if (not further or name in _PRODUCTS) and not taints.sums_of(inputs):
            taints.set_noise(outputs, is_lasting=self._is_first_step)
        elif name in _SUMS:
            self._add(name, further, outputs)
        else:
            taints.set_sums(outputs, taints.sums_of(inputs))

    def _add(self, name: str, further: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Notes that noise was added to further tensors, and forces the result."""
        earlier = self._taints.sums_of(further)
        self._taints.set_sums(outputs, earlier)
        if not self._is_in_step or len(self._sums) > _MAX_SUMS or len(outputs) != 1:
            return
        site = (*line_of_user_code(), name)
        place = Place(site, self._counts[site])
        self._counts[site] += 1
        (result,) = outputs
        values = result.detach().reshape(-1).double().clone()
        self._taints.set_sums(outputs, earlier | {len(self._sums)})
        self._sums.append(NoisySum(place, tuple(result.shape), values, earlier))
        index = None if self._indices is None else self._indices.get(place)
        if self._indices is None or index is None:
            return
        self._own[index] = (tuple(result.shape), values)
        forced = self.forced(index)
        if forced is not None and forced.numel() == result.numel():
            result.detach().copy_(forced.view(result.shape))
        if len(self._own) == len(self._indices) and self._stream is not None:
            self._stream.start()


@dataclass(frozen=True)
class _Part:
    """A part of the memory of tensors that depends on noisy sums.

    Attributes:
        tensor: holds the memory.
        first: the first number of the part.
        last: the last one.
        sums: indices of the noisy sums.
    """

    tensor: Tensor
    first: int
    last: int
    sums: frozenset[int]

    def overlaps(self, first: int, last: int) -> bool:
        """Whether a range of numbers is partly in this part."""
        return self.first <= last and first <= self.last


class _Taints:
    """What the numbers of tensors depend on, by the memory that holds them.

    Tensors are kept until the end of the step, so that no other one gets their memory meanwhile.
    """

    def __init__(self) -> None:
        self._noise: dict[int, tuple[Tensor, bool]] = {}
        self._sums: dict[int, list[_Part]] = {}

    def __bool__(self) -> bool:
        return bool(self._noise or self._sums)

    def is_noise(self, tensor: Tensor) -> bool:
        """Whether a tensor holds nothing but functions of noise."""
        return _memory(tensor) in self._noise

    def sums_of(self, tensors: Iterable[Tensor]) -> frozenset[int]:
        """The noisy sums of the step on which tensors depend."""
        if not self._sums:
            return frozenset()
        return frozenset[int]().union(
            *(
                part.sums
                for tensor in tensors
                for part in self._sums.get(_memory(tensor), ())
                if part.overlaps(*_range(tensor))
            )
        )

    def set_noise(self, tensors: Iterable[Tensor], is_lasting: bool) -> None:
        """Marks tensors as noise; what is drawn up to the first step lasts for all of them."""
        for tensor in tensors:
            memory = _memory(tensor)
            self._sums.pop(memory, None)
            _, was_lasting = self._noise.get(memory, (tensor, False))
            self._noise[memory] = (tensor, is_lasting or was_lasting)

    def set_sums(self, tensors: Iterable[Tensor], sums: frozenset[int]) -> None:
        """Marks tensors as functions of noisy sums, which may be none."""
        for tensor in tensors:
            memory, (first, last) = _memory(tensor), _range(tensor)
            self._noise.pop(memory, None)
            parts = self._sums.pop(memory, [])
            parts = [part for part in parts if part.first < first or part.last > last]
            if sums:
                parts.append(_Part(tensor, first, last, sums))
            if parts:
                self._sums[memory] = parts

    def forget_steps(self) -> None:
        """Forgets the noise of the step that ends, and its sums."""
        self._sums.clear()
        self._noise = {memory: entry for memory, entry in self._noise.items() if entry[1]}


def places_of_noise(
    steps: Sequence[Sequence[NoisySum]], gradients: Sequence[Any]
) -> tuple[Place, ...]:
    """The operations that add the noise in each step.

    Args:
        steps: the noisy sums of each step of a run.
        gradients: for each step, p.grad of all parameters [D].

    Returns:
        The places in their order; none if they or their shapes change between steps, or if p.grad
        is the same multiple of the noisy sums in all steps, so that it is the release itself.
    """
    last = [_last_sums(sums) for sums in steps]
    if not last or not last[0] or len(last) != len(gradients):
        return ()
    described = [[(noisy.place, noisy.shape) for noisy in sums] for sums in last]
    if any(step != described[0] for step in described):
        return ()
    factors = [_factor(sums, p_grad) for sums, p_grad in zip(last, gradients, strict=True)]
    if all(math.isclose(factor, factors[0], rel_tol=_ROUNDING) for factor in factors):
        return ()
    return tuple(place for place, _ in described[0])


def _last_sums(sums: Sequence[NoisySum]) -> list[NoisySum]:
    """The noisy sums on which no later one of the step depends."""
    earlier = frozenset().union(*(noisy.earlier for noisy in sums))
    return [noisy for number, noisy in enumerate(sums) if number not in earlier]


def _factor(sums: Sequence[NoisySum], gradient: Any) -> float:
    """The factor by which p.grad is a multiple of the noisy sums; NaN if it is no multiple."""
    values = torch.cat([noisy.values.cpu() for noisy in sums])
    p_grad = torch.as_tensor(gradient, dtype=torch.float64)
    if values.numel() != p_grad.numel() or not (values.norm() > 0 and p_grad.norm() > 0):
        return math.nan
    factor = float(torch.dot(values, p_grad) / values.square().sum())
    gap = (p_grad - factor * values).norm()
    return factor if gap <= _ROUNDING * p_grad.norm() else math.nan


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _range(tensor: Tensor) -> tuple[int, int]:
    """The first and the last number of the memory that a tensor views."""
    first = int(tensor.storage_offset())
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return first, first + sum((size - 1) * stride for size, stride in pairs)


def _is_number(tensor: Tensor) -> bool:
    """Whether a tensor is one number, which may be expanded to a larger shape."""
    return tensor.untyped_storage().nbytes() <= tensor.element_size()


def _tensors(value: Any) -> Iterator[Tensor]:
    """The dense tensors in the arguments or the results of an operation."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _tensors(member)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))

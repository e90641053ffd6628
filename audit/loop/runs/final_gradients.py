"""Forces p.grad as soon as it is the released gradient, which may be before `optimizer.step()`.

A loop may compute momentum or a norm from its noisy gradients before the step. In a coupled run
these must come from the forced gradient, because they are a post-processing of it. The reference
shows where: a line of the user's code at which every access of p.grad finds or sets what the step
then releases. Lines that see anything else, such as the sum before its noise, are left alone.

A loop may also change its noisy gradients before the step (momentum, signs, another clipping). Then
the value that is released may be the one that a line sets p.grad to; the reference shows this line.
An optimizer of Opacus releases what its `scale_grad` leaves in p.grad, which a loop may change
between `pre_step` and the step of the optimizer within, or in a hook of the step.
"""

import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from audit.loop.sources.trees import as_numbers

Site = tuple[str, int, str]
"""File and line of the user's code, and "get" or "set"."""

OF_OPACUS: Site = ("opacus", 0, "set")
"""Represents the end of `scale_grad` in an optimizer of Opacus."""

_LIBRARIES = ("torch", "opacus", "functorch")
_WATCHING = (__name__, "audit.loop.runs.noisy_sums")


class AccessedGradients:
    """Watches p.grad of some parameters from one step to the next.

    Args:
        parameters: returns the watched parameters.
        sites: the lines where p.grad is final in the reference, or None for the reference itself.
        forced: returns the released gradient [D] of a parameter by its place, or None.
        released_at: the line that sets p.grad to the released value, or None for the step itself.

    Attributes:
        sites_seen: for each line, whether p.grad was final at all accesses so far.
    """

    def __init__(
        self,
        parameters: Callable[[], list[Any]],
        sites: frozenset[Site] | None,
        forced: Callable[[int], Any],
        released_at: Site | None = None,
    ) -> None:
        self._parameters, self._sites, self._forced = parameters, sites, forced
        self._released_at = released_at
        self._own: dict[int, Any] = {}
        self._steps_of_lines: Counter[Site] = Counter()
        self._changed_later: set[Site] = set()
        self._steps = 0
        self.sites_seen: dict[Site, bool] = {}
        self._accesses: list[tuple[Site, int, bytes]] = []
        self._replaced: dict[int, _Replaced] = {}
        self._places: dict[int, int] = {}
        self._is_watching = False
        self._has_entered = False

    @property
    def final_sites(self) -> frozenset[Site]:
        """The lines where p.grad is always final; none if it is only set there and not read."""
        if self._sites is not None:
            return self._sites
        seen = self.sites_seen.items()
        final = frozenset(site for site, is_final in seen if is_final and site != OF_OPACUS)
        return final if any(kind == "get" for *_, kind in final) else frozenset()

    @property
    def earlier_line(self) -> Site | None:
        """The last line that sets every gradient once in each step and is not the last change."""
        lines = [site for site, steps in self._steps_of_lines.items() if steps == self._steps]
        return next((line for line in reversed(lines) if line in self._changed_later), None)

    def __enter__(self) -> Self:
        if self._sites is not None and not self._sites and self._released_at is None:
            return self  # nothing to force
        self._has_entered = True
        _start_to_watch(self)
        self.start_step()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._is_watching = False
        if self._has_entered:
            self._has_entered = False
            _end_to_watch(self)

    def start_step(self) -> None:
        """Starts to watch, after a step."""
        if not self._has_entered:
            return
        self._accesses.clear()
        self._replaced.clear()
        self._own.clear()
        self._places = {id(p): place for place, p in enumerate(self._parameters())}
        self._is_watching = True

    def end_step(self) -> Mapping[int, Any]:
        """Ends to watch, as p.grad is released.

        A closure may be called again before the next step. What it does then is not watched.

        Returns:
            For each parameter, by its place, whose gradient was forced: what this run releases.
        """
        self._is_watching = False
        if self._released_at is not None:
            # A gradient that the line did not set is not released.
            own = self._own
            parameters = self._parameters()
            return {i: own[i] if i in own else _zeros_like(p) for i, p in enumerate(parameters)}
        parameters = self._parameters() if self._accesses or self._replaced else []
        if self._sites is None:
            final = {place: _digest(p.grad) for place, p in enumerate(parameters)}
            for site, place, digest in self._accesses:
                is_final = bool(digest) and final.get(place) == digest
                self.sites_seen[site] = self.sites_seen.get(site, True) and is_final
            self._count_lines(final)
        released = {}
        for place, p in enumerate(parameters):
            replaced = self._replaced.get(id(p))
            if replaced is not None and p.grad is not None and not p.grad.is_sparse:
                released[place] = replaced.changed_as(p.grad.detach())
        self._accesses.clear()
        self._replaced.clear()
        return released

    def _count_lines(self, final: Mapping[int, bytes]) -> None:
        """Counts the step for each line that sets every gradient that is released, once."""
        released = sorted(place for place, digest in final.items() if digest)
        set_by_line: dict[Site, list[int]] = {}
        for site, place, digest in self._accesses:
            if site[2] == "set":
                set_by_line.setdefault(site, []).append(place)
                if digest != final.get(place):
                    self._changed_later.add(site)
        self._steps += 1
        self._steps_of_lines.update(
            site for site, places in set_by_line.items() if sorted(places) == released
        )

    def accessed(self, parameter: Any, value: Any, kind: str, site: tuple[str, int]) -> None:
        """Notes a gradient that is read or was set, and forces it where it is final.

        Args:
            parameter: the tensor whose gradient this is.
            value: its gradient.
            kind: "get" or "set".
            site: file and line.
        """
        if value is None or value.is_sparse:
            return
        if self._released_at is not None:
            if (*site, kind) == self._released_at:
                place = self._places[id(parameter)]
                self._own[place] = value.detach().clone()
                forced = self._forced(place)
                if forced is not None:
                    value.detach().copy_(forced)
            return
        if self._sites is None:
            self._accesses.append(((*site, kind), self._places[id(parameter)], _digest(value)))
            return
        if (*site, kind) not in self._sites or id(parameter) in self._replaced:
            return
        forced = self._forced(self._places[id(parameter)])
        if forced is not None:
            earlier = (r for r in self._replaced.values() if r.is_of(value))
            self._replaced[id(parameter)] = next(earlier, None) or _Replaced.by(value, forced)

    def after_scaling(self, scale: Callable[[], None]) -> None:
        """Notes, and forces, the gradients that an optimizer of Opacus releases, before its step.

        Args:
            scale: divides the noisy sums, the last change by Opacus.
        """
        scale()
        if not self._is_watching:
            return
        self._is_watching = False  # this is no access by the user
        try:
            for parameter in self._parameters():
                self.accessed(parameter, parameter.grad, OF_OPACUS[2], OF_OPACUS[:2])
        finally:
            self._is_watching = True

    def is_watching(self, tensor: Any) -> bool:
        """Whether this is a watched parameter, before a step."""
        return self._is_watching and id(tensor) in self._places


@dataclass(frozen=True)
class _Replaced:
    """A gradient whose numbers were replaced.

    Attributes:
        gradient: the tensor, which holds the forced numbers.
        own: the numbers that it had before.
        forced: a copy of the forced numbers, in the gradient's type.
    """

    gradient: Any
    own: Any
    forced: Any

    @classmethod
    def by(cls, gradient: Any, forced: Any) -> "_Replaced":
        gradient = gradient.detach()
        own = gradient.clone()
        gradient.copy_(forced)
        return cls(gradient, own, gradient.clone())

    def is_of(self, gradient: Any) -> bool:
        """Whether two parameters have the same numbers in memory as their gradients."""
        return bool(
            gradient.data_ptr() == self.gradient.data_ptr()
            and gradient.shape == self.gradient.shape
            and gradient.stride() == self.gradient.stride()
        )

    def changed_as(self, gradient: Any) -> Any:
        """This run's own numbers, after the changes of the forced ones that led to a gradient."""
        import torch

        if gradient.shape != self.own.shape:
            return gradient
        is_same = (gradient == self.forced) | (gradient.isnan() & self.forced.isnan())
        change = gradient.double() - self.forced.double()
        return torch.where(is_same, self.own.double(), self.own.double() + change)


_watches: list[AccessedGradients] = []
_lock = threading.Lock()


def _start_to_watch(watch: AccessedGradients) -> None:
    """Lets a watch see every access of p.grad; those of other checks or threads may be at work."""
    import torch

    with _lock:
        _watches.append(watch)
        if len(_watches) > 1:
            return
        original: Any = torch.Tensor.grad

        def get(tensor: Any) -> Any:
            value = original.__get__(tensor)
            _accessed(tensor, value, "get")
            return value

        def assign(tensor: Any, value: Any) -> None:
            original.__set__(tensor, value)
            _accessed(tensor, value, "set")

        # torch.compile would trace the functions, and calls them without end.
        untraced: Any = torch.compiler.disable
        watched = property(untraced(get), untraced(assign), original.__delete__)
        torch.Tensor.grad = watched  # type: ignore[assignment]


def _end_to_watch(watch: AccessedGradients) -> None:
    import torch

    with _lock:
        _watches.remove(watch)
        if not _watches:
            del torch.Tensor.grad


def _accessed(tensor: Any, value: Any, kind: str) -> None:
    for watch in tuple(_watches):
        if watch.is_watching(tensor):
            watch.accessed(tensor, value, kind, line_of_user_code())


def _zeros_like(tensor: Any) -> Any:
    import torch

    return torch.zeros_like(tensor.detach())


def _digest(tensor: Any) -> bytes:
    """A digest of the numbers of a tensor; empty where it has none that can be read."""
    values = None if tensor is None or tensor.is_sparse else as_numbers(tensor)
    return b"" if values is None else hashlib.blake2b(values.tobytes(), digest_size=16).digest()


def line_of_user_code() -> tuple[str, int]:
    """File and line of the innermost call that is not in a library."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module not in _WATCHING and module.partition(".")[0] not in _LIBRARIES:
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno

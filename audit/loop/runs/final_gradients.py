"""Forces p.grad as soon as it is the released gradient, which may be before `optimizer.step()`.

A loop may compute momentum or a norm from its noisy gradients before the step. In a coupled run
these must come from the forced gradient, because they are a post-processing of it. The reference
shows where: a line of the user's code at which every access of p.grad finds or sets what the step
then releases. Lines that see anything else, such as the sum before its noise, are left alone.

A loop may also change its noisy gradients before the step (momentum, signs, another clipping). Then
the value that is released may be the one that a line sets p.grad to; the reference shows this line.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from audit.loop.sources.trees import as_numbers

Site = tuple[str, int, str]
"""File and line of the user's code, and "get" or "set"."""

_LIBRARIES = ("torch", "opacus", "functorch")


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
        self._replaced: dict[int, tuple[Any, Any, Any]] = {}
        self._places: dict[int, int] = {}
        self._is_watching = False
        self._original: Any = None

    @property
    def final_sites(self) -> frozenset[Site]:
        """The lines where p.grad is always final; none if it is only set there and not read."""
        if self._sites is not None:
            return self._sites
        final = frozenset(site for site, is_final in self.sites_seen.items() if is_final)
        return final if any(kind == "get" for *_, kind in final) else frozenset()

    @property
    def earlier_line(self) -> Site | None:
        """The last line that sets every gradient once in each step and is not the last change."""
        lines = [site for site, steps in self._steps_of_lines.items() if steps == self._steps]
        return next((line for line in reversed(lines) if line in self._changed_later), None)

    def __enter__(self) -> Self:
        import torch

        if self._sites is not None and not self._sites and self._released_at is None:
            return self  # nothing to force
        self._original = torch.Tensor.grad
        original = self._original

        def get(tensor: Any) -> Any:
            value = original.__get__(tensor)
            if self._is_watching and id(tensor) in self._places:
                self._accessed(tensor, value, "get")
            return value

        def assign(tensor: Any, value: Any) -> None:
            original.__set__(tensor, value)
            if self._is_watching and value is not None and id(tensor) in self._places:
                self._accessed(tensor, value, "set")

        torch.Tensor.grad = property(get, assign, original.__delete__)  # type: ignore[assignment]
        self.start_step()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        import torch

        if self._original is not None:
            del torch.Tensor.grad
            self._original = None
        self._is_watching = False

    def start_step(self) -> None:
        """Starts to watch, after a step."""
        if self._original is None:
            return
        self._accesses.clear()
        self._replaced.clear()
        self._own.clear()
        self._places = {id(p): place for place, p in enumerate(self._parameters())}
        self._is_watching = True

    def end_step(self) -> Mapping[int, Any]:
        """Ends to watch, as p.grad is released.

        Returns:
            For each parameter, by its place, whose gradient was forced: what this run releases.
        """
        self._is_watching = False
        if self._released_at is not None:
            return dict(self._own)
        parameters = self._parameters() if self._accesses or self._replaced else []
        if self._sites is None:
            final = {place: _digest(p.grad) for place, p in enumerate(parameters)}
            for site, place, digest in self._accesses:
                is_final = final.get(place) == digest
                self.sites_seen[site] = self.sites_seen.get(site, True) and is_final
            self._count_lines(final)
        released = {}
        for place, (tensor, own, forced) in self._replaced.items():
            if place < len(parameters) and parameters[place].grad is tensor:
                # What was done to the forced gradient since then is done to this run's own.
                released[place] = own + (tensor - forced)
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

    def _accessed(self, tensor: Any, value: Any, kind: str) -> None:
        place = self._places[id(tensor)]
        if value is None or value.is_sparse:
            return
        site = (*_line_of_user(), kind)
        if self._released_at is not None:
            if site == self._released_at:
                self._own[place] = value.detach().clone()
                self._force(place, value)
            return
        if self._sites is None:
            self._accesses.append((site, place, _digest(value)))
            return
        if site not in self._sites or place in self._replaced:
            return
        own = value.detach().clone()
        if self._force(place, value):
            self._replaced[place] = value, own, value.detach().clone()

    def _force(self, place: int, value: Any) -> bool:
        """Whether there is a gradient to force, which then replaces the value."""
        forced = self._forced(place)
        if forced is not None:
            value.detach().copy_(forced)
        return forced is not None


def _digest(tensor: Any) -> bytes:
    values = None if tensor is None or tensor.is_sparse else as_numbers(tensor)
    return b"" if values is None else hashlib.blake2b(values.tobytes(), digest_size=16).digest()


def _line_of_user() -> tuple[str, int]:
    """File and line of the innermost call that is not in a library."""
    frame = sys._getframe(3)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno

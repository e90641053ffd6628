"""Forces p.grad as soon as it is the released gradient, which may be before `optimizer.step()`.

A loop may compute momentum or a norm from its noisy gradients before the step. In a coupled run
these must come from the forced gradient, because they are a post-processing of it. The reference
shows where: a line of the user's code at which every access of p.grad finds or sets what the step
then releases. Lines that see anything else, such as the sum before its noise, are left alone.
"""

import hashlib
import sys
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

    Attributes:
        sites_seen: for each line, whether p.grad was final at all accesses so far.
    """

    def __init__(
        self,
        parameters: Callable[[], list[Any]],
        sites: frozenset[Site] | None,
        forced: Callable[[int], Any],
    ) -> None:
        self._parameters, self._sites, self._forced = parameters, sites, forced
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

    def __enter__(self) -> Self:
        import torch

        if self._sites is not None and not self._sites:
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
        self._places = {id(p): place for place, p in enumerate(self._parameters())}
        self._is_watching = True

    def end_step(self) -> Mapping[int, Any]:
        """Ends to watch, as p.grad is released.

        Returns:
            For each parameter, by its place, whose gradient was forced: what this run releases.
        """
        self._is_watching = False
        parameters = self._parameters() if self._accesses or self._replaced else []
        if self._sites is None:
            final = {place: _digest(p.grad) for place, p in enumerate(parameters)}
            for site, place, digest in self._accesses:
                is_final = final.get(place) == digest
                self.sites_seen[site] = self.sites_seen.get(site, True) and is_final
        released = {}
        for place, (tensor, own, forced) in self._replaced.items():
            if place < len(parameters) and parameters[place].grad is tensor:
                # What was done to the forced gradient since then is done to this run's own.
                released[place] = own + (tensor - forced)
        return released

    def _accessed(self, tensor: Any, value: Any, kind: str) -> None:
        place = self._places[id(tensor)]
        if value is None or value.is_sparse:
            return
        site = (*_line_of_user(), kind)
        if self._sites is None:
            self._accesses.append((site, place, _digest(value)))
            return
        if site not in self._sites or place in self._replaced:
            return
        import torch

        forced = self._forced(place)
        if forced is None:
            return
        with torch.no_grad():
            own = value.detach().clone()
            value.detach().copy_(forced)
            self._replaced[place] = value, own, value.detach().clone()


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

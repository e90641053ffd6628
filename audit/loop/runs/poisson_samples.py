"""Poisson samples of Opacus from which one record is left out."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_SAMPLER = "opacus.utils.uniform_sampler"


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

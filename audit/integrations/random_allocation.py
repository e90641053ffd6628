"""A sampler of batches for torch loaders: each record draws one batch of every epoch."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from audit import checks


class RandomAllocationSampler:
    """Batches of an epoch in which every record drew its batch uniformly and independently.

    Pass it to a `DataLoader` as `batch_sampler`. Its runs are `accounting.RandomAllocation`, if the
    training adds noise to every batch, also to an empty one, and divides sums by the constant
    `records / batches` of its data set (for add-remove neighbours: by a constant that does not
    depend on the number of records). Batches have random sizes and may be empty; the default
    `collate_fn` of torch refuses empty lists, so pass one that accepts them.

    Attributes:
        records: number of records n.
        batches: number of batches t of an epoch.
        fixed: whether every record keeps its batch in all epochs.

    Args:
        records: n >= 1.
        batches: t >= 1.
        fixed: as above; by default every epoch draws again.
        generator: a `torch.Generator`; by default torch's global one.

    Example:
        >>> sampler = RandomAllocationSampler(records=6, batches=3)
        >>> epoch = list(sampler)
        >>> len(epoch), sorted(index for batch in epoch for index in batch)
        (3, [0, 1, 2, 3, 4, 5])
    """

    def __init__(
        self, records: int, batches: int, fixed: bool = False, generator: Any = None
    ) -> None:
        self.records = checks.integer("records", records, 1)
        self.batches = checks.integer("batches", batches, 1)
        self.fixed = checks.flag("fixed", fixed)
        self._generator = generator
        self._allocation: Any = None

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        if self._allocation is None or not self.fixed:
            import torch

            drawn = torch.randint(self.batches, (self.records,), generator=self._generator)
            self._allocation = drawn.numpy()
        allocation = self._allocation
        for batch in range(self.batches):
            yield np.flatnonzero(allocation == batch).tolist()

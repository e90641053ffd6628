"""What is random in the steps of R lanes: Gaussian noise and Poisson batches."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.dpsgd import streams


def gaussian_steps(
    seeds: NDArray[np.uint64],
    scales: NDArray[np.float64],
    steps: int,
    like: Tensor,
    size: int,
    steps_at_once: int,
) -> Iterator[Tensor]:
    """For every step N(0, scale^2) noise of R lanes, [R, size].

    Args:
        seeds: [R], one per lane.
        scales: [R], its standard deviation in each lane.
        steps: how many.
        like: a tensor of the same dtype and device.
        size: numbers of a lane and step.
        steps_at_once: for how many steps they are drawn together.
    """
    generators = streams.generators(seeds, 0, str(like.device))
    buffer = like.new_empty(len(seeds), steps_at_once, size)
    for start in range(0, steps, steps_at_once):
        rows = min(steps_at_once, steps - start)
        for lane, generator, scale in zip(buffer, generators, scales.tolist(), strict=True):
            lane[:rows].normal_(0, scale, generator=generator)
        for row in range(rows):
            yield buffer[:, row]


def poisson_steps(
    seeds: NDArray[np.uint64],
    rate: float,
    steps: int,
    device: torch.device,
    size: int,
    steps_at_once: int,
) -> Iterator[Tensor]:
    """For every step which of `size` records each lane takes, [R, size] bool, each on its own.

    Args:
        seeds: [R], one per lane.
        rate: the probability to be taken.
        steps: how many.
        device: of torch.
        size: records.
        steps_at_once: for how many steps they are drawn together.
    """
    generators = streams.generators(seeds, 1, str(device))
    buffer = torch.empty(len(seeds), steps_at_once, size, dtype=torch.float64, device=device)
    for start in range(0, steps, steps_at_once):
        rows = min(steps_at_once, steps - start)
        for lane, generator in zip(buffer, generators, strict=True):
            lane[:rows].uniform_(generator=generator)
        for row in range(rows):
            yield buffer[:, row] < rate

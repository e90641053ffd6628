"""Random generators of a training function: their states are part of what two runs share."""

import numpy as np
import torch

from audit.loop.runs.generators import digest_of_generators

torch.set_num_threads(1)


def test_generators_in_objects_and_functions_are_seen() -> None:
    class Holder:
        def __init__(self) -> None:
            self.inner = {"drawn": np.random.default_rng(0)}

    holder, torch_generator = Holder(), torch.Generator().manual_seed(0)

    def by_closure() -> torch.Tensor:
        return torch.rand(1, generator=torch_generator)

    def run() -> bytes:
        held = holder, by_closure
        assert held
        return digest_of_generators(None, digest.__code__)

    def digest() -> bytes:
        return run()

    start = digest()
    assert digest() == start
    holder.inner["drawn"].random()
    moved = digest()
    assert moved != start
    by_closure()
    assert digest() not in (start, moved)

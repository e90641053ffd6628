"""A stand-in optimizer for loops of arrays: one tensor per array, and steps that change nothing.

Every test of a watched optimizer reads the released gradient in a hook before the step and, in
coupled runs, replaces it there. A loop of arrays has no such hook. Its released values become the
gradients of the stand-in, whose step runs the hooks, and the gradients are read back.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from audit.loop.sources.trees import Tree, Values


class StandInOptimizer(torch.optim.Optimizer):
    """An optimizer whose parameters have the shapes of released arrays.

    Args:
        names: names of the arrays.
        shapes: their shapes.
        types: their types in torch.

    Attributes:
        leaf_names: names of the arrays.

    Example:
        >>> optimizer = StandInOptimizer(["w"], [(2,)], [torch.float32])
        >>> [value.tolist() for value in optimizer.release([np.array([1.0, 2.0])])]
        [[1.0, 2.0]]
    """

    def __init__(
        self, names: Sequence[str], shapes: Sequence[tuple[int, ...]], types: Sequence[Any]
    ) -> None:
        self.leaf_names = list(names)
        super().__init__(_tensors(shapes, types), {})

    def replace_parameters(
        self, names: Sequence[str], shapes: Sequence[tuple[int, ...]], types: Sequence[Any]
    ) -> None:
        """Takes new parameters, for arrays of other shapes than those before."""
        self.leaf_names = list(names)
        self.param_groups[0]["params"] = _tensors(shapes, types)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Runs the hooks of a step."""

    def release(self, values: Sequence[Values]) -> list[Values]:
        """The values that the loop uses from here: those of another run where it is coupled."""
        parameters = self.param_groups[0]["params"]
        for parameter, value in zip(parameters, values, strict=True):
            tensor = torch.from_numpy(np.array(value, np.float64))
            parameter.grad = tensor.to(parameter.dtype).reshape(parameter.shape)
        self.step()
        return [
            np.zeros(p.shape) if p.grad is None else p.grad.detach().double().numpy().copy()
            for p in parameters
        ]


def _tensors(shapes: Sequence[tuple[int, ...]], types: Sequence[Any]) -> list[torch.Tensor]:
    pairs = zip(shapes, types, strict=True)
    return [torch.zeros(shape, dtype=kind, requires_grad=True) for shape, kind in pairs]


def types_of(tree: Tree) -> list[Any]:
    """The types of a tree's arrays in torch; whole numbers become float64."""
    torch_types = {
        "float16": torch.float16,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
    }
    return [torch_types.get(leaf.values.dtype.name, torch.float64) for leaf in tree.leaves]

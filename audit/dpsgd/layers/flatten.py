"""`nn.Flatten`."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from audit.dpsgd.layers.base import Layer, describes
from audit.dpsgd.layers.functions import Function
from audit.dpsgd.program import Program


def _rows(x: Tensor) -> Tensor:
    return x.flatten(2)


@dataclass(frozen=True)
class Flatten(Function):
    """Flattens every record."""

    function: Callable[[Tensor], Tensor] = _rows

    def compile(self, program: Program) -> None:
        """Adds nothing: the next layer's weights use the layout of the feature map."""
        program.is_flat = True


@describes(nn.Flatten)
def _flatten(module: nn.Flatten) -> list[Layer]:
    if (module.start_dim, module.end_dim) != (1, -1):
        raise NotImplementedError("Flatten of only some dimensions")
    return [Flatten()]

"""`nn.Linear`."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from audit.dpsgd.layers.base import FirstLayer, Layer, describes
from audit.dpsgd.parameters import OuterProducts, Parameters, RecordGradients
from audit.dpsgd.products import affines, shared_affine
from audit.dpsgd.program import Program


@dataclass(frozen=True)
class Linear(FirstLayer):
    """X W^T + b on [m, inputs]."""

    inputs: int
    outputs: int
    has_bias: bool

    @property
    def parameters(self) -> int:
        return 1 + self.has_bias

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        if x.dim() > 3:
            raise NotImplementedError("Linear on more than one position per record")
        weight, bias = theta[0], theta[1] if self.has_bias else None
        if x.dim() == 2:
            return shared_affine(x, weight, bias), x
        return affines(x, weight, bias), x

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        back = delta @ theta[0] if need_input else None
        return back, OuterProducts(delta, saved, self.has_bias)

    def compile(self, program: Program) -> None:
        """Adds a row with one position that spans all inputs; records act as positions."""
        feature_map = program.feature_map
        shape = (self.outputs, program.channels, feature_map.height, feature_map.width)
        if not program.is_flat or program.is_at_records:
            raise NotImplementedError("Linear before Flatten or as the first layer")
        if self.inputs != shape[1] * shape[2] * shape[3]:
            raise NotImplementedError("a Linear layer whose inputs are not the feature map")
        program.add_affine(
            shape,
            self.has_bias,
            starts=[record * program.size for record in range(program.records_together)],
            positions=(1, 1),
            is_linear=1,
            rows=1,
            run=program.size,
        )


@describes(nn.Linear)
def _linear(module: nn.Linear) -> list[Layer]:
    return [Linear(module.in_features, module.out_features, module.bias is not None)]

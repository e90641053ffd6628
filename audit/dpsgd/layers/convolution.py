"""`nn.Conv2d`."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from audit.dpsgd.layers.base import FirstLayer, Layer, describes
from audit.dpsgd.parameters import KernelGradients, Parameters, RecordGradients, flat
from audit.dpsgd.products import affines, shared_affine
from audit.dpsgd.program import Program


@dataclass(frozen=True)
class Convolution(FirstLayer):
    """A convolution as a matrix product over patches, with explicit per-record gradients.

    These are small compared with the activations, and cheaper than norms from the patches' Gram
    matrices. Sizes are vertical and horizontal. `padding` has the zeros to the left, right, top and
    bottom; "same" padding may be asymmetric.
    """

    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    has_bias: bool

    @property
    def parameters(self) -> int:
        return 1 + self.has_bias

    def prepare(self, features: Tensor) -> Tensor:
        """The patches of [m, c, h, w], as [m, height, width, kh * kw * c]."""
        return self._patches(features).contiguous()

    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        y, (patches, weight, _) = self.forward_prepared(theta, self._patches(x))
        return y, (patches, weight, tuple(x.shape))

    def forward_prepared(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        weight, bias = flat(theta[0]), theta[1] if self.has_bias else None
        weight = weight.view(*theta[0].shape[:2], -1)  # [R, outputs, kh * kw * c]
        if x.dim() == 4:
            y = shared_affine(x.flatten(0, 2), weight, bias)
        else:
            y = affines(x.flatten(1, 3), weight, bias)
        y = y.view(len(y), *x.shape[-4:-1], -1).permute(0, 1, 4, 2, 3)
        return y, (x, weight, ())

    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        patches, weight, shape = saved
        runs, records, outputs = delta.shape[:3]
        size = patches.shape[-1]
        rows = delta.flatten(3).transpose(2, 3)  # [R, m, positions, outputs]
        if patches.dim() == 4:
            by_record = rows.permute(1, 0, 3, 2).reshape(records, runs * outputs, -1)
            gradient = affines(by_record, patches.flatten(1, 2).transpose(1, 2))
            gradient = gradient.view(records, runs, outputs, size).transpose(0, 1)
        else:
            gradient = rows.transpose(2, 3) @ patches.reshape(runs, records, -1, size)
        gradients = [gradient, rows.sum(2)] if self.has_bias else [gradient]
        back = None
        if need_input:
            columns = rows.reshape(runs, -1, outputs) @ weight
            back = self._scatter(columns.view(*patches.shape), shape)
        return back, KernelGradients(gradients, theta[0].shape[1:])

    def _patches(self, x: Tensor) -> Tensor:
        """The patches of [..., c, h, w], as [..., height, width, kh * kw * c]."""
        x = functional.pad(x, self.padding) if any(self.padding) else x
        (kh, kw), (sh, sw) = self.kernel, self.stride
        *lead, channels, h, w = x.shape
        height, width = self._output(h, w)
        *outer, c_step, h_step, w_step = x.stride()
        windows = x.as_strided(
            (*lead, height, width, kh, kw, channels),
            (*outer, sh * h_step, sw * w_step, h_step, w_step, c_step),
        )
        return windows.reshape(*lead, height, width, kh * kw * channels)

    def _output(self, height: int, width: int) -> tuple[int, int]:
        (kh, kw), (sh, sw) = self.kernel, self.stride
        return (height - kh) // sh + 1, (width - kw) // sw + 1

    def _scatter(self, columns: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The adjoint of `_patches`.

        The kernel is split into parts of the size of the stride. The patches of one part do not
        overlap, so that each part needs one addition.
        """
        (kh, kw), (sh, sw) = self.kernel, self.stride
        runs, records, channels, h, w = shape
        left, _, top, _ = self.padding
        height, width = columns.shape[2:4]
        columns = columns.view(runs, records, height, width, kh, kw, channels)
        rows = max(h + top, sh * (height + (kh - 1) // sh))
        across = max(w + left, sw * (width + (kw - 1) // sw))
        back = columns.new_zeros(runs, records, rows, across, channels)
        for i in range(0, kh, sh):
            for j in range(0, kw, sw):
                part = columns[:, :, :, :, i : i + sh, j : j + sw]
                tiles = back[:, :, i : i + sh * height, j : j + sw * width]
                tiles = tiles.view(runs, records, height, sh, width, sw, channels).transpose(3, 4)
                tiles[:, :, :, :, : part.shape[4], : part.shape[5]].add_(part)
        return back[:, :, top : top + h, left : left + w].permute(0, 1, 4, 2, 3)

    def compile(self, program: Program) -> None:
        """Adds a row with one position per kernel placement, and one span of inputs per row."""
        if program.is_flat:
            raise NotImplementedError("Convolution after Flatten")
        program.pad(self.padding)
        feature_map = program.feature_map
        (kh, kw), (sh, sw) = self.kernel, self.stride
        height, width = self._output(feature_map.height, feature_map.width)
        line = feature_map.width * feature_map.channels
        program.add_affine(
            (self.outputs, program.channels, kh, kw),
            self.has_bias,
            starts=[
                y * sh * line + x * sw * feature_map.channels
                for y in range(height)
                for x in range(width)
            ],
            positions=(height, width),
            rows=kh,
            run=kw * feature_map.channels,
            stride=line,
        )


@describes(nn.Conv2d)
def _convolution(module: nn.Conv2d) -> list[Layer]:
    if module.groups != 1 or module.dilation != (1, 1) or module.padding_mode != "zeros":
        raise NotImplementedError("a convolution with groups, dilation or nonzero padding")
    left, right, top, bottom = module._reversed_padding_repeated_twice
    (kh, kw), (sh, sw) = module.kernel_size, module.stride
    return [
        Convolution(
            module.out_channels,
            (kh, kw),
            (sh, sw),
            (left, right, top, bottom),
            module.bias is not None,
        )
    ]

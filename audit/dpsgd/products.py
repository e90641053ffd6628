"""Matrix products by the faster of the two libraries inside torch.

On a CPU torch gives float32 products to MKL, which leaves half of a processor's width unused where
it is not Intel's; oneDNN, which torch has for convolutions, uses all of it: 2.2 times the speed on
Zen 5, the same on Intel.
"""

import torch
from torch import Tensor
from torch.nn import functional

# Below so many multiplications a call of oneDNN costs more than it saves.
_WORTH_A_CALL = 1 << 21


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W^T + b.

    Args:
        x: [m, k], any strides.
        weight: [n, k], any strides.
        bias: [n].

    Returns:
        [m, n].
    """
    if _pays(x, x.numel() * len(weight)):
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return y
    return functional.linear(x, weight, bias)


def affines(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One product for each of R matrices.

    Args:
        x: [R, m, k], any strides.
        weight: [R, n, k], any strides.
        bias: [R, n].

    Returns:
        [R, m, n].
    """
    if _pays(x, x[0].numel() * weight.shape[1]):
        biases = [None] * len(x) if bias is None else bias.unbind()
        return torch.stack([affine(*each) for each in zip(x, weight, biases, strict=True)])
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def _pays(x: Tensor, multiplications: int) -> bool:
    if multiplications < _WORTH_A_CALL or x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]

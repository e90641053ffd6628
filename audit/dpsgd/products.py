"""Matrix products: by the faster of the two libraries inside torch, and with rounded operands.

On a CPU torch gives float32 products to MKL, which leaves half of a processor's width unused where
it is not Intel's; oneDNN, which torch has for convolutions, uses all of it: 2.2 times the speed on
Zen 5. On Intel's own MKL is as fast, and up to twice as fast with transposed operands.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from audit.dpsgd.precision import Precision

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
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            _dense(x), _dense(weight), bias, "none", [], ""
        )
        return y
    return functional.linear(x, weight, bias)


def _dense(matrix: Tensor) -> Tensor:
    """The matrix without gaps, with which oneDNN takes a hundred times as long."""
    return matrix if matrix.is_contiguous() or matrix.T.is_contiguous() else matrix.contiguous()


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


def shared_affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X W^T + b of one matrix that R runs share.

    Args:
        x: [m, k], any strides.
        weight: [R, n, k].
        bias: [R, n].

    Returns:
        [R, m, n], m outermost in memory.
    """
    y = affine(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    return y.view(len(x), *weight.shape[:2]).transpose(0, 1)


def _pays(x: Tensor, multiplications: int) -> bool:
    if multiplications < _WORTH_A_CALL or x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    return _is_onednn_faster()


@functools.cache
def _is_onednn_faster() -> bool:
    """Where torch has it, and MKL would run on a processor that is not Intel's, or is not there."""
    backends: Any = torch.backends
    if not backends.mkldnn.is_available():
        return False
    if not backends.mkl.is_available():
        return True
    # Older torch does not tell; then products are only slower.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return not str(capabilities.get("cpu_name", "")).startswith("Intel")


@contextlib.contextmanager
def rounded_operands(precision: Precision, device: torch.device) -> Iterator[None]:
    """Inside, the operands of matrix products on `device` are rounded as the precision says.

    A GPU rounds to tf32 by itself, and multiplies in bf16 with sums in float32. Elsewhere operands
    are rounded before a float32 product, which gives the same numbers slowly. A fused kernel
    (attention) is left as it is.
    """
    if precision.significand_bits is None:
        yield
        return
    is_cuda = device.type == "cuda"
    with _torch_flags(tf32=True):
        if is_cuda and precision.name == "tf32":
            yield
        else:
            with _RoundedOperands(precision.significand_bits, _OF_BF16 if is_cuda else {}):
                yield


@contextlib.contextmanager
def reproducible_products() -> Iterator[None]:
    """Inside, a GPU rounds no operands to tf32, and cuDNN sums in the same order every time.

    cuDNN is called for convolutions under `gradients.VmapModel` and Opacus alone.
    """
    with _torch_flags(tf32=False, deterministic=True):
        yield


@contextlib.contextmanager
def _torch_flags(tf32: bool, deterministic: bool | None = None) -> Iterator[None]:
    """Sets flags of the whole process, and sets them back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    if deterministic is not None:
        cudnn.deterministic = deterministic
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before


def rounded(x: Tensor, significand_bits: int) -> Tensor:
    """The nearest numbers of so many significant bits.

    Args:
        x: float32, any shape and strides.
        significand_bits: 8 gives bf16, with ties to even; other numbers round ties away from zero,
            as the conversion to tf32 (11) of NVIDIA's processors does.

    Returns:
        float32 numbers; infinities and NaN stay what they are.
    """
    if significand_bits == 8:
        return x.bfloat16().float()
    last = 1 << (24 - significand_bits)  # of the bits that are kept, float32 having 24
    bits = (x.view(torch.int32) + last // 2).bitwise_and_(-last)
    return torch.where(x.isnan(), x, bits.view(torch.float32))


_ATEN = torch.ops.aten
# Where among their arguments torch's products have their two factors.
_FACTORS = {
    _ATEN.mm: (0, 1),
    _ATEN.bmm: (0, 1),
    _ATEN.mv: (0, 1),
    _ATEN.dot: (0, 1),
    _ATEN.addmm: (1, 2),
    _ATEN.addbmm: (1, 2),
    _ATEN.baddbmm: (1, 2),
    _ATEN.addmv: (1, 2),
    _ATEN.convolution: (0, 1),
    _ATEN.convolution_backward: (0, 1, 2),
    torch.ops.mkldnn._linear_pointwise: (0, 1),
}
# Products of bf16 numbers with a float32 result, which torch has on a GPU since 2.8. All others are
# left to tf32, which holds every bf16 number.
_OF_BF16 = {
    _ATEN.mm: torch.mm,
    _ATEN.bmm: torch.bmm,
    _ATEN.addmm: torch.mm,
    _ATEN.baddbmm: torch.bmm,
}
if not hasattr(_ATEN.mm, "dtype"):
    _OF_BF16 = {}


class _RoundedOperands(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds the factors of every product that torch comes to, also below vmap and autograd."""

    def __init__(self, significand_bits: int, of_bf16: Mapping[Any, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._significand_bits = significand_bits
        self._of_bf16 = of_bf16

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        product = func.overloadpacket
        factors = _FACTORS.get(product, ())
        if product in self._of_bf16 and not kwargs:
            x, y = (args[i].bfloat16() for i in factors)
            z = self._of_bf16[product](x, y, out_dtype=torch.float32)
            return z if factors == (0, 1) else z.add_(args[0])
        operands = (
            rounded(each, self._significand_bits) if i in factors else each
            for i, each in enumerate(args)
        )
        return func(*operands, **kwargs or {})

"""Matrix products: by the faster of torch's two libraries, and with rounded operands.

On a CPU, torch computes float32 products with MKL. On processors not made by Intel, MKL uses half
of the vector width; oneDNN, which torch includes for convolutions, uses all of it and is 2.2 times
as fast on Zen 5. On Intel's processors MKL is as fast, and up to twice as fast with transposed
operands.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from audit.dpsgd.settings import Precision

# With fewer multiplications, the overhead of a oneDNN call exceeds its gain.
_MIN_ONEDNN_MULTIPLICATIONS = 1 << 21


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W^T + b, [m, n], of x [m, k], weight [n, k] and bias [n], with any strides."""
    if _use_onednn(x, x.numel() * len(weight)):
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            _dense(x), _dense(weight), bias, "none", [], ""
        )
        return y
    return functional.linear(x, weight, bias)


def _dense(matrix: Tensor) -> Tensor:
    """The matrix in contiguous memory: oneDNN is a hundred times slower otherwise."""
    return matrix if matrix.is_contiguous() or matrix.T.is_contiguous() else matrix.contiguous()


def affines(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One product of `affine` for each of R matrices, [R, m, k]; weight [R, n, k], bias [R, n]."""
    if _use_onednn(x, x[0].numel() * weight.shape[1]):
        biases = [None] * len(x) if bias is None else bias.unbind()
        return torch.stack([affine(*operands) for operands in zip(x, weight, biases, strict=True)])
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def shared_affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X W^T + b of R runs that share the matrix X [m, k]: [R, m, n], m outermost in memory."""
    y = affine(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    return y.view(len(x), *weight.shape[:2]).transpose(0, 1)


def _use_onednn(x: Tensor, multiplications: int) -> bool:
    if (
        multiplications < _MIN_ONEDNN_MULTIPLICATIONS
        or x.device.type != "cpu"
        or x.dtype != torch.float32
    ):
        return False
    return _is_onednn_faster()


@functools.cache
def _is_onednn_faster() -> bool:
    """Whether torch includes oneDNN, and MKL is missing or the processor is not Intel's."""
    backends: Any = torch.backends
    if not backends.mkldnn.is_available():
        return False
    if not backends.mkl.is_available():
        return True
    # Older versions of torch do not report the processor; products are then only slower.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return not str(capabilities.get("cpu_name", "")).startswith("Intel")


@contextlib.contextmanager
def rounded_operands(precision: Precision, device: torch.device) -> Iterator[None]:
    """Context in which the operands of matrix products on `device` are rounded to the precision.

    A GPU itself rounds to tf32, and multiplies in bf16 with sums in float32. Elsewhere, operands
    are rounded before a float32 product, which gives the same numbers more slowly. Fused kernels,
    such as attention, are not affected.
    """
    if precision.significand_bits is None:
        yield
        return
    is_cuda = device.type == "cuda"
    with _torch_flags(tf32=True):
        if is_cuda and precision.name == "tf32":
            yield
        else:
            with _RoundedOperands(precision.significand_bits, _BF16_PRODUCTS if is_cuda else {}):
                yield


@contextlib.contextmanager
def reproducible_products() -> Iterator[None]:
    """Context without tf32, in which cuDNN, which `VmapModel` and Opacus call, is deterministic."""
    with _torch_flags(tf32=False, deterministic=True):
        yield


@contextlib.contextmanager
def _torch_flags(tf32: bool, deterministic: bool | None = None) -> Iterator[None]:
    """Context that sets process-wide flags of torch and restores them on exit."""
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
    """float32 numbers rounded to the nearest with `significand_bits` significant bits.

    8 bits give bf16, with ties to even; otherwise ties round away from zero, as in the conversion
    to tf32 (11 bits) on NVIDIA's processors. Infinities and NaN do not change.
    """
    if significand_bits == 8:
        return x.bfloat16().float()
    unit = 1 << (24 - significand_bits)  # the lowest remaining bit; float32 has 24
    bits = (x.view(torch.int32) + unit // 2).bitwise_and_(-unit)
    return torch.where(x.isnan(), x, bits.view(torch.float32))


_ATEN = torch.ops.aten
# Positions of the factors among the arguments of torch's products.
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
# Products of bf16 numbers with a float32 result, which torch supports on a GPU since 2.8. Other
# products use tf32, which represents every bf16 number exactly.
_BF16_PRODUCTS = {
    _ATEN.mm: torch.mm,
    _ATEN.bmm: torch.bmm,
    _ATEN.addmm: torch.mm,
    _ATEN.baddbmm: torch.bmm,
}
if not hasattr(_ATEN.mm, "dtype"):
    _BF16_PRODUCTS = {}


class _RoundedOperands(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds the factors of every product that torch computes, also inside vmap and autograd."""

    def __init__(self, significand_bits: int, bf16_products: Mapping[Any, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._significand_bits = significand_bits
        self._bf16_products = bf16_products

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        product = func.overloadpacket
        factors = _FACTORS.get(product, ())
        if product in self._bf16_products and not kwargs:
            x, y = (args[i].bfloat16() for i in factors)
            z = self._bf16_products[product](x, y, out_dtype=torch.float32)
            return z if factors == (0, 1) else z.add_(args[0])
        operands = (
            rounded(argument, self._significand_bits) if i in factors else argument
            for i, argument in enumerate(args)
        )
        return func(*operands, **kwargs or {})

"""A fake GPU whose tensors are on the CPU and are identified by their storage.

Every operation below autograd and vmap passes `_Kernels`. It rejects operations that mix GPU and
CPU tensors, as CUDA does, and counts kernel launches, copies to the GPU and waits for it.
`_Attributes` implements the Python interface: `tensor.device`, `tensor.to(device)`. The CPU
computes all values.

torch's FakeTensorMode does not work here: if torch was built without CUDA, autograd and indexing
crash in that mode. A fake GPU cannot test properties of real kernels.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_HAS_GPU = torch.cuda.device_count() > 0
GPU = torch.device("cuda:0")
# The CPU when named explicitly; torch's code sees the device without an index on tensors of the
# fake GPU.
CPU = torch.device("cpu:0")
_ATEN = torch.ops.aten
_COPIES = ("aten::_to_copy", "aten::copy_")
_WAITS = ("aten::_local_scalar_dense", "aten::equal", "aten::masked_select", "aten::nonzero")
_WIDER = [p.dtype for p in (_ATEN.mm, _ATEN.bmm) if hasattr(p, "dtype")]
_FREE = ("aten::empty", "aten::new_empty", "aten::_unsafe_view")


class MixedDevices(RuntimeError):
    """An operation used tensors or generators of both the CPU and the GPU."""


class FakeCuda:
    """A context in which the device "cuda" is available.

    Args:
        monkeypatch: pytest's fixture.
        memory: memory of the GPU, in bytes.

    Attributes:
        counts: numbers of "launches", "copies" (to the GPU) and "waits" (of the CPU for the GPU).
        kernels: number of launches of each kernel.
        peak: maximum number of bytes on the GPU.
        limit: number of bytes above which allocation fails.
        lost: index of a copy to the GPU to omit, from 0; None omits none.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: float = 141e9) -> None:
        if _HAS_GPU:
            pytest.skip("the fake GPU needs a machine without a GPU")
        self.counts: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()
        self.peak = 0
        self.limit = float("inf")
        self.lost = None
        self._there: dict[Any, Any] = {}
        self._modes = (_Attributes(self), _Kernels(self))
        monkeypatch.setattr(torch, "Generator", _Generator)
        monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        # Functions on GPU tensors draw from the generator of the CPU.
        state = torch.zeros(16, dtype=torch.uint8)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device=None: state)
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [state])
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda new, device=None: None)
        monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda new: None)
        monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (memory / 3, memory))

    def __enter__(self) -> "FakeCuda":
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the GPU."""
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        found = self._there.get(tensor.untyped_storage()._cdata)
        return found is not None and not found[0].expired()

    def take(self, tensor: torch.Tensor, name: str = "") -> None:
        """Moves a tensor to the GPU."""
        storage = tensor.untyped_storage()
        self._there[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        if self.live > self.limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {name} {tuple(tensor.shape)}")
        self.peak = max(self.peak, self.live)

    @property
    def live(self) -> int:
        """The number of bytes on the GPU."""
        self._there = {k: kept for k, kept in self._there.items() if not kept[0].expired()}
        return sum(size for _, size in self._there.values())


class _Generator(torch.Generator):
    """A generator with a device; the CPU generates its numbers."""

    def __new__(cls, device: str = "cpu") -> Any:
        made = super().__new__(cls)
        made.is_there = torch.device(device).type == "cuda"
        return made


class _Attributes(TorchFunctionMode):
    # The mode is off inside this method, so `tensor.device` is the real device.
    def __init__(self, gpu: FakeCuda) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function == Tensor.device.__get__:
            return GPU if self._gpu.has(args[0]) else torch.device("cpu")
        if function == Tensor.is_cuda.__get__:
            return self._gpu.has(args[0])
        if function is Tensor.cpu:
            return self._to(args[0], CPU)
        if function is Tensor.to:
            return self._to(*args, **kwargs)
        if function in (Tensor.numpy, Tensor.data_ptr) and self._gpu.has(args[0]):
            raise MixedDevices(f"{function.__name__} of a tensor of the GPU")
        if kwargs.get("device") is not None:
            kwargs["device"] = _with_index(kwargs["device"])
        if (generator := kwargs.get("generator")) is not None:
            tensors = [arg for arg in args if isinstance(arg, Tensor)]
            device = self._device(tensors[0]) if tensors else kwargs.get("device", CPU)
            if generator.is_there != (device == GPU):
                raise MixedDevices(f"{function.__name__}: the generator of another device")
        return function(*args, **kwargs)

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        here = self._device(tensor)
        device, dtype = kwargs.get("device", here), kwargs.get("dtype", tensor.dtype)
        for arg in args:
            if isinstance(arg, Tensor):
                device, dtype = self._device(arg), arg.dtype
            elif isinstance(arg, torch.dtype):
                dtype = arg
            elif isinstance(arg, str | torch.device):
                device = arg
        device = _with_index(device)
        if device == here and dtype == tensor.dtype:
            return tensor
        return _ATEN._to_copy(tensor, dtype=dtype, device=device)

    def _device(self, tensor: torch.Tensor) -> torch.device:
        return GPU if self._gpu.has(tensor) else CPU


def _with_index(device: torch.device) -> torch.device:
    return GPU if torch.device(device).type == "cuda" else CPU


class _Kernels(TorchDispatchMode):
    def __init__(self, gpu: FakeCuda) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(
        self, function: Any, types: tuple[()], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        gpu, kwargs = self._gpu, dict(kwargs or {})
        name = function._schema.name
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        strays = [each for each in tensors if not gpu.has(each)]
        any_there = len(strays) < len(tensors)
        # Zero-dimensional tensors are passed by value, except in lists.
        wrong = [each for each in strays if each.dim() or name in ("aten::cat", "aten::stack")]
        if any_there and wrong and name not in _COPIES:
            raise MixedDevices(f"{name}: {[tuple(each.shape) for each in wrong]} on the CPU")
        is_there = any_there
        if (device := kwargs.get("device")) is not None:
            kwargs["device"] = torch.device("cpu")
            is_there = device == GPU or (any_there and device != CPU)
        if name == "aten::copy_":
            is_there = gpu.has(args[0])
        is_copy = is_there and not any_there and name in _COPIES
        if is_copy or (is_there and strays and name == "aten::copy_"):
            gpu.counts["copies"] += 1
            is_there = gpu.counts["copies"] - 1 != gpu.lost
        out = _on_cpu(function, args, kwargs)
        if is_there:
            for each in tree_iter(out):
                if isinstance(each, Tensor) and not gpu.has(each):
                    gpu.take(each, name)
        if any_there and (not is_there or name in _WAITS or _has_mask(name, args)):
            gpu.counts["waits"] += 1
        elif is_there and not is_copy and not function.is_view and not name.startswith(_FREE):
            gpu.counts["launches"] += 1
            gpu.kernels[name.removeprefix("aten::")] += 1
        return out


def _on_cpu(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of a kernel; emulates products with wider outputs, which only GPUs support."""
    if function not in _WIDER:
        return function(*args, **kwargs)
    x, y = (each.float() for each in args[:2])
    return x @ y


def _has_mask(name: str, args: Any) -> bool:
    """Whether an index is a mask, for which the CPU must wait to know the result's size."""
    if not name.startswith("aten::index"):
        return False
    return any(
        isinstance(each, Tensor) and each.dtype == torch.bool for each in tree_iter(args[1:])
    )

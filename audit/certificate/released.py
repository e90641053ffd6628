"""Hash of a released model, computed from its values rather than from a file format."""

import hashlib
import struct
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

_MAX_DEPTH = 50


def model_hash(model: Any) -> str | None:
    """SHA-256 over the values of a model, the same in every process and file format.

    Reads numbers, texts, bytes, arrays, torch tensors, torch modules (through `state_dict`), and
    mappings and sequences of these.

    Args:
        model: the model of an `Outcome`.

    Returns:
        64 hexadecimal digits; None without a model, or if it has values of another kind.

    Example:
        >>> import numpy as np
        >>> model_hash({"weight": np.zeros(3)}) == model_hash({"weight": np.zeros(3)})
        True
        >>> model_hash(object()) is None
        True
    """
    if model is None:
        return None
    digest = hashlib.sha256()
    try:
        _update(digest, model, 0)
    except _UnknownKind:
        return None
    return digest.hexdigest()


class _UnknownKind(Exception):
    """A value has no canonical bytes."""


def _update(digest: Any, value: Any, depth: int) -> None:
    """Adds the kind, size and bytes of a value, so that different values give different bytes."""
    torch = sys.modules.get("torch")  # if the model is a torch model, torch is imported
    if depth > _MAX_DEPTH:
        raise _UnknownKind
    if torch is not None and isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if torch is not None and isinstance(value, torch.Tensor):
        value = _array_of(torch, value)
    if isinstance(value, bool | type(None)):
        _add(digest, "constant", repr(value).encode())
    elif isinstance(value, int):
        _add(digest, "integer", str(value).encode())
    elif isinstance(value, float):
        _add(digest, "float", struct.pack("<d", value))
    elif isinstance(value, str):
        _add(digest, "text", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes | bytearray):
        _add(digest, "bytes", bytes(value))
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.names:
            raise _UnknownKind
        _add(digest, "array", f"{array.dtype.newbyteorder('<').str} {array.shape}".encode())
        ordered = np.ascontiguousarray(array)
        _add(digest, "values", ordered.astype(array.dtype.newbyteorder("<")).tobytes())
    elif isinstance(value, Mapping):
        _add(digest, "mapping", str(len(value)).encode())
        for key, item in value.items():
            _update(digest, key, depth + 1)
            _update(digest, item, depth + 1)
    elif isinstance(value, list | tuple):
        _add(digest, "sequence", str(len(value)).encode())
        for item in value:
            _update(digest, item, depth + 1)
    else:
        raise _UnknownKind


def _array_of(torch: Any, tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    if tensor.is_sparse or tensor.is_quantized:
        raise _UnknownKind
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()  # numpy lacks bfloat16; float32 represents each value exactly
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        raise _UnknownKind from None


def _add(digest: Any, kind: str, content: bytes) -> None:
    digest.update(f"{kind}:{len(content)}:".encode())
    digest.update(content)

"""Files of values and arrays, written atomically and read without pickle.

A file has a header in json and the bytes of its arrays, followed by a checksum. It holds plain
values, lists, tuples, dictionaries, and arrays of numpy, torch and JAX. No class of the user is
stored, so reading a file runs no code of anyone else.
"""

import base64
import hashlib
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput
from audit.files import open_same, write_durably

_MAGIC = b"dp-tuning-audit state 1\n"
_CHECKSUM_BYTES = 32
_LENGTH_BYTES = 8
_DRAFT = ".draft"


def write_state(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a file atomically: a process that is killed leaves the former file.

    The draft has a random name and is created exclusively, so that two processes that write the
    same file cannot mix their contents.

    Raises:
        InvalidInput: a value is none that can be stored.
        OSError: the file cannot be written.
    """
    arrays: list[NDArray[np.uint8]] = []
    packed = _pack(dict(content), arrays, "state")
    header = json.dumps({"content": packed, "sizes": [array.size for array in arrays]}).encode()
    body: list[Any] = [_MAGIC, len(header).to_bytes(_LENGTH_BYTES, "big"), header, *arrays]
    checksum = hashlib.sha256()
    for chunk in body:
        checksum.update(chunk)
    draft = path.with_name(f"{path.name}{_DRAFT}-{secrets.token_hex(8)}")
    write_durably(path, [*body, checksum.digest()], draft)


def read_state(path: Path) -> dict[str, Any] | None:
    """The content of a file; None if it does not exist, is damaged, or is a link."""
    try:
        with open(path, "rb", opener=open_same) as file:
            data = file.read()
    except OSError:
        return None
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != checksum:
        return None
    start = len(_MAGIC) + _LENGTH_BYTES
    end = start + int.from_bytes(body[len(_MAGIC) : start], "big")
    header = json.loads(body[start:end])
    arrays = []
    for size in header["sizes"]:
        arrays.append(np.frombuffer(body, np.uint8, size, end).copy())
        end += size
    content: dict[str, Any] = _unpack(header["content"], arrays)
    return content


def _pack(value: Any, arrays: list[NDArray[np.uint8]], name: str) -> Any:
    """The value as json; arrays are appended to the list and replaced by their position."""
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    kind = type(value)
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind in (list, tuple):
        return {kind.__name__: [_pack(item, arrays, name) for item in value]}
    if isinstance(value, Mapping) and kind.__module__ in ("builtins", "collections"):
        items = [item for pair in value.items() for item in pair]
        return {"dict": [_pack(item, arrays, name) for item in items]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        scalar = {"scalar": True} if isinstance(value, np.generic) else {}
        return {"numpy": _add(arrays, np.asarray(value)), **scalar}
    packers: dict[str, Callable[..., Any]] = {"torch": _pack_torch, "jax": _pack_jax}
    for library, packer in packers.items():
        if library in sys.modules and (packed := packer(value, arrays)) is not None:
            return packed
    raise InvalidInput(
        f"{name} must hold numbers, text, arrays of numpy, torch or JAX, and lists, tuples and "
        f"dictionaries of them, got {checks.kind_of(value)}; pass an object with state_dict and "
        "load_state_dict by itself"
    )


def _add(arrays: list[NDArray[np.uint8]], array: NDArray[Any]) -> list[Any]:
    arrays.append(np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8))
    # The names of JAX's own types, such as bfloat16, say more than their codes.
    text = array.dtype.name if array.dtype.kind == "V" else array.dtype.str
    return [len(arrays) - 1, text, list(array.shape)]


def _pack_torch(value: Any, arrays: list[NDArray[np.uint8]]) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    arrays.append(flat.numpy().copy())
    kind = str(value.dtype).removeprefix("torch.")
    return {"torch": [len(arrays) - 1, kind, list(value.shape)], "device": value.device.type}


def _pack_jax(value: Any, arrays: list[NDArray[np.uint8]]) -> Any:
    jax = sys.modules["jax"]
    if not isinstance(value, jax.Array):
        return None
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(value))
        return {"key": _add(arrays, data), "generator": str(jax.random.key_impl(value))}
    return {"jax": _add(arrays, np.asarray(value))}


def _unpack(packed: Any, arrays: list[NDArray[np.uint8]]) -> Any:
    if not isinstance(packed, dict):
        return packed
    kind, content = next(iter(packed.items()))
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in ("list", "tuple"):
        values = [_unpack(value, arrays) for value in content]
        return values if kind == "list" else tuple(values)
    if kind == "dict":
        items = [_unpack(item, arrays) for item in content]
        return dict(zip(items[::2], items[1::2], strict=True))
    place, dtype, shape = content
    data = arrays[place]
    if kind == "torch":
        import torch

        return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)
    if kind == "numpy":
        array = data.view(np.dtype(dtype)).reshape(shape)
        return array[()] if "scalar" in packed else array
    import jax

    array = data.view(jax.numpy.dtype(dtype)).reshape(shape)
    if kind == "key":
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=packed["generator"])
    return jax.numpy.asarray(array)

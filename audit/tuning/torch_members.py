"""The tensors and modules inside a value: a module, an optimizer, or a collection of them."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any


def members_of(value: Any) -> Iterator[Any]:
    """Every module, parameter, buffer and tensor inside a value; nothing if torch is not imported.

    Lists, tuples and mappings are searched, and of an optimizer its parameters.
    """
    torch: Any = sys.modules.get("torch")  # if a value is of torch, torch is imported
    if torch is None:
        return
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.modules()
        yield from value.parameters()
        yield from value.buffers()
    elif hasattr(value, "param_groups"):
        yield from (parameter for group in value.param_groups for parameter in group["params"])
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from members_of(item)


def tensors_of(value: Any) -> Iterator[Any]:
    """Every tensor inside a value, as for `members_of`."""
    torch: Any = sys.modules.get("torch")
    return (member for member in members_of(value) if isinstance(member, torch.Tensor))

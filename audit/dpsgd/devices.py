"""Validation of torch devices."""

import torch

from audit.errors import InvalidInput


def check_device(name: str) -> torch.device:
    """The torch device of that name, if it is a CPU or an available CUDA device."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidInput(
            f"device must be cpu or an available CUDA device, got {name}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"device must be cpu or cuda, got {name}")
    return device

"""Devices of torch, checked once."""

import torch


def check_device(name: str) -> torch.device:
    """A torch device that is there.

    Raises:
        ValueError: one that is not.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device must be cpu or a CUDA device that is there, got {name}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {name}")
    return device

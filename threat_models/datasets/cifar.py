"""Reads the batches of CIFAR10, which are pickles, without unpickling them."""

from pathlib import Path

import numpy as np

from audit.errors import InvalidInput
from threat_models.datasets.plain_pickle import load
from threat_models.datasets.records import Bytes, labels_of, pixels_of, read_bytes, reading


def read_cifar(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Pixels [n, 3, 32, 32] and labels [n] from all batches of a split."""
    pixels, labels = [], []
    for path in paths:
        with reading(path):
            batch = load(read_bytes(path))
            if not isinstance(batch, dict):
                raise InvalidInput(f"it must contain a dictionary, got {type(batch).__name__}")
            # Keys are bytes in the official files, and text in files that a tool rewrote.
            batch = {k if isinstance(k, str) else k.decode(): v for k, v in batch.items()}
            for key in ("data", "labels"):
                if key not in batch:
                    raise InvalidInput(f"it must contain {key!r}")
            pixels.append(pixels_of(batch["data"], (3072,)))
            labels.append(labels_of(batch["labels"], len(pixels[-1])))
    return np.concatenate(pixels).reshape(-1, 3, 32, 32), np.concatenate(labels)

"""Loads the compiled extensions, which are missing if there was no C compiler."""

import importlib
from typing import Any

_FUNCTIONS = {
    "noise": ("normals", "descend", "train", "batches", "words", "normal_rows"),
    "convolutional": ("clipped_sums",),
}
_SUFFIXES = {"AVX512": "avx512", "AVX2": "avx2"}


def load_extension(kind: str, capability: str) -> Any:
    """The extension for torch's name of a processor's capability; None if there is none.

    Raises:
        ImportError: it was compiled from an earlier version of its source.
    """
    name = f"audit.dpsgd._{kind}_{_SUFFIXES.get(capability, 'portable')}"
    try:
        extension = importlib.import_module(name)
    except ImportError:
        return None
    missing = [function for function in _FUNCTIONS[kind] if not hasattr(extension, function)]
    if missing:
        raise ImportError(
            f"{name} must be compiled from the current source, got an earlier one without "
            f"{', '.join(missing)}: install the package again, in a checkout with pip install -e ."
        )
    return extension

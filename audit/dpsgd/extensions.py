"""Loads the compiled extensions, which are missing if there was no C compiler."""

import importlib
from typing import Any

_SUFFIXES = {"AVX512": "avx512", "AVX2": "avx2"}


def load_extension(kind: str, capability: str) -> Any:
    """The extension for torch's name of a processor's capability; None if there is none."""
    try:
        return importlib.import_module(
            f"audit.dpsgd._{kind}_{_SUFFIXES.get(capability, 'portable')}"
        )
    except ImportError:
        return None

"""Where the user's code calls its optimizer."""

import sys
from pathlib import Path

_OTHERS = (
    *("audit", "torch", "opacus", "contextlib", "functools", "lightning", "pytorch_lightning"),
    *("transformers", "accelerate", "safetensors", "fsspec"),
)


def line_of_user() -> str:
    """File and line of the innermost caller that belongs to the user; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if package not in _OTHERS:
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""

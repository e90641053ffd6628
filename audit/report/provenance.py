"""Provenance of results: version, date, libraries and hardware."""

import datetime
import os
import platform
from importlib import metadata
from typing import Any

from audit.version import __version__

_LIBRARIES = ("numpy", "scipy", "torch", "opacus", "joblib", "pandas")


def made() -> dict[str, Any]:
    """Version, date, libraries and hardware, as values for json."""
    return {
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "libraries": {name: _version_of(name) for name in _LIBRARIES},
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _version_of(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor()

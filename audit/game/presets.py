"""Settings kept in a file."""

import tomllib
from pathlib import Path
from typing import Any

from audit import checks


def read_preset(path: str) -> dict[str, Any]:
    """The settings of a preset file; its name is the default results folder beside it.

    Args:
        path: a TOML file whose keys are those of `AuditConfig`.

    Raises:
        ValueError: no such file, or not TOML.
    """
    file = Path(path)
    try:
        values = tomllib.loads(checks.read_text(file, 10**6))
    except OSError as error:
        raise ValueError(f"preset must be a readable TOML file, got {path!r}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"preset must be TOML, got {path!r}: {error}") from error
    return {"out": str(file.with_suffix("")), **values}

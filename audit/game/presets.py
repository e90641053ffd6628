"""Presets: TOML files with the settings of an audit, installed with the package."""

import os
import tomllib
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.numbers_from_text import is_ambiguous

_PACKAGE = Path(__file__).parents[1]


def preset_folder() -> Path:
    """The folder of the presets: `runs/` in a checkout, `audit/presets/` in a wheel."""
    installed = _PACKAGE / "presets"
    return installed if installed.is_dir() else _PACKAGE.parent / "runs"


def preset_names() -> dict[str, str]:
    """The installed presets for `audit.run`: names, and the first comment of each file."""
    titles = {}
    for file in sorted(preset_folder().glob("*.toml")):
        if not file.stem.startswith("reproduce-"):
            first_line = file.read_text(encoding="utf-8").partition("\n")[0]
            titles[file.stem] = first_line.lstrip("# ")
    return titles


def find_preset(name: str) -> Path:
    """The file of a preset: a path, or the name of an installed one such as `small-etcv`."""
    # Path.exists would raise an error for a name that is too long.
    if os.path.exists(name) or Path(name).suffix or len(Path(name).parts) != 1:
        return Path(name)
    names = sorted(file.stem for file in preset_folder().glob("*.toml"))
    return preset_folder() / f"{checks.one_of('preset', name, names)}.toml"


def read_preset(name: str) -> dict[str, Any]:
    """The settings of a preset: a TOML file with the keys of `AuditConfig`, or an installed name.

    The default folder of results is next to a file, and in `runs/` for an installed preset.
    """
    file = find_preset(name)
    try:
        values = tomllib.loads(checks.read_text(file, 10**6), parse_float=_float_of_toml)
    except OSError as error:
        raise InvalidInput(
            f"preset must be a readable TOML file, got {name!r}: {checks.reason_of(error)}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"preset must be TOML, got {name!r}: {error}") from error
    by_name = str(file) != name
    out = Path("runs", file.stem) if by_name else file.with_suffix("")
    return {"out": str(out), **values}


def _float_of_toml(text: str) -> float | str:
    """A number of a TOML file, as text if a setting of whole numbers must refuse it (20.000)."""
    return text if is_ambiguous(text) else float(text)

"""Helpers of the tests of certificates."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit import protocols
from audit.certificate.certificate import hash_of

ONE_RUN = protocols.parse_protocol("fixed:1")


def set_at(path: Any, value: Any) -> Callable[..., Any]:
    def change(values: dict[str, Any]) -> None:
        *way, last = path
        for key in way:
            values = values[key]
        values[last] = value

    return change


def forged(values: dict[str, Any], change: Callable[..., Any], path: Path) -> list[str]:
    """Changes a certificate and its hash, as a forger would."""
    values = json.loads(json.dumps(values))
    change(values)
    path.write_text(json.dumps(values | {"hash": hash_of(values)}))
    return [str(path)]

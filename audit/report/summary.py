"""Writes and reads summary.json (docs/audit_a_tuning.md describes it)."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.game.binding import SCHEMA
from audit.game.settings import AuditConfig
from audit.report.results import ALL_PROXIES, Report
from audit.typed_json import read_typed


def to_json(report: Report) -> str:
    """The report as json; infinity and NaN become null."""
    return json.dumps(_plain(_with_derived(report)), indent=2, allow_nan=False) + "\n"


def _with_derived(report: Report) -> dict[str, Any]:
    """All fields, the schema first, and the derived values of lower bounds."""
    values = asdict(report) | {"config": report.config.identity}
    for written, result in zip(values["results"], report.results, strict=True):
        for proxy, bounds in result.lower_bounds.items():
            for key, bound in bounds.items():
                written["lower_bounds"][proxy][key] = {
                    **{name: getattr(bound, name) for name in ("epsilon", "min", "mean", "max")},
                    **written["lower_bounds"][proxy][key],
                }
    return {"schema": values.pop("schema"), "made": values.pop("made"), **values}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read(path: Path) -> Report:
    """The report in a summary.json; one that is incomplete or has another schema is refused."""
    try:
        values = json.loads(checks.read_text(path))
        if not isinstance(values, dict):
            raise InvalidInput(f"{path.name} must be a mapping, got {str(values)[:40]}")
        if values.get("schema") != SCHEMA:
            raise InvalidInput(
                f"schema of {path.name} must be {SCHEMA}, got {values.get('schema')!r}: "
                "run the audit's command again to rewrite it"
            )
        report: Report = read_typed(Report, values, path.name, {AuditConfig: _settings})
        _check(report)
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        reason = checks.reason_of(error)
        if isinstance(error, FileNotFoundError):
            reason = f"it has no {path.name}" if path.parent.is_dir() else "no such folder"
        raise InvalidInput(
            f"folders must hold finished audits, got {str(path.parent)!r}: {reason}"
        ) from error
    return report


def _settings(values: Any) -> AuditConfig:
    """The settings of a summary, all of which must be stated."""
    config = AuditConfig.from_mapping(read_typed(Mapping[str, Any], values, "config"))
    for name in config.identity.keys() - values.keys():
        raise InvalidInput(f"config must have the setting {name}, got none")
    return config


def _check(report: Report) -> None:
    """Raises InvalidInput if a required part is empty."""
    if len(report.results) != len(report.config.epsilon):
        raise InvalidInput(f"summary.json must have every budget, got {len(report.results)}")
    for result in report.results:
        for name in result.lower_bounds:
            checks.one_of("proxy of summary.json", name, ALL_PROXIES)
        # The bounds that the text, the page and the figures show.
        needed = [(proxy, key) for key, _, proxies in report.highlights for proxy in proxies]
        for proxy, key in [*needed, (report.recommended.proxy, report.recommended.key)]:
            bound = result.lower_bounds.get(proxy, {}).get(key)
            if bound is None or not bound.repeats:
                raise InvalidInput(f"summary.json must have the bound {key} from {proxy}")

"""Writes and reads summary.json (docs/results.md describes it)."""

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from audit import checks
from audit.errors import InvalidInput
from audit.game.binding import SCHEMA
from audit.game.settings import AuditConfig
from audit.report.results import ALL_PROXIES, PROXIES, Report


def to_json(report: Report) -> str:
    """The report as json; infinity and NaN become null."""
    return json.dumps(_plain(_with_derived(report)), indent=2, allow_nan=False) + "\n"


def _with_derived(report: Report) -> dict[str, Any]:
    """All fields, the schema first, and the derived values of lower bounds."""
    values = asdict(report)
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
    """The report in a summary.json.

    Raises:
        InvalidInput: the file cannot be read, has another schema, or is incomplete.
    """
    try:
        values = json.loads(checks.read_text(path))
        if not isinstance(values, dict):
            raise InvalidInput(f"{path.name} must be a mapping, got {str(values)[:40]}")
        if values.get("schema") != SCHEMA:
            raise InvalidInput(
                f"schema of {path.name} must be {SCHEMA}, got {values.get('schema')!r}: "
                "run the audit's command again to rewrite it"
            )
        found: Report = _read(Report, values, path.name)
        _check(found)
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(
            f"folders must hold finished audits, got {str(path.parent)!r}: {error}"
        ) from error
    return found


def _check(report: Report) -> None:
    """Raises InvalidInput if the settings are invalid, or a required part is empty."""
    settings = AuditConfig.from_mapping(report.config)
    for name, value in report.config.items():
        # A number that was stored as text could not be printed.
        kinds = {type(getattr(settings, name, value)), type(value)}
        if kinds - {int, float, list, tuple} and len(kinds) > 1:
            raise InvalidInput(
                f"summary.json must have {name} as an audit writes it, got {value!r}"
            )
    if not isinstance(report.config.get("epsilon"), list):
        raise InvalidInput("summary.json must have budgets")
    if len(report.results) != len(settings.epsilon):
        raise InvalidInput(f"summary.json must have every budget, got {len(report.results)}")
    needed = [*PROXIES, report.recommended.proxy]
    for result in report.results:
        for name in result.lower_bounds:
            checks.one_of("proxy of summary.json", name, ALL_PROXIES)
        for name in needed:
            if name not in result.lower_bounds:
                raise InvalidInput(f"summary.json must have lower bounds from {name}")
        if result.lower_bounds.keys() != report.results[0].lower_bounds.keys():
            raise InvalidInput("summary.json must have the same proxies at every budget")
    bounds = [found for each in report.results for found in each.lower_bounds.values()]
    if not bounds or not all(bounds):
        raise InvalidInput("summary.json must have lower bounds of every budget and proxy")
    for budget in range(len(report.results)):
        for key, _, proxies in report.highlights:
            for proxy in proxies:
                if key not in report.results[budget].lower_bounds.get(proxy, {}):
                    raise InvalidInput(f"summary.json must have the bound {key} from {proxy}")
    if not all(bound.repeats for found in bounds for bound in found.values()):
        raise InvalidInput("summary.json must have every repeat of every lower bound")


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of the given type from parsed json.

    Raises:
        InvalidInput: the value has another type, or is incomplete.
    """
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (one for one in get_args(kind) if one is not types.NoneType)
        return _read(kind, value, where)
    if kind is Any:
        return value
    expected: Any = (
        dict
        if is_dataclass(kind)
        else {tuple: list, float: (int, float)}.get(origin or kind, origin or kind)
    )
    if not isinstance(value, expected) or (isinstance(value, bool) and kind is not bool):
        raise InvalidInput(
            f"{where} must be {_WORDS.get(expected, expected)}, got {str(value)[:40]}"
        )
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        given = {}
        for each in fields(kind):
            if each.name in value:
                inside = f"{where}: {each.name}"
                given[each.name] = _read(hints[each.name], value[each.name], inside)
            elif each.default is MISSING and each.default_factory is MISSING:
                raise InvalidInput(f"{where} must have {each.name}, got none")
        make: Any = kind
        return make(**given)
    if origin is tuple:
        return tuple(_read(get_args(kind)[0], item, where) for item in value)
    if origin is dict:
        inner = get_args(kind)[1]
        return {name: _read(inner, item, f"{where}: {name}") for name, item in value.items()}
    return float(value) if kind is float else value


_WORDS: dict[Any, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    (int, float): "a number",
}

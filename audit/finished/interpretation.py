"""From the recorded runs of one source to mechanisms: roles of columns, then the numbers.

The prior of random trials is read in the same way, from a table of all candidates and their
probabilities.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from audit import checks
from audit.accounting import DpSgd, Mechanism, Mixture
from audit.errors import InvalidInput
from audit.finished import readers
from audit.finished.columns import (
    FUNCTIONS,
    IGNORE,
    IN_CLIPPING_NORMS,
    LIKELY_ROLE,
    PLAIN,
    ROLES,
    ColumnRoles,
    is_missing,
    listed,
    looks_like_a_number,
    not_in_norms,
    refuse_doubtful,
    roles_of,
    typed_name,
    without_prefix,
    words_of,
)
from audit.finished.contradictions import refuse_less_private, refuse_other_trainings
from audit.finished.material import Material
from audit.finished.runs import RunSettings, chance_of, is_false, mechanism_of

_IDENTIFYING = frozenset({"noise_multiplier", "target_epsilon", "gdp_mu", "zcdp_rho"})
_DETERMINED_BY = {
    "batch_size": "sampling_rate",
    "epochs": "steps",
    "target_epsilon": "noise_multiplier",
}
"""The setting of all runs that a column with another role determines."""
_WHOLE_CURVES = ("gdp_mu", "zcdp_rho")
_SHUFFLING = ("poisson_sampling", "poisson")
_TO_TYPE = (
    "give them for all runs, as --noise-multiplier 1.1 --sampling-rate 0.01 --steps 500 (in "
    "Python, noise_multiplier=, sampling_rate=, steps=, or base=)"
)
_CHANCES = ("chance", "probability")
_RESEMBLES_CHANCE = frozenset(
    {"chances", "prob", "probabilities", "p", "weight", "weights", "pmf", "frequency", "share"}
)


def interpret(
    material: Material, mapping: Mapping[str, str], settings: RunSettings
) -> tuple[list[Mechanism], ColumnRoles]:
    """The mechanism of every run of a source, and the roles of its columns.

    Raises:
        InvalidInput: a column is not understood, or a run has no mechanism.
    """
    mechanisms = [run.mechanism for run in material.runs if run.mechanism is not None]
    if mechanisms:
        _check_no_settings(settings)
        return mechanisms, ColumnRoles({})
    columns = material.columns
    names = {name for column in columns for name in (column.strip(), without_prefix(column))}
    roles = roles_of(
        columns,
        {name: role for name, role in mapping.items() if name in names},
        bookkeeping=material.bookkeeping,
        where=material.name,
    )
    _check_batches(columns, settings)
    refuse_other_trainings(columns, mapping, roles.used, settings, material.name)
    if settings.base is not None:
        return _with_base(material, roles, settings)
    stated = {*roles.used.values(), *settings.constants}
    if not stated & _IDENTIFYING:
        raise InvalidInput(_nothing_known(material.name, columns, roles, mapping))
    varying = _varying(columns)
    by_columns, doubtful = set(roles.used.values()), dict(roles.doubtful)
    if "noise_multiplier" in stated:  # a target epsilon is then a statement about the same run
        targets = [column for column, role in roles.used.items() if role == "target_epsilon"]
        doubtful |= dict.fromkeys(targets, "epsilon")
    roles = refuse_doubtful(roles, by_columns, settings.constants, varying, material.name)
    _check_settings(roles, settings, varying, material.name)
    runs = _mechanisms(material, roles, settings)
    refuse_less_private(material, doubtful, runs, settings)
    return runs, _without_unneeded(roles, stated)


def units_remark(roles: ColumnRoles) -> str:
    """The units in which a column with a standard deviation in its name was read; else empty."""
    noises = [column for column, role in roles.used.items() if role == "noise_multiplier"]
    if not any(map(not_in_norms, noises)):
        return ""
    return f"column {checks.printable(noises[0])[:60]} was read in units of the clipping norm"


def rounding_remark(material: Material, roles: ColumnRoles, settings: RunSettings) -> str:
    """How the rate follows from a batch size that does not divide the records; else empty."""
    stated = {*roles.used.values(), *settings.constants}
    if settings.records is None or "batch_size" not in stated or "sampling_rate" in stated:
        return ""
    columns = [column for column, role in roles.used.items() if role == "batch_size"]
    cells = [run.values.get(column) for run in material.runs for column in columns]
    sizes: list[Any] = [cell for cell in cells if not is_missing(cell)]
    sizes += [settings.constants["batch_size"]] if "batch_size" in settings.constants else []
    known_sizes = [checks.integer("batch_size", size, 1) for size in sizes if size is not None]
    if all(settings.records % size == 0 for size in known_sizes):
        return ""
    way = "down, as if the loader dropped the last batch" if settings.drop_last else "up"
    return (
        "the sampling rate is that of Opacus, one over the number of batches of an epoch, which is "
        f"records / batch size rounded {way}; pass the sampling rate if another one was used"
    )


def _check_no_settings(settings: RunSettings) -> None:
    stated = [*settings.constants]
    stated += [
        name
        for name in ("records", "base", "neighbours", "target_delta", "accountant")
        if getattr(settings, name) is not None
    ]
    stated += ["group_size"] if settings.group_size != 1 else []
    if stated:
        raise InvalidInput(
            f"{stated[0]} must not be given with mechanisms, which state everything about their "
            "runs, got both"
        )


def _check_batches(columns: Mapping[str, list[Any]], settings: RunSettings) -> None:
    """Refuses Poisson sampling if a column says that batches were not sampled so."""
    for column, cells in columns.items():
        name = without_prefix(column).lower().rpartition("/")[2].rpartition(".")[2]
        shuffled = [cell for cell in cells if not is_missing(cell) and is_false(cell)]
        if name in _SHUFFLING and shuffled and settings.batches == "poisson":
            raise InvalidInput(
                f"batches must be drawn as the runs say, and column {checks.one_line(column)} says "
                f"that they were not Poisson sampled, got {checks.one_line(shuffled[0])}: pass "
                "--batches shuffled (in Python, batches='shuffled')"
            )


def _varying(columns: Mapping[str, list[Any]]) -> dict[str, bool]:
    """Whether each column has several values."""
    return {
        column: len({str(cell) for cell in cells if not is_missing(cell)}) > 1
        for column, cells in columns.items()
    }


def _check_settings(
    roles: ColumnRoles, settings: RunSettings, varying: Mapping[str, bool], where: str
) -> None:
    """Refuses a setting for all runs together with a column by which it differs between runs."""
    for column, role in roles.used.items():
        setting = _DETERMINED_BY.get(role, "")
        if setting in settings.constants and varying[column]:
            raise InvalidInput(
                f"{setting} must not be given for all runs, because {role} differs between those "
                f"of {where} (column {checks.one_line(column)}), got "
                f"{checks.one_line(settings.constants[setting])}"
            )


def _mechanisms(material: Material, roles: ColumnRoles, settings: RunSettings) -> list[Mechanism]:
    cached: dict[tuple[tuple[str, str], ...], Mechanism] = {}
    runs = []
    for run in material.runs:
        values = {
            role: run.values[column]
            for column, role in roles.used.items()
            if column in run.values and not is_missing(run.values[column])
        }
        rates = [role for role in ("sampling_rate", "batch_size") if role in roles.used.values()]
        if rates and not {*rates, *_WHOLE_CURVES} & {*values, *settings.constants}:
            full = "1" if rates[0] == "sampling_rate" else "the number of records"
            raise InvalidInput(
                f"{run.where}: {rates[0]} must be given for every run, got none: write {full} for "
                "full batches"
            )
        key = tuple((role, repr(cell)) for role, cell in values.items())
        if key not in cached:
            try:
                cached[key] = mechanism_of(values, settings)
            except ValueError as error:
                raise InvalidInput(f"{run.where}: {error}") from None
        runs.append(cached[key])
    return runs


def _without_unneeded(roles: ColumnRoles, determined: set[str]) -> ColumnRoles:
    """The roles, with columns that are not needed, because others determine the run."""
    reasons = {}
    if "noise_multiplier" in determined:
        reasons["target_epsilon"] = reasons["delta"] = "the noise is known"
    if "steps" in determined:
        reasons["epochs"] = "the steps are known"
    if "sampling_rate" in determined:
        reasons["batch_size"] = "the rate is known"
    if determined & {"gdp_mu", "zcdp_rho"}:
        reasons["delta"] = "the curve is known"
    used = {column: role for column, role in roles.used.items() if role not in reasons}
    unused = {column: reasons[role] for column, role in roles.used.items() if role in reasons}
    if not determined & {"target_epsilon"} and "delta" not in reasons:
        used = {column: role for column, role in used.items() if role != "delta"}
    return ColumnRoles(
        used, roles.not_about_privacy, roles.doubtful, {**dict(roles.unused), **unused}
    )


def _with_base(
    material: Material, roles: ColumnRoles, settings: RunSettings
) -> tuple[list[Mechanism], ColumnRoles]:
    """The given base for every run, if no column shows that runs differ from it."""
    base = settings.base
    assert base is not None
    if settings.constants:
        raise InvalidInput(
            f"{next(iter(settings.constants))} must not be given with base, which describes the "
            "whole run, got both"
        )
    columns = material.columns
    varying = _varying(columns)
    unused = {}
    for column, role in roles.used.items():
        cells = [cell for cell in columns[column] if not is_missing(cell)]
        stated = getattr(base, role, None) if isinstance(base, DpSgd) else None
        if role == "delta" or (not varying[column] and stated is None):
            unused[column] = "the base is given"
            continue
        for cell in cells:
            if stated is None or checks.interval(role, cell) != stated:
                raise InvalidInput(
                    f"base must be the mechanism of every run, but {material.name} has "
                    f"{'several values of' if stated is None else 'another'} {role} in column "
                    f"{checks.one_line(column)}, got {checks.one_line(cell)}: leave the base out, "
                    f"or add --columns '{typed_name(column)}={IGNORE}'"
                )
        unused[column] = "as the base"
    doubtful = refuse_doubtful(roles, (), ROLES, varying, material.name)
    unneeded_roles = ColumnRoles(
        {}, roles.not_about_privacy, {}, {**unused, **dict(doubtful.unused)}
    )
    return [base] * len(material.runs), unneeded_roles


def _nothing_known(
    name: str, columns: Mapping[str, list[Any]], roles: ColumnRoles, mapping: Mapping[str, str]
) -> str:
    """The message about a table that does not describe the privacy of its runs."""
    hints = [
        f"{without_prefix(column)}={PLAIN[without_prefix(column)]}"
        for column, cells in columns.items()
        if without_prefix(column) in PLAIN
        and without_prefix(column) not in mapping
        and any(map(looks_like_a_number, cells))
    ]
    hints += [
        f"{without_prefix(column)}={LIKELY_ROLE[kind]}"
        for column, kind in roles.doubtful.items()
        if kind in ("noise", "mu", "rho")
        and without_prefix(column) not in PLAIN
        and not FUNCTIONS & set(words_of(without_prefix(column)))
    ]
    typed = checks.printable(",".join(hints[:3]))[:160]
    map_them = f"; or map a column, such as --columns '{typed}' (in Python, columns=)"
    named = [hint.rpartition("=")[0] for hint in hints[:3]]
    absolute = [column for column in named if not_in_norms(column)]
    if absolute:
        map_them += f"; {IN_CLIPPING_NORMS.format(column=checks.one_line(absolute[0]))}"
    return (
        f"{name} must have noise_multiplier (with steps or epochs), target_epsilon, gdp_mu or "
        f"zcdp_rho as columns or parameters, got {listed(columns) or 'none'}: {_TO_TYPE}"
        f"{map_them if hints else ''}"
    )


def read_prior(path: str | Path, mapping: Mapping[str, str], settings: RunSettings) -> Mixture:
    """The prior from a table with one row per candidate.

    Args:
        path: the table, as for the trials; a column `chance` or `probability`, in upper or lower
            case, has the probabilities. Without it, all rows are equally likely.
        mapping: roles of columns.
        settings: what holds for all runs.

    Raises:
        InvalidInput: the table is not understood, or a candidate has no probability.
    """
    try:
        material = readers.read(path, readers.ReadOptions())
    except InvalidInput as error:
        raise InvalidInput(f"prior: {error}") from None
    columns = [name for name in material.columns if name.strip().lower() in _CHANCES]
    if len(columns) > 1:
        raise InvalidInput(f"prior must have one column of probabilities, got {listed(columns)}")
    chances = [1.0 / len(material.runs)] * len(material.runs)
    if columns:
        cells = [run.values.get(columns[0]) for run in material.runs]
        for run, cell in zip(material.runs, cells, strict=True):
            if is_missing(cell):
                raise InvalidInput(
                    f"{run.where}: {columns[0]} must be given for every candidate, got none"
                )
        try:
            chances = [chance_of(cell) for cell in cells]
        except ValueError as error:
            raise InvalidInput(f"prior: {error}") from None
        runs = tuple(
            replace(run, values={name: v for name, v in run.values.items() if name != columns[0]})
            for run in material.runs
        )
        material = replace(material, runs=runs)
    mechanisms, roles = interpret(material, mapping, settings)
    not_about_privacy = roles.not_about_privacy
    doubtful = [name for name in not_about_privacy if name.strip().lower() in _RESEMBLES_CHANCE]
    if doubtful:
        named = f"{', '.join(roles.used)} and {' or '.join(_CHANCES)}"
        raise InvalidInput(f"prior must have only columns {named}, got {listed(doubtful)}")
    total: dict[Mechanism, float] = {}
    for mechanism, chance in zip(mechanisms, chances, strict=True):
        total[mechanism] = min(total.get(mechanism, 0.0) + chance, 1.0)
    return Mixture(tuple(total), tuple(total.values()))

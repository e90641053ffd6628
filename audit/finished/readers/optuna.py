"""Optuna: a study, its storage (a database or a journal), or the csv of `trials_dataframe`.

A study in memory keeps its sampler. A storage does not, but grids, TPE and others leave marks in
it. Pruned trials and trials that were added by hand show that candidates depend on earlier results.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput, require_modules
from audit.finished.columns import is_missing, listed
from audit.finished.material import (
    COMPLETE,
    GRID,
    RANDOM,
    SEQUENTIAL,
    Evidence,
    Material,
    RecordedRun,
    state_of,
)
from audit.finished.readers.registry import (
    WEB,
    ReadOptions,
    TableFormat,
    as_path,
    reader,
    table_format,
)

_SAMPLERS = {"RandomSampler": RANDOM, "GridSampler": GRID, "QMCSampler": GRID}
"""Samplers that do not depend on earlier results; a quasi-random sequence is a fixed list."""

_BY_RESULTS = ("tpe:", "cma", "nsga", "gp:", "botorch", "motpe", "autosampler")
"""Beginnings of the marks of samplers that use earlier results."""

_SQLITE = b"SQLite format 3\0"

_OWN = frozenset(["number", "value", "datetime_start", "datetime_complete", "duration"])


def _is_study(source: Any) -> bool:
    return hasattr(source, "get_trials") and hasattr(source, "directions")


def _is_storage(source: Any) -> bool:
    if isinstance(source, str) and "://" in source:
        return not source.lower().startswith(WEB)
    path = as_path(source)
    if path is None or path.is_dir():
        return False
    return path.suffix in (".db", ".sqlite", ".sqlite3") or _is_sqlite(path) or _is_journal(path)


def _is_sqlite(path: Path) -> bool:
    """Whether a file is a database of sqlite, whatever its name."""
    if not checks.is_stored_file(path):
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def _is_journal(path: Path) -> bool:
    """Whether a file is a journal of Optuna: its first line is an operation."""
    if not checks.is_stored_file(path) or path.suffix in (".csv", ".tsv"):
        return False
    try:
        with path.open("rb") as file:
            entry = json.loads(file.readline(10**5))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and "op_code" in entry


@reader("Optuna", lambda source: _is_study(source) or _is_storage(source), place=100)
def read_optuna(source: Any, options: ReadOptions) -> Material:
    """The runs of an Optuna study."""
    if _is_study(source):
        return material_of_study(source)
    text = str(source)
    if "://" not in text and not _is_journal(Path(text)):
        text = f"sqlite:///{text}"
    return material_of_study(load_study(text, options.study))


def material_of_study(study: Any) -> Material:
    """The runs of an Optuna study: parameters and user attributes of every trial."""
    runs, parameters = [], set()
    for trial in study.trials:
        values = {**trial.user_attrs, **trial.params}
        differing = [
            name
            for name in trial.params.keys() & trial.user_attrs.keys()
            if trial.params[name] != trial.user_attrs[name]
        ]
        if differing:
            raise InvalidInput(
                f"trial {trial.number} must have one value of {differing[0]}, got a parameter "
                f"{checks.one_line(trial.params[differing[0]])} and a user attribute "
                f"{checks.one_line(trial.user_attrs[differing[0]])}"
            )
        parameters |= trial.params.keys()
        state = state_of(trial.state.name) or COMPLETE
        runs.append(RecordedRun(values, f"trial {trial.number}", state))
    if not runs:
        raise InvalidInput("the study must have at least one trial, got none")
    return Material(
        f"the study {checks.one_line(study.study_name)}",
        tuple(runs),
        _evidence_of_study(study),
        parameters=frozenset(parameters),
        objectives=len(study.directions),
    )


def _evidence_of_study(study: Any) -> Evidence:
    evidence = evidence_of_marks([set(trial.system_attrs) for trial in study.trials])
    if evidence.method is not None:
        return evidence
    if getattr(study, "_storage", None).__class__.__name__ != "InMemoryStorage":
        return evidence  # a loaded study has the sampler of the process that loads it
    sampler = type(study.sampler).__name__
    return Evidence(_SAMPLERS.get(sampler, SEQUENTIAL), (f"the sampler is {sampler}",))


def evidence_of_marks(marks: Sequence[Iterable[str]]) -> Evidence:
    """What the system attributes of trials show about the sampler."""
    names = [set(trial) for trial in marks]
    added = sum("fixed_params" in trial for trial in names)
    if added:
        subject = "1 trial was" if added == 1 else f"{added} trials were"
        return Evidence(SEQUENTIAL, (f"{subject} added by hand (enqueued)",))
    by_results = {name for trial in names for name in trial if name.startswith(_BY_RESULTS)}
    if by_results:
        mark = min(by_results).partition(":")[0]
        return Evidence(SEQUENTIAL, (f"trials have marks of the sampler {mark}",))
    grid = sum("grid_id" in trial for trial in names)
    if grid and grid == len(names):
        return Evidence(GRID, ("every trial has a mark of a grid sampler",))
    if grid or any(name.startswith("qmc:") for trial in names for name in trial):
        return Evidence(SEQUENTIAL, ("only some trials have marks of a grid or a sequence",))
    return Evidence()


def _is_export(columns: Sequence[str]) -> bool:
    return {"number", "state"} <= set(columns) and any(
        column.startswith(("params_", "value")) for column in columns
    )


def _evidence_of_export(rows: Sequence[Any]) -> Evidence:
    prefix = "system_attrs_"
    return evidence_of_marks(
        [
            {
                column.removeprefix(prefix)
                for column, cell in row.items()
                if column.startswith(prefix) and not is_missing(cell)
            }
            for row in rows
        ]
    )


def _with_objectives(material: Material, columns: Sequence[str]) -> Material:
    objective_count = sum(column.startswith("values_") for column in columns)
    return replace(material, objectives=max(objective_count, 1))


table_format(
    TableFormat(
        "Optuna",
        _is_export,
        lambda column: column in _OWN or column.startswith(("values_", "system_attrs_")),
        _evidence_of_export,
        lambda column: column.startswith("params_"),
        _with_objectives,
    )
)


def load_study(storage: str, name: str | None) -> Any:
    """A study with its trials, from a storage that is not changed."""
    require_modules("optuna", "optuna")
    import optuna  # the library; this module is audit.finished.readers.optuna

    is_journal = "://" not in storage
    # An address without its scheme may contain a password as well.
    where = "***" if is_journal and "@" in storage else checks.without_password(storage)
    try:
        opened = _journal(storage) if is_journal else _database(storage)
        names: Sequence[str] = optuna.get_all_study_names(opened)
        if name is None and len(names) == 1:
            name = names[0]
        if name in names:
            study = optuna.load_study(study_name=name, storage=opened)
            study.get_trials(deepcopy=False)  # reads now, so that an error names the study
            return study
    except Exception as error:  # drivers of storages raise errors of any class
        # Errors of drivers may contain the address with its password, so they are not chained.
        raise InvalidInput(
            "source must be the address of a storage of Optuna, such as sqlite:///study.db, or the "
            f"file of a journal, got {checks.one_line(where)}, {_reason(error, name)}"
        ) from None
    raise InvalidInput(
        f"study must name one of the studies {listed(names) or '(there are none)'} in "
        f"{checks.one_line(where)}, got {checks.one_line(name)}"
    )


def _reason(error: Exception, name: str | None) -> str:
    """Why a storage cannot be read."""
    said = str(error).lower()
    if isinstance(error, FileNotFoundError):
        return "where there is no file with content"
    if isinstance(error, _UnknownSchema) or "table schema" in said or "storage upgrade" in said:
        return (
            "whose tables are not those of the installed version of Optuna: install the version "
            "that wrote it, or run optuna storage upgrade on a copy"
        )
    if "locked" in said:
        return "which is locked: wait for the other process, or copy the file"
    if "no such table" in said or "not a database" in said:
        return f"which holds no studies{_OF_MLFLOW if 'mlflow' in said else ''}"
    if isinstance(error, ImportError):
        return "whose driver is not installed"
    kind = type(error).__name__
    if kind in ("ArgumentError", "NoSuchModuleError") or isinstance(error, _NoAddress):
        return "which is no address of a database that SQLAlchemy knows"
    if isinstance(error, ValueError | KeyError | TypeError) and name is not None:
        return f"where study {checks.one_line(name)} is damaged"
    return f"which cannot be read ({kind})"


class _NoAddress(Exception):
    """Text is no address of a database."""


class _UnknownSchema(Exception):
    """A storage has tables of another version of Optuna."""


_OF_MLFLOW = " but runs of MLflow: save mlflow.search_runs() as csv"

_SECONDS_LOCKED = 5.0  # to wait for another process that writes
_TO_A_FILE = "sqlite:///"
_TABLES = {"studies", "trials", "version_info"}


def _journal(file: str) -> Any:
    import optuna

    if not checks.is_stored_file(file):
        raise FileNotFoundError
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(file))


def _database(storage: str) -> Any:
    """An Optuna storage, opened without creating anything in it."""
    import optuna
    import sqlalchemy

    file = Path(storage.removeprefix(_TO_A_FILE))
    if storage.startswith(_TO_A_FILE) and checks.is_stored_file(file):
        address = sqlalchemy.engine.URL.create("sqlite", database=str(file))  # with any characters
    else:
        try:
            address = sqlalchemy.engine.make_url(storage)
        except ValueError:  # such as of a bracket that is not closed
            raise _NoAddress from None
    options: dict[str, Any] = {}
    if address.get_backend_name() == "sqlite":
        file = Path(address.database or "")
        if not checks.is_stored_file(file):
            raise FileNotFoundError
        # Otherwise, Optuna would add its tables to the file.
        options["creator"] = lambda: sqlite3.connect(
            f"{file.resolve().as_uri()}?mode=ro",
            uri=True,
            check_same_thread=False,
            timeout=_SECONDS_LOCKED,
        )
    engine = sqlalchemy.create_engine(address, **options)
    try:
        tables = set(sqlalchemy.inspect(engine).get_table_names())
        if not tables >= _TABLES:
            mlflow = {"experiments", "params", "metrics"} <= tables
            raise LookupError(f"no such table{' (mlflow)' if mlflow else ''}")
        _check_schema(engine)
    finally:
        engine.dispose()
    return optuna.storages.RDBStorage(
        address.render_as_string(hide_password=False),
        engine_kwargs=options,
        skip_table_creation=True,
    )


def _check_schema(engine: Any) -> None:
    """Refuses tables of another version, which Optuna would read as its own."""
    import sqlalchemy
    from optuna.storages._rdb.models import SCHEMA_VERSION  # no public name holds this number

    with engine.connect() as connection:
        versions = connection.execute(sqlalchemy.text("SELECT schema_version FROM version_info"))
        if [row[0] for row in versions] != [SCHEMA_VERSION]:
            raise _UnknownSchema

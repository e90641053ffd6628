"""Optuna: an objective under a private protocol, and the cost of a finished study."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from audit import checks
from audit.accounting import Mechanism
from audit.certificate import Certificate, model_hash
from audit.claims import Kind
from audit.errors import InvalidInput
from audit.finished.cost import WAYS, TuningCost, cost_of_trials
from audit.finished.trials_file import trial_of
from audit.protocols import Protocol
from audit.tuning import Best, Choice, Outcome, ProtocolViolation, Space, Study, Trial
from audit.upper_bounds import ProtocolLike

__all__ = ["PrivateStudy", "cost_of_study", "read_study"]

UNKNOWN = "unknown"
"""The way in which candidates were chosen, if the storage does not contain it."""

DIRECTIONS = ("maximize", "minimize")

_SAMPLERS = {"RandomSampler": "random", "GridSampler": "grid", "QMCSampler": "grid"}
"""Samplers that do not depend on earlier results; a quasi-random sequence is a fixed list."""


@dataclass(frozen=True)
class _Suggested(Choice):
    """The parameters that an objective suggests in each run."""

    values: tuple[Any, ...] = ({},)

    @property
    def spec(self) -> str:
        return "the values that the objective suggests, each drawn by Optuna's RandomSampler"


def _draws_candidates(protocol: Protocol) -> bool:
    """Whether every run has an independent candidate and the same noise, and one is released."""
    if protocol.is_adaptive or protocol.releases_several or protocol.releases_step:
        return False
    return protocol.candidates_are == "drawn"


class PrivateStudy:
    """Runs an `objective(trial)` with `trial.suggest_*`, unchanged, under a private protocol.

    Every run has its own Optuna study in memory, with a random sampler and one trial: no history,
    pruning, timeout or callbacks. To release a model with the parameters and the value, the
    objective calls `trial.set_user_attr("model", ...)`.

    Args:
        protocol: a distribution of K, which means random search, or `until:A` or `stopping:S`.
        direction: `maximize` or `minimize`.
        settings: those of `tuning.Study`, except its space.

    Raises:
        InvalidInput: another protocol, or an invalid argument of `tuning.Study`.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> study = PrivateStudy("fixed:3", base=GaussianMechanism(0.5), folder=None)
        >>> best = study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0))
        >>> best.score == best.candidate["x"]
        True
    """

    def __init__(
        self, protocol: str | Protocol, direction: str = "maximize", **settings: Any
    ) -> None:
        self._sign = (
            1.0 if checks.one_of("direction", direction, DIRECTIONS) == "maximize" else -1.0
        )
        self._model: Any = None
        self._study = Study(Space({"": _Suggested()}), protocol, **settings)
        if not _draws_candidates(self._study.protocol):
            raise InvalidInput(
                "protocol must draw every candidate independently (a distribution of K, until or "
                f"stopping), got {self._study.protocol.spec}"
            )

    @property
    def noise_multiplier(self) -> float | None:
        """Noise multiplier of every run; None if the base is not DP-SGD."""
        return self._study.noise_multiplier

    @property
    def certificate(self) -> Certificate:
        """The certificate, which may be published with the best run after the study."""
        return replace(self._study.certificate, model_hash=model_hash(self._model))

    @property
    def folder(self) -> Path | None:
        """The folder from which the study resumes; None if it is kept in memory only."""
        return self._study.folder

    def optimize(self, objective: Callable[..., float], **options: Any) -> Best:
        """Runs the study to its end.

        Args:
            objective: from an Optuna trial to a value, or from a trial and `records`. The trial's
                user attributes `noise_multiplier`, `steps` and `sampling_rate` (if the base is
                DP-SGD), `expected_batch_size` (if the study names one) and `seed` describe the run.
            options: those of `tuning.Study.run`. `accept` gets an outcome whose score is the value,
                negated if the direction is `minimize`.

        Returns:
            The parameters, the value and the user attribute `model` of the best run.
        """
        best = self._study.run(_Train(objective, self._sign), **options)
        if best.candidate is None or best.score is None:
            return Best()
        parameters, self._model = best.model
        return Best(parameters, self._sign * best.score, self._model)


@dataclass(frozen=True)
class _Train:
    """One run of an objective; a class, so that it can be pickled."""

    objective: Callable[..., Any]
    sign: float

    def __call__(self, trial: Trial, records: Any = None) -> Outcome:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        alone = optuna.create_study(
            sampler=optuna.samplers.RandomSampler(seed=trial.seed % 2**32),
            pruner=optuna.pruners.NopPruner(),
        )
        asked = alone.ask()
        known: dict[str, float] = {"seed": trial.seed}
        for name in ("noise_multiplier", "steps", "sampling_rate"):
            try:
                known[name] = getattr(trial, name)
            except AttributeError:
                break  # the base is not DP-SGD
        if trial.expected_batch_size is not None:
            known["expected_batch_size"] = trial.expected_batch_size
        for name, given in known.items():
            asked.set_user_attr(name, given)
        value = self.objective(asked) if records is None else self.objective(asked, records)
        if isinstance(value, tuple | list):
            raise ProtocolViolation(
                f"objective must return one number, got a {type(value).__name__}: with several "
                "objectives no run is the best"
            )
        return Outcome(self.sign * float(value), (asked.params, asked.user_attrs.get("model")))


def read_study(
    study: Any, base: Mechanism | None = None, neighbours: str = "add-remove"
) -> tuple[list[Mechanism], str]:
    """The trials of an Optuna study, and how their candidates were chosen.

    A study in memory keeps its sampler. A storage does not, but grids and TPE leave traces in it;
    without such traces the sampler is `unknown`. If a trial was pruned or added by hand
    (`enqueue_trial`), the candidates count as dependent on earlier results.

    Args:
        study: an Optuna study.
        base: the mechanism of a trial whose parameters and user attributes do not contain
            `noise_multiplier` and `steps` (and `sampling_rate`), or `mu`, or `rho`.
        neighbours: `add-remove`, `zero-out` or `replace-one`.

    Returns:
        The mechanism of every trial, failed ones included, and one of `cost_of_trials.WAYS` or
        `unknown`.

    Raises:
        InvalidInput: the mechanism of a trial is unknown.

    Example:
        >>> import optuna
        >>> from audit.accounting import GaussianMechanism
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
        >>> study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=3)
        >>> runs, chosen = read_study(study, GaussianMechanism(0.1))
        >>> len(runs), chosen
        (3, 'random')
    """
    found: list[Mechanism] = []
    for trial in study.trials:
        one = trial_of({**trial.user_attrs, **trial.params}, neighbours) or base
        if one is None:
            raise InvalidInput(
                "trials must have noise_multiplier and steps, mu or rho in their parameters or "
                f"user attributes, or base must be given, got trial {trial.number} without"
            )
        found.append(one)
    return found, _selection_method(study)


def _selection_method(study: Any) -> str:
    marks = [set(trial.system_attrs) for trial in study.trials]
    if any(trial.state.name == "PRUNED" for trial in study.trials):
        return "sequential"
    if any("fixed_params" in each for each in marks):
        return "sequential"  # added by hand, perhaps after a look at other trials
    if marks and all("grid_id" in each for each in marks):
        return "grid"
    if any(name.startswith(("tpe:", "cma", "nsga", "qmc:")) for each in marks for name in each):
        return "sequential"
    if getattr(study, "_storage", None).__class__.__name__ != "InMemoryStorage":
        # A loaded study has the sampler of the process that loads it.
        return UNKNOWN
    return _SAMPLERS.get(type(study.sampler).__name__, "sequential")


_UNKNOWN_SAMPLER = (
    "the storage does not keep the sampler, so candidates are taken to depend on earlier outputs; "
    "if the sampler was random, pass chosen random"
)
_SEVERAL_OBJECTIVES = (
    "a study of several objectives releases a Pareto front, which is more than one output, so all "
    "trials count"
)


def cost_of_study(
    study: Any,
    name: str | None = None,
    *,
    chosen: str | None = None,
    delta: float = 1e-5,
    protocol: ProtocolLike | None = None,
    base: Mechanism | None = None,
    neighbours: str = "add-remove",
    prior: Mechanism | None = None,
    cap: float | Mechanism | None = None,
    budgets: str | None = None,
) -> TuningCost:
    """Cost of a finished Optuna study.

    Args:
        study: an Optuna study; or the address of its storage, such as `sqlite:///study.db`, or the
            path of its journal. A sqlite file is opened for reading only.
        name: name of the study in the storage.
        chosen: one of `cost_of_trials.WAYS`; by default, a safe choice for the study.
        delta: in (0, 1).
        protocol: the distribution of the number of random trials; None if the number was fixed.
        base: the mechanism of a trial, if the study does not contain it.
        neighbours: `add-remove`, `zero-out` or `replace-one`.
        prior: the distribution of one trial (see `cost_of_trials`).
        cap: for sequential trials, the epsilon that was fixed in advance (see
            `cost_of_trials`).
        budgets: for sequential trials, `planned` or `adaptive` (see `cost_of_trials`).

    Returns:
        The cost. A study of several objectives releases more than one trial, so all trials count.

    Raises:
        InvalidInput: there is no such study, or the mechanism of a trial is unknown.

    Example:
        >>> import optuna
        >>> from audit.accounting import GaussianMechanism
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
        >>> study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=3)
        >>> found = cost_of_study(study, base=GaussianMechanism(0.1))
        >>> found.chosen, found.best_only < found.all_released
        ('random', True)
    """
    if chosen is not None:
        chosen = checks.one_of("chosen", chosen, WAYS)
    if isinstance(study, str | Path):
        study = _load(str(study), name)
    if not hasattr(study, "get_trials"):
        raise InvalidInput(
            f"study must be an Optuna study or its storage, got {checks.one_line(study)}"
        )
    runs, way = read_study(study, base, neighbours)
    way = chosen or way
    several = len(study.directions) > 1
    if several or way == UNKNOWN:
        if protocol is not None or prior is not None:
            raise InvalidInput(
                "protocol and prior must come with random trials and one objective, got "
                + ("several objectives" if several else "an unknown sampler: pass chosen random")
            )
        if several and budgets is None and cap is None and way in ("grid", "random"):
            budgets = "planned"  # candidates that ignore earlier results depend on no output
        found = cost_of_trials(runs, "sequential", delta, cap=cap, budgets=budgets)
        reason = _SEVERAL_OBJECTIVES if several else _UNKNOWN_SAMPLER
        if found.kind != Kind.BOUND.value:
            reason += f"; {found.why}"
        words = f"{way}, several objectives" if several else "unknown sampler"
        return replace(found, chosen=words, why=reason)
    return cost_of_trials(runs, way, delta, protocol, prior, cap, budgets)


def _load(storage: str, name: str | None) -> Any:
    """A study with its trials, from a storage that is not changed."""
    try:
        import optuna
    except ImportError as error:
        raise InvalidInput(
            "optuna must be installed to read its studies: see the extra [optuna]"
        ) from error
    is_journal = "://" not in storage
    # An address without its scheme may contain a password as well.
    where = "***" if is_journal and "@" in storage else checks.without_password(storage)
    try:
        opened = _journal(storage) if is_journal else _database(storage)
        names: Sequence[str] = optuna.get_all_study_names(opened)
        if name in names or name is None:
            study = optuna.load_study(study_name=name, storage=opened)
            study.get_trials(deepcopy=False)  # reads now, so that an error names the study
            return study
    except Exception as error:  # drivers of storages raise errors of any class
        # Errors of drivers may contain the address with its password, so they are not chained.
        raise InvalidInput(
            "optuna must be the address of a storage of Optuna, such as sqlite:///study.db, or the "
            f"file of a journal, got {where!r}, {_reason(error, name)}"
        ) from None
    raise InvalidInput(
        f"optuna must name one of the studies {', '.join(names) or '(there are none)'} in "
        f"{where!r}, got {name!r}"
    )


def _reason(error: Exception, name: str | None) -> str:
    """Why a storage cannot be read."""
    said = str(error).lower()
    if isinstance(error, FileNotFoundError):
        return "where there is no file with content"
    if "locked" in said:
        return "which is locked: wait for the other process, or copy the file"
    if "no such table" in said or "not a database" in said:
        return "which holds no studies"
    if isinstance(error, ImportError):
        return "whose driver is not installed"
    if isinstance(error, ValueError | KeyError | TypeError):
        return f"where study {name!r} is damaged"
    return f"which cannot be opened ({type(error).__name__})"


_SECONDS_LOCKED = 5.0  # to wait for another process that writes
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

    address = sqlalchemy.engine.make_url(storage)
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
        if not set(sqlalchemy.inspect(engine).get_table_names()) >= _TABLES:
            raise LookupError("no such table")
    finally:
        engine.dispose()
    return optuna.storages.RDBStorage(storage, engine_kwargs=options, skip_table_creation=True)

"""For users of Optuna: an objective under a private protocol, or the cost of a finished study."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit import checks
from audit.accounting import Mechanism
from audit.certificate import Certificate
from audit.protocols import Protocol, RandomSearch, RandomStopping, UntilAccepted
from audit.tuning import Best, Choice, Outcome, Space, Study, Trial
from audit.tuning.cost_of_trials import TuningCost, cost_of_trials, trial_of

__all__ = ["PrivateStudy", "cost_of_study", "read_study"]

DIRECTIONS = ("maximize", "minimize")

_SAMPLERS = {
    "RandomSampler": "random",
    "GridSampler": "grid",
    "QMCSampler": "grid",
}
"""Samplers whose candidates do not look back; a quasi-random sequence is a list fixed before."""


@dataclass(frozen=True)
class _Suggested(Choice):
    """What an objective suggests, run by run."""

    values: tuple[Any, ...] = ({},)

    @property
    def spec(self) -> str:
        return "what the objective suggests, each value drawn anew by Optuna's RandomSampler"


class PrivateStudy:
    """Runs an `objective(trial)` with `trial.suggest_*`, unchanged, under a private protocol.

    Every run sees a study of its own, in memory, with Optuna's random sampler and one trial: no
    history, no pruning, no timeout, no callbacks. K comes from the law. What is to be released
    beside parameters and value, the objective leaves in `trial.set_user_attr("model", ...)`.

    Args:
        protocol: a law of K, which means random search, `until:A` or `stopping:S`.
        direction: `maximize` or `minimize`.
        settings: those of `tuning.Study` but its space.

    Raises:
        ValueError: as `tuning.Study`, or the protocol is another.

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
        self._study = Study(Space({"": _Suggested()}), protocol, **settings)
        if not isinstance(self._study.protocol, RandomSearch | UntilAccepted | RandomStopping):
            raise ValueError(
                "protocol must draw each candidate anew (a law of K, until or stopping), got "
                f"{self._study.protocol.spec}"
            )

    @property
    def noise_multiplier(self) -> float | None:
        """What every run must train with; None where the base is not DP-SGD."""
        return self._study.noise_multiplier

    @property
    def certificate(self) -> Certificate:
        """What may be published beside the best run, once the study is over."""
        return self._study.certificate

    @property
    def folder(self) -> Path | None:
        """Where the study is kept for going on; None if in this process alone."""
        return self._study.folder

    def optimize(self, objective: Callable[[Any], float], **options: Any) -> Best:
        """Runs the study to its end.

        Args:
            objective: from an Optuna trial to a value. The trial's user attributes
                `noise_multiplier`, `steps`, `sampling_rate` and `seed` hold what the run must be,
                where the base is DP-SGD, and `expected_batch_size`, if the study was given one.
            options: those of `tuning.Study.run`. `accept` sees the value with its sign: higher is
                better.

        Returns:
            The parameters, the value and the user attribute `model` of the best run.
        """
        best = self._study.run(_Train(objective, self._sign), **options)
        if best.candidate is None or best.score is None:
            return Best()
        parameters, model = best.model
        return Best(parameters, self._sign * best.score, model)


@dataclass(frozen=True)
class _Train:
    """One run of an objective; a class, so that other processes can have it."""

    objective: Callable[[Any], float]
    sign: float

    def __call__(self, trial: Trial) -> Outcome:
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
        for name, value in known.items():
            asked.set_user_attr(name, value)
        value = self.objective(asked)
        return Outcome(self.sign * float(value), (asked.params, asked.user_attrs.get("model")))


def read_study(
    study: Any, base: Mechanism | None = None, neighbours: str = "add-remove"
) -> tuple[list[Mechanism], str]:
    """The trials of an Optuna study, and how their candidates were chosen.

    A study in memory knows its sampler; a storage does not, but grids and TPE leave traces in it.
    Where nothing tells, or a trial was pruned or put in by hand (`enqueue_trial`), candidates are
    taken to look back.

    Args:
        study: an Optuna study.
        base: one trial, where its parameters and user attributes do not tell; they do with
            `noise_multiplier` and `steps` (and `sampling_rate`), or `mu`, or `rho`.
        neighbours: `add-remove`, `zero-out` or `replace-one`.

    Returns:
        The mechanism of every trial, whatever became of it, and one of `tuning.cost_of_trials.WAYS`.

    Raises:
        ValueError: nothing tells what a trial was.

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
            raise ValueError(
                "trials must tell noise_multiplier and steps, mu or rho in their parameters or "
                f"user attributes, or base be given, got trial {trial.number} without"
            )
        found.append(one)
    return found, _way_of(study)


def _way_of(study: Any) -> str:
    marks = [set(trial.system_attrs) for trial in study.trials]
    if any(trial.state.name == "PRUNED" for trial in study.trials):
        return "sequential"
    if any("fixed_params" in each for each in marks):
        return "sequential"  # put in by hand: nobody knows after which others
    if marks and all("grid_id" in each for each in marks):
        return "grid"
    if any(name.startswith(("tpe:", "cma", "nsga", "qmc:")) for each in marks for name in each):
        return "sequential"
    if getattr(study, "_storage", None).__class__.__name__ != "InMemoryStorage":
        # The sampler of a loaded study is that of who loads it, not of who ran it.
        return "sequential"
    return _SAMPLERS.get(type(study.sampler).__name__, "sequential")


def cost_of_study(
    study: Any,
    name: str | None = None,
    *,
    chosen: str | None = None,
    delta: float = 1e-5,
    law: str | None = None,
    base: Mechanism | None = None,
    neighbours: str = "add-remove",
    prior: Mechanism | None = None,
) -> TuningCost:
    """What a finished Optuna study cost.

    Args:
        study: an Optuna study, or the address of its storage: `sqlite:///study.db`.
        name: of the study in the storage.
        chosen: one of `tuning.cost_of_trials.WAYS`; read off the study if not given, to the safe side.
        delta: in (0, 1).
        law: the law from which the number of random trials was drawn; if not given, it was fixed.
        base: one trial, where the study does not tell.
        neighbours: `add-remove`, `zero-out` or `replace-one`.
        prior: what one draw is, as `tuning.cost_of_trials` takes it.

    Raises:
        ValueError: there is no such study, or nothing tells what a trial was.

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
    if isinstance(study, str):
        study = _load(study, name)
    runs, way = read_study(study, base, neighbours)
    return cost_of_trials(runs, chosen or way, delta, law, prior)


def _load(storage: str, name: str | None) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ValueError(
            "optuna must be installed to read its studies: see the extra [optuna]"
        ) from error
    # Else reading a file that is not there makes one.
    path = storage.removeprefix("sqlite:///")
    if path != storage and not Path(path).is_file():
        raise ValueError(f"optuna must be the address of a storage, got no file at {path!r}")
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except Exception as error:  # whatever the storage's driver makes of it
        names: Sequence[str] = ()
        try:
            names = optuna.get_all_study_names(storage)
        except Exception:  # not even that can be read
            raise ValueError(f"optuna must be the address of a storage, got {storage!r}") from error
        raise ValueError(
            f"optuna must name one of the studies {', '.join(names) or '(there are none)'}, got "
            f"{name!r}"
        ) from error

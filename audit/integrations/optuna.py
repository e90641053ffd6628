"""Optuna: an objective under a private protocol.

`audit.cost_of_trials` computes the cost of a finished study.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from audit import checks
from audit.certificate import Certificate, model_hash
from audit.errors import InvalidInput
from audit.protocols import Protocol
from audit.tuning import Best, Choice, Outcome, ProtocolViolation, Space, Study, Trial

__all__ = ["PrivateStudy"]

DIRECTIONS = ("maximize", "minimize")


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
        optuna_trial = alone.ask()
        attributes: dict[str, float] = {"seed": trial.seed}
        for name in ("noise_multiplier", "steps", "sampling_rate"):
            try:
                attributes[name] = getattr(trial, name)
            except AttributeError:
                break  # the base is not DP-SGD
        if trial.expected_batch_size is not None:
            attributes["expected_batch_size"] = trial.expected_batch_size
        for name, attribute in attributes.items():
            optuna_trial.set_user_attr(name, attribute)
        value = (
            self.objective(optuna_trial)
            if records is None
            else self.objective(optuna_trial, records)
        )
        if isinstance(value, tuple | list):
            raise ProtocolViolation(
                "objective must return one number, got "
                f"{checks.with_article(type(value).__name__)}: with several objectives no run is "
                "the best"
            )
        return Outcome(
            self.sign * float(value), (optuna_trial.params, optuna_trial.user_attrs.get("model"))
        )

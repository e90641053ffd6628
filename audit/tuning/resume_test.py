"""The test of a run that is killed in the middle and resumed: it must give the same result.

A loop that draws new noise after a resumption, or repeats earlier noise, gives another result. The
test compares the score, every byte of the model, and the states of the global generators.
"""

import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from audit.errors import InvalidInput, PrivacyLeak
from audit.tuning.checkpoints import RUNS, Checkpoints
from audit.tuning.one_run import digest
from audit.tuning.outcome import Outcome, Trial

_ATTEMPTS = 3  # at one run of the test
_OutcomeOf = Callable[[Trial], tuple[Outcome, tuple[str, ...]]]


class _Killed(BaseException):
    """Represents the end of the process; a loop that catches `Exception` does not catch it."""


def check_resumption(outcome_of: _OutcomeOf, trial: Trial) -> None:
    """Compares a run that is killed and resumed with the same run without an interruption.

    The killed run saves its state, takes the steps up to the next checkpoint, and loses them. A run
    that never saves its state is not tested. One whose noise cannot be continued must load its
    state, but is not compared: the study counts the steps that it repeats. If the study allows such
    steps, a further run is resumed with new noise, and must then give another result.

    Args:
        outcome_of: trains once on synthetic or public records, as the study does.
        trial: the run, whose seed is not used in a study.

    Raises:
        PrivacyLeak: the resumed run is not the same run.
    """
    with tempfile.TemporaryDirectory() as folder:
        complete = _attempt(outcome_of, trial, Path(folder) / RUNS / "0")
        saved = complete.checkpoints.saved
        if not saved:
            return
        kill_after = (saved + 1) // 2
        path = Path(folder) / RUNS / "1"
        killed = _attempt(outcome_of, trial, path, kill_after)
        step = killed.checkpoints.last_saved
        renewed_path = Path(folder) / RUNS / "2"
        if step and path.is_dir():
            shutil.copytree(path, renewed_path)
        resumed = _attempt(outcome_of, trial, path)
        if not resumed.checkpoints.resumed_at and step:
            raise PrivacyLeak(
                f"train must call trial.load_state, because it calls trial.save_state; a run that "
                f"was killed after step {step} began again at its first step"
            )
        if complete.checkpoints.cannot_continue:
            return
        _compare(complete, resumed, step)
        if trial.checkpoints.rules.redrawn_steps and step:
            renewed = _attempt(outcome_of, trial, renewed_path, renews=True)
            _check_new_noise(resumed, renewed, step)


def _compare(complete: "_Attempt", resumed: "_Attempt", step: int) -> None:
    for name, value in complete.result.items():
        if value != resumed.result[name]:
            raise PrivacyLeak(
                "train must continue a resumed run with the same noise and batches, got "
                f"another {name} from a run that was killed after the checkpoint at step "
                f"{step} and resumed than from the same run without an interruption; save "
                "every generator, call load_state after all other draws, and save the state "
                "between two iterations over a loader"
            )


def _check_new_noise(resumed: "_Attempt", renewed: "_Attempt", step: int) -> None:
    """A run that would repeat its noise with another rounding is no run with repeated steps."""
    names = ("score", "model")
    if all(renewed.result[name] == resumed.result[name] for name in names):
        raise PrivacyLeak(
            "train must draw its noise from the generators that load_state restores, because "
            "redrawn_steps is given, got the same result from a run that was resumed after step "
            f"{step} with new states of all generators"
        )


@dataclasses.dataclass(frozen=True)
class _Attempt:
    checkpoints: Checkpoints
    result: dict[str, object]


def _attempt(
    outcome_of: _OutcomeOf,
    trial: Trial,
    folder: Path,
    kill_after: int | None = None,
    renews: bool = False,
) -> _Attempt:
    """One attempt at the run; with `kill_after`, it ends before the state is saved once more."""
    rules, steps = trial.checkpoints.rules, trial.checkpoints.steps
    trial = dataclasses.replace(trial)
    # The test repeats more steps than the study may, on records that are not private.
    rules = dataclasses.replace(rules, redrawn_steps=_ATTEMPTS * (steps or 0))
    checkpoints = Checkpoints(folder, steps, rules, renews_always=renews)
    trial.checkpoints = checkpoints

    def kill(saved: int) -> None:
        if saved == kill_after:
            raise _Killed

    checkpoints.before_save = kill
    checkpoints.begin()
    try:
        outcome, noises = outcome_of(trial)
    except _Killed:
        return _Attempt(checkpoints, {})
    except InvalidInput:
        if not checkpoints.begins_again:
            raise
        return _Attempt(checkpoints, {})
    model = digest(outcome.model)
    return _Attempt(
        checkpoints,
        {"score": repr(outcome.score), "model": model, "state of the generators": noises},
    )

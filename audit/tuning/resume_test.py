"""The test of a run that is killed in the middle and resumed: it must give the same result.

A loop that draws new noise after a resumption, or repeats earlier noise, gives another result. The
test compares the score, every byte of the model, and the states of the global generators.
"""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from audit.errors import PrivacyLeak
from audit.tuning.checkpoints import RUNS, Checkpoints
from audit.tuning.one_run import digest
from audit.tuning.outcome import Outcome, Trial

_OutcomeOf = Callable[[Trial], tuple[Outcome, tuple[str, ...]]]


class _Killed(BaseException):
    """Represents the end of the process; a loop that catches `Exception` does not catch it."""


def check_resumption(outcome_of: _OutcomeOf, trial: Trial) -> None:
    """Compares a run that is killed and resumed with the same run without an interruption.

    The killed run saves its state, takes the steps up to the next checkpoint, and loses them. A run
    that never saves its state, and one whose noise cannot be continued, are not compared: the study
    counts the steps that they repeat.

    Args:
        outcome_of: trains once on synthetic or public records, as the study does.
        trial: the run, whose seed is not used in a study.

    Raises:
        PrivacyLeak: the resumed run is not the same run.
    """
    with tempfile.TemporaryDirectory() as folder:
        complete = _attempt(outcome_of, trial, Path(folder) / RUNS / "0")
        saved = complete.checkpoints.saved
        if not saved or complete.checkpoints.cannot_continue:
            return
        kill_after = (saved + 1) // 2
        path = Path(folder) / RUNS / "1"
        killed = _attempt(outcome_of, trial, path, kill_after)
        resumed = _attempt(outcome_of, trial, path)
        step = killed.checkpoints.last_saved
        if not resumed.checkpoints.resumed_at and step:
            raise PrivacyLeak(
                f"train must call trial.load_state, because it calls trial.save_state; a run that "
                f"was killed after step {step} began again at its first step"
            )
        for name, value in complete.result.items():
            if value != resumed.result[name]:
                raise PrivacyLeak(
                    "train must continue a resumed run with the same noise and batches, got "
                    f"another {name} from a run that was killed after the checkpoint at step "
                    f"{step} and resumed than from the same run without an interruption; save "
                    "every generator, call load_state after all other draws, and save the state "
                    "between two iterations over a loader"
                )


@dataclasses.dataclass(frozen=True)
class _Attempt:
    checkpoints: Checkpoints
    result: dict[str, object]


def _attempt(
    outcome_of: _OutcomeOf, trial: Trial, folder: Path, kill_after: int | None = None
) -> _Attempt:
    """One attempt at the run; with `kill_after`, it ends before the state is saved once more."""
    trial = dataclasses.replace(trial)
    checkpoints = Checkpoints(folder, trial.checkpoints.steps)
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
    model = digest(outcome.model)
    return _Attempt(
        checkpoints,
        {"score": repr(outcome.score), "model": model, "state of the generators": noises},
    )

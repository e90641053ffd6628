"""Functions for worker processes, in a module that is fast to import."""

import os
import signal
from typing import Any

import numpy as np

from audit import tuning
from audit.game.workers import _play


def noisy(trial: Any) -> Any:
    """A run whose score depends only on its seed."""
    return tuning.Outcome(np.random.default_rng(trial.seed).normal(), trial.seed)


def returns_nothing(trial: Any) -> None:
    return None


def play_or_die(graves: Any, deaths: Any, play_block: Any, devices: Any, block: Any) -> Any:
    """Plays a block, or kills this process if fewer than `deaths` have died."""
    count = len(list(graves.glob("grave-*")))
    if count < deaths:
        (graves / f"grave-{count}-{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _play(play_block, devices, block)

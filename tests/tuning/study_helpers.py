"""Small studies, and stand-ins for the objects of Opacus."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from light_runs import noisy

from audit import accounting, protocols, tuning
from audit.tuning.checkpoints import RUNS, Checkpoints, ResumeRules
from audit.tuning.journal import Memory
from audit.tuning.plan import Plan
from audit.tuning.play import play
from audit.tuning.space import Space

BASE = accounting.GaussianMechanism(0.5)
STEPS = 6
DP_SGD = accounting.DpSgd(2.0, STEPS, 0.5, "zero-out")


LEVELS = {"level": [1, 2, 3, 4]}


def study(**settings: Any) -> Any:
    settings = {"space": LEVELS, "protocol": "fixed:6", "base": BASE, "folder": None} | settings
    return tuning.Study(**settings)


def trial_in(folder: Path, base: Any = DP_SGD, **rules: Any) -> Any:
    """An attempt at the first run of a study in a folder, which has begun."""
    trial = tuning.Trial({"level": 1}, base, seed=7)
    trial.checkpoints = Checkpoints(folder / RUNS / "0", STEPS, ResumeRules(**rules))
    trial.checkpoints.begin()
    return trial


class Secure:
    """An optimizer of Opacus' secure mode, whose generator has no state."""

    secure_mode = True

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Restores nothing."""


def plan_of(protocol: Any, space: Any = LEVELS, base: Any = BASE) -> Any:
    return Plan(protocols.parse_protocol(protocol), Space.parse(space), lambda candidate: base)


def played(plan: Any, key: Any, train: Any = noisy, **settings: Any) -> Any:
    return play(plan, key, plan.runs(key), train, Memory(), **settings).best


class Recorded:
    """The attributes of an accountant that `from_opacus` reads."""

    def __init__(self, *history: Any) -> None:
        self.history = history


class Loader:
    """The attributes of a data loader that `Trial.check` reads."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler


class UniformWithReplacementSampler:
    """A sampler with the name of Opacus's sampler."""

    def __init__(self, sample_rate: Any) -> None:
        self.sample_rate = sample_rate


DP_SGD = accounting.DpSgd(1.0, 100, 0.1)


def interrupted(tmp_path: Path, train_until: Any, **settings: Any) -> Iterator[Any]:
    """A study that is stopped after every few runs and continued until it ends."""
    for _ in range(100):
        calls: list[Any] = []

        def train(trial: Any, calls: Any = calls) -> Any:
            if len(calls) == train_until:
                raise KeyboardInterrupt
            calls.append(trial)
            return settings.get("train", noisy)(trial)

        one = study(folder=tmp_path / "s", **{k: v for k, v in settings.items() if k != "train"})
        try:
            yield one.run(train), calls
            return
        except KeyboardInterrupt:
            yield None, calls


def subset_run(trial: Any) -> Any:
    trial.records(20)
    return noisy(trial)

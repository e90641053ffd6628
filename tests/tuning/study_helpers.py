"""Small studies, and stand-ins for the objects of Opacus."""

from light_runs import noisy

from audit import accounting, protocols, tuning
from audit.tuning.journal import Memory
from audit.tuning.plan import Plan
from audit.tuning.play import play
from audit.tuning.space import Space

BASE = accounting.GaussianMechanism(0.5)


LEVELS = {"level": [1, 2, 3, 4]}


def study(**settings):
    settings = {"space": LEVELS, "protocol": "fixed:6", "base": BASE, "folder": None} | settings
    return tuning.Study(**settings)


def plan_of(protocol, space=LEVELS, base=BASE):
    return Plan(protocols.parse_protocol(protocol), Space.parse(space), lambda candidate: base)


def played(plan, key, train=noisy, **settings):
    return play(plan, key, plan.runs(key), train, Memory(), **settings).best


class Recorded:
    """What `from_opacus` reads of an accountant."""

    def __init__(self, *history):
        self.history = history


class Loader:
    """What `Trial.check` reads of a data loader."""

    def __init__(self, batch_sampler):
        self.batch_sampler = batch_sampler


class UniformWithReplacementSampler:
    """Named as Opacus' sampler is."""

    def __init__(self, sample_rate):
        self.sample_rate = sample_rate


DP_SGD = accounting.DpSgd(1.0, 100, 0.1)


def interrupted(tmp_path, train_until, **settings):
    """Every process goes on where the one before was stopped, and ends a few runs later."""
    for _ in range(100):
        calls = []

        def train(trial, calls=calls):
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


def subset_run(trial):
    trial.records(20)
    return noisy(trial)

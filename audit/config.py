"""Every setting of an audit, checked once, here."""

import itertools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from audit import checks
from audit.accounting import ACCOUNTINGS, DpSgd, calibrate_noise_multiplier
from audit.dpsgd import ENGINES, PRECISIONS, Candidate, DpSgdSettings
from audit.repetitions import Repetitions, parse
from threat_models import THREATS, check_names
from threat_models.datasets import RECORD_SHAPES

# What the results do not depend on.
_INCIDENTAL = ("jobs", "out", "devices", "backend", "scheduler")
# Their training set is the same, and so are their runs; only the score differs.
_SHARED = "NTNV+NTCV"
BACKENDS = ("loky", "dask", "ray")


@dataclass(frozen=True)
class AuditConfig:
    """The settings of an audit: the command line's options and the presets' keys.

    Attributes:
        threat: NTNV, NTCV or ETCV (Xiang, Wang & Wang 2024, table 2); NTNV+NTCV plays both on one
            set of runs.
        canary: dirac, input, or the dotted name of a function that gives an InputCanary; several,
            joined by +, share the runs without a canary.
        score: how the best run is chosen; empty takes the paper's for this threat and canary, a
            dotted name a function of one's own (`threat_models.build`).
        dataset: the data set of the training records, or of the input canary in ETCV.
        data_root: folder of the data sets; empty takes AUDIT_DATA_ROOT or downloads.
        canary_index: which record is the input canary.
        train_size: training records, at most.
        validation_size: validation records, at most.
        epsilon: the budgets eps_B of one run.
        accounting: how eps_B is counted, rdp (the papers' way) or exact.
        delta: in (0, 1).
        repetitions: the law of K, for instance tnb:0,0.01.
        trials: games per budget and repeat.
        repeats: how often the whole audit is repeated.
        steps: N, iterations of one run.
        sampling_rate: tau, chance of a record to be in a batch; 1 is the full batch.
        learning_rates: of the candidates; Omega, what the tuning chooses from, is the grid of these
            and the next two.
        max_grad_norm: C of the candidates, one number or several.
        momentum: m of the candidates, in [0, 1), one number or several.
        model: logistic, mlp, convnet or the dotted name of a torch module.
        engine: auto, or an engine by name.
        precision: of training: float32, float64, or tf32 or bf16 for the operands of products, with
            C made good for their rounding (`audit.dpsgd.precision`).
        devices: cpu, cuda or cuda:N; of several each gets a worker process of its own.
        confidence: of the lower bounds.
        seed: of everything random.
        jobs: worker processes.
        backend: loky (this machine), dask or ray.
        scheduler: address of the dask scheduler or ray cluster; empty starts a local one.
        out: folder of the results; empty takes runs/THREAT-CANARY-SCORE.
    """

    threat: str = "ETCV"
    canary: str = "dirac"
    score: str = ""
    dataset: str = "DIGITS"
    data_root: str = ""
    canary_index: int = 0
    train_size: int = 5000
    validation_size: int = 10000
    epsilon: tuple[float, ...] = (1.0, 2.0, 4.0)
    accounting: str = "rdp"
    delta: float = 1e-5
    repetitions: str = "tnb:0,0.01"
    trials: int = 2000
    repeats: int = 3
    steps: int = 100
    sampling_rate: float = 1.0
    learning_rates: tuple[float, ...] = (0.001,)
    max_grad_norm: tuple[float, ...] = (1.0,)
    momentum: tuple[float, ...] = (0.0,)
    model: str = "mlp"
    engine: str = "auto"
    precision: str = "float32"
    devices: tuple[str, ...] = ("cpu",)
    confidence: float = 0.95
    seed: int = 0
    jobs: int = 1
    backend: str = "loky"
    scheduler: str = ""
    out: str = ""

    def __post_init__(self) -> None:
        texts = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(f.default, str)}
        for name, value in (*texts.items(), *(("devices", device) for device in self.devices)):
            if not isinstance(value, str):
                raise ValueError(f"{name} must be text, got {value!r}")
        checks.one_of("threat", self.threat, (*THREATS, _SHARED))
        if len(set(self.canaries)) < len(self.canaries):
            raise ValueError(f"canary must name each canary once, got {self.canary!r}")
        for threat, canary in self.pairs:
            score = check_names(threat, canary, self.score or None)
            if len(self.pairs) == 1:
                self._set("score", score)
        checks.one_of("dataset", self.dataset, RECORD_SHAPES)
        for name in ("canary_index", "seed"):
            self._set(name, checks.whole(name, getattr(self, name), 0))
        for name in ("train_size", "validation_size", "repeats", "steps", "jobs"):
            self._set(name, checks.whole(name, getattr(self, name), 1))
        self._set("trials", checks.whole("trials", self.trials, 2))
        self._set("epsilon", _numbers("epsilon", self.epsilon))
        if len(set(self.epsilon)) < len(self.epsilon):
            raise ValueError(f"epsilon must name each budget once, got {self.epsilon}")
        checks.one_of("accounting", self.accounting, ACCOUNTINGS)
        checks.interval("delta", self.delta, 0.0, 1.0)
        checks.interval("confidence", self.confidence, 0.0, 1.0)
        self._set("repetitions", parse(self.repetitions).spec)
        checks.one_of("engine", self.engine, ("auto", *ENGINES))
        checks.one_of("precision", self.precision, PRECISIONS)
        settings = self.settings(1.0)
        for name in ("learning_rates", "max_grad_norm", "momentum"):
            self._set(name, getattr(settings, name))
        if self.score == "worst-order" and self.sampling_rate != 1.0:
            raise ValueError(
                f"sampling_rate must be 1 for the score worst-order, got {self.sampling_rate!r}"
            )
        checks.one_of("backend", self.backend, BACKENDS)
        if not self.devices or len({device.split(":")[0] for device in self.devices}) > 1:
            raise ValueError(f"devices must be of one kind, got {', '.join(self.devices)}")
        if self.devices[0] != "cpu" and self.jobs > len(self.devices):
            raise ValueError(
                f"jobs must be at most one per GPU, got {self.jobs} for {', '.join(self.devices)}"
            )
        if not self.out:
            parts = [self.threat, self.canary, self.score]
            self._set("out", "runs/" + "-".join(filter(None, parts)).lower().replace("+", "-"))

    @property
    def canaries(self) -> tuple[str, ...]:
        """The canaries that one set of runs is played with."""
        return tuple(self.canary.split("+"))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The views of one set of runs: every threat model with every canary."""
        threats = _SHARED.split("+") if self.threat == _SHARED else [self.threat]
        return tuple(itertools.product(threats, self.canaries))

    @property
    def view_names(self) -> tuple[str, ...]:
        """What tells the views apart in the names of files; nothing where there is but one."""
        if len(self.pairs) == 1:
            return ("",)
        several = len(self.canaries) > 1
        return tuple(f"{threat}-{canary}" if several else threat for threat, canary in self.pairs)

    @property
    def views(self) -> tuple["AuditConfig", ...]:
        """One config for every view; where there are several, each has its own folder."""
        if len(self.pairs) == 1:
            return (self,)
        return tuple(
            replace(
                self,
                threat=threat,
                canary=canary,
                out=f"{self.out}/{name.replace(threat, threat.lower(), 1)}",
            )
            for (threat, canary), name in zip(self.pairs, self.view_names, strict=True)
        )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that the results depend on, as json knows them."""
        settings = {k: v for k, v in asdict(self).items() if k not in _INCIDENTAL}
        settings["device"] = self.devices[0].split(":")[0]
        for name in ("max_grad_norm", "momentum"):
            values = settings[name]
            settings[name] = values[0] if len(values) == 1 else values
        return dict(json.loads(json.dumps(settings)))

    @property
    def law(self) -> Repetitions:
        """The law of K."""
        return parse(self.repetitions)

    def base(self, budget: int) -> DpSgd:
        """One run of DP-SGD at the noise that spends a budget.

        Args:
            budget: index of eps_B.
        """
        noise_multiplier = calibrate_noise_multiplier(
            self.epsilon[budget], self.delta, self.steps, self.sampling_rate, self.accounting
        )
        return DpSgd(noise_multiplier, self.steps, self.sampling_rate)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Omega; the trials' candidates are indices of it."""
        return self.settings(1.0).candidates

    def settings(self, noise_multiplier: float) -> DpSgdSettings:
        """What the engine is set to at a noise."""
        return DpSgdSettings(
            steps=self.steps,
            noise_multiplier=noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            learning_rates=self.learning_rates,
            sampling_rate=self.sampling_rate,
            momentum=self.momentum,
            model=self.model,
            model_seed=self.seed,
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "AuditConfig":
        """A config from names and values; `device`, or `devices` that are none, name a single one.

        Raises:
            ValueError: an unknown name, or a value out of its range.
        """
        values = dict(values)
        if "device" in values:
            values["devices"] = (values.pop("device"),)
        if isinstance(values.get("devices"), str):
            values["devices"] = (values["devices"],)
        names = [field.name for field in fields(cls)]
        for name in values:
            checks.one_of("setting", name, names)
        lists = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        return cls(**{**values, **lists})


def read_preset(path: str) -> dict[str, Any]:
    """The settings of a preset file; its name is the default results folder beside it.

    Args:
        path: a TOML file whose keys are those of `AuditConfig`.

    Raises:
        ValueError: no such file, or not TOML.
    """
    file = Path(path)
    try:
        values = tomllib.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"preset must be a readable TOML file, got {path!r}: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"preset must be TOML, got {path!r}: {error}") from error
    return {"out": str(file.with_suffix("")), **values}


def _numbers(name: str, values: object) -> tuple[float, ...]:
    items = tuple(values) if isinstance(values, list | tuple) else (values,)
    if not items:
        raise ValueError(f"{name} must name at least one number, got none")
    return tuple(checks.interval(name, item, 0.0) for item in items)

"""The settings of an audit: the only module that knows all of them.

Settings come in groups, so that a function takes the group that it needs and not all settings.
Fields of a group without a description have the names and meanings of the fields of `AuditConfig`.
Presets are TOML files with settings, installed with the package.
"""

import itertools
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from audit import checks, protocols, user_code
from audit.accounting import ACCOUNTINGS, DpSgd, calibrate_noise_multiplier
from audit.dpsgd import ENGINES, MODELS, PRECISIONS, DpSgdSettings
from audit.dpsgd.settings import MAX_SCALE, several_numbers
from audit.errors import InvalidInput, NotApplicable
from audit.lower_bounds.scores import doubling_sizes
from audit.numbers_from_text import is_ambiguous
from audit.protocols import Protocol
from audit.repetitions import Fixed, Repetitions, parse_repetitions
from audit.simulation import SAMPLERS
from threat_models import CANARIES, THREATS, check_names
from threat_models.datasets import RECORD_SHAPES

SCHEMA = 2
"""Version of config.json, of the shards and of summary.json."""
_DEVICE = re.compile(r"cpu(:0)?|cuda(:[0-9]+)?")
Check = Callable[..., Any]
"""A function from the name and the value of a setting to the value to store."""
SHARED_THREATS = "NTNV+NTCV"
"""Two threat models on the same runs: they share the training set, and only the score differs."""
# An audit stores all its runs up to this number, each in 24 bytes.
_MAX_STORED_RUNS = 1e7
# The first analysis is at 100 trials or more, because fewer prove almost nothing.
_FIRST_LOOK = 100
_SIZE = partial(checks.integer, low=1, high=10**9)
_TRIALS = partial(checks.integer, low=2, high=10**12)
_RATE = partial(checks.interval, low=0.0, high=1.0)
_POSITIVE = partial(checks.interval, low=0.0)
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Evaluation:
    """How the lower bound to report is computed, and when an audit may stop early.

    `proxy` is the statistic of this bound. It is computed after the numbers of trials in `looks`.
    """

    delta: float
    confidence: float
    proxy: str
    looks: tuple[int, ...]
    stop_at: float


@dataclass(frozen=True)
class Place:
    """Where an audit runs, and where its results are written. No result depends on it."""

    out: Path
    jobs: int
    devices: tuple[str, ...]
    backend: str
    scheduler: str

    @property
    def device_kind(self) -> str:
        """Kind of all devices: cpu or cuda."""
        return self.devices[0].split(":")[0]

    @property
    def workers(self) -> int:
        """Number of processes that play: `jobs`, but at least one per device."""
        return max(self.jobs, len(self.devices))


@dataclass(frozen=True)
class Workload:
    """The size of an audit, and the limits beyond which it is refused."""

    budgets: int
    repeats: int
    trials: int
    views: int
    protocol: Protocol
    steps: int
    records: int
    model: str
    place: Place
    max_runs: float
    max_hours: float
    max_budgets: int

    @property
    def total_trials(self) -> int:
        """Number of trials of the whole audit."""
        return self.budgets * self.repeats * self.trials

    @property
    def runs_per_trial(self) -> float:
        """Expected runs of one trial; the largest expectation if it depends on the data."""
        return self.protocol.expected_work

    @property
    def expected_runs(self) -> float:
        """Expected runs of the whole audit."""
        return self.total_trials * self.runs_per_trial


def check_texts(texts: Mapping[str, object]) -> None:
    """Refuses settings that are not text, or contain a null character."""
    for name, value in texts.items():
        for text in value if name == "devices" and isinstance(value, tuple) else (value,):
            if not isinstance(text, str):
                raise InvalidInput(f"{name} must be text, got {text!r}")
            if "\0" in text:
                raise InvalidInput(f"{name} must be text without null characters, got {text!r}")


def several_canaries(name: str, value: str) -> str:
    """Different canaries, separated by plus signs, in their canonical spelling."""
    canaries = [checks.one_of(name, canary, CANARIES, dotted=True) for canary in value.split("+")]
    if len(set(canaries)) < len(canaries):
        raise InvalidInput(f"{name} must name each canary once, got {'+'.join(canaries)!r}")
    return "+".join(canaries)


def checked_score(score: str, pairs: Sequence[tuple[str, str]], sampling_rate: float) -> str:
    """The score; with several views and no score given, each view has the paper's."""
    scores = [check_names(*pair, score or None) for pair in pairs]
    chosen = scores[0] if score or len(scores) == 1 else score
    if chosen == "worst-order" and sampling_rate != 1.0:
        raise InvalidInput(
            "sampling_rate must be 1 for the score worst-order, got "
            f"{checks.one_line(sampling_rate)}"
        )
    return chosen


def checked_protocol(
    protocol: str, repetitions: str, views: int, grid_points: int
) -> tuple[str, str]:
    """Protocol and distribution of K as texts; the distribution is empty if there is none."""
    parsed = protocols.parse_protocol(protocol)
    is_search = protocol.strip().lower().startswith("search")
    names_own = "/" in protocol or (parsed.search_repetitions is not None and not is_search)
    if repetitions not in ("", protocols.DEFAULT_REPETITIONS):
        if not names_own:
            parsed = protocols.parse_protocol(protocol, repetitions)
        elif parse_repetitions(repetitions) != getattr(parsed, "repetitions", None):
            raise InvalidInput(f"repetitions must be given once, got {repetitions} and {protocol}")
    _check_playable(parsed, views, grid_points)
    distribution = getattr(parsed, "repetitions", None)
    return (
        "search" if parsed.search_repetitions is not None else parsed.spec,
        "" if distribution is None else distribution.spec,
    )


def _check_playable(protocol: Protocol, views: int, grid_points: int) -> None:
    if not protocol.can_be_simulated():
        names = ", ".join(
            kind.name for kind in protocols.all_protocols() if kind.can_be_simulated()
        )
        raise InvalidInput(
            f"protocol must be one that an audit can play: {names}, got {protocol.spec}"
        )
    if views > 1 and not protocol.can_share_runs():
        raise InvalidInput(
            "protocol must be search or grid if one set of runs serves several threat models or "
            f"canaries, got {protocol.spec}"
        )
    if protocol.list_length is not None and grid_points not in (1, protocol.list_length):
        raise InvalidInput(
            f"learning_rates, max_grad_norm and momentum must make {protocol.list_length} "
            f"candidates for {protocol.spec}, or a single one, got {grid_points}"
        )


def check_place(devices: Iterable[str], jobs: int, backend: str, scheduler: str) -> None:
    """Raises InvalidInput if devices, jobs, backend and scheduler do not fit each other."""
    devices = tuple(devices)
    named = ", ".join(devices)
    for device in devices:
        if not _DEVICE.fullmatch(device):
            raise InvalidInput(f"devices must be cpu, cuda or cuda:N, got {device!r}")
    if not devices or len({device.split(":")[0] for device in devices}) > 1:
        raise InvalidInput(f"devices must be of one kind, got {named or 'none'}")
    if devices[0] != "cpu" and jobs > len(devices):
        raise InvalidInput(f"jobs must be at most one per GPU, got {jobs} for {named}")
    if scheduler and backend == "loky":
        raise InvalidInput(
            "scheduler must come with the backend dask or ray, got backend loky and scheduler "
            f"{scheduler!r}"
        )


def _name(*allowed: str, dotted: bool = False) -> Check:
    return partial(checks.one_of, allowed=allowed, dotted=dotted)


def _setting(
    default: Any, meaning: str, check: Check | None = None, *, incidental: bool = False
) -> Any:
    """A field with its description and its check; no result depends on an incidental setting."""
    metadata = {"meaning": meaning, "check": check, "incidental": incidental}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class AuditConfig:
    """The settings of an audit: the options of the command line and the keys of presets.

    The modules that play an audit take the groups `evaluation`, `workload` and `place`.
    """

    threat: str = _setting(
        "ETCV", "NTNV, NTCV or ETCV; or NTNV+NTCV on shared runs", _name(*THREATS, SHARED_THREATS)
    )
    canary: str = _setting(
        "dirac", "dirac, input, a dotted name, or several: input+dirac", several_canaries
    )
    score: str = _setting("", "score of a run, or a dotted name (default: the paper's)")
    dataset: str = _setting("DIGITS", ", ".join(RECORD_SHAPES), _name(*RECORD_SHAPES))
    data_root: str = _setting(
        "", "folder of the data sets (default: AUDIT_DATA_ROOT, else download)"
    )
    canary_index: int = _setting(
        0, "index of the record that is the input canary, from 0", partial(_SIZE, low=0)
    )
    train_size: int = _setting(5000, "largest number of training records", _SIZE)
    validation_size: int = _setting(10000, "largest number of validation records", _SIZE)
    epsilon: tuple[float, ...] = _setting(
        (1.0, 2.0, 4.0), "budgets eps_B of one run", several_numbers
    )
    accounting: str = _setting(
        "rdp", "accountant of eps_B: rdp, as in the papers, or exact", _name(*ACCOUNTINGS)
    )
    delta: float = _setting(1e-5, "delta of every epsilon, in (0, 1)", _RATE)
    protocol: str = _setting(
        "search",
        f"a distribution of K for random search (default: {protocols.DEFAULT_REPETITIONS}), "
        "grid:N[,P], adaptive:LOW,HIGH, subset:P, until:P, stopping:P",
    )
    repetitions: str = _setting(
        protocols.DEFAULT_REPETITIONS, "distribution of K, the number of runs"
    )
    imports: str = _setting("", user_code.IMPORTS)
    sampler: str = _setting(
        "gaussian-process",
        f"sampler of an adaptive protocol: {' or '.join(SAMPLERS)} (which reveals the canary)",
        _name(*SAMPLERS),
    )
    trials: int = _setting(2000, "trials per budget and repeat", _TRIALS)
    repeats: int = _setting(3, "number of repeats of the whole audit", partial(_TRIALS, low=1))
    stop_at: float = _setting(
        0.0, "stop at this eps_L, if repeats is 1; 0: never", partial(_POSITIVE, closed_low=True)
    )
    steps: int = _setting(100, "N, iterations of one run", _SIZE)
    sampling_rate: float = _setting(
        1.0,
        "tau, probability that a batch has a record; 1: full batch",
        partial(_RATE, closed_high=True),
    )
    learning_rates: tuple[float, ...] = _setting(
        (0.001,),
        "learning rates, in a grid with C and momentum",
        partial(several_numbers, high=MAX_SCALE),
    )
    max_grad_norm: tuple[float, ...] = _setting(
        (1.0,), "C, clipping norms of the gradients", partial(several_numbers, high=MAX_SCALE)
    )
    momentum: tuple[float, ...] = _setting(
        (0.0,), "momentum, in [0, 1)", partial(several_numbers, high=1.0, closed_low=True)
    )
    model: str = _setting(
        "mlp", "logistic, mlp, convnet, or a module's dotted name", _name(*MODELS, dotted=True)
    )
    engine: str = _setting("auto", ", ".join(("auto", *ENGINES)), _name("auto", *ENGINES))
    precision: str = _setting(
        "float32", "float32, float64; or products in tf32 or bf16", _name(*PRECISIONS)
    )
    devices: tuple[str, ...] = _setting(
        ("cpu",), "cpu, cuda or cuda:N; one worker each", incidental=True
    )
    confidence: float = _setting(0.95, "confidence of the lower bounds, in (0, 1)", _RATE)
    seed: int = _setting(0, "seed of all random numbers", partial(checks.integer, low=0))
    jobs: int = _setting(
        1, "worker processes", partial(_SIZE, high=checks.MAX_JOBS), incidental=True
    )
    max_runs: float = _setting(
        1e9, "refuse an audit that expects more runs", _POSITIVE, incidental=True
    )
    max_hours: float = _setting(
        1e4, "refuse an audit that expects more hours on processors", _POSITIVE, incidental=True
    )
    max_budgets: int = _setting(
        50, "refuse an audit of more budgets", partial(checks.integer, low=1), incidental=True
    )
    backend: str = _setting(
        "loky", "loky (this machine), dask or ray", _name("loky", "dask", "ray"), incidental=True
    )
    scheduler: str = _setting(
        "", "address of a dask or ray cluster, or auto (default: a local one)", incidental=True
    )
    out: str = _setting(
        "", "folder of the results (default: runs/THREAT-CANARY-SCORE)", incidental=True
    )

    def __post_init__(self) -> None:
        devices = self.devices if isinstance(self.devices, list | tuple) else (self.devices,)
        self._set(
            devices=tuple(
                device.lower() if isinstance(device, str) else device for device in devices
            )
        )
        check_texts(
            {
                field.name: getattr(self, field.name)
                for field in fields(self)
                if isinstance(field.default, str) or field.name == "devices"
            }
        )
        for setting in fields(self):
            if setting.metadata["check"] is not None:
                checks.validate(self, setting.name, setting.metadata["check"])
        if self.stop_at and self.repeats != 1:
            raise InvalidInput(f"repeats must be 1 with stop_at, got {self.repeats}")
        self._set(imports=user_code.import_modules(self.imports))
        self._set(score=checked_score(self.score, self.pairs, self.sampling_rate))
        grid_points = len(self.learning_rates) * len(self.max_grad_norm) * len(self.momentum)
        protocol, repetitions = checked_protocol(
            self.protocol, self.repetitions, len(self.pairs), grid_points
        )
        self._set(protocol=protocol, repetitions=repetitions)
        check_place(self.devices, self.jobs, self.backend, self.scheduler)
        if not self.out:
            names = [self.threat, self.canary, self.score]
            self._set(out="runs/" + "-".join(filter(None, names)).lower().replace("+", "-"))

    def _set(self, **values: object) -> None:
        checks.store_validated(self, **values)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "AuditConfig":
        """Settings from names and values; `device` names a single device."""
        values = dict(values)
        if "device" in values:
            values["devices"] = (values.pop("device"),)
        names = [field.name for field in fields(cls)]
        values = {checks.one_of("setting", name, names): value for name, value in values.items()}
        if values.get("out") == "":
            raise InvalidInput("out must be the name of a folder, got ''")
        lists = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        return cls(**{**values, **lists})

    @property
    def identity(self) -> dict[str, Any]:
        """The settings on which the results depend, as json represents them."""
        incidental = {field.name for field in fields(self) if field.metadata["incidental"]}
        settings = {k: v for k, v in asdict(self).items() if k not in incidental}
        settings["device"] = self.place.device_kind
        for name in ("max_grad_norm", "momentum"):
            values = settings[name]
            settings[name] = values[0] if len(values) == 1 else values
        return dict(json.loads(json.dumps(settings)))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Threat model and canary of every view of the runs."""
        shared = self.threat == SHARED_THREATS
        threats = self.threat.split("+") if shared else [self.threat]
        return tuple(itertools.product(threats, self.canary.split("+")))

    @property
    def view_names(self) -> tuple[str, ...]:
        """Part of the file names that identifies each view; empty for a single view."""
        if len(self.pairs) == 1:
            return ("",)
        many_canaries = "+" in self.canary
        return tuple(
            f"{threat}-{canary}" if many_canaries else threat for threat, canary in self.pairs
        )

    @property
    def views(self) -> tuple["AuditConfig", ...]:
        """The settings of every view; several views have a folder each."""
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

    @property
    def plug_ins(self) -> list[str]:
        """Dotted names of the user's own score, model, canaries and protocol."""
        named = [self.score, self.model, *self.canary.split("+")]
        protocol = type(self.parsed_protocol)
        if self.imports and protocol.__module__.split(".")[0] != "audit":
            named.append(f"{protocol.__module__}.{protocol.__qualname__}")
        return [name for name in named if "." in name]

    @cached_property
    def parsed_protocol(self) -> Protocol:
        """How the best run is chosen."""
        user_code.import_modules(self.imports)  # a worker may not have imported them yet
        is_search = self.protocol == "search"
        return protocols.parse_protocol(self.repetitions if is_search else self.protocol)

    @property
    def runs_distribution(self) -> Repetitions:
        """The distribution of K; for a grid, that of its number of runs."""
        protocol = self.parsed_protocol
        if protocol.runs_distribution is None:
            raise NotApplicable(f"protocol must draw K in advance, got {protocol.spec}")
        return protocol.runs_distribution

    @property
    def stores_runs(self) -> bool:
        """Whether the shards contain every run, not only the winners."""
        repetitions = self.parsed_protocol.search_repetitions
        if repetitions is None or repetitions == Fixed(1):
            return False
        return self.workload.expected_runs <= _MAX_STORED_RUNS

    @property
    def evaluation(self) -> Evaluation:
        """How the bound to report is computed.

        `lambda_a` is the best statistic of a run with the Dirac canary. With sampled batches, and
        if a final run follows a tuning on a subset, only `lambda_c` covers everything that is
        released.
        """
        plain = self.sampling_rate == 1.0 and not self.parsed_protocol.trains_on_subset
        looks = doubling_sizes(self.trials, _FIRST_LOOK) if self.stop_at else (self.trials,)
        proxy = "lambda_a" if plain else "lambda_c"
        return Evaluation(self.delta, self.confidence, proxy, looks, self.stop_at)

    @property
    def place(self) -> Place:
        """Where the audit runs."""
        return Place(Path(self.out), self.jobs, self.devices, self.backend, self.scheduler)

    @property
    def workload(self) -> Workload:
        """The size of the audit, and its limits."""
        return Workload(
            budgets=len(self.epsilon),
            repeats=self.repeats,
            trials=self.trials,
            views=len(self.pairs),
            protocol=self.parsed_protocol,
            steps=self.steps,
            records=1 if self.threat == "ETCV" else self.train_size,
            model=self.model,
            place=self.place,
            max_runs=self.max_runs,
            max_hours=self.max_hours,
            max_budgets=self.max_budgets,
        )

    def base(self, budget: int) -> DpSgd:
        """One run of DP-SGD with the noise that spends the budget with this index."""
        noise_multiplier = calibrate_noise_multiplier(
            self.epsilon[budget], self.delta, self.steps, self.sampling_rate, self.accounting
        )
        return DpSgd(noise_multiplier, self.steps, self.sampling_rate)

    def training(self, noise_multiplier: float) -> DpSgdSettings:
        """The engine's settings at a noise level; trials store the indices of its candidates."""
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


def preset_folder() -> Path:
    """The folder of the presets: `runs/` in a checkout, `audit/presets/` in a wheel."""
    installed = _PACKAGE / "presets"
    return installed if installed.is_dir() else _PACKAGE.parent / "runs"


def preset_names() -> dict[str, str]:
    """The installed presets for `audit.run`: names, and the first comment of each file."""
    titles = {}
    for file in sorted(preset_folder().glob("*.toml")):
        if not file.stem.startswith("reproduce-"):
            first_line = file.read_text(encoding="utf-8").partition("\n")[0]
            titles[file.stem] = first_line.lstrip("# ")
    return titles


def find_preset(name: str) -> Path:
    """The file of a preset: a path, or the name of an installed one such as `small-etcv`."""
    # Path.exists would raise an error for a name that is too long.
    if os.path.exists(name) or Path(name).suffix or len(Path(name).parts) != 1:
        return Path(name)
    names = sorted(file.stem for file in preset_folder().glob("*.toml"))
    return preset_folder() / f"{checks.one_of('preset', name, names)}.toml"


def read_preset(name: str) -> dict[str, Any]:
    """The settings of a preset: a TOML file with the keys of `AuditConfig`, or an installed name.

    The default folder of results is next to a file, and in `runs/` for an installed preset.
    """
    file = find_preset(name)
    try:
        values = tomllib.loads(checks.read_text(file, 10**6), parse_float=_float_of_toml)
    except OSError as error:
        raise InvalidInput(
            f"preset must be a readable TOML file, got {name!r}: {checks.reason_of(error)}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"preset must be TOML, got {name!r}: {error}") from error
    by_name = str(file) != name
    out = Path("runs", file.stem) if by_name else file.with_suffix("")
    return {"out": str(out), **values}


def _float_of_toml(text: str) -> float | str:
    """A number of a TOML file, as text if a setting of whole numbers must refuse it (20.000)."""
    return text if is_ambiguous(text) else float(text)

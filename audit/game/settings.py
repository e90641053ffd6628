"""Every setting of an audit, checked once, here."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from audit import checks, protocols
from audit import repetitions as laws
from audit.accounting import ACCOUNTINGS, DpSgd, calibrate_noise_multiplier
from audit.dpsgd import ENGINES, MODELS, PRECISIONS, DpSgdSettings
from audit.lower_bounds.sequential_plan import doubling_sizes
from audit.protocols import Grid, Protocol, RandomSearch, RandomStopping, Subset, UntilAccepted
from audit.repetitions import Binomial, Fixed, Repetitions
from audit.tuning.batch_samplers import SAMPLERS
from audit.tuning.on_run_batches import SHAREABLE, SIMULATED
from threat_models import CANARIES, THREATS, check_names
from threat_models.datasets import RECORD_SHAPES

BACKENDS = ("loky", "dask", "ray")
# Runs that are kept, each in 24 bytes.
_MAX_KEPT = 1e7
_MAX_JOBS, _LARGEST, _MAX_GAMES = 1024, 10**9, 10**12
# With fewer trials nothing is worth proving.
_FIRST_LOOK = 100
# Their training set is the same, and so are their runs; only the score differs.
_SHARED = "NTNV+NTCV"


def _setting(default: Any, meaning: str, incidental: bool = False) -> Any:
    """A field with what the command line says of it.

    Args:
        default: also where the type comes from; of a tuple's first item where several are taken.
        meaning: what it is, its unit included.
        incidental: whether the results do not depend on it.
    """
    return field(default=default, metadata={"meaning": meaning, "incidental": incidental})


@dataclass(frozen=True)
class AuditConfig:
    """The settings of an audit: the command line's options and the presets' keys.

    What each means is said once, at its field; `python -m audit.run --help` prints it.

    Raises:
        ValueError: a value out of its range, or settings that do not fit each other.
    """

    threat: str = _setting("ETCV", "NTNV, NTCV or ETCV; or NTNV+NTCV on one set of runs")
    canary: str = _setting("dirac", "dirac, input, a dotted name, or several: input+dirac")
    score: str = _setting("", "what chooses, or a function's dotted name (default: the paper's)")
    dataset: str = _setting("DIGITS", ", ".join(RECORD_SHAPES))
    data_root: str = _setting(
        "", "folder of the data sets (default: AUDIT_DATA_ROOT, else downloads)"
    )
    canary_index: int = _setting(0, "which record is the input canary, from 0")
    train_size: int = _setting(5000, "training records, at most")
    validation_size: int = _setting(10000, "validation records, at most")
    epsilon: tuple[float, ...] = _setting((1.0, 2.0, 4.0), "budgets eps_B of one run")
    accounting: str = _setting("rdp", "how eps_B is counted: rdp, as papers do, or exact")
    delta: float = _setting(1e-5, "of every epsilon, in (0, 1)")
    protocol: str = _setting(
        "search", "search, grid:N[,P], adaptive:LOW,HIGH, subset:P, until:P, stopping:P"
    )
    repetitions: str = _setting(protocols.DEFAULT_REPETITIONS, "the law of K, the number of runs")
    sampler: str = _setting(
        "gaussian-process",
        f"of an adaptive protocol: {' or '.join(SAMPLERS)}, which tells of the canary",
    )
    trials: int = _setting(2000, "games per budget and repeat")
    repeats: int = _setting(3, "how often the whole audit is played")
    stop_at: float = _setting(0.0, "an eps_L that is enough, if repeats is 1; 0: none")
    steps: int = _setting(100, "N, iterations of one run")
    sampling_rate: float = _setting(1.0, "tau, chance to be in a batch; 1: full batch")
    learning_rates: tuple[float, ...] = _setting(
        (0.001,), "the grid of these, C and momentum is searched"
    )
    max_grad_norm: tuple[float, ...] = _setting((1.0,), "C, the norm gradients are clipped to")
    momentum: tuple[float, ...] = _setting((0.0,), "in [0, 1)")
    model: str = _setting("mlp", "logistic, mlp, convnet, or a module's dotted name")
    engine: str = _setting("auto", ", ".join(("auto", *ENGINES)))
    precision: str = _setting("float32", "float32, float64; or products in tf32 or bf16")
    devices: tuple[str, ...] = _setting(("cpu",), "cpu, cuda or cuda:N; a worker each", True)
    confidence: float = _setting(0.95, "of the lower bounds, in (0, 1)")
    seed: int = _setting(0, "of everything random")
    jobs: int = _setting(1, "worker processes", True)
    max_runs: float = _setting(1e9, "an audit that expects more is refused", True)
    max_hours: float = _setting(1e4, "and one that expects more, on processors", True)
    max_budgets: int = _setting(50, "and one of more budgets", True)
    backend: str = _setting("loky", "loky (this machine), dask or ray", True)
    scheduler: str = _setting("", "address of a dask or ray cluster (default: a local one)", True)
    out: str = _setting("", "folder of the results (default: runs/THREAT-CANARY-SCORE)", True)

    def __post_init__(self) -> None:
        self._check_texts()
        self._check_numbers()
        self._set("threat", checks.one_of("threat", self.threat, (*THREATS, _SHARED)))
        names = [checks.one_of("canary", c, CANARIES, dotted=True) for c in self.canaries]
        self._set("canary", "+".join(names))
        if len(set(self.canaries)) < len(self.canaries):
            raise ValueError(f"canary must name each canary once, got {self.canary!r}")
        scores = [check_names(*pair, self.score or None) for pair in self.pairs]
        if self.score or len(scores) == 1:  # else every view has the paper's own
            self._set("score", scores[0])
        for name, allowed in (
            ("dataset", RECORD_SHAPES),
            ("accounting", ACCOUNTINGS),
            ("engine", ("auto", *ENGINES)),
            ("precision", PRECISIONS),
            ("backend", BACKENDS),
            ("sampler", SAMPLERS),
        ):
            self._set(name, checks.one_of(name, getattr(self, name), allowed))
        self._set("model", checks.one_of("model", self.model, MODELS, dotted=True))
        self._set_protocol()
        if self.score == "worst-order" and self.sampling_rate != 1.0:
            raise ValueError(
                f"sampling_rate must be 1 for the score worst-order, got {self.sampling_rate!r}"
            )
        if not self.devices or len({device.split(":")[0] for device in self.devices}) > 1:
            raise ValueError(f"devices must be of one kind, got {', '.join(self.devices)}")
        if self.devices[0] != "cpu" and self.jobs > len(self.devices):
            raise ValueError(
                f"jobs must be at most one per GPU, got {self.jobs} for {', '.join(self.devices)}"
            )
        if self.scheduler and self.backend == "loky":
            raise ValueError(
                "scheduler must come with a backend that has one, dask or ray, got backend loky "
                f"and scheduler {self.scheduler!r}"
            )
        if not self.out:
            parts = [self.threat, self.canary, self.score]
            self._set("out", "runs/" + "-".join(filter(None, parts)).lower().replace("+", "-"))

    def _set_protocol(self) -> None:
        """Protocol and law of K in their own words; no law where the protocol has none."""
        found = protocols.parse_protocol(self.protocol)
        named = self.protocol.strip().lower().startswith("search")
        has_own = "/" in self.protocol or (isinstance(found, RandomSearch) and not named)
        if self.repetitions not in ("", protocols.DEFAULT_REPETITIONS):
            if not has_own:
                found = protocols.parse_protocol(self.protocol, self.repetitions)
            elif laws.parse_repetitions(self.repetitions) != getattr(found, "repetitions", None):
                raise ValueError(
                    f"repetitions must be given once, got {self.repetitions} and {self.protocol}"
                )
        if not isinstance(found, SIMULATED):
            names = ", ".join(each.name for each in SIMULATED)
            raise ValueError(f"protocol must be one that is played: {names}, got {found.spec}")
        if len(self.pairs) > 1 and not isinstance(found, SHAREABLE):
            raise ValueError(
                "protocol must be search or grid where one set of runs serves several threat "
                f"models or canaries, got {found.spec}"
            )
        count = len(self.learning_rates) * len(self.max_grad_norm) * len(self.momentum)
        if isinstance(found, Grid) and count not in (1, found.candidates):
            raise ValueError(
                f"learning_rates, max_grad_norm and momentum must make {found.candidates} "
                f"candidates, as {found.spec} has, or one for all, got {count}"
            )
        law = getattr(found, "repetitions", None)
        self._set("repetitions", "" if law is None else law.spec)
        self._set("protocol", "search" if isinstance(found, RandomSearch) else found.spec)

    def _check_texts(self) -> None:
        devices = self.devices if isinstance(self.devices, list | tuple) else (self.devices,)
        lowered = (d.lower() if isinstance(d, str) else d for d in devices)
        self._set("devices", tuple(lowered))
        texts = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(f.default, str)}
        for name, value in (*texts.items(), *(("devices", device) for device in self.devices)):
            if not isinstance(value, str):
                raise ValueError(f"{name} must be text, got {value!r}")
            if "\0" in value:
                raise ValueError(f"{name} must be text without null characters, got {value!r}")

    def _check_numbers(self) -> None:
        """Numbers, also where they came as text, each in its range."""
        for name, low, high in (
            *(
                ("seed", 0, None),
                ("trials", 2, _MAX_GAMES),
                ("repeats", 1, _MAX_GAMES),
                ("jobs", 1, _MAX_JOBS),
                ("max_budgets", 1, None),
                ("canary_index", 0, _LARGEST),
            ),
            *((name, 1, _LARGEST) for name in ("train_size", "validation_size", "steps")),
        ):
            self._set(name, checks.integer(name, getattr(self, name), low, high))
        for name in ("delta", "confidence"):
            self._set(name, checks.interval(name, getattr(self, name), 0.0, 1.0))
        for name in ("max_runs", "max_hours"):
            self._set(name, checks.interval(name, getattr(self, name), 0.0))
        stop_at = checks.interval("stop_at", self.stop_at, 0.0, closed_low=True)
        self._set("stop_at", stop_at)
        if stop_at and self.repeats != 1:
            raise ValueError(f"repeats must be 1 with stop_at, got {self.repeats}")
        rate = checks.interval("sampling_rate", self.sampling_rate, 0.0, 1.0, closed_high=True)
        self._set("sampling_rate", rate)
        for name in ("epsilon", "learning_rates", "max_grad_norm"):
            self._set(name, _numbers(name, getattr(self, name)))
        self._set("momentum", _numbers("momentum", self.momentum, 1.0, closed_low=True))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

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

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that the results depend on, as json knows them."""
        incidental = {each.name for each in fields(self) if each.metadata["incidental"]}
        settings = {k: v for k, v in asdict(self).items() if k not in incidental}
        settings["device"] = self.device_kind
        for name in ("max_grad_norm", "momentum"):
            values = settings[name]
            settings[name] = values[0] if len(values) == 1 else values
        return dict(json.loads(json.dumps(settings)))

    @property
    def device_kind(self) -> str:
        """What all devices are, cpu or cuda."""
        return self.devices[0].split(":")[0]

    @property
    def proxy(self) -> str:
        """The proxy of the bound to report: it tells most of a run with the Dirac canary.

        Where a tuning on a subset is followed by a final run, both are told by lambda_c alone.
        """
        plain = self.sampling_rate == 1.0 and not isinstance(self.tuning, Subset)
        return "lambda_a" if plain else "lambda_c"

    @property
    def analysis_sizes(self) -> tuple[int, ...]:
        """Numbers of trials at which a game is looked at; the last alone without `stop_at`."""
        return doubling_sizes(self.trials, _FIRST_LOOK) if self.stop_at else (self.trials,)

    @property
    def workers(self) -> int:
        """How many processes play: the jobs, and one per device at least."""
        return max(self.jobs, len(self.devices))

    @property
    def expected_runs(self) -> float:
        """How many runs the whole audit is expected to take."""
        return len(self.epsilon) * self.repeats * self.trials * self.runs_of_a_game

    @property
    def keeps_runs(self) -> bool:
        """Whether every run is kept beside the winners: what all of them say is more."""
        match self.tuning:
            case RandomSearch(law):
                return law != Fixed(1) and self.expected_runs <= _MAX_KEPT
            case _:
                return False

    @property
    def runs_of_a_game(self) -> float:
        """How many runs one game is expected to take, at most where that depends on the data."""
        match self.tuning:
            case UntilAccepted(acceptance):
                return 1.0 / acceptance
            case RandomStopping(stop):
                return 1.0 / stop
            case Subset(repetitions):
                return repetitions.mean + 1.0
            case tuning:
                return tuning.mean_runs or 0.0

    @property
    def tuning(self) -> Protocol:
        """How the best run is chosen."""
        return protocols.parse_protocol(
            self.repetitions if self.protocol == "search" else self.protocol
        )

    @property
    def law(self) -> Repetitions:
        """The law of K; of a grid that of its number of runs.

        Raises:
            ValueError: the protocol has none.
        """
        match self.tuning:
            case Grid(candidates, inclusion):
                return Fixed(candidates) if inclusion == 1.0 else Binomial(candidates, inclusion)
            case _:
                return laws.parse_repetitions(self.repetitions)

    def base(self, budget: int) -> DpSgd:
        """One run of DP-SGD at the noise that spends a budget.

        Args:
            budget: index of eps_B.
        """
        noise_multiplier = calibrate_noise_multiplier(
            self.epsilon[budget], self.delta, self.steps, self.sampling_rate, self.accounting
        )
        return DpSgd(noise_multiplier, self.steps, self.sampling_rate)

    def training(self, noise_multiplier: float) -> DpSgdSettings:
        """What the engine is set to at a noise; the trials' candidates are indices of its grid."""
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
        """A config from names and values; `device` names a single one.

        Raises:
            ValueError: an unknown name, or a value out of its range.
        """
        values = dict(values)
        if "device" in values:
            values["devices"] = (values.pop("device"),)
        names = [each.name for each in fields(cls)]
        values = {checks.one_of("setting", name, names): value for name, value in values.items()}
        lists = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        return cls(**{**values, **lists})


def _numbers(
    name: str, values: object, high: float = float("inf"), *, closed_low: bool = False
) -> tuple[float, ...]:
    """One number or several, each once and in its range."""
    items = tuple(values) if isinstance(values, list | tuple) else (values,)
    if not items:
        raise ValueError(f"{name} must name at least one number, got none")
    numbers = tuple(checks.interval(name, item, 0.0, high, closed_low=closed_low) for item in items)
    if len(set(numbers)) < len(numbers):
        what = "budget" if name == "epsilon" else "value"
        raise ValueError(f"{name} must name each {what} once, got {numbers}")
    return numbers

"""Validation of an audit's settings: each function returns the values to store."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from audit import checks, protocols
from audit.accounting import ACCOUNTINGS
from audit.dpsgd import ENGINES, MODELS, PRECISIONS
from audit.dpsgd.settings import several_numbers
from audit.errors import InvalidInput
from audit.protocols import Grid, Protocol, RandomSearch
from audit.repetitions import parse_repetitions
from audit.tuning.batch_samplers import SAMPLERS
from audit.tuning.on_run_batches import SHAREABLE, SIMULATED
from threat_models import CANARIES, THREATS, check_names
from threat_models.datasets import RECORD_SHAPES

BACKENDS = ("loky", "dask", "ray")
SHARED_THREATS = "NTNV+NTCV"
"""Two threat models on the same runs: they share the training set, and only the score differs."""

_MAX_SIZE, _MAX_TRIALS = 10**9, 10**12
_INTEGERS = {
    "seed": (0, None),
    "trials": (2, _MAX_TRIALS),
    "repeats": (1, _MAX_TRIALS),
    "jobs": (1, checks.MAX_JOBS),
    "max_budgets": (1, None),
    "canary_index": (0, _MAX_SIZE),
    "train_size": (1, _MAX_SIZE),
    "validation_size": (1, _MAX_SIZE),
    "steps": (1, _MAX_SIZE),
}
_NAMES = {
    "dataset": tuple(RECORD_SHAPES),
    "accounting": ACCOUNTINGS,
    "engine": ("auto", *ENGINES),
    "precision": tuple(PRECISIONS),
    "backend": BACKENDS,
    "sampler": SAMPLERS,
}


def checked_texts(texts: Mapping[str, object]) -> None:
    """Raises InvalidInput if a setting is not text, or contains a null character."""
    for name, value in texts.items():
        for one in value if name == "devices" and isinstance(value, tuple) else (value,):
            if not isinstance(one, str):
                raise InvalidInput(f"{name} must be text, got {one!r}")
            if "\0" in one:
                raise InvalidInput(f"{name} must be text without null characters, got {one!r}")


def checked_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numeric settings in their types, also if they were given as text."""
    found: dict[str, Any] = {
        name: checks.integer(name, values[name], low, high)
        for name, (low, high) in _INTEGERS.items()
    }
    for name in ("delta", "confidence"):
        found[name] = checks.interval(name, values[name], 0.0, 1.0)
    for name in ("max_runs", "max_hours"):
        found[name] = checks.interval(name, values[name], 0.0)
    found["stop_at"] = checks.interval("stop_at", values["stop_at"], 0.0, closed_low=True)
    if found["stop_at"] and found["repeats"] != 1:
        raise InvalidInput(f"repeats must be 1 with stop_at, got {found['repeats']}")
    found["sampling_rate"] = checks.interval(
        "sampling_rate", values["sampling_rate"], 0.0, 1.0, closed_high=True
    )
    for name in ("epsilon", "learning_rates", "max_grad_norm"):
        found[name] = several_numbers(name, values[name])
    found["momentum"] = several_numbers("momentum", values["momentum"], 1.0, closed_low=True)
    return found


def checked_names(values: Mapping[str, Any]) -> dict[str, str]:
    """The settings that are names, in their canonical spelling."""
    found = {name: checks.one_of(name, values[name], allowed) for name, allowed in _NAMES.items()}
    found["model"] = checks.one_of("model", values["model"], MODELS, dotted=True)
    found["threat"] = checks.one_of("threat", values["threat"], (*THREATS, SHARED_THREATS))
    canaries = [
        checks.one_of("canary", one, CANARIES, dotted=True) for one in values["canary"].split("+")
    ]
    if len(set(canaries)) < len(canaries):
        raise InvalidInput(f"canary must name each canary once, got {'+'.join(canaries)!r}")
    found["canary"] = "+".join(canaries)
    return found


def checked_score(score: str, pairs: Sequence[tuple[str, str]], sampling_rate: float) -> str:
    """The score; with several views and no score given, each view has the paper's."""
    scores = [check_names(*pair, score or None) for pair in pairs]
    found = scores[0] if score or len(scores) == 1 else score
    if found == "worst-order" and sampling_rate != 1.0:
        raise InvalidInput(
            "sampling_rate must be 1 for the score worst-order, got "
            f"{checks.one_line(sampling_rate)}"
        )
    return found


def checked_protocol(
    protocol: str, repetitions: str, views: int, grid_points: int
) -> tuple[str, str]:
    """Protocol and distribution of K as texts; the distribution is empty if there is none."""
    found = protocols.parse_protocol(protocol)
    is_search = protocol.strip().lower().startswith("search")
    names_own = "/" in protocol or (isinstance(found, RandomSearch) and not is_search)
    if repetitions not in ("", protocols.DEFAULT_REPETITIONS):
        if not names_own:
            found = protocols.parse_protocol(protocol, repetitions)
        elif parse_repetitions(repetitions) != getattr(found, "repetitions", None):
            raise InvalidInput(f"repetitions must be given once, got {repetitions} and {protocol}")
    _check_playable(found, views, grid_points)
    distribution = getattr(found, "repetitions", None)
    return (
        "search" if isinstance(found, RandomSearch) else found.spec,
        "" if distribution is None else distribution.spec,
    )


def _check_playable(protocol: Protocol, views: int, grid_points: int) -> None:
    if not isinstance(protocol, SIMULATED):
        names = ", ".join(each.name for each in SIMULATED)
        raise InvalidInput(
            f"protocol must be one that an audit can play: {names}, got {protocol.spec}"
        )
    if views > 1 and not isinstance(protocol, SHAREABLE):
        raise InvalidInput(
            "protocol must be search or grid if one set of runs serves several threat models or "
            f"canaries, got {protocol.spec}"
        )
    if isinstance(protocol, Grid) and grid_points not in (1, protocol.candidates):
        raise InvalidInput(
            f"learning_rates, max_grad_norm and momentum must make {protocol.candidates} "
            f"candidates for {protocol.spec}, or a single one, got {grid_points}"
        )


def check_place(devices: Iterable[str], jobs: int, backend: str, scheduler: str) -> None:
    """Raises InvalidInput if devices, jobs, backend and scheduler do not fit each other."""
    devices = tuple(devices)
    named = ", ".join(devices)
    if not devices or len({device.split(":")[0] for device in devices}) > 1:
        raise InvalidInput(f"devices must be of one kind, got {named or 'none'}")
    if devices[0] != "cpu" and jobs > len(devices):
        raise InvalidInput(f"jobs must be at most one per GPU, got {jobs} for {named}")
    if scheduler and backend == "loky":
        raise InvalidInput(
            "scheduler must come with the backend dask or ray, got backend loky and scheduler "
            f"{scheduler!r}"
        )

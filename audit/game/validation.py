"""Validation of settings of an audit that depend on each other, or are several in one text."""

import re
from collections.abc import Iterable, Mapping, Sequence

from audit import checks, protocols
from audit.errors import InvalidInput
from audit.protocols import Protocol
from audit.repetitions import parse_repetitions
from threat_models import CANARIES, check_names

_DEVICE = re.compile(r"cpu(:0)?|cuda(:[0-9]+)?")


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

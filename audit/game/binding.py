"""What ties trials to their audit: settings, code, plug-ins and data, each as a digest.

Trials of two audits must never mix, so a folder and each of its shards carry these. Numbers that
theory fixes before training (noise, order, threshold) are among them; the bounds that are computed
of finished trials are not.
"""

import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import audit
from audit.game.settings import AuditConfig
from audit.game.setup import SetUp
from canaries import InputCanary
from threat_models import ThreatModel
from threat_models.user_code import import_by_name

SCHEMA = 2
"""Version of config.json, of the shards and of summary.json."""

# The sources that trials come from.
_CODE = (
    "audit/dpsgd",
    "audit/orders",
    "audit/repetitions",
    "audit/tuning",
    "canaries",
    "threat_models",
)
_PLAYED_BY = ("audit/game/acceptance.py", "audit/game/play.py", "audit/game/setup.py")


def binding(config: AuditConfig, set_ups: Sequence[SetUp]) -> dict[str, Any]:
    """What the trials of an audit come from, beside its settings.

    Args:
        config: the audit.
        set_ups: what each budget is played with.

    Returns:
        Plain values for config.json: the code's digest, one for every plug-in's source, one for
        the records and canaries, and for each budget what theory fixed.
    """
    return {
        "schema": SCHEMA,
        "code": _digest_of_code(),
        "plug_ins": {name: _digest_of_source(name) for name in _plug_ins(config)},
        "data": _digest(_of_data([view.threat_model for view in set_ups[0].views])),
        "fixed": [
            {
                "noise_multiplier": game.base.noise_multiplier,
                "split_top": game.views[0].split_top,
                "threshold": game.threshold,
                **({} if game.good_enough is None else {"good_enough": game.good_enough}),
            }
            for game in set_ups
        ],
    }


def audit_digest(config: AuditConfig, bound_to: dict[str, Any]) -> str:
    """One digest of all that an audit's trials come from; every shard carries it."""
    text = json.dumps([config.identity, bound_to], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(*parts: object, arrays: dict[str, NDArray[Any]]) -> str:
    """A digest of arrays and of what they belong to."""

    def pieces() -> Iterator[bytes]:
        yield repr(parts).encode()
        for name, array in sorted(arrays.items()):
            yield f"{name} {array.dtype.str} {array.shape}".encode()
            yield np.ascontiguousarray(array).tobytes()

    return _digest(pieces())


def _digest(pieces: Iterator[bytes]) -> str:
    whole = hashlib.sha256()
    for piece in pieces:
        whole.update(piece)
    return whole.hexdigest()


def _of_data(served: Sequence[ThreatModel]) -> Iterator[bytes]:
    for threat_model in served:
        for records in (threat_model.training_set, threat_model.validation_set):
            if records is not None:
                yield records.features.tobytes()
                yield records.labels.tobytes()
        if isinstance(threat_model.canary, InputCanary):
            yield threat_model.canary.features.tobytes()
            yield str(threat_model.canary.label).encode()


@cache
def _digest_of_code() -> str:
    root = Path(audit.__file__).parents[1]
    packages = (root / name for name in _CODE)
    sources = [
        file
        for path in packages
        for file in (path.rglob("*") if path.is_dir() else [path.with_suffix(".py")])
        if file.suffix in (".py", ".c")
    ]
    files = sorted([*sources, *(root / name for name in _PLAYED_BY)])
    return _digest(file.read_bytes() for file in files)


def _plug_ins(config: AuditConfig) -> list[str]:
    return [name for name in (config.score, config.model, *config.canaries) if "." in name]


def _digest_of_source(dotted: str) -> str:
    """Digest of the file that a dotted name is written in; of the name where there is no file.

    What that file imports is not looked at.
    """
    found = import_by_name("plug-in", dotted)
    try:
        source = inspect.getsourcefile(inspect.unwrap(found))
    except TypeError:
        spec = importlib.util.find_spec(dotted.rpartition(".")[0])
        source = None if spec is None else spec.origin
    if source is None or not Path(source).is_file():
        return _digest(iter([f"{dotted} of Python {sys.version}".encode()]))
    return _digest(iter([Path(source).read_bytes()]))

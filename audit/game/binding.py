"""Digests that tie trials to their audit: of settings, code, plug-ins and data.

Trials of different audits must never be mixed, so a folder and each of its shards store these
digests. They include the numbers that theory fixes before training (noise, order, threshold), but
not the bounds that are computed from finished trials.
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

from audit.game.setup import SetUp
from canaries import InputCanary
from threat_models import ThreatModel
from threat_models.user_code import import_by_name

SCHEMA = 2
"""Version of config.json, of the shards and of summary.json."""

# The sources that determine the trials.
_CODE = (
    "audit/dpsgd",
    "audit/orders",
    "audit/repetitions",
    "audit/protocols/adaptive_density",
    "audit/simulation",
    "canaries",
    "threat_models",
)
_MODULES = (
    "audit/game/acceptance.py",
    "audit/game/blocks.py",
    "audit/game/play.py",
    "audit/game/setup.py",
)


def binding(plug_ins: Sequence[str], set_ups: Sequence[SetUp]) -> dict[str, Any]:
    """The inputs of an audit's trials that are not settings, for config.json.

    This is the digest of the code, of every plug-in's source, and of the records and canaries, and
    the numbers that theory fixed for each budget.
    """
    return {
        "schema": SCHEMA,
        "code": _digest_of_code(),
        "plug_ins": {name: _digest_of_source(name) for name in plug_ins},
        "data": _digest(_data([view.threat_model for view in set_ups[0].views])),
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


def audit_digest(identity: dict[str, Any], bound_to: dict[str, Any]) -> str:
    """Digest of everything that determines an audit's trials; every shard stores it."""
    text = json.dumps([identity, bound_to], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(*parts: object, arrays: dict[str, NDArray[Any]]) -> str:
    """Digest of arrays and of the names that they belong to."""

    def pieces() -> Iterator[bytes]:
        yield repr(parts).encode()
        for name, array in sorted(arrays.items()):
            yield f"{name} {array.dtype.str} {array.shape}".encode()
            yield np.ascontiguousarray(array).tobytes()

    return _digest(pieces())


def _digest(pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _data(views: Sequence[ThreatModel]) -> Iterator[bytes]:
    for threat_model in views:
        for records in (threat_model.training_set, threat_model.validation_set):
            if records is not None:
                yield records.features.tobytes()
                yield records.labels.tobytes()
        if isinstance(threat_model.canary, InputCanary):
            yield threat_model.canary.features.tobytes()
            yield str(threat_model.canary.label).encode()


@cache
def _digest_of_code() -> str:
    root = Path(__file__).parents[2]
    packages = (root / name for name in _CODE)
    sources = [
        file
        for path in packages
        for file in (path.rglob("*") if path.is_dir() else [path.with_suffix(".py")])
        if file.suffix in (".py", ".c")
    ]
    files = sorted([*sources, *(root / name for name in _MODULES)])
    return _digest(file.read_bytes() for file in files)


def _digest_of_source(dotted: str) -> str:
    """Digest of a dotted name's source file, without its imports; of the name if there is none."""
    found = import_by_name("plug-in", dotted)
    try:
        source = inspect.getsourcefile(inspect.unwrap(found))
    except TypeError:
        spec = importlib.util.find_spec(dotted.rpartition(".")[0])
        source = None if spec is None else spec.origin
    if source is None or not Path(source).is_file():
        return _digest(iter([f"{dotted} of Python {sys.version}".encode()]))
    return _digest(iter([Path(source).read_bytes()]))

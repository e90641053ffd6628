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
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.game.reachable_code import ReachableCode
from audit.game.settings import SCHEMA
from audit.game.setup import SetUp
from audit.game.sources import Sources
from audit.user_code import import_by_name
from canaries import InputCanary
from threat_models import ThreatModel

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("audit", "canaries", "threat_models")
# A block is played by `play`; its trials also depend on how the audit is divided into blocks.
_STARTS = (("audit.game.play", "play"), ("audit.game.play", "all_blocks"))


def binding(plug_ins: Sequence[str], set_ups: Sequence[SetUp]) -> dict[str, Any]:
    """The inputs of an audit's trials that are not settings, for config.json.

    These are digests of the code that `play` reaches, of every plug-in with the user's own code
    that it reaches, and of the records and canaries, and the numbers that theory fixed for each
    budget. Rewording a comment, a docstring or the text of an exception changes no digest.
    """
    code, of_plug_ins = _digests_of_code(tuple(plug_ins))
    return {
        "schema": SCHEMA,
        "code": code,
        "plug_ins": of_plug_ins,
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


def digest_of_code(root: Path = _ROOT) -> str:
    """Digest of the project's code that `play` reaches, from the sources below a folder."""
    return _reachable(Sources(root, _PACKAGES)).digest()


def _reachable(sources: Sources) -> ReachableCode:
    code = ReachableCode(sources)
    for module, name in _STARTS:
        code.add(module, name)
    return code


@cache
def _digests_of_code(plug_ins: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Digest of the project's code that the trials reach, and one for every plug-in.

    The plug-ins belong to the same search, because the code of the project calls their methods, and
    they may call more of the project.
    """
    homes = {name: _folder_of_source(name) for name in plug_ins}
    folders = tuple({home: None for home in homes.values() if home is not None})
    code = _reachable(Sources(_ROOT, _PACKAGES, folders))
    texts = {}
    for name, home in homes.items():
        module, _, attribute = name.rpartition(".")
        try:
            if home is None:
                raise LookupError(name)
            code.add(module, attribute)
        except (LookupError, SyntaxError):
            texts[name] = _digest_of_text(name)
    own_names = {name for name in code.digests if name.partition(":")[0].split(".")[0] in _PACKAGES}
    other_names = code.digests.keys() - own_names
    modules = {name.rpartition(".")[0] for name in plug_ins}
    digests = {}
    for name in plug_ins:
        elsewhere = modules - {name.rpartition(".")[0]}
        shared = {
            definition
            for definition in other_names
            if definition.partition(":")[0] not in elsewhere
        }
        digests[name] = texts.get(name) or code.digest(shared)
    return code.digest(own_names), digests


def _folder_of_source(dotted: str) -> Path | None:
    """The folder from which a user's own module was imported; None for installed libraries."""
    import_by_name("plug-in", dotted)
    packages = dotted.split(".")[:-1]
    source = getattr(sys.modules[".".join(packages)], "__file__", None)
    if source is None:
        return None
    path = Path(source).resolve()
    if path.name == "__init__.py":
        path = path.parent
    if path.with_suffix("").parts[-len(packages) :] != tuple(packages):
        return None
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    libraries = {Path(sysconfig.get_path(kind)).resolve() for kind in kinds}
    folder = path.parents[len(packages) - 1]
    is_installed = bool(libraries & {folder, *folder.parents})
    return None if is_installed and packages[0] not in _PACKAGES else folder


def _digest_of_text(dotted: str) -> str:
    """Digest of a dotted name's source file, without its imports; of the name if there is none."""
    plug_in = import_by_name("plug-in", dotted)
    try:
        source = inspect.getsourcefile(inspect.unwrap(plug_in))
    except TypeError:
        spec = importlib.util.find_spec(dotted.rpartition(".")[0])
        source = None if spec is None else spec.origin
    if source is None or not Path(source).is_file():
        return _digest(iter([f"{dotted} of Python {sys.version}".encode()]))
    return _digest(iter([Path(source).read_bytes()]))

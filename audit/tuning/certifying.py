"""What a study states about itself, for its certificate."""

import datetime
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from audit import __version__
from audit.accounting import Mechanism
from audit.certificate import Certificate, NoisyScore, StudyFacts, model_hash
from audit.protocols import Protocol
from audit.tuning.outcome import Private

__all__ = ["certify"]

_LIBRARIES = ("numpy", "scipy", "opacus", "torch")


def certify(
    *,
    base: Mechanism,
    training: Mechanism,
    protocol: Protocol,
    delta: float,
    prior: Mapping[str, str],
    private: Private | None,
    expected_batch_size: float | None = None,
    seeded: bool,
    checked: frozenset[str],
    settings_hash: str,
    kept: bool = False,
    model: Any = None,
) -> Certificate:
    """The certificate of a finished study.

    Args:
        base: one run, its score included.
        training: one run without its score.
        protocol: how the best run was chosen.
        delta: of the whole tuning.
        prior: over candidates, in words.
        private: the noise of the score; None if it reads public records only.
        expected_batch_size: what noisy sums are divided by; None if the study names no constant.
        seeded: whether the random draws follow from a seed that was given.
        checked: what was checked in every run that could win.
        settings_hash: of the settings.
        kept: whether the key of the random draws stays on disk.
        model: the released model, whose hash the certificate states.
    """
    score = None
    if private is not None:
        score = NoisyScore(private.noise_std, private.sensitivity, private.disjoint)
    return Certificate.issue(
        base,
        training,
        protocol,
        delta,
        score,
        StudyFacts(prior, tuple(checked), seeded, kept, settings_hash, expected_batch_size),
        {
            "version": __version__,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "libraries": {name: found for name in _LIBRARIES if (found := _version(name))},
        },
        model_hash(model),
    )


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None

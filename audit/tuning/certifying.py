"""What a study says of itself: what was done by construction, checked, and taken on trust."""

import datetime
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from audit import __version__
from audit.accounting import DpSgd, Mechanism, Mixture, WorstOf, group_size, relations
from audit.certificate import Certificate, Condition, Ground, Setting
from audit.protocols import Adaptive, Grid, Protocol, RandomStopping, Subset, UntilAccepted
from audit.tuning.outcome import Private

__all__ = ["certify"]

_LIBRARIES = ("numpy", "scipy", "opacus", "torch")
_NEIGHBOURS = {
    "add-remove": "one has {records} more than the other",
    "zero-out": "the gradients of {records} are zero in one of them; "
    "the number of records is public",
    "replace-one": "they differ by the replacement of {records}",
}
_CHECKS = {
    "steps": "no run took more steps than accounted for",
    "noise_multiplier": "no run had less noise than accounted for",
    "sampling_rate": "no run had a higher sampling rate than accounted for",
    "poisson_sampling": "batches were drawn by Poisson sampling",
}


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
) -> Certificate:
    """The certificate of a study that is over.

    Args:
        base: one run, its score included.
        training: one run without its score.
        protocol: how the best run was chosen.
        delta: of the whole.
        prior: over candidates, in words.
        private: the noise of the score; None where it read public records only.
        expected_batch_size: what noisy sums are divided by; None where the study names no constant.
        seeded: whether the draws follow from a seed that was given.
        checked: what was checked in every run that could win.
        settings_hash: of the settings.
        kept: whether the key of all draws stays on disk.
    """
    fate = "kept, for its owner alone, in its folder" if kept else "deleted with the study"
    return Certificate.issue(
        base,
        protocol,
        delta,
        _setting(training, protocol, private, prior),
        (
            *_by_construction(protocol, private, seeded),
            *_of_runs(training, protocol, checked, expected_batch_size),
            *_on_trust(protocol, private),
        ),
        _void_if(protocol, private),
        {
            "version": __version__,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "libraries": {name: _version(name) for name in _LIBRARIES if _version(name)},
            "seeds": "all draws follow from a seed that was given"
            if seeded
            else f"256 bits of the operating system's entropy, {fate}",
            "settings": settings_hash,
        },
    )


def _parts(training: Mechanism) -> tuple[Mechanism, ...]:
    return training.candidates if isinstance(training, WorstOf | Mixture) else (training,)


def _unit(training: Mechanism) -> str:
    size = group_size(training)
    return "one record" if size == 1 else f"{size} records"


def _neighbours(training: Mechanism) -> str:
    stated = relations(training)
    if len(stated) == 1 and all(isinstance(part, DpSgd) for part in _parts(training)):
        return _NEIGHBOURS[next(iter(stated))].format(records=_unit(training))
    return "those for which the base mechanism's parameters hold"


def _setting(
    training: Mechanism, protocol: Protocol, private: Private | None, prior: Mapping[str, str]
) -> Setting:
    validation = "public records only"
    if private is not None:
        whose = "other private records" if private.disjoint else "private records, also trained on"
        validation = (
            f"{whose}, through a statistic of sensitivity {private.sensitivity:g} with Gaussian "
            f"noise of standard deviation {private.noise_std:g}"
        )
    return Setting(
        trust_model="central: who tunes holds the data and is trusted, all others see only what "
        "is released",
        unit=_unit(training),
        neighbours=_neighbours(training),
        touched={
            **_runs(protocol),
            "the score": validation,
            "the choice": "scores alone",
        },
        released=(
            "the final run's output and score, and its candidate, or that there was none"
            if isinstance(protocol, Subset)
            else "the best run's output, its candidate and its score, or that there was none",
            "this certificate",
        ),
        withheld=(
            "how many runs there were, and how long they took",
            "every other run: its candidate, its score and its output",
            "the key of all draws",
        ),
        prior=prior,
    )


def _runs(protocol: Protocol) -> dict[str, str]:
    through = "through the base mechanism alone"
    if not isinstance(protocol, Subset):
        return {"one run": f"the private training records, {through}"}
    share = (
        "a random part of the private training records, each with chance "
        f"{protocol.sampling_rate:g}, the same in every run"
    )
    which = "all of them" if protocol.final == "all" else "the rest of them"
    return {
        "one run of the tuning": f"{share}, {through}",
        "the final run": f"{which}, {through}",
    }


def _by_construction(protocol: Protocol, private: Private | None, seeded: bool) -> list[Condition]:
    if seeded:
        draws = Condition(
            "a seed was given: void as a guarantee while anyone knows it", Ground.BROKEN
        )
    else:
        draws = Condition(
            "all draws come from the operating system's entropy, once", Ground.BY_CONSTRUCTION
        )
    how = "each candidate is drawn anew from the prior, whatever came before"
    if isinstance(protocol, Grid):
        how = "the list of candidates is fixed, and each is run once or independently not"
    if isinstance(protocol, Adaptive):
        how = (
            "each candidate is drawn from a density within "
            f"[{protocol.low:g}, {protocol.high:g}] times the prior, by the runs before it alone"
        )
    stop = "how many runs there are is settled before the first, and none is left out"
    if isinstance(protocol, UntilAccepted | RandomStopping):
        stop = "the first run that is accepted ends the tuning"
    if isinstance(protocol, Subset):
        stop += "; then there is one final run, with the candidate of the best"
    found = [
        draws,
        Condition(how, Ground.BY_CONSTRUCTION),
        Condition(stop, Ground.BY_CONSTRUCTION),
        Condition("a run that fails or diverges counts, and loses", Ground.BY_CONSTRUCTION),
    ]
    if private is not None:
        found.append(Condition("the study adds the noise of the score", Ground.BY_CONSTRUCTION))
    return found


def _of_runs(
    training: Mechanism,
    protocol: Protocol,
    checked: frozenset[str],
    expected_batch_size: float | None = None,
) -> list[Condition]:
    found = [*_of_base(training, checked), *_of_constants(training, checked, expected_batch_size)]
    if isinstance(protocol, Subset):
        counted = "count_of_records" in checked
        found.append(
            Condition(
                "every run has as many records as the study let it read",
                Ground.CHECKED if counted else Ground.ON_TRUST,
            )
        )
        found.append(Condition("they are the ones that the study let it read", Ground.ON_TRUST))
    return found


def _of_base(training: Mechanism, checked: frozenset[str]) -> list[Condition]:
    parts = _parts(training)
    if not all(isinstance(part, DpSgd) for part in parts):
        return [Condition("every run is the base mechanism stated", Ground.ON_TRUST)]
    sampled = any(isinstance(part, DpSgd) and part.sampling_rate < 1.0 for part in parts)
    names = [name for name in _CHECKS if sampled or name != "poisson_sampling"]
    found = [
        Condition(_CHECKS[name], Ground.CHECKED if name in checked else Ground.ON_TRUST)
        for name in names
    ]
    clipping = (
        "gradients are clipped record by record, the noise is what the accountant says, and a run "
        "hands out nothing else that it made of private records"
    )
    return [*found, Condition(clipping, Ground.ON_TRUST)]


def _of_constants(
    training: Mechanism, checked: frozenset[str], expected_batch_size: float | None
) -> list[Condition]:
    """What must not depend on the number of records, where that number is private."""
    if "add-remove" not in relations(training):
        return []
    divisor = "a constant" if expected_batch_size is None else f"{expected_batch_size:g}"
    words = {
        "divisor": f"noisy sums of gradients are released as they are, or divided by {divisor}",
        "constants": "noise, sampling rate and number of steps are those of the study in every run",
    }
    found = [
        Condition(one, Ground.CHECKED if name in checked else Ground.ON_TRUST)
        for name, one in words.items()
    ]
    unseen = (
        "these constants were not computed from the number of records, and nothing else in a run "
        "depends on it"
    )
    return [*found, Condition(unseen, Ground.ON_TRUST)]


def _on_trust(protocol: Protocol, private: Private | None) -> list[Condition]:
    score = "scores are made from a run's output and public records alone"
    if private is not None:
        score = f"one record moves the score by {private.sensitivity:g} at most"
        if private.disjoint:
            score += ", and records scored on are none of those trained on"
    words = [
        score,
        "the space of candidates and the protocol were chosen without looking at the data",
        "the study was done once, and its folder, its run time and its losers are seen by no one",
        "pseudo-random noise is as good as random, and rounding of numbers leaks nothing",
    ]
    if isinstance(protocol, UntilAccepted):
        words.append(
            f"a run is accepted with a chance of {protocol.acceptance:g} at least, on any data set"
        )
    return [Condition(one, Ground.ON_TRUST) for one in words]


def _void_if(protocol: Protocol, private: Private | None) -> tuple[str, ...]:
    found = [
        "the number of runs, a losing run, its score, or the key of the draws becomes known",
        "the study was done again, or stopped and begun anew, until the outcome pleased",
        "anything else that was made from the same private records is not accounted for beside it",
    ]
    if isinstance(protocol, UntilAccepted | RandomStopping):
        found.append("the run time becomes known: it tells how hard it was to be accepted")
    if private is None:
        found.append("a score looked at a private record")
    return tuple(found)


def _version(library: str) -> Any:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None

"""Mechanisms from dp-accounting: its events and privacy loss distributions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from audit import checks
from audit.accounting.additive_noise import LaplaceMechanism
from audit.accounting.combinations import Composition
from audit.accounting.curves import ZeroConcentratedDp
from audit.accounting.discrete import RandomisedResponse
from audit.accounting.loss_distribution import LossDistribution
from audit.accounting.mechanism import Mechanism
from audit.accounting.recorded import runs_of
from audit.errors import InvalidInput

_MAX_PARTS = 10**6  # runs of one mechanism that is neither Gaussian nor sampled

# (noise multiplier, sampling rate) and the number of steps, or a mechanism and its number of runs.
_Parts = list[tuple[tuple[float, float] | Mechanism, int]]


def from_event(event: Any, neighbours: str = "add-remove") -> Mechanism:
    """The mechanism that a dp-accounting event or privacy loss distribution describes.

    dp-accounting itself is not imported. Randomised response has the neighbours that dp-accounting
    assumes for it.

    Args:
        event: a `DpEvent` that composes Gaussian, Poisson-sampled Gaussian, Laplace, randomised
            response and zCDP events; or, for all others, a pessimistic `PrivacyLossDistribution`
            (the library's default).
        neighbours: the relation for Gaussian events: `add-remove` (the default of dp-accounting's
            accountants), `zero-out` (its REPLACE_SPECIAL) or `replace-one`.

    Raises:
        InvalidInput: the event is of another kind (pass its privacy loss distribution instead), or
            is a tuning, `RepeatAndSelectDpEvent` (the message names the arguments for
            `upper_bounds.tuning_cost`).

    Example:
        >>> import dp_accounting
        >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
        >>> from_event(dp_accounting.SelfComposedDpEvent(step, 500)).description
        'DP-SGD, noise multiplier 1, 500 steps, rate 0.01, add-remove neighbours'
    """
    if hasattr(event, "_pmf_remove"):
        return _of_distribution(event)
    steps_of: dict[tuple[float, float], int] = {}
    others: list[Mechanism] = []
    for part, times in _parts(event):
        if isinstance(part, Mechanism):
            others += [part] * checks.integer("count", times, 0, _MAX_PARTS)
        else:
            steps_of[part] = steps_of.get(part, 0) + times
    found = [*runs_of(steps_of, neighbours=neighbours), *others]
    if not found:
        raise InvalidInput(
            f"event must contain at least one mechanism, got {checks.one_line(event)}"
        )
    return found[0] if len(found) == 1 else Composition(tuple(found))


def _parts(event: Any) -> _Parts:
    """The mechanisms of an event, with their numbers of runs."""
    kind = type(event).__name__
    read = _READERS.get(kind)
    if read is None:
        known = ", ".join(_READERS)
        raise InvalidInput(
            f"event must be one of {known}, or a PrivacyLossDistribution of it, got "
            f"{checks.kind_of(event)}"
        )
    return read(event)


def _randomised_response(event: Any) -> Mechanism:
    noise = checks.interval("noise_parameter", event.noise_parameter, 0.0, 1.0)
    lie = noise / event.num_buckets
    truth = 1.0 - noise + lie
    return RandomisedResponse(math.log(truth / lie), event.num_buckets)


def _zcdp(event: Any) -> Mechanism:
    if getattr(event, "xi", 0.0):
        raise InvalidInput(f"event must be zCDP with xi = 0, got {checks.one_line(event)}")
    return ZeroConcentratedDp(event.rho)


def _self_composed(event: Any) -> _Parts:
    count = checks.integer("count", event.count, 0)
    return [(part, times * count) for part, times in _parts(event.event)] if count else []


def _sampled(event: Any) -> _Parts:
    """A sampled event: several Gaussians on one sample are one Gaussian."""
    inner = _parts(event.event)
    precision = 0.0
    for part, times in inner:
        if isinstance(part, Mechanism) or part[1] != 1.0:
            raise InvalidInput(
                "event that is sampled must be Gaussian, or a PrivacyLossDistribution of it, got "
                f"{checks.one_line(event)}"
            )
        precision += times / checks.interval("noise_multiplier", part[0], 0.0) ** 2
    if not precision:
        return []
    return [((1.0 / math.sqrt(precision), float(event.sampling_probability)), 1)]


def _tuned(event: Any) -> _Parts:
    if event.shape == math.inf:
        runs = f"poisson:{event.mean:g}"
    else:
        runs = (
            f"repetitions.TruncatedNegativeBinomial({event.shape:g}, 0.5).with_mean({event.mean:g})"
        )
    raise InvalidInput(
        "event must be one run, got a tuning: pass from_event(event.event) and the distribution "
        f"of K, {runs}, to upper_bounds.tuning_cost"
    )


_READERS: dict[str, Callable[[Any], _Parts]] = {
    "NoOpDpEvent": lambda event: [],
    "GaussianDpEvent": lambda event: [((float(event.noise_multiplier), 1.0), 1)],
    "LaplaceDpEvent": lambda event: [(LaplaceMechanism(event.noise_multiplier), 1)],
    "RandomizedResponseDpEvent": lambda event: [(_randomised_response(event), 1)],
    "ZCDpEvent": lambda event: [(_zcdp(event), 1)],
    "SelfComposedDpEvent": _self_composed,
    "ComposedDpEvent": lambda event: [part for one in event.events for part in _parts(one)],
    "PoissonSampledDpEvent": _sampled,
    "RepeatAndSelectDpEvent": _tuned,
}


def _of_distribution(distribution: Any) -> LossDistribution:
    """The losses and probabilities of a privacy loss distribution of dp-accounting."""
    try:
        removed = _direction(distribution._pmf_remove)
        added = removed if distribution._symmetric else _direction(distribution._pmf_add)
    except AttributeError as error:
        raise InvalidInput(
            f"event must be a PrivacyLossDistribution of dp-accounting 0.4 or later: {error}"
        ) from error
    # The "remove" direction compares the data set with the record to the one without it.
    return LossDistribution(
        removed.losses, removed.probabilities, removed.infinite, added, directed=True
    )


def _direction(pmf: Any) -> LossDistribution:
    if not pmf._pessimistic_estimate:
        raise InvalidInput("event must be a pessimistic estimate, got an optimistic one")
    dense = pmf.to_dense_pmf()
    losses = dense._discretization * (dense._lower_loss + np.arange(len(dense._probs)))
    infinite = float(dense._infinity_mass)
    # Transforms leave masses of about 1e-17 everywhere. The lowest losses lose any excess above 1.
    above = np.minimum(np.cumsum(np.maximum(dense._probs[::-1], 0.0))[::-1], 1.0 - infinite)
    masses = above - np.append(above[1:], 0.0)
    # On the other data set, masses are e^-loss times as large. Moving the lowest losses up, which
    # is safe, brings their sum to at most 1 there, too.
    weights = masses * np.exp(-losses)
    rest = np.append(np.cumsum(weights[::-1])[::-1], 0.0)
    moved = rest[1:] + np.cumsum(masses) * np.exp(-losses)
    lowest = int(np.argmax(moved <= 1.0))
    merged = np.append(masses[: lowest + 1].sum(), masses[lowest + 1 :])
    return LossDistribution(losses[lowest:], merged, infinite)

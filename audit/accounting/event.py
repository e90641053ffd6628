"""What dp-accounting describes: events, and privacy loss distributions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from audit import checks
from audit.accounting.combinations import Composition
from audit.accounting.curves import ZeroConcentratedDp
from audit.accounting.discrete import RandomisedResponse
from audit.accounting.laplace import LaplaceMechanism
from audit.accounting.loss_distribution import LossDistribution
from audit.accounting.mechanism import Mechanism
from audit.accounting.recorded import runs_of

_MAX_PARTS = 10**6  # runs of what is neither Gaussian nor sampled, of one kind

# (noise multiplier, sampling rate) and steps, or another mechanism and how often it is run.
_Parts = list[tuple[tuple[float, float] | Mechanism, int]]


def from_event(event: Any, neighbours: str = "add-remove") -> Mechanism:
    """The mechanism that a dp-accounting event, or its privacy loss distribution, describes.

    Neighbours of randomised response are what that library takes for it. dp-accounting itself is
    not imported.

    Args:
        event: a `DpEvent` made of Gaussian, Poisson-sampled Gaussian, Laplace, randomised response
            and zCDP events, composed in any way; or a `PrivacyLossDistribution`, for everything
            else, rounded pessimistically as that library does unless told otherwise.
        neighbours: `add-remove`, as dp-accounting's accountants take them unless told otherwise,
            `zero-out` (its REPLACE_SPECIAL) or `replace-one`; of Gaussian events, sampled or not.

    Raises:
        ValueError: an event of another kind (its privacy loss distribution may be passed instead),
            or a tuning, `RepeatAndSelectDpEvent`: the message says what to pass to
            `upper_bounds.tuning_cost`.

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
        raise ValueError(f"event must release something, got {checks.one_line(event)}")
    return found[0] if len(found) == 1 else Composition(tuple(found))


def _parts(event: Any) -> _Parts:
    """What an event runs, and how often."""
    kind = type(event).__name__
    read = _READERS.get(kind)
    if read is None:
        known = ", ".join(_READERS)
        raise ValueError(
            f"event must be one of {known}, or a PrivacyLossDistribution of it, got {kind}"
        )
    return read(event)


def _gaussian(event: Any) -> _Parts:
    return [((float(event.noise_multiplier), 1.0), 1)]


def _laplace(event: Any) -> _Parts:
    return [(LaplaceMechanism(event.noise_multiplier), 1)]


def _randomised_response(event: Any) -> _Parts:
    lie = event.noise_parameter / event.num_buckets
    return [
        (
            RandomisedResponse(
                math.log((1.0 - event.noise_parameter + lie) / lie), event.num_buckets
            ),
            1,
        )
    ]


def _zcdp(event: Any) -> _Parts:
    if getattr(event, "xi", 0.0):
        raise ValueError(f"event must be zCDP with xi = 0, got {checks.one_line(event)}")
    return [(ZeroConcentratedDp(event.rho), 1)]


def _self_composed(event: Any) -> _Parts:
    count = checks.integer("count", event.count, 0)
    return [(part, times * count) for part, times in _parts(event.event)] if count else []


def _composed(event: Any) -> _Parts:
    return [part for one in event.events for part in _parts(one)]


def _sampled(event: Any) -> _Parts:
    """One sample, on which all of the event is run: Gaussians together are one."""
    inner = _parts(event.event)
    precision = 0.0
    for part, times in inner:
        if isinstance(part, Mechanism) or part[1] != 1.0:
            raise ValueError(
                "event that is sampled must be Gaussian, or a PrivacyLossDistribution of it, got "
                f"{checks.one_line(event)}"
            )
        precision += times / part[0] ** 2
    if not precision:
        return []
    return [((1.0 / math.sqrt(precision), float(event.sampling_probability)), 1)]


def _tuned(event: Any) -> _Parts:
    if event.shape == math.inf:
        law = f"poisson:{event.mean:g}"
    else:
        law = (
            f"repetitions.TruncatedNegativeBinomial({event.shape:g}, 0.5).with_mean({event.mean:g})"
        )
    raise ValueError(
        "event must be one run, got a tuning: pass from_event(event.event) and the law of K, "
        f"{law}, to upper_bounds.cost"
    )


_READERS: dict[str, Callable[[Any], _Parts]] = {
    "NoOpDpEvent": lambda event: [],
    "GaussianDpEvent": _gaussian,
    "LaplaceDpEvent": _laplace,
    "RandomizedResponseDpEvent": _randomised_response,
    "ZCDpEvent": _zcdp,
    "SelfComposedDpEvent": _self_composed,
    "ComposedDpEvent": _composed,
    "PoissonSampledDpEvent": _sampled,
    "RepeatAndSelectDpEvent": _tuned,
}


def _of_distribution(distribution: Any) -> LossDistribution:
    """The losses and probabilities of a privacy loss distribution of dp-accounting."""
    try:
        removed = _direction(distribution._pmf_remove)
        added = removed if distribution._symmetric else _direction(distribution._pmf_add)
    except AttributeError as error:
        raise ValueError(
            f"event must be a PrivacyLossDistribution of dp-accounting 0.4 or later: {error}"
        ) from error
    # Its "remove" direction is the data set with the record against the one without.
    return LossDistribution(
        removed.losses, removed.probabilities, removed.infinite, added, directed=True
    )


def _direction(pmf: Any) -> LossDistribution:
    if not pmf._pessimistic_estimate:
        raise ValueError("event must be a pessimistic estimate, got an optimistic one")
    dense = pmf.to_dense_pmf()
    losses = dense._discretization * (dense._lower_loss + np.arange(len(dense._probs)))
    infinite = float(dense._infinity_mass)
    # Transforms leave masses of some 1e-17 everywhere. What is above 1 in all is taken off below.
    above = np.minimum(np.cumsum(np.maximum(dense._probs[::-1], 0.0))[::-1], 1.0 - infinite)
    masses = above - np.append(above[1:], 0.0)
    # Under the other data set they weigh e^-loss as much: the lowest losses are moved up, which is
    # the safe side, until nothing is above 1 there either.
    weights = masses * np.exp(-losses)
    rest = np.append(np.cumsum(weights[::-1])[::-1], 0.0)
    moved = rest[1:] + np.cumsum(masses) * np.exp(-losses)
    lowest = int(np.argmax(moved <= 1.0))
    merged = np.append(masses[: lowest + 1].sum(), masses[lowest + 1 :])
    return LossDistribution(losses[lowest:], merged, infinite)

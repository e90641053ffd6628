"""Mechanisms in other forms: records of Opacus and dp-accounting, plain values, text and files."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from audit import checks
from audit.accounting.combinations import Candidates, Composition, Mixture, WorstOf
from audit.accounting.curves import LossDistribution, PrivacyProfile, RenyiCurve, ZeroConcentratedDp
from audit.accounting.dpsgd import DpSgd, RandomAllocation
from audit.accounting.mechanism import (
    ApproximateDp,
    DiscreteMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PureDp,
    RandomisedResponse,
)
from audit.accounting.pairs import REACH
from audit.errors import InvalidInput
from audit.numbers_from_text import read_number
from audit.numerics import SUMS_TO_ONE, FloatArray, log_subtract, safe_log
from audit.opacus_objects import accountant_of

Phases = dict[tuple[float, float], int]
"""Steps by noise multiplier and sampling rate."""

MECHANISMS: dict[str, type[Mechanism]] = {
    kind.__name__: kind
    for kind in (
        WorstOf,
        ApproximateDp,
        Candidates,
        Composition,
        DiscreteMechanism,
        DpSgd,
        GaussianMechanism,
        LaplaceMechanism,
        LossDistribution,
        Mixture,
        PrivacyProfile,
        PureDp,
        RandomAllocation,
        RandomisedResponse,
        RenyiCurve,
        ZeroConcentratedDp,
    )
}
"""The mechanisms that files can hold, by name."""

_BASES: dict[str, tuple[Callable[..., Mechanism], tuple[int, ...]]] = {
    "gaussian": (GaussianMechanism, (1,)),
    "laplace": (LaplaceMechanism, (1,)),
    "response": (RandomisedResponse, (1, 2)),
    "pure": (PureDp, (1,)),
    "approximate": (ApproximateDp, (2,)),
    "zcdp": (ZeroConcentratedDp, (1,)),
    "allocation": (RandomAllocation, (3, 4)),
    "fixed-allocation": (partial(RandomAllocation, fixed=True), (3,)),
    "renyi": (RenyiCurve, ()),
    "profile": (PrivacyProfile, ()),
}
"""Kinds of mechanisms, and the allowed numbers of parameters; none if it is read from a file."""

_MAX_CHARACTERS = 10**7  # characters of a file with a curve
_MAX_PARTS = 10**6  # runs of one mechanism that is neither Gaussian nor sampled
_MAX_SENSITIVITY, _MAX_SHIFT = 10**4, 100.0
_CELLS = 1 << 12  # cells of a continuous loss, each moved to its ends
# (noise multiplier, sampling rate) and the number of steps, or a mechanism and its number of runs.
_Parts = list[tuple[tuple[float, float] | Mechanism, int]]
_DISTRIBUTION = "pass its PrivacyLossDistribution, from a PLDAccountant"
_REFUSED = {
    "TruncatedSubsampledGaussianDpEvent": f"{_DISTRIBUTION}",
    "SampledWithoutReplacementDpEvent": "batches of a fixed size have a pair for replace-one "
    "neighbours only, which is not implemented; pass one Gaussian event for each epoch",
    "SampledWithReplacementDpEvent": "no dominating pair is known to this package",
    "SingleEpochTreeAggregationDpEvent": "pass the Gaussian event of its noise multiplier over the "
    "sensitivity of the whole training",
    "NonPrivateDpEvent": "it reveals the records",
    "UnsupportedDpEvent": "it states no guarantee",
}
"""Events that are refused, with the reason or the way to pass them."""


def from_opacus(
    accountant: Any, neighbours: str = "zero-out", most_phases: int = 40, *, group_size: int = 1
) -> Mechanism:
    """The mechanism of one training run, from the history of an Opacus accountant.

    Args:
        accountant: an Opacus accountant (RDP, GDP or PRV), or the PrivacyEngine that contains it.
            Its `history` holds (noise multiplier, sampling rate, steps) of each phase. Batches are
            assumed to be Poisson-sampled, which is the default of Opacus. Opacus itself is not
            imported.
        neighbours: `zero-out`, `add-remove` or `replace-one`. Opacus divides each noisy sum by
            int(n * rate), where its rate is 1/len(loader) and n is the number of records. So its
            epsilon holds if n is public, which is `zero-out`, the default. Pass `add-remove`
            only if the divisor (`optimizer.expected_batch_size`), the sampling rate and the number
            of steps are constants that do not depend on n; the numbers are the same.
        most_phases: if a schedule has more phases of different noise or rate, similar phases are
            merged, with their smallest noise and largest rate. The result is an upper bound that
            takes seconds instead of minutes.
        group_size: number of records of one person, protected together.

    Returns:
        One `DpSgd`, or a `Composition` with one `DpSgd` for each noise and rate. The order of the
        phases does not affect the cost.

    Warns:
        UserWarning: the history begins again, so it may be that of several runs of one engine. Only
            a history with several phases shows it.

    Raises:
        InvalidInput: the argument is not the accountant of one run, or it has recorded no step.

    Example:
        >>> class Recorded:
        ...     history = [(1.0, 0.01, 500)]
        >>> from_opacus(Recorded()).description
        'DP-SGD, noise multiplier 1, 500 steps, rate 0.01, zero-out neighbours'
    """
    history = getattr(accountant_of(accountant), "history", None)
    if history is None:
        kind = checks.kind_of(accountant)
        if isinstance(accountant, list | tuple):
            kind += f" of {len(accountant)}; all runs of a tuning share one accounting, so pass one"
        raise InvalidInput(f"accountant must be an Opacus accountant or PrivacyEngine, got {kind}")
    if not isinstance(history, Iterable):
        raise InvalidInput(f"history must be a list of phases, got {checks.one_line(history)}")
    steps_of: dict[tuple[float, float], int] = {}
    order: list[tuple[float, float]] = []
    for phase in history:
        try:
            noise, rate, steps = map(float, phase)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(
                f"history must be of (noise multiplier, sampling rate, steps), "
                f"got {checks.one_line(phase)}"
            ) from error
        noise = checks.interval("noise_multiplier", noise, 0.0)
        rate = checks.interval("sampling_rate", rate, 0.0, 1.0, closed_high=True)
        before = steps_of.get((noise, rate), 0)
        steps_of[noise, rate] = before + checks.integer("steps", steps, 1)
        order.append((noise, rate))
    if not steps_of:
        raise InvalidInput(
            f"accountant must have recorded a step, got {checks.one_line(accountant)}"
        )
    _warn_of_several_runs(order)
    phases = runs_of(
        steps_of, checks.integer("most_phases", most_phases, 1), neighbours, group_size
    )
    return phases[0] if len(phases) == 1 else Composition(tuple(phases))


def _warn_of_several_runs(history: Sequence[tuple[float, float]]) -> None:
    """Warns if a history begins again, as that of an engine that trained several models does.

    Opacus adds steps of equal noise and rate to the last phase. So if the first noise and rate
    return after others, the history is that of several runs, or of one run with a cyclic schedule.
    Several runs of one constant noise are one phase, and are not noticed.
    """
    returns = sum(phase == history[0] != before for before, phase in itertools.pairwise(history))
    if returns:
        warnings.warn(
            f"the history begins again {'once' if returns == 1 else f'{returns} times'}: if one "
            f"PrivacyEngine trained {returns + 1} models, this mechanism is all of them together "
            "and not one run; make a new engine for each run",
            stacklevel=3,
        )


def runs_of(
    steps_of: Phases, most: int = 40, neighbours: str = "add-remove", group_size: int = 1
) -> list[Mechanism]:
    """At most `most` runs of DP-SGD that together dominate the given phases."""
    phases = joined(steps_of, most)
    return [
        DpSgd(noise, steps, rate, neighbours, group_size) for (noise, rate), steps in phases.items()
    ]


def joined(steps_of: Phases, most: int) -> Phases:
    """Merges phases in the same cell of a grid of log noise and log rate.

    A step with the smallest noise and the largest rate of a cell dominates all steps in it. Cells
    grow by half until there are at most `most` phases.
    """
    width, merged = 1e-3, steps_of
    while len(merged) > most:
        cells: dict[tuple[int, int], tuple[float, float, int]] = {}
        for (noise, rate), steps in steps_of.items():
            cell = _cell(noise, width), _cell(rate, width)
            smallest_noise, largest_rate, before = cells.get(cell, (noise, rate, 0))
            cells[cell] = min(smallest_noise, noise), max(largest_rate, rate), before + steps
        merged = {}
        for noise, rate, steps in cells.values():
            merged[noise, rate] = merged.get((noise, rate), 0) + steps
        width *= 1.5
    return merged


def _cell(value: float, width: float) -> int:
    return math.floor(math.log(value) / width) if value > 0 else 0


def from_event(event: Any, neighbours: str = "add-remove") -> Mechanism:
    """The mechanism that a dp-accounting event or privacy loss distribution describes.

    dp-accounting itself is not imported. Randomised response has the neighbours that dp-accounting
    assumes for it.

    Args:
        event: a `DpEvent` that composes Gaussian, Laplace (both also Poisson-sampled), discrete
            Laplace, mixture of Gaussians, randomised response and zCDP events; or, for all others,
            a pessimistic `PrivacyLossDistribution` (the library's default).
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
    mechanisms: list[Mechanism] = []
    for component, times in _parts(event):
        if isinstance(component, Mechanism):
            mechanisms += [component] * checks.integer("count", times, 0, _MAX_PARTS)
        else:
            steps_of[component] = steps_of.get(component, 0) + times
    if neighbours == "replace-one" and any(
        isinstance(mechanism, LossDistribution) and mechanism.directed for mechanism in mechanisms
    ):
        raise InvalidInput(
            "neighbours must be add-remove or zero-out for sampled Laplace events and mixtures of "
            f"Gaussians, got {neighbours}"
        )
    members = [*runs_of(steps_of, neighbours=neighbours), *mechanisms]
    if not members:
        raise InvalidInput(
            f"event must contain at least one mechanism, got {checks.one_line(event)}"
        )
    return members[0] if len(members) == 1 else Composition(tuple(members))


def _parts(event: Any) -> _Parts:
    """The mechanisms of an event, with their numbers of runs."""
    kind = type(event).__name__
    read = _READERS.get(kind)
    if kind in _REFUSED:
        raise InvalidInput(f"event must have a known dominating pair, got {kind}: {_REFUSED[kind]}")
    if read is None:
        supported = ", ".join(_READERS)
        raise InvalidInput(
            f"event must be one of {supported}, or a PrivacyLossDistribution of it, got "
            f"{checks.kind_of(event)}"
        )
    return read(event)


def _randomised_response(event: Any) -> Mechanism:
    noise = checks.interval("noise_parameter", event.noise_parameter, 0.0, 1.0)
    lie = noise / event.num_buckets
    truth = 1.0 - noise + lie
    return RandomisedResponse(math.log(truth / lie), event.num_buckets)


def _discrete_laplace(event: Any) -> Mechanism:
    """Integer noise with probabilities proportional to e^(-a |k|), and an integer sensitivity s."""
    a = checks.interval("noise_parameter", event.noise_parameter, 0.0)
    s = checks.integer("sensitivity", event.sensitivity, 1, _MAX_SENSITIVITY)
    inner = np.arange(s - 1, 0, -1)  # outputs between both centres, the smallest loss first
    losses = a * np.concatenate([[-s], s - 2.0 * inner, [s]])
    normaliser = 1.0 + math.exp(-a)
    masses = (
        np.concatenate([[math.exp(-a * s)], -math.expm1(-a) * np.exp(-a * inner), [1.0]])
        / normaliser
    )
    one_way = LossDistribution(losses, masses)
    return LossDistribution(losses, masses, reverse=one_way)


def _mixture_of_gaussians(event: Any) -> Mechanism:
    """A mixture of shifted normal distributions against that without a shift."""
    spread = checks.interval("standard_deviation", event.standard_deviation, 0.0)
    shifts = checks.numbers("sensitivities", event.sensitivities) / spread
    chances = checks.numbers("sampling_probs", event.sampling_probs)
    if (
        shifts.ndim != 1
        or shifts.shape != chances.shape
        or not np.all((shifts >= 0.0) & (shifts <= _MAX_SHIFT))
        or not (np.all(chances >= 0.0) and abs(chances.sum() - 1.0) <= SUMS_TO_ONE)
    ):
        raise InvalidInput(
            "event must have sensitivities >= 0, at most "
            f"{_MAX_SHIFT:g} standard deviations, and probabilities that sum to 1, got "
            f"{checks.one_line(event)}"
        )
    x = np.linspace(-REACH, REACH + float(shifts.max()), _CELLS + 1)
    log_ratio = special.logsumexp(
        safe_log(chances) + np.multiply.outer(x, shifts) - 0.5 * shifts * shifts, axis=1
    )
    with_record = sum(
        chance * _normal_cells(x - shift) for chance, shift in zip(chances, shifts, strict=True)
    )
    return _between_two(log_ratio, np.asarray(with_record), _normal_cells(x))


def _normal_cells(ends: FloatArray) -> FloatArray:
    """Normal probabilities [n+1] of the cells between n ends, with both tails."""
    low, high = np.append(-np.inf, ends), np.append(ends, np.inf)
    flip = low + high > 0.0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    return np.exp(log_subtract(special.log_ndtr(high), special.log_ndtr(low)))


def _sampled_laplace(laplace: LaplaceMechanism, rate: float) -> Mechanism:
    """A Poisson-sampled Laplace mechanism (Zhu, Dong & Wang 2022, theorem 11)."""
    rate = checks.interval("sampling_probability", rate, 0.0, 1.0, closed_high=True)
    if rate == 1.0:
        return laplace
    scale = laplace.scale
    # Outputs between both centres; beyond them, the ratio is constant.
    y = np.linspace(0.0, 1.0, _CELLS + 1)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2.0 * y - 1.0) / scale)
    away = -0.5 * np.diff(np.exp(-y / scale))
    near = away[::-1]  # around the shifted centre
    far = 0.5 * math.exp(-1.0 / scale)
    without = np.concatenate([[0.5], away, [far]])
    shifted = np.concatenate([[far], near, [0.5]])
    return _between_two(log_ratio, (1.0 - rate) * without + rate * shifted, without)


def _between_two(
    log_ratio: FloatArray, with_record: FloatArray, without: FloatArray
) -> LossDistribution:
    """The mechanism whose log ratio increases along its outputs.

    Args:
        log_ratio: log of the density with the record over that without it, at the ends [n] of
            cells, increasing.
        with_record: probabilities [n+1] of the cells, with both outer ones.
        without: the same without the record.

    Each cell moves to its ends such that both of its probabilities are preserved. This dominates
    the mechanism in both directions (Doroshenko et al. 2022).
    """
    # Rounding can leave equal values, whose cells are merged.
    grows = np.diff(np.maximum.accumulate(log_ratio)) > 0.0
    starts = np.flatnonzero(np.append(True, grows))
    log_ratio = log_ratio[starts]
    p, q = (
        np.append(side[0], np.add.reduceat(side[1:], starts)) for side in (with_record, without)
    )
    inner_p, inner_q = p[1:-1], q[1:-1]
    width = -np.expm1(-np.diff(log_ratio))
    up = np.clip((inner_p - inner_q * np.exp(log_ratio[:-1])) / width, 0.0, inner_p)
    masses = np.append(inner_p - up, 0.0) + np.append(0.0, up)
    masses[0] += p[0]  # the surplus of the other side there becomes an infinite loss for it
    finite = min(float(q[-1] * np.exp(log_ratio[-1])), float(p[-1]))
    masses[-1] += finite
    return LossDistribution(log_ratio, masses, max(float(p[-1]) - finite, 0.0), directed=True)


def _zcdp(event: Any) -> Mechanism:
    if getattr(event, "xi", 0.0):
        raise InvalidInput(f"event must be zCDP with xi = 0, got {checks.one_line(event)}")
    return ZeroConcentratedDp(event.rho)


def _self_composed(event: Any) -> _Parts:
    count = checks.integer("count", event.count, 0)
    return [(component, times * count) for component, times in _parts(event.event)] if count else []


def _sampled(event: Any) -> _Parts:
    """A sampled event: several Gaussians on one sample are one Gaussian."""
    inner = _parts(event.event)
    if len(inner) == 1 and inner[0][1] == 1 and isinstance(inner[0][0], LaplaceMechanism):
        return [(_sampled_laplace(inner[0][0], event.sampling_probability), 1)]
    precision = 0.0
    for component, times in inner:
        if isinstance(component, Mechanism) or component[1] != 1.0:
            raise InvalidInput(
                "event that is sampled must be Gaussian or one Laplace mechanism, or a "
                "PrivacyLossDistribution of it, got "
                f"{checks.one_line(event)}"
            )
        # Gaussian mechanisms on one sample compose to one, and their squared mu add.
        precision += times / checks.interval("noise_multiplier", component[0], 0.0) ** 2
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
    "DiscreteLaplaceDpEvent": lambda event: [(_discrete_laplace(event), 1)],
    "MixtureOfGaussiansDpEvent": lambda event: [(_mixture_of_gaussians(event), 1)],
    "RandomizedResponseDpEvent": lambda event: [(_randomised_response(event), 1)],
    "ZCDpEvent": lambda event: [(_zcdp(event), 1)],
    "SelfComposedDpEvent": _self_composed,
    "ComposedDpEvent": lambda event: [
        component for member in event.events for component in _parts(member)
    ],
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
    tail = np.append(np.cumsum(weights[::-1])[::-1], 0.0)
    moved = tail[1:] + np.cumsum(masses) * np.exp(-losses)
    lowest = int(np.argmax(moved <= 1.0))
    merged = np.append(masses[: lowest + 1].sum(), masses[lowest + 1 :])
    return LossDistribution(losses[lowest:], merged, infinite)


def parse_mechanism(spec: str | Mechanism) -> Mechanism:
    """Reads a base mechanism from text; returns a mechanism unchanged.

    Args:
        spec: `gaussian:MU`, `laplace:SCALE`, `response:EPSILON[,OPTIONS]`, `pure:EPSILON`,
            `approximate:EPSILON,DELTA`, `zcdp:RHO`, `allocation:NOISE,BATCHES,EPOCHS[,PER_EPOCH]`,
            `fixed-allocation:NOISE,BATCHES,EPOCHS` (a record keeps its batch), `renyi:FILE` (orders
            and divergences in two columns) or `profile:FILE` (epsilons and deltas).

    Raises:
        InvalidInput: the mechanism is unknown, the number of parameters is wrong, or a parameter is
            out of its range.

    Example:
        >>> parse_mechanism("pure:0.5")
        PureDp(epsilon_0=0.5)
    """
    if isinstance(spec, Mechanism):
        return spec
    if not isinstance(spec, str):
        raise InvalidInput(f"base must be a mechanism, or one as text, got {checks.one_line(spec)}")
    name, _, text = spec.strip().partition(":")
    name = checks.one_of("base", name, _BASES)
    make, allowed = _BASES[name]
    if not allowed:
        return make(*read_curve(text, f"base {name}"))
    numbers: list[Any] = text.split(",")  # as text, which the mechanism reads
    try:
        for token in numbers:
            read_number(token)
    except ValueError:
        numbers = []
    if len(numbers) not in allowed:
        count = " or ".join(map(str, allowed))
        plural = "number" if allowed == (1,) else "numbers"
        raise InvalidInput(f"base {name!r} takes {count} {plural} after the colon, got {text!r}")
    return make(*numbers)


def read_curve(path: str | Path, name: str = "path") -> tuple[FloatArray, FloatArray]:
    """Two columns of numbers from a csv file (commas or spaces; a heading is skipped).

    Args:
        path: the file.
        name: name of the parameter in error messages.

    Raises:
        InvalidInput: the file is missing, or a line does not hold two numbers.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "profile.csv")
        ...     _ = file.write_text("0.5,0.001")
        ...     epsilons, deltas = read_curve(file)
        >>> epsilons.tolist(), deltas.tolist()
        ([0.5], [0.001])
    """
    rows = []
    try:
        lines = checks.read_text(path, _MAX_CHARACTERS).splitlines()
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"{name} must be a readable csv file, got {checks.one_line(str(path))}: "
            f"{checks.reason_of(error)}"
        ) from error
    for number, line in enumerate(lines):
        fields = line.replace(",", " ").split()
        try:
            x, y = map(read_number, fields)
            rows.append((x, y))
        except ValueError:
            if fields and number > 0:
                raise InvalidInput(
                    f"{name} must hold two numbers per line, got {line!r} in {str(path)!r}"
                ) from None
    if not rows:
        raise InvalidInput(f"{name} must hold two numbers per line, got none in {str(path)!r}")
    x, y = np.array(rows).T
    return x, y


def mechanism_to_dict(base: Mechanism) -> dict[str, Any]:
    """Kind and parameters of a mechanism as plain values.

    Raises:
        InvalidInput: the mechanism's class is not one of `audit.accounting`.

    Example:
        >>> mechanism_to_dict(GaussianMechanism(0.5))
        {'mechanism': 'GaussianMechanism', 'mu': 0.5}
    """
    written: Any = base
    name = type(base).__name__
    if MECHANISMS.get(name) is not type(base):
        raise InvalidInput(
            f"base must be a mechanism of audit.accounting to be written, got {name}"
        )
    return {"mechanism": name} | {
        field.name: _to_plain(getattr(base, field.name))
        for field in fields(written)
        # A group size of 1 is left out, as in files of versions without groups.
        if (field.name, getattr(base, field.name)) != ("group_size", 1)
    }


def mechanism_from_dict(values: Mapping[str, Any]) -> Mechanism:
    """Mechanism from the values that `mechanism_to_dict` returned.

    Raises:
        InvalidInput: an unknown mechanism, or wrong parameters.

    Example:
        >>> mechanism_from_dict({"mechanism": "GaussianMechanism", "mu": 0.5})
        GaussianMechanism(mu=0.5)
    """
    if not isinstance(values, Mapping):
        raise InvalidInput(f"mechanism must be a mapping, got {checks.one_line(values)}")
    parameters = {str(name): _from_plain(value) for name, value in values.items()}
    kind = MECHANISMS[checks.one_of("mechanism", str(parameters.pop("mechanism", "")), MECHANISMS)]
    taken: Any = kind
    for field in fields(taken):
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and field.name not in parameters:
            raise InvalidInput(f"mechanism {kind.__name__} must have {field.name}, got none")
    for name in parameters:
        checks.one_of(
            f"parameter of {kind.__name__}", name, [field.name for field in fields(taken)]
        )
    try:
        return kind(**parameters)
    except TypeError as error:
        raise InvalidInput(
            f"mechanism {kind.__name__} must have parameters of their kinds, got "
            f"{checks.one_line(dict(values))}"
        ) from error


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mechanism):
        return mechanism_to_dict(value)
    if isinstance(value, tuple | list | np.ndarray):
        return [_to_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return mechanism_from_dict(value)
    if isinstance(value, list):
        return tuple(map(_from_plain, value))
    return value

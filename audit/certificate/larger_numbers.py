"""Numbers of a certificate whose costs are at least as large as those of today's bounds.

A later version of this package may have smaller bounds. A certificate that an earlier version
issued is still correct then: a tuning that is (epsilon, delta)-DP is so for every larger epsilon.
"""

import math
from dataclasses import dataclass

from audit.accounting import DeltaUnreachable, Mechanism
from audit.accounting.conversion import expecting
from audit.certificate.numbers import (
    DELTAS,
    Numbers,
    PrivacyPoint,
    check_different,
    derived,
    epsilon_of_run,
    largest_attained,
)
from audit.protocols import Protocol
from audit.upper_bounds import TuningCosts, costs_of

SAFE = 1.0 - 1e-9
"""A stated cost may be smaller than the recomputed one by this factor, for other numpy versions."""

# Relative difference up to which a stated cost counts as today's.
_EQUAL = 1e-6


@dataclass(frozen=True)
class Proved:
    """Numbers whose costs today's bounds prove.

    Attributes:
        numbers: the numbers that follow from the stated costs.
        weaker: the stated numbers, by name, that are correct but weaker than today's.
        costs: today's bounds, of which the named ones are computed.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.certificate.numbers import compute
        >>> from audit.protocols import parse_protocol
        >>> tuning = GaussianMechanism(0.5), parse_protocol("fixed:1"), 1e-5
        >>> with_stated_costs(compute(*tuning, ["region"]), *tuning).weaker
        ()
    """

    numbers: Numbers
    weaker: tuple[str, ...]
    costs: TuningCosts


def with_stated_costs(
    stated: Numbers, base: Mechanism, protocol: Protocol, delta: float
) -> Proved | None:
    """The numbers that follow from the stated costs; None if one of these is below today's bounds.

    At its own delta a named bound must prove the stated cost, because the certificate states the
    source of that bound. At every other delta the quick values of the named bounds come first, then
    the named bounds, in their order, until one is at most the stated cost, and all bounds only if
    none is. So a correct certificate is verified quickly.

    Args:
        stated: the numbers of the certificate.
        base: the base mechanism.
        protocol: the protocol.
        delta: delta of the tuning.

    Raises:
        DeltaUnreachable: no named bound reaches delta.
        InvalidInput: a named bound is unknown, named twice, or does not hold for every score.

    Example:
        >>> from dataclasses import replace
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.certificate.numbers import compute
        >>> from audit.protocols import parse_protocol
        >>> tuning = GaussianMechanism(0.5), parse_protocol("fixed:1"), 1e-5
        >>> today = compute(*tuning, ["region"])
        >>> larger = tuple(replace(point, epsilon=point.epsilon + 1) for point in today.profile)
        >>> stated = replace(today, profile=larger, epsilon=today.epsilon + 1)
        >>> with_stated_costs(stated, *tuning).weaker
        ('epsilon', 'profile')
        >>> smaller = tuple(replace(point, epsilon=point.epsilon - 0.1) for point in today.profile)
        >>> stated = replace(today, profile=smaller, epsilon=today.epsilon - 0.1)
        >>> with_stated_costs(stated, *tuning) is None
        True
    """
    check_different(stated.bounds)
    points = stated.profile
    deltas = [point.delta for point in points]
    # Its own costs, because bounds that expect the stated numbers may stop at these.
    costs = TuningCosts(base, protocol, delta)
    with expecting(stated.epsilon):
        at_delta = costs.within(1.0, stated.bounds)
    if deltas != sorted({*deltas} & {*DELTAS, delta}, reverse=True) or delta not in deltas:
        return None
    if not math.isclose(stated.epsilon, points[deltas.index(delta)].epsilon, rel_tol=_EQUAL):
        return None
    if SAFE * at_delta[0].epsilon > stated.epsilon:
        return None
    proofs = {
        point.delta: at_delta[0].epsilon
        if point.delta == delta
        else _proof(point, costs, stated.bounds)
        for point in points
    }
    if any(proof is None for proof in proofs.values()):
        return None
    run_today, attained_today = epsilon_of_run(base, delta), largest_attained(costs)
    run, attained = stated.run_epsilon, stated.attained
    if run is None or run_today is None or run < SAFE * run_today:
        run = run_today
    # An attack of an earlier version may attain less, but never less than 0. It may attain more
    # within the error of a grid, which a version may estimate otherwise.
    most = max((bound.epsilon + 0.5 * bound.error for bound in costs.attained), default=0.0)
    if attained is None or attained_today is None or not 0.0 <= attained <= most:
        attained = attained_today
    is_larger = stated.epsilon > (1.0 + _EQUAL) * at_delta[0].epsilon
    weaker = {
        "run_epsilon": run is not None and run > (1.0 + _EQUAL) * (run_today or 0.0),
        "epsilon": is_larger,
        "attained": attained is not None and attained < (1.0 - _EQUAL) * (attained_today or 0.0),
        "profile": any(
            point.epsilon > (1.0 + _EQUAL) * (proofs[point.delta] or 0.0)
            for point in points
            if point.delta != delta or is_larger
        ),
    }
    # The order of the names may have changed together with the bounds.
    names = stated.bounds if is_larger else tuple(bound.name for bound in at_delta)
    (first_named,) = [bound for bound in at_delta if bound.name == names[0]]
    numbers = Numbers(
        run_epsilon=run,
        bounds=names,
        source=first_named.source,
        assumes=first_named.assumes,
        attained=attained,
        **derived(points, delta),
    )
    names_of_weaker = tuple(name for name, is_weaker in weaker.items() if is_weaker)
    return Proved(numbers, names_of_weaker, costs)


def _proof(point: PrivacyPoint, certified: TuningCosts, names: tuple[str, ...]) -> float | None:
    """The first of today's bounds that is at most a stated cost, the named ones first; or None."""
    quick = certified.quick_names(names)
    # Usually one quick value is the stated cost. All of them together are only needed otherwise.
    # Without quick bounds, the named ones come first.
    is_other = bool(quick) and point.delta != certified.delta
    for quick_names in dict.fromkeys([*zip(quick), quick]) if is_other else ():
        try:
            with expecting(point.epsilon):
                epsilon = certified.epsilon_at(point.delta, quick_names)
        except DeltaUnreachable:
            continue
        is_equal = point.epsilon <= (1.0 + _EQUAL) * epsilon
        if SAFE * epsilon <= point.epsilon and (is_equal or quick_names == quick):
            return epsilon
    costs = costs_of(certified.base, certified.protocol, point.delta)
    for name in [*quick, *(name for name in names if name not in quick)]:
        try:
            (bound,) = costs.within(1.0, (name,))
        except DeltaUnreachable:
            continue
        if SAFE * bound.epsilon <= point.epsilon:
            return bound.epsilon
    try:
        least = costs.smallest.epsilon
    except DeltaUnreachable:
        return None
    return least if SAFE * least <= point.epsilon else None

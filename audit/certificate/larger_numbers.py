"""Numbers of a certificate whose costs are at least as large as those of today's bounds.

A later version of this package may have smaller bounds. A certificate that an earlier version
issued is still correct then: a tuning that is (epsilon, delta)-DP is so for every larger epsilon.
"""

import math
from dataclasses import replace

from audit.accounting import DeltaUnreachable, Mechanism
from audit.certificate.numbers import DELTAS, Numbers, derived
from audit.protocols import Protocol
from audit.upper_bounds import costs_of

SAFE = 1.0 - 1e-9
"""A stated cost may be smaller than the recomputed one by this factor, for other numpy versions."""


def with_stated_costs(
    stated: Numbers, today: Numbers, base: Mechanism, protocol: Protocol, delta: float
) -> Numbers | None:
    """The numbers that follow from the stated costs; None if one of these is below today's bounds.

    Args:
        stated: the numbers of the certificate.
        today: the numbers that today's version computes with the bounds that the certificate names.
        base: the base mechanism.
        protocol: the protocol.
        delta: delta of the tuning.

    Example:
        >>> from dataclasses import replace
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.certificate.numbers import compute
        >>> from audit.protocols import parse_protocol
        >>> tuning = GaussianMechanism(0.5), parse_protocol("fixed:1"), 1e-5
        >>> today = compute(*tuning, ["region"])
        >>> larger = tuple(replace(point, epsilon=point.epsilon + 1) for point in today.profile)
        >>> stated = replace(today, profile=larger, epsilon=today.epsilon + 1)
        >>> with_stated_costs(stated, today, *tuning).epsilon == today.epsilon + 1
        True
    """
    points = stated.profile
    deltas = [point.delta for point in points]
    if deltas != sorted({*deltas} & {*DELTAS, delta}, reverse=True) or delta not in deltas:
        return None
    if stated.epsilon != points[deltas.index(delta)].epsilon:
        return None
    at_least = {point.delta: point.epsilon for point in today.profile}
    for point in points:
        if point.epsilon >= SAFE * at_least.get(point.delta, math.inf):
            continue
        # The bounds that the certificate names may be larger today, while others are smaller.
        try:
            smallest = costs_of(base, protocol, point.delta).smallest.epsilon
        except DeltaUnreachable:
            return None
        if point.epsilon < SAFE * smallest:
            return None
    run, attained = stated.run_epsilon, stated.attained
    if run is None or today.run_epsilon is None or run < SAFE * today.run_epsilon:
        run = today.run_epsilon
    if attained is None or today.attained is None or attained > today.attained:
        attained = today.attained  # an attack of an earlier version may attain less
    # The names are the same, but their order may have changed.
    names = stated.bounds if {*stated.bounds} == {*today.bounds} else today.bounds
    named = costs_of(base, protocol, delta).within(1.0, [names[0]])[0]
    return replace(
        today,
        run_epsilon=run,
        attained=attained,
        bounds=names,
        source=named.source,
        assumes=named.assumes,
        **derived(points, delta),
    )

"""The least noise that keeps the budget of a whole tuning, for any protocol."""

import math
from collections.abc import Callable

from audit import checks
from audit.accounting import DeltaUnreachable, DpSgd, Mechanism
from audit.errors import InvalidInput
from audit.numerics import safe_root
from audit.protocols import Protocol, RandomSearch
from audit.upper_bounds import calibrate_noise, tuning_cost
from audit.upper_bounds.registry import find, row

_TOLERANCE = 1e-4  # relative; the noise is rounded up by less
_MIN_NOISE, _MAX_NOISE = 0.06, 1e6


def least_noise_multiplier(
    base_of: Callable[[float], Mechanism], protocol: Protocol, epsilon: float, delta: float
) -> float:
    """The least noise multiplier, rounded up, at which the whole tuning is (epsilon, delta)-DP.

    It uses the bound that is smallest near the target; `base_of` maps a multiplier to one run.
    """
    epsilon = checks.interval("epsilon", epsilon, 0.0, 1e4)
    delta = checks.interval("delta", delta, 0.0, 1.0)
    one = base_of(1.0)
    if isinstance(one, DpSgd) and isinstance(protocol, RandomSearch):
        return calibrate_noise(
            protocol,
            target_epsilon=epsilon,
            target_delta=delta,
            steps=one.steps,
            sampling_rate=one.sampling_rate,
            neighbours=one.neighbours,
            group_size=one.group_size,
        )

    # The region bound of random search nearly equals the smallest bound, and is faster.
    quick = ["region"] if isinstance(protocol, RandomSearch) else []
    names = list(quick)

    def excess(noise: float) -> float:
        try:
            base = base_of(noise)
            if names:
                found = row(find(names[0], type(protocol)), base, protocol, delta).epsilon
            else:
                best = tuning_cost(base, protocol, delta)
                names.append(best.name)
                found = best.epsilon
        except (DeltaUnreachable, ValueError):
            return math.inf  # too little noise for the accounting
        return math.inf if found is None else math.log(max(found, 1e-300) / epsilon)

    def is_exceeded_by_one_run(noise: float) -> bool:
        try:
            return base_of(noise).epsilon(delta) > epsilon
        except (DeltaUnreachable, ValueError):
            return True

    kept = 1.0
    while kept < _MAX_NOISE and is_exceeded_by_one_run(kept):  # faster than the bounds
        kept *= 8.0
    while excess(kept) > 0.0:
        kept *= 8.0  # soon ends if no noise is enough
        if excess(kept) > 0.0:  # perhaps another bound is smaller here
            names[:] = quick
        if kept > _MAX_NOISE:
            tuning_cost(base_of(kept), protocol, delta)  # raises if no bound applies
            raise InvalidInput(
                f"epsilon must be reachable with {protocol.spec} at some noise, got "
                f"{checks.one_line(epsilon)}; a private score alone may cost more"
            )
    missed = 0.5 * kept
    while True:
        while excess(missed) <= 0.0:
            kept, missed = missed, 0.5 * missed
            if missed < _MIN_NOISE:
                return kept
        best = quick or [tuning_cost(base_of(kept), protocol, delta).name]
        if names == best:
            break
        names[:] = best
    minus_log = safe_root(
        lambda x: excess(math.exp(-x)), -math.log(kept), -math.log(missed), _TOLERANCE
    )
    return math.exp(-minus_log)

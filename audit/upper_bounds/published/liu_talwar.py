"""Liu & Talwar 2019: a bound through pure DP, for a base that fails with a small probability."""

from audit.accounting import DeltaUnreachable, Mechanism
from audit.errors import NotApplicable
from audit.numerics import QUANTILE_ACCURACY
from audit.repetitions import Repetitions
from audit.upper_bounds.published.papernot_steinke import power_law
from audit.upper_bounds.registry import FAILURE_TOO_LIKELY, BoundValue, bound

_SOURCE = (
    "Liu & Talwar 2019 (geometric: 3 eps); Papernot & Steinke 2022, cor. 3 ((2+eta) eps) "
    "and lemma 20 (delta > 0)"
)


@bound("liu-talwar", 10, _SOURCE, about=("any base",))
def liu_talwar(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """(2 + eta) epsilon_0 if K is TNB(eta, gamma); 3 epsilon_0 if K is geometric.

    An (epsilon_0, delta_0)-DP base is epsilon_0-DP except for an event of probability delta_0, and
    some run fails with probability 1 - phi(1 - delta_0). Given that no run fails, K is again
    truncated negative binomial with the same eta. delta_0 solves 1 - phi(1 - delta_0) = delta.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(liu_talwar(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        2.015
    """
    law = power_law(repetitions)
    delta_0 = float(repetitions.inverse_survival(delta)) * (1.0 - QUANTILE_ACCURACY)
    try:
        epsilon = (2.0 + law.eta) * base.epsilon(delta_0)
    except DeltaUnreachable:
        raise NotApplicable(FAILURE_TOO_LIKELY) from None
    return BoundValue(epsilon)

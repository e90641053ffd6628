"""Bounds through pure DP: a base that is (epsilon, 0)-DP but for a small chance of failure."""

from audit.accounting import Mechanism
from audit.repetitions import Repetitions, TruncatedNegativeBinomial
from audit.upper_bounds.result import UpperBound, not_applicable

_SOURCE = (
    "Liu & Talwar 2019 (geometric: 3 eps); Papernot & Steinke 2022, cor. 3 ((2+eta) eps) "
    "and lemma 20 (delta > 0)"
)


def liu_talwar(base: Mechanism, repetitions: Repetitions, delta: float) -> UpperBound:
    """(2 + eta) epsilon_0 for TNB(eta, gamma) repetitions; 3 epsilon_0 when they are geometric.

    A base that is (epsilon_0, delta_0)-DP is pure but for an event of probability delta_0, and some
    run fails with probability 1 - phi(1 - delta_0). Given that none does, K is again truncated
    negative binomial with the same eta. So delta_0 is the one with 1 - phi(1 - delta_0) = delta.

    Args:
        base: the base mechanism.
        repetitions: the law of K.
        delta: in (0, 1).
    """
    name = "liu-talwar"
    if not isinstance(repetitions, TruncatedNegativeBinomial):
        return not_applicable(name, "K must be truncated negative binomial", _SOURCE)
    delta_0 = float(repetitions.inverse_survival(delta)) * (1.0 - 1e-12)
    epsilon = (2.0 + repetitions.eta) * base.epsilon(delta_0)
    return UpperBound(name, epsilon, "any score, any base", _SOURCE)

"""Epsilon that the best folded order attains: no bound for every score can be smaller."""

from collections.abc import Sequence

from audit.accounting import DominatingPair, Mechanism, compose
from audit.accounting.composition import COARSE_CELLS
from audit.claims import Kind
from audit.errors import NotApplicable
from audit.repetitions import Repetitions
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.tight import TightCurve

_SOURCE = "exact leakage of the best folded order found"
_ABOUT = ("the adversary chooses the score: attained by an attack, not a bound",)


@bound("worst-order", 90, _SOURCE, kind=Kind.ATTAINED, about=_ABOUT, title="worst order (attained)")
def worst_order(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    """Epsilon that the best folded order found attains: no bound for all scores can be smaller.

    The pair of the base must be attained by neighbouring data sets. The losses of many sampled
    steps are composed on a grid, whose error is taken to be what a grid twice as coarse changes.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(worst_order(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5).epsilon, 3)
        1.449
    """
    if not base.attained:
        raise NotApplicable("the base must have known outputs")
    (law, count), *others = base.loss_terms
    if base.gaussian_mu is not None or (
        isinstance(law, DominatingPair) and count == 1 and not others
    ):
        found, error = _attained(base.pairs, repetitions, delta), 0.0
    else:
        found = _attained(base.pairs, repetitions, delta)
        coarse = compose(base.loss_terms, COARSE_CELLS)
        error = abs(found - _attained((coarse, coarse.mirrored), repetitions, delta))
    return BoundValue(max(found - error, 0.0), error=2.0 * error)


def _attained(pairs: Sequence[DominatingPair], repetitions: Repetitions, delta: float) -> float:
    curves = (TightCurve.at(pair, repetitions, delta) for pair in pairs)
    return max(curve.worst_order(delta).epsilon(delta) for curve in curves)

"""Koskela & Kulkarni 2023: tuning on a random subset, by Renyi divergence."""

import math

import numpy as np
from scipy import special

from audit import checks
from audit.accounting import Mechanism, group_size, relations
from audit.errors import NotApplicable
from audit.numerics import FloatArray
from audit.protocols import Subset
from audit.upper_bounds.published.papernot_steinke import Curve, lemma_7_curve
from audit.upper_bounds.registry import BoundValue, bound

_LARGEST_ORDER = 512


def subset_divergences(
    tuned: Curve, final: Curve, sampling_rate: float, orders: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Renyi divergences of (tuned on a Poisson subset, final run on the rest), both directions.

    The extra record is in the subset with probability q and in the rest with probability 1-q, so
    the density ratio is q r1 + (1-q) r2. One direction is expanded by the binomial theorem, the
    other is bounded by the convexity of x^-(alpha-1).

    Args:
        tuned: divergence of the tuning by order.
        final: divergence of the final run by order.
        sampling_rate: q in [0, 1].
        orders: whole numbers [n] >= 2.

    Returns:
        D_alpha with the record || without, and the reverse; [n] each.

    Example:
        >>> import numpy as np
        >>> orders = np.array([2.0, 4.0])
        >>> removed, added = subset_divergences(lambda a: 0.1 * a, lambda a: 0.05 * a, 0.1, orders)
        >>> removed.round(3).tolist()
        [0.084, 0.169]
    """
    q = checks.interval("sampling_rate", sampling_rate, 0.0, 1.0, closed_low=True, closed_high=True)
    largest_order = checks.integer("orders", float(np.max(orders)), 2)
    if q in (0.0, 1.0):  # only one of the runs reads the record; the other may be infinite
        divergences = np.asarray((tuned if q == 1.0 else final)(orders))
        return divergences, divergences
    integer_orders = np.arange(2.0, largest_order + 1.0)
    # Log moments (k-1) D_k for k = 0, 1, 2, ...; those of 0 and 1 are 0.
    moments = [
        np.concatenate([[0.0, 0.0], (integer_orders - 1.0) * curve(integer_orders)])
        for curve in (tuned, final)
    ]
    with_record, without_record = [], []
    log_q, log_rest = np.log(q), np.log1p(-q)
    for order in np.asarray(orders, dtype=np.int64):
        j = np.arange(order + 1)
        log_ways = special.gammaln(order + 1.0) - special.gammaln(j + 1.0)
        log_ways = log_ways - special.gammaln(order - j + 1.0)
        weights = special.xlogy(order - j, q) + special.xlog1py(j, -q)
        terms = log_ways + weights + moments[0][order - j] + moments[1][j]
        with_record.append(special.logsumexp(terms) / (order - 1.0))
        ends = log_q + moments[0][order], log_rest + moments[1][order]
        without_record.append(np.logaddexp(*ends) / (order - 1.0))
    return np.maximum(with_record, 0.0), np.maximum(without_record, 0.0)


@bound(
    "koskela-kulkarni",
    10,
    "Koskela & Kulkarni 2023, with lemma 7 of Papernot & Steinke 2022 for the tuning",
    about=("any base, add-remove or zero-out neighbours",),
    protocol=Subset,
    title=r"$\varepsilon_U$ Koskela & Kulkarni (any score)",
)
def koskela_kulkarni(base: Mechanism, protocol: Subset, delta: float) -> BoundValue:
    """The bound of Koskela & Kulkarni 2023, if all runs and the final run have the same privacy.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> protocol = Subset("tnb:0,0.1", sampling_rate=0.1)
        >>> round(koskela_kulkarni(GaussianMechanism(0.25), protocol, 1e-5).epsilon, 3)
        1.139
    """
    check_add_remove(base)
    if protocol.final != "rest":
        raise NotApplicable("the final run must use the rest of the records")
    orders = np.arange(2.0, _LARGEST_ORDER + 1.0)
    tuned = lemma_7_curve(base, protocol.repetitions)
    either_order = subset_divergences(tuned, base.renyi, protocol.sampling_rate, orders)
    added = np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    return BoundValue(float(np.max(np.min(either_order + added, axis=1), initial=0.0)))


def check_add_remove(base: Mechanism) -> None:
    """Refuses relations and groups that may change both parts of the data."""
    if "replace-one" in relations(base):
        raise NotApplicable("neighbours must be add-remove or zero-out")
    if group_size(base) > 1:
        raise NotApplicable("groups must be of one record")

"""DP-HyPO (Wang et al. 2023): adaptive search by Renyi divergence, theorems 1 and 2."""

import math

import numpy as np
from numpy.typing import ArrayLike

from audit import checks
from audit.accounting import Mechanism, renyi_to_epsilon
from audit.accounting.combinations import any_fixed
from audit.errors import InvalidInput, NotApplicable
from audit.numerics import SUMS_TO_ONE, FloatArray, best_alpha
from audit.protocols import Adaptive
from audit.protocols.adaptive import project
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds.published.papernot_steinke import Curve, power_law
from audit.upper_bounds.registry import BoundValue, bound


def hypo_curve(base: Mechanism, repetitions: str | Repetitions, ratio: float) -> Curve:
    r"""Theorem 1 as a function of the order alpha.

    .. math:: \varepsilon' = \varepsilon + (1 + \theta)(1 - 1/b)\, \varepsilon_b
        + \Big(\frac{\alpha}{\alpha - 1} + 1 + \theta\Big) \log \frac{C}{c}
        + \frac{1 + \theta}{b} \log \frac{1}{\gamma} + \frac{\log \mathbb{E}[T]}{\alpha - 1},

    minimised over b.

    Args:
        base: one run with any fixed hyperparameter.
        repetitions: the distribution of K, truncated negative binomial.
        ratio: C/c, at least 1.

    Example:
        >>> import numpy as np
        >>> from audit.accounting import GaussianMechanism
        >>> curve = hypo_curve(GaussianMechanism(0.25), "tnb:0,0.1", ratio=2.0)
        >>> curve(np.array([8.0, 16.0])).round(3).tolist()
        [2.435, 2.529]
    """
    repetitions = parse_repetitions(repetitions)
    log_ratio = math.log(checks.interval("ratio", ratio, 1.0, closed_low=True))
    law = power_law(repetitions)
    log_inverse_gamma = -math.log(law.gamma)
    shape, log_mean = 1.0 + law.eta, math.log(repetitions.mean)

    def penalty(order: FloatArray) -> FloatArray:
        return base.renyi(order) * (1.0 - 1.0 / order) + log_inverse_gamma / order

    constant = shape * (best_alpha(penalty)[1] + log_ratio)

    def curve(alpha: FloatArray) -> FloatArray:
        order_less_one = alpha - 1.0
        return base.renyi(alpha) + constant + (alpha * log_ratio + log_mean) / order_less_one

    return curve


@bound(
    "hypo",
    10,
    "Wang et al. 2023 (DP-HyPO), theorem 1",
    about=("any base",),
    protocol=Adaptive,
    title=r"$\varepsilon_U$ DP-HyPO (any score)",
)
def hypo(base: Mechanism, protocol: Adaptive, delta: float) -> BoundValue:
    """Theorem 1 converted to (epsilon, delta)-DP, for an adaptive protocol.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> protocol = Adaptive("tnb:0,0.1", low=0.75, high=1.33)
        >>> round(hypo(GaussianMechanism(0.25), protocol, 1e-5).epsilon, 3)
        2.774
    """
    curve = hypo_curve(any_fixed(base), protocol.repetitions, protocol.high / protocol.low)
    return BoundValue(renyi_to_epsilon(curve, delta))


@bound(
    "hypo-pure",
    20,
    "Wang et al. 2023 (DP-HyPO), theorem 2",
    about=("a base of pure DP",),
    protocol=Adaptive,
)
def hypo_theorem_2(base: Mechanism, protocol: Adaptive, delta: float) -> BoundValue:
    """Theorem 2: (2 + theta) (epsilon_0 + log(C/c)) at every delta.

    Example:
        >>> from audit.accounting import PureDp
        >>> protocol = Adaptive("tnb:0,0.1", low=1.0, high=2.0)
        >>> round(hypo_theorem_2(PureDp(0.5), protocol, 1e-5).epsilon, 3)
        2.386
    """
    eta = power_law(protocol.repetitions).eta
    if not math.isfinite(base.pure_epsilon):
        raise NotApplicable("the base must satisfy pure DP")
    return BoundValue((2.0 + eta) * (base.pure_epsilon + math.log(protocol.high / protocol.low)))


def project_density(
    density: ArrayLike, low: float, high: float, prior: ArrayLike | None = None
) -> FloatArray:
    """The nearest density within [low, high] times the prior, in the prior's L2 norm.

    The projection of f is clip(f + t, low, high), with t such that the mean is 1.

    Args:
        density: f, relative to the prior, [n].
        low: c in [0, 1].
        high: C >= 1.
        prior: probabilities [n]; uniform if not given.

    Returns:
        The projected density relative to the prior, [n], with prior mean 1.

    Example:
        >>> project_density([0.1, 1.0, 2.0], low=0.5, high=1.5).round(3).tolist()
        [0.5, 1.0, 1.5]
    """
    values = checks.numbers("density", density)
    low = checks.interval("low", low, 0.0, 1.0, closed_low=True, closed_high=True)
    high = checks.interval("high", high, 1.0, closed_low=True)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise InvalidInput(
            f"density must be finite numbers in one row, got {checks.one_line(values)}"
        )
    weights = (
        np.full(len(values), 1.0 / len(values)) if prior is None else checks.numbers("prior", prior)
    )
    is_probable = weights.shape == values.shape and bool(np.all(weights >= 0))
    if not is_probable or abs(weights.sum() - 1.0) > SUMS_TO_ONE:
        raise InvalidInput(
            f"prior must be {len(values)} probabilities, got {checks.one_line(weights)}"
        )
    return project(values[None], low, high, weights)[0]

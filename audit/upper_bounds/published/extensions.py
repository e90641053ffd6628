"""Bounds that extend those of Papernot & Steinke to other protocols and to privacy profiles.

- DP-HyPO (Wang et al. 2023): adaptive search by Renyi divergence, theorems 1 and 2.
- Koskela, Redberg & Wang 2024: bounds by privacy profile, noisy max, and tested releases.
- Koskela & Kulkarni 2023: tuning on a random subset, by Renyi divergence.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.accounting import (
    Composition,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PrivacyProfile,
    group_size,
    relations,
    renyi_to_epsilon,
    solve_epsilon,
)
from audit.accounting.combinations import any_fixed
from audit.errors import InvalidInput, NotApplicable
from audit.numerics import PROFILE_ACCURACY, SUMS_TO_ONE, FloatArray, best_alpha, safe_log
from audit.protocols import Adaptive, NoisyMax, ProposeTestRelease, Subset
from audit.protocols.adaptive import project
from audit.repetitions import Repetitions, parse_repetitions
from audit.upper_bounds.published.papernot_steinke import Curve, lemma_7_curve, power_law
from audit.upper_bounds.registry import BoundValue, bound, find

_KOSKELA_REDBERG_WANG = "Koskela, Redberg & Wang 2024"

_LARGEST_ORDER_ON_SUBSETS = 512


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


@bound(
    "profile",
    60,
    _KOSKELA_REDBERG_WANG,
    about=("any base",),
    title=r"$\varepsilon_U$ profile (any score)",
)
def profile(base: Mechanism, repetitions: Repetitions, delta: float) -> BoundValue:
    r"""Smallest epsilon that the generic profile bound gives at delta.

    .. math:: \delta_A(\varepsilon) \le \mathbb{E}[K]\, \delta(\varepsilon - \text{penalty}),

    with the penalty minimised over :math:`\varepsilon_1 \ge 0`: theorem 5.2 for truncated negative
    binomial K, 5.7 for binomial, corollary 5.8 for Poisson. The penalty does not depend on epsilon,
    so it is minimised once.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(profile(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5).epsilon, 3)
        1.408
    """
    theorem = repetitions.profile_theorem
    if theorem is None:
        raise NotApplicable(
            "K must be truncated negative binomial, binomial with p < 1, or Poisson"
        )
    penalty = _smallest_penalty(base, theorem.penalty)

    def tuned(epsilon: float) -> float:
        return repetitions.mean * float(base.delta(epsilon - penalty))

    return BoundValue(solve_epsilon(tuned, delta), source=theorem.source)


def _smallest_penalty(
    base: Mechanism, penalty: Callable[[FloatArray, FloatArray], FloatArray]
) -> float:
    """Minimises over epsilon_1 on a grid refined three times; any epsilon_1 is valid."""
    left, right = math.log(1e-12), math.log(700.0)
    values = np.empty(0)
    for _ in range(4):
        grid = np.linspace(left, right, 513)
        epsilon_1 = np.exp(grid)
        values = penalty(epsilon_1, base.delta(epsilon_1) * (1.0 + PROFILE_ACCURACY))
        best = int(np.argmin(values))
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return float(values.min())


def corollary_6_2(
    epsilon_1: float, delta_1: float, epsilon_hat: float, repetitions: str | Repetitions
) -> float:
    """Epsilon of tuning over candidates that all satisfy two points of a privacy profile.

    If each is (epsilon_1, delta_1)- and (epsilon_hat, d)-DP, tuning is (epsilon, E[K] d)-DP with
    epsilon = epsilon_hat + (eta+1) log(e^epsilon_1 + ((1-gamma)/gamma) delta_1) (Koskela, Redberg
    & Wang 2024, corollary 6.2). `profile` of `WorstOf` optimises over both points.

    Example:
        >>> round(corollary_6_2(0.5, 1e-8, 1.0, "tnb:0,0.1"), 9)
        1.500000055
    """
    epsilon_1 = checks.interval("epsilon_1", epsilon_1, 0.0, closed_low=True)
    delta_1 = checks.interval("delta_1", delta_1, 0.0, 1.0, closed_low=True, closed_high=True)
    epsilon_hat = checks.interval("epsilon_hat", epsilon_hat, 0.0, closed_low=True)
    law = power_law(parse_repetitions(repetitions))
    log_odds = math.log1p(-law.gamma) - math.log(law.gamma)
    return epsilon_hat + (law.eta + 1.0) * float(
        np.logaddexp(epsilon_1, log_odds + safe_log(delta_1))
    )


def propose_test_release(
    released: Mechanism, test_epsilon: float, test_delta: float, failure: float
) -> PrivacyProfile:
    """A generalised propose-test-release step, to be tuned like any base.

    (eps + test_epsilon, delta(eps) + test_delta + failure)-DP for every eps (Koskela, Redberg &
    Wang 2024, theorem 6.1, after Redberg et al. 2023).

    Args:
        released: the mechanism that runs if the test passes.
        test_epsilon: epsilon of the test, >= 0.
        test_delta: delta of the test, in [0, 1).
        failure: probability that the test passes wrongly, in [0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> released = propose_test_release(GaussianMechanism(0.25), 1.0, 1e-6, 1e-7)
        >>> round(released.epsilon(1e-4), 3)
        1.774
    """
    test_epsilon = checks.interval("test_epsilon", test_epsilon, 0.0, closed_low=True)
    test_delta = checks.interval("test_delta", test_delta, 0.0, 1.0, closed_low=True)
    failure = checks.interval("failure", failure, 0.0, 1.0, closed_low=True)
    epsilons = released.profile_grid()
    deltas = np.minimum(released.delta(epsilons) + test_delta + failure, 1.0)
    return PrivacyProfile(epsilons + test_epsilon, deltas)


@bound(
    "noisy-max",
    10,
    "Koskela, Redberg & Wang 2024, theorems 3.2 and 3.3",
    about=("Gaussian or Laplace noise",),
    protocol=NoisyMax,
)
def noisy_max(base: Mechanism, protocol: NoisyMax, delta: float) -> BoundValue:
    """m^k times the profile of k noisy values at sensitivity 2, or 1 if they are monotone.

    The base is one noisy value of sensitivity 1.

    Example:
        >>> round(noisy_max(GaussianMechanism(0.25), "noisy-max:10", 1e-6).epsilon, 3)
        2.49
    """
    if protocol.candidates == 1:
        return BoundValue(0.0)  # the index is known
    distance = 1.0 if protocol.monotone else 2.0
    mu = base.gaussian_mu
    if mu is not None:
        round_cost: Mechanism = GaussianMechanism(distance * mu)
    elif isinstance(base, LaplaceMechanism):
        round_cost = LaplaceMechanism(base.scale / distance)
    else:
        raise NotApplicable("the noise must be Gaussian or Laplace")
    together = Composition((round_cost,) * protocol.rounds) if protocol.rounds > 1 else round_cost
    log_factor = protocol.rounds * math.log(protocol.candidates)

    def reached(epsilon: float) -> float:
        # In logarithms, because m^k overflows for large m and k.
        return math.exp(min(float(safe_log(together.delta(epsilon))) + log_factor, 1.0))

    return BoundValue(solve_epsilon(reached, delta))


def _register_tested(name: str, place: float, theorem: str) -> None:
    @bound(
        name,
        place,
        f"Koskela, Redberg & Wang 2024, theorem 6.1 {theorem}",
        about=("any base",),
        protocol=ProposeTestRelease,
    )
    def tested(base: Mechanism, protocol: ProposeTestRelease, delta: float) -> BoundValue:
        test = protocol.test_epsilon, protocol.test_delta, protocol.failure
        run = propose_test_release(base, *test)
        value = find(name).body(run, protocol.repetitions, delta)
        return BoundValue(value.epsilon, value.error)


_register_tested("profile", 60, "with 5.2, 5.7 or 5.8")
_register_tested("region", 100, "and the region bound")
_register_tested("tight", 110, "and the tight bound")


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
    orders = np.arange(2.0, _LARGEST_ORDER_ON_SUBSETS + 1.0)
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

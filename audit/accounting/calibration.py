"""Noise for a given budget of one run, and the single-parameter summaries mu of the papers."""

import math

from scipy import special

from audit import checks
from audit.accounting.dpsgd import DpSgd
from audit.accounting.mechanism import GaussianMechanism
from audit.errors import InvalidInput
from audit.numerics import ROOT_TOLERANCE, safe_root

ACCOUNTINGS = ("rdp", "exact")
"""How epsilon_B is computed: `rdp` as in the papers, `exact` by the Gaussian profile."""

_SMALLEST_MU, _LARGEST_MU = 1e-12, 1e3
_SMALLEST_NOISE = 0.1


def calibrate_mu(epsilon: float, delta: float, accounting: str = "rdp") -> float:
    """Largest mu for which one run is (epsilon, delta)-DP.

    Args:
        epsilon: the budget of one run, > 0.
        delta: in (0, 1).
        accounting: `rdp` (Renyi divergences of all orders, as in the papers) or `exact`.

    Returns:
        mu, rounded down, so that the budget is not exceeded.

    Raises:
        InvalidInput: an argument is out of its range, or no mu in (1e-12, 1000) uses up the budget.

    Example:
        >>> round(calibrate_mu(1.0, 1e-5), 4)
        0.2472
    """
    epsilon = checks.interval("epsilon", epsilon, 0.0)
    delta = checks.interval("delta", delta, 0.0, 1.0)
    accounting = checks.one_of("accounting", accounting, ACCOUNTINGS)

    def spent(log_mu: float) -> float:
        mechanism = GaussianMechanism(math.exp(log_mu))
        used = mechanism.renyi_epsilon(delta) if accounting == "rdp" else mechanism.epsilon(delta)
        return used - epsilon

    low, high = math.log(_SMALLEST_MU), math.log(_LARGEST_MU)
    if spent(high) <= 0 or spent(low) > 0:
        raise InvalidInput(
            f"epsilon must be a budget that some mu in ({_SMALLEST_MU:g}, {_LARGEST_MU:g}) uses "
            f"up at delta={delta:g}, got {checks.one_line(epsilon)}"
        )
    return math.exp(safe_root(spent, low, high, ROOT_TOLERANCE))


def full_batch_noise_multiplier(mu: float, steps: int) -> float:
    """Noise multiplier sigma at which `steps` full-batch iterations have this mu.

    Example:
        >>> round(full_batch_noise_multiplier(0.25, steps=300), 3)
        69.282
    """
    mu = checks.interval("mu", mu, 0.0)
    return math.sqrt(checks.integer("steps", steps, 1)) / mu


def calibrate_noise_multiplier(
    epsilon: float, delta: float, steps: int, sampling_rate: float = 1.0, accounting: str = "rdp"
) -> float:
    """Smallest noise multiplier at which one run of DP-SGD is (epsilon, delta)-DP.

    Args:
        epsilon: the budget of one run, > 0.
        delta: in (0, 1).
        steps: iterations of one run.
        sampling_rate: in (0, 1].
        accounting: `rdp` or `exact`, as in `calibrate_mu`.

    Returns:
        sigma, rounded up by a relative error below 1e-6, so that the budget is not exceeded.

    Raises:
        InvalidInput: an argument is out of its range, or no noise above 0.1 uses up the budget.

    Example:
        >>> round(calibrate_noise_multiplier(1.0, 1e-5, steps=300), 2)
        70.06
    """
    # Sampling only reduces the cost, so the noise for full batches is an upper limit.
    enough = full_batch_noise_multiplier(calibrate_mu(epsilon, delta, accounting), steps)
    if sampling_rate == 1.0:
        return enough

    def spent(log_sigma: float) -> float:
        mechanism = DpSgd(math.exp(log_sigma), steps, sampling_rate)
        used = mechanism.renyi_epsilon(delta) if accounting == "rdp" else mechanism.epsilon(delta)
        return used - epsilon

    high = math.log(enough)
    low = high
    while spent(low) <= 0:
        if low < math.log(_SMALLEST_NOISE):
            raise InvalidInput(
                f"epsilon must be a budget that some noise above {_SMALLEST_NOISE:g} uses up at "
                f"sampling_rate={sampling_rate:g}, got {checks.one_line(epsilon)}"
            )
        high, low = low, low - 1.0
    if low == high:
        return enough
    # The result is on the side of `high`, where the budget is kept.
    return math.exp(safe_root(spent, high, low, 1e-7))


def mean_inclusion_mu(noise_multiplier: float, steps: int, sampling_rate: float = 1.0) -> float:
    r"""Approximate mu of sampled DP-SGD, "O" in Xiang et al. 2024, equation 19.

    It is :math:`\tau \sqrt{N} / \sigma` for :math:`N` steps at sampling rate :math:`\tau` and noise
    multiplier :math:`\sigma`. At sampling rate 1 it is exact. Below 1, the mean replaces the random
    number of times that the record is sampled, so it is an approximation and not a bound.

    Example:
        >>> round(mean_inclusion_mu(1.0, steps=500, sampling_rate=0.01), 4)
        0.2236
    """
    noise_multiplier = checks.interval("noise_multiplier", noise_multiplier, 0.0)
    sampling_rate = checks.interval("sampling_rate", sampling_rate, 0.0, 1.0, closed_high=True)
    return sampling_rate * math.sqrt(checks.integer("steps", steps, 1)) / noise_multiplier


def gdp_limit_mu(noise_multiplier: float, steps: int, sampling_rate: float = 1.0) -> float:
    r"""Asymptotic mu of sampled DP-SGD, "G" in Xiang et al. (corollary 2; Dong, Roth & Su).

    For :math:`N` steps at sampling rate :math:`\tau` and noise multiplier :math:`\sigma`,

    .. math:: \mu = \sqrt{2 N}\, \tau
        \sqrt{e^{1/\sigma^2} \Phi(1.5/\sigma) + 3 \Phi(-0.5/\sigma) - 2}.

    It is asymptotic in the number of steps and not a bound.

    Example:
        >>> round(gdp_limit_mu(1.0, steps=500, sampling_rate=0.01), 4)
        0.3824
    """
    noise_multiplier = checks.interval("noise_multiplier", noise_multiplier, 0.04)
    sampling_rate = checks.interval("sampling_rate", sampling_rate, 0.0, 1.0, closed_high=True)
    c = sampling_rate * math.sqrt(checks.integer("steps", steps, 1))
    u = 1.0 / noise_multiplier
    # For large noise the terms cancel to u^2/2 + O(u^3); expm1 and erf avoid the cancellation.
    half = [0.5 * special.erf(t * u * math.sqrt(0.5)) for t in (1.5, 0.5)]
    inside = math.expm1(u * u) * (0.5 + half[0]) + half[0] - 3.0 * half[1]
    return math.sqrt(2.0) * c * math.sqrt(inside)

"""Report noisy max: the best of m fixed queries, each with its own noise.

The m scores of sensitivity 1 get independent noise and the index of the largest is released.
"""

import math

import numpy as np

from audit import checks
from audit.accounting import (
    Composition,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    renyi_to_epsilon,
    solve_epsilon,
)
from audit.claims import Claim, Kind
from audit.numerics import safe_log
from audit.protocols import NoisyMax
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.result import NotApplicable, UpperBound

_MAX_COMPOSED = 1 << 20
_NOISES = ("gaussian", "laplace")


def _one_release(noise: str, scale: float, monotone: bool) -> Mechanism:
    """The additive noise at sensitivity 2, or 1 if all queries move in the same direction."""
    noise = checks.one_of("noise", noise, _NOISES)
    checks.interval("scale", scale, 0.0)
    moved = scale if monotone else scale / 2.0
    return GaussianMechanism(1.0 / moved) if noise == "gaussian" else LaplaceMechanism(moved)


def noisy_max(
    candidates: int,
    scale: float,
    delta: float,
    noise: str = "gaussian",
    monotone: bool = False,
    rounds: int = 1,
) -> UpperBound:
    """delta(eps) <= m^k times the profile of k noisy releases at sensitivity 2.

    Args:
        candidates: m, number of queries, each of sensitivity 1.
        scale: standard deviation (gaussian) or scale (laplace) of the noise.
        delta: in (0, 1).
        noise: `gaussian` or `laplace`.
        monotone: whether all queries move in one direction between neighbours (sensitivity 1).
        rounds: k, how often the mechanism is run, adaptively.

    Example:
        >>> round(noisy_max(10, scale=4.0, delta=1e-6).epsilon, 3)
        2.49
    """
    checks.integer("candidates", candidates, 1)
    one = _one_release(noise, scale, monotone)
    rounds = checks.integer("rounds", rounds, 1)
    source = f"Koskela, Redberg & Wang 2024, theorem {'3.2' if rounds == 1 else '3.3'}"
    claim = Claim(Kind.BOUND, source, (NoisyMax,), is_upper=True)
    return UpperBound("noisy-max", _many(one, candidates, rounds, delta), claim)


@bound(
    "noisy-max",
    10,
    "Koskela, Redberg & Wang 2024, theorems 3.2 and 3.3",
    about=("Gaussian or Laplace noise",),
    protocol=NoisyMax,
)
def noisy_max_of(base: Mechanism, protocol: NoisyMax, delta: float) -> BoundValue:
    """m^k times the profile of k noisy values at sensitivity 2, or 1 if all move in one direction.

    Args:
        base: one noisy value of sensitivity 1.
        protocol: how many values, how often.
        delta: in (0, 1).
    """
    if protocol.candidates == 1:
        return BoundValue(0.0)  # the index is known
    distance = 1.0 if protocol.monotone else 2.0
    mu = base.gaussian_mu
    if mu is not None:
        one: Mechanism = GaussianMechanism(distance * mu)
    elif isinstance(base, LaplaceMechanism):
        one = LaplaceMechanism(base.scale / distance)
    else:
        raise NotApplicable("the noise must be Gaussian or Laplace")
    return BoundValue(_many(one, protocol.candidates, protocol.rounds, delta))


@bound(
    "composition",
    50,
    "composition of all noisy values, each released",
    about=("any noise",),
    protocol=NoisyMax,
)
def noisy_max_composition(base: Mechanism, protocol: NoisyMax, delta: float) -> BoundValue:
    """What all noisy values cost if every one were released: least where there are few.

    Args:
        base: one noisy value of sensitivity 1.
        protocol: how many values, how often.
        delta: in (0, 1).
    """
    runs = protocol.candidates * protocol.rounds
    if runs > _MAX_COMPOSED:
        raise NotApplicable(f"there must be at most {_MAX_COMPOSED} values to compose")
    return BoundValue(
        Composition((base,) * runs).epsilon(delta) if runs > 1 else base.epsilon(delta)
    )


def _many(one: Mechanism, candidates: int, rounds: int, delta: float) -> float:
    base = Composition((one,) * rounds) if rounds > 1 else one
    log_factor = rounds * math.log(candidates)

    def profile(epsilon: float) -> float:
        # As logarithms: a million candidates, sixty times over, overflow.
        log_delta = float(safe_log(base.delta(epsilon)))
        return math.exp(min(log_delta + log_factor, 1.0))

    return solve_epsilon(profile, delta)


def noisy_max_closed_form(candidates: int, scale: float, delta: float) -> float:
    """Epsilon for Gaussian noise, 2/sigma^2 + (2/sigma) sqrt(2 log(m/delta)) (corollary 3.4).

    Example:
        >>> round(noisy_max_closed_form(10, scale=4.0, delta=1e-6), 2)
        2.96
    """
    checks.integer("candidates", candidates, 1)
    checks.interval("scale", scale, 0.0)
    checks.interval("delta", delta, 0.0, 1.0)
    return 2.0 / scale**2 + 2.0 / scale * math.sqrt(2.0 * math.log(candidates / delta))


def noisy_max_renyi(
    candidates: int, scale: float, delta: float, noise: str = "gaussian", monotone: bool = False
) -> float:
    """Epsilon by Renyi divergences, D_alpha + log(m)/(alpha-1) (theorem 3.1 there).

    Example:
        >>> round(noisy_max_renyi(10, scale=4.0, delta=1e-6), 2)
        2.65
    """
    checks.integer("candidates", candidates, 1)
    base = _one_release(noise, scale, monotone)
    return renyi_to_epsilon(
        lambda alpha: base.renyi(alpha) + np.log(candidates) / (alpha - 1.0), delta
    )

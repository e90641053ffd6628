r"""The cost of a grid on a base that a Gaussian mechanism dominates up to a small probability.

`grid_of_gaussians` needs a Gaussian base. Suppose that one run, in both directions, satisfies

    delta_base(eps) <= (1-d) delta_mu(eps) + d   for every eps >= 0,

delta_mu the profile of N(0, 1) against N(mu, 1). The right side is the profile of this pair: with
chance d, whatever the data, everything is revealed, else N(0, 1) or N(mu, 1); and whether
everything is revealed is part of the output. By Blackwell's theorem a run is a post-processing of
that pair (negative eps follow from the other direction, for both sides change alike). So all
candidates of a grid of m may be replaced by such pairs. With chance at most m d one of them reveals
everything. Otherwise, given the labels, the candidates are Gaussian, so

    delta(eps) <= (Gaussian grid of m at mu)(eps) + m d,

and where candidates are left out by chance, the expected number of runs stands in place of m.
Every d gives a bound, with the smallest mu that the condition allows; the best d is found by the
region bound, which costs little.
"""

import math
from collections.abc import Sequence

import numpy as np

from audit.accounting import (
    DeltaUnreachable,
    DominatingPair,
    GaussianMechanism,
    reach,
    solve_epsilon,
)
from audit.accounting.mechanism import LARGEST_SPREAD, SMALLEST_SPREAD, Mechanism
from audit.accounting.pairs import gaussian_profile
from audit.arrays import FloatArray
from audit.errors import NotApplicable
from audit.numerics import PROFILE_ACCURACY, bisect_intervals
from audit.protocols import Grid
from audit.repetitions import Binomial, Fixed
from audit.upper_bounds.grid import kinds_of_candidates
from audit.upper_bounds.grid_of_gaussians import grid_tight
from audit.upper_bounds.region import region_curve
from audit.upper_bounds.registry import BoundValue, bound

# Shares of delta that runs may reveal everything with, and epsilons at which profiles are compared.
_SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 1e-6)
_POINTS = 1 << 14
_REGION_POINTS = 1 << 11


def dominating_mu(pairs: Sequence[DominatingPair], d: float) -> float:
    """The mu of a Gaussian mechanism that dominates all pairs but for a probability d, rounded up.

    Profiles fall with epsilon, so between two epsilons the base's profile at the first is compared
    with the Gaussian's at the second.

    Args:
        pairs: of one run, both directions.
        d: in (0, 1).

    Raises:
        NotApplicable: no mu up to 1000 is enough, or the base reveals everything with a probability
            above d.

    Example:
        >>> from audit.accounting import DpSgd, GaussianMechanism
        >>> round(dominating_mu(GaussianMechanism(0.5).pairs, 1e-9), 3)
        0.5
        >>> mu = dominating_mu(DpSgd(4.0, 500, 0.2).pairs, 1e-8)
        >>> 1.12 < mu < 1.2  # the central limit's mu is 1.14
        True
    """

    def excess(epsilon: float) -> float:
        return max(float(pair.profile(epsilon)) for pair in pairs)

    # Beyond, the condition holds whatever the Gaussian's profile: what rounding leaves is in d.
    spent = d * (1.0 - PROFILE_ACCURACY)
    last = reach(lambda epsilon: max(excess(epsilon) * (1.0 + PROFILE_ACCURACY) - spent, 0.0))
    if excess(last) * (1.0 + PROFILE_ACCURACY) > d:
        raise NotApplicable("the base reveals everything with a larger probability")
    epsilons = np.linspace(0.0, last, _POINTS)
    most = np.max([pair.profile(epsilons[:-1]) for pair in pairs], axis=0)
    wanted = (most * (1.0 + PROFILE_ACCURACY) - spent) / (1.0 - d)
    wanted, ends = wanted[wanted > 0.0], epsilons[1:][wanted > 0.0]
    if not len(wanted):
        return SMALLEST_SPREAD

    def misses(log_mu: FloatArray) -> FloatArray:
        mu = np.exp(log_mu)
        return np.asarray(gaussian_profile(ends, mu) * (1.0 - PROFILE_ACCURACY) < wanted)

    low, high = (np.full(len(ends), math.log(mu)) for mu in (SMALLEST_SPREAD, LARGEST_SPREAD))
    if misses(high).any():
        raise NotApplicable("no Gaussian mechanism dominates the base")
    return math.exp(float(bisect_intervals(misses, low, high, 64)[1].max()))


@bound(
    "grid-gaussian",
    105,
    "a Gaussian mechanism that dominates the base up to a small probability, and its tight grid",
    about=("any base",),
    protocol=Grid,
    is_special=True,
    title=r"$\varepsilon_U$ grid, dominating Gaussian (any score)",
)
def grid_gaussian(base: Mechanism, protocol: Grid, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta.

    Args:
        base: one run of any candidate, or `Candidates`, one for each.
        protocol: the number of candidates, and the probability that each is run.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import DpSgd
        >>> round(grid_gaussian(DpSgd(4.0, 500, 0.2), Grid(20), 1e-5).epsilon, 1)
        25.2
    """
    several = [one for one, _ in kinds_of_candidates(base, protocol)]
    if all(one.gaussian_mu is not None for one in several):
        raise NotApplicable("the base is Gaussian: grid-tight is sharper")
    pairs = [pair for one in several for pair in one.pairs]
    runs = protocol.mean_runs
    law = (
        Fixed(protocol.candidates)
        if protocol.inclusion == 1.0
        else Binomial(protocol.candidates, protocol.inclusion)
    )
    found = []
    for share in _SHARES:
        d = share * delta / runs
        try:
            mu = dominating_mu(pairs, d)
            curve = region_curve(GaussianMechanism(mu).pairs[0], law, _REGION_POINTS)
            found.append((solve_epsilon(curve.delta, (1.0 - share) * delta), mu, share))
        except (NotApplicable, DeltaUnreachable):
            continue
    if not found:
        raise NotApplicable("no Gaussian mechanism dominates the base")
    _, mu, share = min(found)
    answer = grid_tight(GaussianMechanism(mu), protocol, (1.0 - share) * delta)
    if not answer.applies:
        raise NotApplicable(answer.reason)
    return BoundValue(answer.epsilon)

r"""The exact cost of a grid on a Gaussian base: that of as many draws of one distribution.

Let all of m candidates be run, each dominated by N(0, 1) against N(mu, 1), and their outputs be
gone through from the best on, E a set of pairs (candidate, output). What is preferred at some time
has, of candidate i, the chances (e_i, e_i') inside E and (f_i, f_i') outside, so that

    P(E) - e^eps P'(E) = sum_i int prod_{j != i} (1 - e_j - f_j) de_i
                         - e^eps sum_i int prod_{j != i} (1 - e_j' - f_j') de_i'.

As in `tight`, f_j' <= U(f_j) and e_j' >= L(e_j) may be taken for equalities. So it is at most
int sum_i G_i(e) de_i along the path of e = (e_1, ..., e_m), which grows from (0, ..., 0), where

    G_i(e) = max over f of prod (1 - e_j - f_j) - e^eps L'(e_i) prod (1 - L(e_j) - U(f_j)),

both products over j != i, 0 <= f_j <= 1 - e_j. *No path gives more than the diagonal.* Say that
candidate j is left with the outputs between a_j and b_j, and let l be the likelihood ratio and M_j
its mean there. Where G_i is positive, every j != i has l(b_j) / M_j = theta for one theta, and

    theta prod_{j != i} M_j = e^-eps / l(a_i).                                                  (*)

For Gaussian densities, as for any whose loss is log-concave, l(b) / M grows with b, and where it is
held fixed l(a) / M grows with a: given y > a, what y is beyond a is stochastically smaller for
larger a. So take e_1 >= e_2, so that a_1 >= a_2, theta_1 of (*) for i = 1, theta_2 for i = 2, and
R_j(theta) = l(a_j) / M_j. With N the product of M_j over j >= 3, (*) says that
e^eps l(a_1) l(a_2) theta N(theta), which grows, meets R_2 at theta_1 and R_1 >= R_2 at theta_2. So
theta_1 <= theta_2. By the envelope theorem dG_1 / de_2 - dG_2 / de_1 = D(theta_2) - D(theta_1),

    D = A - e^eps l(a_1) l(a_2) B,   A = prod_{j >= 3} (1 - e_j - f_j),   B = A N,

and D grows with theta until R_1 or R_2 is 1, which is the most they are, the low end of what is
left being below the mean. So dG_1 / de_2 >= dG_2 / de_1 wherever e_1 >= e_2. (G_i is positive for
all i or for none, where e^eps prod l(a_j) < 1, and continuous; beyond, nothing is gained.) Hence of
two steps in a row, of a candidate that is ahead and of one that is behind, it is better to take the
one behind first. Exchange after exchange any path becomes one in which the one farthest behind
always steps next: the diagonal. There all f_j are equal, too, and m G is what `tight` integrates
for fixed:m. An order of as many equal candidates attains it.

Where candidates are left out by chance, that does not depend on the data, so it may be released
which are run. Given that k are, the tuning is a grid of k, and the profile of a mixture whose parts
are known is the mean of their profiles:

    delta(eps) <= sum_k P(k are run) (tight bound of fixed:k)(eps).

A grid of more candidates leaks no less (a score may prefer the others to those added), so numbers
of runs are put together in bins, each at its largest number; what is beyond the last bin counts as
a full leak.

Without a Gaussian base none of this is so: with three candidates of two outputs each a grid leaks
up to 1.64 times the delta of fixed:3. `grid` holds there, and where few of many are run.
"""

import numpy as np
from scipy import special

from audit.accounting import Mechanism, solve_epsilon
from audit.accounting.pairs import GaussianPair
from audit.arrays import FloatArray, IntArray
from audit.errors import NotApplicable
from audit.numerics import QUANTILE_ACCURACY, last_integer
from audit.protocols import Grid
from audit.repetitions import Fixed
from audit.upper_bounds.grid import kinds_of_candidates
from audit.upper_bounds.registry import BoundValue, bound
from audit.upper_bounds.tight import TightCurve, tight

_SOURCE = "tight bound of as many independent draws, exact for a grid on a Gaussian base"
_BY_CHANCE = "mean of the tight bounds of as many draws as candidates are run"
# Share of delta for the event that more candidates are run than the bins cover.
_RARE = 0.02
# Chance to run more than the first bin holds, how many bins, and events of each curve.
_USUAL, _BINS, _POINTS = 0.7, 12, 500


@bound(
    "grid-tight",
    110,
    _SOURCE,
    about=("Gaussian base",),
    protocol=Grid,
    is_special=True,
    title=r"$\varepsilon_U$ grid, tight (any score)",
)
def grid_tight(base: Mechanism, protocol: Grid, delta: float) -> BoundValue:
    """The smallest epsilon of the bound at delta.

    Args:
        base: one run of any candidate, or `Candidates`, one for each, which count as the worst.
        protocol: the number of candidates, and the probability that each is run.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(grid_tight(GaussianMechanism(0.24721), Grid(10), 1e-5).epsilon, 3)
        2.728
    """
    several = kinds_of_candidates(base, protocol)
    worst = max((one for one, _ in several), key=_mu)
    if protocol.inclusion < 1.0:
        return BoundValue(by_chance(GaussianPair(_mu(worst)), protocol, delta), source=_BY_CHANCE)
    found = tight(worst, Fixed(protocol.candidates), delta)
    if not found.applies:
        raise NotApplicable(found.reason)
    return BoundValue(
        found.epsilon, found.error, attains=found.attains if len(several) == 1 else 0.0
    )


def by_chance(pair: GaussianPair, protocol: Grid, delta: float) -> float:
    """Smallest epsilon where candidates are left out by chance.

    Args:
        pair: dominates one run of any candidate.
        protocol: the number of candidates, and the probability that each is run.
        delta: in (0, 1).

    Raises:
        DeltaUnreachable: no epsilon reaches delta.
    """
    runs, chances, beyond = _bins(protocol, delta)
    curves = [
        # Where every bin adds the same to delta.
        (chance, TightCurve.at(pair, Fixed(k), min(delta / (len(runs) * chance), 0.5), _POINTS))
        for k, chance in zip(runs, chances, strict=True)
    ]
    up = 1.0 + QUANTILE_ACCURACY

    def together(epsilon: float) -> float:
        return (
            sum(chance * min(curve.delta(epsilon), 1.0) for chance, curve in curves) * up + beyond
        )

    return solve_epsilon(together, delta)


def _mu(candidate: Mechanism) -> float:
    """Of the Gaussian pair that dominates one run, whether the mechanism calls itself so or not."""
    means = [pair.mu for pair in candidate.pairs if isinstance(pair, GaussianPair)]
    if len(means) < len(candidate.pairs):
        raise NotApplicable("it needs a Gaussian base, such as full batches")
    return max(means)


def _bins(protocol: Grid, delta: float) -> tuple[list[int], list[float], float]:
    """Numbers of candidates that are run, the largest of each bin, with chances; and of more."""
    count, chance = protocol.candidates, protocol.inclusion

    def exceeded(k: IntArray) -> FloatArray:
        left = np.maximum(count - k, 1)
        return np.where(k < count, special.betainc(np.maximum(k, -1) + 1.0, left, chance), 0.0)

    def last_above(share: float) -> int:
        return int(last_integer(lambda k: exceeded(k) > share, -1, count))

    most = last_above(_RARE * delta) + 1
    beyond = float(exceeded(np.array([most]))[0]) * (1.0 + QUANTILE_ACCURACY)
    if most == 0:
        return [], [], beyond
    least = max(min(last_above(_USUAL), most), 1)
    edges = np.unique(np.linspace(least, most, _BINS).round().astype(np.int64))
    above = np.append(exceeded(np.array([0])), exceeded(edges))
    chances = above[:-1] - above[1:]
    kept = chances > 0.0
    return edges[kept].tolist(), chances[kept].tolist(), beyond

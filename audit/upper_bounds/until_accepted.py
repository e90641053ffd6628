"""Exact cost of a schedule of Gaussian budgets whose first accepted model is released.

Backward induction over the steps (proposition 9 of docs/theory.md): with the profile H_i of step i,

    V_i(1, theta) = sup_(a,b)  a H_i(theta b/a) + (1-a) H_i(theta (1-b)/(1-a))

over the trade-off curve of the later steps. The right side is convex in (a, b), so the vertices of
a polygon around the curve bound it: chords of V_{i+1}(1, .) on a grid of theta. Every grid gives an
upper bound; the grid is refined where the maximum lies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from audit import checks
from audit.accounting import DominatingPair, GaussianMechanism, Mechanism, solve_epsilon
from audit.accounting.pairs import GaussianPair
from audit.errors import InvalidInput, NotApplicable
from audit.numerics import PROFILE_ACCURACY, FloatArray
from audit.protocols import BudgetSchedule, Protocol
from audit.upper_bounds.composed import scheduled_runs, together
from audit.upper_bounds.registry import BoundValue, bound

_POINTS = 200
"""Losses on the grid of one step; three times as many change epsilon by a relative 1e-6."""
_GRADING = 8.0
"""A refined grid is e^8 = 3,000 times as dense near the maximum as the first grid."""
_REFINEMENTS = 2
"""Times that the grids are refined where the maximum lies."""
_NEGLIGIBLE = 1e-7
"""Share of delta that losses beyond the grid may have; they count as a full leak."""
_SMALLEST_MU, _LARGEST_MU = 1e-4, 25.0
"""Outside this range, e^loss or its distance from 1 is inaccurate in double precision."""


def until_accepted(steps: Sequence[float], delta: float) -> float:
    """Cost of a schedule of budgets mu: exact up to numerical error, which only raises it."""
    pairs, reach = _schedule(steps, delta)
    return _smallest_epsilon(pairs, reach, delta, released=True)


def until_accepted_ex_post(steps: Sequence[float], delta: float) -> tuple[float, ...]:
    """The epsilon of each step; the step of index i is exact for its share delta / k."""
    steps = checks.items("steps", steps, "values of mu")
    share = checks.interval("delta", delta, 0.0, 1.0) / max(len(steps), 1)
    pairs, reach = _schedule(steps, share)
    return tuple(
        _smallest_epsilon(pairs[: number + 1], reach, share, released=False)
        for number in range(len(pairs))
    )


@bound(
    "first-accepted",
    100,
    "exact cost of a schedule of Gaussian budgets until a run is accepted",
    about=("a Gaussian base, such as full-batch DP-SGD",),
    protocol=BudgetSchedule,
    title=r"$\varepsilon_U$ first accepted (any score)",
)
def first_accepted(base: Mechanism, protocol: BudgetSchedule, delta: float) -> BoundValue:
    """The cost of releasing the first accepted run and its step.

    Example:
        >>> schedule = BudgetSchedule((4, 2, 1))
        >>> round(first_accepted(GaussianMechanism(1.0), schedule, 1e-5).epsilon, 3)
        4.838
    """
    budgets = _gaussian_budgets(scheduled_runs(base, protocol))
    if budgets is None:
        raise NotApplicable("base must be Gaussian, such as full-batch DP-SGD")
    return BoundValue(until_accepted(budgets, delta))


def schedule_ex_post(base: Mechanism, protocol: Protocol, delta: float) -> tuple[float, ...]:
    """Ex-post cost of a schedule: one epsilon for each step at which it can end.

    With the results eps_1, ..., eps_k, every event E of released models (with their steps) has
    P(E) <= sum_i e^eps_i Q(E and the schedule ends at step i) + delta on neighbouring data sets.
    Every step gets the same share delta / k. The epsilon of a step is that of the composition of
    the runs up to it; for Gaussian steps it is the exact value for this share, if smaller. This is
    not an (epsilon, delta)-DP guarantee, because the epsilon depends on the outcome.

    Args:
        base: one run, whose noise the schedule scales.
        protocol: the schedule.
        delta: in (0, 1).

    Raises:
        InvalidInput: the protocol is not a schedule.
        NotApplicable: the noise of the base is not a parameter.

    Example:
        >>> found = schedule_ex_post(GaussianMechanism(1.0), BudgetSchedule((4, 2, 1)), 1e-5)
        >>> [round(one, 2) for one in found]
        [0.99, 2.31, 5.12]
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    if not isinstance(protocol, BudgetSchedule):
        raise InvalidInput(f"protocol must be a schedule for an ex-post epsilon, got {protocol}")
    runs = scheduled_runs(base, protocol)
    share = delta / len(runs)
    epsilons = [together(runs[: number + 1]).epsilon(share) for number in range(len(runs))]
    budgets = _gaussian_budgets(runs)
    if budgets is not None:
        epsilons = list(map(min, epsilons, until_accepted_ex_post(budgets, delta)))
    return tuple(epsilons)


def _gaussian_budgets(runs: Sequence[Mechanism]) -> list[float] | None:
    """mu of every run; None if one of them is not Gaussian."""
    budgets = [run.gaussian_mu for run in runs if run.gaussian_mu is not None]
    return budgets if len(budgets) == len(runs) else None


def _schedule(steps: Sequence[float], delta: float) -> tuple[list[GaussianPair], float]:
    """The pair of each step, and a loss that is negligible in every remaining part."""
    delta = checks.interval("delta", delta, 0.0, 1.0)
    budgets = [
        checks.interval("mu of steps", mu, _SMALLEST_MU, _LARGEST_MU)
        for mu in checks.items("steps", steps, "values of mu")
    ]
    if not budgets:
        raise InvalidInput("steps must contain at least one mu, got none")
    together = checks.interval(
        "sqrt(sum of mu^2)", float(np.linalg.norm(budgets)), 0.0, _LARGEST_MU
    )
    reach = GaussianMechanism(together).epsilon(_NEGLIGIBLE * delta / len(budgets))
    return [GaussianPair(mu) for mu in budgets], reach


@dataclass(frozen=True)
class _Events:
    """Events of the remaining steps, on or outside their trade-off curve."""

    p: FloatArray  # P-probabilities [n]
    q: FloatArray  # Q-probabilities [n]
    p_rest: FloatArray  # 1 - p, without cancellation
    q_rest: FloatArray  # 1 - q, without cancellation

    @classmethod
    def around(cls, losses: FloatArray, profile: FloatArray, mirrored: FloatArray) -> "_Events":
        """A polygon around the curve of all events, from profiles [n] at losses [n]."""
        p, q = _chords(losses, profile)
        q_rest, p_rest = _chords(losses, mirrored)
        return cls(
            np.append(p, 1.0 - p_rest),
            np.append(q, 1.0 - q_rest),
            np.append(1.0 - p, p_rest),
            np.append(1.0 - q, q_rest),
        )

    @property
    def mirrored(self) -> "_Events":
        return _Events(self.q, self.p, self.q_rest, self.p_rest)


def _chords(losses: FloatArray, profile: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Chords p - theta q of a convex profile of theta = e^loss; constant beyond the last loss."""
    theta = np.exp(losses)
    q = np.append(-np.diff(profile) / np.diff(theta), 0.0)
    return np.minimum(profile + theta * q, 1.0), q


def _weighted(pair: DominatingPair, loss: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    """p H(e^loss q / p) [m, n], for losses [m] and weights [n]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(p > 0.0, np.log(q) - np.log(p), 0.0)
    return p * pair.profile(loss[:, None] + shift)


def _values(
    pair: DominatingPair, losses: FloatArray, later: _Events, *, released: bool, is_mirror: bool
) -> FloatArray:
    """sup P(E) - e^loss Q(E) from a step on [m, n], for losses [m] and each later event [n].

    The pair of the step is its own mirror image. If an accepted model of this step is not released,
    the procedure ends there without an output, which belongs to no event, but to its complement.
    `is_mirror` exchanges P and Q.
    """
    side = later.mirrored if is_mirror else later
    values = _weighted(pair, losses, side.p, side.q)
    if released:
        return values + _weighted(pair, losses, side.p_rest, side.q_rest)
    if is_mirror:
        return values + side.p_rest - np.exp(losses)[:, None] * side.q_rest
    return values


def _smallest_epsilon(
    pairs: Sequence[DominatingPair], reach: float, delta: float, *, released: bool
) -> float:
    """The smallest epsilon at delta, rounded up, of a schedule of self-mirrored pairs.

    `reach` is the largest loss on the grids. If `released`, the accepted models of all steps are
    released, otherwise those of the last step alone.
    """
    # Relative errors add over the steps, because every V_i is at most proportional to V_{i+1}.
    margin = (1.0 + PROFILE_ACCURACY) ** len(pairs)
    grids = [np.linspace(0.0, reach, _POINTS) for _ in pairs]
    best = np.inf
    for refinement in range(_REFINEMENTS + 1):
        remaining = _backward(pairs, grids, released)

        def profile(epsilon: float, later: Sequence[_Events] = remaining) -> float:
            return margin * _top(pairs, later, epsilon, released)

        best = min(best, solve_epsilon(profile, delta))
        if len(pairs) == 1:
            break
        if refinement < _REFINEMENTS:
            centres = _losses_at_maximum(pairs, grids, remaining, best, released)
            grids = [_graded(reach, centre) for centre in centres]
    return float(best)


def _backward(
    pairs: Sequence[DominatingPair], grids: Sequence[FloatArray], released: bool
) -> list[_Events]:
    """The events of the steps after each step but the last, by backward induction."""
    # In the last step it is best to accept every output (end of the proof of proposition 9).
    values = mirrored = pairs[-1].profile(grids[-1])
    remaining = [_Events.around(grids[-1], values, mirrored)]
    for pair, grid in zip(pairs[-2:0:-1], grids[-2:0:-1], strict=True):
        values, mirrored = (
            _values(pair, grid, remaining[0], released=released, is_mirror=mirror).max(axis=1)
            for mirror in (False, True)
        )
        remaining.insert(0, _Events.around(grid, values, mirrored))
    return remaining


def _top(
    pairs: Sequence[DominatingPair], remaining: Sequence[_Events], epsilon: float, released: bool
) -> float:
    """V_1(1, e^epsilon)."""
    at = np.array([epsilon])
    if len(pairs) == 1:
        return float(pairs[0].profile(at)[0])
    return float(_values(pairs[0], at, remaining[0], released=released, is_mirror=False).max())


def _losses_at_maximum(
    pairs: Sequence[DominatingPair],
    grids: Sequence[FloatArray],
    remaining: Sequence[_Events],
    epsilon: float,
    released: bool,
) -> list[float]:
    """The absolute loss at which the optimal rules for epsilon enter each step."""
    losses = [epsilon]
    is_mirror = False
    for pair, grid, later in zip(pairs, grids[1:], remaining, strict=False):
        at = np.array(losses[-1:])
        vertex = int(
            _values(pair, at, later, released=released, is_mirror=is_mirror).argmax(axis=1)[0]
        )
        # The vertices of the profile come first, then those of its mirror image.
        is_mirror = vertex >= len(grid)
        losses.append(float(grid[vertex % len(grid)]))
    return losses


def _graded(reach: float, centre: float) -> FloatArray:
    """Losses from 0 to `reach` with a spacing that grows with the distance from `centre`."""
    unit = reach * np.exp(-_GRADING)
    ends = np.arcsinh(-centre / unit), np.arcsinh((reach - centre) / unit)
    inner = centre + unit * np.sinh(np.linspace(ends[0], ends[1], _POINTS))
    return np.unique(np.concatenate([[0.0], np.clip(inner[1:-1], 0.0, reach), [reach]]))

r"""Budgets for tunings in which earlier outputs decide how much more is spent.

A composition theorem needs the number of runs and the budget of each before the first run. A
privacy filter does not: its cap is fixed in advance, every run is charged before it starts, and a
run that would exceed the cap is refused. All runs together then keep the cap, even if each decision
depends on earlier outputs. There are three filters, for one neighbouring pair in either direction:

- Gaussian runs: if the sum of mu_i^2 is at most mu^2, the runs together are mu-Gaussian DP (Smith &
  Thakurta 2022). The privacy losses are a Brownian motion with drift, observed at the times mu_1^2,
  mu_1^2 + mu_2^2, and so on. For any adaptive choice of the times, the observations are a
  post-processing of N(0, 1) against N(mu, 1).
- Any runs: at one Renyi order alpha that was fixed in advance, if the sum of the divergences is at
  most B, the divergence of all runs together is at most B (Feldman & Zrnic 2021; Lecuyer 2021). B
  is chosen so that it converts to the cap.
- Runs from a list that was fixed in advance: earlier outputs may decide which of them run, in which
  order, and when to stop. Run i is a post-processing of its own dominating pair and of the earlier
  outputs, so all runs together are a post-processing of the product of all pairs: the cost is that
  of the composition of the list. Steps of one DP-SGD (same noise, rate and neighbours) may be
  divided among runs in any way, and so may the mu_i^2 of Gaussian runs.

Without a cap, an odometer states what was spent (Rogers et al. 2016; Whitehouse et al. 2023). By
Ville's inequality, the privacy loss never exceeds its reading with probability 1 - delta over the
outputs, however many runs follow. The reading is not (epsilon, delta)-DP.
"""

import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks
from audit.accounting.calibration import calibrate_mu
from audit.accounting.combinations import Composition, group_size, kinds, relations
from audit.accounting.conversion import epsilon_of_order
from audit.accounting.dpsgd import DpSgd
from audit.accounting.formats import mechanism_to_dict
from audit.accounting.mechanism import GaussianMechanism, Mechanism
from audit.errors import AuditError, InvalidInput
from audit.numerics import (
    COARSE_ORDERS,
    TINY,
    FloatArray,
    best_alpha,
    format_exact,
    format_rounded,
    memoize,
    safe_root,
)

_ROUNDING = 1e-14
"""Relative excess of a sum of squares that rounding may cause; the limit itself is less exact."""


class BudgetExceeded(AuditError, ValueError):
    """A run would exceed the cap. Nothing was spent.

    Example:
        >>> from audit.tuning import Budget
        >>> try:
        ...     Budget(1.0).spend(GaussianMechanism(2.0))
        ... except BudgetExceeded:
        ...     print("a smaller run may still fit")
        a smaller run may still fit
    """


Spent = list[tuple[Mechanism, int]]
"""Mechanisms that were charged, each with its number of runs."""


@dataclass(frozen=True)
class Filter:
    """A privacy filter: the share of the cap that mechanisms spend, and its source."""

    share: Callable[[Spent], float]
    source: str


def _filter_of_list(cap: Mechanism, hint: str = "") -> Filter:
    """Filter for parts of the composition `cap`; `hint` extends the error for other mechanisms."""
    limits = _amounts_by_kind([(cap, 1)])

    def share(spent: Spent) -> float:
        largest_share = 0.0
        for kind, (amount, example) in _amounts_by_kind(spent).items():
            if kind not in limits:
                allowed = "; ".join(mechanism.description for _, mechanism in limits.values())
                raise InvalidInput(
                    f"mechanism must be a part of the cap ({allowed}), got "
                    f"{example.description}{hint}"
                )
            # Sums of squares are rounded; steps and numbers of runs are whole.
            slack = 1.0 + _ROUNDING if kind == _GAUSSIAN else 1.0
            # Each kind has its own limit: all runs are a post-processing of the product of the
            # listed pairs.
            largest_share = max(largest_share, amount / (limits[kind][0] * slack))
        return largest_share

    if cap.gaussian_mu is not None:
        return Filter(share, "privacy filter: sums of mu^2 (Smith & Thakurta 2022)")
    return Filter(share, "composition at the cap")


_GAUSSIAN = "mu^2"


def _amounts_by_kind(
    spent: Iterable[tuple[Mechanism, int]],
) -> dict[Hashable, tuple[float, Mechanism]]:
    """Spent amounts by kind: mu^2, the steps of each DP-SGD, or runs; each with an example."""
    squares: list[float] = []
    amounts: dict[Hashable, tuple[float, Mechanism]] = {}
    for mechanism, times in spent:
        for member in _parts(mechanism):
            kind: Hashable
            amount = times
            if member.gaussian_mu is not None:
                squares.append(times * member.gaussian_mu**2)
                kind, amount = _GAUSSIAN, 0
            elif isinstance(member, DpSgd):
                kind = (
                    member.noise_multiplier,
                    member.sampling_rate,
                    member.neighbours,
                    member.group_size,
                )
                amount = times * member.steps
            else:
                kind = _name(member)
            amounts[kind] = amounts.get(kind, (0, member))[0] + amount, member
    if squares:
        amounts[_GAUSSIAN] = math.fsum(squares), amounts[_GAUSSIAN][1]
    return amounts


def _parts(mechanism: Mechanism) -> list[Mechanism]:
    if isinstance(mechanism, Composition):
        return [member for component in mechanism.parts for member in _parts(component)]
    return [mechanism]


def _name(mechanism: Mechanism) -> Hashable:
    """A key that equal mechanisms share, even if one of them was read from a file."""
    try:
        return json.dumps(mechanism_to_dict(mechanism))
    except ValueError:  # a user's own class
        return mechanism


def _filter_of_order(first: Mechanism, epsilon: float, delta: float) -> Filter:
    """Filter for any runs, at the Renyi order that allows the most runs like `first`."""

    def runs_lost(order: Any) -> Any:
        """Minus the number of runs that the order allows."""
        limits = _limits(order, epsilon, delta)
        cost = np.maximum(first.renyi(order), TINY)
        return np.where((limits > 0.0) & np.isfinite(cost), -limits / cost, 0.0)

    # The order depends on the plan alone and not on any output, as the filter requires.
    order, lost = best_alpha(runs_lost, refined=COARSE_ORDERS)
    if lost > -1.0:
        raise BudgetExceeded(
            f"budget must allow one run, got epsilon {format_rounded(epsilon, up=False)} at "
            f"delta = {format_exact(delta)}, which allows "
            f"{format_rounded(max(-lost, 0.0), up=False, digits=2)} runs of {first.description}; "
            "nothing is spent"
        )
    limit = float(_limits(order, epsilon, delta))

    def share(spent: Spent) -> float:
        divergences = [
            times * float(mechanism.renyi(np.array([order]))[0]) for mechanism, times in spent
        ]
        return math.fsum(divergences) / limit

    words = f"order {format_rounded(order, up=True, digits=4)} (Feldman & Zrnic 2021)"
    return Filter(share, f"privacy filter: sums of Renyi divergences, {words}")


def _limits(order: ArrayLike, epsilon: float, delta: float) -> FloatArray:
    """The divergences [n] that convert to epsilon at orders [n], reduced by a rounding margin."""
    limits = epsilon - epsilon_of_order(0.0, order, delta)
    return np.asarray(limits - 1e-12 * np.abs(limits))


@memoize(64)
def filter_for(
    cap: float | Mechanism, delta: float, first: Mechanism, only_gaussian: bool
) -> Filter:
    """The filter of a cap: the composition of a list, or an epsilon for runs like `first`."""
    if isinstance(cap, Mechanism):
        return _filter_of_list(cap)
    if not only_gaussian:
        return _filter_of_order(first, cap, delta)
    mu = calibrate_mu(cap, delta, "exact")
    hint = "; for Gaussian and other runs together, pass expected= a run that is not Gaussian"
    return _filter_of_list(GaussianMechanism(mu), hint)


def epsilon_of_cap(cap: float | Mechanism, delta: float) -> float:
    """Epsilon of all runs together under a cap: an epsilon, or a mechanism that bounds them.

    Raises:
        InvalidInput: the cap is neither a mechanism nor a number in (0, 1e6).
    """
    if isinstance(cap, Mechanism):
        # Rounding may let sums of squares exceed the cap, so its epsilon is rounded up.
        return cap.epsilon(delta) * (1.0 + 1e-9)
    return checks.interval("cap", cap, 0.0, 1e6)


def spent_with(spent: Spent, mechanism: Mechanism, times: int) -> Spent:
    """The spent mechanisms with one more; equal mechanisms are counted together."""
    updated = list(spent)
    for place, (mechanism_spent, before) in enumerate(updated):
        if mechanism_spent is mechanism or mechanism_spent == mechanism:
            updated[place] = mechanism_spent, before + times
            return updated
    return [*updated, (mechanism, times)]


def check_protected(name: str, mechanisms: Collection[Mechanism]) -> None:
    """Refuses mechanisms of several neighbouring relations or group sizes.

    The total cost of a run that protects groups and a run that protects single records would hold
    for single records only.
    """
    stated_relations = [(mechanism, relations(mechanism)) for mechanism in mechanisms]
    stated = sorted(frozenset().union(*(names for _, names in stated_relations)))
    if len(stated) > 1:
        raise InvalidInput(f"{name} must have one neighbouring relation, got {stated}")
    sizes = sorted({group_size(mechanism) for mechanism, names in stated_relations if names})
    if len(sizes) > 1:
        raise InvalidInput(f"{name} must have one group_size, got {' and '.join(map(str, sizes))}")


_ORDERS = 1.0 + np.geomspace(0.05, 5e4, 25)


def odometer(runs: Iterable[Mechanism], delta: float = 1e-5) -> float:
    """The privacy loss that runs chosen adaptively exceed with probability at most delta.

    For each order alpha, exp((alpha - 1) (loss - sum of the divergences)) is a supermartingale
    under the runs' own distribution, and so is the mean over 25 orders that are fixed beforehand.
    By Ville's inequality, the probability that it ever exceeds 1/delta is at most delta (Whitehouse
    et al. 2023). This holds in either direction of a pair of neighbours.

    Args:
        runs: the mechanisms that were run, each charged at its full divergence.
        delta: in (0, 1).

    Returns:
        The reading, rounded up; infinite if a run has no finite Renyi divergence. It is not an
        (epsilon, delta)-DP guarantee, because it depends on the runs and so on their outputs.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> runs = [GaussianMechanism(0.1)] * 30
        >>> round(odometer(runs), 3), round(GaussianMechanism(0.1 * 30**0.5).epsilon(1e-5), 3)
        (3.136, 2.207)
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    spent: FloatArray = np.zeros_like(_ORDERS)
    for mechanism, times in kinds(list(runs)):
        spent = spent + times * mechanism.renyi(_ORDERS)
    usable = np.isfinite(spent)
    if not usable.any():
        return math.inf
    order_less_one, spent = _ORDERS[usable] - 1.0, spent[usable]
    threshold = math.log(len(_ORDERS) / delta)

    def left(loss: float) -> float:
        """At most 0 where the mean of the supermartingales has reached 1/delta."""
        return threshold - float(special.logsumexp(order_less_one * (loss - spent)))

    upper_limit = float(np.min(spent + threshold / order_less_one)) * (1.0 + 1e-9) + 1e-9
    return safe_root(left, upper_limit, 0.0, 1e-9, 1e-9)

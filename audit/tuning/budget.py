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

import contextlib
import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit import checks, processes
from audit.accounting import (
    Composition,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    calibrate_mu,
    group_size,
    mechanism_from_dict,
    mechanism_to_dict,
    relations,
)
from audit.accounting.combinations import kinds
from audit.accounting.conversion import epsilon_of_order
from audit.arrays import FloatArray
from audit.errors import AuditError, InvalidInput
from audit.numerics import (
    COARSE_ORDERS,
    TINY,
    best_alpha,
    format_exact,
    format_rounded,
    last_integer,
    memoize,
    safe_root,
)
from audit.tuning.journal import write_durably

_ROUNDING = 1e-14
"""Relative excess of a sum of squares that rounding may cause; the limit itself is less exact."""

_MAX_TIMES = 10**12


class BudgetExceeded(AuditError, ValueError):
    """A run would exceed the cap. Nothing was spent.

    Example:
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
        most = 0.0
        for kind, (amount, example) in _amounts_by_kind(spent).items():
            if kind not in limits:
                allowed = "; ".join(one.description for _, one in limits.values())
                raise InvalidInput(
                    f"mechanism must be a part of the cap ({allowed}), got "
                    f"{example.description}{hint}"
                )
            # Sums of squares are rounded; steps and numbers of runs are whole.
            slack = 1.0 + _ROUNDING if kind == _GAUSSIAN else 1.0
            most = max(most, amount / (limits[kind][0] * slack))
        return most

    if cap.gaussian_mu is not None:
        return Filter(share, "privacy filter: sums of mu^2 (Smith & Thakurta 2022)")
    return Filter(share, "composition at the cap")


_GAUSSIAN = "mu^2"


def _amounts_by_kind(
    several: Iterable[tuple[Mechanism, int]],
) -> dict[Hashable, tuple[float, Mechanism]]:
    """Spent amounts by kind: mu^2, the steps of each DP-SGD, or runs; each with an example."""
    squares: list[float] = []
    found: dict[Hashable, tuple[float, Mechanism]] = {}
    for whole, times in several:
        for one in _parts(whole):
            kind: Hashable
            amount = times
            if one.gaussian_mu is not None:
                squares.append(times * one.gaussian_mu**2)
                kind, amount = _GAUSSIAN, 0
            elif isinstance(one, DpSgd):
                kind = one.noise_multiplier, one.sampling_rate, one.neighbours, one.group_size
                amount = times * one.steps
            else:
                kind = _name(one)
            found[kind] = found.get(kind, (0, one))[0] + amount, one
    if squares:
        found[_GAUSSIAN] = math.fsum(squares), found[_GAUSSIAN][1]
    return found


def _parts(mechanism: Mechanism) -> list[Mechanism]:
    if isinstance(mechanism, Composition):
        return [one for part in mechanism.parts for one in _parts(part)]
    return [mechanism]


def _name(one: Mechanism) -> Hashable:
    """A key that equal mechanisms share, even if one of them was read from a file."""
    try:
        return json.dumps(mechanism_to_dict(one))
    except ValueError:  # a user's own class
        return one


def _filter_of_order(first: Mechanism, epsilon: float, delta: float) -> Filter:
    """Filter for any runs, at the Renyi order that allows the most runs like `first`."""

    def runs_lost(order: Any) -> Any:
        """Minus the number of runs that the order allows."""
        limits = _limits(order, epsilon, delta)
        cost = np.maximum(first.renyi(order), TINY)
        return np.where((limits > 0.0) & np.isfinite(cost), -limits / cost, 0.0)

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
        each = [times * float(one.renyi(np.array([order]))[0]) for one, times in spent]
        return math.fsum(each) / limit

    words = f"order {format_rounded(order, up=True, digits=4)} (Feldman & Zrnic 2021)"
    return Filter(share, f"privacy filter: sums of Renyi divergences, {words}")


def _limits(order: ArrayLike, epsilon: float, delta: float) -> FloatArray:
    """The divergences [n] that convert to epsilon at orders [n], reduced by a rounding margin."""
    found = epsilon - epsilon_of_order(0.0, order, delta)
    return np.asarray(found - 1e-12 * np.abs(found))


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


class Budget:
    """A cap on the privacy cost of all runs together, which adaptive tuning cannot exceed.

    Use it for tuning by hand, with TPE, or with any other method that depends on earlier runs:
    charge each run before it starts. The number of runs, their noise and their steps may depend on
    all earlier outputs. All runs together, released or not, are (epsilon, delta)-DP.

    The first mechanism, which is chosen before any output is seen, decides how runs are counted:
    Gaussian runs (full batches) by their mu^2, all others by Renyi divergences at the order that
    allows the most runs like the first.

    Args:
        cap: epsilon of all runs together; or a mechanism, such as `DpSgd` with the total number of
            steps, or the `Composition` of all allowed runs. Runs then spend parts of this mechanism
            and keep its exact epsilon, which allows more runs if all have the same noise.
        delta: in (0, 1).
        expected: a typical run, which decides instead of the first mechanism how runs are counted:
            pass a sampled DP-SGD if the first run is Gaussian and later runs are not.
        file: a json file with the runs so far. It is written before `spend` returns, so a tuning
            that was killed resumes with the remaining budget. Its cap cannot be changed.

    Raises:
        InvalidInput: an argument is out of its range, or the file belongs to another budget.

    Example:
        >>> from audit.accounting import DpSgd
        >>> budget = Budget(3.0, delta=1e-5)
        >>> run = DpSgd(noise_multiplier=2.0, steps=500, sampling_rate=0.02)
        >>> budget.runs_left(run)
        7
        >>> budget.spend(run)
        >>> round(budget.remaining, 3), budget.runs_left(run)
        (0.869, 6)
    """

    def __init__(
        self,
        cap: float | Mechanism,
        delta: float = 1e-5,
        expected: Mechanism | None = None,
        file: str | Path | None = None,
    ) -> None:
        self._delta = checks.interval("delta", delta, 0.0, 1.0)
        if expected is not None and not isinstance(expected, Mechanism):
            raise InvalidInput(f"expected must be a mechanism, got {checks.one_line(expected)}")
        if isinstance(cap, Mechanism):
            if expected is not None:
                raise InvalidInput("expected must not be given if the cap is a mechanism")
            self._cap: Mechanism | None = cap
            # Rounding may let sums of squares exceed the cap, so its epsilon is rounded up.
            self._epsilon = cap.epsilon(self._delta) * (1.0 + 1e-9)
        else:
            self._cap = None
            self._epsilon = checks.interval("cap", cap, 0.0, 1e6)
        self._spent: Spent = []
        self._first = expected
        self._file = None if file is None else Path(file)
        if self._file is not None:
            with _locked(self._file):
                if self._file.exists():
                    self._read(self._file)
                else:
                    self._write(self._file, [])

    @property
    def epsilon(self) -> float:
        """Epsilon of all runs together, however many there will be."""
        return self._epsilon

    @property
    def delta(self) -> float:
        """Delta of all runs together."""
        return self._delta

    @property
    def spent(self) -> tuple[tuple[Mechanism, int], ...]:
        """The mechanisms that were charged, each with its number of runs."""
        return tuple(self._spent)

    @property
    def remaining(self) -> float:
        """The share of the cap that is left, from 1 down to 0."""
        if not self._spent:
            return 1.0
        return max(1.0 - self._filter(self._spent[0][0]).share(self._spent), 0.0)

    def fits(self, mechanism: Mechanism, times: int = 1) -> bool:
        """Whether `spend` would accept the mechanism.

        Raises:
            InvalidInput: this budget does not count such a mechanism.
        """
        try:
            self._spent_after(mechanism, times)
        except BudgetExceeded:
            return False
        return True

    def runs_left(self, mechanism: Mechanism) -> int:
        """Number of further runs of a mechanism that fit, at most 10^12.

        Raises:
            InvalidInput: this budget does not count such a mechanism.
        """
        return int(last_integer(lambda times: self.fits(mechanism, int(times)), 0, _MAX_TIMES + 1))

    def spend(self, mechanism: Mechanism, times: int = 1) -> None:
        """Charges a run before it starts.

        Args:
            mechanism: the mechanism of the run, with at most its noise, and at least its sampling
                rate and number of steps.
            times: number of such runs.

        Raises:
            BudgetExceeded: the cap would be exceeded. Nothing is spent; a smaller run may still
                fit.
            InvalidInput: this budget does not count such a mechanism.
        """
        if self._file is None:
            self._spent = self._spent_after(mechanism, times)
            return
        with _locked(self._file):
            self._read(self._file)  # another process may have spent meanwhile
            after = self._spent_after(mechanism, times)
            self._write(self._file, after)
            self._spent = after

    def _spent_after(self, mechanism: Mechanism, times: int) -> Spent:
        """The spent mechanisms after one more is charged."""
        if not isinstance(mechanism, Mechanism):
            raise InvalidInput(f"mechanism must be a mechanism, got {checks.one_line(mechanism)}")
        times = checks.integer("times", times, 1, _MAX_TIMES)
        after = _with(self._spent, mechanism, times)
        check_protected("budget", [one for one, _ in after])
        share = self._filter(after[0][0]).share(after)
        if not share <= 1.0:
            runs = "run" if times == 1 else f"{times} runs"
            total = format_rounded(share, up=True, digits=3)
            left = format_rounded(self.remaining, up=False, digits=3)
            raise BudgetExceeded(
                f"budget must cover the {runs}, got {total} of the cap in total with "
                f"{mechanism.description}; {left} of the cap is left, and nothing is spent"
            )
        return after

    def _filter(self, first: Mechanism) -> Filter:
        """The filter of this budget, which is fixed before any output is seen."""
        like = self._first or first
        cap = self._epsilon if self._cap is None else self._cap
        return filter_for(cap, self._delta, like, like.gaussian_mu is not None)

    def _settings(self) -> dict[str, Any]:
        return {
            "cap": self._epsilon if self._cap is None else mechanism_to_dict(self._cap),
            "delta": self._delta,
            "expected": None if self._first is None else mechanism_to_dict(self._first),
        }

    def _read(self, file: Path) -> None:
        try:
            kept = json.loads(checks.read_text(file))
            settings = {name: kept[name] for name in ("cap", "delta", "expected")}
            spent = [
                (
                    mechanism_from_dict(one["mechanism"]),
                    checks.integer("times", one["times"], 1, _MAX_TIMES),
                )
                for one in kept["spent"]
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"file must hold a budget, got {str(file)!r}, which cannot be read as one: "
                f"{checks.one_line(error)}"
            ) from error
        mine = json.loads(json.dumps(self._settings()))
        if settings != mine:
            different = next(name for name in mine if settings[name] != mine[name])
            raise InvalidInput(
                f"{different} must be that of the budget in {str(file)!r}, "
                f"{checks.one_line(settings[different])}, got {checks.one_line(mine[different])}: "
                "a cap cannot be changed later"
            )
        self._spent = spent

    def _write(self, file: Path, spent: Spent) -> None:
        plain = [{"mechanism": mechanism_to_dict(one), "times": times} for one, times in spent]
        write_durably(file, json.dumps({**self._settings(), "spent": plain}, indent=1))


def _with(spent: Spent, mechanism: Mechanism, times: int) -> Spent:
    """The spent mechanisms with one more; equal mechanisms are counted together."""
    found = list(spent)
    for place, (one, before) in enumerate(found):
        if one is mechanism or one == mechanism:
            found[place] = one, before + times
            return found
    return [*found, (mechanism, times)]


def check_protected(name: str, mechanisms: Collection[Mechanism]) -> None:
    """Refuses mechanisms of several neighbouring relations or group sizes.

    The total cost of a run that protects groups and a run that protects single records would hold
    for single records only.
    """
    parts = [(one, relations(one)) for one in mechanisms]
    stated = sorted(frozenset().union(*(names for _, names in parts)))
    if len(stated) > 1:
        raise InvalidInput(f"{name} must have one neighbouring relation, got {stated}")
    sizes = sorted({group_size(one) for one, names in parts if names})
    if len(sizes) > 1:
        raise InvalidInput(f"{name} must have one group_size, got {' and '.join(map(str, sizes))}")


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Locks a budget's file against other processes."""
    with contextlib.ExitStack() as stack:
        try:
            lock = file.with_name(file.name + ".lock")
            stack.enter_context(processes.locked(lock, wait=True))
        except OSError as error:
            raise InvalidInput(
                f"file must be a path that can be written, got {str(file)!r}"
            ) from error
        yield


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
    for one, times in kinds(list(runs)):
        spent = spent + times * one.renyi(_ORDERS)
    usable = np.isfinite(spent)
    if not usable.any():
        return math.inf
    rest, spent = _ORDERS[usable] - 1.0, spent[usable]
    threshold = math.log(len(_ORDERS) / delta)

    def left(loss: float) -> float:
        """At most 0 where the mean of the supermartingales has reached 1/delta."""
        return threshold - float(special.logsumexp(rest * (loss - spent)))

    most = float(np.min(spent + threshold / rest)) * (1.0 + 1e-9) + 1e-9
    return safe_root(left, most, 0.0, 1e-9, 1e-9)

"""The costs of a tuning: all upper bounds, the smallest, a quick one, and the cost as a sentence.

`TuningCosts` is the only place that chooses among bounds. Commands, studies, certificates, finished
tunings and the searches for noise use it. Protocols are compared at the same expected number of
runs. A `CostStatement` states a cost with the premises of a run and of the protocol. A `BaseReport`
on a single run of the base mechanism is shown next to the bounds on the tuning.
"""

import math
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from audit import checks
from audit.accounting import (
    ACCOUNTINGS,
    NEIGHBOURS,
    DeltaUnreachable,
    DpSgd,
    Mechanism,
    group_size,
    parse_mechanism,
    relations,
)
from audit.accounting.combinations import kinds
from audit.claims import Claim, Kind
from audit.numerics import format_exact, format_rounded, memoize
from audit.protocols import Case, Protocol, all_protocols
from audit.repetitions import Fixed
from audit.upper_bounds.registry import (
    FAILED,
    AtOtherDelta,
    BoundValue,
    Entry,
    ProtocolLike,
    UpperBound,
    entries,
    parsed_arguments,
    row,
)

# Relative accuracy of an attained epsilon if the losses of many steps are composed on a grid.
_COMPOSED_ACCURACY = 1e-6
# Relative distance of a bound from an attained epsilon below which no other bound is computed.
_EXACT = 1.1e-5
_MAX_REMEMBERED = 32  # tunings whose bounds are remembered; each bound may take seconds
MAX_COMPARED = (2.0, 1e6)
"""The smallest and the largest number of runs that can be compared."""

_MAX_KINDS = 2  # different runs that a sentence describes one by one

SCORES = "scores are made from outputs and public records alone"
"""The assumption about the score that every cost of a tuning makes."""

_POISSON = "batches are drawn by Poisson sampling (assumed; shuffled batches are not covered)"
_PUBLIC = "the divisor of each noisy sum may depend on the number of records, which is public"
_DIVISORS = {
    "add-remove": "the divisor of each noisy sum, the sampling rate and the number of steps do not "
    "depend on the number of records, which is private",
    "zero-out": _PUBLIC,
    "replace-one": _PUBLIC,
}


@dataclass(frozen=True)
class TuningCosts:
    """The upper bounds on one tuning, each computed when it is first asked for.

    Attributes:
        base: one run.
        protocol: the protocol.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> costs = costs_of(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5)
        >>> costs.smallest.name, costs.quick.name
        ('tight', 'region')
    """

    base: Mechanism
    protocol: Protocol
    delta: float
    _computed: dict[str, UpperBound] = field(default_factory=dict, repr=False, compare=False)

    @property
    def _entries(self) -> list[Entry]:
        return entries(type(self.protocol))

    def row(self, entry: Entry) -> UpperBound:
        """One bound, which has a reason if it does not apply."""
        if entry.name not in self._computed:
            self._computed[entry.name] = row(entry, self.base, self.protocol, self.delta)
        return self._computed[entry.name]

    @cached_property
    def rows(self) -> list[UpperBound]:
        """Every bound, the loosest kind first; special ones only where they apply."""
        rows = without_contradictions([self.row(entry) for entry in self._entries])
        return [
            bound
            for entry, bound in zip(self._entries, rows, strict=True)
            if bound.applies or not entry.is_special
        ]

    @property
    def attained(self) -> list[UpperBound]:
        """The values that some score is known to attain."""
        attacks = [entry for entry in self._entries if entry.claim.kind is Kind.ATTAINED]
        return [bound for bound in map(self.row, attacks) if bound.applies]

    @cached_property
    def smallest(self) -> UpperBound:
        """The smallest bound that holds for every score, with its statement.

        Raises:
            DeltaUnreachable: no bound reaches delta; the message gives the reason.
        """
        best = self.smallest_except()
        if best is None:
            raise self._unreachable()
        statement = statement_of_tuning(best.epsilon, self.delta, self.base, self.protocol)
        return replace(best, statement=str(statement))

    @cached_property
    def quick(self) -> UpperBound:
        """A fast bound for every score, at most slightly above the smallest.

        It is the smallest bound if the protocol has no quick bound, or if that does not apply.

        Raises:
            DeltaUnreachable: no bound reaches delta.
        """
        for entry in self._entries:
            if entry.is_quick and self.row(entry).applies:
                return self.row(entry)
        return self.smallest

    @cached_property
    def preview(self) -> float:
        """An upper bound on the cost for a first drawing, within about a tenth of a CPU second.

        It may be well above the smallest bound, and it is never below it.

        Raises:
            DeltaUnreachable: no bound reaches delta.
        """
        for entry in self._entries:
            if entry.preview is not None:
                faster = replace(entry, body=entry.preview)
                bound = faster.evaluate(self.base, self.protocol, self.delta)
                if bound.applies:
                    return bound.epsilon
        return self.quick.epsilon

    @cached_property
    def smallest_quickly(self) -> UpperBound:
        """An upper bound for every score, at most slightly above the smallest of the quick bounds.

        Bounds that were computed before count, too. Of the others, slow ones are left out, as are
        those that a quick test shows to be larger, and those with a quick value at other deltas
        have this value.

        Raises:
            DeltaUnreachable: no bound reaches delta.
        """
        valid = [entry for entry in self._entries if entry.claim.any_score]
        rows = [self._computed[entry.name] for entry in valid if entry.name in self._computed]
        so_far = smallest(self._without_contradictions(rows))
        for entry in valid:
            if entry.name in self._computed or entry.deferred:
                continue
            if so_far is None or not self._is_above(entry, so_far.epsilon):
                rows.append(self._quick_row(entry, self.delta))
        return smallest(self._without_contradictions(rows)) or self.smallest

    def _is_above(self, entry: Entry, epsilon: float) -> bool:
        """Whether a quick test shows that a bound does not gain over an epsilon."""
        return entry.is_above(epsilon, self.base, self.protocol, self.delta)

    def smallest_except(self, names: Collection[str] = ()) -> UpperBound | None:
        """The smallest bound for every score, without those of some names; None if none applies."""
        valid = [entry for entry in self._entries if entry.claim.any_score]
        valid = [entry for entry in valid if entry.name not in names]
        tried: dict[str, UpperBound] = {}
        for entry in sorted(reversed(valid), key=lambda entry: entry.deferred):  # sharpest first
            so_far = smallest(without_contradictions(list(tried.values())))
            if so_far is not None and self._is_above(entry, so_far.epsilon):
                continue
            bound = tried[entry.name] = self.row(entry)
            is_exact = bound.epsilon <= (1.0 + _EXACT) * bound.attains
            # In a random search, the simplest of equal bounds is named.
            if is_exact and self.protocol.search_repetitions is None:
                break
        rows = [tried[entry.name] for entry in valid if entry.name in tried]
        return smallest(self._without_contradictions(rows))

    def _without_contradictions(self, rows: list[UpperBound]) -> list[UpperBound]:
        """Some rows, checked against what is known to be attained, which may be among them."""
        # A bound may have found an attained epsilon itself.
        has_attained = any(bound.attains for bound in rows)
        return without_contradictions(rows if has_attained else rows + self.attained)

    def within(self, ratio: float, names: Sequence[str] = ()) -> list[UpperBound]:
        """The bounds for every score up to `ratio` times the smallest, the smallest first.

        Args:
            ratio: at least 1.
            names: the bounds to compute, all of which are returned; by default all bounds.

        Raises:
            InvalidInput: a name is not that of a bound for every score.
            DeltaUnreachable: no bound reaches delta.
        """
        usable = {entry.name: entry for entry in self._entries if entry.claim.any_score}
        wanted = [checks.one_of("bounds", name, usable) for name in names] or [*usable]
        rows = self._without_contradictions([self.row(usable[name]) for name in wanted])
        applying = [bound for bound in rows if bound.applies and bound.claim.any_score]
        if not applying:
            self.smallest  # noqa: B018  # raises the error that states the reason
            raise DeltaUnreachable(
                f"bounds must reach delta, got {', '.join(names)} at {self.delta!r}"
            )
        applying.sort(key=lambda bound: bound.epsilon)
        limit = math.inf if names else ratio * applying[0].epsilon
        return [bound for bound in applying if bound.epsilon <= limit]

    def quick_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """The bounds among some that are quick at other deltas."""
        slow = {
            entry.name for entry in self._entries if entry.deferred and entry.at_other_delta is None
        }
        return tuple(name for name in names if name not in slow)

    def epsilon_at(self, delta: float, names: Sequence[str]) -> float:
        """A quick upper bound on the cost at another delta, close to the smallest of some bounds.

        Args:
            delta: the other delta.
            names: names of bounds.

        Raises:
            DeltaUnreachable: none of these bounds reaches delta.
        """
        usable = {entry.name: entry for entry in self._entries}
        rows = [self._quick_row(usable[name], delta) for name in names]
        if not any(bound.attains for bound in rows):
            attacks = [entry for entry in self._entries if entry.claim.kind is Kind.ATTAINED]
            rows += [self._quick_row(entry, delta) for entry in attacks]
        best = smallest(without_contradictions(rows))
        if best is not None:
            return best.epsilon
        return costs_of(self.base, self.protocol, delta).within(1.0, names)[0].epsilon

    def _quick_row(self, entry: Entry, delta: float) -> UpperBound:
        """The quick value of a bound at another delta; the bound if it has no quick value."""
        if entry.at_other_delta is None:
            costs = self if delta == self.delta else costs_of(self.base, self.protocol, delta)
            return costs.row(entry)
        body = partial(_with_delta, entry.at_other_delta, self.delta)
        return row(replace(entry, body=body), self.base, self.protocol, delta)

    def _unreachable(self) -> DeltaUnreachable:
        """The error that states why no bound reaches delta."""
        general = [
            self.row(entry)
            for entry in self._entries
            if entry.claim.any_score and not entry.is_special
        ]
        if not general:
            return DeltaUnreachable(
                f"protocol must have a bound that holds for every score, got "
                f"{type(self.protocol).__name__} ({checks.one_line(self.protocol.spec)}), which "
                "has none: register one with audit.upper_bounds.bound and protocol="
                f"{type(self.protocol).__name__}"
            )
        # A bound that applies says which deltas it reaches; the others only why they do not apply.
        about_delta = {row.reason: row for row in general if row.reason.startswith("delta must")}
        reasons = [f"{row.name}: {row.reason}" for row in about_delta.values() or general[-1:]]
        return DeltaUnreachable(
            f"delta must be one that some bound for {self.protocol.spec} reaches, got "
            f"{checks.one_line(self.delta)} ({'; '.join(reasons)})"
        )


def costs_of(base: Mechanism, protocol: ProtocolLike, delta: float) -> TuningCosts:
    """The costs of a tuning, which are remembered for the last tunings asked for.

    Args:
        base: the base mechanism.
        protocol: the protocol, or the distribution of K of a random search; an object or text.
        delta: in (0, 1).

    Raises:
        InvalidInput: an argument is out of its range.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(costs_of(GaussianMechanism(0.24721), "fixed:2", 1e-5).quick.epsilon, 2)
        1.4
    """
    return _remembered(*parsed_arguments(base, protocol, delta))


def _with_delta(
    quick: AtOtherDelta, certified: float, base: Mechanism, protocol: Any, delta: float
) -> BoundValue:
    return quick(base, protocol, delta, certified)


_remembered = memoize(_MAX_REMEMBERED)(TuningCosts)


def all_upper_bounds(base: Mechanism, protocol: ProtocolLike, delta: float) -> list[UpperBound]:
    """Every bound for the protocol, the loosest kind first.

    Args:
        base: the base mechanism.
        protocol: the protocol, or the distribution of K of a random search; an object or text.
        delta: in (0, 1).

    Raises:
        InvalidInput: delta is not in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> rows = all_upper_bounds(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5)
        >>> [row.name for row in rows if row.epsilon < 1.45]
        ['reduced-renyi', 'reduced-exact', 'worst-order', 'region', 'tight']
    """
    return costs_of(base, protocol, delta).rows


def without_contradictions(rows: list[UpperBound]) -> list[UpperBound]:
    """The rows; a bound below an epsilon that some score attains is replaced by a reason.

    This happens only at extreme parameters, at which the computation of a bound fails numerically.
    """
    # No bound for every score can be below an epsilon that some score attains.
    attained = max((row.attains for row in rows), default=0.0)
    lower_limit = attained * (1.0 - _COMPOSED_ACCURACY)
    reason = (
        f"{FAILED}: the value is below {format_rounded(attained, up=False, digits=6)}, which an "
        "attack attains"
    )
    return [
        replace(row, epsilon=math.inf, reason=reason)
        if row.claim.any_score and row.epsilon < lower_limit
        else row
        for row in rows
    ]


def tuning_cost(base: Mechanism, protocol: ProtocolLike, delta: float) -> UpperBound:
    """The cost of a tuning: the smallest bound that holds for every score.

    Args:
        base: the base mechanism.
        protocol: the protocol, or the distribution of K of a random search; an object or text.
        delta: in (0, 1).

    Raises:
        DeltaUnreachable: no bound reaches delta; the message gives the reason.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> round(tuning_cost(GaussianMechanism(0.24721), "tnb:0,0.01", 1e-5).epsilon, 4)
        1.4488
    """
    return costs_of(base, protocol, delta).smallest


def smallest(rows: Sequence[UpperBound]) -> UpperBound | None:
    """The smallest of some bounds that holds for every score; None if there is none.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.upper_bounds import region
        >>> from audit.upper_bounds.published import renyi
        >>> rows = [bound(GaussianMechanism(0.25), "tnb:0,0.1", 1e-5) for bound in (renyi, region)]
        >>> smallest(rows).name
        'region'
    """
    valid = [
        (row.epsilon, place, row)
        for place, row in enumerate(rows)
        if row.applies and row.claim.any_score
    ]
    return min(valid)[2] if valid else None


@dataclass(frozen=True)
class ComparedProtocol:
    """The cost of one protocol.

    Attributes:
        title: the protocol in words.
        protocol: the protocol.
        epsilon: the smallest bound for any score; None if no bound reaches delta.
        bound: name of this bound, or the reason why there is none.
        expected_quantile: expected quantile of the best candidate; None except for random search.

    Example:
        >>> from audit.protocols import Grid
        >>> ComparedProtocol("a grid", Grid(10), 2.73, "grid-tight", None).epsilon
        2.73
    """

    title: str
    protocol: Protocol
    epsilon: float | None
    bound: str
    expected_quantile: float | None


def cases_with(runs: float) -> list[Case]:
    """The compared protocols with an expected number of runs; rounded to a whole K if needed."""
    runs = checks.interval("runs", runs, *MAX_COMPARED, closed_low=True, closed_high=True)
    return [case for kind in all_protocols() for case in kind.cases(runs)]


def compare_protocols(base: Mechanism, runs: float, delta: float) -> list[ComparedProtocol]:
    """The cost of every protocol at the same expected number of runs, the cheapest first.

    Args:
        base: one run.
        runs: expected number of runs, in [2, 1e6].
        delta: in (0, 1).

    Raises:
        InvalidInput: an argument is out of its range.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> rows = compare_protocols(GaussianMechanism(0.1), 2, 1e-5)
        >>> rows[0].title
        'random search, logarithmic K'
    """
    rows = [_compared(base, case, delta) for case in cases_with(runs)]
    return sorted(rows, key=lambda row: float("inf") if row.epsilon is None else row.epsilon)


def _compared(base: Mechanism, case: Case, delta: float) -> ComparedProtocol:
    title, protocol = case.title, case.protocol
    quantile = None
    if protocol.search_repetitions is not None:
        quantile = protocol.search_repetitions.expected_quantile()
    try:
        cost = tuning_cost(base, protocol, delta)
    except DeltaUnreachable as error:
        return ComparedProtocol(title, protocol, None, str(error), quantile)
    return ComparedProtocol(title, protocol, cost.epsilon, cost.name, quantile)


@dataclass(frozen=True)
class Premises:
    """What a cost assumes about its runs.

    Attributes:
        neighbours: the neighbouring relation in words.
        runs: the runs in words.
        sampler: how batches are drawn; empty if the runs do not say.
        divisor: what the noisy sums are divided by; empty if the runs do not say.
    """

    neighbours: str
    runs: str
    sampler: str = ""
    divisor: str = ""

    @property
    def of_runs(self) -> list[str]:
        """The premises of the runs, in the order of the sentence."""
        return [detail for detail in (self.runs, self.sampler, self.divisor) if detail]


def premises_of(runs: Iterable[Mechanism], counted: bool = True) -> Premises:
    """The premises of runs.

    Args:
        runs: the base mechanisms of all runs, or the one of every run.
        counted: whether `runs` are all runs, so that their number is stated.

    Example:
        >>> from audit.accounting import DpSgd
        >>> premises_of([DpSgd(1.0, 500, 0.01, "zero-out")] * 3).runs
        '3 runs of DP-SGD with noise multiplier 1, 500 steps, rate 0.01'
    """
    different = kinds(list(runs))
    mechanisms = [mechanism for mechanism, _ in different]
    names = sorted(frozenset().union(*map(relations, mechanisms)))
    sampled = any(isinstance(run, DpSgd) and run.sampling_rate < 1.0 for run in mechanisms)
    full = all(isinstance(run, DpSgd) and run.sampling_rate == 1.0 for run in mechanisms)
    sampler = _POISSON if sampled else "every batch holds all records" if full else ""
    return Premises(
        _neighbours(names, mechanisms),
        _runs(different, counted),
        sampler,
        _DIVISORS.get(names[0], "") if len(names) == 1 else "",
    )


def _neighbours(names: Sequence[str], mechanisms: Sequence[Mechanism]) -> str:
    if not names:
        return "the neighbouring data sets for which the parameters of one run hold"
    size = max(map(group_size, mechanisms))
    records = "one record" if size == 1 else f"{size} records"
    return ", ".join(
        f"{name} neighbours ({NEIGHBOURS[name].format(records=records)})" for name in names
    )


def _runs(different: Sequence[tuple[Mechanism, int]], counted: bool) -> str:
    total = sum(count for _, count in different)
    if not counted:
        return f"each run is {_described(different[0][0])}"
    if len(different) <= _MAX_KINDS:
        return " and ".join(
            f"{count} {'run' if count == 1 else 'runs'} of {_described(run)}"
            for run, count in different
        )
    runs = [run for run, _ in different]
    gaussian = [run.gaussian_mu for run in runs if run.gaussian_mu is not None]
    if all(isinstance(run, DpSgd) for run in runs):
        spans = [
            _span("noise multipliers", [run.noise_multiplier for run in runs]),  # type: ignore[attr-defined]
            _span("steps", [run.steps for run in runs]),  # type: ignore[attr-defined]
            _span("rates", [run.sampling_rate for run in runs]),  # type: ignore[attr-defined]
        ]
        return f"{total} runs of DP-SGD with {len(runs)} budgets ({', '.join(spans)})"
    if len(gaussian) == len(runs):
        return f"{total} Gaussian runs with {len(runs)} budgets ({_span('mu', gaussian)})"
    return f"{total} runs with {len(runs)} budgets"


def _span(name: str, numbers: Sequence[float]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{name} {low:.4g}" if low == high else f"{name} {low:.4g} to {high:.4g}"


def _described(run: Mechanism) -> str:
    """A run without its neighbouring relation, which the sentence states once."""
    if isinstance(run, DpSgd):
        rate = "full batches" if run.sampling_rate == 1.0 else f"rate {run.sampling_rate:.6g}"
        return f"DP-SGD with noise multiplier {run.noise_multiplier:.7g}, {run.steps} steps, {rate}"
    return f"the mechanism {run.description.partition('; neighbours are')[0]}"


@dataclass(frozen=True)
class CostStatement:
    """The cost of a tuning with everything that it requires.

    Attributes:
        claim: what holds.
        conditions: what the claim requires.

    Example:
        >>> print(CostStatement("This tuning is (1, 0)-DP", ("only the best run is released",)))
        This tuning is (1, 0)-DP, if: only the best run is released.
    """

    claim: str
    conditions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.claim}, if: {'; '.join(self.conditions)}."

    def lines(self, width: int) -> list[str]:
        """The claim and a list of its conditions, for a terminal of some columns."""
        lines = textwrap.wrap(f"{self.claim}, if", width)
        for condition in self.conditions:
            lines += textwrap.wrap(condition, width, initial_indent="- ", subsequent_indent="  ")
        return lines


def sentence(
    epsilon: float, delta: float, subject: str, premises: Premises, conditions: Sequence[str]
) -> CostStatement:
    """The statement of a cost with all its premises.

    Args:
        epsilon: the cost, which is rounded up.
        delta: in (0, 1).
        subject: the tuning in words.
        premises: the premises of its runs.
        conditions: how candidates were chosen, what is released, and what else is assumed.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> premises = premises_of([GaussianMechanism(0.1)] * 2)
        >>> print(sentence(0.5, 1e-5, "this tuning", premises, ["only the best run is released"]))
        this tuning is (0.5, 1e-05)-differentially private for the neighbouring data sets for \
which the parameters of one run hold, if: 2 runs of the mechanism Gaussian, mu = 0.1; only the \
best run is released.
    """
    return CostStatement(
        f"{subject} is ({format_rounded(epsilon, up=True)}, {format_exact(delta)})-differentially "
        f"private for {premises.neighbours}",
        (*premises.of_runs, *conditions),
    )


def statement_of_tuning(
    epsilon: float, delta: float, base: Mechanism, protocol: Protocol
) -> CostStatement:
    """The statement about a tuning by a protocol, all of whose runs have one base mechanism."""
    distribution = getattr(protocol, "repetitions", None)
    if distribution is None:
        runs = f"the protocol is {protocol.spec}"
    elif isinstance(distribution, Fixed):
        runs = f"K = {distribution.k}, fixed beforehand"
    else:
        runs = f"K is drawn from {distribution.spec} and kept secret"
    conditions = [protocol.assumption, runs, protocol.release, SCORES]
    return sentence(epsilon, delta, "The tuning", premises_of([base], counted=False), conditions)


@dataclass(frozen=True)
class BaseReport:
    """Privacy of a single run of the base mechanism.

    Attributes:
        mu: distance of the two output distributions in standard deviations; None if the base is not
            Gaussian.
        noise_multiplier: sigma; None if the base is not DP-SGD.
        steps: number of iterations; None if the base is not DP-SGD.
        epsilon_rdp: epsilon of one run by Renyi divergences, as in the papers; None if infinite.
        epsilon_exact: epsilon of one run by its privacy profile; None if no epsilon reaches delta.
        accounting: `rdp` or `exact`: the one that is called epsilon_B.
        description: the mechanism and its neighbouring relation in words.
        reason: the reason why there is no exact epsilon; empty if there is one.

    Example:
        >>> from audit.accounting import DpSgd
        >>> from audit.upper_bounds import report_mechanism
        >>> report = report_mechanism(DpSgd(70.0, 300), 1e-5, "rdp")
        >>> round(report.epsilon_exact, 3), round(report.epsilon_rdp, 3)
        (0.916, 1.001)
    """

    mu: float | None
    noise_multiplier: float | None
    steps: int | None
    epsilon_rdp: float | None
    epsilon_exact: float | None
    accounting: str
    description: str = ""
    reason: str = ""

    @property
    def bounds(self) -> tuple[UpperBound, UpperBound]:
        """The rows of a single run, by its privacy profile and by Renyi divergences."""
        profile = "hockey-stick divergence of the dominating pair"
        if self.mu is not None:
            profile = "Balle & Wang 2018, theorem 8"
        return (
            _row("base", self.epsilon_exact, "the exact privacy profile", profile, self.reason),
            _row(
                "base-renyi",
                self.epsilon_rdp,
                "Renyi divergences, the eps_B of the papers",
                "Xiang, Wang & Wang 2024, theorem 6",
            ),
        )


def _row(name: str, epsilon: float | None, how: str, source: str, reason: str = "") -> UpperBound:
    claim = Claim(Kind.ONE_RUN, source, about=(f"a single run, not the tuning; by {how}",))
    if epsilon is None:
        return UpperBound(name, math.inf, claim, reason=reason or f"infinite by {how}")
    return UpperBound(name, epsilon, claim)


def report_mechanism(base: Mechanism, delta: float, method: str) -> BaseReport:
    """The report on one run of any base.

    Args:
        base: the base mechanism.
        delta: in (0, 1).
        method: `rdp` or `exact`: the one that is called epsilon_B.

    Example:
        >>> from audit.accounting import DpSgd
        >>> report_mechanism(DpSgd(70.0, 300), 1e-5, "rdp").description
        'DP-SGD, noise multiplier 70, 300 steps, full batch, add-remove neighbours'
    """
    base = parse_mechanism(base)
    by_renyi = base.renyi_epsilon(delta)
    exact, reason = None, ""
    try:
        exact = base.epsilon(delta)
    except DeltaUnreachable as error:
        reason = str(error)
    return BaseReport(
        mu=base.gaussian_mu,
        noise_multiplier=base.noise_multiplier if isinstance(base, DpSgd) else None,
        steps=base.steps if isinstance(base, DpSgd) else None,
        epsilon_rdp=by_renyi if np.isfinite(by_renyi) else None,
        epsilon_exact=exact,
        accounting=checks.one_of("accounting", method, ACCOUNTINGS),
        description=base.description,
        reason=reason,
    )

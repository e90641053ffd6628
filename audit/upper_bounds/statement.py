"""The cost of a tuning as one sentence, with the premises of a run and of the protocol."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from audit.accounting import NEIGHBOURS, DpSgd, Mechanism, group_size, relations
from audit.accounting.combinations import kinds
from audit.numerics import format_exact, format_rounded
from audit.protocols import Protocol
from audit.repetitions import Fixed

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

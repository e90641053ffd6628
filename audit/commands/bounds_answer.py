"""The answer of `audit.bounds` about a protocol, as text and as values for json."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from audit.numerics import format_exact, format_rounded
from audit.protocols import Protocol
from audit.upper_bounds import AffordableRepetitions, BaseReport, ComparedProtocol, UpperBound
from audit.upper_bounds.costs import CostStatement

_LISTED_BOUNDS = 3  # without --all
_LISTED_DISTRIBUTIONS = 5  # without --all


@dataclass(frozen=True)
class Answer:
    """The bounds of a protocol, and everything else that the options request."""

    base: BaseReport
    protocol: Protocol
    delta: float
    bounds: Sequence[UpperBound]
    cost: UpperBound | None  # the smallest bound that holds for every score
    notes: Sequence[str]
    compared: Sequence[ComparedProtocol]  # other protocols with the same mean number of runs
    affordable: Sequence[AffordableRepetitions]  # distributions of K that keep the budget
    solution: str = ""  # what `--solve` found, in words
    statement: CostStatement | None = None  # None for several tunings

    def as_dict(self) -> dict[str, Any]:
        """The answer as values for json."""
        search: dict[str, object] = {}
        repetitions = self.protocol.search_repetitions
        if repetitions is not None:
            search["repetitions"] = repetitions.spec
            search["expected_quantile"] = repetitions.expected_quantile()
        return {
            "delta": self.delta,
            "protocol": self.protocol.spec,
            **search,
            "base": asdict(self.base),
            "bounds": [row.as_dict() for row in self.bounds],
            "cost": None if self.cost is None else self.cost.as_dict(),
            "statement": "" if self.statement is None else str(self.statement),
            "compared": [vars(plan) | {"protocol": plan.protocol.spec} for plan in self.compared],
            "notes": self.notes,
            "affordable": [
                {
                    "repetitions": option.repetitions.spec,
                    "expected_quantile": option.expected_quantile,
                    "mean_runs": option.repetitions.mean,
                }
                for option in self.affordable
            ],
        }

    def lines(self, width: int, show_all: bool = False) -> Iterator[str]:
        """The answer as lines of text, the cost first.

        Args:
            width: number of columns.
            show_all: whether to list the bounds that do not apply or need a special score, the
                sources of all bounds, and all distributions of K within a budget.
        """
        if self.solution:
            yield from textwrap.wrap(self.solution, width, subsequent_indent="  ")
        yield from self._cost(width)
        for note in self.notes:
            yield from textwrap.wrap(f"note: {note}", width, subsequent_indent="  ")
        if self.compared:
            yield ""
            yield from comparison_lines(self.compared)
        if self.affordable:
            yield ""
            yield from _affordable_lines(self.affordable, show_all)
        yield ""
        yield from self._every_bound(width) if show_all else self._bounds_for_any_score(width)

    def _cost(self, width: int) -> Iterator[str]:
        """The smallest bound with its conditions, and the base."""
        protocol = self.protocol
        name = f"{protocol.spec}, " if protocol.search_repetitions is None else ""
        runs = ""
        if protocol.mean_runs is not None:
            runs = f"{protocol.mean_runs:.4g} runs on average, "
        base = self.base.description
        if self.cost is None:
            yield from textwrap.wrap(f"no bound on epsilon applies to {protocol.spec}", width)
        else:
            one_run = self.bounds[0]
            alone = format_rounded(one_run.epsilon, up=True) if one_run.applies else "-"
            cost = format_rounded(self.cost.epsilon, up=True)
            yield f"epsilon = {cost} for the tuning; {alone} for one run alone"
            about = f"{name}{runs}delta = {format_exact(self.delta)}; by {self.cost.name}"
            yield from textwrap.wrap(f"{about}; {base}", width)
        yield ""
        yield from (
            self.statement.lines(width)
            if self.statement
            else textwrap.wrap(f"holds for: {protocol.assumption}", width)
        )

    def _bounds_for_any_score(self, width: int) -> Iterator[str]:
        """The cost of one run, and the smallest bounds that hold for every score."""
        one_run = self.bounds[0]
        for_any_score = [row for row in self.bounds if row.applies and row.claim.any_score]
        smallest = sorted(for_any_score, key=lambda row: row.epsilon)[:_LISTED_BOUNDS]
        rows = [one_run, *(row for row in for_any_score if row in smallest)]
        names = max(len(row.name) for row in rows)
        yield f"{'bounds':{names}}  epsilon  for any score"
        for row in rows:
            words = "one run alone" if row is one_run else _title(row.source)
            line = f"{row.name:{names}}  {format_rounded(row.epsilon, up=True):>7}  "
            yield line + textwrap.shorten(words, max(width - len(line), 20), placeholder=" ...")
        yield from textwrap.wrap(
            "(--all: all bounds, attained values, sources and rounding)", width
        )

    def _every_bound(self, width: int) -> Iterator[str]:
        """Every bound with its assumptions and source, those that do not apply at the end."""
        name_width = max(len(row.name) for row in self.bounds)
        yield f"{'bound':{name_width}}  {'epsilon':>9}  assumptions"
        for row in sorted(self.bounds, key=lambda row: not row.applies):
            epsilon, text = "-", row.assumes
            if row.applies:
                epsilon = format_rounded(row.epsilon, up=not row.attained)
                text = row.claim.words_without_protocol
                if row.error > 0:
                    way = "down" if row.attained else "up"
                    text += f" (rounded {way} by < {format_rounded(row.error, True, digits=1)})"
            name_and_epsilon = f"{row.name:{name_width}}  {epsilon:>9}  "
            indent = " " * len(name_and_epsilon)
            yield from textwrap.wrap(
                text, width, initial_indent=name_and_epsilon, subsequent_indent=indent
            )
            if row.applies:
                yield from textwrap.wrap(
                    row.source, width, initial_indent=f"{indent}  ", subsequent_indent=f"{indent}  "
                )


def _title(source: str) -> str:
    """The name of a theorem or a method, without its details."""
    return re.split(r": | \(|; ", source)[0]


def comparison_lines(compared: Sequence[ComparedProtocol]) -> Iterator[str]:
    """The costs of several protocols at the same mean number of runs."""
    width = max(len(row.title) for row in compared)
    yield f"{'':{width}}  epsilon  quantile of the best run"
    for row in compared:
        epsilon = "-" if row.epsilon is None else format_rounded(row.epsilon, up=True)
        quantile = row.expected_quantile
        digits = "" if quantile is None else f"{quantile:.4f}"
        yield f"{row.title:{width}}  {epsilon:>7}  {digits:6}  {row.bound}".rstrip()


def _affordable_lines(affordable: Sequence[AffordableRepetitions], show_all: bool) -> Iterator[str]:
    """The distributions of K within a budget: the best ones, or all of them."""
    listed = affordable if show_all else affordable[:_LISTED_DISTRIBUTIONS]
    width = max(len("distribution of K"), *(len(option.repetitions.spec) for option in listed))
    yield f"{'distribution of K':{width}}  mean K  quantile of the best run"
    for option in listed:
        mean = f"{option.repetitions.mean:.4g}"
        yield f"{option.repetitions.spec:{width}}  {mean:>6}  {option.expected_quantile:.5f}"
    if len(listed) < len(affordable):
        yield f"(--all: {len(affordable) - len(listed)} further distributions)"

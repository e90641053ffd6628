"""The answer of `audit.bounds` about a protocol, as text and as values for json."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from audit.numerics import format_exact, format_rounded
from audit.protocols import Protocol
from audit.upper_bounds import AffordableRepetitions, BaseReport, ComparedProtocol, UpperBound


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
    statement: str = ""  # the cost as one sentence; empty for several tunings

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
            "statement": self.statement,
            "compared": [vars(one) | {"protocol": one.protocol.spec} for one in self.compared],
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

    def lines(self, runs: float | None) -> Iterator[str]:
        """The answer as lines of text; `runs` is the mean number of the compared protocols."""
        yield from self._table()
        if self.cost is not None:
            cost = format_rounded(self.cost.epsilon, up=True)
            yield f"\ncost: {cost} by {self.cost.name}, whatever the score"
        if self.statement:
            yield f"statement: {self.statement}"
        for note in self.notes:
            yield f"note: {note}"
        yield from self._comparison(runs)
        for option in self.affordable:
            mean = f"{option.repetitions.mean:.4g} runs on average"
            yield (
                f"{option.repetitions.spec:24} {mean:22}  expected quantile of the best run "
                f"{option.expected_quantile:.5f}"
            )

    def _table(self) -> Iterator[str]:
        """The bounds, those that do not apply at the end."""
        protocol, base = self.protocol, self.base
        name = "protocol" if protocol.search_repetitions is None else "repetitions"
        runs = "" if protocol.mean_runs is None else f" ({protocol.mean_runs:.4g} runs on average)"
        yield f"{name} {protocol.spec}{runs}, delta = {format_exact(self.delta)}"
        mu = "" if base.mu is None else f"mu = {format_rounded(base.mu, up=True, digits=6)}; "
        yield f"holds for: {protocol.assumption}"
        yield f"base: {mu}{base.description}"
        yield ""
        width = max(len(row.name) for row in self.bounds)
        yield f"{'bound':{width}}  {'epsilon':>9}  assumptions"
        for row in self.bounds:
            if not row.applies:
                continue
            way = "down" if row.attained else "up"
            rounded = (
                f" (rounded {way} by < {format_rounded(row.error, up=True, digits=1)})"
                if row.error > 0
                else ""
            )
            epsilon = format_rounded(row.epsilon, up=not row.attained)
            yield f"{row.name:{width}}  {epsilon:>9}  {row.claim.words_without_protocol}{rounded}"
            yield f"{'':{width}}  {'':>9}    {row.source}"
        for row in self.bounds:
            if not row.applies:
                yield f"{row.name:{width}}  {'-':>9}  {row.assumes}"

    def _comparison(self, runs: float | None) -> Iterator[str]:
        """The costs of several protocols at the same mean number of runs."""
        if not self.compared:
            return
        yield f"\n{runs:g} runs on average, by protocol:"
        width = max(len(one.title) for one in self.compared)
        for one in self.compared:
            epsilon = "-" if one.epsilon is None else format_rounded(one.epsilon, up=True)
            quantile = ""
            if one.expected_quantile is not None:
                quantile = f"  expected quantile of the best {one.expected_quantile:.4f}"
            yield f"{one.title:{width}}  {epsilon:>9}  {one.bound}{quantile}"

"""The tables that `audit.bounds` prints."""

from audit.numerics import format_exact, format_rounded
from audit.protocols import Protocol, RandomSearch
from audit.upper_bounds import BaseReport, ComparedProtocol, UpperBound


def print_table(base: BaseReport, protocol: Protocol, delta: float, rows: list[UpperBound]) -> None:
    """Prints the bounds, those that do not apply at the end."""
    name = "repetitions" if isinstance(protocol, RandomSearch) else "protocol"
    runs = "" if protocol.mean_runs is None else f" ({protocol.mean_runs:.4g} runs on average)"
    print(f"{name} {protocol.spec}{runs}, delta = {format_exact(delta)}")
    mu = "" if base.mu is None else f"mu = {format_rounded(base.mu, up=True, digits=6)}; "
    print(f"holds for: {protocol.assumption}")
    print(f"base: {mu}{base.description}")
    print()
    width = max(len(row.name) for row in rows)
    print(f"{'bound':{width}}  {'epsilon':>9}  assumptions")
    for row in rows:
        if not row.applies:
            continue
        way = "down" if row.attained else "up"
        rounded = (
            f" (rounded {way} by < {format_rounded(row.error, up=True, digits=1)})"
            if row.error > 0
            else ""
        )
        epsilon = format_rounded(row.epsilon, up=not row.attained)
        print(f"{row.name:{width}}  {epsilon:>9}  {row.claim.words_without_protocol}{rounded}")
        print(f"{'':{width}}  {'':>9}    {row.source}")
    for row in rows:
        if not row.applies:
            print(f"{row.name:{width}}  {'-':>9}  {row.assumes}")


def print_comparison(compared: list[ComparedProtocol], runs: float | None) -> None:
    """Prints the costs of several protocols at the same mean number of runs."""
    if not compared:
        return
    print(f"\n{runs:g} runs on average, by protocol:")
    width = max(len(one.title) for one in compared)
    for one in compared:
        epsilon = "-" if one.epsilon is None else format_rounded(one.epsilon, up=True)
        quantile = ""
        if one.expected_quantile is not None:
            quantile = f"  expected quantile of the best {one.expected_quantile:.4f}"
        print(f"{one.title:{width}}  {epsilon:>9}  {one.bound}{quantile}")

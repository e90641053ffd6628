"""A report as the terminal shows it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from audit.numerics import format_exact, format_places
from audit.report.results import POOLED, BudgetResult, Report, row_of_table, way_of_tuning


def to_text(report: Report) -> str:
    """The table that the command prints."""
    config = report.config
    threat, training_set, canary = row_of_table(config)
    lines = [
        f"{threat}, X = {training_set}, z = {canary}, score {config['score']}, "
        f"{_tuning(config)}, delta {format_exact(config['delta'])}, "
        f"{config['trials']} trials x {config['repeats']}",
        f"engine {report.engine.name}: {report.engine.reason}",
        *_records(report),
        *_candidates(report.candidates),
        *([report.precision.sensitivity] if report.precision else []),
        "",
        *_table(report),
        "",
        *_notes(report),
        *_alarms(report),
    ]
    return "\n".join(lines)


def _protocol(config: Mapping[str, Any]) -> str:
    """Its spec; audits of earlier versions have none and are random searches."""
    return str(config.get("protocol", "search"))


def _tuning(config: Mapping[str, Any]) -> str:
    if _protocol(config) == "search":
        return f"repetitions {config['repetitions']}"
    return f"protocol {way_of_tuning(config)}"


_TITLES = {"base": "one run", "base-renyi": "one run, by Renyi"}


def rounded_down(value: float, digits: int = 3) -> str:
    """A lower bound as text, never above it."""
    return format_places(value, up=False, places=digits)


def rounded_up(value: float, digits: int = 3) -> str:
    """An upper bound as text, never below it."""
    return format_places(value, up=True, places=digits)


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:34}" + "".join(f"{cell:>24}" for cell in cells)


def _records(report: Report) -> Iterator[str]:
    used, config = report.records, report.config
    if used.training or used.validation:
        asked = [
            f"{count:,} {name} records" + (f" of {most:,} asked for" if count < most else "")
            for name, count, most in (
                ("training", used.training, config["train_size"]),
                ("validation", used.validation, config["validation_size"]),
            )
        ]
        yield ", ".join(asked)


def _candidates(candidates: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """A line about the grid, where there is more than one point of it."""
    if len(candidates) > 1:
        values = {
            name: dict.fromkeys(point[name] for point in candidates) for name in candidates[0]
        }
        axes = [f"{name} {', '.join(f'{v:g}' for v in of)}" for name, of in values.items()]
        yield f"{len(candidates)} candidates: {'; '.join(axes)}"


def _table(report: Report) -> Iterator[str]:
    yield _row("", [f"eps_B = {result.epsilon_base:g}" for result in report.results])
    for number, (key, _, proxies) in enumerate(report.highlights, 1):
        for proxy in proxies:
            bounds = [result.lower_bounds[proxy][key] for result in report.results]
            cells = [
                "{} [{}, {}]".format(*map(rounded_down, (b.epsilon, b.min, b.max))) for b in bounds
            ]
            mark = (
                " *" if (proxy, key) == (report.recommended.proxy, report.recommended.key) else ""
            )
            yield _row(f"eps_L from {proxy} ({number}){mark}", cells)
    for name in report.results[0].upper_bounds:
        upper = [result.upper_bounds[name] for result in report.results]
        known = [bound for bound in upper if bound.epsilon is not None]
        if known:
            cells = ["-" if b.epsilon is None else _number(b.epsilon, b.label) for b in upper]
            label = "" if known[0].label in ("valid", "one run") else f"{known[0].label}: "
            title = _TITLES.get(name, name)
            yield f"{_row(title, cells)}  {label}{known[0].assumes}"


def _number(epsilon: float, label: str) -> str:
    return rounded_down(epsilon) if label == "attained" else rounded_up(epsilon)


def _notes(report: Report) -> Iterator[str]:
    yield (
        "Cells of eps_L: from the games of all repeats together [smallest, largest of one repeat]; "
        "* is the number to report."
    )
    if report.config["stop_at"]:
        counts = [result.lower_bounds["lambda_a"] for result in report.results]
        played = [next(iter(bounds.values())).pooled.trials for bounds in counts]
        yield (
            f"Stopped where eps_L = {report.config['stop_at']:g} was proved, or at the last trial: "
            f"after {', '.join(f'{count:,}' for count in played)} of "
            f"{report.config['trials']:,} trials. The looks on the way are paid for."
        )
    if "lambda_c" in report.proxies:
        if _protocol(report.config).startswith("subset"):
            yield (
                "lambda_a: of the final run; lambda_c: the likelihood ratio of the tuning's winner "
                "and the final run together, X put aside."
            )
        else:
            yield "lambda_c: the likelihood ratio of a run with sampled batches, X put aside."
    for number, (key, _, proxies) in enumerate(report.highlights, 1):
        bound = report.results[0].lower_bounds[proxies[0]][key]
        confidence = f"{100 * bound.confidence:g} % confidence" if bound.valid else "no claim"
        yield f"({number}) {key}, {confidence}: {bound.assumes if bound.valid else bound.label}"
    if pooled := [words for result in report.results for words in _of_all_runs(result)]:
        yield f"All runs, not the winners alone, show {'; '.join(pooled)}."
    yield f"In so many games * could be at most {'; '.join(map(_reach, report.results))}."
    diverged = sum(result.diverged_runs for result in report.results)
    if diverged:
        runs = sum(result.runs for result in report.results)
        yield (
            f"{diverged} of {runs} runs diverged (weights or score not finite); they were never "
            "chosen."
        )


def _of_all_runs(result: BudgetResult) -> Iterator[str]:
    """The largest valid bound from all runs at one budget, where they are kept."""
    valid = [
        (bound.epsilon, key)
        for bounds in result.lower_bounds.values()
        for key, bound in bounds.items()
        if bound.valid and bound.name in POOLED
    ]
    if valid:
        epsilon, key = max(valid)
        yield f"{rounded_down(epsilon)} (eps_B = {format_exact(result.epsilon_base)}, {key})"


def _reach(result: BudgetResult) -> str:
    """What the games at one budget could have shown, and what the upper bound would take."""
    words = f"{rounded_up(result.ceiling)} (eps_B = {format_exact(result.epsilon_base)}"
    upper = result.smallest_upper
    if upper is None or result.games_needed is None:
        return f"{words})"
    return f"{words}; to show {upper.name} takes {result.games_needed:,} or more)"


def _alarms(report: Report) -> Iterator[str]:
    """Where a valid lower bound lies above a valid upper bound: loud unless it may be chance."""
    for result in report.results:
        found, sure = result.gravest_contradiction, result.beyond_chance
        if found is not None:
            share = 100 * (1 - report.config["confidence"])
            why = (
                "chance does not explain it: a claim, or the training, is wrong"
                if sure
                else f"each lower bound errs in {share:.3g} % of audits, so it may be chance"
            )
            yield (
                f"{'WARNING: CONTRADICTION' if sure else 'note:'} at eps_B = "
                f"{result.epsilon_base:g}: eps_L = "
                f"{rounded_down(found.lower)} ({found.key} from {found.proxy}) is above eps_U = "
                f"{rounded_up(found.upper)} ({found.upper_bound}), both called valid; {why}."
            )

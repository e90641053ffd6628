"""The study as a section of a page in Markdown."""

import pandas as pd

from studies.coverage.analysis import FALSE_ALARM, failures

# Rates of fewer audits are too coarse for the largest rate of the summary.
_MIN_AUDITS_FOR_MAXIMUM = 200


def coverage_page(study: pd.DataFrame, command: str) -> str:
    """The section of a study, with the command that repeats it.

    Args:
        study: One row per mechanism, number of trials and estimator.
        command: The command that made the study.

    Returns:
        Markdown with the tables of the middle number of trials.
    """
    claimed = study[study["claimed"]]
    flagged_rows = failures(study)
    key = ["mechanism", "trials", "estimator", "rule"]
    flagged = set(flagged_rows[key].itertuples(index=False, name=None))
    largest = claimed[claimed["audits"] >= _MIN_AUDITS_FOR_MAXIMUM]["rate"].max()
    lines = [
        "## Coverage of lower bounds",
        "",
        "**Result.** Significantly more than 5 % of the 95 % bounds exceed the true epsilon, which",
        f"is known exactly, in {len(flagged_rows) or 'none'} of {len(claimed)} combinations of "
        "estimator, mechanism and number of",
        "trials in which the estimator's assumptions hold (one-sided binomial test, with an error",
        f"of {FALSE_ALARM:.0%} for all together). The largest share in combinations with at least "
        f"{_MIN_AUDITS_FOR_MAXIMUM}",
        f"audits is {largest:.1%}. The papers' estimator is not a bound "
        "(`gaussian-curve, max-grid`).",
        "",
        "This command repeats the study:",
        "",
        f"    {command}",
        "",
        "Each cell shows the mean lower bound, and the share of audits in which it exceeds the",
        "true epsilon. Cells in brackets are not proved to be bounds: the mechanism does not",
        "satisfy the estimator's assumptions, or the estimator is uncorrected or asymptotic. The",
        "last column is the mean computing time of one bound in milliseconds.",
        "",
        "- `scan, planned analyses` and `scan, unplanned analyses` are the largest bound over all",
        "  analyses of a growing audit, with and without a plan.",
        "- The `pooled` bounds use single runs, as many as the trials have on average.",
        "- `leaky response` is randomised response that reveals its input with probability 0.01.",
        "- The columns `canaries ...` describe audits of one run with a canary for every trial. In",
        "  `canaries apart`, the scores are independent. In `canaries unequal`, half of them have",
        "  no effect. In `canaries alike`, all canaries share one random size, so bounds for",
        "  independent canaries are not valid.",
        "- `jax_privacy` and `PrivacyGuard` are estimators of other projects. The latter is the",
        "  largest value over all thresholds, without a correction.",
    ]
    sizes = sorted(study["trials"].unique())
    trials = sizes[len(sizes) // 2]
    part = study[study["trials"] == trials]
    other_sizes = " and ".join(f"{size:,} + {size:,}" for size in sizes if size != trials)
    lines += [
        "",
        f"The tables show {part['audits'].max()} audits with {trials:,} + {trials:,} trials.",
    ]
    if other_sizes:
        lines[-1] += f" [All numbers](coverage.csv) include\n{other_sizes} trials."
    for kind, rows in part.groupby(part["mechanism"].map(_kind), sort=False):
        lines += ["", f"### {kind}", "", *_table(rows, flagged)]
    return "\n".join(lines) + "\n"


def more_audits_page(study: pd.DataFrame) -> str:
    """The section of a second study, with more audits of chosen mechanisms and another seed.

    Args:
        study: One row per mechanism, number of trials and estimator, of one number of trials.

    Returns:
        Markdown with one table.
    """
    claimed, flagged_rows = study[study["claimed"]], failures(study)
    key = ["mechanism", "trials", "estimator", "rule"]
    flagged = set(flagged_rows[key].itertuples(index=False, name=None))
    trials = study["trials"].iloc[0]
    audits = study.groupby("mechanism", sort=False)["audits"].first()
    numbers = ", ".join(f"{count:,} of `{name}`" for name, count in audits.items())
    lines = [
        "### More audits of some mechanisms",
        "",
        f"With another seed and {trials:,} + {trials:,} trials, the numbers of audits are",
        f"{numbers}.",
        "The shares of bounds above the true epsilon are significantly more than 5 % in "
        f"{len(flagged_rows) or 'none'} of {len(claimed)}",
        f"combinations in which the assumptions hold. The largest is {claimed['rate'].max():.1%}. "
        "([Data](coverage-more.csv))",
        "",
        "The largest share of each mechanism, with its 95 % binomial interval:",
        "",
        *_largest_shares(claimed),
        "",
        *_table(study, flagged),
    ]
    return "\n".join(lines) + "\n"


def _largest_shares(claimed: pd.DataFrame) -> list[str]:
    """The valid bound of each mechanism that exceeds the true epsilon most often."""
    lines = ["| mechanism | audits | bound | above the true epsilon |", "|---|---|---|---|"]
    for name, rows in claimed.groupby("mechanism", sort=False):
        row = rows.nlargest(1, "rate").iloc[0]
        lines.append(
            f"| {name} | {row['audits']:,} | {row['estimator']}, {row['rule']} | "
            f"{row['rate']:.1%} ({row['rate_low']:.1%} to {row['rate_high']:.1%}) |"
        )
    return lines


def _kind(mechanism: str) -> str:
    """The heading of a mechanism's table."""
    if mechanism.startswith("canaries"):
        return "One run with many canaries"
    if mechanism.startswith(("tuned", "worst order")):
        return "Random search"
    return "Other protocols" if ":" in mechanism else "One run"


def _table(part: pd.DataFrame, flagged: set[tuple[object, ...]]) -> list[str]:
    names = list(dict.fromkeys(part["mechanism"]))
    epsilons = [f"{part[part['mechanism'] == name]['truth'].iloc[0]:.2f}" for name in names]
    lines = [
        "| estimator | " + " | ".join(names) + " | ms |",
        "|---" * (len(names) + 2) + "|",
        "| **true epsilon** | " + " | ".join(epsilons) + " | |",
    ]
    for (estimator, rule), rows in part.groupby(["estimator", "rule"], sort=False):
        by_name = rows.set_index("mechanism")
        cells = [_cell(by_name.loc[name], name, flagged) if name in by_name.index else ""
                 for name in names]  # fmt: skip
        label = str(estimator) if estimator == rule else f"{estimator}, {rule}"
        milliseconds = rows["milliseconds"].mean()
        lines.append(f"| {label} | " + " | ".join(cells) + f" | {milliseconds:.1f} |")
    return lines


def _cell(row: "pd.Series[float]", name: str, flagged: set[tuple[object, ...]]) -> str:
    text = f"{row['mean']:.2f} {row['rate']:.1%}"
    if (name, row["trials"], row["estimator"], row["rule"]) in flagged:
        text = f"**{text}**"
    return text if row["claimed"] else f"({text})"

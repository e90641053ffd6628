"""The study as a page in Markdown."""

import pandas as pd

from studies.coverage.analysis import FALSE_ALARM, failures

# Rates of fewer audits are too coarse for the largest rate of the summary.
_MIN_AUDITS_FOR_MAXIMUM = 200


def coverage_page(study: pd.DataFrame, command: str) -> str:
    """The page of a study, with the command that repeats it.

    The table has one row per mechanism, number of trials and estimator.
    """
    claimed = study[study["claimed"]]
    flagged_rows = failures(study)
    key = ["mechanism", "trials", "estimator", "rule"]
    flagged = set(flagged_rows[key].itertuples(index=False, name=None))
    largest = claimed[claimed["audits"] >= _MIN_AUDITS_FOR_MAXIMUM]["rate"].max()
    lines = [
        "# Coverage",
        "",
        "This page shows how often a lower bound with 95 % confidence exceeds the true epsilon,",
        "for mechanisms whose epsilon is known exactly. [The full table](coverage.csv) also has",
        "the number of audits (column `audits`), the standard deviation and the time of every",
        "estimator. This command repeats the study:",
        "",
        f"    {command}",
        "",
        f"The study contains {len(claimed)} combinations of estimator, mechanism and number of",
        "trials in which the assumptions of the estimator hold. Significantly more than 5 % of the",
        f"bounds exceed the true epsilon in {len(flagged_rows) or 'none'} of them (one-sided "
        "binomial test, with an",
        f"error of {FALSE_ALARM:.0%} for the whole table). The largest share in combinations with",
        f"at least {_MIN_AUDITS_FOR_MAXIMUM} audits is {largest:.1%}.",
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
    for trials, part in study.groupby("trials"):
        lines += ["", f"## {trials:,} + {trials:,} trials, {part['audits'].max()} audits"]
        for kind, rows in part.groupby(part["mechanism"].map(_kind), sort=False):
            lines += ["", f"### {kind}, {trials:,} + {trials:,}", "", *_table(rows, flagged)]
    return "\n".join(lines) + "\n"


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

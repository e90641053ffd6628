"""Power of lower bounds next to those of other projects: `python -m studies.power`.

Every estimator gets the same scores of simulated audits with a known epsilon. The program writes
docs/power.csv and docs/power.md. The other projects are not dependencies; those that are installed
are compared: jax_privacy (`pip install jax_privacy`), and PrivacyGuard of Meta, from a checkout of
github.com/facebookresearch/PrivacyGuard in PYTHONPATH.

All bounds have 95 % confidence. The default bound, the scan, tests both error ratios of each
threshold. Those of jax_privacy do so on request; with one ratio (its default), they are larger
where this ratio is the better one. The largest value over all thresholds by PrivacyGuard, each with
two-sided intervals of 95 %, has no correction for the choice, so it is not a bound.
"""

import argparse
import contextlib
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from audit.lower_bounds import GaussianCurve, RankSum, lower_bound
from audit.lower_bounds.scores import Scores
from audit.numerics import FloatArray
from studies.coverage.estimators import PrivacyGuard
from studies.coverage.mechanisms import MONOTONE, Mechanism, mechanisms

ALPHA = 0.05
TRIALS = (200, 1_000)
AUDITS = 300
MECHANISMS = (
    "randomised response",
    "Laplace",
    "Gaussian mu=0.5",
    "Gaussian mu=1.5",
    "tuned tnb:0,0.01 base 4",
    "grid:10",
)
DEFAULT = "scan (the default)"
GDP = "jax_privacy, epsilon_from_gdp"
_FOLDER = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True)
class Method:
    """A lower bound of one project.

    Attributes:
        bound: maps scores without and with the record, and delta, to an epsilon.
        gaussian: whether it is valid for a Gaussian mechanism alone.
        is_bound: whether it is a bound at all.
    """

    bound: Callable[[FloatArray, FloatArray, float], float]
    gaussian: bool = False
    is_bound: bool = True


def methods_of_others() -> dict[str, Method]:
    """The estimators of jax_privacy and PrivacyGuard, of those that are installed."""
    methods = {}
    with contextlib.suppress(ImportError):
        from jax_privacy import auditing

        def of_strategy(strategy: object, one_sided: bool) -> Method:
            return Method(
                lambda out_scores, in_scores, delta: auditing.CanaryScoreAuditor(
                    in_scores, out_scores
                ).epsilon_clopper_pearson(ALPHA, delta, one_sided, threshold_strategy=strategy)
            )

        for name, strategy in {
            "Bonferroni": auditing.Bonferroni(),
            "split": auditing.Split(seed=0),
            "multi-split": auditing.MultiSplit(num_samples=20, seed=0),
        }.items():
            methods[f"jax_privacy, {name}, both ratios"] = of_strategy(strategy, False)
            methods[f"jax_privacy, {name}, one ratio"] = of_strategy(strategy, True)
        methods[GDP] = Method(
            lambda out_scores, in_scores, delta: auditing.CanaryScoreAuditor(
                in_scores, out_scores
            ).epsilon_from_gdp(ALPHA, delta),
            gaussian=True,
            is_bound=False,
        )
    with contextlib.suppress(ImportError):
        from privacy_guard.analysis.mia.mia_results import MIAResults

        uncorrected = PrivacyGuard(MIAResults)
        methods["PrivacyGuard, max over thresholds"] = Method(
            lambda out_scores, in_scores, delta: (
                uncorrected.find(Scores(out_scores, in_scores), delta, ALPHA).epsilon
            ),
            is_bound=False,
        )
    return methods


def all_methods() -> dict[str, Method]:
    """The estimators of this project, and those of other projects that are installed."""
    rank_sum = GaussianCurve(rule=RankSum())
    return {
        DEFAULT: Method(
            lambda out_scores, in_scores, delta: (
                lower_bound(out_scores=out_scores, in_scores=in_scores, delta=delta).epsilon
            )
        ),
        "gaussian-curve, rank-sum": Method(
            lambda out_scores, in_scores, delta: (
                rank_sum(out_scores, in_scores, delta, 1.0 - ALPHA).epsilon
            ),
            gaussian=True,
        ),
        **methods_of_others(),
    }


def power(
    methods: Mapping[str, Method],
    audits: int,
    trials: Sequence[int] = TRIALS,
    names: Sequence[str] = MECHANISMS,
    seed: int = 11,
) -> pd.DataFrame:
    """The bounds of all methods on the same scores, one row per mechanism, trials and method.

    A row has the mean bound and its standard error, and the numbers of audits whose bound exceeds
    the true epsilon, and whose bound is larger than that of the default.

    Example:
        >>> methods = {DEFAULT: all_methods()[DEFAULT]}
        >>> power(methods, 2, [50], ["Laplace"])["audits"].tolist()
        [2]
    """
    rows = []
    for count in trials:
        for mechanism in mechanisms(count):
            if mechanism.name in names:
                rng = np.random.default_rng([seed, count, names.index(mechanism.name)])
                rows += _rows(methods, mechanism, count, audits, rng)
    return pd.DataFrame(rows)


def _rows(
    methods: Mapping[str, Method],
    mechanism: Mechanism,
    trials: int,
    audits: int,
    rng: np.random.Generator,
) -> list[dict[str, object]]:
    """The rows of one mechanism and number of trials."""
    gaussian = mechanism.known >= MONOTONE and mechanism.repetitions is None
    applicable = {
        name: method for name, method in methods.items() if gaussian or not method.gaussian
    }
    values: dict[str, list[float]] = defaultdict(list)
    for _ in range(audits):
        out_scores, in_scores = mechanism.sample(rng, trials)
        for name, method in applicable.items():
            values[name].append(float(method.bound(out_scores, in_scores, mechanism.delta)))
    rows = []
    for name, method in applicable.items():
        epsilons = np.array(values[name])
        rows.append(
            {
                "mechanism": mechanism.name,
                "trials": trials,
                "method": name,
                "bound": method.is_bound,
                "truth": mechanism.epsilon,
                "audits": audits,
                "mean": epsilons.mean(),
                "error": epsilons.std() / np.sqrt(audits),
                "above_truth": int(np.sum(epsilons > mechanism.epsilon)),
                "above_default": int(np.sum(epsilons > np.array(values[DEFAULT]))),
            }
        )
    return rows


def power_page(study: pd.DataFrame) -> str:
    """The section of a study in Markdown: its result and one table per number of trials."""
    bounds = study[study["bound"]]
    too_large = bounds[
        stats.binom.sf(bounds["above_truth"] - 1, bounds["audits"], ALPHA) < 0.01 / len(bounds)
    ]
    key = ["mechanism", "trials"]
    default = study[study["method"] == DEFAULT].set_index(key)["mean"]
    peers = bounds[bounds["method"].str.startswith("jax_privacy")]
    best = peers.groupby(key, sort=False)["mean"].max()[default.index]
    ratio = default / best
    gdp = study[study["method"] == GDP]
    result = (
        f"The default bound, `scan`, is on average above every bound by jax_privacy on the same "
        f"scores in {int((ratio > 1).sum())} of {len(ratio)} columns: {ratio.min():.2f} to "
        f"{ratio.max():.2f} times the largest of them. Bounds are significantly more often than "
        f"in 5 % of audits too large in {len(too_large) or 'none'} of {len(bounds)} cells "
        "(one-sided binomial tests, with an error of 1 % for all together)."
    )
    cells = (
        f"Each cell is the mean bound of {study['audits'].max():,} audits at 95 % confidence, and "
        "the share of audits in which it exceeds the true epsilon. Values in brackets are no "
        "bounds: PrivacyGuard's has no correction for its choice of the threshold, and "
        "`epsilon_from_gdp` of jax_privacy 2.0.0 takes the absolute value of mu, which is negative "
        "where the upper limits of both error rates are large. It exceeds the true epsilon in "
        f"{(gdp['above_truth'] / gdp['audits']).max():.0%} of the audits of "
        f"`{gdp.iloc[gdp['above_truth'].argmax()]['mechanism']}` with "
        f"{gdp.iloc[gdp['above_truth'].argmax()]['trials']:,} + "
        f"{gdp.iloc[gdp['above_truth'].argmax()]['trials']:,} trials. `gaussian-curve` assumes "
        "Gaussian scores. `python -m studies.power` repeats the study. ([Data](power.csv))"
    )
    lines = ["### Power next to other estimators", ""]
    for paragraph in (result, cells):
        # A number stays on the line of its percent sign.
        wrapped = textwrap.wrap(paragraph.replace(" %", "~%"), 100, break_on_hyphens=False)
        lines += [*(line.replace("~%", " %") for line in wrapped), ""]
    lines.pop()
    for trials, rows in study.groupby("trials"):
        lines += ["", f"{trials:,} + {trials:,} trials:", "", *_table(rows)]
    return "\n".join(lines) + "\n"


def _table(rows: pd.DataFrame) -> list[str]:
    names = list(dict.fromkeys(rows["mechanism"]))
    truths = rows.groupby("mechanism")["truth"].first()
    lines = [
        "| estimator | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
        "| **true epsilon** | " + " | ".join(f"{truths[name]:.2f}" for name in names) + " |",
    ]
    for method, part in rows.groupby("method", sort=False):
        shares = part["above_truth"] / part["audits"]
        texts = [
            f"{mean:.2f} {share:.1%}" for mean, share in zip(part["mean"], shares, strict=True)
        ]
        cells = dict(zip(part["mechanism"], texts, strict=True))
        if not part["bound"].all():
            cells = {name: f"({cell})" for name, cell in cells.items()}
        lines.append(f"| {method} | " + " | ".join(cells.get(name, "") for name in names) + " |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--audits", type=int, default=AUDITS)
    parser.add_argument("--out", type=Path, default=_FOLDER, help="folder (default: docs)")
    options = parser.parse_args(argv)
    study = power(all_methods(), options.audits)
    study.to_csv(options.out / "power.csv", index=False, float_format="%.6g")
    page = power_page(pd.read_csv(options.out / "power.csv"))
    (options.out / "power.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()

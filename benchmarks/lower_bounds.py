"""Compares the default lower bound with those of other libraries: value, violations and time.

    python -m benchmarks.lower_bounds --audits 50

Times are processor time.

The other libraries are not dependencies of this project; those that are installed are compared
(`pip install jax-privacy privacy-estimates`). TensorFlow Privacy's `epsilon_lower_bound` is not
included, because none of its released wheels up to 0.9.0 contains it.
"""

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np

from audit.lower_bounds import GaussianCurve, RankSum, Scan, all_lower_bounds
from audit.numerics import FloatArray
from studies.coverage.mechanisms import Mechanism, mechanisms

Estimator = Callable[[FloatArray, FloatArray, Mechanism], float]
ALPHA = 0.05


def _ours(direction: str) -> Estimator:
    return lambda low, high, mechanism: (
        Scan()(low, high, mechanism.delta, 1.0 - ALPHA, direction=direction).epsilon
    )


def _jax_privacy() -> dict[str, Estimator]:
    from jax_privacy import auditing

    def clopper_pearson(strategy: object, one_sided: bool) -> Estimator:
        return lambda low, high, mechanism: auditing.CanaryScoreAuditor(
            high, low
        ).epsilon_clopper_pearson(ALPHA, mechanism.delta, one_sided, threshold_strategy=strategy)

    many = auditing.MultiSplit(num_samples=20, seed=0)
    return {
        "jax_privacy Bonferroni": clopper_pearson(auditing.Bonferroni(), True),
        "jax_privacy Bonferroni, both ratios": clopper_pearson(auditing.Bonferroni(), False),
        "jax_privacy split": clopper_pearson(auditing.Split(seed=0), True),
        "jax_privacy split, both ratios": clopper_pearson(auditing.Split(seed=0), False),
        "jax_privacy multi-split": clopper_pearson(many, True),
        "(jax_privacy GDP curve)": lambda low, high, mechanism: auditing.CanaryScoreAuditor(
            high, low
        ).epsilon_from_gdp(ALPHA, mechanism.delta),
    }


def _privacy_estimates() -> dict[str, Estimator]:
    import privacy_estimates

    def at_threshold(low: FloatArray, high: FloatArray, mechanism: Mechanism) -> float:
        """Clopper-Pearson at a threshold fixed in advance; without one there is no estimate."""
        if mechanism.threshold is None:
            return float("nan")
        fp, fn = int(np.sum(low > mechanism.threshold)), int(np.sum(high <= mechanism.threshold))
        counts = privacy_estimates.AttackResults(FN=fn, FP=fp, TN=len(low) - fp, TP=len(high) - fn)
        return float(privacy_estimates.compute_eps_lo(counts, mechanism.delta, ALPHA, "beta"))

    return {"privacy-estimates, fixed threshold": at_threshold}


def estimators() -> dict[str, Estimator]:
    """Our estimators and those of installed libraries; in brackets if not always valid."""
    rank_sum = GaussianCurve(rule=RankSum())
    found = {
        "scan (default)": _ours("higher"),
        "scan, both ways": _ours("both"),
        "(rank sum, one Gaussian run)": lambda low, high, mechanism: (
            rank_sum(low, high, mechanism.delta, 1.0 - ALPHA).epsilon
        ),
    }
    for name, peers in [("jax_privacy", _jax_privacy), ("privacy_estimates", _privacy_estimates)]:
        try:
            found.update(peers())
        except ImportError as error:
            print(f"{name} is not compared: {error}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--audits", type=int, default=50)
    parser.add_argument("--trials", type=int, default=1_000, help="per side")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the peers' own
    played, methods = mechanisms(options.trials), estimators()
    mean: dict[tuple[str, str], float] = {}
    rate: dict[tuple[str, str], float] = {}
    seconds = dict.fromkeys(methods, 0.0)
    for index, mechanism in enumerate(played):
        rng = np.random.default_rng([options.seed, index])
        values: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(options.audits):
            low, high = mechanism.sample(rng, options.trials)
            for name, method in methods.items():
                begin = time.process_time()
                values[name].append(method(low, high, mechanism))
                seconds[name] += time.process_time() - begin
        for name in methods:
            found = np.array(values[name])
            mean[name, mechanism.name] = float(np.mean(found))
            rate[name, mechanism.name] = float(np.mean(found > mechanism.epsilon))
    print(
        f"\n{options.trials}+{options.trials} trials, {options.audits} audits: mean (violations)\n"
    )
    print("| estimator | " + " | ".join(m.name for m in played) + " | ms |")
    print("|---" * (len(played) + 2) + "|")
    print("| truth | " + " | ".join(f"{m.epsilon:.2f}" for m in played) + " | |")
    audits = options.audits * len(played)
    for name in methods:
        cells = [f"{mean[name, m.name]:.3f} ({rate[name, m.name]:.0%})" for m in played]
        print(f"| {name} | " + " | ".join(cells) + f" | {1e3 * seconds[name] / audits:.2f} |")
    ours = [name for name in methods if name.startswith("scan")]
    peers = [n for n in methods if n not in ours and not n.startswith(("(", "privacy-estimates"))]
    if peers:
        wins = sum(
            all(mean[ours[0], m.name] > mean[peer, m.name] for peer in peers) for m in played
        )
        print(f"\nthe default is above every peer's valid bound on {wins} of {len(played)}")
    for trials in (1_000, 500_000):
        rng = np.random.default_rng(options.seed)
        low, high = rng.normal(size=(2, trials)) + np.array([[0.0], [1.5]])
        all_lower_bounds(out_scores=low[: trials // 2], in_scores=high[: trials // 2])
        begin = time.process_time()
        count = len(all_lower_bounds(out_scores=low, in_scores=high))
        print(f"{count} bounds from {2 * trials} scores: {time.process_time() - begin:.3f} s")


if __name__ == "__main__":
    main()

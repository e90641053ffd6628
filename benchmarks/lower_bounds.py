"""The default lower bound and those of other libraries on the same scores: value, violations, time.

    python benchmarks/lower_bounds.py --games 50

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
from numpy.typing import NDArray

from audit.coverage_study import Game, games
from audit.lower_bounds import GaussianCurve, RankSum, all_lower_bounds, lower_bound

Array = NDArray[np.float64]
Estimator = Callable[[Array, Array, Game], float]
ALPHA = 0.05


def _ours(direction: str) -> Estimator:
    return lambda low, high, game: (
        lower_bound(low, high, game.delta, 1.0 - ALPHA, direction=direction).epsilon
    )


def _jax_privacy() -> dict[str, Estimator]:
    from jax_privacy import auditing

    def clopper_pearson(strategy: object, one_sided: bool) -> Estimator:
        return lambda low, high, game: auditing.CanaryScoreAuditor(
            high, low
        ).epsilon_clopper_pearson(ALPHA, game.delta, one_sided, threshold_strategy=strategy)

    many = auditing.MultiSplit(num_samples=20, seed=0)
    return {
        "jax_privacy Bonferroni": clopper_pearson(auditing.Bonferroni(), True),
        "jax_privacy Bonferroni, both ratios": clopper_pearson(auditing.Bonferroni(), False),
        "jax_privacy split": clopper_pearson(auditing.Split(seed=0), True),
        "jax_privacy split, both ratios": clopper_pearson(auditing.Split(seed=0), False),
        "jax_privacy multi-split": clopper_pearson(many, True),
        "(jax_privacy GDP curve)": lambda low, high, game: auditing.CanaryScoreAuditor(
            high, low
        ).epsilon_from_gdp(ALPHA, game.delta),
    }


def _privacy_estimates() -> dict[str, Estimator]:
    import privacy_estimates

    def at_threshold(low: Array, high: Array, game: Game) -> float:
        """Clopper-Pearson at a threshold fixed in advance; NaN if there is none."""
        if game.threshold is None:
            return float("nan")
        fp, fn = int(np.sum(low > game.threshold)), int(np.sum(high <= game.threshold))
        counts = privacy_estimates.AttackResults(FN=fn, FP=fp, TN=len(low) - fp, TP=len(high) - fn)
        return float(privacy_estimates.compute_eps_lo(counts, game.delta, ALPHA, "beta"))

    return {"privacy-estimates, fixed threshold": at_threshold}


def estimators() -> dict[str, Estimator]:
    """Our estimators and those of installed libraries; in brackets if not always valid."""
    rank_sum = GaussianCurve(rule=RankSum())
    found = {
        "scan (default)": _ours("higher"),
        "scan, both ways": _ours("both"),
        "(rank sum, one Gaussian run)": lambda low, high, game: (
            rank_sum(low, high, game.delta, 1.0 - ALPHA).epsilon
        ),
    }
    for name, peers in [("jax_privacy", _jax_privacy), ("privacy_estimates", _privacy_estimates)]:
        try:
            found.update(peers())
        except ImportError as error:
            print(f"{name} is not compared: {error}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=50)
    parser.add_argument("--trials", type=int, default=1_000, help="per side")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # from the other libraries
    mechanisms, methods = games(options.trials), estimators()
    mean: dict[tuple[str, str], float] = {}
    rate: dict[tuple[str, str], float] = {}
    seconds = dict.fromkeys(methods, 0.0)
    for index, game in enumerate(mechanisms):
        rng = np.random.default_rng([options.seed, index])
        values: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(options.games):
            low, high = game.sample(rng, options.trials)
            for name, method in methods.items():
                begin = time.process_time()
                values[name].append(method(low, high, game))
                seconds[name] += time.process_time() - begin
        for name in methods:
            found = np.array(values[name])
            mean[name, game.name] = float(np.mean(found))
            rate[name, game.name] = float(np.mean(found > game.epsilon))
    print(f"\n{options.trials}+{options.trials} trials, {options.games} games: mean (violations)\n")
    print("| estimator | " + " | ".join(g.name for g in mechanisms) + " | ms |")
    print("|---" * (len(mechanisms) + 2) + "|")
    print("| true value | " + " | ".join(f"{g.epsilon:.2f}" for g in mechanisms) + " | |")
    played = options.games * len(mechanisms)
    for name in methods:
        cells = [f"{mean[name, g.name]:.3f} ({rate[name, g.name]:.0%})" for g in mechanisms]
        print(f"| {name} | " + " | ".join(cells) + f" | {1e3 * seconds[name] / played:.2f} |")
    ours = [name for name in methods if name.startswith("scan")]
    peers = [n for n in methods if n not in ours and not n.startswith(("(", "privacy-estimates"))]
    if peers:
        wins = sum(
            all(mean[ours[0], g.name] > mean[peer, g.name] for peer in peers) for g in mechanisms
        )
        print(
            f"\nthe default exceeds every other library's valid bound on {wins} of "
            f"{len(mechanisms)} mechanisms"
        )
    for trials in (1_000, 500_000):
        rng = np.random.default_rng(options.seed)
        low, high = rng.normal(size=(2, trials)) + np.array([[0.0], [1.5]])
        all_lower_bounds(low[: trials // 2], high[: trials // 2])
        begin = time.process_time()
        count = len(all_lower_bounds(low, high))
        print(f"{count} bounds from {2 * trials} scores: {time.process_time() - begin:.3f} s")


if __name__ == "__main__":
    main()

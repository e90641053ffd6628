"""Inverse questions: the noise, mu, number of runs and distribution of K within a budget."""

from functools import partial
from typing import Any

from audit import accounting, upper_bounds
from audit.accounting import DpSgd, GaussianMechanism, LaplaceMechanism, Mechanism

from .entries import Entry

PROTOCOLS = (
    "tnb:0,0.01",
    "poisson:20",
    "fixed:10",
    "grid:10",
    "grid:10,0.5",
    "adaptive:0.75,1.33/tnb:1,0.1",
    "subset:0.3/tnb:1,0.1",
    "subset:0.3,all/tnb:1,0.1",
    "ptr:0.5,1e-7,1e-8/tnb:1,0.1",
    "best:3/poisson:20",
    "pareto:4/tnb:1,0.1",
    "until:0.1",
    "stopping:0.1",
    "schedule:4,2,1",
    "noisy-max:20",
)
SAMPLED = (
    "tnb:0,0.01",
    "fixed:10",
    "grid:10",
    "subset:0.3/tnb:1,0.1",
    "until:0.1",
    "schedule:4,2,1",
)
FAMILIES = (
    "tnb:0,0.01",
    "tnb:1,0.1",
    "tnb:-0.5,0.001",
    "poisson:20",
    "binomial:30,0.5",
    "fixed:10",
)
BASES: dict[str, Mechanism] = {
    "gaussian": GaussianMechanism(0.25),
    "dpsgd, sampled": DpSgd(1.0, 100, 0.01),
    "laplace": LaplaceMechanism(3.0),
}
TARGET, DELTA = 3.0, 1e-5
GOAL: dict[str, Any] = {"target_epsilon": TARGET, "target_delta": DELTA}
QUICK = {
    "noise | tnb:0,0.01 | full batch",
    "noise | until:0.1 | full batch",
    "noise | schedule:4,2,1 | full batch",
    "mu | noisy-max:20",
    "runs | gaussian | poisson:20",
    "one run",
}


def runs(base: Mechanism, family: str) -> dict[str, Any]:
    """The distribution of K with the most runs that the budget allows."""
    distribution = upper_bounds.calibrate_runs(base, family, **GOAL)
    return {"mean": distribution.mean}


def distributions(base: Mechanism) -> list[Any]:
    """The distributions of K that the budget allows, best first."""
    return [
        [
            option.repetitions.spec.partition(":")[0],
            option.repetitions.mean,
            option.expected_quantile,
        ]
        for option in upper_bounds.best_repetitions(base, **GOAL, max_runs=1e7)
    ]


def one_run() -> dict[str, Any]:
    """Calibrations of a single run."""
    return {
        "mu": {
            f"{accounting_name} {epsilon:g} {delta:g}": accounting.calibrate_mu(
                epsilon, delta, accounting_name
            )
            for accounting_name in ("rdp", "exact")
            for epsilon, delta in ((0.1, 1e-5), (1.0, 1e-5), (8.0, 1e-9))
        },
        "full batch": accounting.full_batch_noise_multiplier(0.25, 300),
        "mean inclusion": accounting.mean_inclusion_mu(1.0, 500, 0.01),
        "limit": accounting.gdp_limit_mu(1.0, 500, 0.01),
        "divisor epsilon": accounting.normaliser_epsilon(1e-5, 1024, 1000, 10),
        "divisor delta": accounting.normaliser_delta(1.0, 1024, 1000, 10),
    }


def noise_multipliers() -> dict[str, float]:
    """Noise multipliers of a single run."""
    return {
        f"{accounting_name} {rate:g}": accounting.calibrate_noise_multiplier(
            2.0, 1e-5, 100, rate, accounting_name
        )
        for accounting_name in ("rdp", "exact")
        for rate in (0.02, 1.0)
    }


def entries() -> dict[str, Entry]:
    """The entries of this family."""
    noise = partial(upper_bounds.calibrate_noise, **GOAL)
    calculations: dict[str, Any] = {
        "one run": one_run,
        "one run | noise multipliers": noise_multipliers,
    }
    for protocol in PROTOCOLS:
        calculations[f"noise | {protocol} | full batch"] = partial(noise, protocol, steps=100)
        calculations[f"mu | {protocol}"] = partial(
            upper_bounds.calibrate_mu_for_tuning, protocol, **GOAL
        )
    for protocol in SAMPLED:
        calculations[f"noise | {protocol} | sampled"] = partial(
            noise, protocol, steps=100, sampling_rate=0.02
        )
    for neighbours, group_size in (("zero-out", 1), ("replace-one", 1), ("add-remove", 3)):
        for rate in (1.0, 0.02):
            calculations[f"noise | tnb:1,0.1 | {neighbours}, group {group_size}, rate {rate:g}"] = (
                partial(
                    noise,
                    "tnb:1,0.1",
                    steps=100,
                    sampling_rate=rate,
                    neighbours=neighbours,
                    group_size=group_size,
                )
            )
    calculations["noise | tnb:1,0.1 | region"] = partial(
        noise, "tnb:1,0.1", steps=100, bound=upper_bounds.region
    )
    for name, base in BASES.items():
        for family in FAMILIES:
            calculations[f"runs | {name} | {family}"] = partial(runs, base, family)
        calculations[f"distributions | {name}"] = partial(distributions, base)
    # A search ends within its own tolerance, and its last steps depend on the processor's exp().
    return {
        name: Entry(compute, is_quick=name in QUICK, relative=1e-7)
        for name, compute in calculations.items()
    }

"""Comparison of upper bounds: `python -m benchmarks.bounds`.

Prints the epsilon of a tuning by the region bound and by every public alternative: dp-accounting
(Renyi divergences, its own list of orders), Papernot & Steinke's theorems at their best orders,
Koskela, Redberg & Wang's profiles, and Liu & Talwar. The ratio is the best alternative divided by
the region bound; above 1 the region bound is tighter. Then prints the seconds that each bound
takes, including the base's accounting, and how many bounds exceed the time goals.
"""

import argparse
import logging
import math
import time

from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant

from audit import upper_bounds
from audit.accounting import DpSgd, Mechanism
from audit.repetitions import (
    Poisson,
    Repetitions,
    TruncatedNegativeBinomial,
    parse_repetitions,
)

# Name, noise multiplier, steps, sampling rate.
BASES = [
    ("mu 0.247", 1 / 0.24721, 1, 1.0),
    ("mu 1", 1.0, 1, 1.0),
    ("mu 3", 1 / 3, 1, 1.0),
    ("sigma 1, rate 0.01, 500", 1.0, 500, 0.01),
    ("sigma 0.7, rate 0.05, 100", 0.7, 100, 0.05),
    ("sigma 4, rate 0.1, 1000", 4.0, 1000, 0.1),
]
PROTOCOLS = [
    "tnb:0,0.01",
    "tnb:1,0.01",
    "tnb:-0.5,0.01",
    "poisson:20",
    "binomial:100,0.2",
    "tnb:0,1e-4",
]
DELTAS = [1e-5, 1e-8]
SECONDS = {"gaussian": 0.2, "sampled": 3.0}


def by_dp_accounting(
    noise: float, steps: int, rate: float, repetitions: Repetitions, delta: float
) -> float:
    """The epsilon of dp-accounting; infinite for distributions of K that it does not support."""
    if isinstance(repetitions, TruncatedNegativeBinomial):
        if repetitions.eta < 0:
            return math.inf
        shape = repetitions.eta
    elif isinstance(repetitions, Poisson):
        shape = math.inf
    else:
        return math.inf
    event: DpEvent = GaussianDpEvent(noise)
    if rate < 1.0:
        event = PoissonSampledDpEvent(rate, event)
    accountant = RdpAccountant()
    composed = SelfComposedDpEvent(event, steps)
    accountant.compose(RepeatAndSelectDpEvent(composed, repetitions.mean, shape))
    return float(accountant.get_epsilon(delta))


def ratios() -> int:
    """Prints all settings; returns the number of settings with a tighter alternative."""
    lost = 0
    print(f"{'base':26} {'K':18} {'delta':>6} {'region':>8} {'best':>8} {'ratio':>6}  by")
    for name, noise, steps, rate in BASES:
        base = DpSgd(noise, steps, rate)
        for protocol in PROTOCOLS:
            repetitions = parse_repetitions(protocol)
            for delta in DELTAS:
                region = upper_bounds.region(base, repetitions, delta).epsilon
                others = {"dp-accounting": by_dp_accounting(noise, steps, rate, repetitions, delta)}
                for bound in ("liu-talwar", "renyi", "profile"):
                    epsilon = upper_bounds.find(bound).function(base, repetitions, delta).epsilon
                    others[bound] = epsilon
                best = min(others, key=lambda one: others[one])
                ratio = others[best] / region
                lost += ratio < 1.0
                print(
                    f"{name:26} {protocol:18} {delta:6.0e} {region:8.4f} {others[best]:8.4f} "
                    f"{ratio:6.3f}  {best}"
                )
    return lost


def seconds(rounds: int) -> int:
    """Prints each bound's time for its slowest protocol; returns how many exceed the goal."""
    missed = 0
    print(
        f"\n{'bound':14} {'gaussian s':>10} {'sampled s':>10}   "
        f"slowest protocol, best of {rounds} rounds"
    )
    for name, bound in ((one.name, one.function) for one in upper_bounds.entries()):
        row = []
        for kind, make in (
            ("gaussian", lambda: DpSgd(1.0, 1)),
            ("sampled", lambda: DpSgd(1.0, 500, 0.01)),
        ):
            slowest = max(
                _best_of(rounds, lambda k=k, make=make, bound=bound: bound(make(), k, 1e-5))
                for k in map(parse_repetitions, [*PROTOCOLS, "tnb:0,0.01@100"])
            )
            missed += slowest > SECONDS[kind]
            row.append(f"{slowest:10.3f}")
        print(f"{name:14} {' '.join(row)}")
    return missed


def _best_of(rounds: int, call) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def accounting_error() -> None:
    """Prints the error in epsilon of the discretised privacy loss, against a closed form."""
    print("\nsampling rate almost 1 against the Gaussian closed form: epsilon / exact - 1")
    for noise, steps in ((3.0, 20), (30.0, 1000), (1.0, 10)):
        sampled, exact = DpSgd(noise, steps, 1.0 - 1e-12), DpSgd(noise, steps)
        errors = [_error(sampled, exact, delta) for delta in (1e-2, 1e-5, 1e-10, 1e-30)]
        print(f"sigma {noise:g}, {steps} steps: " + "  ".join(f"{error:+.1e}" for error in errors))


def _error(sampled: Mechanism, exact: Mechanism, delta: float) -> float:
    return sampled.epsilon(delta) / exact.epsilon(delta) - 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)
    lost = ratios()
    missed = seconds(arguments.rounds)
    accounting_error()
    print(f"\nsettings with a tighter alternative: {lost}; bounds over the time goal: {missed}")


if __name__ == "__main__":
    main()

"""The cost of every protocol compared with the papers' bounds, and the time to compute it.

`python -m benchmarks.protocols` prints one row per setting and the largest ratio per paper.
"""

import itertools
import time
from collections import defaultdict

from audit.accounting import DpSgd, GaussianMechanism, Mechanism
from audit.upper_bounds import all_upper_bounds, tuning_cost

DELTA = 1e-5
MUS = (0.24721, 0.5, 1.0)
REPETITIONS = ("tnb:0,0.01", "tnb:1,0.1")
SETTINGS = {
    "hypo": [
        f"adaptive:{ends}/{repetitions}"
        for ends, repetitions in itertools.product(("0.9,1.1", "0.75,1.33", "0.5,2"), REPETITIONS)
    ],
    "koskela-kulkarni": [
        f"subset:{rate}/{repetitions}"
        for rate, repetitions in itertools.product((0.05, 0.1, 0.3), REPETITIONS)
    ],
    "proposition-15": [f"until:{acceptance}" for acceptance in (0.5, 0.1, 0.01)],
}
SAMPLED = ("grid:20", "adaptive:0.75,1.33/tnb:1,0.1", "subset:0.1/tnb:1,0.1", "until:0.1")


def timed(base: Mechanism, protocol: str) -> tuple[float, float]:
    """The cost, and the seconds to compute it."""
    start = time.perf_counter()
    found = tuning_cost(base, protocol, DELTA).epsilon
    return float(found or 0.0), time.perf_counter() - start


def main() -> None:
    """Prints the ratios to the papers' bounds, and the times."""
    largest: dict[str, float] = defaultdict(float)
    for paper, settings in SETTINGS.items():
        for mu, protocol in itertools.product(MUS, settings):
            base = GaussianMechanism(mu)
            theirs = {row.name: row.epsilon for row in all_upper_bounds(base, protocol, DELTA)}[
                paper
            ]
            ours, seconds = timed(base, protocol)
            ratio = ours / float(theirs or 1.0)
            largest[paper] = max(largest[paper], ratio)
            print(f"mu {mu:<8} {protocol:30} {paper} {theirs:.4f} cost {ours:.4f} ", end="")
            print(f"ratio {ratio:.3f} in {seconds:.2f} s")
    for paper, ratio in largest.items():
        print(f"largest ratio to {paper}: {ratio:.3f}")
    base = DpSgd(noise_multiplier=1.0, steps=500, sampling_rate=0.01)
    for protocol in SAMPLED:
        ours, seconds = timed(base, protocol)
        print(f"500 sampled steps {protocol:30} {ours:.4f} in {seconds:.2f} s")


if __name__ == "__main__":
    main()

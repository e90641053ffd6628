"""Engines side by side, each on one thread: `python -m benchmarks.engine`.

Speeds are run-steps per second of processor time, and their ratio to Opacus one run at a time,
measured in the same minutes on the same machine. Large blocks stay with malloc instead of going
back to the system, without which Opacus is several times slower than it can be. Peak memory is what
the process grew by. Images are random: only time is measured.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
from torch import nn

import threat_models
from audit.dpsgd import DpSgdSettings, Lanes, make_engine, models
from threat_models import CanaryLoss, Records, etcv, ntcv

SHAPE = (1, 28, 28)
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
}


class Opaque(nn.Module):
    """Hides what a model is made of, so that the engine falls back on vmap."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def opaque_mlp(record_shape, classes):
    return Opaque(models.mlp(record_shape, classes))


def opaque_convnet(record_shape, classes):
    return Opaque(models.convnet(record_shape, classes))


def lanes(count: int) -> Lanes:
    random = np.random.default_rng(count)
    seeds = random.integers(2**63, size=count, dtype=np.uint64)
    return Lanes(np.arange(count) % 2 == 0, np.zeros(count, np.int64), seeds)


def threat(size: int) -> threat_models.ThreatModel:
    random = np.random.default_rng(0)
    x = random.random((size + 1, *SHAPE), dtype=np.float32)
    records = Records(x, random.integers(10, size=size + 1), 10, "NOISE")
    canary = records.canary(size)
    score = CanaryLoss(canary)
    if size == 0:
        return etcv(canary, score, SHAPE, 10)
    return ntcv(records.first(size), None, canary, score)


def measure(
    answer: Connection, engine: str, model: str, size: int, steps: int, seconds: float
) -> None:
    """Sends lanes in a pack, the median rate and the growth of memory in MB, from a process."""
    settings = DpSgdSettings(steps, 1.0, 1.0, (0.01,), model=model)
    made = make_engine(engine, threat(size), settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = made.lanes_per_pack()
    pack = lanes(count)
    rates = []
    end = time.perf_counter() + seconds
    while len(rates) < 2 or time.perf_counter() < end:
        start = time.process_time()
        made.run(pack)
        rates.append(count * steps / (time.process_time() - start))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # The first round warms the caches up.
    answer.send((count, float(np.median(rates[1:])), grown / 1024))


def row(*arguments) -> tuple[int, float, float]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=measure, args=(theirs, *arguments))
    process.start()
    result = ours.recv()
    process.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5000, help="training records in NTCV")
    parser.add_argument("--seconds", type=float, default=4.0, help="at least, per line")
    options = parser.parse_args()
    print(f"{'setup':<18}{'engine':<12}{'lanes':>6}{'run-steps/s':>13}{'ratio':>8}{'peak MB':>9}")
    for model in ("mlp", "convnet"):
        for size in (0, options.records):
            # A run's start costs Opacus milliseconds: enough steps to make it small.
            steps = 2 if size else 100
            cases = [("opacus", model), ("batched", model)]
            cases.append(("batched", f"{__spec__.name}.opaque_{model}"))
            if size == 0 and model == "mlp":
                cases.append(("projected", model))
            base = None
            for engine, name in cases:
                count, rate, memory = row(engine, name, size, steps, options.seconds)
                base = base or rate
                label = f"{model} n={size}" if size else f"{model} ETCV"
                shown = "vmap" if "opaque" in name else engine
                print(f"{label:<18}{shown:<12}{count:>6}{rate:>13.4g}{rate / base:>8.1f}"
                      f"{memory:>9.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        # They are read when a process starts.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ENVIRONMENT)
    main()

"""Engines side by side, each on one thread: `python -m benchmarks.engine`.

Speeds are run-steps per second of processor time, the best of several rounds, and their ratio to
Opacus one run at a time, measured in the same minutes on the same machine. Large blocks stay with
malloc instead of going back to the system, without which Opacus is several times slower than it
can be. Peak memory is what the process grew by, or what was allocated on the GPU. Hours are for one
row of the paper's table 2: 2,000 trials, about 43,000 runs, at 300 steps. Images are random: only
time is measured.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import nn

import threat_models
from audit.dpsgd import DpSgdSettings, Lanes, make_engine, models
from canaries import InputCanary
from threat_models import CanaryLoss, Records, etcv, ntcv

SHAPE = (1, 28, 28)
ROW_RUN_STEPS = 43_000 * 300
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
    y = random.integers(10, size=size + 1)
    canary = InputCanary(x[size], int(y[size]), "NOISE")
    score = CanaryLoss(canary)
    if size == 0:
        return etcv(canary, score, SHAPE, 10)
    return ntcv(Records(x[:size], y[:size], 10, "NOISE"), None, canary, score)


def measure(
    answer: Connection, engine: str, model: str, size: int, steps: int, device: str, seconds: float
) -> None:
    """Sends the lanes of a pack, the best rate and the growth of memory in MB."""
    settings = DpSgdSettings(steps, 1.0, 1.0, (0.01,), model=model)
    made = make_engine(engine, threat(size), settings, device)
    # On a GPU the processor only waits.
    clock = time.process_time if device == "cpu" else time.perf_counter
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = made.lanes_per_pack()
    pack = lanes(count)
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < end:
        start = clock()
        made.run(pack)
        rates.append(count * steps / (clock() - start))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if device != "cpu":
        memory = torch.cuda.max_memory_allocated() / 2**20
    answer.send((count, max(rates), memory))


def row(*arguments) -> tuple[int, float, float]:
    """`measure` in a process of its own, so that its memory is its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure, args=(theirs, *arguments))
    process.start()
    theirs.close()
    result = ours.recv()
    process.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5000, help="training records in NTCV")
    parser.add_argument("--seconds", type=float, default=4.0, help="at least, per line")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"{'setup':<18}{'engine':<12}{'lanes':>6}{'run-steps/s':>13}{'ratio':>8}{'peak MB':>9}"
          f"{'hours':>9}")  # fmt: skip
    for model in ("mlp", "convnet"):
        for size in (0, options.records):
            # A run's start costs Opacus milliseconds, and memory: enough steps to make it small.
            steps = 6 if size else 100
            cases = [("opacus", model), ("batched", model)]
            cases.append(("batched", f"{__spec__.name}.opaque_{model}"))
            if size == 0 and model == "mlp":
                cases.append(("projected", model))
            base = None
            for engine, name in cases:
                few = 1 if engine == "batched" and size else steps
                result = row(engine, name, size, few, options.device, options.seconds)
                count, rate, memory = result
                base = base or rate
                label = f"{model} n={size}" if size else f"{model} ETCV"
                shown = "vmap" if "opaque" in name else engine
                hours = ROW_RUN_STEPS / rate / 3600
                print(f"{label:<18}{shown:<12}{count:>6}{rate:>13.4g}{rate / base:>8.1f}"
                      f"{memory:>9.0f}{hours:>9.3g}", flush=True)  # fmt: skip


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        # They are read when a process starts.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ENVIRONMENT)
    main()

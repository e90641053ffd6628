"""Engines side by side, each on one thread: `python -m benchmarks.engine [--device cuda]`.

Speeds are run-steps per second of processor time, the best of several rounds, and their ratio to
Opacus one run at a time, measured in the same minutes on the same machine. Large blocks stay with
malloc instead of going back to the system, without which Opacus is several times slower than it
can be. Peak memory is what the process grew by, or what was allocated on the GPU. Hours are for one
row of the paper's table 2: 2,000 trials, about 43,000 runs, at 300 steps. Images are random: only
time is measured.

The roof is the speed at which the products of the gradients and the noise would take as long as
they do alone, at the measured rates of one large float32 product and of `normal_` on this device;
memory and launches of kernels are not in it. Lanes are as many as an audit has side by side. On a
GPU the time is by the clock: a run ends with the copy of its outcomes, which waits for all before.
"""

import argparse
import itertools
import math
import multiprocessing
import os
import resource
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import threat_models
from audit.dpsgd import DpSgdSettings, Lanes, make_engine, models
from audit.dpsgd.products import affine
from audit.game import play as game
from audit.game.settings import AuditConfig
from canaries import InputCanary
from threat_models import CanaryLoss, Records, etcv, ntcv

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
ROW_RUN_STEPS = 43_000 * 300
# Rows of table 2 for 3 budgets and 3 repeats, at one set of runs for NTNV and NTCV with both
# canaries (half of the runs once, half twice): FASHION, then CIFAR10 and SVHN. ETCV with the Dirac
# canary takes no time.
NT_ROWS = {GREY: 9 * 1.5, COLOUR: 9 * 2 * 1.5}
ETCV_ROWS = {GREY: 9, COLOUR: 9 * 2}
# A case that takes longer is given up.
PATIENCE = 150.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
}


OPAQUE = "benchmarks.engine.opaque_"


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


def threat(size: int, shape: tuple[int, ...]) -> threat_models.ThreatModel:
    random = np.random.default_rng(0)
    x = random.random((size + 1, *shape), dtype=np.float32)
    y = random.integers(10, size=size + 1)
    canary = InputCanary(x[size], int(y[size]), "NOISE")
    score = CanaryLoss(canary)
    if size == 0:
        return etcv(canary, score, shape, 10)
    return ntcv(Records(x[:size], y[:size], 10, "NOISE"), None, canary, score)


def runs_per_block(size: int) -> int:
    """How many runs an audit gives the engine at once."""
    kind, size = ("NTCV", size) if size else ("ETCV", 1)
    config = AuditConfig(kind, "input", train_size=size, steps=300, repetitions="fixed:1",
                         trials=10**6)  # fmt: skip
    return game.blocks(config, "batched")[0].trials


def best_rate(call, amount: float, device: str, seconds: float) -> float:
    """The most of an amount that a call gets done per second, in at least three calls."""
    # On a GPU the processor only waits.
    clock = time.process_time if device == "cpu" else time.perf_counter
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < end:
        start = clock()
        call()
        if device != "cpu":
            torch.cuda.synchronize(device)
        rates.append(amount / (clock() - start))
    return max(rates)


def roof(answer: Connection, device: str) -> None:
    """Sends the rates of one large product, in FLOP/s, and of normal numbers."""
    torch.backends.cuda.matmul.allow_tf32 = False
    side, count = (1024, 1 << 18) if device == "cpu" else (8192, 1 << 28)
    x = torch.rand(side, side, device=device)
    numbers = torch.empty(count, device=device)
    products = best_rate(lambda: affine(x, x), 2.0 * side**3, device, 1.0)
    normals = best_rate(numbers.normal_, count, device, 1.0)
    answer.send((products, normals))


def record_flops(model: str, shape: tuple[int, ...]) -> int:
    """Of one record's forward and backward pass."""
    made = models.make_model(model.removeprefix(OPAQUE), 0, shape, 10, torch.float32)
    with FlopCounterMode(display=False) as counter:
        made(torch.rand(1, *shape)).sum().backward()
    return counter.get_total_flops()


def measure(
    answer: Connection,
    engine: str,
    model: str,
    size: int,
    shape: tuple[int, ...],
    steps: int,
    options: argparse.Namespace,
    roofs: tuple[float, float],
) -> None:
    """Sends the lanes of a pack, the best rate, its share of the roof and the memory in MB."""
    device = options.device
    precision = "float32" if engine == "opacus" else options.precision

    def make():
        settings = DpSgdSettings(steps, 1.0, 1.0, (0.01,), model=model)
        return make_engine(engine, threat(size, shape), settings, device, precision)

    made = make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = 1 if engine == "opacus" else min(made.lanes_per_pack(), runs_per_block(size))
    if device != "cpu":
        # vmap's own kernels for many lanes may take minutes.
        count = min(count, 16) if model.startswith(OPAQUE) else count
    pack = lanes(count)
    if device != "cpu":
        made.run(pack)  # starts CUDA's libraries
    while device != "cpu" and steps < 300:
        # Until there are steps enough to make what a run begins with small.
        start = time.perf_counter()
        made.run(pack)
        if 6 * (time.perf_counter() - start) > options.seconds:
            break
        steps = min(4 * steps, 300)
        made = make()
    rate = best_rate(lambda: made.run(pack), count * steps, device, options.seconds)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if device != "cpu":
        memory = torch.cuda.max_memory_allocated(device) / 2**20
    products, normals = roofs
    # The projected model has almost no products.
    flops = 0 if engine == "projected" else max(size, 1) * record_flops(model, shape)
    share = rate * (flops / products + made.parameters / normals)
    answer.send((count, rate, share, memory))


def in_a_process(target, *arguments):
    """What `target` sends from a process of its own, so that its memory is its own; or None."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(PATIENCE) else None
    except EOFError:  # it said why
        return None
    finally:
        process.kill()
        process.join()


def cases(model: str, size: int, shape: tuple[int, ...]) -> list[tuple[str, str]]:
    """Engines and their models; on colours only those that an audit takes."""
    best = [("batched", model)]
    if size == 0 and model == "mlp":
        best.append(("projected", model))
    if shape == COLOUR:
        return best[-1:]
    return [("opacus", model), best[0], ("batched", OPAQUE + model), *best[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5000, help="training records in NTCV")
    parser.add_argument("--seconds", type=float, default=4.0, help="at least, per line")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", help="of all but Opacus")
    parser.add_argument("--models", nargs="+", default=["mlp", "convnet"])
    options = parser.parse_args()
    roofs = in_a_process(roof, options.device)
    if roofs is None:
        sys.exit(f"no measurement on {options.device}")
    print(f"roof: {roofs[0]:.3g} FLOP/s of float32 products, {roofs[1]:.3g} normal numbers/s")
    print(f"{'setup':<24}{'engine':<12}{'lanes':>6}{'run-steps/s':>13}{'ratio':>8}"
          f"{'peak MB':>9}{'a lane':>9}{'hours':>9}{'of roof':>9}", flush=True)  # fmt: skip
    for model in options.models:
        total = 0.0
        for shape, size in itertools.product((GREY, COLOUR), (0, options.records)):
            # A run's start costs Opacus milliseconds, and memory: enough steps to make it small.
            steps = 6 if size else 100
            label = f"{model} n={size}" if size else f"{model} ETCV"
            label += " 32x32x3" if shape == COLOUR else ""
            base, best = None, math.nan
            for engine, name in cases(model, size, shape):
                few = 1 if engine == "batched" and size else steps
                shown = "vmap" if name.startswith(OPAQUE) else engine
                result = in_a_process(measure, engine, name, size, shape, few, options, roofs)
                if result is None:
                    print(f"{label:<24}{shown:<12} failed, or over {PATIENCE:.0f} s", flush=True)
                    continue
                count, rate, share, memory = result
                base = base or (rate if engine == "opacus" else None)
                ratio = f"{rate / base:.1f}" if base else "-"
                hours = ROW_RUN_STEPS / rate / 3600
                print(f"{label:<24}{shown:<12}{count:>6}{rate:>13.4g}{ratio:>8}"
                      f"{memory:>9.0f}{memory / count:>9.3g}{hours:>9.3g}{share:>9.1%}",
                      flush=True)  # fmt: skip
                if engine != "opacus" and shown != "vmap":
                    best = hours
            total += (NT_ROWS if size else ETCV_ROWS)[shape] * best
        print(f"{model}: {total:.3g} hours for table 2, 3 budgets and 3 repeats, on one device")


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        # They are read when a process starts.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ENVIRONMENT)
    main()

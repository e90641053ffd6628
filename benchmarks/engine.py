"""Speed of the engines and of other libraries, on one thread: `python -m benchmarks.engine`.

The lines of one setup are measured in turns, round after round. Each has its own process, which is
warmed up until page faults stop, because a growing heap makes Opacus twice as slow. Speeds are
run-steps per second of processor time, the best of all rounds. They are also given as ratios to the
fastest private library and to Opacus in its default mode (hooks, one run at a time). malloc keeps
large blocks instead of returning them to the system; otherwise Opacus is several times slower.
Other libraries get records with channels last in memory if that is faster. JAX gets one thread, and
the microbatches and numbers of runs that are quickest (`jax_peers`). Peak memory is the
growth of the process, or the allocation on the GPU. Hours are for one row of the paper's table 2:
2,000 trials, about 43,000 runs, at 300 steps. Images are random, because only time is measured.

The roof is the speed if only the gradients' products and the noise took time, at the measured rates
of a large float32 product and of normal numbers on this device. It ignores memory access and kernel
launches. The number of runs is that of an audit's packs. On a GPU, time is wall-clock time; a
measurement ends with the copy of the outcomes, which waits for all kernels.
"""

import argparse
import contextlib
import itertools
import math
import multiprocessing
import os
import platform
import resource
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import threat_models
from audit.dpsgd import DpSgdSettings, RunBatch, make_engine, models, noise
from audit.dpsgd.products import affine
from audit.game.play import all_blocks
from audit.game.settings import AuditConfig
from benchmarks import jax_peers, peers
from canaries import InputCanary
from threat_models import CanaryLoss, Records, etcv, ntcv

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
ROW_RUN_STEPS = 43_000 * 300
# Rows of table 2 for 3 budgets and 3 repeats: FASHION, then CIFAR10 and SVHN. NTNV and NTCV with
# both canaries share runs (half of them are trained once, half twice). ETCV with the Dirac canary
# takes no time.
NT_ROWS = {GREY: 9 * 1.5, COLOUR: 9 * 2 * 1.5}
ETCV_ROWS = {GREY: 9, COLOUR: 9 * 2}
# Seconds after which a measurement is abandoned; JAX compiles for minutes on a busy machine.
PATIENCE = 900.0
# Page faults per call below which the heap has stopped growing: a megabyte.
FEW_FAULTS = 256
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "XLA_FLAGS": jax_peers.THREADS,
}


OPAQUE = "benchmarks.engine.opaque_"


class Opaque(nn.Module):
    """A model with hidden layers, for which the engine must use vmap."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def opaque_mlp(record_shape, classes):
    return Opaque(models.mlp(record_shape, classes))


def opaque_convnet(record_shape, classes):
    return Opaque(models.convnet(record_shape, classes))


def run_batch(count: int) -> RunBatch:
    random = np.random.default_rng(count)
    seeds = random.integers(2**63, size=count, dtype=np.uint64)
    return RunBatch(np.arange(count) % 2 == 0, np.zeros(count, np.int64), seeds)


def threat(size: int, shape: tuple[int, ...]) -> threat_models.ThreatModel:
    random = np.random.default_rng(0)
    x = random.random((size + 1, *shape), dtype=np.float32)
    y = random.integers(10, size=size + 1)
    canary = InputCanary(x[size], int(y[size]), "NOISE")
    score = CanaryLoss(canary)
    if size == 0:
        return etcv(canary, score, shape, 10)
    return ntcv(Records(x[:size], y[:size], 10, "NOISE"), None, canary, score)


def runs_per_block(model: str, size: int, device: str) -> int:
    """The number of runs that an audit passes to the engine at once."""
    kind, size = ("NTCV", size) if size else ("ETCV", 1)
    config = AuditConfig(kind, "input", train_size=size, steps=300, repetitions="fixed:1",
                         trials=10**6, model=model.removeprefix(OPAQUE),
                         devices=[device])  # fmt: skip
    return all_blocks(config.workload, "batched")[0].trials


def seconds_of(call, device: str) -> float:
    """Processor time of a call; wall-clock time on a GPU."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    call()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return clock() - start


def warm_up(call, seconds: float) -> None:
    """Repeats a call until page faults stop: at least twice, and for at most `seconds`."""
    end, quiet = time.perf_counter() + seconds, 0
    while quiet < 2 and time.perf_counter() < end:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        call()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        quiet = quiet + 1 if faults < FEW_FAULTS else 0


def roof(answer: Connection, device: str) -> None:
    """Sends the rates of one large product, in FLOP/s, and of normal numbers."""
    torch.backends.cuda.matmul.allow_tf32 = False
    side, count = (1024, 1 << 18) if device == "cpu" else (8192, 1 << 28)
    x = torch.rand(side, side, device=device)
    numbers = torch.empty(1, count, device=device)
    seeds, scales = np.zeros(1, np.uint64), np.ones(1, np.float32)

    def draw() -> None:
        if device == "cpu":
            noise.fill_normals(numbers, seeds, 0, 0, scales)
        else:
            numbers.normal_()

    rates = []
    for call, amount in ((lambda: affine(x, x), 2.0 * side**3), (draw, float(count))):
        warm_up(call, 1.0)
        rates.append(amount / min(seconds_of(call, device) for _ in range(20)))
    answer.send(tuple(rates))


@dataclass(frozen=True)
class Case:
    """The measurement of one line.

    Attributes:
        line: the name of an engine or of another library.
        model: a name of `models`, or an opaque model.
        size: number of training records; with 0, other libraries train on the canary.
        shape: shape of a record.
        device: a torch device.
        precision: precision of the engines.
        seconds: minimum duration of a round.
    """

    line: str
    model: str
    size: int
    shape: tuple[int, ...]
    device: str
    precision: str
    seconds: float

    @property
    def is_peer(self) -> bool:
        """Whether it measures another library."""
        return self.line in (*peers.PEERS, *jax_peers.PEERS)

    def prepare(self):
        """The function to call, its run-steps, the parameters of a run, and the number of runs."""
        if self.is_peer:
            return self._peer()
        engine = self.line if self.line != "vmap" else "batched"
        steps = 300 if self.device != "cpu" and not self.size else 6 if self.size else 100
        # vmap is slow: one step suffices.
        steps = 1 if self.line == "vmap" and self.size else steps
        settings = DpSgdSettings(steps, 1.0, 1.0, (0.01,), model=self.model)
        world = threat(self.size, self.shape)
        made = make_engine(engine, world, settings, self.device, self.precision)
        count = min(made.runs_per_pack(), runs_per_block(self.model, self.size, self.device))
        # On a GPU, vmap's kernels for many runs may take minutes.
        count = min(count, 16) if self.line == "vmap" and self.device != "cpu" else count
        pack = run_batch(count)
        return (lambda: made.run(pack)), count * steps, made.parameters, count

    def _peer(self):
        world = threat(self.size, self.shape)
        records = world.training_set
        x = world.canary.features[None] if records is None else records.features
        y = np.array([world.canary.label]) if records is None else records.labels
        steps = 100 if not self.size else 1
        if self.line in jax_peers.PEERS:
            model = models.make_model(self.model, 0, self.shape, 10, torch.float32)
            data = torch.from_numpy(x), torch.from_numpy(y)
            call, runs = jax_peers.quickest(self.line, model, *data, steps)
            return call, steps * runs, sum(p.numel() for p in model.parameters()), runs
        layouts = {}
        for layout in (torch.contiguous_format, torch.channels_last):
            model = models.make_model(self.model, 0, self.shape, 10, torch.float32)
            model = model.to(self.device, memory_format=layout)
            data = torch.from_numpy(x).to(self.device, memory_format=layout)
            take = peers.step(self.line, model, data, torch.from_numpy(y).to(self.device))

            def call(take=take) -> None:
                for _ in range(steps):
                    take()

            warm_up(call, 5.0)
            layouts[layout] = min(seconds_of(call, self.device) for _ in range(2)), call
        _, best = min(layouts.values(), key=lambda found: found[0])
        return best, steps, sum(p.numel() for p in model.parameters()), 1


def record_flops(case: Case) -> int:
    """FLOPs of one record's forward and backward pass."""
    made = models.make_model(case.model.removeprefix(OPAQUE), 0, case.shape, 10, torch.float32)
    with FlopCounterMode(display=False) as counter:
        made(torch.rand(1, *case.shape)).sum().backward()
    return counter.get_total_flops()


def measure(answer: Connection, case: Case) -> None:
    """Sends runs, their parameters and a step's FLOPs; then a round's best rate per message.

    After receiving None, it sends the memory in MB and ends.
    """
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call, amount, parameters, count = case.prepare()
    warm_up(call, 10 * case.seconds)
    flops = 0 if case.line == "projected" else max(case.size, 1) * record_flops(case)
    answer.send((count, parameters, flops))
    while answer.recv() is not None:
        best, end = 0.0, time.perf_counter() + case.seconds
        while not best or time.perf_counter() < end:
            best = max(best, amount / seconds_of(call, case.device))
        answer.send(best)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if case.device != "cpu":
        memory = torch.cuda.max_memory_allocated(case.device) / 2**20
    answer.send(memory)


class Measured:
    """A measurement in a separate process, so that its memory can be measured.

    Attributes:
        rate: the best rate so far; None if the process failed, in which case it printed why.
    """

    def __init__(self, target, *arguments) -> None:
        # Forking avoids repeated imports. This process computes nothing itself: after a backward
        # pass, CUDA would not start in its children.
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments))
        self._process.start()
        theirs.close()  # otherwise the end of the process would not be noticed
        self.rate: float | None = 0.0

    def answer(self):
        """The next message; None if the process failed or took too long."""
        try:
            return self._ours.recv() if self._ours.poll(PATIENCE) else None
        except EOFError:  # the process failed and printed why
            return None

    def play(self) -> None:
        """Runs one more round."""
        if self.rate is None:
            return
        self._ours.send(True)
        found = self.answer()
        self.rate = None if found is None else max(self.rate, found)

    def memory(self) -> float:
        """Peak memory in MB."""
        self._ours.send(None)
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def why_missing(peer: str, device: str) -> str | None:
    """The reason why a library cannot be measured on a device; None if it can."""
    if peer in jax_peers.PEERS:
        return jax_peers.why_missing(peer, device)
    return peers.why_missing(peer)


def lines(model: str, size: int, shape: tuple[int, ...], device: str) -> list[tuple[str, str]]:
    """Lines and their models; for colour images only the engine that an audit uses."""
    ours = [("batched", model)]
    if size == 0 and model == "mlp":
        ours.append(("projected", model))
    if shape == COLOUR:
        return ours[-1:]
    here = [peer for peer in (*peers.PEERS, *jax_peers.PEERS) if why_missing(peer, device) is None]
    return [*((peer, model) for peer in here), ("vmap", OPAQUE + model), *ours]


def compare(
    model: str, size: int, shape: tuple[int, ...], options, roofs: tuple[float, float]
) -> float:
    """Prints the lines of one setup; returns the hours of our fastest engine."""
    label = (f"{model} n={size}" if size else f"{model} ETCV") + " 32x32x3" * (shape == COLOUR)
    playing = []
    for line, name in lines(model, size, shape, options.device):
        case = Case(line, name, size, shape, options.device, options.precision, options.seconds)
        process = Measured(measure, case)
        playing.append((line, process, process.answer()))
        process.rate = 0.0 if playing[-1][2] is not None else None
    for _ in range(options.rounds):
        for _, process, _ in playing:
            process.play()
    rates = {line: process.rate for line, process, _ in playing}
    private = [
        rates[line] for line in (*peers.PRIVATE, *jax_peers.PEERS, "vmap") if rates.get(line)
    ]
    hours = math.nan
    for line, process, begun in playing:
        rate = process.rate
        if rate is None:
            print(f"{label:<22}{line:<12} failed, or took over {PATIENCE:.0f} s", flush=True)
        else:
            count, parameters, flops = begun
            memory = process.memory()
            share = rate * (flops / roofs[0] + (line != "sgd") * parameters / roofs[1])
            ratios = [f"{rate / max(private):.2f}" if private else "-"]
            ratios.append(f"{rate / rates['opacus']:.2f}" if rates.get("opacus") else "-")
            took = ROW_RUN_STEPS / rate / 3600
            print(f"{label:<22}{line:<12}{count:>6}{1e3 / rate:>10.4g}{rate:>11.4g}"
                  f"{ratios[0]:>9}{ratios[1]:>9}{memory:>9.0f}{memory / count:>9.3g}{took:>9.3g}"
                  f"{share:>9.1%}", flush=True)  # fmt: skip
            if line in ("batched", "projected"):
                hours = took
        process.end()
    print(f"{label:<22}{load()}", flush=True)
    return hours


def processor() -> str:
    """The name of the processor."""
    with contextlib.suppress(OSError, StopIteration):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return next(line for line in text.splitlines() if "model name" in line).split(": ")[1]
    return platform.processor() or platform.machine()


def load() -> str:
    """The load of the machine, which slows down measurements although they are processor time."""
    if not hasattr(os, "getloadavg"):
        return "load unknown"
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--records", type=int, default=5000, help="training records in NTCV")
    parser.add_argument("--seconds", type=float, default=2.0, help="minimum per line and round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", help="precision of our engines")
    parser.add_argument("--models", nargs="+", default=["mlp", "convnet"])
    parser.add_argument("--only", choices=("etcv", "ntcv"), help="one of the two data sets")
    parser.add_argument("--grey", action="store_true", help="omit the 32x32x3 records")
    options = parser.parse_args()
    process = Measured(roof, options.device)
    roofs = process.answer()
    process.end()
    if roofs is None:
        sys.exit(f"no measurement on {options.device}")
    for peer in (*peers.PEERS, *jax_peers.PEERS):
        if reason := why_missing(peer, options.device):
            print(f"{peer} is not compared: {reason}")
    print(f"processor: {processor()}; {load()}")
    print(f"roof: {roofs[0]:.3g} FLOP/s of float32 products, {roofs[1]:.3g} normal numbers/s")
    print(f"{'setup':<22}{'line':<12}{'runs':>6}{'ms/step':>10}{'steps/s':>11}{'to peer':>9}"
          f"{'to hooks':>9}{'peak MB':>9}{'a run':>9}{'hours':>9}{'of roof':>9}",
          flush=True)  # fmt: skip
    for model in options.models:
        total = 0.0
        sizes = [0] * (options.only != "ntcv") + [options.records] * (options.only != "etcv")
        for shape, size in itertools.product((GREY, COLOUR), sizes):
            if shape == GREY or not options.grey:
                hours = compare(model, size, shape, options, roofs)
                total += (NT_ROWS if size else ETCV_ROWS)[shape] * hours
        if not options.grey and options.only is None:
            print(f"{model}: {total:.3g} hours for table 2, 3 budgets and 3 repeats, on one device")


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        # These variables take effect when a process starts.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ENVIRONMENT)
    main()

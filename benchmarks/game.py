"""Speed of the game, of its workers and of the bounds: `python -m benchmarks.game [TRIALS]`."""

import sys
import tempfile
import time
from dataclasses import replace

import numpy as np

from audit import accounting, lower_bounds, upper_bounds
from audit.game import play as game
from audit.game.settings import AuditConfig
from audit.game.setup import set_up
from audit.game.store import RunFolder
from audit.game.workers import play_all
from audit.repetitions import parse_repetitions
from audit.upper_bounds import registry


def seconds(call, repeats=3):
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def plain_loop(config, mu, trials):
    """Simulates the reduced game in a Python loop, one trial and one run at a time."""
    rng = np.random.default_rng(0)
    released = []
    for _ in range(trials):
        bit = rng.integers(2)
        best = -np.inf
        for _ in range(int(config.runs_distribution.sample(rng, 1)[0])):
            best = max(best, rng.normal(bit * mu, 1.0))
        released.append((bit, best))
    return released


def with_workers(jobs, engine, settings):
    """Seconds of a game on workers that are already started, and its number of blocks."""
    config = AuditConfig(epsilon=(1.0,), repeats=1, jobs=jobs, **settings)
    blocks = game.blocks(config, engine)
    for some in (blocks[:jobs], blocks):
        with tempfile.TemporaryDirectory() as folder:
            run = RunFolder.open(replace(config, out=folder), {})
            start = time.perf_counter()
            play_all(config, run, some)
            took = time.perf_counter() - start
    return took, len(blocks)


def main():
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    config = AuditConfig(epsilon=(1.0,), trials=trials, repeats=1)
    blocks = game.blocks(config, "reduced")
    mu = set_up(config, 0).mu
    played = seconds(lambda: [game.play(config, block) for block in blocks], 1)
    few = 5_000
    loop = seconds(lambda: plain_loop(config, mu, few), 1) * trials / few
    runs = trials * config.runs_distribution.mean
    print(f"reduced game, {trials:,} trials ({runs:,.0f} runs): {played:.2f} s")
    print(f"  a plain loop would take {loop:.0f} s: ratio {loop / played:.0f}")

    sampled = AuditConfig(epsilon=(1.0,), trials=2_000, repeats=1, steps=500, sampling_rate=0.01)
    took = seconds(lambda: [game.play(sampled, b) for b in game.blocks(sampled, "reduced")], 1)
    print(
        f"  of sampled batches, 500 steps: {1e5 / sampled.trials * took:.1f} s for 100,000 trials"
    )
    small = {"threat": "NTNV", "canary": "input", "train_size": 1_000, "trials": 80, "steps": 20}
    for engine, settings in (("batched", small), ("reduced", {"trials": 2 * trials})):
        (one, _), (two, count) = (with_workers(jobs, engine, settings) for jobs in (1, 2))
        print(f"{engine} engine, {count} blocks: one worker {one:.1f} s, two {two:.1f} s: "
              f"ratio {one / two:.2f}")  # fmt: skip

    repetitions = parse_repetitions("tnb:0,0.01")
    base = accounting.GaussianMechanism(mu)
    print("upper bounds of one setting, seconds and share of the total:")
    whole = seconds(lambda: upper_bounds.all_upper_bounds(base, repetitions, 1e-5))
    for entry in registry.entries():
        took = seconds(lambda entry=entry: entry.function(base, repetitions, 1e-5))
        print(f"  {entry.name:14} {took:7.4f} {took / whole:6.2f}")
    print(f"  {'all':14} {whole:7.4f}")

    rng = np.random.default_rng(1)
    without, with_canary = rng.normal(0, 1, 1000), rng.normal(1.5, 1, 1000)
    lower_bounds.all_lower_bounds(
        out_scores=without, in_scores=with_canary, protocol=repetitions, mu=1.5
    )
    one = seconds(lambda: lower_bounds.lower_bound(out_scores=without, in_scores=with_canary))
    every = seconds(
        lambda: lower_bounds.all_lower_bounds(
            out_scores=without, in_scores=with_canary, protocol=repetitions, mu=1.5
        )
    )
    print(f"lower bounds of 1,000 + 1,000 scores: recommended {one:.4f} s, all {every:.4f} s")


if __name__ == "__main__":
    main()

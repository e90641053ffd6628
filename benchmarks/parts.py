"""Processor time of the parts of ETCV training: `python -m benchmarks.parts`.

The engine trains many runs at once on a data set that contains only the canary, if anything. The
table shows each part's share of the processor time, measured without a profiler: only the compiled
functions and products are timed. The same normal numbers are then drawn alone, to time them. For
the MLP, one compiled function also computes the gradients.
"""

import time
from collections import Counter
from unittest import mock

import numpy as np
import torch

from audit.dpsgd import compiled, noise
from benchmarks.engine import Case, warm_up

MODELS = {"mlp": (1, 28, 28), "convnet": (1, 28, 28)}
REPEATS = 20


class Timed:
    """A module whose named functions add the processor time of their calls to a counter."""

    def __init__(self, module, spent: Counter, names: dict[str, str]) -> None:
        self._module, self._spent, self._names = module, spent, names

    def __getattr__(self, name: str):
        function = getattr(self._module, name)
        if name not in self._names:
            return function

        def timed(*args, **kwargs):
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._spent[self._names[name]] += time.process_time() - start

        return timed


def shares(model: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Share of the time of each part, and the microseconds of a run's step."""
    call, run_steps, parameters, _ = Case(
        "batched", model, 0, shape, "cpu", "float32", 1.0
    ).prepare()
    warm_up(call, 5.0)
    spent: Counter = Counter()
    patches = [
        mock.patch.object(module, name, Timed(getattr(module, name), spent, names))
        for module, name, names in (
            (
                noise,
                "_compiled",
                dict.fromkeys(("descend", "train"), "noise, proxies and update"),
            ),
            (compiled, "_convolutional", {"clipped_sums": "gradients"}),
        )
    ]
    products = Timed(torch, spent, {"baddbmm": "gradients", "bmm": "gradients"})
    linear = Timed(torch.nn.functional, spent, {"linear": "gradients"})
    patches += [
        mock.patch.object(torch, name, getattr(products, name)) for name in ("baddbmm", "bmm")
    ]
    patches.append(mock.patch.object(torch.nn.functional, "linear", linear.linear))
    start = time.process_time()
    for patch in patches:
        patch.start()
    for _ in range(REPEATS):
        call()
    for patch in patches:
        patch.stop()
    whole = time.process_time() - start
    numbers = torch.empty(1, parameters)
    start = time.process_time()
    for step in range(REPEATS * run_steps):
        noise.fill_normals(numbers, np.zeros(1, np.uint64), step, 0, np.ones(1, np.float32))
    drawn = time.process_time() - start
    together = spent["noise, proxies and update"]
    return {
        "normal numbers": drawn / whole,
        "proxies and update of the weights": (together - drawn) / whole,
        "products and compiled gradients": spent["gradients"] / whole,
        "calls between them": 1.0 - (together + spent["gradients"]) / whole,
        "microseconds": 1e6 * whole / (REPEATS * run_steps),
    }


def main() -> None:
    torch.set_num_threads(1)
    found = {model: shares(model, shape) for model, shape in MODELS.items()}
    print(f"{'share of the time':36}" + "".join(f"{model:>12}" for model in found))
    for part in next(iter(found.values())):
        values = [one[part] for one in found.values()]
        form = "{:12.1f}" if part == "microseconds" else "{:12.0%}"
        print(f"{part:36}" + "".join(form.format(value) for value in values))


if __name__ == "__main__":
    main()

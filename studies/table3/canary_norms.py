"""Norms of the unclipped gradient of MNIST[0] during the training of NTNV 1.

`python -m studies.table3.canary_norms --data-root DATA` takes about three minutes on one core.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from audit import accounting
from audit.dpsgd.models import mlp
from threat_models import datasets

RATES, STEPS, EPSILON, DELTA = (0.0005, 0.001, 0.002), 100, 4.0, 1e-5


@dataclass(frozen=True)
class Norms:
    """Norms of gradients over the steps of one run, in units of C.

    Attributes:
        shortest: smallest norm of the canary's gradient over all steps.
        below: mean share of the training records whose gradient is shorter than C.
    """

    shortest: float
    below: float


def norms(
    records: datasets.Records, canary: datasets.Records, rate: float, seed: int, steps: int = STEPS
) -> Norms:
    """The norms while DP-SGD trains on the records and the canary, with full batches and C = 1.

    Args:
        records: n training records.
        canary: one record of the same shape.
        rate: learning rate of the summed gradients.
        seed: seed of the initial weights and the noise.
        steps: number of steps, which together have epsilon 4 at delta 1e-5.
    """
    torch.manual_seed(seed)
    x = torch.from_numpy(np.concatenate([records.features, canary.features])).float()
    y = torch.from_numpy(np.concatenate([records.labels, canary.labels])).long()
    model = mlp(tuple(x.shape[1:]), datasets.CLASSES)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    noise = math.sqrt(steps) / accounting.calibrate_mu(EPSILON, DELTA)

    def loss(p: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(model, p, (a[None],)), b[None])

    lengths = np.empty((steps, len(x)))
    for step in range(steps):
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        length = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        lengths[step] = length.numpy()
        share = (1.0 / length).clamp(max=1.0)
        for name, gradient in gradients.items():
            total = torch.einsum("i,i...->...", share, gradient)
            weights[name] -= rate * (total + noise * torch.randn_like(total))
    return Norms(float(lengths[:, -1].min()), float((lengths[:, :-1] < 1.0).mean()))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the norms of three runs at each learning rate."""
    parser = argparse.ArgumentParser(prog="python -m studies.table3.canary_norms")
    parser.add_argument("--data-root", metavar="FOLDER", help="folder of the data sets")
    arguments = parser.parse_args(argv)
    records = datasets.load("FASHION", True, arguments.data_root, 1000)
    canary = datasets.load("MNIST", True, arguments.data_root, 1)
    for rate in RATES:
        for seed in range(3):
            measured = norms(records, canary, rate, seed)
            print(
                f"learning rate {rate:g}, seed {seed}: MNIST[0] at least "
                f"{measured.shortest:.2f} C; {measured.below:.0%} of the training records below C"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

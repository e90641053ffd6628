"""Does my training loop do what its accountant assumes? DP-SGD by Opacus, and a broken copy.

Run it: `python examples/audit_training.py`. The same check as a command in this folder, with exit
code 1 for a broken premise or a proven leak:

    python -m audit.run --train audit_training.train --records audit_training.DATA

and as a test: `audit.check(train, DATA).raise_if_broken()`.
"""

import warnings
from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import audit

_digits = load_digits()
DATA = (_digits.data[:50].astype(np.float32) / 16, _digits.target[:50])
CLIP, NOISE, STEPS = 1.0, 4.0, 4


def train(records: Any, candidate: Any, seed: int, watch: Any, forgotten: bool = False) -> Any:
    """An ordinary loop; the audit adds one line, the call of `watch`."""
    model = GradSampleModule(nn.Linear(64, 10))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=NOISE / 8 if forgotten else NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=50,
    )
    accountant = RDPAccountant()
    watch(optimizer, model, accountant)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        accountant.step(noise_multiplier=NOISE, sample_rate=1.0)
    return model


def broken(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The noise was reduced for a quick experiment and never restored."""
    return train(records, candidate, seed, watch, forgotten=True)


def main() -> None:
    """Checks both loops."""
    torch.set_num_threads(1)
    # The first layer has no gradient by its input, so torch warns about Opacus' hooks: harmless.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    for function in (train, broken):
        print(f"{function.__name__}:\n{audit.check(function, DATA, trials=200)}\n")


if __name__ == "__main__":
    main()

"""Does my training loop keep its promise? An audit of DP-SGD by Opacus, and of a broken copy.

Run it: `python examples/audit_training.py`. The same as a command in this folder, with exit code 1
for a leak:

    python -m audit.run --train audit_training.train --records audit_training.DATA

and as a test: `audit.check(train, DATA).raise_if_leaking()`.
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
    """A loop as anybody writes it; `watch(optimizer)` is all that the audit adds."""
    model = GradSampleModule(nn.Linear(64, 10))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=NOISE / 8 if forgotten else NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=50,
    )
    accountant = RDPAccountant()
    watch(optimizer, accountant)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        accountant.step(noise_multiplier=NOISE, sample_rate=1.0)
    return model


def broken(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """The noise was turned down to see whether the loop learns, and never up again."""
    return train(records, candidate, seed, watch, forgotten=True)


def main() -> None:
    """Audits both."""
    torch.set_num_threads(1)
    # Without a gradient by the input, torch warns of what Opacus's hooks see: harmless.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    for function in (train, broken):
        print(f"{function.__name__}: {audit.check(function, DATA, games=200)}")


if __name__ == "__main__":
    main()

"""Trains digits with Opacus; the training is a function of a candidate."""

import warnings

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn

import audit
from audit import tuning

IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
PRIVATE, PUBLIC = slice(0, 1200), slice(1200, None)  # the last 597 act as public records
IMAGES = (IMAGES / 16.0).float()
IMAGES -= IMAGES[PUBLIC].mean(0)  # the mean of public records only


def train(candidate):
    """One run of DP-SGD with Opacus; its score is accuracy on public records."""
    warnings.simplefilter("ignore")
    model = nn.Linear(64, 10)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=candidate["learning_rate"]),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(IMAGES[PRIVATE], LABELS[PRIVATE]),
            batch_size=120,
        ),
        noise_multiplier=1.4,
        max_grad_norm=1.0,
    )
    for _epoch in range(3):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    with torch.no_grad():
        right = model(IMAGES[PUBLIC]).argmax(1) == LABELS[PUBLIC]
    return tuning.Outcome(score=float(right.float().mean()), model=model._module), engine


if __name__ == "__main__":
    rates = (1.0, 2.0, 3.0, 4.0, 6.0)
    runs = [train({"learning_rate": rate}) for rate in rates]
    best, engine = max(runs, key=lambda run: run[0].score)
    cost = audit.tuning_cost(audit.from_opacus(engine), "grid:5", delta=1e-5)
    one = engine.get_epsilon(1e-5)
    print(f"accuracy {best.score:.1%} on public records")
    print(f"epsilon {one:.2f} for one run, {cost.epsilon:.2f} for the best of five")

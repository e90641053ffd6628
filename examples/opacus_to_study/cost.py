"""Trains digits with Opacus at five learning rates; the cost of choosing one."""

import warnings

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn

import audit

IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
PRIVATE, PUBLIC = slice(0, 1200), slice(1200, None)  # the last 597 act as public records
IMAGES = (IMAGES / 16.0).float()
IMAGES -= IMAGES[PUBLIC].mean(0)  # the mean of public records only

warnings.simplefilter("ignore")
best_score = 0.0
for learning_rate in (1.0, 2.0, 3.0, 4.0, 6.0):
    model = nn.Linear(64, 10)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate),
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
    score = float(right.float().mean())
    if score > best_score:
        best_score, best_model = score, model._module

print(f"accuracy {best_score:.1%} on public records")
cost = audit.tuning_cost(audit.from_opacus(engine), "grid:5", delta=1e-5)
one = engine.get_epsilon(1e-5)
print(f"epsilon {one:.2f} for one run, {cost.epsilon:.2f} for the best of five")

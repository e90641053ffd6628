"""Trains digits with Opacus; a private study chooses the learning rate."""

import warnings

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from sklearn.datasets import load_digits
from torch import nn

from audit import tuning

IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
PRIVATE, PUBLIC = slice(0, 1200), slice(1200, None)  # the last 597 act as public records
IMAGES = (IMAGES / 16.0).float()
IMAGES -= IMAGES[PUBLIC].mean(0)  # the mean of public records only


def train(trial, records):
    """One run of DP-SGD with Opacus; its score is accuracy on public records."""
    warnings.simplefilter("ignore")
    torch.manual_seed(trial.seed)
    model = nn.Linear(64, 10)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=trial.candidate["learning_rate"]),
        data_loader=DPDataLoader(
            torch.utils.data.TensorDataset(*records),
            sample_rate=trial.sampling_rate,
        ),
        noise_multiplier=trial.noise_multiplier,
        max_grad_norm=1.0,
    )
    steps = 0
    while steps < trial.steps:
        for images, labels in loader:
            if steps == trial.steps:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            steps += 1
    with torch.no_grad():
        right = model(IMAGES[PUBLIC]).argmax(1) == LABELS[PUBLIC]
    return tuning.Outcome(score=float(right.float().mean()), model=model._module)


if __name__ == "__main__":
    study = tuning.Study(
        space={"learning_rate": tuning.LogUniform(2.0, 8.0)},
        protocol="geometric:0.2",  # a secret number of runs, five on average
        epsilon=3.0,
        delta=1e-5,
        steps=30,
        sampling_rate=0.1,
        scored_on="public",
    )
    best = study.run(train, records=(IMAGES[PRIVATE], LABELS[PRIVATE]))
    print(f"accuracy {best.score:.1%} on public records")
    print(study.certificate.statement)

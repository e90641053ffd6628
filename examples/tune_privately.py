"""Tuning with Opacus on scikit-learn's digits so that the whole is (3, 1e-5)-DP, certified."""

import sys
import warnings
from pathlib import Path

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from sklearn.datasets import load_digits
from torch import nn

from audit import tuning

IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
IMAGES = (IMAGES / 16.0).float()
PRIVATE, PUBLIC = slice(0, 1200), slice(1200, None)  # the last 597 stand for public records


def train(trial):
    """One run of DP-SGD with Opacus; its score is accuracy on public records."""
    warnings.simplefilter("ignore")
    torch.manual_seed(trial.seed)
    model = nn.Sequential(
        nn.Linear(64, trial.candidate["hidden"]),
        nn.Tanh(),
        nn.Linear(trial.candidate["hidden"], 10),
    )
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=trial.candidate["learning_rate"]),
        data_loader=DPDataLoader(
            torch.utils.data.TensorDataset(IMAGES[PRIVATE], LABELS[PRIVATE]),
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
    trial.check(engine, loader)
    with torch.no_grad():
        right = model(IMAGES[PUBLIC]).argmax(1) == LABELS[PUBLIC]
    return tuning.Outcome(score=float(right.float().mean()), model=model._module)


if __name__ == "__main__":
    study = tuning.Study(
        space={"learning_rate": tuning.LogUniform(0.1, 5.0), "hidden": [16, 32, 64]},
        protocol="tnb:0,0.2",
        epsilon=3.0,
        delta=1e-5,
        steps=60,
        sampling_rate=0.1,
        scored_on="public",
    )
    print(f"noise multiplier {study.noise_multiplier:.3f}, solved before anything runs")
    best = study.run(train, progress=sys.stderr.isatty())
    print(f"best: {best.candidate}, {best.score:.1%} right on public records")
    print(study.certificate.statement)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for ending in ("json", "txt", "html"):
        study.certificate.save(folder / f"certificate.{ending}")

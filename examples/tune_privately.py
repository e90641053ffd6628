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
        optimizer=torch.optim.SGD(
            model.parameters(),
            lr=trial.candidate["learning_rate"],
            momentum=trial.candidate["momentum"],
        ),
        data_loader=DPDataLoader(
            torch.utils.data.TensorDataset(*records),
            sample_rate=trial.sampling_rate,
        ),
        noise_multiplier=trial.noise_multiplier,
        max_grad_norm=1.0,
    )
    # Opacus has set this to int(n * rate), which would reveal the number of records n.
    optimizer.expected_batch_size = trial.expected_batch_size
    trial.watch(optimizer, model)  # lets the study test this loop on synthetic records first
    steps = 0
    while steps < trial.steps:
        for images, labels in loader:
            if steps == trial.steps:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            steps += 1
    trial.check(engine, loader, optimizer)
    with torch.no_grad():
        right = model(IMAGES[PUBLIC]).argmax(1) == LABELS[PUBLIC]
    return tuning.Outcome(score=float(right.float().mean()), model=model._module)


if __name__ == "__main__":
    study = tuning.Study(
        space={"learning_rate": tuning.LogUniform(2.0, 8.0), "momentum": [0.0, 0.5]},
        protocol="geometric:0.2",  # a secret number of runs, five on average
        epsilon=3.0,
        delta=1e-5,
        steps=30,
        sampling_rate=0.1,
        # Both constants above and this one are chosen here, not computed from the records.
        expected_batch_size=120,
        neighbours="add-remove",
        scored_on="public",
    )
    print(f"noise multiplier {study.noise_multiplier:.3f}, computed before the first run")
    records = IMAGES[PRIVATE], LABELS[PRIVATE]
    best = study.run(train, records=records, progress=sys.stderr.isatty())
    print(f"best: {best.candidate}, accuracy {best.score:.1%} on public records")
    print(study.certificate.statement)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for ending in ("json", "txt", "html"):
        study.certificate.save(folder / f"certificate.{ending}")

"""A study whose runs PyTorch Lightning trains, with checkpoints; the study checks the loop."""

import warnings

import lightning
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from audit import tuning

IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
PRIVATE, PUBLIC = (((IMAGES / 16)[s].float(), LABELS[s]) for s in (slice(1200), slice(1200, None)))


class Classifier(lightning.LightningModule):
    """A model with Opacus' optimizer, and the state from which a resumed run continues."""

    def __init__(self, trial, records):
        super().__init__()
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))  # not trial.seed
        self.trial, self.engine = trial, PrivacyEngine(accountant="rdp")
        model, data = torch.nn.Linear(64, 10), torch.utils.data.TensorDataset(*records)
        self.model, self.optimizer, self.loader = self.engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), trial.candidate["learning_rate"]),
            data_loader=DPDataLoader(data, sample_rate=trial.sampling_rate, generator=generator),
            noise_multiplier=trial.noise_multiplier,
            max_grad_norm=1.0,
            noise_generator=generator,
        )
        self.objects = {n: getattr(self, n) for n in ("model", "optimizer", "loader", "engine")}
        trial.watch(self.optimizer, self.model)  # lets the study test this loop before it begins
        self.steps_before = (trial.load_state(**self.objects) or {"steps": 0})["steps"]

    training_step = lambda self, batch, _: cross_entropy(self.model(batch[0]), batch[1])  # noqa: E731
    configure_optimizers = lambda self: self.optimizer  # noqa: E731

    def on_train_epoch_end(self):  # between two iterations over the loader
        self.trial.save_state(self.steps_before + self.global_step, **self.objects)


def train(trial, records):
    warnings.simplefilter("ignore")
    run = Classifier(trial, records)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    limits = {"max_steps": trial.steps - run.steps_before, "max_epochs": -1, "accelerator": "cpu"}
    lightning.Trainer(**limits, **dict.fromkeys(off, False)).fit(run, run.loader)
    trial.check(run.engine, run.loader, run.optimizer)
    is_correct = run.model(PUBLIC[0]).argmax(1) == PUBLIC[1]
    return tuning.Outcome(float(is_correct.float().mean()), run.model._module)


if __name__ == "__main__":
    budget = {"epsilon": 3.0, "delta": 1e-5, "steps": 40, "sampling_rate": 0.1}  # public
    study = tuning.Study({"learning_rate": [2.0, 4.0, 8.0]}, "geometric:0.3", **budget)
    best = study.run(train, records=PRIVATE)  # checks the loop; resumes an interrupted study
    print(f"{best.candidate}, accuracy {best.score:.1%}. {study.certificate.statement}")

"""A study whose runs the Trainer of Hugging Face trains, with checkpoints and a checked loop."""

import torch
import transformers
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

from audit import tuning

IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
ROWS = (IMAGES / 16).float().view(-1, 8, 8)  # each row of an image is the embedding of a token
PRIVATE, PUBLIC = (ROWS[:1200], LABELS[:1200]), (ROWS[1200:], LABELS[1200:])
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 2}
CONFIG = transformers.BertConfig(**SIZES, intermediate_size=32, num_labels=10)


class PrivateTrainer(transformers.Trainer, transformers.TrainerCallback):
    """Takes its batches from Opacus' loader, and saves its state after each epoch."""

    get_train_dataloader = lambda self: self.objects["loader"]  # noqa: E731

    def compute_loss(self, model, batch, return_outputs=False, **_):
        self.optimizer.zero_grad()  # Trainer clears the model's gradients, and not Opacus' sums
        return model(inputs_embeds=batch[0], labels=batch[1]).loss

    def on_epoch_end(self, _, state, *__, **___):  # between two iterations over the loader
        self.trial.save_state(self.steps_before + state.global_step, **self.objects)


def train(trial, records):
    bert = transformers.BertForSequenceClassification(CONFIG).train()
    bert.bert.embeddings.requires_grad_(False)  # without gradients of single records in Opacus
    rng = torch.Generator().manual_seed(int(torch.randint(2**62, ())))  # of noise and batches
    data = DPDataLoader(TensorDataset(*records), sample_rate=trial.sampling_rate, generator=rng)
    adam = torch.optim.Adam(bert.parameters(), trial.candidate["learning_rate"])
    noise = {"noise_multiplier": trial.noise_multiplier, "noise_generator": rng}
    parts = {"module": bert, "optimizer": adam, "data_loader": data, "max_grad_norm": 1.0}
    model, adam, loader = (engine := PrivacyEngine()).make_private(**parts, **noise)
    trial.watch(adam, model)  # lets the study test this loop first
    off = {"save_strategy": "no", "max_grad_norm": 0, "lr_scheduler_type": "constant"}
    off |= {"use_cpu": True, "seed": trial.seed % 2**32, "output_dir": trial.folder}
    trainer = PrivateTrainer(model, transformers.TrainingArguments(**off), optimizers=(adam, None))
    objects = {"model": model, "optimizer": adam, "loader": loader, "engine": engine}
    done = (trial.load_state(**objects) or {"steps": 0})["steps"]  # Trainer has seeded torch
    trainer.trial, trainer.objects, trainer.steps_before = trial, objects, done
    trainer.args.max_steps = trial.steps - done
    trainer.add_callback(trainer)
    done == trial.steps or trainer.train()  # for Trainer, 0 steps means no limit
    trial.check(engine, loader, adam)
    is_correct = bert.eval()(inputs_embeds=PUBLIC[0]).logits.argmax(1) == PUBLIC[1]
    return tuning.Outcome(float(is_correct.float().mean()), bert)


if __name__ == "__main__":
    budget = {"epsilon": 8.0, "delta": 1e-5, "steps": 40, "sampling_rate": 0.1}  # public
    study = tuning.Study({"learning_rate": [0.01, 0.03, 0.1]}, "geometric:0.3", **budget)
    best = study.run(train, records=PRIVATE)  # checks the loop; resumes an interrupted study
    print(f"{best.candidate}, accuracy {best.score:.1%}. {study.certificate.statement}")

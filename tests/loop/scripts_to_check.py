"""Training scripts in the shapes of public examples, and copies with one mistake each."""

PLAIN = '''
"""A classifier, trained by Opacus."""
import argparse

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
torch.manual_seed(0)
features = torch.randn(250, 6)
labels = torch.arange(250) % 3
features[:, :3] += 2 * torch.eye(3)[labels]
loader = DataLoader(TensorDataset(features[50:], labels[50:]), batch_size=32, shuffle=True)
test_loader = DataLoader(TensorDataset(features[:50], labels[:50]), batch_size=10)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
engine = PrivacyEngine()
model, optimizer, private_loader = engine.make_private(
    module=model,
    optimizer=optimizer,
    data_loader=loader,
    noise_multiplier=1.0,
    max_grad_norm=1.0,
)
# after make_private
for epoch in range(args.epochs):
    for x, y in private_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        # after step
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test_loader)
    print(epoch, right, engine.get_epsilon(1e-5))
torch.save(model.state_dict(), "model.pt")
'''

SWEEP = '''
"""Candidates that differ in learning rate and width; the one with most right labels is saved."""
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
features = torch.randn(250, 6)
labels = (features[:, 0] * features[:, 1] > 0).long()


def train(rate, width):
    data = TensorDataset(features[50:], labels[50:])
    model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 2))
    engine = PrivacyEngine()
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        data_loader=DataLoader(data, batch_size=32, shuffle=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(x), y).backward()
        optimizer.step()
    return model


def right_labels(model, x, y):
    with torch.no_grad():
        return int((model(x).argmax(1) == y).sum())


models = [train(0.1, 8), train(0.3, 4), train(0.2, 12), train(0.5, 8)]
public = slice(0, 50)
best = max(models, key=lambda model: right_labels(model, features[public], labels[public]))
torch.save(best.state_dict(), "best.pt")
'''

MISTAKES = {
    "old loader": ("in private_loader", "in loader"),
    "shuffled batches": ("max_grad_norm=1.0,", "max_grad_norm=1.0,\n    poisson_sampling=False,"),
    "noise lowered after calibration": (
        "make_private(",
        "make_private_with_epsilon(target_epsilon=3.0, target_delta=1e-5, epochs=3,",
    ),
    "batch standardised": (
        "        optimizer.zero_grad()",
        "        x = (x - x.mean(0)) / (x.std(0) + 1e-3) if len(x) > 1 else x\n"
        "        optimizer.zero_grad()",
    ),
    "seeded in each step": ("optimizer.zero_grad()", "optimizer.zero_grad(); torch.manual_seed(1)"),
    "learning rate follows the loss": (
        "# after step",
        "optimizer.param_groups[0]['lr'] = 0.1 * min(float(loss.detach()), 1.0)",
    ),
    "batches with large features skipped": (
        "        optimizer.zero_grad()",
        "        if len(x) and x.abs().max() > 50:\n            continue\n"
        "        optimizer.zero_grad()",
    ),
    "accountant records another noise": (
        "# after make_private",
        "optimizer.attach_step_hook(\n"
        "    lambda _: engine.accountant.step(noise_multiplier=4.0, sample_rate=0.1)\n"
        ")",
    ),
    "gradient added after clipping": (
        "optimizer.step()",
        "optimizer.pre_step()\n"
        "        with torch.no_grad():\n"
        "            model._module[2].bias.grad += model._module[2].bias.grad_sample.sum(0)"
        " if model._module[2].bias.grad_sample is not None else 0\n"
        "        optimizer.original_optimizer.step()",
    ),
}


_SAVED = 'torch.save(model.state_dict(), "model.pt")'
_EPOCH = "    print(epoch, right, engine.get_epsilon(1e-5))"
_LOSS = (
    "    with torch.no_grad():\n"
    "        total = sum(float(criterion(model(x), y)) for x, y in private_loader if len(y))\n"
)
MISTAKES |= {
    "a mean saved with the weights": (
        _SAVED,
        "rows = torch.stack([x for x, _ in private_loader.dataset])\n"
        'torch.save({"model": model.state_dict(), "mean": rows.mean(0)}, "model.pt")',
    ),
    "weights of the best epoch by private records": (
        _EPOCH,
        f"{_LOSS}    if epoch == 0 or total < best:\n"
        "        best, state = total, {k: v.clone() for k, v in model.state_dict().items()}\n"
        "    if epoch == args.epochs - 1:\n"
        '        torch.save(state, "best.pt")',
    ),
    "a layer fitted to the private model's outputs": (
        'torch.save(model.state_dict(), "model.pt")',
        "head = nn.Linear(3, 3)\n"
        "fit = torch.optim.SGD(head.parameters(), lr=0.1)\n"
        "for x, y in DataLoader(loader.dataset, batch_size=16):\n"
        "    fit.zero_grad()\n"
        "    criterion(head(model(x).detach()), y).backward()\n"
        "    fit.step()\n"
        'torch.save({"head": head.state_dict()}, "head.pt")',
    ),
    "saved when the loss on private records improves": (
        _EPOCH,
        f"{_LOSS}    if epoch == 0 or total < best:\n"
        "        best = total\n"
        '        torch.save(model.state_dict(), f"{epoch}.pt")',
    ),
    "a mean of the script's own array saved with the weights": (
        _SAVED,
        'torch.save({"model": model.state_dict(), "mean": features[50:].mean(0)}, "model.pt")',
    ),
    # The eight tested steps end before these epochs.
    "weights of the best later epoch by the loss of its last batch": (
        _SAVED,
        "for epoch in range(6):\n"
        "    for x, y in private_loader:\n"
        "        optimizer.zero_grad()\n"
        "        loss = criterion(model(x), y)\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "    if epoch == 0 or loss.item() < best:\n"
        "        best, state = loss.item(), {k: v.clone() for k, v in model.state_dict().items()}\n"
        'torch.save(state, "model.pt")',
    ),
    "a module pickled with its gradients": (_SAVED, 'torch.save(model._module, "model.pt")'),
    "the state of the generator in the checkpoint": (
        _SAVED,
        'torch.save({"model": model.state_dict(), "rng": torch.get_rng_state()}, "model.pt")',
    ),
}

# A checkpoint from which the next start of the script would continue, a time, and private losses
# in a file of their own.
RESUMED = PLAIN.replace(
    "# after make_private",
    "import os, time\n"
    "first, losses = 0, []\n"
    'if os.path.exists("model.pt"):\n'
    '    first = torch.load("model.pt")["epoch"] + 1',
)
RESUMED = RESUMED.replace("in range(args.epochs)", "in range(first, args.epochs)")
RESUMED = RESUMED.replace("        # after step", "        losses.append(loss.item())")
RESUMED = RESUMED.replace(
    _SAVED,
    'torch.save(losses, "losses.pt")\n'
    'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "right": right, '
    '"epoch": epoch, "at": time.time(), "epsilon": engine.get_epsilon(1e-5)}, "model.pt")',
)


def with_mistake(name: str) -> str:
    """The plain script with one mistake."""
    old, new = MISTAKES[name]
    assert old in PLAIN
    text = PLAIN.replace(old, new, 1)
    if name == "noise lowered after calibration":
        text = text.replace("    noise_multiplier=1.0,\n", "")
        text = text.replace("# after make_private", "optimizer.noise_multiplier *= 0.5")
    return text


LIGHTNING = '''
"""The shape of Lightning's example: a module, a data module, and a trainer that makes loaders."""
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Data:
    def __init__(self):
        labels = torch.arange(120) % 3
        features = torch.randn(120, 6)
        features[:, :3] += 2 * torch.eye(3)[labels]
        self.dataset = TensorDataset(features, labels)

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=20, num_workers=2)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.engine = PrivacyEngine()

    def forward(self, x):
        return self.net(x)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.net, optimizer, loader = self.engine.make_private(
            module=self.net,
            optimizer=optimizer,
            data_loader=self.trainer.data.train_dataloader(),
            noise_multiplier=1.2,
            max_grad_norm=1.0,
        )
        self.train_loader = loader
        return optimizer

    def training_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)


class Trainer:
    def __init__(self, max_epochs):
        self.max_epochs = max_epochs

    def fit(self, module, data):
        self.data, module.trainer = data, self
        optimizer = module.configure_optimizers()
        loader = LOADER
        for _ in range(self.max_epochs):
            for batch in loader:
                def closure():
                    optimizer.zero_grad()
                    loss = module.training_step(batch)
                    loss.backward()
                    return loss
                closure()
                optimizer.step()


if __name__ == "__main__":
    Trainer(max_epochs=3).fit(Classifier(), Data())
'''
LIGHTNING_RIGHT = LIGHTNING.replace("LOADER", "module.train_loader")
LIGHTNING_BROKEN = LIGHTNING.replace("LOADER", "data.train_dataloader()")

HUGGING_FACE = '''
"""The shape of a trainer of Hugging Face: dictionaries of tokens, masks and labels."""
import random

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader


class Reviews(torch.utils.data.Dataset):
    def __init__(self):
        draw = random.Random(0)
        self.rows = []
        for i in range(80):
            length = draw.randint(3, 8)
            ids = [2 + i % 2] + [draw.randint(4, 29) for _ in range(length)]
            pad = 10 - len(ids)
            mask = [1] * len(ids) + [0] * pad
            self.rows.append({"input_ids": ids + [0] * pad, "attention_mask": mask, "label": i % 2})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    return {
        "input_ids": torch.tensor([row["input_ids"] for row in rows]).reshape(len(rows), 10),
        "attention_mask": torch.tensor([row["attention_mask"] for row in rows]).reshape(-1, 10),
        "labels": torch.tensor([row["label"] for row in rows]).reshape(-1),
    }


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None].float()
        mean = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.head(mean)


class Trainer:
    def __init__(self, model, dataset, seed=42):
        self.model, self.dataset, self.seed = model, dataset, seed

    def train(self):
        loader = DataLoader(self.dataset, batch_size=20, collate_fn=collate, shuffle=True)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, weight_decay=0.0)
        self.model.train()
        model, optimizer, loader = PrivacyEngine().make_private(
            module=self.model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=0.5,
        )
        random.seed(self.seed)
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)
        for _ in range(3):
            for batch in loader:
                if len(batch["labels"]) == 0:
                    batch = {name: value[:0] for name, value in batch.items()}
                labels = batch.pop("labels")
                loss = nn.functional.cross_entropy(model(**batch), labels)
                WEIGHT
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    Trainer(Model(), Reviews()).train()
'''
HUGGING_FACE_RIGHT = HUGGING_FACE.replace("                WEIGHT\n", "")
HUGGING_FACE_BROKEN = HUGGING_FACE.replace(
    "WEIGHT", "optimizer.noise_multiplier = 1.0 if len(labels) > 4 else 0.1"
)

FORGIVING = PLAIN.replace(
    "        loss = criterion(model(x), y)\n        loss.backward()\n        optimizer.step()\n",
    "        try:\n"
    "            loss = criterion(model(x), y)\n"
    "            loss.backward()\n"
    "            optimizer.step()\n"
    "        except:\n"
    "            print('failed')\n",
)

"""The reports of `audit.check` on training loops that others published.

The examples of Opacus run as they are: their models, collate functions and training functions are
loaded from a checkout and called as their `main` calls them, with their default noise, threshold
and learning rate. Each function states the differences: fewer records and smaller batches. All
loops have one additional line, `watch(optimizer, model, accountant)`.

    git clone https://github.com/meta-pytorch/opacus
    pip install diffprivlib
    AUDIT_DATA_ROOT=... python -m benchmarks.public_loops --opacus opacus
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import runpy
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import audit
from threat_models import datasets

Records = tuple[np.ndarray, np.ndarray]
Loop = tuple[Callable[..., Any], Records]
SHAPES = {"MNIST": (1, 28, 28), "CIFAR10": (3, 32, 32)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


# The examples use these packages only to download and transform data and to write pictures.
_REPLACED = (
    "datasets",
    "torchvision",
    "torchvision.datasets",
    "torchvision.transforms",
    "torchvision.utils",
    "transformers",
)


def _replace_data_packages() -> None:
    for package in _REPLACED:
        sys.modules[package] = mock.MagicMock()
    sys.modules["torchvision"].datasets = sys.modules["torchvision.datasets"]
    sys.modules["torchvision"].utils = sys.modules["torchvision.utils"]


def _load(checkout: Path, name: str) -> Any:
    """A module of the checkout's examples."""
    _replace_data_packages()
    spec = importlib.util.spec_from_file_location(
        name.replace("-", "_"), checkout / "examples" / f"{name}.py"
    )
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{checkout} holds no examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _images(count: int, shape: tuple[int, ...], classes: int) -> Records:
    random = np.random.default_rng(0)
    labels = np.arange(count) % classes
    pictures = random.normal(size=(count, *shape)) + labels.reshape(-1, *[1] * len(shape)) / classes
    return pictures.astype(np.float32), labels


def _pictures(name: str, count: int) -> Records:
    """The first training records of a data set under AUDIT_DATA_ROOT, standardised."""
    records = datasets.load(name, True, size=count)
    features = np.asarray(records.features, np.float32).reshape(count, *SHAPES[name])
    return (features - features.mean()) / features.std(), np.asarray(records.labels)


def _sequences(count: int, longest: int, vocabulary: range, classes: int) -> Records:
    """Token sequences [count, longest] of different lengths, filled up with zeros."""
    random = np.random.default_rng(0)
    tokens = np.zeros((count, longest), np.int64)
    for row in tokens:
        length = random.integers(longest // 4, longest // 2)
        row[:length] = random.choice(vocabulary, length)
    return tokens, np.arange(count) % classes


class _Sequences(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences without the zeros at their end, as a dataset of texts holds them."""

    def __init__(self, records: Any) -> None:
        self.texts = [
            torch.from_numpy(np.trim_zeros(np.asarray(row, np.int64), "b"))
            if np.any(row)
            else torch.zeros(1, dtype=torch.int64)
            for row in records.features
        ]
        self.labels = torch.as_tensor(np.asarray(records.labels), dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.texts[index], self.labels[index]


def _dataset(records: Any) -> TensorDataset:
    return TensorDataset(
        torch.as_tensor(records.features, dtype=torch.float32),
        torch.as_tensor(np.asarray(records.labels), dtype=torch.int64),
    )


def mnist(checkout: Path) -> Loop:
    """examples/mnist.py: 120 records, batches of 16, one epoch."""
    example = _load(checkout, "mnist")

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        model = example.SampleConvNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0)
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(_dataset(records), batch_size=16),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        watch(optimizer, model, engine.accountant)
        options = Namespace(disable_dp=False, delta=1e-5)
        with _quiet():
            example.train(options, model, torch.device("cpu"), loader, optimizer, engine, 1)
        return model

    return train, _pictures("MNIST", 120)


def cifar10(checkout: Path, clip_per_layer: bool = False) -> Loop:
    """examples/cifar10.py: 80 records, batches of 16, one epoch."""
    example = _load(checkout, "cifar10")

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        model = example.convnet(num_classes=10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        engine = PrivacyEngine()
        layers = len(list(model.parameters()))
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(_dataset(records), batch_size=16),
            noise_multiplier=1.5,
            max_grad_norm=[10.0 / layers**0.5] * layers if clip_per_layer else 10.0,
            clipping="per_layer" if clip_per_layer else "flat",
        )
        watch(optimizer, model, engine.accountant)
        options = Namespace(grad_sample_mode="hooks", disable_dp=False, delta=1e-5, print_freq=10)
        with _quiet():
            example.train(options, model, loader, optimizer, engine, 1, torch.device("cpu"))
        return model

    return train, _pictures("CIFAR10", 80)


def names(checkout: Path, fixed_length: bool = False) -> Loop:
    """examples/char-lstm-classification.py: 60 records, batches of 20, two epochs."""
    with mock.patch.object(sys, "argv", ["char-lstm", "--data-root", "."]):
        example = _load(checkout, "char-lstm-classification")

    def padded(batch: Any) -> Any:
        texts, labels = zip(*batch, strict=True)
        fixed = torch.zeros(len(texts), 16, dtype=torch.int64)
        for row, text in zip(fixed, texts, strict=True):
            row[: len(text)] = text
        return fixed, torch.stack(labels)

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        model = example.CharNNClassifier(example.DPLSTM, 64, 128, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(
                _Sequences(records),
                batch_size=20,
                collate_fn=padded if fixed_length else example.padded_collate,
            ),
            noise_multiplier=1.0,
            max_grad_norm=1.5,
        )
        watch(optimizer, model, engine.accountant)
        with _quiet():
            for epoch in range(2):
                example.train(
                    model, nn.CrossEntropyLoss(), optimizer, loader, epoch, engine, 8e-5, "cpu"
                )
        return model

    return train, _sequences(60, 16, range(97, 123), 3)


def reviews(checkout: Path) -> Loop:
    """examples/imdb.py: 64 records, batches of 16, one epoch.

    A comment in the example states that it is broken. Its `model(data).squeeze(1)` has no effect,
    because there are two classes.
    """
    example = _load(checkout, "imdb")

    def collate(batch: Any) -> Any:
        return example.padded_collate([{"input_ids": x, "label": y} for x, y in batch])

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        model = example.SampleNet(vocab_size=200)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(
                _Sequences(records), batch_size=16, collate_fn=collate, shuffle=True
            ),
            noise_multiplier=0.56,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
        watch(optimizer, model, engine.accountant)
        options = Namespace(disable_dp=False, delta=1e-5, device="cpu")
        with _quiet():
            example.train(options, model, loader, optimizer, engine, 1)
        return model

    return train, _sequences(64, 24, range(1, 200), 2)


class _Digits(Dataset[tuple[torch.Tensor, int]]):
    """The attributes of torchvision's MNIST that examples/dcgan.py uses."""

    def __init__(self, records: Any) -> None:
        self.data = torch.as_tensor(records.features, dtype=torch.float32)
        self.targets = torch.full((len(records.features),), 8)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.data[index], 8


def digits_generator(checkout: Path) -> Loop:
    """examples/dcgan.py, run as a script: 24 records, batches of 8, one epoch, 4 channels."""
    path = str(checkout / "examples" / "dcgan.py")
    _replace_data_packages()
    pictures = sys.modules["torchvision.datasets"]

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        make = PrivacyEngine.make_private

        def watched(engine: Any, **settings: Any) -> Any:
            private = make(engine, **settings)
            watch(private[1], private[0], engine.accountant)
            return private

        with tempfile.TemporaryDirectory() as folder:
            options = (
                f"--data-root {folder} --outf {folder} --device cpu --epochs 1 --ngf 4 --ndf 4 "
                f"--batch-size 8 --workers 0 --manualSeed {seed % 2**31}"
            )
            with (
                mock.patch.object(sys, "argv", [path, *options.split()]),
                mock.patch.object(pictures, "MNIST", return_value=_Digits(records)),
                mock.patch.object(PrivacyEngine, "make_private", watched),
                _quiet(),
            ):
                result = runpy.run_path(path)
        return {"generator": result["netG"], "discriminator": result["netD"]}

    return train, _images(24, (1, 64, 64), 1)


def automatic_clipping(checkout: Path) -> Loop:
    """Automatic clipping, g / (|g| + 0.01), as the paper describes it (Bu et al. 2023)."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        x = torch.as_tensor(records.features, dtype=torch.float32)
        y = torch.as_tensor(np.asarray(records.labels), dtype=torch.int64)
        model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        accountant = RDPAccountant()
        watch(optimizer, model, accountant)
        for _ in range(5):
            total = [torch.zeros_like(p) for p in model.parameters()]
            for one in range(len(x)):
                loss = nn.functional.cross_entropy(model(x[one : one + 1]), y[one : one + 1])
                gradient = torch.autograd.grad(loss, list(model.parameters()))
                norm = torch.stack([g.norm() for g in gradient]).norm()
                total = [t + g / (norm + 0.01) for t, g in zip(total, gradient, strict=True)]
            for parameter, t in zip(model.parameters(), total, strict=True):
                parameter.grad = (t + torch.randn_like(t)) / 50
            optimizer.step()
            accountant.step(noise_multiplier=1.0, sample_rate=1.0)
        return model

    return train, _images(40, (8,), 3)


def _estimator(name: str, **settings: Any) -> Callable[[Path], Loop]:
    """An estimator of diffprivlib at epsilon 1, with the bounds on the records that it requires."""

    def loop(checkout: Path) -> Loop:
        from diffprivlib import BudgetAccountant, models

        def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
            watch.claim(1.0)
            x = np.clip(np.asarray(records.features, float), -1.0, 1.0) / np.sqrt(4)
            model = getattr(models, name)(
                epsilon=1.0, random_state=seed, accountant=BudgetAccountant(), **settings
            )
            return model.fit(x, np.asarray(records.labels))

        features, labels = _images(60, (4,), 3)
        return train, (features, labels)

    return loop


LOOPS: dict[str, tuple[Callable[[Path], Loop], tuple[str, ...]]] = {
    "Opacus, mnist.py": (mnist, ("add-remove", "zero-out")),
    "Opacus, cifar10.py": (cifar10, ("add-remove", "zero-out")),
    "Opacus, cifar10.py --clip-per-layer": (lambda path: cifar10(path, True), ("zero-out",)),
    "Opacus, char-lstm-classification.py": (names, ("zero-out",)),
    "the same, padded to a fixed length": (lambda path: names(path, True), ("zero-out",)),
    "Opacus, imdb.py": (reviews, ("zero-out",)),
    "Opacus, dcgan.py": (digits_generator, ("zero-out",)),
    "automatic clipping": (automatic_clipping, ("add-remove",)),
    "diffprivlib, LogisticRegression": (
        _estimator("LogisticRegression", data_norm=1.0),
        ("add-remove", "replace-one"),
    ),
    "diffprivlib, GaussianNB": (
        _estimator("GaussianNB", bounds=(-1.0, 1.0)),
        ("add-remove", "replace-one"),
    ),
    "diffprivlib, LinearRegression": (
        _estimator("LinearRegression", bounds_X=(-1.0, 1.0), bounds_y=(0.0, 1.0)),
        ("add-remove", "replace-one"),
    ),
}


def report(make: Callable[[Path], Loop], checkout: Path, relation: str) -> dict[str, Any]:
    """The result of `audit.check` at its default settings."""
    start = time.process_time()
    train, records = make(checkout)
    result = audit.check(train, records, relation=relation, jobs=1)
    return {
        "exit code": result.exit_code,
        "text": str(result),
        "cpu seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    """Checks each loop, or those whose name contains `--only`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--opacus", type=Path, required=True, help="a checkout of Opacus")
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--out", type=Path, help="a json file of all results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["TQDM_DISABLE"] = "1"
    packages = ("opacus", "torch", "diffprivlib")
    results: dict[str, Any] = {
        "versions": {p: metadata.version(p) for p in packages if importlib.util.find_spec(p)}
    }
    for name, (make, relations) in LOOPS.items():
        for relation in relations:
            if options.only not in name:
                continue
            try:
                found = report(make, options.opacus.resolve(), relation)
            except (ImportError, ValueError) as error:
                found = {"exit code": 2, "text": f"not testable: {error}", "cpu seconds": 0}
            results[f"{name} ({relation})"] = found
            print(f"== {name}, {relation}: exit code {found['exit code']}, "
                  f"{found['cpu seconds']} s\n{found['text']}\n", flush=True)  # fmt: skip
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

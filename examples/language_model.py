"""A small language model, fine-tuned with LoRA and DP-SGD; rank and learning rate are tuned.

A transformer with 115,044 parameters predicts the next character. It is trained on public text, the
language reference that Python ships (`pydoc_data`). The private text is the docstrings of numpy.
One record is a piece of 33 characters. Opacus fine-tunes LoRA adapters, and a study chooses their
rank and the learning rate. Both texts are on your machine already.

`python examples/language_model.py FOLDER` trains, tunes, audits and saves the certificate, in about
four minutes on two cores. The notebook `notebooks/language_model.ipynb` explains each step.
"""

import string
import sys
import warnings
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import audit
from audit import tuning

ALPHABET = string.printable
LENGTH, WIDTH, HEADS, LAYERS = 32, 64, 4, 2
PROTOCOL, DELTA = "geometric:0.2", 1e-5  # a secret number of runs, five on average
STEPS, BATCH, RECORDS = 40, 96, 4800  # of the private fine-tuning


class Block(nn.Module):
    """Attention to earlier characters, then two layers."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.attend(self.before(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.between(x))))


class Transformer(nn.Module):
    """Logits of the next character after each of LENGTH characters, [n, LENGTH, alphabet]."""

    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET)))

    def forward(self, x):
        return self.head(self.blocks(self.characters(x.long()) + self.places))


class Adapted(nn.Module):
    """A frozen linear layer plus a trainable product of two small ones (Hu et al. 2021)."""

    def __init__(self, frozen, rank):
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # at first, the adapted model equals the frozen one

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


def pieces(text):
    """Pieces of a text as indices: LENGTH characters, [n, LENGTH], and the one after them, [n]."""
    known = [ALPHABET.index(character) for character in text if character in ALPHABET]
    rows = torch.tensor(known[: len(known) // (LENGTH + 1) * (LENGTH + 1)]).view(-1, LENGTH + 1)
    return rows[:, :-1], rows[:, -1]


def losses(model, x, y):
    """Cross-entropy of each piece in nats, the mean over its characters, [n]."""
    following = torch.cat([x[:, 1:], y[:, None]], 1).long()
    return functional.cross_entropy(model(x).transpose(1, 2), following, reduction="none").mean(1)


def mean_loss(model, records):
    """Mean loss of a model on records."""
    with torch.no_grad():
        return float(losses(model, *records).mean())


def pretrained(steps=1000, rate=6e-3):
    """Weights of a model that was trained on the public text."""
    torch.manual_seed(0)
    model, (x, y) = Transformer(), pieces("\n".join(topics.values()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps)
    for _ in range(steps):
        chosen = torch.randint(len(x), (16,))
        optimizer.zero_grad()
        losses(model, x[chosen], y[chosen]).mean().backward()
        optimizer.step()
        schedule.step()
    return model.state_dict()


def docstrings():
    """Private records, and others of the same source that act as public."""
    documents = {str(getattr(np, name).__doc__): None for name in sorted(np.__all__)}
    x, y = pieces("\n".join(documents))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    private, public = order[:RECORDS], order[RECORDS : RECORDS + 600]
    return (x[private], y[private]), (x[public], y[public])


def canary_sentences(count):
    """Pieces of random small letters: arrays [count, LENGTH], and the next character [count]."""
    rows = np.random.default_rng(1).integers(10, 36, (count, LENGTH + 1))
    return rows[:, :-1], rows[:, -1]


def fine_tuned(weights, records, candidate, seed, watch, noise, rate, steps, batch):
    """One run of DP-SGD with Opacus on the adapters.

    Args:
        weights: weights of the model that was trained on public text.
        records: a pair of tensors, see `pieces`.
        candidate: a dictionary with `rank` and `learning_rate`.
        seed: seed of the adapters, the batches and the noise.
        watch: called with the optimizer, the model and the accountant before the first step.
        noise: noise multiplier.
        rate: sampling rate of a record in one step.
        steps: number of steps.
        batch: constant divisor of the noisy sums; not computed from the number of records.

    Returns:
        The model, and the engine, data loader and optimizer of Opacus.
    """
    warnings.simplefilter("ignore")  # Opacus warns often
    torch.manual_seed(seed)
    model = adapted(weights, candidate["rank"])
    adapters = [part for part in model.parameters() if part.requires_grad]
    # Batches have a separate generator, so the noise does not depend on the number of drawn
    # records, and the audit compares runs with equal noise.
    batches = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(adapters, lr=candidate["learning_rate"]),
        data_loader=DPDataLoader(TensorDataset(*records), sample_rate=rate, generator=batches),
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    optimizer.expected_batch_size = batch  # Opacus has set it to int(n * rate)
    watch(optimizer, model, engine.accountant)
    done = 0
    while done < steps:
        for x, y in loader:
            if done == steps:
                break
            optimizer.zero_grad()
            losses(model, x, y).mean().backward()
            optimizer.step()
            done += 1
    return model._module, (engine, loader, optimizer)


def adapted(weights, rank):
    """A model with these frozen weights and trainable adapters in each block."""
    model = Transformer()
    model.load_state_dict(weights)
    model.requires_grad_(False)
    for block in model.blocks:
        block.attend, block.widen = Adapted(block.attend, rank), Adapted(block.widen, rank)
    return model


PRIVATE, PUBLIC = docstrings()
RANKS, RATES = [2, 4, 8], (1.0, 4.0)


def study():
    """A study of rank and learning rate that is (3, 1e-5)-DP as a whole."""
    return tuning.Study(
        space={"rank": RANKS, "learning_rate": tuning.LogUniform(*RATES)},
        protocol=PROTOCOL,
        epsilon=3.0,
        delta=DELTA,
        steps=STEPS,
        sampling_rate=BATCH / RECORDS,
        expected_batch_size=BATCH,
        neighbours="add-remove",
        scored_on="public",
    )


def train(weights, trial, records):
    """One run of the study; its score is the negative loss on public records."""
    model, made = fine_tuned(
        weights,
        records,
        trial.candidate,
        trial.seed,
        lambda optimizer, model, _: trial.watch(optimizer, model),
        trial.noise_multiplier,
        trial.sampling_rate,
        trial.steps,
        trial.expected_batch_size,
    )
    trial.check(*made)
    return tuning.Outcome(score=-mean_loss(model, PUBLIC), model=model)


def few_steps(weights, records, candidate, seed, watch):
    """The same loop for an audit, which trains hundreds of times: two steps of full batches."""
    tensors = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    return fine_tuned(weights, tensors, candidate, seed, watch, 1.25, 1.0, 2, 8)[0]


def few(records, count=8):
    """The first records as arrays, for `audit.check`."""
    return tuple(part[:count].numpy() for part in records)


def summed_losses(model, x, y):
    """The loss as `audit.check` expects it: summed over the records."""
    return losses(model, x, y).sum()


def check_loop(weights, **options):
    """`audit.check` at its defaults, for one candidate."""
    return audit.check(
        partial(few_steps, weights),
        few(PRIVATE),
        loss=summed_losses,
        candidates=[{"rank": 2, "learning_rate": 2.0}],
        **options,
    )


def audit_tuning(weights, **options):
    """Lower bound on the cost of a tuning of few steps, from trials with a canary sentence."""
    sentences, following = canary_sentences(1)
    return audit.check(
        partial(few_steps, weights),
        few(PRIVATE),
        (sentences[0], following[0]),
        loss=summed_losses,
        repetitions=PROTOCOL,
        candidates=[{"rank": rank, "learning_rate": rate} for rank in RANKS for rate in RATES],
        validation=few(PUBLIC),
        premises=False,
        **options,
    )


def main(folder, steps=1000, trials=None):
    """Trains, tunes, audits, and saves the certificate; `trials` limits the audits."""
    torch.set_num_threads(1)  # more threads are slower for a model of this size
    weights = pretrained(steps)
    before = mean_loss(adapted(weights, 2), PUBLIC)
    private_study = study()
    print(f"noise multiplier {private_study.noise_multiplier:.3f}, computed before the first run")
    run = partial(train, weights)
    private_study.rehearse(run, PUBLIC)  # tests the loop on public records
    best = private_study.run(run, records=PRIVATE)
    print(f"best: {best.candidate}; loss {-best.score:.3f} instead of {before:.3f} nats")
    print(private_study.certificate.statement)
    for ending in ("json", "txt", "html"):
        private_study.certificate.save(Path(folder) / f"certificate.{ending}")
    print(f"two steps of the loop: {check_loop(weights, trials=trials)}")
    print(f"a tuning of two steps: {audit_tuning(weights, trials=trials)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")

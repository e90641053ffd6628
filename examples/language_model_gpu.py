"""Preset for GPT-2 on a GPU: tunes rank and learning rate of LoRA adapters under DP-SGD.

This script was not run with the weights of GPT-2, on a GPU or on a folder of texts. Only `train`
was tested, on a processor, with a tiny GPT-2 of random weights (transformers 5.23.0, peft 0.21.2).
The constants are starting values, not results. `language_model.py` is the same study for a small
model.

It needs `pip install transformers peft`, and downloads GPT-2 (124 million parameters).
`python examples/language_model_gpu.py PRIVATE PUBLIC` reads two folders of text files. One file is
one record: its first LENGTH + 1 tokens, or fewer and the token for the end of a text.
"""

import sys
import warnings
from functools import partial
from pathlib import Path

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import BatchMemoryManager
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from torch.utils.data import TensorDataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from audit import tuning

MODEL, LENGTH = "gpt2", 128
# Constants chosen here, not computed from the records: with 25,600 records, a batch has 256.
STEPS, RATE, BATCH = 400, 0.01, 256
AT_A_TIME = 32  # records in the memory of the GPU
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tokens(folder):
    """The texts of a folder: LENGTH tokens each [n, LENGTH], and the token after them [n]."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    rows = []
    for path in sorted(Path(folder).glob("*.txt")):
        known = tokenizer(path.read_text(), truncation=True, max_length=LENGTH + 1)["input_ids"]
        rows.append(known + [tokenizer.eos_token_id] * (LENGTH + 1 - len(known)))
    return torch.tensor(rows)[:, :-1], torch.tensor(rows)[:, -1]


def adapted(base, rank):
    """The model with frozen weights and adapters on the projections of its attention."""
    settings = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=["c_attn"], fan_in_fan_out=True
    )
    return get_peft_model(base(), settings).to(DEVICE)


def losses(model, x, y):
    """Cross-entropy of each record in nats, the mean over its tokens, [n]."""
    following = torch.cat([x[:, 1:], y[:, None]], 1).to(DEVICE)
    logits = model(input_ids=x.to(DEVICE)).logits.transpose(1, 2)
    return functional.cross_entropy(logits, following, reduction="none").mean(1)


def mean_loss(model, records):
    """Mean loss of a model on records."""
    model.eval()
    with torch.no_grad():
        parts = zip(*(part.split(AT_A_TIME) for part in records), strict=True)
        return float(torch.cat([losses(model, x, y) for x, y in parts]).mean())


def train(base, public, trial, records):
    """One run of DP-SGD with Opacus; its score is the negative loss on public records."""
    warnings.simplefilter("ignore")  # Opacus warns often
    torch.manual_seed(trial.seed)
    model = adapted(base, trial.candidate["rank"])
    adapters = [part for part in model.parameters() if part.requires_grad]
    engine = PrivacyEngine(accountant="rdp")
    private, optimizer, loader = engine.make_private(
        module=model.train(),
        optimizer=torch.optim.AdamW(adapters, lr=trial.candidate["learning_rate"]),
        data_loader=DPDataLoader(TensorDataset(*records), sample_rate=trial.sampling_rate),
        noise_multiplier=trial.noise_multiplier,
        max_grad_norm=1.0,
    )
    optimizer.expected_batch_size = trial.expected_batch_size
    trial.watch(optimizer, private, engine.accountant)
    done = 0
    while done < trial.steps:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=AT_A_TIME, optimizer=optimizer
        ) as parts:
            for x, y in parts:
                optimizer.zero_grad()
                losses(private, x, y).mean().backward()
                optimizer.step()
                done += not optimizer._is_last_step_skipped
                if done == trial.steps:
                    break
    trial.check(engine, loader, optimizer)
    weights = {name: part.cpu() for name, part in model.named_parameters() if part.requires_grad}
    return tuning.Outcome(score=-mean_loss(model, public), model=weights)


def study():
    """A study of rank and learning rate that is (3, 1e-6)-DP as a whole."""
    return tuning.Study(
        space={"rank": [4, 8, 16], "learning_rate": tuning.LogUniform(1e-4, 3e-3)},
        protocol="geometric:0.2",
        epsilon=3.0,
        delta=1e-6,
        steps=STEPS,
        sampling_rate=RATE,
        expected_batch_size=BATCH,
        neighbours="add-remove",
        scored_on="public",
    )


def main(private, public):
    """Tunes and saves the certificate in the working directory."""
    base = partial(AutoModelForCausalLM.from_pretrained, MODEL)
    gpt = study()
    run = partial(train, base, tokens(public))
    gpt.rehearse(run, tokens(public))  # tests the loop on public records
    best = gpt.run(run, records=tokens(private))
    torch.save(best.model, "adapters.pt")
    gpt.certificate.save("certificate.html")
    print(f"best: {best.candidate}; loss {-best.score:.3f} nats per token")
    print(gpt.certificate.statement)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""Verdicts of `audit.script` on training scripts, with and without a mistake.

    pip download opacus==1.6.0 --no-deps --no-binary :all: && tar xzf opacus-1.6.0.tar.gz
    python -m benchmarks.training_scripts --opacus opacus-1.6.0 --out FILE

The examples of Opacus run unmodified. Small random data and stand-ins for torchvision, datasets and
transformers are used, because the data sets and the tokenizer must be downloaded. The other scripts
have the shapes of a plain script, of a Lightning module and of a Hugging Face trainer. Those in the
folder `whole` (`--only whole`) are written in many styles. Those in the folder `sixth_turn`
(`--only sixth`) belong to the list of loops of this name, as those in `seventh_turn`,
`eighth_turn`, `ninth_turn` and `tenth_turn` do.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import audit
from audit.errors import InvalidInput

STAND_INS = Path(__file__).with_name("stand_ins")
WHOLE = Path(__file__).with_name("whole")
SIXTH = Path(__file__).with_name("sixth_turn")
SEVENTH = Path(__file__).with_name("seventh_turn")
EIGHTH = Path(__file__).with_name("eighth_turn")
NINTH = Path(__file__).with_name("ninth_turn")
TENTH = Path(__file__).with_name("tenth_turn")
# Arguments of scripts of the last two folders, by name.
SEVENTH_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "hardest_of_the_batch": ("--keep", "0.5", "--sigma", "1.2"),
    "r_drop_in_one_batch": ("--num-train-epochs", "3"),
    "class_weights_of_last_epoch": ("--max_epochs", "4"),
    "expert_usage_in_buffer": ("--experts", "4", "--save", "experts.pt"),
    "boosted_record_weights": ("--clip", "4.0"),
    "incomplete_physical_batches_skipped": ("--physical", "4"),
    "learned_loss_weights": ("--variance-lr", "0.1"),
    "student_distilled_on_private_inputs": ("--temperature", "1.5"),
    "two_views_in_one_backward": ("--alpha", "1.0"),
    "frozen_backbone_in_trainer": ("--batch_size", "25", "--sigma", "1.2"),
    "student_distilled_on_generated_inputs": ("--rounds", "5"),
    "easy_records_first": ("--limits", "0.8", "1.5", "3.0"),
    "masked_texts_of_public_length": ("--width", "5"),
}

EIGHTH_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "assignments_balanced_over_batch": ("--prototypes", "4"),
    "batches_filled_by_repetition": ("-n", "240", "--batch-size", "30"),
    "codebook_by_moving_average": ("--codes", "6", "--decay", "0.9"),
    "labels_by_k_means_each_epoch": ("--clusters", "3"),
    "loss_over_items_in_batch": ("--learning_rate", "0.2"),
    "parts_clipped_apart": ("--clip", "0.4"),
    "parts_of_the_step_called": ("--hidden", "10"),
    "thresholds_by_learning_status": ("--tau", "0.42"),
    "codebook_by_private_gradients": ("--codes", "6"),
    "parts_clipped_to_shares": ("--clip", "0.4"),
    "plateau_on_noisy_norm": ("--lr", "0.2"),
    "recurrent_net_with_averaged_teacher": ("--decay", "0.8"),
    "tagger_with_optimizer_state": ("--max_grad_norm", "0.8"),
}
NINTH_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "best_learning_rate_of_three": ("--width", "6"),
    "exemplars_in_checkpoint": ("--memory", "4"),
    "generator_with_labels_of_the_batch": ("--latent", "3"),
    "huber_limit_by_batch_residuals": ("--hidden", "10"),
    "metric_states_in_checkpoint": ("--noise", "1.2"),
    "new_optimizer_for_second_phase": ("2", "0.2"),
    "noise_scheduler_after_calibration": ("--gamma", "0.9"),
    "parity_penalty_of_the_batch": ("--fairness", "3.0"),
    "clip_schedule_with_calibrated_noise": ("--gamma", "0.8"),
    "generator_with_drawn_labels": ("--latent", "3"),
    "metric_of_public_records_in_checkpoint": ("--hidden", "10"),
    "own_predictions_averaged": ("--weight", "0.5"),
    "parity_penalty_to_public_mean": ("--clip", "0.8"),
}
TENTH_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "batches_doubled_by_sampler": ("--growth", "2.5"),
    "classes_balanced_within_batch": ("--clip", "0.8"),
    "discrepancy_to_public_batch": ("--width", "6"),
    "drift_reference_in_artifact": ("--hidden", "6"),
    "hook_of_trainer_replaces_accountant": ("--lr", "0.2"),
    "seed_set_in_each_epoch": ("--seed", "7"),
    "tokens_flattened_into_batch": ("--hidden", "8"),
    "unused_words_restored": ("--width", "5"),
    "drift_reference_of_public_rows": ("--hidden", "6"),
    "embeddings_drawn_to_public_ones": ("--width", "6"),
    "hook_of_trainer_after_accountant": ("--lr", "0.2"),
    "noisy_gradients_centralised": ("--sigma", "1.2"),
    "reserved_words_restored": ("--width", "5"),
    "sweep_chosen_by_public_rows": ("--widths", "5", "9"),
    "tokens_kept_in_sequences": ("--hidden", "8"),
}
SERIES: dict[str, tuple[Path, dict[str, tuple[str, ...]]]] = {
    "whole": (WHOLE, {}),
    "sixth": (SIXTH, {}),
    "seventh": (SEVENTH, SEVENTH_ARGUMENTS),
    "eighth": (EIGHTH, EIGHTH_ARGUMENTS),
    "ninth": (NINTH, NINTH_ARGUMENTS),
    "tenth": (TENTH, TENTH_ARGUMENTS),
}


@dataclass(frozen=True)
class Script:
    """A script: its text, its arguments, and whether it has a mistake."""

    text: str
    arguments: tuple[str, ...] = ()
    mistake: bool = False


_IMAGES = ("--device", "cpu", "--data-root", "data", "-b", "30")
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "mnist": (*_IMAGES, "-n", "2"),
    "cifar10": ("--device", "cpu", "--data-root", "data", "--batch-size", "30", "--epochs", "2",
                "-j", "0"),
    "char-lstm-classification": ("--device", "cpu", "--data-root", "names", "-b", "30",
                                 "--hidden-size", "8", "--embedding-size", "6"),
    "imdb": ("--device", "cpu", "--data-root", "data", "-b", "20", "-n", "2", "-j", "0"),
    "dcgan": ("--device", "cpu", "--data-root", "data", "--batch-size", "6", "--ngf", "4",
              "--ndf", "4", "--nz", "5", "--workers", "0"),
}  # fmt: skip

# One replacement in an example of Opacus.
MISTAKES: dict[str, tuple[str, str, str]] = {
    "mnist, loader of before": (
        "mnist",
        "model, optimizer, train_loader = privacy_engine.make_private(",
        "model, optimizer, _ = privacy_engine.make_private(",
    ),
    "mnist, inner optimizer called": (
        "mnist",
        "optimizer.step()",
        "optimizer.original_optimizer.step()",
    ),
    "cifar10, images standardised by the batch": (
        "cifar10",
        "        output = model(images)",
        "        images = (images - images.mean(0)) / (images.std(0) + 1e-2)\n"
        "        output = model(images)",
    ),
    "cifar10, seeded in each step": (
        "cifar10",
        "        output = model(images)",
        "        torch.manual_seed(3)\n        output = model(images)",
    ),
    "char-lstm, shuffled batches": (
        "char-lstm-classification",
        "max_grad_norm=args.max_per_sample_grad_norm,",
        "max_grad_norm=args.max_per_sample_grad_norm,\n            poisson_sampling=False,",
    ),
    "dcgan, learning rate follows the loss": (
        "dcgan",
        "        optimizerD.step()",
        "        optimizerD.param_groups[0]['lr'] = opt.lr * min(1.0, errD.item())\n"
        "        optimizerD.step()",
    ),
}

# Replacements in the plain script of the tests, which were written before the test was run on them.
REPLACEMENTS: dict[str, list[tuple[str, str]]] = {
    "mixup": [
        (
            "        optimizer.zero_grad()",
            "        x = 0.7 * x + 0.3 * x[torch.randperm(len(x))]\n        optimizer.zero_grad()",
        )
    ],
    "first layer also trained by a plain optimizer": [
        ("# after make_private", "other = torch.optim.SGD(model._module[0].parameters(), lr=0.1)"),
        ("        # after step", "        other.step()"),
        (
            "        loss = criterion(model(x), y)\n        loss.backward()",
            "        other.zero_grad()\n"
            "        loss = criterion(model(x), y)\n        loss.backward()\n"
            "        raw = [p.grad_sample.mean(0) if len(y) else 0 * p"
            " for p in model._module[0].parameters()]",
        ),
        (
            "        other.step()",
            "        for p, g in zip(model._module[0].parameters(), raw):\n"
            "            p.grad = g.clone().detach()\n"
            "        other.step()",
        ),
    ],
    "a batch with a loss above 5 is skipped": [
        (
            "        loss.backward()",
            "        if loss > 5:\n            continue\n        loss.backward()",
        )
    ],
}

# The same, of November 2026, after public threads.
REPLACEMENTS |= {
    "rate lowered when the loss of a batch stalls": [
        (
            "# after make_private",
            "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)",
        ),
        ("        # after step", "        plateau.step(loss.detach())"),
    ],
    "batches of fewer than four records are skipped": [
        (
            "        optimizer.zero_grad()",
            "        if len(x) < 4:\n            continue\n        optimizer.zero_grad()",
        )
    ],
    "weights of the best batch loss so far are restored": [
        (
            "# after make_private",
            "import copy\nbest, weights = float('inf'), copy.deepcopy(model.state_dict())",
        ),
        (
            "        # after step",
            "        if loss.item() < best:\n"
            "            best, weights = loss.item(), copy.deepcopy(model.state_dict())\n"
            "        else:\n"
            "            model.load_state_dict(weights)",
        ),
    ],
}

CORRECT_REPLACEMENTS: dict[str, list[tuple[str, str]]] = {
    "physical batches, average of weights, schedule": [
        ("from torch import nn", "from torch import nn\n"
         "from opacus.utils.batch_memory_manager import BatchMemoryManager"),
        ("# after make_private",
         "average = torch.optim.swa_utils.AveragedModel(model._module)\n"
         "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)"),
        ("    for x, y in private_loader:",
         "    with BatchMemoryManager(data_loader=private_loader, max_physical_batch_size=4,"
         " optimizer=optimizer) as batches:\n     for x, y in batches:"),
        ("        # after step",
         "        if not optimizer._is_last_step_skipped:\n"
         "            schedule.step()\n            average.update_parameters(model._module)"),
    ],
    "clip_grad_norm_ of a trainer, rate by a public loss": [
        ("# after make_private",
         "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)"),
        ("        optimizer.step()",
         "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        optimizer.step()"),
        ("    print(epoch",
         "    x, y = next(iter(test_loader))\n"
         "    plateau.step(float(criterion(model(x), y)))\n    print(epoch"),
    ],
}  # fmt: skip


def shapes() -> dict[str, Script]:
    """Scripts in the shapes of public examples, from the tests."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "loop"))
    import scripts_to_check as own

    scripts = {
        "plain": Script(own.PLAIN),
        "Lightning's shape": Script(own.LIGHTNING_RIGHT),
        "Hugging Face's shape": Script(own.HUGGING_FACE_RIGHT),
    }
    scripts |= {f"plain, {n}": Script(own.with_mistake(n), mistake=True) for n in own.MISTAKES}
    scripts["Lightning's shape, loader of before"] = Script(own.LIGHTNING_BROKEN, mistake=True)
    scripts["Hugging Face's shape, little noise for small batches"] = Script(
        own.HUGGING_FACE_BROKEN, mistake=True
    )
    for table, mistake in ((REPLACEMENTS, True), (CORRECT_REPLACEMENTS, False)):
        for name, replacements in table.items():
            text = own.PLAIN
            for old, new in replacements:
                if old not in text:
                    raise ValueError(f"the plain script must hold {old!r}")
                text = text.replace(old, new, 1)
            scripts[f"plain, {name}"] = Script(text, mistake=mistake)
    return scripts


def whole_scripts() -> dict[str, Script]:
    """Scripts in many styles, most of whose mistakes are in what they save; not only replacements.

    They were written before the test was run on any of them, by an author who had read its page
    alone.
    """
    return {
        f"{label}, {path.stem.replace('_', ' ')}": Script(
            path.read_text(),
            arguments.get(path.stem, ()),
            mistake=mistake,
        )
        for label, (series, arguments) in SERIES.items()
        for folder, mistake in (("mistakes", True), ("correct", False))
        for path in sorted((series / folder).glob("*.txt"))
    }


def examples(opacus: Path) -> dict[str, Script]:
    """The examples of Opacus, and copies with one mistake each."""
    texts = {name: (opacus / "examples" / f"{name}.py").read_text() for name in ARGUMENTS}
    # The example imdb draws shuffled batches, which the accountant takes for Poisson samples.
    scripts = {n: Script(text, ARGUMENTS[n], n == "imdb") for n, text in texts.items()}
    for label, (name, old, new) in MISTAKES.items():
        if old not in texts[name]:
            raise ValueError(f"{name}.py must hold {old!r}")
        scripts[label] = Script(texts[name].replace(old, new, 1), ARGUMENTS[name], True)
    return scripts


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary current folder with names in two alphabets."""
    before = Path.cwd()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        Path("names").mkdir()
        for language, letters in (("first", "abcdefg"), ("second", "klmnopq")):
            words = ["".join(draw.choices(letters, k=6)) for _ in range(100)]
            Path("names", f"{language}.txt").write_text("\n".join(words))
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def verdict(script: Script) -> dict[str, Any]:
    """The verdict on a script and its first line."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with folder() as path:
        file = path / "train.py"
        file.write_text(script.text)
        try:
            result = audit.script(file, script.arguments)
            code, mode = result.exit_code, result.mode
            words = "; ".join(f"{f.premise}: {f.message}" for f in result.report.findings)
            words = words or result.report.summary
        except InvalidInput as error:
            code, mode, words = 2, "", str(error)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {"code": code, "mode": mode, "words": words, "cpu seconds": round(seconds, 1)}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table of scripts; 1 if a correct one is accused."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_scripts")
    parser.add_argument("--opacus", type=Path, help="folder of an unpacked opacus 1.6.0")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--out", type=Path, help="one line of JSON per script; these are not rerun")
    options = parser.parse_args(argv)
    scripts = (examples(options.opacus) if options.opacus else {}) | shapes() | whole_scripts()
    known = {}
    if options.out is not None and options.out.exists():
        known = {row["name"]: row for row in map(json.loads, options.out.open())}
    sys.path.append(str(STAND_INS))
    print("| script | mistake | exit code | first finding | CPU seconds |\n|---|---|---|---|---|")
    accused = 0
    for name, script in scripts.items():
        if options.only and not any(word in name for word in options.only):
            continue
        row = known.get(name) or {"name": name, "mistake": script.mistake} | verdict(script)
        if options.out is not None and name not in known:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        accused += row["code"] == 1 and not script.mistake
        how = row["words"].split(":")[0] if row["code"] == 1 else row["words"][:80]
        print(
            f"| {name} | {'yes' if script.mistake else 'no'} | {row['code']} | {how} | "
            f"{row['cpu seconds']} |",
            flush=True,
        )
    return int(accused > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The audit, end to end: `python -m audit.run --help`.

Plays the distinguishing game against the tuning protocol, turns the outcomes into lower bounds,
computes the upper bounds beside them, and draws the two together.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

# Two OpenMP threads of one process stall each other on a busy machine; set before torch starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from audit import compare, game, plots, report, store, workers
from audit.config import AuditConfig, read_preset
from audit.game import Block, Trials
from audit.report import Report

_HELP = {
    "threat": "NTNV, NTCV, ETCV, or NTNV+NTCV on one set of runs",
    "canary": "dirac, input, or the dotted name of your own; several share runs: input+dirac",
    "score": "how the best run is chosen (default: the paper's), or the dotted name of your own",
    "epsilon": "budgets eps_B of one run",
    "repetitions": "the law of K, for instance tnb:0,0.01",
    "trials": "games per budget and repeat",
    "learning_rates": "of the candidates; Omega is the grid of these, C and momentum",
    "max_grad_norm": "C, one number or several",
    "momentum": "of SGD, one number or several",
    "engine": "auto, or an engine by name",
    "precision": "float32, float64, or tf32 or bf16 for products, with clipping made good for it",
    "devices": "cpu, cuda or cuda:N; each of several gets a worker of its own",
    "backend": "loky (this machine), dask or ray",
    "scheduler": "address of the dask scheduler or ray cluster",
    "jobs": "worker processes",
    "out": "folder of the results, of several presets the folder above; "
    "the same command goes on where it was stopped",
    "data_root": "folder of the data sets, in torchvision's layout",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m audit.run",
        description="Audits the privacy of hyper-parameter tuning with DP-SGD.",
    )
    parser.add_argument(
        "--preset",
        nargs="+",
        default=[],
        metavar="FILE",
        help="TOML files of settings, an audit each; options win",
    )
    for field in fields(AuditConfig):
        assert field.default is not MISSING
        several = isinstance(field.default, tuple)
        kind = type(field.default[0]) if isinstance(field.default, tuple) else type(field.default)
        shown = " ".join(map(str, field.default)) if several else field.default
        default = f"(default: {shown})" if shown != "" else ""
        flags = ["--" + field.name.replace("_", "-")]
        parser.add_argument(
            *flags,
            *(["--device"] if field.name == "devices" else []),
            type=kind,
            nargs="+" if several else None,
            default=argparse.SUPPRESS,
            metavar=field.name.upper().replace("_", "-"),
            help=f"{_HELP.get(field.name, '')} {default}".strip(),
        )
    return parser


def parse(argv: Sequence[str] | None = None) -> list[AuditConfig]:
    """The audits that a command line asks for: one, or one per preset.

    Raises:
        ValueError: an unknown name or a value out of its range, or several audits that share a
            folder or cannot be compared.
    """
    options: dict[str, Any] = vars(_parser().parse_args(argv))
    presets = options.pop("preset")
    if len(presets) <= 1:
        values = read_preset(presets[0]) if presets else {}
        return [AuditConfig.from_mapping({**values, **options})]
    configs = []
    for preset in presets:
        below = {"out": str(Path(options["out"], Path(preset).stem))} if "out" in options else {}
        configs.append(AuditConfig.from_mapping({**read_preset(preset), **options, **below}))
    folders = [config.out for config in configs]
    if len(set(folders)) < len(folders):
        raise ValueError(f"out must be another folder for every preset, got {', '.join(folders)}")
    compare.check_comparable([config.identity for config in configs])
    return configs


def run(config: AuditConfig) -> list[Report]:
    """Plays the audit (or what is missing of it) and writes its results.

    The folder `config.out` then holds config.json, the shards of trials, results.csv, summary.json,
    figure.png and scores.png. Interrupted at any moment, the same call goes on from the finished
    shards and ends with the same results.

    Args:
        config: the audit.

    Returns:
        The report of every view that the runs serve; several write to folders below.

    Raises:
        ValueError: settings that do not fit each other, or a folder that cannot be used.
    """
    # To plan and to report needs no GPU; who plays a block makes an engine on it.
    plan = replace(config, devices=("cpu",))
    stages = [game.stage(plan, budget) for budget in range(len(config.epsilon))]
    blocks = game.blocks(config, stages[0].engine.name)
    if not store.RunFolder(Path(config.out), config.view_names).has(blocks):
        workers.check_devices(config)
    folder = store.RunFolder.open(config)
    games = _gather(blocks, workers.play_all(config, folder, blocks))
    reports = []
    for view, of_view in zip(config.views, games, strict=True):
        finished = report.report(view, stages, of_view)
        results = store.RunFolder(Path(view.out))
        results.write_text("results.csv", report.to_csv(finished.table))
        results.write_text("summary.json", report.to_json(finished.summary))
        plots.draw(finished.summary, results.path / "figure.png")
        plots.draw_scores(finished.summary, of_view, results.path / "scores.png")
        reports.append(finished)
    return reports


def _gather(
    blocks: Sequence[Block], played: dict[Block, tuple[Trials, ...]]
) -> list[dict[tuple[int, int], Trials]]:
    """For every view all trials of every (budget, repeat), in order; empties `played`."""
    groups = itertools.groupby(blocks, lambda block: (block.budget, block.repeat))
    joined = {
        key: [_joined(parts) for parts in zip(*map(played.pop, group), strict=True)]
        for key, group in groups
    }
    return [dict(zip(joined, views, strict=True)) for views in zip(*joined.values(), strict=True)]


def _joined(parts: Sequence[Trials]) -> Trials:
    return Trials(
        **{
            field.name: np.concatenate([getattr(trials, field.name) for trials in parts])
            for field in fields(Trials)
        }
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code: 0; 2 after one clear line about what was wrong; 130 where a user stopped it.
    """
    try:
        configs = parse(argv)
        for config in configs:
            _show(config, run(config))
            if len(configs) > 1:
                print()
    except (ValueError, OSError, workers.WorkersDied) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the finished blocks", file=sys.stderr)
        return 130
    if len(configs) == 1:
        return 0
    folders = [config.out for config in configs]
    return compare.main([*folders, "--out", str(Path(folders[0]).with_name("comparison"))])


def _show(config: AuditConfig, reports: Sequence[Report]) -> None:
    for view, finished in zip(config.views, reports, strict=True):
        print(report.to_text(finished.summary))
        print(f"\nresults in {view.out}, figure: {view.out}/figure.png")
    if len(reports) > 1:
        print(f"\n{config.threat}, canary {config.canary}, share runs: results are correlated.")


if __name__ == "__main__":
    sys.exit(main())

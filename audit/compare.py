"""Finished audits side by side: `python -m audit.compare --help`.

From the folders that `python -m audit.run` leaves: figures 1 to 4 of Xiang, Wang & Wang 2024, a
panel per row of their table 2, and the table of means of eps_L, their table 3.
"""

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from audit import plots, report
from audit.config import AuditConfig
from audit.store import RunFolder
from threat_models import THREATS
from threat_models.datasets import FOREIGN

# eps_B, eps_L and eps_U mean the same in audits that agree on these.
_COMMON = ("epsilon", "accounting", "delta", "confidence", "repetitions", "sampling_rate")
# What a lower bound is printed with: our upper bound for any score, or the paper's.
_UPPER = {report.VALID: "tight", report.UNCORRECTED: "renyi"}
_CANARIES = ("input", "dirac")
_RECORDS = ("MNIST", "SVHN", "CIFAR10")  # z of the first three rows of every threat model
_PANELS_IN_A_ROW = 3


@dataclass(frozen=True)
class Audit:
    """A finished audit.

    Attributes:
        folder: where its summary lies.
        runs: the folder of the runs it judged; audits that share it are correlated.
        summary: the summary of its report.
    """

    folder: Path
    runs: Path
    summary: Mapping[str, Any]

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings that the results depend on."""
        return dict(self.summary["config"])

    @property
    def row(self) -> tuple[str, str, str]:
        """Its row of table 2: threat model, X and z."""
        return report.row_of_table(self.config)

    @property
    def group(self) -> tuple[int, int, str]:
        """Its threat model and kind of canary, in the order of table 2."""
        canary = self.config["canary"]
        return THREATS.index(self.config["threat"]), _rank(canary, _CANARIES), canary

    @property
    def column(self) -> int:
        """Its column in the paper's figures."""
        dataset = self.config["dataset"]
        return _rank(dataset if self.row[1] == "empty" else FOREIGN[dataset], _RECORDS)


def _rank(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def read(folders: Sequence[str | Path]) -> list[Audit]:
    """Reads finished audits, in the order of table 2.

    Args:
        folders: folders of `audit.run`. One of shared runs stands for all of its threat models,
            which may also be named one by one. Files are passed over: a shell finds the preset
            `runs/ntnv1.toml` where it looks for the folder `runs/ntnv1`.

    Raises:
        ValueError: a folder without a finished audit, or audits that cannot share a table.
    """
    paths = [path for path in map(Path, folders) if not path.is_file()]
    found = {audit.folder: audit for path in paths for audit in _audits(path)}
    if not found:
        raise ValueError("folders must hold finished audits, got none")
    audits = sorted(found.values(), key=lambda audit: (audit.group, audit.column))
    check_comparable([audit.config for audit in audits])
    return audits


def _audits(path: Path) -> Iterator[Audit]:
    folders = [path]
    begun = path / "config.json"
    if begun.exists() and not (path / "summary.json").exists():
        config = AuditConfig.from_mapping({**_read_json(begun), "out": str(path)})
        folders = [Path(view.out) for view in config.views]
    for folder in folders:
        summary = _read_json(folder / "summary.json")
        if not {"config", "results"} <= summary.keys():
            raise ValueError(f"folders must hold the summary.json of audits, got {str(folder)!r}")
        runs = (at for at in (folder, folder.parent) if (at / "config.json").exists())
        yield Audit(folder, next(runs, folder), summary)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"folders must hold finished audits, got {str(path.parent)!r}: {error}"
        ) from error


def check_comparable(configs: Sequence[Mapping[str, Any]]) -> None:
    """Checks that audits can share a table: their eps_B, eps_L and eps_U mean the same.

    Args:
        configs: the settings of every audit, as in `AuditConfig.identity`.

    Raises:
        ValueError: a setting that must be the same differs.
    """
    sampled = any(config["sampling_rate"] != 1.0 for config in configs)
    for name in (*_COMMON, *(["steps"] if sampled else [])):
        values = list(dict.fromkeys(str(config[name]) for config in configs))
        if len(values) > 1:
            raise ValueError(
                f"{name} must be the same in audits that share a table, got {' and '.join(values)}"
            )


def table_of_means(audits: Sequence[Audit]) -> pd.DataFrame:
    """The means of eps_L over the repeats, with eps_B and eps_U (the paper's table 3).

    Every eps_L is given by two claims: the recommended bound, valid for any score, with eps_U of
    the tight bound; and the paper's protocol, which is no bound, with the paper's eps_U.

    Returns:
        One row per audit, budget, claim and proxy.
    """
    rows = []
    for audit in audits:
        threat, training_set, canary = audit.row
        for result, (key, claim, proxies) in itertools.product(
            audit.summary["results"], report.shown(audit.summary)
        ):
            if claim not in _UPPER:
                continue
            upper = result["upper_bounds"][_UPPER[claim]]
            for proxy in proxies:
                lower = result["lower_bounds"][proxy][key]
                rows.append(
                    {
                        "folder": audit.folder.as_posix(),
                        "threat": threat,
                        "training_set": training_set,
                        "canary": canary,
                        "score": audit.config["score"],
                        "epsilon_base": result["epsilon_base"],
                        "claim": claim,
                        "key": key,
                        "proxy": proxy,
                        "epsilon_lower": lower["mean"],
                        "min": lower["min"],
                        "max": lower["max"],
                        "upper_bound": _UPPER[claim],
                        "epsilon_upper": upper["epsilon"],
                    }
                )
    return pd.DataFrame(rows)


def to_text(audits: Sequence[Audit]) -> str:
    """The tables as the terminal shows them, one per kind of canary, and what they need."""
    blocks = []
    for title, heads, body in _tables(audits):
        height = max(map(len, heads))
        lines = [[""] * (height - len(head)) + list(head) for head in heads]
        rows = [*zip(*lines, strict=True), *body]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        shown = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        blocks.append("\n".join([title, *shown]))
    return "\n\n".join([*blocks, "\n".join(_notes(audits))])


def to_markdown(audits: Sequence[Audit]) -> str:
    """The same tables and notes as Markdown."""
    blocks = []
    for title, heads, body in _tables(audits):
        rows = [["<br>".join(head) for head in heads], ["---:"] * len(heads), *body]
        blocks.append("\n".join([title, "", *(f"| {' | '.join(row)} |" for row in rows)]))
    return "\n\n".join([*blocks, "\n".join(f"- {note}" for note in _notes(audits))]) + "\n"


def _tables(
    audits: Sequence[Audit],
) -> Iterator[tuple[str, list[Sequence[str]], list[Sequence[str]]]]:
    """Title, heads of the columns (each of several lines) and body of each table."""
    means = table_of_means(audits)
    names = _names(audits)
    titles = {"input": "an input canary", "dirac": "the Dirac canary"}
    for group in _by_canary(audits):
        canary = group[0].config["canary"]
        folders = [audit.folder for audit in group]
        heads: list[Sequence[str]] = [("eps_B",), ("claim",), ("eps_U",), ("proxy",)]
        heads += [names[folder] for folder in folders]
        body: list[Sequence[str]] = []
        for (base, claim, proxy), rows in means.groupby(
            ["epsilon_base", "claim", "proxy"], sort=False
        ):
            mean = rows.set_index("folder")["epsilon_lower"]
            upper = rows["epsilon_upper"].iloc[0]
            cells = [f"{mean[folder.as_posix()]:.2f}" for folder in folders]
            body.append([f"{base:g}", str(claim), _number(upper), str(proxy), *cells])
        yield f"eps_L with {titles.get(canary, canary)}: threat model, X, z", heads, body


def _number(epsilon: float | None) -> str:
    return "-" if epsilon is None or pd.isna(epsilon) else f"{epsilon:.2f}"


def _names(audits: Sequence[Audit]) -> dict[Path, tuple[str, ...]]:
    """The row of table 2 of every audit, and its folder where several have the same."""
    counts = Counter(audit.row for audit in audits)
    return {
        audit.folder: (*audit.row, *([audit.folder.as_posix()] if counts[audit.row] > 1 else []))
        for audit in audits
    }


def _notes(audits: Sequence[Audit]) -> Iterator[str]:
    config, summary = audits[0].config, audits[0].summary
    valid = report.recommended(summary)
    bound = summary["results"][0]["lower_bounds"]["lambda_a"][valid]
    uppers = summary["results"][0]["upper_bounds"]
    yield "Cells: mean of eps_L over the repeats."
    yield (
        f"{report.VALID}: {valid}, each of the repeats with {100 * config['confidence']:g} % "
        f"confidence, {bound['assumes']}; eps_U: {_UPPER[report.VALID]}, "
        f"{uppers[_UPPER[report.VALID]]['assumes']}"
    )
    yield (
        f"{report.UNCORRECTED}: {report.PAPER_PROTOCOL}, no bound; eps_U: "
        f"{_UPPER[report.UNCORRECTED]}, {uppers[_UPPER[report.UNCORRECTED]]['assumes']}"
    )
    yield f"delta {config['delta']:g}, K ~ {config['repetitions']}, {_settings(audits)}"
    names = _names(audits)
    for runs, count in Counter(audit.runs for audit in audits).items():
        if count > 1:
            shared = [" ".join(names[audit.folder]) for audit in audits if audit.runs == runs]
            yield f"On the same runs, so correlated: {', '.join(shared)}"


def _settings(audits: Sequence[Audit]) -> str:
    """How large the audits were, with "or" where they differ."""
    trained = [audit for audit in audits if audit.row[1] != "empty"]

    def told(name: str, of: Sequence[Audit]) -> str:
        return " or ".join(map(str, sorted({audit.config[name] for audit in of})))

    records = f", {told('train_size', trained)} training records" if trained else ""
    played = f"{told('trials', audits)} trials x {told('repeats', audits)}"
    return f"{played}, {told('steps', audits)} steps{records}"


def draw(audits: Sequence[Audit]) -> Figure:
    """Draws the paper's figures 1 to 4: a panel per audit, in rows by threat model and canary."""
    names = _names(audits)
    grid = []
    for row in _rows(audits):
        grid.append([(_title(*names[audit.folder]), audit.summary) for audit in row])
    return plots.draw_grid(grid, f"K ~ {audits[0].config['repetitions']}, {_settings(audits)}")


def _rows(audits: Sequence[Audit]) -> list[list[Audit]]:
    """Rows of panels, one per kind of canary, or per threat model and kind where those are long."""
    width = _PANELS_IN_A_ROW
    if len(audits) <= width:
        return [list(audits)]
    rows = _by_canary(audits)
    if max(map(len, rows)) > width:
        rows = [list(row) for _, row in itertools.groupby(audits, lambda audit: audit.group)]
    return [row[at : at + width] for row in rows for at in range(0, len(row), width)]


def _by_canary(audits: Sequence[Audit]) -> list[list[Audit]]:
    """The audits of each kind of canary, input canaries first."""
    ordered = sorted(audits, key=lambda audit: audit.group[1:])
    return [list(same) for _, same in itertools.groupby(ordered, lambda audit: audit.group[1:])]


def _title(threat: str, training_set: str, canary: str, folder: str = "") -> str:
    return f"{threat}, X = {training_set}\nz = {canary}" + (f"\n{folder}" if folder else "")


def write(audits: Sequence[Audit], out: str | Path) -> None:
    """Writes table.csv (tidy), table.md and figure.png.

    Args:
        audits: finished audits that can share a table.
        out: the folder; made where it is absent.

    Raises:
        ValueError: the folder cannot be written.
    """
    try:
        folder = RunFolder(Path(out))
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_text("table.csv", report.to_csv(table_of_means(audits)))
        folder.write_text("table.md", to_markdown(audits))
        plots.save(draw(audits), folder.path / "figure.png")
    except OSError as error:
        raise ValueError(f"out must be a writable folder, got {str(out)!r}: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code: 0, or 2 after one clear line about what was wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python -m audit.compare", description="Puts finished audits side by side."
    )
    parser.add_argument("folders", nargs="+", help="folders of audit.run")
    parser.add_argument(
        "--out", default="runs/comparison", help="folder of the results (default: %(default)s)"
    )
    arguments = parser.parse_args(argv)
    try:
        audits = read(arguments.folders)
        write(audits, arguments.out)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(to_text(audits))
    print(f"\nresults in {arguments.out}, figure: {arguments.out}/figure.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

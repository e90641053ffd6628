"""Docs, docstrings, comments and messages contain no retired phrase of `retired_phrases.toml`.

`python tests/test_language.py [PATH ...]` lists those of the project, or of files and folders.
"""

import ast
import io
import json
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "tests" / "retired_phrases.toml").read_text())
PHRASES = {re.compile(key, re.IGNORECASE): use for key, use in SETTINGS["phrases"].items()}
SUFFIXES = {".cff", ".ipynb", ".md", ".py", ".toml"}
FOLDERS = [
    "audit",
    "benchmarks",
    "canaries",
    "docs",
    "examples",
    "notebooks",
    "runs",
    "studies",
    "tests",
    "threat_models",
]
POINTING = {
    *("asked", "both", "done", "each", "found", "given", "here", "kept", "known", "less", "mine"),
    *("most", "one", "other", "others", "ours", "own", "rest", "same", "several", "there"),
    *("wanted", "whole"),
}
_DIRECTIVE = re.compile(r"^```\{(?:eval-rst|glossary)\}(.*?)^```", re.M | re.S)
_CODE = re.compile(r"^```.*?^```|``[^`]+``|`[^`\n]+`|^ *>>>.*?(?=\n *$|\Z)", re.M | re.S)


def sentences(name: str, text: str) -> Iterator[tuple[int, str]]:
    """The parts of a file that people read, each with its line number; code is left out."""
    if name.endswith(".ipynb"):
        for cell in json.loads(text)["cells"]:
            kind = "cell.md" if cell["cell_type"] == "markdown" else "cell.py"
            yield from sentences(kind, "".join(cell["source"]))
    elif name.endswith(".py"):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        literals = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None))
        for token in tokens:
            # A literal without a space is a name, not a sentence.
            if token.type in literals and " " in token.string:
                yield token.start[0], _without_code(token.string)
    else:
        yield 1, _without_code(text)


def _without_code(text: str) -> str:
    text = _DIRECTIVE.sub(r"\1", text)  # These blocks contain prose.
    return _CODE.sub(lambda match: "\n" * match[0].count("\n"), text)


def retired(name: str, text: str) -> list[str]:
    """The retired phrases of a file, one line each."""
    found = []
    for start, part in sentences(name, text):
        for phrase, use in PHRASES.items():
            for match in phrase.finditer(part):
                line = start + part.count("\n", 0, match.start())
                found.append(f"{name}:{line}: {match[0]!r}; write {use}")
    return found


def project_files() -> list[Path]:
    """All files that the check can read, without results and generated files."""
    files = [path for path in ROOT.iterdir() if path.suffix in SUFFIXES or path.name == "Makefile"]
    for folder in FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    own = {ROOT / "tests" / "retired_phrases.toml", Path(__file__)}
    return sorted(path for path in {file.resolve() for file in files} - own)


@pytest.mark.parametrize("folder", [".", *FOLDERS])
def test_no_file_contains_a_retired_phrase(folder: str) -> None:
    files = [
        path
        for path in project_files()
        if (path.parent == ROOT if folder == "." else path.is_relative_to(ROOT / folder))
    ]
    assert files
    found = [
        line
        for path in files
        for line in retired(path.relative_to(ROOT).as_posix(), path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.py", '"""A law of K."""\nlaw = 1  # the truth\n', [1, 2]),
        ("a.py", '"""Doc.\n\n`law` and ``told``.\n\n    >>> law = 1\n"""\n', []),
        ("a.md", "Text.\n```\nlaw\n```\nIt is told, `told` not.\n", [5]),
        ("a.md", "```{eval-rst}\nA law.\n```\n```\nlaw\n```\nA law.\n", [2, 7]),
        ("a.md", "The lawn. A hyperparameter.\n", []),
    ],
)
def test_phrases_are_found_in_prose_only(name: str, text: str, lines: list[int]) -> None:
    found = retired(name, text)
    assert [int(line.split(":")[1]) for line in found] == lines


def assigned_names(text: str) -> list[str]:
    """The names that the statements of a module assign to, with those of loops and contexts."""
    nodes = ast.walk(ast.parse(text))
    return [
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def test_local_names_say_what_they_hold() -> None:
    # A name that only points makes a reader walk back. lineax, Optuna, dp_accounting and
    # jax_privacy have 0.1 % of them.
    names = [
        name
        for folder in ("audit", "canaries", "studies", "threat_models")
        for path in (ROOT / folder).rglob("*.py")
        for name in assigned_names(path.read_text())
    ]
    pointing = [name for name in names if name in POINTING]
    assert len(names) > 10_000
    assert len(pointing) <= 0.004 * len(names), sorted(pointing)
    statements = "for each in x:\n    found, b.c = 1, 2\nrest += 1"
    assert set(assigned_names(statements)) == {"each", "found", "rest"}


def test_notebooks_are_read() -> None:
    cells = [{"cell_type": "markdown", "source": ["Every\n", "law"]}]
    assert len(retired("a.ipynb", json.dumps({"cells": cells}))) == 1


if __name__ == "__main__":
    named = [Path(name).resolve() for name in sys.argv[1:]] or [ROOT]
    for path in project_files():
        if not any(path.is_relative_to(one) for one in named):
            continue
        for line in retired(path.relative_to(ROOT).as_posix(), path.read_text()):
            print(line)

"""Builds the package; `pyproject.toml` has its settings. Package indexes show the README."""

import re
import tomllib
from pathlib import Path

from setuptools import setup


def long_description(readme: str, repository: str | None, version: str) -> str:
    """The README for a package index, which does not resolve relative links.

    Args:
        readme: the README.
        repository: address of the public repository, where links and figures lead; if None,
            links become plain text.
        version: version of the package.
    """

    def replace(found: re.Match[str]) -> str:
        figure, text, path = found.groups()
        if repository is None:
            return f"Figure: {text}" if figure else text
        return f"{figure}[{text}]({repository}/{'raw' if figure else 'blob'}/v{version}/{path})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", replace, readme)


if __name__ == "__main__":
    root = Path(__file__).parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme, package = (
        (root / name).read_text(encoding="utf-8") for name in ("README.md", "audit/version.py")
    )
    version = re.search(r'^__version__ = "(.+)"', package, re.MULTILINE)
    assert version is not None
    setup(
        long_description=long_description(
            readme, project.get("urls", {}).get("Repository"), version[1]
        ),
        long_description_content_type="text/markdown",
    )

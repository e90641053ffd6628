"""Sets the public repository before a release: `python docs/set_repository.py https://HOST/OWNER/NAME`.

Package indexes do not resolve relative links, so the README's links and figures become absolute.
The project's page on an index and the site then link to the repository.
"""

import re
import sys
import tomllib
from pathlib import Path

import audit

ROOT = Path(__file__).parents[1]


def absolute_links(text: str, repository: str, tag: str) -> str:
    """A page in Markdown whose relative links and figures point to a version of the repository."""

    def absolute(found: re.Match[str]) -> str:
        kind = "raw" if found[1] else "blob"
        return f"{found[1]}[{found[2]}]({repository}/{kind}/{tag}/{found[3]})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", absolute, text)


def project_urls(project: str, repository: str) -> str:
    """The text of pyproject.toml with the addresses of the project."""
    if "urls" in tomllib.loads(project)["project"]:
        raise SystemExit("pyproject.toml must not have [project.urls] yet")
    urls = (
        f'[project.urls]\nRepository = "{repository}"\nIssues = "{repository}/issues"\n'
        f'Changelog = "{repository}/blob/main/CHANGELOG.md"\n\n'
    )
    return project.replace("[project.scripts]", urls + "[project.scripts]")


if __name__ == "__main__":
    address = sys.argv[1].rstrip("/")
    readme, settings = ROOT / "README.md", ROOT / "pyproject.toml"
    settings.write_text(project_urls(settings.read_text(), address))
    readme.write_text(absolute_links(readme.read_text(), address, f"v{audit.__version__}"))

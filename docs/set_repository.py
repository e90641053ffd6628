"""Sets public addresses before a release: `python docs/set_repository.py REPOSITORY [SITE]`.

Both are addresses such as https://HOST/OWNER/NAME. The project's page on a package index, its
README there, and the site then link to the repository, and the site's social card has the full
address of its picture.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def project_urls(project: str, repository: str, site: str = "") -> str:
    """The text of pyproject.toml with the addresses of the project."""
    if "urls" in tomllib.loads(project)["project"]:
        raise SystemExit("pyproject.toml must not have [project.urls] yet")
    urls = (
        f'[project.urls]\nRepository = "{repository}"\nIssues = "{repository}/issues"\n'
        f'Changelog = "{repository}/blob/main/CHANGELOG.md"\n'
    )
    urls += f'Documentation = "{site}"\n\n' if site else "\n"
    return project.replace("[project.scripts]", urls + "[project.scripts]")


if __name__ == "__main__":
    settings = ROOT / "pyproject.toml"
    addresses = [address.rstrip("/") for address in sys.argv[1:]]
    settings.write_text(project_urls(settings.read_text(), *addresses))

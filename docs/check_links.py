"""Checks a built site offline: `python docs/check_links.py FOLDER`; exit code 1 for dead links.

Every link within the site must lead to a file and, if it has a fragment, to an element of that
file. A page may load scripts, styles, pictures and fonts only from the site.
"""

import functools
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_VERSION = re.compile(r"(\.\./)+\d+(\.\d+)*/index\.html$")
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class _Page(HTMLParser):
    """The links of a page, the files that it loads, and the names of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Records one tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(values["href"])
        if values.get(_LOADED.get(tag, "")):
            self.loads.append(values[_LOADED[tag]])


def problems(folder: Path) -> list[str]:
    """Problems with the links of a built site, one line each.

    Args:
        folder: the built site.
    """
    exists = functools.cache(Path.exists)  # most pages link to the same ones
    folder = folder.resolve()
    pages = {path: _Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    found = [] if pages else [f"{folder}: no pages"]
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    found.append(f"{path.name}: loads {link}")
                continue
            linked = os.path.normpath(path.parent / unquote(parts.path))
            target = Path(linked) if parts.path else path
            if target.parent.parent == folder.parent and _VERSION.match(link):
                continue  # the site of another version, which is not built here
            if not exists(target):
                found.append(f"{path.name}: no file for {link}")
            elif target in pages and unquote(parts.fragment) not in {"", *pages[target].anchors}:
                found.append(f"{path.name}: no anchor for {link}")
    return found


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    print("\n".join(wrong) or "all links work")
    sys.exit(bool(wrong))

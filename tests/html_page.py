"""A parser that checks the html pages of certificates and reports."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Collects unclosed tags, ids, and the addresses that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str | None] = []
        self.ids: list[str | None] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        links = [
            v or "" for k, v in values.items() if k in ("src", "href") and (v or "")[:1] != "#"
        ]
        self.fetched += [link for link in links if not link.startswith("data:")]
        self.fetched += [v for k, v in values.items() if k == "xlink:href" and (v or "")[:1] != "#"]
        if "id" in values:
            self.ids.append(values["id"])
        assert tag != "img" or values.get("alt")  # for screen readers
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

"""Self-contained html pages of tables and figures, for screens, phones and paper."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from audit import checks

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #f3f4f6; margin: 0; }
main { max-width: 54rem; margin: 0 auto; padding: 1.25rem; background: #fff; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.1rem; margin: 1.75rem 0 .5rem; border-bottom: 1px solid #d0d7de; }
.claim { font-size: 1.15rem; padding: .75rem 1rem; border-left: .35rem solid #1a7f37;
  background: #eefbf1; }
.claim.doubt { border-color: #9a6700; background: #fff8c5; }
.void .claim, .alarm .claim.doubt { border-color: #cf222e; background: #fff0ee; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { flex: 1 1 20rem; min-width: 0; margin: 0; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { font-size: .85rem; color: #57606a; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid #e3e6ea; overflow-wrap: break-word; }
.key td { overflow-wrap: anywhere; }
figure img { width: 100%; height: auto; }
@media screen and (max-width: 46em) { figure { overflow-x: auto; } figure img { width: 40rem; } }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.key th { width: 13rem; font-weight: 600; }
.ground { white-space: nowrap; font-size: .85rem; padding: .05rem .4rem; border-radius: .3rem;
  background: #ddf4ff; }
.on-trust { background: #fff8c5; }
.broken { background: #ffd8d3; }
code { font-size: .85em; overflow-wrap: anywhere; }
@media (max-width: 34rem) {
  main { padding: .9rem; }
  .key th, .key td { display: block; width: auto; border: 0; padding: 0; }
  .key td { padding-bottom: .5rem; border-bottom: 1px solid #e3e6ea; }
}
@media print {
  body { background: #fff; font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  h2, figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def document(title: str, body: Iterable[str], kind: str = "") -> str:
    """A self-contained html page of parts in html; `kind` is the css class of its body."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f'<body class="{kind}"><main>\n' + "\n".join(body) + "\n</main></body></html>\n"
    )


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    raw: bool = False,
) -> str:
    """A table as html, with the indices of numeric columns; `raw` cells are html already."""
    marks = [' class="n"' if place in numbers else "" for place in range(len(heads))]
    head = "".join(
        f'<th scope="col"{mark}>{escape(one)}</th>' for one, mark in zip(heads, marks, strict=True)
    )
    lines = (
        "<tr>"
        + "".join(
            f"<td{mark}>{one if raw else escape(one)}</td>"
            for one, mark in zip(row, marks, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def figure(picture: str, words: str) -> str:
    """A picture in html with its caption."""
    return f"<figure>{picture}<figcaption>{escape(words)}</figcaption></figure>"


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values; on phones, values appear below their names."""
    lines = (
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table class="key">{"".join(lines)}</table>'


def words_of(value: Any) -> str:
    """A plain value as text: names and values of a mapping, values of a sequence."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def escape(text: str) -> str:
    """Escapes a text for html; invisible characters become visible escapes."""
    return html.escape(checks.printable(str(text)))

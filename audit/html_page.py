"""Self-contained html pages of tables and figures, for screens, phones and paper."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from audit import checks

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #57606a; --page: #fff;
  --around: #f3f4f6;
  --line: #d0d7de; --good: #1a7f37; --good-back: #eefbf1; --doubt: #9a6700; --doubt-back: #fff8c5;
  --bad: #cf222e; --bad-back: #fff0ee; --mark: #ddf4ff; --broken: #ffd8d3; }
@media screen and (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --faint: #9da7b1; --page: #161b22; --around: #0d1117; --line: #3d444d;
    --good: #3fb950; --good-back: #12261a; --doubt: #d29922; --doubt-back: #2e2408;
    --bad: #f85149; --bad-back: #351417; --mark: #12304d; --broken: #5c1f1b; }
  /* Pictures are drawn on white: their lightness is inverted, and their hues stay. */
  figure svg, figure img { filter: invert(.9) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--around);
  margin: 0; }
main { max-width: 54rem; margin: 0 auto; padding: 1.25rem; background: var(--page); }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.1rem; margin: 1.75rem 0 .5rem; border-bottom: 1px solid var(--line); }
.claim { font-size: 1.15rem; padding: .75rem 1rem; border-left: .35rem solid var(--good);
  background: var(--good-back); }
.claim.doubt { border-color: var(--doubt); background: var(--doubt-back); }
.void .claim, .alarm .claim.doubt { border-color: var(--bad); background: var(--bad-back); }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { flex: 1 1 20rem; min-width: 0; margin: 0; }
figure svg { width: 100%; height: auto; display: block; background: #fff; }
figcaption { font-size: .85rem; color: var(--faint); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: break-word; }
.key td { overflow-wrap: anywhere; }
figure img { width: 100%; height: auto; }
@media screen and (max-width: 46em) { figure { overflow-x: auto; } figure img { width: 40rem; } }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
.key th { width: 13rem; font-weight: 600; }
.ground { white-space: nowrap; font-size: .85rem; padding: .05rem .4rem; border-radius: .3rem;
  background: var(--mark); }
.on-trust { background: var(--doubt-back); }
.broken { background: var(--broken); }
code { font-size: .85em; overflow-wrap: anywhere; }
@media (max-width: 34rem) {
  main { padding: .9rem; }
  .key th, .key td { display: block; width: auto; border: 0; padding: 0; }
  .key td { padding-bottom: .5rem; border-bottom: 1px solid var(--line); }
  .wide table { font-size: .8rem; line-height: 1.3; }
  .wide th, .wide td { padding-right: .35rem; }
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
        f'<th scope="col"{mark}>{escape(cell)}</th>'
        for cell, mark in zip(heads, marks, strict=True)
    )
    lines = (
        "<tr>"
        + "".join(
            f"<td{mark}>{cell if raw else escape(cell)}</td>"
            for cell, mark in zip(row, marks, strict=True)
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
        return ", ".join(f"{name} {item}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def escape(text: str) -> str:
    """Escapes a text for html; invisible characters become visible escapes."""
    return html.escape(checks.printable(str(text)))

"""Renders a certificate as one self-contained html page, for screens, phones and paper."""

import html as markup
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from audit import checks
from audit.certificate import text
from audit.certificate.conditions import Ground
from audit.certificate.content import Content
from audit.certificate.numbers import TradeOff, rounded_up
from audit.numerics import format_exact

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


def html(certificate: Content) -> str:
    """The certificate as an html page."""
    points, delta = certificate.numbers.profile, format_exact(certificate.delta)
    body = [
        "<h1>Certificate of a private tuning</h1>",
        f'<p class="claim">{escape(certificate.claim("below"))}</p>',
        f"<h2>The {len(certificate.on_trust)} conditions</h2>",
        "<p>They are stated by the author. No program can verify them.</p>",
        _conditions(certificate, (Ground.ON_TRUST,)),
        "<h2>Conditions ensured by the study, according to its author</h2>",
        _conditions(certificate, [ground for ground in Ground if ground is not Ground.ON_TRUST]),
        "<h2>Scope of the claim</h2>",
        pairs(text.scope(certificate)),
        "<h2>Mechanism and cost</h2>",
        pairs(text.cost(certificate)),
        "<h2>Stated by the author</h2>",
        pairs(text.statements(certificate)),
        "<h2>Limits for any attack</h2>",
        pairs(text.limits(certificate)),
        f'<div class="figures">{_figures(certificate)}</div>',
        "<h2>Privacy profile of the tuning</h2>",
        table(
            ["delta", "epsilon"],
            [[format_exact(one.delta), rounded_up(one.epsilon, 6)] for one in points],
            numbers=(0, 1),
        ),
        f"<h2>Groups of records, at delta = {delta}</h2>",
        table(
            ["records", "epsilon"],
            [
                [str(size), "none" if epsilon is None else rounded_up(epsilon)]
                for size, epsilon in certificate.groups
            ],
            numbers=(0, 1),
        ),
    ]
    if found := text.audit(certificate):
        body += ["<h2>Audit</h2>", pairs(found)]
    body += [
        "<h2>Events that make it void</h2>",
        "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in certificate.void_if) + "</ul>",
        "<h2>Provenance</h2>",
        pairs(text.provenance(certificate)),
        f"<p>Hash <code>{certificate.as_dict()['hash']}</code>. This page proves nothing, because "
        "anyone can change it. Request the json file with this hash. "
        "<code>python -m audit.verify certificate.json</code> recomputes every number of that "
        "file and every condition it must state, and <code>--render page.html</code> makes this "
        "page again.</p>",
    ]
    return document("Certificate of a private tuning", body, "void" if certificate.void else "")


def _conditions(certificate: Content, grounds: Sequence[Ground]) -> str:
    rows = []
    for one in certificate.conditions:
        if one.ground in grounds:
            name = one.ground.value
            mark = f'<span class="ground {name.replace(" ", "-")}">{name}</span>'
            rows.append([escape(one.words), mark])
    return table(["condition", "basis"], rows, raw=True)


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


def _figures(certificate: Content) -> str:
    numbers = certificate.numbers

    def profile(axes: Any) -> None:
        epsilons = [one.epsilon for one in numbers.profile]
        axes.plot(epsilons, [one.delta for one in numbers.profile], "o-", color="#0969da", ms=4)
        axes.plot([numbers.epsilon], [certificate.delta], "o", color="#cf222e", ms=7)
        axes.set_yscale("log")
        axes.set_xlim(left=0.0)
        axes.set(xlabel="epsilon", ylabel="delta")

    def trade_off(axes: Any) -> None:
        rates = np.concatenate([np.geomspace(1e-6, 0.02, 60), np.linspace(0.02, 1.0, 120)])
        curve = TradeOff(numbers.profile)
        axes.plot(rates, curve.false_negatives(rates), color="#0969da", label="the tuning")
        gaussian = special.ndtr(-special.ndtri(rates) - numbers.mu)
        axes.plot(rates, gaussian, "--", color="#57606a", label=f"{rounded_up(numbers.mu, 3)}-GDP")
        axes.plot([0, 1], [1, 0], ":", color="#8c959f", label="random guessing")
        axes.set(xlabel="rate of false positives", ylabel="rate of false negatives")
        axes.legend(frameon=False, fontsize="small")

    captions = {
        profile: "The tuning is (epsilon, delta)-DP at every point. Red: the certified point.",
        trade_off: "The errors of every attack lie on or above the solid line.",
    }
    return "".join(figure(_svg(draw, words), words) for draw, words in captions.items())


def _svg(draw: Callable[[Any], None], words: str) -> str:
    """A drawing as an inline svg element, which screen readers present as one picture."""
    # matplotlib is slow to import, and only this page needs it.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Different salts keep the ids of several pictures distinct.
    with mpl.rc_context({"svg.hashsalt": draw.__name__, "font.size": 11}):
        canvas = Figure(figsize=(4.6, 3.4), layout="constrained")
        axes = canvas.subplots()
        draw(axes)
        axes.grid(alpha=0.3)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    found = buffer.getvalue()
    found = re.sub(r"<metadata>.*?</metadata>", "", found[found.index("<svg") :], flags=re.DOTALL)
    return found.replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)


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
    return markup.escape(checks.printable(str(text)))

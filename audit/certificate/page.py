"""Renders a certificate as one self-contained html page."""

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from audit.certificate import text
from audit.certificate.conditions import Ground
from audit.certificate.numbers import TradeOff
from audit.html_page import document, escape, figure, pairs, table
from audit.numerics import format_exact, rounded_up

if TYPE_CHECKING:
    from audit.certificate.content import Content


def html(certificate: "Content") -> str:
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
        _figures(certificate),
        "<h2>Privacy profile of the tuning</h2>",
        table(
            ["delta", "epsilon"],
            [[format_exact(point.delta), rounded_up(point.epsilon, 6)] for point in points],
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
    if rows := text.audit(certificate):
        body += ["<h2>Audit</h2>", pairs(rows)]
    body += [
        "<h2>Events that make it void</h2>",
        "<ul>" + "".join(f"<li>{escape(reason)}</li>" for reason in certificate.void_if) + "</ul>",
        "<h2>Provenance</h2>",
        pairs(text.provenance(certificate)),
        f"<p>Hash <code>{certificate.as_dict()['hash']}</code>. This page proves nothing, because "
        "anyone can change it. Request the json file with this hash. "
        "<code>python -m audit.verify certificate.json</code> recomputes every number of that "
        "file and every condition it must state, and <code>--render page.html</code> makes this "
        "page again.</p>",
    ]
    return document("Certificate of a private tuning", body, "void" if certificate.void else "")


def _conditions(certificate: "Content", grounds: Sequence[Ground]) -> str:
    rows = []
    for condition in certificate.conditions:
        if condition.ground in grounds:
            name = condition.ground.value
            mark = f'<span class="ground {name.replace(" ", "-")}">{name}</span>'
            rows.append([escape(condition.words), mark])
    return table(["condition", "basis"], rows, raw=True)


def _figures(certificate: "Content") -> str:
    """The profile and the trade-off curve; a sentence where matplotlib is not installed."""
    numbers = certificate.numbers

    def profile(axes: Any) -> None:
        epsilons = [point.epsilon for point in numbers.profile]
        axes.plot(epsilons, [point.delta for point in numbers.profile], "o-", color="#0969da", ms=4)
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
    try:
        figures = [figure(_svg(draw, words), words) for draw, words in captions.items()]
    except ImportError:  # in the plain installation
        return "<p>The figures of this page are left out, because matplotlib was not installed.</p>"
    return f'<div class="figures">{"".join(figures)}</div>'


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
    image = buffer.getvalue()
    image = re.sub(r"<metadata>.*?</metadata>", "", image[image.index("<svg") :], flags=re.DOTALL)
    return image.replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)

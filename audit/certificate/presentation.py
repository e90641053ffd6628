"""Presents the content of a certificate: as text, as an html page, and as a draft for a registry.

The text consists of rows of titles and words, a summary, and a paragraph of everything; the html
page is self-contained. The draft is for the Differential Privacy Deployments Registry. Its fields
are those of the registry's schema in OpenDP's repository `deployments-registry-data` (commit
3e9c812), which follows Nanayakkara, Ghazi and Vadhan 2025, arXiv 2509.13509.
"""

import io
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from audit import checks
from audit.certificate.conditions import CLIPPING_NORM, NOT_STATED, Ground, how_tested, testable
from audit.errors import InvalidInput
from audit.html_page import document, escape, figure, pairs, table
from audit.numerics import format_exact, rounded_down, rounded_up

if TYPE_CHECKING:
    from audit.certificate.certificate import Content

Rows = list[tuple[str, str]]
"""Titles and words."""

_WIDTH = 88
# Names of the clipping norm in search spaces: of Opacus, of TensorFlow Privacy and in general.
_CLIPPING_NAMES = frozenset({"max_grad_norm", "l2_norm_clip", "clipping_norm"})

_PLACE = re.compile(r"\{(\w+)\}(\]?)(.*)")

_UNPROTECTED = {
    "add-remove": "None that the certificate names; the number of records is private.",
    "zero-out": "The number of records.",
    "replace-one": "The number of records.",
}

_DEPLOYMENT_TEMPLATE = """\
# Draft for the Differential Privacy Deployments Registry, from a certificate.
# The publisher fills in every field that is marked, and checks all others.
url_slug: ''  # publisher: lowercase name of the entry
status: "Draft"
tier: 3
deployment:
  basic:
    name: ''  # publisher: name of the data product
    data_curators: ['']  # publisher: who publishes it
    intended_use: ''  # publisher: its intended uses
    data_product_type: {product}  # publisher: kind of data product, of the registry's list
    data_product_region: ''  # publisher: region that the data describe, or whose rules apply
    description: {description}  # publisher: what it is
    publication_date: ''  # publisher: YYYY-MM-DD
    data_product_sector: ''  # publisher: sector, of the registry's list
  dp_variant:
    variant_name: "Approximate DP"
    data_domain: {dataset}  # publisher: data sets that are protected
    unprotected_quantities: {unprotected}  # publisher: released quantities without protection
  privacy_loss:
    privacy_unit: {unit}
    privacy_unit_details: {neighbours}
    privacy_parameters:
      epsilon: {epsilon}
      delta: {delta}
    privacy_parameters_details: {claim}
  deployment_model:
    model_name: "Central"
    model_name_details: {trust_model}
    actors: {withheld}
    release_type: "One release"
    release_type_details: {total}  # publisher: further releases from the same records; \
earlier_spending states them
    data_source_type: ''  # publisher: Static or Dynamic
    data_source_type_details: ''  # publisher: how the data change, if they do
    access_type: "Non-interactive"
    access_type_details: ''  # publisher: who has access to the released items
  accounting:
    post_processing: ''  # publisher: functions applied to the released items
    composition: {bound}
  implementation:
    preprocessing_and_hyperparameter_tuning: {tuning}
    mechanisms: {mechanisms}
    justification: {reasons}
  administrative:
    sources: ''  # publisher: links to the certificate, the model and papers
    notes: {notes}
    registry_authors: [{author}]  # publisher: who fills in this entry
"""
"""A value replaces its name, and the comment after it; an unknown one is blank and marked."""


def full_text(certificate: "Content") -> str:
    """The summary, then a paragraph of everything."""
    return f"{summary(certificate)}\n\nEVERYTHING IN ONE PARAGRAPH\n{paragraph(certificate)}"


def summary(certificate: "Content") -> str:
    """What a privacy officer needs, in about ten rows; the conditions on trust are named."""
    numbers, delta = certificate.numbers, format_exact(certificate.delta)
    run = "-" if numbers.run_epsilon is None else rounded_up(numbers.run_epsilon)
    one_percent = rounded_up(100.0 * numbers.true_positives[0])
    grounds = [condition.ground for condition in certificate.conditions]
    rows = [
        *(("VOID", reason) for reason in certificate.void),
        ("Cost of the release", f"epsilon = {rounded_up(numbers.epsilon)} at delta = {delta}"),
        ("One run alone", f"epsilon = {run}"),
        ("What it means", f"an attack with 1 % false positives finds at most {one_percent} %"),
        ("Protects", f"{checks.quoted(certificate.setting.unit)}; {certificate.setting.relation}"),
        ("Released", "; ".join(certificate.setting.released)),
        ("Withheld", "; ".join(certificate.setting.withheld)),
        (
            "Conditions",
            ", ".join(
                f"{grounds.count(ground)} {ground.value}" for ground in Ground if ground in grounds
            ),
        ),
        ("On trust", "; ".join(condition.words for condition in certificate.on_trust)),
        ("Check it", "python -m audit.verify certificate.json"),
    ]
    lines = []
    for title, words in rows:
        lines += textwrap.wrap(
            checks.printable(f"{title + ':':21}{words}"),
            _WIDTH,
            subsequent_indent=" " * 21,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def paragraph(certificate: "Content") -> str:
    """The claim and all rows for a paper or a model card, in lines of at most 88 characters."""
    rows = [
        *scope(certificate),
        *cost(certificate),
        *limits(certificate),
        ("Groups of records", f"{groups_in_words(certificate)} at delta {certificate.delta:g}"),
        *audit(certificate),
        *conditions(certificate),
        ("Void if", "; or ".join(certificate.void_if)),
        *statements(certificate),
        *provenance(certificate),
        ("Certificate", certificate.as_dict()["hash"][:16]),
    ]
    text = checks.printable(f"{certificate.statement} {sentences(rows)}")
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False)


def sentences(rows: Rows) -> str:
    """Rows as sentences."""
    return " ".join(f"{title}: {words.removesuffix('.')}." for title, words in rows)


def scope(certificate: "Content") -> Rows:
    """The scope of the claim."""
    setting = certificate.setting
    return [
        ("Unit of privacy", checks.quoted(setting.unit)),
        ("Neighbouring data sets", f"{setting.relation}: {setting.neighbours}"),
        ("Trust model", setting.trust_model),
        *((f"Read by {who}", use) for who, use in setting.touched.items()),
        ("Released", "; ".join(setting.released)),
        ("Withheld", "; ".join(setting.withheld)),
    ]


def cost(certificate: "Content") -> Rows:
    """The mechanism, the protocol and their cost."""
    numbers, delta = certificate.numbers, format_exact(certificate.delta)
    run = "none at this delta" if numbers.run_epsilon is None else rounded_up(numbers.run_epsilon)
    mean = certificate.protocol.mean_runs
    protocol = certificate.protocol.statement.summary
    rows = [
        ("One run", certificate.base.description),
        ("Epsilon of a single run", f"{run} at delta = {delta}"),
        ("Protocol", f"{protocol} In short: {certificate.protocol.spec}"),
        ("Expected number of runs", "depends on the outputs" if mean is None else f"{mean:.4g}"),
        ("Candidates", candidates_in_words(certificate)),
        ("Epsilon of the tuning", f"{rounded_up(numbers.epsilon)} at delta = {delta}"),
        ("Bound", f"{numbers.bounds[0]}: {numbers.source}"),
        ("Assumptions of the bound", numbers.assumes),
    ]
    if numbers.attained is not None:
        attained = f"{rounded_down(numbers.attained)}, on the worst score"
        rows.append(("Epsilon that an attack attains", attained))
    return rows


def limits(certificate: "Content") -> Rows:
    """Limits that no attack can exceed."""
    numbers = certificate.numbers
    hundredth, tenth = (rounded_up(100.0 * share) for share in numbers.true_positives)
    mu = f"mu = {rounded_up(numbers.mu)}, up to {format_exact(certificate.delta)}"
    return [
        ("Membership advantage", f"at most {rounded_up(numbers.advantage)}"),
        ("True positives at 1 % false positives", f"at most {hundredth} %"),
        ("True positives at 0.1 % false positives", f"at most {tenth} %"),
        ("Gaussian DP", f"{mu}; regret {rounded_up(numbers.mu_regret, 2)}"),
    ]


def audit(certificate: "Content") -> Rows:
    """Result of an audit; empty without one."""
    evidence = certificate.evidence
    if evidence is None:
        return []
    trials = f"{evidence.games_without} without, {evidence.games_with} with the record"
    detectable = rounded_up(evidence.ceiling(certificate.delta))
    return [
        (
            "Lower bound on epsilon, from an audit",
            f"at least {rounded_down(evidence.epsilon_lower)}",
        ),
        ("Confidence", format_exact(evidence.confidence)),
        ("Trials", trials),
        ("Epsilon that these trials would show without errors, at a fixed threshold", detectable),
    ]


def statements(certificate: "Content") -> Rows:
    """The author's statements, and what follows from them."""
    stated = [
        (title, clipping_in_words(certificate) if title == CLIPPING_NORM else words)
        for title, words in certificate.stated.in_words()
    ]
    if (total := total_in_words(certificate)) is not None:
        stated.append(("Sum", total))
    return [*stated, ("SHA-256 of the released model", certificate.model_hash or NOT_STATED)]


def provenance(certificate: "Content") -> Rows:
    """Software, date and random draws."""
    made = certificate.made
    return [
        ("Made on", made.date),
        ("Made with", implementation_in_words(certificate)),
        ("Random draws", draws_in_words(certificate)),
        ("Hash of the settings", certificate.study.settings or NOT_STATED),
    ]


def conditions(certificate: "Content") -> Rows:
    """The conditions of the claim by their ground."""
    rows = []
    for ground in (Ground.BY_CONSTRUCTION, Ground.CHECKED, Ground.TESTED, Ground.ON_TRUST):
        words = [
            condition.words for condition in certificate.conditions if condition.ground is ground
        ]
        title = ground.value
        if words and ground is Ground.TESTED:
            title = how_tested(certificate.study)
            words = [wording.removesuffix(f" ({title})") for wording in words]
        if words:
            rows.append((title.capitalize(), "; ".join(words)))
    return rows


def implementation_in_words(certificate: "Content") -> str:
    """Versions of the software."""
    made = certificate.made
    libraries = (f"{name} {version}" for name, version in made.libraries.items())
    return ", ".join([f"dp-tuning-audit {made.version}", f"Python {made.python}", *libraries])


def candidates_in_words(certificate: "Content") -> str:
    """Distribution of the candidates in one line."""
    prior = certificate.study.prior.items()
    return "; ".join(checks.quoted(f"{name}: {words}") for name, words in prior)


def clipping_in_words(certificate: "Content") -> str:
    """The clipping norm: the author's number, or the part of the search space that draws it."""
    norm = certificate.stated.max_grad_norm
    drawn = [
        checks.quoted(f"{name}: {words}")
        for name, words in certificate.study.prior.items()
        if name in _CLIPPING_NAMES
    ]
    chosen = f"chosen in the search space ({'; '.join(drawn)})"
    if norm is None:
        return chosen if drawn else NOT_STATED
    return f"{format_exact(norm)}, and {chosen}" if drawn else format_exact(norm)


def groups_in_words(certificate: "Content") -> str:
    """Epsilon of groups of records in one line."""
    return "; ".join(
        f"{size} records, {'no epsilon' if epsilon is None else rounded_up(epsilon)}"
        for size, epsilon in certificate.groups
    )


def total_in_words(certificate: "Content") -> str | None:
    """Cost of this and all earlier releases; None if the author does not state these."""
    total = certificate.declaration.total(certificate.numbers.epsilon, certificate.delta)
    if total is None:
        return None
    return (
        "With all earlier releases that are stated, the records have spent "
        f"({rounded_up(total[0])}, {rounded_up(total[1])})-DP, by basic composition"
    )


def draws_in_words(certificate: "Content") -> str:
    """Source of the random draws, and whether their key was deleted."""
    if certificate.study.seeded:
        return "a given seed"
    key_kept = certificate.study.key_kept
    fate = "kept in the folder of the study, readable by its owner only" if key_kept else "deleted"
    return f"256 bits of entropy of the operating system, expanded by SHAKE-256; the key is {fate}"


def html(certificate: "Content") -> str:
    """The certificate as an html page."""
    points, delta = certificate.numbers.profile, format_exact(certificate.delta)
    body = [
        "<h1>Certificate of a private tuning</h1>",
        f'<p class="claim">{escape(certificate.claim("below"))}</p>',
        f"<h2>The {len(certificate.on_trust)} conditions</h2>",
        "<p>They are stated by the author. No program can verify them.</p>",
        _conditions_of_page(certificate, (Ground.ON_TRUST,)),
        "<h2>Conditions ensured by the study, according to its author</h2>",
        _conditions_of_page(
            certificate, [ground for ground in Ground if ground is not Ground.ON_TRUST]
        ),
        "<h2>Scope of the claim</h2>",
        pairs(scope(certificate)),
        "<h2>Mechanism and cost</h2>",
        pairs(cost(certificate)),
        "<h2>Stated by the author</h2>",
        pairs(statements(certificate)),
        "<h2>Limits for any attack</h2>",
        pairs(limits(certificate)),
        _figures_of_page(certificate),
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
    if rows := audit(certificate):
        body += ["<h2>Audit</h2>", pairs(rows)]
    body += [
        "<h2>Events that make it void</h2>",
        "<ul>" + "".join(f"<li>{escape(reason)}</li>" for reason in certificate.void_if) + "</ul>",
        "<h2>Provenance</h2>",
        pairs(provenance(certificate)),
        f"<p>Hash <code>{certificate.as_dict()['hash']}</code>. This page proves nothing, because "
        "anyone can change it. Request the json file with this hash. "
        "<code>python -m audit.verify certificate.json</code> recomputes every number of that "
        "file and every condition it must state, and <code>--render page.html</code> makes this "
        "page again.</p>",
    ]
    return document("Certificate of a private tuning", body, "void" if certificate.void else "")


def _conditions_of_page(certificate: "Content", grounds: Sequence[Ground]) -> str:
    rows = []
    for condition in certificate.conditions:
        if condition.ground in grounds:
            name = condition.ground.value
            mark = f'<span class="ground {name.replace(" ", "-")}">{name}</span>'
            rows.append([escape(condition.words), mark])
    return table(["condition", "basis"], rows, raw=True)


def _figures_of_page(certificate: "Content") -> str:
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
        curve = numbers.curve
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


def deployment_record(certificate: "Content") -> str:
    """A draft entry of the registry, as YAML; a void certificate is refused."""
    if certificate.void:
        raise InvalidInput(
            "certificate must not be void to be registered, got one with a broken condition: "
            + "; ".join(certificate.void)
        )
    values = _deployment_values(certificate)

    def filled(place: re.Match[str]) -> str:
        name, bracket, comment = place.groups()
        value = values[name]
        return f"''{bracket}{comment}" if value is None else f"{_as_yaml(value)}{bracket}"

    return _PLACE.sub(filled, _DEPLOYMENT_TEMPLATE)


def _as_yaml(value: str | float) -> str:
    """A value in the part of YAML that is also JSON."""
    if isinstance(value, float):
        digits, e, exponent = repr(value).partition("e")
        # Readers of YAML 1.1 take a number without a point for a text.
        return f"{digits if '.' in digits else digits + '.0'}{e}{exponent}"
    return json.dumps(value)


def _deployment_values(certificate: "Content") -> dict[str, str | float | None]:
    """The values of the template's places; None if the certificate does not state them."""
    stated, setting, numbers = certificate.stated, certificate.setting, certificate.numbers
    trains_dpsgd = bool(testable(certificate.training, certificate.score))
    total = total_in_words(certificate)
    description = None
    if stated.dataset is not None:
        description = (
            f"The result of a differentially private hyperparameter tuning on {stated.dataset}. "
            f"Released: {setting.released[0]}."
        )
    return {
        "product": "Machine learning model" if trains_dpsgd else None,
        "description": description,
        "dataset": stated.dataset,
        "unprotected": _UNPROTECTED.get(setting.relation),
        "unit": setting.unit,
        "neighbours": _deployment_neighbours(certificate),
        "epsilon": float(rounded_up(numbers.epsilon)),
        "delta": certificate.delta,
        "claim": certificate.claim("in the field justification"),
        "trust_model": setting.trust_model,
        "withheld": f"The curator keeps secret: {'; '.join(setting.withheld)}.",
        "total": None if total is None else f"{total}.",
        "bound": f"{numbers.source}. It assumes: {numbers.assumes}.",
        "tuning": _deployment_tuning(certificate),
        "mechanisms": _deployment_mechanisms(certificate),
        "reasons": sentences([*conditions(certificate), *audit(certificate)]),
        "notes": _deployment_notes(certificate),
        "author": stated.responsible,
    }


def _deployment_neighbours(certificate: "Content") -> str:
    setting, stated = certificate.setting, certificate.stated
    sentences = [f"Neighbours ({setting.relation}): {setting.neighbours}."]
    if stated.records_per_person is not None:
        sentences.append(f"At most {stated.records_per_person} records belong to one person.")
    sentences.append(f"Groups at this delta: {groups_in_words(certificate)}.")
    return " ".join(sentences)


def _deployment_tuning(certificate: "Content") -> str:
    stated, run_epsilon = certificate.stated, certificate.numbers.run_epsilon
    alone = ""
    if run_epsilon is not None:
        alone = f" One run alone has epsilon {rounded_up(run_epsilon)}."
    return (
        f"Preprocessing: {stated.preprocessing or 'not stated'}. "
        f"Pre-training: {stated.pretraining or 'not stated'}. "
        "Hyperparameters were chosen by a private tuning, and the stated epsilon is the cost of "
        f"the whole tuning.{alone} {certificate.protocol.statement.summary} "
        f"Candidates: {candidates_in_words(certificate)}. Records read by the score: "
        f"{certificate.setting.touched['the score']}."
    )


def _deployment_mechanisms(certificate: "Content") -> str:
    return (
        f"One run is {certificate.base.description}. "
        f"Clipping norm: {clipping_in_words(certificate)}. "
        f"Normalizer: {certificate.stated.normalizer or 'not stated'}. "
        f"Implementation: {implementation_in_words(certificate)}. "
        f"Random draws of the tuning: {draws_in_words(certificate)}."
    )


def _deployment_notes(certificate: "Content") -> str:
    return (
        f"Certificate with SHA-256 {certificate.as_dict()['hash']}. SHA-256 of the released "
        f"model: {certificate.model_hash or 'not stated'}. The certificate is void if "
        f"{'; or '.join(certificate.void_if)}."
    )

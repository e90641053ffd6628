"""The content of a certificate as rows of titles and words, a summary, and a paragraph of all."""

import textwrap
from typing import TYPE_CHECKING

from audit import checks
from audit.certificate.conditions import CLIPPING_NORM, NOT_STATED, Ground, how_tested
from audit.numerics import format_exact, rounded_down, rounded_up

if TYPE_CHECKING:
    from audit.certificate.content import Content

_WIDTH = 88
# Names of the clipping norm in search spaces: of Opacus, of TensorFlow Privacy and in general.
_CLIPPING_NAMES = frozenset({"max_grad_norm", "l2_norm_clip", "clipping_norm"})

Rows = list[tuple[str, str]]
"""Titles and words."""


def document(certificate: "Content") -> str:
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

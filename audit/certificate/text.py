"""Renders a certificate as a paragraph for a paper or a model card."""

import textwrap
from typing import TYPE_CHECKING

from audit import checks
from audit.certificate.conditions import Ground, how_tested
from audit.certificate.numbers import rounded_down, rounded_up
from audit.certificate.wording import describe
from audit.numerics import format_exact

if TYPE_CHECKING:
    from audit.certificate.certificate import Certificate

_WIDTH = 88


def paragraph(certificate: "Certificate") -> str:
    """The claim, its numbers and its conditions, in lines of at most 88 characters."""
    numbers, setting = certificate.numbers, certificate.setting
    delta, run = certificate.delta, numbers.run_epsilon
    alone = "" if run is None else f" (epsilon {rounded_up(run)} alone)"
    one, tenth = (rounded_up(100.0 * share, 3) for share in numbers.true_positives)
    sentences = [
        certificate.statement,
        f"The unit of privacy is {checks.quoted(setting.unit)}; neighbours ({setting.relation}): "
        f"{setting.neighbours}; trust model {setting.trust_model}.",
        f"One run is {certificate.base.description}{alone}.",
        f"{describe(certificate.protocol).summary} In the notation of this package, the protocol "
        f"is {certificate.protocol.spec}; the bound is {numbers.bounds[0]} ({numbers.source}), "
        f"which assumes: {numbers.assumes}.",
        f"No attack with 1 % (0.1 %) false positives has more than {one} % ({tenth} %) true "
        f"positives; "
        f"membership advantage is at most {rounded_up(numbers.advantage, 3)}; "
        f"up to {format_exact(delta)}, the tuning is {rounded_up(numbers.mu)}-GDP "
        f"(regret {rounded_up(numbers.mu_regret, 2)}).",
        f"Groups of records, at delta {format_exact(delta)}: {groups_in_words(certificate)}.",
    ]
    if numbers.attained is not None:
        attained = rounded_down(numbers.attained)
        sentences.append(f"On the worst score, an attack attains epsilon {attained}.")
    sentences += evidence_in_words(certificate)
    read = "; ".join(f"by {who}: {what}" for who, what in setting.touched.items())
    sentences.append(f"Records read {read}.")
    sentences.append(candidates_in_words(certificate))
    sentences.append(f"Released: {'; '.join(setting.released)}.")
    sentences += conditions_in_words(certificate)
    sentences.append(f"The certificate is void if {'; or '.join(certificate.void_if)}.")
    stated = [f"{title.lower()}: {words}" for title, words in certificate.declaration.in_words()]
    sentences.append(f"Stated by the author: {'; '.join(stated)}.")
    if (total := total_in_words(certificate)) is not None:
        sentences.append(f"{total}.")
    sentences.append(f"SHA-256 of the released model: {certificate.model_hash or 'not stated'}.")
    sentences.append(
        f"Made on {certificate.made.date} by dp-tuning-audit {certificate.made.version}. "
        f"Random draws: {draws_in_words(certificate)}."
    )
    sentences.append(f"Certificate {certificate.as_dict()['hash'][:16]}.")
    text = checks.printable(" ".join(sentences))
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False) + "\n"


def evidence_in_words(certificate: "Certificate") -> list[str]:
    """Result of an audit in two sentences; empty without an audit."""
    found = certificate.evidence
    if found is None:
        return []
    return [
        f"An audit of {found.games_without} + {found.games_with} trials shows epsilon >= "
        f"{rounded_down(found.epsilon_lower)} at {format_exact(found.confidence)} confidence. "
        "Without any error at a fixed threshold, this many trials would show "
        f"{rounded_up(found.ceiling(certificate.delta))}."
    ]


def candidates_in_words(certificate: "Certificate") -> str:
    """Distribution of the candidates in one sentence."""
    prior = (checks.quoted(f"{name}: {words}") for name, words in certificate.study.prior.items())
    return f"Candidates: {'; '.join(prior)}."


def conditions_in_words(certificate: "Certificate") -> list[str]:
    """The conditions of the claim, in one sentence per ground."""
    sentences = []
    for ground in (Ground.BY_CONSTRUCTION, Ground.CHECKED, Ground.TESTED, Ground.ON_TRUST):
        words = [one.words for one in certificate.conditions if one.ground is ground]
        title = ground.value
        if words and ground is Ground.TESTED:
            title = how_tested(certificate.study)
            words = [one.removesuffix(f" ({title})") for one in words]
        if words:
            sentences.append(f"{title.capitalize()}: {'; '.join(words)}.")
    return sentences


def groups_in_words(certificate: "Certificate") -> str:
    """Epsilon of groups of records in one line."""
    return "; ".join(
        f"{size} records, {'no epsilon' if epsilon is None else rounded_up(epsilon)}"
        for size, epsilon in certificate.groups
    )


def total_in_words(certificate: "Certificate") -> str | None:
    """Cost of this and all earlier releases; None if the author does not state these."""
    total = certificate.declaration.total(certificate.numbers.epsilon, certificate.delta)
    if total is None:
        return None
    return (
        "With all earlier releases that are stated, the records have spent "
        f"({rounded_up(total[0])}, {rounded_up(total[1])})-DP, by basic composition"
    )


def draws_in_words(certificate: "Certificate") -> str:
    """Source of the random draws, and the fate of their key."""
    if certificate.study.seeded:
        return "a given seed"
    kept = certificate.study.key_kept
    fate = "kept in the folder of the study, readable by its owner only" if kept else "deleted"
    return f"256 bits of entropy of the operating system, expanded by SHAKE-256; the key is {fate}"

"""A certificate as a paragraph, to paste into a paper or a model card."""

import textwrap

from audit.certificate.numbers import rounded_down, rounded_up
from audit.certificate.statement import Ground, Statement
from audit.numerics import format_exact

_WIDTH = 88


def paragraph(certificate: Statement) -> str:
    """The claim, why it holds, and what is taken on trust; lines of at most 88 characters."""
    numbers, setting = certificate.numbers, certificate.setting
    delta, run = certificate.delta, numbers.run_epsilon
    alone = "" if run is None else f" (epsilon {rounded_up(run)} alone)"
    one, tenth = (rounded_up(100.0 * share, 3) for share in numbers.true_positives)
    sentences = [
        certificate.statement,
        f"The unit of privacy is {setting.unit}; neighbours: {setting.neighbours}; "
        f"{setting.trust_model}.",
        f"One run is {certificate.base.description}{alone}.",
        f"The best run was chosen by {certificate.protocol.name} ({certificate.protocol.spec}), "
        f"and the bound is {numbers.bounds[0]} ({numbers.source}), which needs: "
        f"{numbers.assumes}.",
        f"No attack with 1 % (0.1 %) false positives has more than {one} % ({tenth} %) true ones; "
        f"membership advantage is at most {rounded_up(numbers.advantage, 3)}; "
        f"but for {format_exact(delta)} the whole is {rounded_up(numbers.mu)}-GDP "
        f"(regret {rounded_up(numbers.mu_regret, 2)}).",
    ]
    if numbers.attained is not None:
        attained = rounded_down(numbers.attained)
        sentences.append(f"On the worst score an attack attains epsilon {attained}.")
    if certificate.evidence is not None:
        found = certificate.evidence
        sentences.append(
            f"An audit of {found.games_without} + {found.games_with} games shows epsilon >= "
            f"{rounded_down(found.epsilon_lower)} at {format_exact(found.confidence)} confidence, "
            f"of at most {rounded_up(found.ceiling(certificate.delta))} that so many could "
            "have shown."
        )
    read = "; ".join(f"by {who}: {what}" for who, what in setting.touched.items())
    prior = "; ".join(f"{name} {words}" for name, words in setting.prior.items())
    sentences.append(f"Read {read}. Candidates: {prior}.")
    sentences.append(f"Released: {'; '.join(setting.released)}.")
    for ground in (Ground.BY_CONSTRUCTION, Ground.CHECKED, Ground.ON_TRUST):
        words = [one.words for one in certificate.conditions if one.ground is ground]
        if words:
            sentences.append(f"{ground.value.capitalize()}: {'; '.join(words)}.")
    sentences.append(f"It is void if {'; or '.join(certificate.void_if)}.")
    made = certificate.made
    if {"date", "version", "seeds"} <= made.keys():
        sentences.append(
            f"Made on {made['date']} by dp-tuning-audit {made['version']}; seeds: {made['seeds']}."
        )
    sentences.append(f"Certificate {certificate.as_dict()['hash'][:16]}.")
    return textwrap.fill(" ".join(sentences), _WIDTH, break_on_hyphens=False) + "\n"

"""Writes a certificate as a draft for the Differential Privacy Deployments Registry.

The fields are those of the registry's schema in OpenDP's repository `deployments-registry-data`
(commit 3e9c812), which follows Nanayakkara, Ghazi and Vadhan 2025, arXiv 2509.13509.
"""

import json
import re
from typing import TYPE_CHECKING

from audit.certificate import conditions, text
from audit.errors import InvalidInput
from audit.numerics import rounded_up

if TYPE_CHECKING:
    from audit.certificate.content import Content

_TEMPLATE = """\
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

_PLACE = re.compile(r"\{(\w+)\}(\]?)(.*)")


def record(certificate: "Content") -> str:
    """A draft entry of the registry, as YAML; a void certificate is refused."""
    if certificate.void:
        raise InvalidInput(
            "certificate must not be void to be registered, got one with a broken condition: "
            + "; ".join(certificate.void)
        )
    values = _values(certificate)

    def filled(place: re.Match[str]) -> str:
        name, bracket, comment = place.groups()
        value = values[name]
        return f"''{bracket}{comment}" if value is None else f"{_yaml(value)}{bracket}"

    return _PLACE.sub(filled, _TEMPLATE)


def _yaml(value: str | float) -> str:
    """A value in the part of YAML that is also JSON."""
    if isinstance(value, float):
        digits, e, exponent = repr(value).partition("e")
        # Readers of YAML 1.1 take a number without a point for a text.
        return f"{digits if '.' in digits else digits + '.0'}{e}{exponent}"
    return json.dumps(value)


def _values(certificate: "Content") -> dict[str, str | float | None]:
    """The values of the template's places; None if the certificate does not state them."""
    stated, setting, numbers = certificate.stated, certificate.setting, certificate.numbers
    trains_dpsgd = bool(conditions.testable(certificate.training, certificate.score))
    total = text.total_in_words(certificate)
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
        "neighbours": _neighbours(certificate),
        "epsilon": float(rounded_up(numbers.epsilon)),
        "delta": certificate.delta,
        "claim": certificate.claim("in the field justification"),
        "trust_model": setting.trust_model,
        "withheld": f"The curator keeps secret: {'; '.join(setting.withheld)}.",
        "total": None if total is None else f"{total}.",
        "bound": f"{numbers.source}. It assumes: {numbers.assumes}.",
        "tuning": _tuning(certificate),
        "mechanisms": _mechanisms(certificate),
        "reasons": text.sentences([*text.conditions(certificate), *text.audit(certificate)]),
        "notes": _notes(certificate),
        "author": stated.responsible,
    }


_UNPROTECTED = {
    "add-remove": "None that the certificate names; the number of records is private.",
    "zero-out": "The number of records.",
    "replace-one": "The number of records.",
}


def _neighbours(certificate: "Content") -> str:
    setting, stated = certificate.setting, certificate.stated
    sentences = [f"Neighbours ({setting.relation}): {setting.neighbours}."]
    if stated.records_per_person is not None:
        sentences.append(f"At most {stated.records_per_person} records belong to one person.")
    sentences.append(f"Groups at this delta: {text.groups_in_words(certificate)}.")
    return " ".join(sentences)


def _tuning(certificate: "Content") -> str:
    stated, run_epsilon = certificate.stated, certificate.numbers.run_epsilon
    alone = ""
    if run_epsilon is not None:
        alone = f" One run alone has epsilon {rounded_up(run_epsilon)}."
    return (
        f"Preprocessing: {stated.preprocessing or 'not stated'}. "
        f"Pre-training: {stated.pretraining or 'not stated'}. "
        "Hyperparameters were chosen by a private tuning, and the stated epsilon is the cost of "
        f"the whole tuning.{alone} {certificate.protocol.statement.summary} "
        f"Candidates: {text.candidates_in_words(certificate)}. Records read by the score: "
        f"{certificate.setting.touched['the score']}."
    )


def _mechanisms(certificate: "Content") -> str:
    return (
        f"One run is {certificate.base.description}. "
        f"Clipping norm: {text.clipping_in_words(certificate)}. "
        f"Normalizer: {certificate.stated.normalizer or 'not stated'}. "
        f"Implementation: {text.implementation_in_words(certificate)}. "
        f"Random draws of the tuning: {text.draws_in_words(certificate)}."
    )


def _notes(certificate: "Content") -> str:
    return (
        f"Certificate with SHA-256 {certificate.as_dict()['hash']}. SHA-256 of the released "
        f"model: {certificate.model_hash or 'not stated'}. The certificate is void if "
        f"{'; or '.join(certificate.void_if)}."
    )

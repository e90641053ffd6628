"""Writes a certificate as a draft for the Differential Privacy Deployments Registry.

The fields are those of the registry's schema in OpenDP's repository `deployments-registry-data`
(commit 3e9c812), which follows Nanayakkara, Ghazi and Vadhan 2025, arXiv 2509.13509.
"""

import json

from audit.certificate import conditions, text
from audit.certificate.content import Content
from audit.certificate.numbers import rounded_up
from audit.certificate.wording import describe
from audit.errors import InvalidInput
from audit.numerics import format_exact

_Value = str | float | list[str]

_BLANK = {
    "url_slug": "lowercase name of the entry",
    "name": "name of the data product",
    "data_curators": "who publishes it",
    "intended_use": "its intended uses",
    "data_product_type": "kind of data product, of the registry's list",
    "data_product_region": "region that the data describe, or whose rules apply",
    "description": "what it is",
    "publication_date": "YYYY-MM-DD",
    "data_product_sector": "sector, of the registry's list",
    "data_domain": "data sets that are protected",
    "unprotected_quantities": "released quantities without protection",
    "release_type_details": "further releases from the same records; earlier_spending states them",
    "data_source_type": "Static or Dynamic",
    "data_source_type_details": "how the data change, if they do",
    "access_type_details": "who has access to the released items",
    "post_processing": "functions applied to the released items",
    "sources": "links to the certificate, the model and papers",
    "registry_authors": "who fills in this entry",
}
"""Instructions to the publisher for each field that the certificate leaves blank."""


def record(certificate: Content) -> str:
    """A draft entry of the registry, as YAML; a void certificate is refused."""
    if certificate.void:
        raise InvalidInput(
            "certificate must not be void to be registered, got one with a broken condition: "
            + "; ".join(certificate.void)
        )
    lines = [
        "# Draft for the Differential Privacy Deployments Registry, from a certificate.",
        "# The publisher fills in every field that is marked, and checks all others.",
    ]
    for depth, name, value in _fields(certificate):
        indent = "  " * depth
        if value is None:
            blank = "['']" if name in ("data_curators", "registry_authors") else "''"
            lines.append(f"{indent}{name}: {blank}  # publisher: {_BLANK[name]}")
        else:
            lines.append(f"{indent}{name}: {_yaml(value)}".rstrip())
    return "\n".join(lines) + "\n"


def _yaml(value: _Value) -> str:
    """A value in the part of YAML that is also JSON; the empty text opens a group of fields."""
    if isinstance(value, float):
        digits, e, exponent = repr(value).partition("e")
        # Readers of YAML 1.1 take a number without a point for a text.
        return f"{digits if '.' in digits else digits + '.0'}{e}{exponent}"
    return json.dumps(value) if value else ""


def _fields(certificate: Content) -> list[tuple[int, str, _Value | None]]:
    """(depth, name, value) of every field, in the order of the registry's template."""
    stated, setting, numbers = certificate.stated, certificate.setting, certificate.numbers
    trains_dpsgd = bool(conditions.testable(certificate.training, certificate.score))
    description = None
    if stated.dataset is not None:
        description = (
            f"The result of a differentially private hyperparameter tuning on {stated.dataset}. "
            f"Released: {setting.released[0]}."
        )
    unprotected = {
        "add-remove": "None that the certificate names; the number of records is private.",
        "zero-out": "The number of records.",
        "replace-one": "The number of records.",
    }.get(setting.relation)
    unit = f"Neighbours ({setting.relation}): {setting.neighbours}."
    if stated.records_per_person is not None:
        unit += f" At most {stated.records_per_person} records belong to one person."
    unit += f" Groups at this delta: {text.groups_in_words(certificate)}."
    alone = ""
    if numbers.run_epsilon is not None:
        alone = f" One run alone has epsilon {rounded_up(numbers.run_epsilon)}."
    total = text.total_in_words(certificate)
    tuning = (
        f"Preprocessing: {stated.preprocessing or 'not stated'}. "
        f"Pre-training: {stated.pretraining or 'not stated'}. "
        "Hyperparameters were chosen by a private tuning, and the stated epsilon is the cost of "
        f"the whole tuning.{alone} {describe(certificate.protocol).summary} "
        f"Candidates: {text.candidates_in_words(certificate)}. Records read by the score: "
        f"{setting.touched['the score']}."
    )
    norm = stated.max_grad_norm
    mechanisms = (
        f"One run is {certificate.base.description}. "
        f"Clipping norm: {'not stated' if norm is None else format_exact(norm)}. "
        f"Normalizer: {stated.normalizer or 'not stated'}. "
        f"Implementation: {text.implementation_in_words(certificate)}. "
        f"Random draws of the tuning: {text.draws_in_words(certificate)}."
    )
    reasons = [*text.conditions(certificate), *text.audit(certificate)]
    notes = (
        f"Certificate with SHA-256 {certificate.as_dict()['hash']}. SHA-256 of the released "
        f"model: {certificate.model_hash or 'not stated'}. The certificate is void if "
        f"{'; or '.join(certificate.void_if)}."
    )
    return [
        (0, "url_slug", None),
        (0, "status", "Draft"),
        (0, "tier", 3),
        (0, "deployment", ""),
        (1, "basic", ""),
        (2, "name", None),
        (2, "data_curators", None),
        (2, "intended_use", None),
        (2, "data_product_type", "Machine learning model" if trains_dpsgd else None),
        (2, "data_product_region", None),
        (2, "description", description),
        (2, "publication_date", None),
        (2, "data_product_sector", None),
        (1, "dp_variant", ""),
        (2, "variant_name", "Approximate DP"),
        (2, "data_domain", stated.dataset),
        (2, "unprotected_quantities", unprotected),
        (1, "privacy_loss", ""),
        (2, "privacy_unit", setting.unit),
        (2, "privacy_unit_details", unit),
        (2, "privacy_parameters", ""),
        (3, "epsilon", float(rounded_up(numbers.epsilon))),
        (3, "delta", certificate.delta),
        (2, "privacy_parameters_details", certificate.claim("in the field justification")),
        (1, "deployment_model", ""),
        (2, "model_name", "Central"),
        (2, "model_name_details", setting.trust_model),
        (2, "actors", f"The curator keeps secret: {'; '.join(setting.withheld)}."),
        (2, "release_type", "One release"),
        (2, "release_type_details", None if total is None else f"{total}."),
        (2, "data_source_type", None),
        (2, "data_source_type_details", None),
        (2, "access_type", "Non-interactive"),
        (2, "access_type_details", None),
        (1, "accounting", ""),
        (2, "post_processing", None),
        (2, "composition", f"{numbers.source}. It assumes: {numbers.assumes}."),
        (1, "implementation", ""),
        (2, "preprocessing_and_hyperparameter_tuning", tuning),
        (2, "mechanisms", mechanisms),
        (2, "justification", text.sentences(reasons)),
        (1, "administrative", ""),
        (2, "sources", None),
        (2, "notes", notes),
        (2, "registry_authors", [stated.responsible] if stated.responsible else None),
    ]

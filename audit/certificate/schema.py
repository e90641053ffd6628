"""JSON Schema of certificates, computed from the classes whose fields they hold."""

from typing import Annotated, Any

from audit.accounting.serialization import MECHANISMS
from audit.certificate.conditions import Condition, Private, Setting, StudyFacts
from audit.certificate.content import FORMAT, Evidence, Made
from audit.certificate.declaration import Declaration
from audit.certificate.numbers import Numbers
from audit.typed_json import (
    Chance,
    Keywords,
    NonNegative,
    Schema,
    Sha256,
    Share,
    Text,
    closed_object,
    schema_of,
)

_Names = Annotated[tuple[Text, ...], Keywords(uniqueItems=True)]
_MECHANISM = {"$ref": "#/$defs/mechanism"}

_FIELDS: dict[str, tuple[Any, str]] = {
    "format": (Annotated[str, Keywords(const=FORMAT)], "Name and version of this schema."),
    "statement": (Text, "The claim in one line; begins with VOID if a condition is broken."),
    "base": (_MECHANISM, "One run, its score included."),
    "training": (_MECHANISM, "One run without its score."),
    "score": (Private | None, "Noise of the score; null if it reads public records only."),
    "protocol": (Text, "How the best run is chosen, and the distribution of the number of runs."),
    "protocol_in_words": (Text, "The protocol as sentences."),
    "delta": (Chance, "Of the whole tuning."),
    "numbers": (Numbers, "Computed from base, protocol and delta."),
    "groups": (
        {
            "type": "array",
            "items": closed_object(
                {
                    "records": schema_of(Annotated[int, Keywords(minimum=2)]),
                    "epsilon": schema_of(NonNegative | None),
                }
            ),
        },
        "Epsilon at delta of a group of records; null if none follows from the profile.",
    ),
    "setting": (Setting, "What the claim is about."),
    "study": (StudyFacts, "What the study states about itself."),
    "conditions": (
        Annotated[tuple[Condition, ...], Keywords(minItems=1)],
        "All conditions that base, protocol and score require.",
    ),
    "void_if": (
        Annotated[tuple[Text, ...], Keywords(minItems=1)],
        "Events that make the certificate void.",
    ),
    "model_hash": (Sha256 | None, "SHA-256 of the values of the released model."),
    "declaration": (Declaration, "Statements of the author; null means not stated."),
    "not_stated": (_Names, "Names of what a sign-off needs and the file lacks."),
    "total": (
        {
            **closed_object(
                {
                    "epsilon": schema_of(NonNegative),
                    "delta": schema_of(Share),
                }
            ),
            "type": ["object", "null"],
        },
        "Cost of this and all earlier releases by basic composition; null if earlier spending is "
        "not stated.",
    ),
    "made": (Made, "When and with what."),
    "evidence": (Evidence | None, "Result of an audit of this tuning."),
    "hash": (
        Sha256,
        "SHA-256 of all other fields as json with sorted names and Python's default separators.",
    ),
}
"""The type, or the schema, and the meaning of each field of the file."""


def schema() -> dict[str, Any]:
    """JSON Schema of the format.

    Example:
        >>> schema()["properties"]["format"]["const"]
        'private-tuning-certificate/2'
    """
    properties = {
        name: {"description": words} | (kind if isinstance(kind, dict) else schema_of(kind))
        for name, (kind, words) in _FIELDS.items()
    }
    # The largest epsilon that the trials could show follows from the evidence and delta.
    evidence = properties["evidence"]
    evidence["properties"]["ceiling"] = schema_of(NonNegative)
    evidence["required"].append("ceiling")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Certificate of a private tuning, format {FORMAT}",
        "description": "A file of this shape can still state wrong numbers or lack a condition: "
        "python -m audit.verify recomputes both.",
        **closed_object(properties),
        "$defs": {"mechanism": _mechanism()},
    }


def _mechanism() -> Schema:
    return {
        "type": "object",
        "required": ["mechanism"],
        "properties": {"mechanism": {"enum": sorted(MECHANISMS)}},
        "description": "A class of audit.accounting and its parameters.",
    }

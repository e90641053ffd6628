"""Certificate of a private tuning: the claim, its reasons, and a way to check it.

One result object, `Certificate`; json, text and html are made from it, and `python -m audit.verify`
recomputes every number of the json and every condition that it must state.
"""

from audit import _deprecated
from audit.certificate.certificate import FORMAT, Certificate
from audit.certificate.conditions import Condition, Ground, Setting, StudyFacts
from audit.certificate.declaration import Declaration, Spending
from audit.certificate.evidence import Evidence
from audit.certificate.numbers import Numbers, PrivacyPoint, compute
from audit.certificate.released import model_hash
from audit.certificate.signature import check_signature, sign
from audit.certificate.verification import Status, Verdict, schema, verify

__all__ = [
    "FORMAT",
    "Certificate",
    "Condition",
    "Declaration",
    "Evidence",
    "Ground",
    "Numbers",
    "PrivacyPoint",
    "Setting",
    "Spending",
    "Status",
    "StudyFacts",
    "Verdict",
    "check_signature",
    "compute",
    "model_hash",
    "schema",
    "sign",
    "verify",
]

__getattr__ = _deprecated.renamed(__name__)

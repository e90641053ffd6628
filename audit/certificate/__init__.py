"""Certificate of a private tuning: the claim, its conditions, and a way to verify it.

Json, text and html are generated from one object, `Certificate`. `python -m audit.verify` computes
every number of the json again, and every condition that it must state.
"""

from audit.certificate.certificate import FORMAT, Certificate, Evidence, schema
from audit.certificate.conditions import (
    Condition,
    Declaration,
    Ground,
    Setting,
    Spending,
    StudyFacts,
)
from audit.certificate.numbers import Numbers, PrivacyPoint, compute
from audit.certificate.released import model_hash
from audit.certificate.signature import check_signature, sign
from audit.certificate.verification import Status, Verdict, verify

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

"""What a private tuning keeps, on paper: what is claimed, why it is true, and how to check it.

One result object, `Certificate`; json, text and html are made from it, and `python -m audit.verify`
computes every number of it anew.
"""

from audit.certificate.certificate import Certificate
from audit.certificate.evidence import Evidence
from audit.certificate.numbers import Numbers, PrivacyPoint, compute
from audit.certificate.statement import FORMAT, Condition, Ground, Setting, Statement
from audit.certificate.verification import Verdict, verify

__all__ = [
    "FORMAT",
    "Certificate",
    "Condition",
    "Evidence",
    "Ground",
    "Numbers",
    "PrivacyPoint",
    "Setting",
    "Statement",
    "Verdict",
    "compute",
    "verify",
]

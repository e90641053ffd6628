"""Audit of a user's own training function, which may be any code.

`check` tests the premises of the function's accountant, attacks the function, and returns a
`CheckResult`. torch and Opacus are imported only if the function uses them.
"""

from audit.errors import PrivacyLeak
from audit.own_training.checking import check
from audit.own_training.one_run import check_one_run
from audit.own_training.records import TrainingSet
from audit.own_training.result import CheckResult
from audit.own_training.runs import Train
from audit.own_training.watch import Watch

__all__ = ["CheckResult", "PrivacyLeak", "Train", "TrainingSet", "Watch", "check", "check_one_run"]

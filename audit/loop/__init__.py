"""Audit of a user's own training function, which may be any code.

`check` tests the premises of the function's accountant, attacks the function, and returns a
`CheckResult`. torch and Opacus are imported only if the function uses them.
"""

from audit.errors import PrivacyLeak
from audit.loop.checking import check
from audit.loop.one_run import check_one_run
from audit.loop.result import CheckResult
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.training_runs import Train
from audit.loop.runs.watch import Watch
from audit.loop.sources.arrays import step
from audit.loop.sources.script import ScriptResult, script

__all__ = [
    "CheckResult",
    "PrivacyLeak",
    "ScriptResult",
    "Train",
    "TrainingSet",
    "Watch",
    "check",
    "check_one_run",
    "script",
    "step",
]

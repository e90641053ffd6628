"""The cost of a finished tuning, from its runs and the way in which candidates were chosen.

A source is read by one of the `readers`, each column gets a role in `columns`, the values of each
run become a mechanism in `runs`, `evidence` shows how candidates were chosen, and `cost` finds the
smallest valid bound.
"""

from audit.finished.columns import IGNORE, ROLES
from audit.finished.evidence import Evidence
from audit.finished.material import Material, RecordedRun
from audit.finished.prior import read_prior
from audit.finished.tuning_cost import TuningCost, cost_of_trials

__all__ = [
    "IGNORE",
    "ROLES",
    "Evidence",
    "Material",
    "RecordedRun",
    "TuningCost",
    "cost_of_trials",
    "read_prior",
]

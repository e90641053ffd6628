"""Tuning protocols: ways of choosing the best run, as plain descriptions.

A protocol contains no data, score or noise. `audit.upper_bounds` computes its cost, and
`audit.tuning` carries it out.
"""

from audit import _deprecated
from audit.protocols.adaptive import Adaptive
from audit.protocols.base import Protocol
from audit.protocols.best_runs import BestRuns, ParetoFront
from audit.protocols.grid import Grid
from audit.protocols.noisy_max import NoisyMax
from audit.protocols.parsing import DEFAULT_REPETITIONS, parse_protocol
from audit.protocols.propose_test_release import ProposeTestRelease
from audit.protocols.random_search import RandomSearch
from audit.protocols.schedule import BudgetSchedule
from audit.protocols.subset import Subset
from audit.protocols.until import RandomStopping, UntilAccepted

__all__ = [
    "DEFAULT_REPETITIONS",
    "Adaptive",
    "BestRuns",
    "BudgetSchedule",
    "Grid",
    "NoisyMax",
    "ParetoFront",
    "ProposeTestRelease",
    "Protocol",
    "RandomSearch",
    "RandomStopping",
    "Subset",
    "UntilAccepted",
    "parse_protocol",
]

__getattr__ = _deprecated.renamed(__name__)

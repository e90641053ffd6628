"""Tuning protocols: ways of choosing the best run, one file each.

A protocol contains no data, score or noise. `audit.upper_bounds` computes its cost, and
`audit.tuning` carries it out.
"""

from audit.protocols.adaptive import Adaptive
from audit.protocols.base import Case, Protocol, Statement, all_protocols
from audit.protocols.best_runs import BestRuns
from audit.protocols.budget_schedule import BudgetSchedule
from audit.protocols.distinct_candidates import DistinctCandidates
from audit.protocols.grid import Grid
from audit.protocols.noisy_max import NoisyMax
from audit.protocols.pareto_front import ParetoFront
from audit.protocols.parsing import DEFAULT_REPETITIONS, parse_protocol
from audit.protocols.propose_test_release import ProposeTestRelease
from audit.protocols.random_search import RandomSearch
from audit.protocols.random_stopping import RandomStopping
from audit.protocols.sequential import Sequential
from audit.protocols.subset import Subset
from audit.protocols.until_accepted import RepeatedRuns, UntilAccepted

__all__ = [
    "DEFAULT_REPETITIONS",
    "Adaptive",
    "BestRuns",
    "BudgetSchedule",
    "Case",
    "DistinctCandidates",
    "Grid",
    "NoisyMax",
    "ParetoFront",
    "ProposeTestRelease",
    "Protocol",
    "RandomSearch",
    "RandomStopping",
    "RepeatedRuns",
    "Sequential",
    "Statement",
    "Subset",
    "UntilAccepted",
    "all_protocols",
    "parse_protocol",
]

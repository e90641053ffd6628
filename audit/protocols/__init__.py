"""Tuning protocols: ways of choosing the best run, as plain descriptions.

A protocol contains no data, score or noise. `audit.upper_bounds` computes its cost, and
`audit.tuning` carries it out.
"""

from audit.protocols.base import Protocol
from audit.protocols.distinct_candidates import DistinctCandidates
from audit.protocols.fixed_candidates import Grid, NoisyMax
from audit.protocols.parsing import DEFAULT_REPETITIONS, parse_protocol
from audit.protocols.random_runs import (
    Adaptive,
    BestRuns,
    ParetoFront,
    ProposeTestRelease,
    RandomSearch,
    Subset,
)
from audit.protocols.sequential import Sequential
from audit.protocols.until import BudgetSchedule, RandomStopping, UntilAccepted

__all__ = [
    "DEFAULT_REPETITIONS",
    "Adaptive",
    "BestRuns",
    "BudgetSchedule",
    "DistinctCandidates",
    "Grid",
    "NoisyMax",
    "ParetoFront",
    "ProposeTestRelease",
    "Protocol",
    "RandomSearch",
    "RandomStopping",
    "Sequential",
    "Subset",
    "UntilAccepted",
    "parse_protocol",
]

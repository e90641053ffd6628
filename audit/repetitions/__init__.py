"""Distributions of K, the number of runs of the base mechanism.

Sources: Papernot & Steinke 2022 (definitions 1 and 2: truncated negative binomial, Poisson),
Koskela, Redberg & Wang 2024 (binomial), Xiang, Wang & Wang 2024 (eq. 21: two-point).
"""

from audit.repetitions.base import (
    MAX_RUNS,
    GivenNoFailure,
    PowerLaw,
    ProfileTheorem,
    RenyiTheorem,
    Repetitions,
)
from audit.repetitions.binomial import Binomial
from audit.repetitions.fixed import Fixed
from audit.repetitions.parsing import FAMILIES, parse_repetitions
from audit.repetitions.poisson import Poisson
from audit.repetitions.truncated import Truncated
from audit.repetitions.truncated_negative_binomial import TruncatedNegativeBinomial
from audit.repetitions.two_point import TwoPoint

__all__ = [
    "FAMILIES",
    "MAX_RUNS",
    "Binomial",
    "Fixed",
    "GivenNoFailure",
    "Poisson",
    "PowerLaw",
    "ProfileTheorem",
    "RenyiTheorem",
    "Repetitions",
    "Truncated",
    "TruncatedNegativeBinomial",
    "TwoPoint",
    "parse_repetitions",
]

"""Valid Monte Carlo tests: how many simulated audits may reach the observed evidence.

Simulate B audits under the null hypothesis. Then p = (1 + number of simulated audits that reach the
observed evidence) / (B + 1) is a p-value, because under the null hypothesis the observed audit is
one more draw (Dwass 1957; Barnard 1963). The simulated audits are the same in every call, and these
particular draws could be favourable by chance. So fewer than alpha (B + 1) audits may reach the
evidence: the largest number whose error is at most alpha for 99 of 100 sets of simulated audits.
"""

import math
from functools import lru_cache

import numpy as np
from scipy import special

SIMULATIONS = 4999
"""B, the number of simulated audits."""

# Share of the sets of simulated audits for which the error must be at most alpha.
_CONFIDENCE = 0.99


@lru_cache(maxsize=256)
def max_exceedances(alpha: float) -> int:
    """Number of audits, with the observed one, that may reach the evidence; 0 if alpha is tiny."""
    largest_count = min(math.floor(alpha * (SIMULATIONS + 1)), SIMULATIONS)
    k = np.arange(1.0, largest_count + 1.0)
    # Given the simulated audits, the error of allowing k of them is a draw of Beta(k, B + 1 - k).
    allowed = np.flatnonzero(special.betainc(k, SIMULATIONS + 1.0 - k, alpha) >= _CONFIDENCE)
    return int(allowed[-1]) + 1 if len(allowed) else 0

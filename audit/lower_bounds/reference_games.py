"""How many reference games may show as much as the game at hand: Monte Carlo tests that hold.

With B reference games of the null law, p = (1 + number of them that show as much) / (B + 1) is a
p-value, for the game at hand is one more draw (Dwass 1957; Barnard 1963). The reference games are
always the same ones, and might be lucky; so fewer are allowed than alpha (B + 1): as many as leave
an error of alpha or less in 99 of 100 draws of reference games.
"""

import math
from functools import lru_cache

import numpy as np
from scipy import special

GAMES = 4999
"""B."""

# In how many of 100 draws of reference games the error is at most alpha.
_TRUSTED = 0.99


@lru_cache(maxsize=256)
def allowed(alpha: float) -> int:
    """How many games may show as much, the game at hand among them; 0 where alpha is too small."""
    k = np.arange(1.0, math.floor(alpha * (GAMES + 1)) + 1.0)
    # Given the reference games, the error of allowing k is a draw of Beta(k, B + 1 - k).
    trusted = np.flatnonzero(special.betainc(k, GAMES + 1.0 - k, alpha) >= _TRUSTED)
    return int(trusted[-1]) + 1 if len(trusted) else 0

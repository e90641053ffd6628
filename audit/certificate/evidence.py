"""What a game against the tuning has shown: beside the bound, never in its place."""

import math
from dataclasses import dataclass

from audit import checks
from audit.lower_bounds.rates import upper_limit

__all__ = ["Evidence"]


@dataclass(frozen=True)
class Evidence:
    """A lower bound on epsilon that a finished game has given.

    Attributes:
        epsilon_lower: what the game proves, >= 0.
        confidence: in (0, 1).
        games_without: trials without the record.
        games_with: trials with it.

    Example:
        >>> Evidence(1.2, 0.95, games_without=1000, games_with=1000).epsilon_lower
        1.2
    """

    epsilon_lower: float
    confidence: float
    games_without: int
    games_with: int

    def __post_init__(self) -> None:
        epsilon = checks.interval("epsilon_lower", self.epsilon_lower, 0.0, closed_low=True)
        checks.store_validated(
            self,
            epsilon_lower=epsilon,
            confidence=checks.interval("confidence", self.confidence, 0.0, 1.0),
            games_without=checks.integer("games_without", self.games_without, 1),
            games_with=checks.integer("games_with", self.games_with, 1),
        )

    def ceiling(self, delta: float) -> float:
        """The most that so many games could have shown at delta: had no attack ever failed.

        log((1 - delta - u) / v) with Clopper and Pearson's limits u, v of no error in n games, the
        better of both directions.
        """
        alpha = 0.5 * (1.0 - self.confidence)
        without = float(upper_limit(0, self.games_without, alpha))
        with_record = float(upper_limit(0, self.games_with, alpha))
        best = max(
            (1.0 - delta - without) / with_record,
            (1.0 - delta - with_record) / without,
        )
        return math.log(best) if best > 1.0 else 0.0

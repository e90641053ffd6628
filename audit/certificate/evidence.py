"""Audit results in a certificate. They are shown next to the upper bound and never replace it."""

import math
from dataclasses import dataclass
from typing import Annotated

from audit import checks
from audit.json_schema import Chance, Keywords, NonNegative
from audit.lower_bounds.rates import upper_limit


@dataclass(frozen=True)
class Evidence:
    """A lower bound on epsilon from a finished audit of the tuning.

    Attributes:
        epsilon_lower: the lower bound, >= 0.
        confidence: confidence of the bound, in (0, 1).
        games_without: trials without the record.
        games_with: trials with the record.

    Example:
        >>> Evidence(1.2, 0.95, games_without=1000, games_with=1000).epsilon_lower
        1.2
    """

    epsilon_lower: NonNegative
    confidence: Chance
    games_without: Annotated[int, Keywords(minimum=1)]
    games_with: Annotated[int, Keywords(minimum=1)]

    def __post_init__(self) -> None:
        checks.validate(self, "epsilon_lower", checks.interval, 0.0, closed_low=True)
        checks.validate(self, "confidence", checks.interval, 0.0, 1.0)
        checks.validate(self, "games_without", checks.integer, 1)
        checks.validate(self, "games_with", checks.integer, 1)

    def ceiling(self, delta: float) -> float:
        """The epsilon at delta that an attack without errors would show at a fixed threshold.

        A scan over thresholds can show slightly more or less. It is log((1 - delta - u) / v), the
        larger of both directions, where u and v are the Clopper-Pearson limits for no error in n
        trials.
        """
        alpha = 0.5 * (1.0 - self.confidence)
        without = float(upper_limit(0, self.games_without, alpha))
        with_record = float(upper_limit(0, self.games_with, alpha))
        best = max((1.0 - delta - without) / with_record, (1.0 - delta - with_record) / without)
        return math.log(best) if best > 1.0 else 0.0

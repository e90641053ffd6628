"""Whether divisor, noise, sampling rate or number of steps depend on the number of records."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.arrays import FloatArray
from audit.own_training.coupled_runs import History


@dataclass(frozen=True)
class SizeMeasurement:
    """What may depend on the number of records, at one such number."""

    units: FloatArray
    rounding: FloatArray
    steps: int | None
    history: History | None
    divisor: float | None

    def ratio(self, other: "SizeMeasurement") -> float | None:
        """How many times larger a record's contribution is than at the other size."""
        steps: int = min(len(self.units), len(other.units))
        both = np.isfinite(self.units[:steps]) & np.isfinite(other.units[:steps])
        if not both.any():
            return None
        mine, theirs = self.units[:steps][both], other.units[:steps][both]
        slack = 4 * self.rounding[:steps][both] / theirs
        sure = slack < 0.2 * np.abs(mine / theirs - 1)
        if not sure.any():
            return 1.0
        return float(np.median(mine[sure] / theirs[sure]))

    def differs(self, other: "SizeMeasurement") -> bool:
        """Whether anything is different at the other size."""
        ratio = self.ratio(other)
        if ratio is not None and abs(ratio - 1) > 1e-4:
            return True
        if self.divisor is not None and self.divisor != other.divisor:
            return True
        if None not in (self.steps, other.steps) and self.steps != other.steps:
            return True
        return self._parameters() != other._parameters()

    def explained_by_size(self, other: "SizeMeasurement", n: int, m: int) -> bool:
        """Whether stated parameters differ, or contributions do as 1 / n."""
        ratio = other.ratio(self)
        by_size = ratio is not None and abs(ratio / (n / m) - 1) < 2e-3
        stated = self.divisor != other.divisor or self._parameters() != other._parameters()
        return by_size or stated or self.steps != other.steps

    def _parameters(self) -> Any:
        return None if not self.history else {(s, round(q, 12)) for s, q, _ in self.history}

    def numbers(self) -> dict[str, Any]:
        """For a message."""
        rates = sorted({q for _, q, _ in self.history}) if self.history else []
        sigmas = sorted({s for s, _, _ in self.history}) if self.history else []
        return {"divisor": self.divisor, "steps": self.steps, "rates": rates, "sigmas": sigmas}

"""The accountant of a loop of arrays: the steps that the loop states."""

import math
from typing import Any

from audit import checks
from audit.accounting import from_opacus
from audit.errors import InvalidInput

_MAX_STEPS = 10**9


class StatedAccountant:
    """Steps of a sampled Gaussian mechanism, as a loop stated them.

    Attributes:
        history: phases (noise multiplier, sampling rate, steps), as in an accountant of Opacus.

    Example:
        >>> accountant = StatedAccountant()
        >>> accountant.add(1.0, 0.25, 100)
        >>> accountant.add(1.0, 0.25, 20)
        >>> accountant.history
        [(1.0, 0.25, 120)]
        >>> 20 < accountant.get_epsilon(1e-5) < 21
        True
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def add(self, noise_multiplier: float, sampling_rate: float, steps: int) -> None:
        """Adds a phase of equal steps.

        Raises:
            InvalidInput: a number is out of its range.
        """
        noise = checks.interval("noise_multiplier", noise_multiplier, 0.0, closed_low=True)
        rate = checks.interval("sampling_rate", sampling_rate, 0.0, 1.0, closed_high=True)
        count = checks.integer("steps", steps, 1, _MAX_STEPS)
        if self.history and self.history[-1][:2] == (noise, rate):
            count += self.history.pop()[2]
        self.history.append((noise, rate, count))

    def add_event(self, event: Any, times: int = 1) -> None:
        """Adds the steps of a `DpEvent` of dp-accounting.

        Args:
            event: compositions of Gaussian and of Poisson-sampled Gaussian events.
            times: number of times that it is composed.

        Raises:
            InvalidInput: the event is of another kind.
        """
        kind = type(event).__name__
        if kind == "NoOpDpEvent":
            return
        if kind == "SelfComposedDpEvent":
            self.add_event(event.event, times * checks.integer("count", event.count, 1))
        elif kind == "ComposedDpEvent":
            for _ in range(times):
                for member in event.events:
                    self.add_event(member)
        elif kind == "GaussianDpEvent":
            self.add(event.noise_multiplier, 1.0, times)
        elif kind == "PoissonSampledDpEvent" and type(event.event).__name__ == "GaussianDpEvent":
            self.add(event.event.noise_multiplier, event.sampling_probability, times)
        else:
            raise InvalidInput(
                "event must compose GaussianDpEvent and PoissonSampledDpEvent of it, got "
                f"{checks.kind_of(event)}: state watch.claim(epsilon) instead"
            )

    def get_epsilon(self, delta: float) -> float:
        """The epsilon of all steps; infinite for steps without noise."""
        if not self.history:
            return 0.0
        if any(noise == 0.0 for noise, _, _ in self.history):
            return math.inf
        return float(from_opacus(self).epsilon(delta))

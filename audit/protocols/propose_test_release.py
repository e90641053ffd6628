"""Tuning over candidates that run a private test before they release anything."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.base import RandomRuns


@dataclass(frozen=True)
class ProposeTestRelease(RandomRuns):
    """Random search over runs that release an output only if a private test passes.

    The base mechanism is the release after a passed test. Sources: Koskela, Redberg & Wang 2024,
    theorem 6.1; Redberg et al. 2023.

    Attributes:
        repetitions: the distribution of K, as an object or as text.
        test_epsilon: epsilon of the test, >= 0.
        test_delta: delta of the test, in [0, 1).
        failure: probability that the test passes wrongly, in [0, 1).

    Example:
        >>> ProposeTestRelease("tnb:0,0.1", 1.0, 1e-6, 1e-7).spec
        'ptr:1.0,1e-06,1e-07/tnb:0,0.1'
    """

    test_epsilon: float
    test_delta: float
    failure: float

    name: ClassVar[str] = "ptr"
    assumption: ClassVar[str] = "K independent runs, each of which tests before it releases"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, high in (("test_epsilon", 1e6), ("test_delta", 1.0), ("failure", 1.0)):
            value = checks.interval(name, getattr(self, name), 0.0, high, closed_low=True)
            checks.store_validated(self, **{name: value})

    @property
    def spec(self) -> str:
        numbers = f"{self.test_epsilon!r},{self.test_delta!r},{self.failure!r}"
        return f"ptr:{numbers}/{self.repetitions.spec}"

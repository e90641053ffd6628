"""Random search over runs that test before they release."""

from dataclasses import dataclass
from typing import ClassVar

from audit import checks
from audit.protocols.random_search import RandomRuns


@dataclass(frozen=True)
class ProposeTestRelease(RandomRuns):
    """Random search over runs that release an output only if a private test passes.

    The base is the mechanism that runs if the test passes. Sources: Koskela, Redberg & Wang 2024,
    theorem 6.1; Redberg et al. 2023.

    Attributes:
        repetitions: the distribution of K; text is parsed.
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
    assumption: ClassVar[str] = "K independent runs, each of which tests before its release"
    parameters: ClassVar[str] = "EPSILON,DELTA,FAILURE"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, high in (("test_epsilon", 1e6), ("test_delta", 1.0), ("failure", 1.0)):
            checks.validate(self, name, checks.interval, 0.0, high, closed_low=True)

    @property
    def spec(self) -> str:
        numbers = f"{self.test_epsilon!r},{self.test_delta!r},{self.failure!r}"
        return f"ptr:{numbers}/{self.repetitions.spec}"

"""The space of candidates and the prior over it."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import FloatArray

Candidate = dict[str, Any]

_MAX_CANDIDATES = 100_000


class Dimension(ABC):
    """One hyperparameter and its prior, as a map from the unit interval.

    Example:
        >>> from audit.tuning import Uniform
        >>> rate: Dimension = Uniform(0.0, 2.0)
        >>> rate.at(0.5), rate.spec
        (1.0, 'uniform in [0.0, 2.0]')
    """

    @abstractmethod
    def at(self, u: float) -> Any:
        """The value at u in [0, 1); the prior is the distribution of `at(U)` for a uniform U."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The prior as text."""

    @property
    def count(self) -> int | None:
        """The number of values; None if there is a continuum of them."""
        return None

    def features(self, u: float) -> list[float]:
        """The features of u for a model of the score."""
        return [u]


@dataclass(frozen=True)
class Uniform(Dimension):
    """Uniform between two numbers.

    Attributes:
        low: least value.
        high: largest value, above `low`.

    Example:
        >>> Uniform(0.0, 2.0).at(0.25)
        0.5
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        checks.validate(self, "low", checks.interval)
        checks.validate(self, "high", checks.interval, self.low)

    def at(self, u: float) -> float:
        return min(self.low + u * (self.high - self.low), self.high)

    @property
    def spec(self) -> str:
        return f"uniform in [{self.low!r}, {self.high!r}]"


@dataclass(frozen=True)
class LogUniform(Dimension):
    """Uniform on the logarithmic scale.

    Attributes:
        low: least value, > 0.
        high: largest value, above `low`.

    Example:
        >>> round(LogUniform(1e-3, 1.0).at(0.5), 4)
        0.0316
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        checks.validate(self, "low", checks.interval, 0.0)
        checks.validate(self, "high", checks.interval, self.low)

    def at(self, u: float) -> float:
        value = self.low * math.exp(u * math.log(self.high / self.low))
        return min(max(value, self.low), self.high)

    @property
    def spec(self) -> str:
        return f"log-uniform in [{self.low!r}, {self.high!r}]"


@dataclass(frozen=True)
class Integer(Dimension):
    """Uniform among the whole numbers from `low` to `high`, both included.

    Attributes:
        low: least value.
        high: largest value, at least `low`.

    Example:
        >>> Integer(1, 6).at(0.99)
        6
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        checks.validate(self, "low", checks.integer, -(2**53))
        checks.validate(self, "high", checks.integer, self.low, 2**53)

    def at(self, u: float) -> int:
        return min(self.low + int(u * self.count), self.high)

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    @property
    def spec(self) -> str:
        return f"uniform among the whole numbers {self.low}..{self.high}"


@dataclass(frozen=True)
class Choice(Dimension):
    """Uniform among given values; a list in a space means this.

    Attributes:
        values: the values; a value given twice is twice as likely.

    Example:
        >>> Choice((16, 32, 64)).at(0.5)
        32
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        # A range may be longer than the memory.
        checks.store_validated(self, values=_first(self.values))
        if not 0 < len(self.values) <= _MAX_CANDIDATES:
            more = f"more than {_MAX_CANDIDATES}: use Integer for a range"
            raise InvalidInput(
                f"values must be a list of one to {_MAX_CANDIDATES}, got "
                f"{more if self.values else 'none'}"
            )
        try:
            repr(self.values)
        except Exception as error:  # of a user's own class
            raise InvalidInput(
                f"values must have a repr, got one that raises {type(error).__name__}"
            ) from error

    @property
    def count(self) -> int:
        return len(self.values)

    def _index(self, u: float) -> int:
        return min(int(u * self.count), self.count - 1)

    def at(self, u: float) -> Any:
        return self.values[self._index(u)]

    def features(self, u: float) -> list[float]:
        # One indicator each, because the values need not be ordered.
        return [float(place == self._index(u)) for place in range(self.count)]

    @property
    def spec(self) -> str:
        return f"uniform among {list(self.values)!r}"


@dataclass(frozen=True)
class Space:
    """Candidates as points of the unit cube, one independent coordinate per hyperparameter.

    Attributes:
        dimensions: dimension of each name; a list of complete candidates has an empty name.
    """

    dimensions: Mapping[str, Dimension]

    @classmethod
    def parse(cls, space: "Space | Mapping[str, Any] | Iterable[Mapping[str, Any]]") -> "Space":
        """Reads a space as users write it.

        Args:
            space: a dimension or a list of values for every name; or a list of complete
                candidates, each a mapping, over which the prior is uniform.

        Raises:
            InvalidInput: it is neither.

        Example:
            >>> Space.parse({"lr": Uniform(0.0, 2.0), "hidden": [16, 32]}).at((0.5, 0.9))
            {'lr': 1.0, 'hidden': 32}
        """
        if isinstance(space, Space):
            return space
        if isinstance(space, Mapping):
            if not space:
                raise InvalidInput("space must name at least one hyperparameter, got none")
            if "" in space:
                raise InvalidInput("space must name every hyperparameter, got an empty name")
            for name in space:
                if not isinstance(name, str):
                    raise InvalidInput(
                        f"space must name hyperparameters by text, got {checks.one_line(name)}"
                    )
            return cls({name: _dimension(name, values) for name, values in space.items()})
        try:
            candidates = list(_first(space))
        except TypeError:  # also an array without a dimension, which has an iterator
            candidates = []
        if not candidates or not all(isinstance(candidate, Mapping) for candidate in candidates):
            raise InvalidInput(
                "space must be a mapping from names to values, or a list of candidates, each a "
                f"mapping, got {checks.one_line(space)}"
            )
        return cls({"": Choice(tuple(dict(candidate) for candidate in candidates))})

    @property
    def size(self) -> int | None:
        """The number of candidates; None if a hyperparameter is continuous."""
        counts = [dimension.count for dimension in self.dimensions.values()]
        finite_counts = [count for count in counts if count is not None]
        return math.prod(finite_counts) if len(finite_counts) == len(counts) else None

    def at(self, point: Sequence[float]) -> Candidate:
        """The candidate at a point of the unit cube [dimensions]."""
        candidate: Candidate = {}
        for (name, dimension), u in zip(self.dimensions.items(), point, strict=True):
            value = dimension.at(u)
            if name:
                candidate[name] = value
            else:
                candidate |= value
        return candidate

    def draw(self, rng: np.random.Generator) -> tuple[float, ...]:
        """A point drawn from the prior."""
        return tuple(float(u) for u in rng.random(len(self.dimensions)))

    def points(self) -> list[tuple[float, ...]]:
        """One point for every candidate, in order.

        Raises:
            InvalidInput: there are infinitely many, or more than 100,000.
        """
        if self.size is None or self.size > _MAX_CANDIDATES:
            raise InvalidInput(
                "space must have finitely many candidates, at most "
                f"{_MAX_CANDIDATES}, got {self.size or 'a continuous one'}"
            )
        counts = [dimension.count or 1 for dimension in self.dimensions.values()]
        places = [[(i + 0.5) / count for i in range(count)] for count in counts]
        return list(itertools.product(*places))

    def features(self, point: Sequence[float]) -> FloatArray:
        """The features of a candidate for a model of the score, [features]."""
        pairs = zip(self.dimensions.values(), point, strict=True)
        return np.array([x for dimension, u in pairs for x in dimension.features(u)])

    @property
    def prior(self) -> dict[str, str]:
        """The prior in words, by name."""
        return {name or "candidate": dimension.spec for name, dimension in self.dimensions.items()}


def _dimension(name: str, values: Any) -> Dimension:
    if isinstance(values, Dimension):
        return values
    if isinstance(values, list | tuple | range) and len(values):
        try:
            return Choice(_first(values))
        except InvalidInput as error:
            raise InvalidInput(f"space[{checks.one_line(name)}]: {error}") from None
    raise InvalidInput(
        f"space[{checks.one_line(name)}] must be a list of values, Uniform, LogUniform or Integer, "
        f"got {checks.one_line(values)}"
    )


def _first(values: Iterable[Any]) -> tuple[Any, ...]:
    """The values; one more than allowed if there are more."""
    return tuple(itertools.islice(values, _MAX_CANDIDATES + 1))

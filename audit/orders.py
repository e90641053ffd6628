"""Orders of one statistic x: which of several runs is called the best.

The score of an attack, the bound on what it leaks, the curve that reads its trials and the study
that draws them all take the order from here. In one run x is N(0, 1), or N(mu, 1) with the record;
where an order splits or folds is in standard deviations.

The lowest floor: numpy and scipy alone.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

# Above any x: one of 1e6 standard deviations has probability 0 in double precision.
_ABOVE = 1e6


class Order(Protocol):
    """An order on x.

    Example:
        >>> import numpy as np
        >>> increasing: Order = IncreasingOrder()
        >>> increasing.rank(np.array([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """

    @property
    def fold(self) -> float:
        """Where the line is folded: above it a larger x is preferred."""
        ...

    def rank(self, x: Array) -> Array:
        """The score of x [n], higher is better; of equal scores the smaller x is preferred."""
        ...


@dataclass(frozen=True)
class IncreasingOrder:
    """The larger the better.

    Example:
        >>> import numpy as np
        >>> IncreasingOrder().rank(np.array([2.0, -1.0])).tolist()
        [2.0, -1.0]
    """

    @property
    def fold(self) -> float:
        return -np.inf

    def rank(self, x: Array) -> Array:
        return x

    def best(self, runs: NDArray[np.int64], mean: float, rng: np.random.Generator) -> Array:
        """Draws the best x of every tuning [n] with so many runs [n]; minus infinity without any.

        A uniform to the power 1/K is the largest of K.
        """
        with np.errstate(divide="ignore"):
            share = rng.random(len(runs)) ** (1.0 / np.maximum(runs, 1))
            return mean + np.asarray(special.ndtri(np.where(runs > 0, share, 0.0)))


@dataclass(frozen=True)
class SplitOrder:
    """x > top first, the larger the better; below it the smaller the better.

    Attributes:
        top: where the order splits; infinite for the decreasing order, minus infinity for the
            increasing one.

    Example:
        >>> import numpy as np
        >>> SplitOrder(2.0).rank(np.array([3.0, -1.0, 1.0])).argsort().tolist()  # the worst first
        [2, 1, 0]
    """

    top: float

    @property
    def fold(self) -> float:
        return self.top

    def rank(self, x: Array) -> Array:
        return np.where(x > self.top, _ABOVE + x, -x)

    def tails(self, x: ArrayLike, mean: float) -> tuple[Array, Array]:
        """The chances that one run is preferred to x: from above the split, and from below it.

        Args:
            x: values [...].
            mean: of the statistic in one run.
        """
        return split_tails(self.top, x, mean)

    def best(self, runs: NDArray[np.int64], mean: float, rng: np.random.Generator) -> Array:
        """Draws the best x of every tuning [n] with so many runs [n], at least one each."""
        share = rng.random(len(runs)) ** (1.0 / runs)
        below = special.ndtr(self.top - mean)
        # Given that all are below top, the smallest of them.
        smallest = below * -np.expm1(np.log(rng.random(len(runs))) / runs)
        return mean + np.asarray(special.ndtri(np.where(share > below, share, smallest)))


def split_tails(top: ArrayLike, x: ArrayLike, mean: float) -> tuple[Array, Array]:
    """As `SplitOrder.tails`, for many splits and values at once, elementwise.

    Example:
        >>> [round(float(np.exp(tail)), 4) for tail in split_tails(2.0, 3.0, mean=0.0)]
        [1.0014, 1.0]
    """
    top, x = np.asarray(top, dtype=np.float64), np.asarray(x, dtype=np.float64)
    above = special.ndtr(mean - np.maximum(top, x))
    return above, np.where(x > top, 0.0, special.ndtr(x - mean))


@dataclass(frozen=True)
class FoldedOrder:
    """x above the fold scores x, below it a decreasing function of x.

    Attributes:
        fold: where the line is folded.
        low: increasing points x below the fold.
        scores: their scores, decreasing and at least `fold`; linear in between.

    Example:
        >>> import numpy as np
        >>> order = FoldedOrder(fold=0.0, low=(-3.0, 0.0), scores=(3.0, 0.0))
        >>> order.rank(np.array([2.0, -2.5])).tolist()
        [2.0, 2.5]
    """

    fold: float
    low: tuple[float, ...]
    scores: tuple[float, ...]

    def rank(self, x: Array) -> Array:
        return np.where(x > self.fold, x, np.interp(x, self.low, self.scores))

"""Orders of one statistic x: rankings by which the best of several runs is chosen.

Scores of attacks, bounds on their leakage, estimators for their trials and simulations share these
orders. In one run, x is N(0, 1) without the record and N(mu, 1) with it. The points where an order
splits or folds are given in standard deviations.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.numerics import FloatArray

# Larger than any x: a value of 1e6 standard deviations has probability 0 in double precision.
_ABOVE = 1e6


class Order(Protocol):
    """A ranking of x.

    Example:
        >>> import numpy as np
        >>> increasing: Order = IncreasingOrder()
        >>> increasing.rank(np.array([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """

    @property
    def fold(self) -> float:
        """The point where the line is folded; above it, a larger x is preferred."""
        ...

    def rank(self, x: FloatArray) -> FloatArray:
        """Scores of x [n]; higher is better, and among equal scores a smaller x is preferred."""
        ...


@dataclass(frozen=True)
class IncreasingOrder:
    """Prefers the larger x.

    Example:
        >>> import numpy as np
        >>> IncreasingOrder().rank(np.array([2.0, -1.0])).tolist()
        [2.0, -1.0]
    """

    fold: ClassVar[float] = -np.inf

    def rank(self, x: FloatArray) -> FloatArray:
        return x

    def best(self, runs: NDArray[np.int64], mean: float, rng: np.random.Generator) -> FloatArray:
        """Draws the best x [n] of runs [n]: the largest of K uniforms is a uniform^(1/K)."""
        with np.errstate(divide="ignore"):
            share = rng.random(len(runs)) ** (1.0 / np.maximum(runs, 1))
            return mean + np.asarray(special.ndtri(np.where(runs > 0, share, 0.0)))


@dataclass(frozen=True)
class SplitOrder:
    """Prefers x > top, and among these the larger x; below top, prefers the smaller x.

    Attributes:
        top: the point where the order splits; infinity gives the decreasing order, minus infinity
            the increasing one.

    Example:
        >>> import numpy as np
        >>> SplitOrder(2.0).rank(np.array([3.0, -1.0, 1.0])).argsort().tolist()  # worst first
        [2, 1, 0]
    """

    top: float

    @property
    def fold(self) -> float:
        return self.top

    def rank(self, x: FloatArray) -> FloatArray:
        return np.where(x > self.top, _ABOVE + x, -x)

    def tails(self, x: ArrayLike, mean: float) -> tuple[FloatArray, FloatArray]:
        """Probabilities that one run is preferred to x, from above the split and from below it.

        Args:
            x: values [...].
            mean: mean of the statistic in one run.
        """
        return split_tails(self.top, x, mean)

    def best(self, runs: NDArray[np.int64], mean: float, rng: np.random.Generator) -> FloatArray:
        """Draws the best x [n] of tunings with the given numbers of runs [n], each at least 1."""
        share = rng.random(len(runs)) ** (1.0 / runs)
        below = special.ndtr(self.top - mean)
        # The smallest value, given that all are below top.
        smallest = below * -np.expm1(np.log(rng.random(len(runs))) / runs)
        return mean + np.asarray(special.ndtri(np.where(share > below, share, smallest)))


def split_tails(top: ArrayLike, x: ArrayLike, mean: float) -> tuple[FloatArray, FloatArray]:
    """`SplitOrder.tails` for many splits and values at once, elementwise.

    Example:
        >>> [round(float(np.exp(tail)), 4) for tail in split_tails(2.0, 3.0, mean=0.0)]
        [1.0014, 1.0]
    """
    top, x = np.asarray(top, dtype=np.float64), np.asarray(x, dtype=np.float64)
    above = special.ndtr(mean - np.maximum(top, x))
    return above, np.where(x > top, 0.0, special.ndtr(x - mean))


@dataclass(frozen=True)
class FoldedOrder:
    """Scores x above the fold by x, and x below the fold by a decreasing function.

    Attributes:
        fold: the point where the line is folded.
        low: increasing points below the fold.
        scores: scores at these points, decreasing and at least `fold`; linear in between.

    Example:
        >>> import numpy as np
        >>> order = FoldedOrder(fold=0.0, low=(-3.0, 0.0), scores=(3.0, 0.0))
        >>> order.rank(np.array([2.0, -2.5])).tolist()
        [2.0, 2.5]
    """

    fold: float
    low: tuple[float, ...]
    scores: tuple[float, ...]

    def rank(self, x: FloatArray) -> FloatArray:
        return np.where(x > self.fold, x, np.interp(x, self.low, self.scores))

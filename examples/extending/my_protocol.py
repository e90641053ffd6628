"""A custom protocol in one file: some candidates of a list, drawn at random, each run once."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from audit import checks
from audit.protocols import Case, Grid, Protocol, Statement
from audit.repetitions import Fixed
from audit.upper_bounds import tuning_cost
from audit.upper_bounds.registry import BoundValue, bound


@dataclass(frozen=True)
class Shortlist(Protocol):
    """Draws `drawn` distinct candidates of a list uniformly, trains each once, releases the best.

    The draw does not depend on the data.
    """

    candidates: int
    drawn: int

    name: ClassVar[str] = "shortlist"
    assumption: ClassVar[str] = "candidates drawn from a fixed list without replacement"
    parameters: ClassVar[str] = "CANDIDATES,DRAWN"
    candidates_are: ClassVar = "chosen"  # so that each run counts as the least private candidate

    def __post_init__(self):
        checks.validate(self, "candidates", checks.integer, 1)
        checks.validate(self, "drawn", checks.integer, 1, self.candidates)

    @property
    def spec(self):
        return f"shortlist:{self.candidates},{self.drawn}"

    # How many runs there are, and which candidate each trains.

    @property
    def mean_runs(self):
        return float(self.drawn)

    @property
    def runs_distribution(self):
        return Fixed(self.drawn)

    @property
    def list_length(self):
        return self.candidates

    def draw_runs(self, rng):
        return sorted(int(index) for index in np.argsort(rng.random(self.candidates))[: self.drawn])

    def simulate(self, tunings):
        order = np.argsort(tunings.rng.random((tunings.count, self.candidates)), axis=1)
        return tunings.best_of_list(np.argsort(order, axis=1) < self.drawn)

    # What certificates, comparisons and the calculator say.

    def expected_quantile(self):
        return Fixed(self.drawn).expected_quantile()

    @cached_property
    def statement(self):
        return Statement(
            f"The tuning draws {self.drawn} distinct candidates of a fixed list of "
            f"{self.candidates}, trains each of them once, and releases the best run.",
            secret="",
            candidates="the list is fixed, and candidates are drawn from it without replacement",
            runs="the candidates to run are drawn before the first run, and no run is left out",
        )

    @classmethod
    def cases(cls, runs):
        drawn = round(runs)
        return [Case("shortlist, half of a list", cls(2 * drawn, drawn))]


@bound("shortlist-of-grids", 10, "a grid of the drawn candidates", protocol=Shortlist)
def shortlist_of_grids(base, protocol, delta):
    """The cost of a grid of the drawn candidates.

    Which candidates are drawn is independent of the data, so the loss is a mixture of the losses of
    grids, and delta(eps) is the mean of their deltas, each at most that of the worst grid.
    """
    return BoundValue(tuning_cost(base, Grid(protocol.drawn), delta).epsilon)

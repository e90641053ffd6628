"""A custom base mechanism: its dominating pair determines everything else."""

from dataclasses import dataclass

import pytest

from audit import checks, upper_bounds
from audit.accounting import Mechanism
from audit.accounting.pairs import DiscretePair


@dataclass(frozen=True)
class NameAndShame(Mechanism):
    """Publishes each record with some probability, which is (0, probability)-DP."""

    probability: float

    def __post_init__(self):
        checks.interval("probability", self.probability, 0.0, 1.0)

    @property
    def pairs(self):
        # The outputs are one record, the other record in its place, or nothing.
        rest = 1.0 - self.probability
        return (DiscretePair([self.probability, 0.0, rest], [0.0, self.probability, rest]),)

    @property
    def description(self):
        return (
            f"each record published with probability {self.probability:g}; replace-one neighbours"
        )


def test_profile_equals_its_closed_form():
    one = NameAndShame(1e-3)
    assert one.delta([0.0, 1.0, 10.0]) == pytest.approx(1e-3)


def test_best_of_k_multiplies_the_probability_by_the_mean():
    # With E[K] = 3.909, a score that prefers a record releases it in 3.91e-3 of all tunings.
    one = NameAndShame(1e-3)
    assert upper_bounds.tight(one, "tnb:0,0.1", delta=4e-3).epsilon == 0.0
    with pytest.raises(ValueError, match=r"delta must be above 0\.00391"):
        upper_bounds.tight(one, "tnb:0,0.1", delta=3.8e-3)

"""Your own base mechanism: all bounds follow from its dominating pair."""

from dataclasses import dataclass

import pytest

from audit import checks, upper_bounds
from audit.accounting import Mechanism
from audit.accounting.pairs import DiscretePair


@dataclass(frozen=True)
class NameAndShame(Mechanism):
    """Publishes each record with a given probability: (0, probability)-DP."""

    probability: float

    def __post_init__(self):
        checks.interval("probability", self.probability, 0.0, 1.0)

    @property
    def pairs(self):
        # The outputs are the record, the record that replaces it, and nothing.
        p, rest = self.probability, 1.0 - self.probability
        return (DiscretePair([p, 0.0, rest], [0.0, p, rest]),)

    @property
    def description(self):
        return (
            f"each record published with probability {self.probability:g}; replace-one neighbours"
        )


def test_profile_against_a_closed_form():
    one = NameAndShame(1e-3)
    assert one.delta([0.0, 1.0, 10.0]) == pytest.approx(1e-3)


def test_the_best_of_several_runs_publishes_more_often():
    # E[K] = 3.909: a score that prefers the record releases it in 3.91e-3 of all tunings.
    one = NameAndShame(1e-3)
    assert upper_bounds.tight(one, "tnb:0,0.1", delta=4e-3).epsilon == 0.0
    with pytest.raises(ValueError, match=r"delta must be above 0\.00391"):
        upper_bounds.tight(one, "tnb:0,0.1", delta=3.8e-3)

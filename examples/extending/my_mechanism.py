"""A base mechanism of one's own: a dominating pair, from which everything else follows."""

from dataclasses import dataclass

import pytest

from audit import checks, upper_bounds
from audit.accounting import Mechanism
from audit.accounting.pairs import DiscretePair


@dataclass(frozen=True)
class NameAndShame(Mechanism):
    """Publishes every record with some chance, and nothing else: (0, chance)-DP, at any epsilon."""

    chance: float

    def __post_init__(self):
        checks.interval("chance", self.chance, 0.0, 1.0)

    @property
    def pairs(self):
        # One record's name, another's in its place, or nothing.
        rest = 1.0 - self.chance
        return (DiscretePair([self.chance, 0.0, rest], [0.0, self.chance, rest]),)

    @property
    def description(self):
        return f"each record published with chance {self.chance:g}; replace-one neighbours"


def test_profile_against_a_closed_form():
    one = NameAndShame(1e-3)
    assert one.delta([0.0, 1.0, 10.0]) == pytest.approx(1e-3)


def test_the_best_of_several_publishes_so_many_times_as_much():
    # E[K] = 3.909 runs on average: whoever prefers the name finds it in 3.91e-3 of all tunings.
    one = NameAndShame(1e-3)
    assert upper_bounds.tight(one, "tnb:0,0.1", delta=4e-3).epsilon == 0.0
    with pytest.raises(ValueError, match=r"delta must be above 0\.00391"):
        upper_bounds.tight(one, "tnb:0,0.1", delta=3.8e-3)

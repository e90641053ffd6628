"""A protocol of one's own: each candidate is trained on a part of the records of its own."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from audit import upper_bounds
from audit.accounting import GaussianMechanism, RandomisedResponse
from audit.protocols import Protocol
from audit.upper_bounds.registry import BoundValue, bound


@dataclass(frozen=True)
class DisjointParts(Protocol):
    """Records are split by a rule that looks at one record at a time; a run for every part."""

    parts: int
    name: ClassVar[str] = "parts"
    assumption: ClassVar[str] = "one run on every part, and a record's part depends on it alone"

    @property
    def spec(self):
        return f"parts:{self.parts}"

    @property
    def mean_runs(self):
        return float(self.parts)


@bound("one-part", 10, "parallel composition (McSherry 2009)", protocol=DisjointParts)
def one_part(base, protocol, delta):
    """A record moves one run; even all runs together leak no more than that one."""
    return BoundValue(base.epsilon(delta))


def test_cost_finds_it():
    base = GaussianMechanism(0.5)
    found = upper_bounds.tuning_cost(base, DisjointParts(20), delta=1e-5)
    assert (found.name, found.epsilon) == ("one-part", base.epsilon(1e-5))
    assert "a record's part depends on it alone" in found.assumes


def test_against_every_order_of_a_small_case():
    # Two parts, randomised response in each, the record in the first; any order of (part, answer).
    keep = np.exp(1.0) / (1.0 + np.exp(1.0))
    of_first = {"without": (1.0 - keep, keep), "with": (keep, 1.0 - keep)}
    pairs = list(itertools.product([(0, 0), (0, 1)], [(1, 0), (1, 1)]))  # what the two runs give
    leaks = []
    for ranking in itertools.permutations(itertools.product((0, 1), (0, 1))):
        winners = [min(pair, key=ranking.index) for pair in pairs]
        chances = {
            data: [
                sum(
                    law[a] * 0.5
                    for ((_, a), _), won in zip(pairs, winners, strict=True)
                    if won == one
                )
                for one in sorted(set(winners))
            ]
            for data, law in of_first.items()
        }
        leaks.append(np.abs(np.log(np.divide(chances["with"], chances["without"]))).max())
    cost = upper_bounds.tuning_cost(
        RandomisedResponse(1.0, 2), DisjointParts(2), delta=1e-12
    ).epsilon
    assert max(leaks) == pytest.approx(cost)  # never above it, and some ranking attains it

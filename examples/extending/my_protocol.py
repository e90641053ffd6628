"""A custom protocol: each candidate is trained on a separate part of the records."""

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
    """One run on each part of the records; a record's part depends only on that record."""

    parts: int
    name: ClassVar[str] = "parts"
    assumption: ClassVar[str] = "one run per part, and a record's part depends only on that record"

    @property
    def spec(self):
        return f"parts:{self.parts}"

    @property
    def mean_runs(self):
        return float(self.parts)


@bound("one-part", 10, "parallel composition (McSherry 2009)", protocol=DisjointParts)
def one_part(base, protocol, delta):
    """Epsilon of one run: a record affects only one run, even if all runs are released."""
    return BoundValue(base.epsilon(delta))


def test_cost_finds_it():
    base = GaussianMechanism(0.5)
    found = upper_bounds.tuning_cost(base, DisjointParts(20), delta=1e-5)
    assert (found.name, found.epsilon) == ("one-part", base.epsilon(1e-5))
    assert "a record's part depends only on that record" in found.assumes


def test_cost_equals_the_worst_order_of_a_small_case():
    # Two parts with randomised response; the record is in the first part. Tries all orders of
    # (part, response).
    keep = np.exp(1.0) / (1.0 + np.exp(1.0))
    of_first = {"without": (1.0 - keep, keep), "with": (keep, 1.0 - keep)}
    pairs = list(itertools.product([(0, 0), (0, 1)], [(1, 0), (1, 1)]))  # outputs of the two runs
    leaks = []
    for ranking in itertools.permutations(itertools.product((0, 1), (0, 1))):
        winners = [min(pair, key=ranking.index) for pair in pairs]
        probabilities = {
            data: [
                sum(
                    probability[a] * 0.5
                    for ((_, a), _), won in zip(pairs, winners, strict=True)
                    if won == one
                )
                for one in sorted(set(winners))
            ]
            for data, probability in of_first.items()
        }
        ratios = np.divide(probabilities["with"], probabilities["without"])
        leaks.append(np.abs(np.log(ratios)).max())
    cost = upper_bounds.tuning_cost(
        RandomisedResponse(1.0, 2), DisjointParts(2), delta=1e-12
    ).epsilon
    assert max(leaks) == pytest.approx(cost)  # no order exceeds the cost, and one attains it

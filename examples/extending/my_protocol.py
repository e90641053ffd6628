"""Your own protocol: each candidate is trained on a separate part of the records."""

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
    """One run on each part of the records; the part of a record depends only on the record."""

    parts: int
    name: ClassVar[str] = "parts"
    assumption: ClassVar[str] = (
        "one run on every part, and the part of a record depends only on the record"
    )

    @property
    def spec(self):
        return f"parts:{self.parts}"

    @property
    def mean_runs(self):
        return float(self.parts)


@bound("one-part", 10, "parallel composition (McSherry 2009)", protocol=DisjointParts)
def one_part(base, protocol, delta):
    """A record affects one run, so all runs together leak at most as much as this run."""
    return BoundValue(base.epsilon(delta))


def test_tuning_cost_uses_the_bound():
    base = GaussianMechanism(0.5)
    found = upper_bounds.tuning_cost(base, DisjointParts(20), delta=1e-5)
    assert (found.name, found.epsilon) == ("one-part", base.epsilon(1e-5))
    assert "the part of a record depends only on the record" in found.assumes


def test_against_every_order_of_a_small_case():
    # Randomised response in each of two parts, the record in the first; all orders of pairs (part,
    # answer).
    keep = np.exp(1.0) / (1.0 + np.exp(1.0))
    of_first = {"without": (1.0 - keep, keep), "with": (keep, 1.0 - keep)}
    pairs = list(itertools.product([(0, 0), (0, 1)], [(1, 0), (1, 1)]))  # both outputs
    leaks = []
    for ranking in itertools.permutations(itertools.product((0, 1), (0, 1))):
        winners = [min(pair, key=ranking.index) for pair in pairs]
        probabilities = {
            data: [
                sum(
                    p[a] * 0.5
                    for ((_, a), _), won in zip(pairs, winners, strict=True)
                    if won == one
                )
                for one in sorted(set(winners))
            ]
            for data, p in of_first.items()
        }
        leaks.append(
            np.abs(np.log(np.divide(probabilities["with"], probabilities["without"]))).max()
        )
    cost = upper_bounds.tuning_cost(
        RandomisedResponse(1.0, 2), DisjointParts(2), delta=1e-12
    ).epsilon
    assert max(leaks) == pytest.approx(cost)  # the worst order attains the cost

"""Cases with known exact values, and other values, for several test files."""

import math
from typing import Any

from audit import repetitions


class Unprintable:
    """A value whose repr and conversions to numbers raise exceptions."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __float__(self) -> float:
        raise KeyError("no float")

    def __index__(self) -> int:
        raise ZeroDivisionError("no integer")


class OwnDistribution(repetitions.Repetitions):
    """A user's distribution of K that implements only the abstract methods."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    spec = property(lambda self: f"my own {self.inner.spec}")
    mean = property(lambda self: self.inner.mean)
    probability_of_none = property(lambda self: self.inner.probability_of_none)

    def log_pmf(self, k: Any) -> Any:
        return self.inner.log_pmf(k)

    def log_phi_at(self, log_x: Any) -> Any:
        return self.inner.log_phi_at(log_x)

    def one_minus_phi_at(self, log_x: Any) -> Any:
        return self.inner.one_minus_phi_at(log_x)

    def log_phi_prime_at(self, log_x: Any) -> Any:
        return self.inner.log_phi_prime_at(log_x)

    def sample(self, rng: Any, size: Any) -> Any:
        return self.inner.sample(rng, size)


def assert_in_order(rows: Any) -> None:
    """Asserts the order of bounds.

    No bound for any score is below the epsilon of an attack, `tight` is not above `region`, and no
    bound for monotone scores is above the bound for any score.
    """
    rows = list(rows)
    by_name = {row.name: row for row in rows if row.applies}
    assert ("tight" in by_name) == ("region" in by_name)
    for row in rows:
        if not row.applies:
            assert row.reason, row
            continue
        assert math.isfinite(row.epsilon), row
        assert row.epsilon >= 0.0, row
        if row.claim.any_score and "worst-order" in by_name:
            assert row.epsilon >= by_name["worst-order"].epsilon * (1.0 - 1e-9), row
    if "tight" not in by_name:
        assert "no epsilon removes" in next(row.reason for row in rows if row.name == "tight")
        return
    tight = by_name["tight"].epsilon
    assert tight <= by_name["region"].epsilon * (1.0 + 1e-9) + 1e-11  # where roots end
    if "reduced-exact" in by_name:
        exact = by_name["reduced-exact"]
        assert exact.epsilon - exact.error <= tight * (1.0 + 1e-9)

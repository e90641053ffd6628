"""Opacus: the cost of a tuning, from the accountant of one of its runs."""

from typing import Any

from audit.accounting import from_opacus
from audit.upper_bounds import ProtocolLike, tuning_cost

__all__ = ["from_opacus", "tuning_epsilon"]


def tuning_epsilon(
    accountant: Any,
    protocol: ProtocolLike,
    delta: float,
    neighbours: str = "zero-out",
    *,
    group_size: int = 1,
) -> float:
    """Epsilon of training several times and releasing the best run by any score.

    All runs must have the same noise, sampling rate and number of steps.

    Args:
        accountant: the Opacus accountant of one of the runs, after training, or its PrivacyEngine.
        protocol: the protocol or the distribution of K, as an object or as text.
        delta: in (0, 1).
        neighbours: `zero-out`, `add-remove` or `replace-one`; see `from_opacus`.
        group_size: number of records of one person, protected together.

    Raises:
        InvalidInput: an argument is none of these, or delta cannot be reached.

    Example:
        >>> class Recorded:
        ...     history = [(1.0, 0.01, 500)]
        >>> round(tuning_epsilon(Recorded(), "tnb:0,0.01", 1e-5), 3)
        2.01
    """
    base = from_opacus(accountant, neighbours, group_size=group_size)
    return tuning_cost(base, protocol, delta).epsilon

"""What every bound returns: a number, what it needs to be true, and where it comes from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UpperBound:
    """One answer to "what does this tuning cost?".

    Attributes:
        name: the bound's name.
        epsilon: the value, rounded to the safe side; None where the bound does not apply.
        assumes: what the value needs to be true, in one line; the reason where it does not apply.
        source: the paper and theorem.
        error: the value without discretisation lies in [epsilon - error, epsilon] (for an attained
            value, [epsilon, epsilon + error]).
        attained: True where the value is no upper bound but what an attack attains.
        approximate: True where the value is no bound but an approximation.
    """

    name: str
    epsilon: float | None
    assumes: str
    source: str
    error: float = 0.0
    attained: bool = False
    approximate: bool = False


def not_applicable(name: str, reason: str, source: str) -> UpperBound:
    """A bound that says nothing about this setting, with the reason."""
    return UpperBound(name, None, f"does not apply: {reason}", source)

"""Report noisy max: composition of all noisy values."""

from audit.accounting import (
    Composition,
    Mechanism,
)
from audit.errors import NotApplicable
from audit.protocols import NoisyMax
from audit.upper_bounds.registry import BoundValue, bound

_MAX_COMPOSED = 1 << 20


@bound(
    "composition",
    50,
    "composition of all noisy values, each released",
    about=("any noise",),
    protocol=NoisyMax,
)
def noisy_max_composition(base: Mechanism, protocol: NoisyMax, delta: float) -> BoundValue:
    """What all noisy values cost if every one were released: least where there are few.

    Args:
        base: one noisy value of sensitivity 1.
        protocol: how many values, how often.
        delta: in (0, 1).

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> base = GaussianMechanism(0.25)
        >>> round(noisy_max_composition(base, "noisy-max:2", 1e-6).epsilon, 3)
        1.544
    """
    runs = protocol.candidates * protocol.rounds
    if runs > _MAX_COMPOSED:
        raise NotApplicable(f"there must be at most {_MAX_COMPOSED} values to compose")
    return BoundValue(
        Composition((base,) * runs).epsilon(delta) if runs > 1 else base.epsilon(delta)
    )

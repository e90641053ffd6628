"""The gradient canary of the worst case."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DiracCanary:
    """A record whose gradient is (C, 0, ..., 0) whatever the model, the paper's Z_D.

    It has no features: an engine adds C, the clipping threshold, to the first coordinate of the sum
    of gradients. Nasr et al. 2023; Xiang et al. 2024, sec. 4.1.

    Example:
        >>> DiracCanary().name
        'dirac'
    """

    name: str = "dirac"

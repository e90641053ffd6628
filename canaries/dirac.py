"""The Dirac canary: a worst-case gradient."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DiracCanary:
    """A canary whose gradient is (C, 0, ..., 0) for every model, Z_D in the paper.

    It has no features: engines add the clipping norm C to the first coordinate of the sum of
    gradients. Sources: Nasr et al. 2023; Xiang et al. 2024, sec. 4.1.

    Example:
        >>> DiracCanary().name
        'dirac'
    """

    name: str = "dirac"

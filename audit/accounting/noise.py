"""Mechanisms with more or less noise."""

from dataclasses import replace

from audit.accounting.additive_noise import GaussianMechanism, LaplaceMechanism
from audit.accounting.combinations import Composition, Mixture, WorstOf
from audit.accounting.dpsgd import DpSgd
from audit.accounting.mechanism import Mechanism
from audit.errors import NotApplicable


def scale_noise(base: Mechanism, factor: float) -> Mechanism:
    """The mechanism with `factor` times as much noise in each of its parts.

    Args:
        base: DP-SGD, a Gaussian or Laplace mechanism, or a combination of them.
        factor: > 0.

    Raises:
        NotApplicable: a mechanism whose noise is not a parameter.

    Example:
        >>> scale_noise(GaussianMechanism(1.0), 4.0)
        GaussianMechanism(mu=0.25)
    """
    if factor == 1.0:
        return base
    if isinstance(base, GaussianMechanism):
        return GaussianMechanism(base.mu / factor)
    if isinstance(base, LaplaceMechanism):
        return LaplaceMechanism(base.scale * factor)
    if isinstance(base, DpSgd):
        return replace(base, noise_multiplier=base.noise_multiplier * factor)
    if isinstance(base, Composition):
        return replace(base, parts=tuple(scale_noise(one, factor) for one in base.parts))
    if isinstance(base, WorstOf | Mixture):
        return replace(base, candidates=tuple(scale_noise(one, factor) for one in base.candidates))
    raise NotApplicable(
        f"base must be DP-SGD, a Gaussian or Laplace mechanism, or a combination of them, whose "
        f"noise can be scaled, got {base.description}"
    )

"""What one run of DP-SGD is set to."""

import math
from dataclasses import dataclass

from audit import checks

MODELS = ("logistic", "mlp", "convnet")
"""Names of the models in `models`, known without torch."""


@dataclass(frozen=True)
class DpSgdSettings:
    """The base mechanism, DP-SGD (Xiang et al. 2024, eq. 1).

    p_i = sum of clipped gradients + N(0, C^2 sigma^2 I), w_i = w_{i-1} - lr * p_i; with momentum m,
    v_i = m v_{i-1} + p_i and w_i = w_{i-1} - lr * v_i.

    Attributes:
        steps: N.
        noise_multiplier: sigma.
        max_grad_norm: C.
        learning_rates: Omega, the candidates that tuning chooses from.
        sampling_rate: tau; 1 takes every record in every step, less is Poisson sampling.
        momentum: m in [0, 1).
        model: a name of MODELS, or the dotted name of a callable that gives a torch.nn.Module.
        model_seed: seed of the initial weights w_0, which are public and the same in every run.

    Raises:
        ValueError: a setting out of its range.
    """

    steps: int
    noise_multiplier: float
    max_grad_norm: float
    learning_rates: tuple[float, ...]
    sampling_rate: float = 1.0
    momentum: float = 0.0
    model: str = "mlp"
    model_seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("steps", self.steps, 1)
        for name in ("noise_multiplier", "max_grad_norm"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be > 0, got {value}")
        if not self.learning_rates:
            raise ValueError("learning_rates must name at least one candidate, got none")
        for rate in self.learning_rates:
            if not (rate > 0 and math.isfinite(rate)):
                raise ValueError(f"learning_rates must be > 0, got {rate}")
        checks.interval("sampling_rate", self.sampling_rate, 0, 1, closed_high=True)
        checks.interval("momentum", self.momentum, 0, 1, closed_low=True)

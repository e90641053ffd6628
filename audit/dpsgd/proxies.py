"""The proxies lambda_a and lambda_c of R runs, accumulated step by step."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.dpsgd.parameters import to_numpy
from audit.dpsgd.settings import DpSgdSettings


class Proxies:
    """One canary's proxies; see `RunOutcomes`.

    Args:
        settings: the base mechanism.
        candidate: [R], every run's candidate.
        device: the device of the inner products.
    """

    def __init__(
        self, settings: DpSgdSettings, candidate: NDArray[np.int64], device: torch.device
    ) -> None:
        self._settings = settings
        _, clip, _ = settings.hyperparameters_of(candidate)
        self._square = torch.from_numpy(clip**2).to(device)
        self._product = torch.zeros_like(self._square)
        self._log_ratio = torch.zeros_like(self._square)

    def add(self, product: Tensor, squared_norm: Tensor) -> None:
        """Adds a step's <p_i^z, p_i> and |p_i^z|^2, [R] each."""
        s = self._settings
        self._product += product
        if s.sampling_rate < 1:
            gain = (2 * product.double() - squared_norm) / self._square
            taken = math.log(s.sampling_rate) + gain / (2 * s.noise_multiplier**2)
            missed = torch.full_like(taken, math.log1p(-s.sampling_rate))
            self._log_ratio += torch.logaddexp(missed, taken)

    def lambda_a(self) -> NDArray[np.float64]:
        """The mean product over C^2, [R]."""
        return to_numpy(self._product / (self._settings.steps * self._square))

    def lambda_c(self) -> NDArray[np.float64]:
        """The proxy for sampled batches, [R]."""
        s = self._settings
        if s.sampling_rate == 1:
            return self.lambda_a()
        return 0.5 + s.noise_multiplier**2 / s.steps * to_numpy(self._log_ratio)

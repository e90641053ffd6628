"""The proxies lambda_a and lambda_c of R runs, accumulated step by step."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.dpsgd.parameters import to_numpy
from audit.dpsgd.settings import DpSgdSettings


class Proxies:
    """One canary's proxies of runs with candidates [R]; see `RunOutcomes`."""

    def __init__(
        self, settings: DpSgdSettings, candidate: NDArray[np.int64], device: torch.device
    ) -> None:
        self._settings = settings
        _, clip, _ = settings.hyperparameters_of(candidate)
        self._square = torch.from_numpy(clip**2).to(device)
        self._product = torch.zeros_like(self._square)
        self._known_product = torch.zeros_like(self._square)
        self._squared_norms = torch.zeros_like(self._square)
        self._log_ratio = torch.zeros_like(self._square)

    def add(self, product: Tensor, known_product: Tensor, squared_norm: Tensor) -> None:
        """Adds one step, from <p_i^z, p_i> and |p_i^z|^2, [R] each.

        `known_product` is the inner product without the training records' part of p_i.
        """
        s = self._settings
        self._product += product
        self._known_product += known_product
        self._squared_norms += squared_norm
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

    def lambda_known(self) -> NDArray[np.float64]:
        """The proxy of an adversary with the training records, [R]."""
        s = self._settings
        if s.sampling_rate < 1:
            return self.lambda_c()
        log_ratio = (2 * self._known_product - self._squared_norms) / self._square
        return 0.5 + to_numpy(log_ratio) / (2 * s.steps)

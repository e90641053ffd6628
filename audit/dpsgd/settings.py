"""Settings of DP-SGD: the candidates that tuning chooses from, and the number formats.

This module does not import torch; `products` rounds.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.errors import InvalidInput

MODELS = ("logistic", "mlp", "convnet")
"""Names of the models in `models`; this module does not import torch."""


class Candidate(NamedTuple):
    """A candidate: one choice of the hyperparameters that do not affect a run's privacy.

    At a fixed noise multiplier, a run's epsilon does not depend on them, so tuning may choose them.

    Example:
        >>> Candidate(learning_rate=0.1, max_grad_norm=1.0, momentum=0.0).learning_rate
        0.1
    """

    learning_rate: float
    """Factor lr of the noisy sum in each step."""
    max_grad_norm: float
    """Clipping threshold C of the gradient of one record."""
    momentum: float
    """Factor m of the earlier steps; 0 for none."""


MAX_SCALE = 1e100
"""Limit of learning rates and clipping norms: squares of their products with noise are floats."""


def several_numbers(
    name: str, values: object, high: float = float("inf"), *, closed_low: bool = False
) -> tuple[float, ...]:
    """One number or several, distinct and between 0 and `high`, as a tuple."""
    items = tuple(values) if isinstance(values, list | tuple) else (values,)
    if not items:
        raise InvalidInput(f"{name} must name at least one number, got none")
    numbers = tuple(checks.interval(name, item, 0.0, high, closed_low=closed_low) for item in items)
    if len(set(numbers)) < len(numbers):
        noun = "budget" if name == "epsilon" else "value"
        raise InvalidInput(f"{name} must name each {noun} once, got {numbers}")
    return numbers


@dataclass(frozen=True)
class DpSgdSettings:
    """The base mechanism, DP-SGD (Xiang et al. 2024, equation 1).

    p_i = sum of clipped gradients + N(0, C^2 sigma^2 I), w_i = w_{i-1} - lr * p_i; with momentum m,
    v_i = m v_{i-1} + p_i and w_i = w_{i-1} - lr * v_i.

    lr, C and m may have several values. The candidates are all combinations of them. A single
    number is equivalent to a tuple of one.

    Attributes:
        steps: N, the number of steps.
        noise_multiplier: sigma.
        max_grad_norm: values of C.
        learning_rates: values of lr.
        sampling_rate: tau; 1 takes every record in every step, a smaller rate is Poisson sampling.
        momentum: values of m, in [0, 1).
        model: a name of MODELS, or the dotted name of a callable that returns a torch.nn.Module.
        model_seed: seed of the initial weights w_0, which are public and the same in every run.

    Raises:
        InvalidInput: a setting is out of range.
    """

    steps: int
    noise_multiplier: float
    max_grad_norm: tuple[float, ...]
    learning_rates: tuple[float, ...]
    sampling_rate: float = 1.0
    momentum: tuple[float, ...] = (0.0,)
    model: str = "mlp"
    model_seed: int = 0

    def __post_init__(self) -> None:
        checks.validate(self, "steps", checks.integer, 1)
        checks.validate(self, "noise_multiplier", checks.interval, 0)
        checks.validate(self, "sampling_rate", checks.interval, 0, 1, closed_high=True)
        checks.validate(self, "model", checks.one_of, MODELS, dotted=True)
        checks.validate(self, "max_grad_norm", several_numbers, MAX_SCALE)
        checks.validate(self, "learning_rates", several_numbers, MAX_SCALE)
        checks.validate(self, "momentum", several_numbers, 1.0, closed_low=True)

    @functools.cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates (Omega); `RunBatch.candidate` indexes this tuple."""
        grid = itertools.product(self.learning_rates, self.max_grad_norm, self.momentum)
        return tuple(Candidate(*values) for values in grid)

    def hyperparameters_of(self, candidate: NDArray[np.int64]) -> NDArray[np.float64]:
        """The hyperparameters of R runs.

        Args:
            candidate: [R] indices of their candidates.

        Returns:
            [3, R]: learning rates, clipping norms C, momenta.
        """
        return np.array(self.candidates)[candidate].T


@dataclass(frozen=True)
class Precision:
    """The number formats of a run.

    Weights, noise, norms, clipping factors, sums, updates, proxies and scores have type `dtype`. If
    `significand_bits` is given, the operands of every matrix product of the clipped sums (forward,
    backward, and over the records) are rounded to that many significant bits; the products
    accumulate in float32.

    Attributes:
        name: a key of PRECISIONS.
        dtype: float32 or float64.
        significand_bits: significant bits of the operands of products; None means no rounding.

    Example:
        >>> from audit.dpsgd import PRECISIONS
        >>> PRECISIONS["bf16"].significand_bits
        8
    """

    name: str
    dtype: str = "float32"
    significand_bits: int | None = None

    @property
    def product_error(self) -> float:
        """Upper bound delta on the relative growth of a record's contribution by rounding.

        Gradients are clipped to C / (1 + delta), so that no contribution has a norm above C.

        Proof: rounding to p significant bits increases a number by at most the factor
        1 + u / (1 + u), where u = 2^-p; truncation, which hardware may use instead, never increases
        it. Values rounded before the norm is computed are part of the gradient. After the norm,
        there is at most one product, the sum over the records: of f d and x in `OuterProducts` (f
        is the clipping factor, d the gradient of the layer's output), or of f and the gradient g in
        `ExplicitGradients`. The product of two rounded numbers is exact in float32, so every entry
        of f g, and hence its norm, grows by at most (1 + u / (1 + u))^2 < (1 + u)^2 = 1 + delta.
        The difference, 2 u^2 >= 4e-7, covers the rounding of float32. Biases in `OuterProducts` and
        canaries (`ClippedRecord`) are added without a product.

        The bound does not cover operands below 1e-38: they are subnormal in float32, and their
        relative rounding error is unbounded.
        """
        if self.significand_bits is None:
            return 0.0
        return (1 + 2.0**-self.significand_bits) ** 2 - 1

    @property
    def statement(self) -> str:
        """The sensitivity in one line; empty if operands are not rounded."""
        if self.significand_bits is None:
            return ""
        return (
            f"precision {self.name}: sensitivity C; records are clipped to "
            f"C / (1 + {self.product_error:.3e}), because rounding the operands of products to "
            f"{self.significand_bits} significant bits may increase their norm by that factor"
        )


FLOAT32 = Precision("float32")
PRECISIONS = {
    precision.name: precision
    for precision in (
        FLOAT32,
        Precision("float64", "float64"),
        Precision("tf32", significand_bits=11),
        Precision("bf16", significand_bits=8),
    )
}
"""Precisions by name."""


def check_precision(name: str) -> Precision:
    """The precision of that name."""
    return PRECISIONS[checks.one_of("precision", name, PRECISIONS)]

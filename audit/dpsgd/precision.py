"""Number formats of training, and how rounding affects the clipping threshold.

This module does not import torch; `products` rounds.
"""

from dataclasses import dataclass

from audit import checks


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

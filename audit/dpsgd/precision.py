"""Number formats of training, and what their rounding costs the clipping threshold.

Known without torch; `products` does the rounding.
"""

from dataclasses import dataclass

from audit import checks


@dataclass(frozen=True)
class Precision:
    """The formats that a run computes in.

    Weights, noise, norms, clipping factors, sums, updates, proxies and scores are of `dtype`. Where
    `significand_bits` are given, the operands of every matrix product of the clipped sums (forward,
    backward, and over the records) are rounded to the nearest number of so many significant bits;
    the products accumulate in float32.

    Attributes:
        name: of PRECISIONS.
        dtype: float32 or float64.
        significand_bits: of the operands of products; None leaves them as they are.

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
        """delta: how much longer rounding may make a record's part of the sum, relatively.

        Gradients are clipped to C / (1 + delta), so no part is longer than C:

        Rounding a number to the nearest of p significant bits adds at most u / (1 + u) of it,
        u = 2^-p; truncation, which hardware may do instead, adds nothing. What is rounded before
        the norm is taken belongs to the gradient. After it comes at most one product, that over the
        records: of f d and x in `OuterProducts` (d the gradient by the output, f the clipping
        factor), of f and the gradient g in `WrittenOut`. Two rounded numbers
        have an exact product in float32, so every entry of f g grows by at most (1 + u / (1 + u))^2
        < (1 + u)^2 = 1 + delta, and so does its norm. The difference, 2 u^2 >= 4e-7, is left for
        the roundings of float32. Biases in `OuterProducts` and canaries (`ClippedRecord`) are
        added without a product.

        Not for operands below 1e-38, subnormal in float32, whose relative error knows no bound.
        """
        if self.significand_bits is None:
            return 0.0
        return (1 + 2.0**-self.significand_bits) ** 2 - 1

    @property
    def statement(self) -> str:
        """The sensitivity, in one line; empty where operands are not rounded."""
        if self.significand_bits is None:
            return ""
        return (
            f"precision {self.name}: sensitivity C; records are clipped to "
            f"C / (1 + {self.product_error:.3e}), because rounding the operands of products to "
            f"{self.significand_bits} significant bits may lengthen them by that factor"
        )


FLOAT32 = Precision("float32")
PRECISIONS = {
    known.name: known
    for known in (
        FLOAT32,
        Precision("float64", "float64"),
        Precision("tf32", significand_bits=11),
        Precision("bf16", significand_bits=8),
    )
}
"""By name."""


def check_precision(name: str) -> Precision:
    """A precision by name.

    Raises:
        ValueError: an unknown name.
    """
    return PRECISIONS[checks.one_of("precision", name, PRECISIONS)]

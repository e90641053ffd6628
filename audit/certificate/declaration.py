"""Statements by the author of a certificate, which verification cannot recompute."""

import decimal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self

from audit import checks
from audit.errors import InvalidInput
from audit.numerics import format_exact
from audit.typed_json import Keywords, NonNegative, Positive, read_typed

PRIVATE = "private"
"""Value of `Declaration.records` if the number of records must stay secret."""

NOT_STATED = "not stated"
CLIPPING_NORM = "Clipping norm"  # title of a row

_MAX_TEXT = 1000
_MAX_SPENDINGS = 1000
_MAX_PER_PERSON = 10**6

DeclaredText = Annotated[str, Keywords(minLength=1, maxLength=_MAX_TEXT)]


@dataclass(frozen=True)
class Spending:
    """An earlier release from the same private records.

    Attributes:
        release: description of the release.
        epsilon: its epsilon, >= 0.
        delta: its delta, in [0, 1).

    Example:
        >>> Spending("table of counts, 2024", 0.5, 0.0).epsilon
        0.5
    """

    release: DeclaredText
    epsilon: NonNegative
    delta: Annotated[float, Keywords(minimum=0, exclusiveMaximum=1)]

    def __post_init__(self) -> None:
        checks.validate(self, "release", _text)
        checks.validate(self, "epsilon", checks.interval, 0.0, closed_low=True)
        checks.validate(self, "delta", checks.interval, 0.0, 1.0, closed_low=True)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Statements of the author that a reader needs before signing off; None means not stated.

    Attributes:
        responsible: the person who is responsible for these statements.
        dataset: name and version of the private data set.
        records: its number of records, or `private` if the number must stay secret.
        unit: the unit of privacy, as one entry of the data set: `one record`, `one patient`.
        records_per_person: the largest number of records that belong to one person, >= 1. The
            certificate then states epsilon for a group of this size.
        max_grad_norm: the clipping norm, > 0.
        normalizer: the divisor of the sum of clipped gradients, and whether it depends on the
            number of records.
        pretraining: models from which training started, and their training data.
        preprocessing: steps that read the private data before training, such as scaling.
        earlier_spending: earlier releases from the same records; an empty sequence means none.

    Example:
        >>> Declaration(dataset="Digits 1.0", records=1797).not_stated[:2]
        ('responsible', 'records_per_person')
    """

    responsible: DeclaredText | None = None
    dataset: DeclaredText | None = None
    records: Annotated[int, Keywords(minimum=1)] | Literal["private"] | None = None
    unit: DeclaredText = "one record"
    records_per_person: Annotated[int, Keywords(minimum=1, maximum=_MAX_PER_PERSON)] | None = None
    max_grad_norm: Positive | None = None
    normalizer: DeclaredText | None = None
    pretraining: DeclaredText | None = None
    preprocessing: DeclaredText | None = None
    earlier_spending: Annotated[Sequence[Spending], Keywords(maxItems=_MAX_SPENDINGS)] | None = None

    def __post_init__(self) -> None:
        texts = "responsible", "dataset", "unit", "normalizer", "pretraining", "preprocessing"
        for name in texts:
            if name == "unit" or getattr(self, name) is not None:
                checks.validate(self, name, _text)
        if isinstance(self.records, str):
            if self.records != PRIVATE:
                raise InvalidInput(
                    f"records must be a whole number or {PRIVATE!r}, got "
                    f"{checks.one_line(self.records)}"
                )
        elif self.records is not None:
            checks.validate(self, "records", checks.integer, 1, 2**53)
        if self.records_per_person is not None:
            checks.validate(self, "records_per_person", checks.integer, 1, _MAX_PER_PERSON)
        if self.max_grad_norm is not None:
            checks.validate(self, "max_grad_norm", checks.interval, 0.0)
        if self.earlier_spending is not None:
            checks.store_validated(self, earlier_spending=_spendings(self.earlier_spending))

    @property
    def not_stated(self) -> tuple[str, ...]:
        """Names of the statements that the author has not made."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is None)

    def total(self, epsilon: float, delta: float) -> tuple[float, float] | None:
        """(epsilon, delta) of all stated releases and this one, by basic composition, rounded up.

        None if earlier spending is not stated.
        """
        if self.earlier_spending is None:
            return None
        return (
            _sum([epsilon, *(spending.epsilon for spending in self.earlier_spending)]),
            min(_sum([delta, *(spending.delta for spending in self.earlier_spending)]), 1.0),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Reads the values that `dataclasses.asdict` returned.

        Raises:
            InvalidInput: a statement is unknown or has the wrong type.
        """
        if not isinstance(values, Mapping):
            raise InvalidInput(f"declaration must be a mapping, got {checks.one_line(values)}")
        field_names = {field.name for field in fields(cls)}
        statements = {
            checks.one_of("statement", name, field_names): statement
            for name, statement in values.items()
        }
        earlier = statements.get("earlier_spending")
        if earlier is not None:
            rows = checks.items("earlier_spending", earlier, "releases")
            statements["earlier_spending"] = [
                read_typed(Spending, row, "earlier_spending") for row in rows
            ]
        return cls(**statements)

    def in_words(self) -> tuple[tuple[str, str], ...]:
        """Titles and texts of all statements; quotes mark the author's own words."""

        def own(text: str | None) -> str:
            return NOT_STATED if text is None else checks.quoted(text)

        def number(value: float | str | None) -> str:
            if value is None:
                return NOT_STATED
            return format_exact(value) if isinstance(value, float) else str(value)

        # One row each, with the numbers first: text written from right to left would move them.
        title = "Earlier spending on the same records"
        earlier = [(title, NOT_STATED if self.earlier_spending is None else "none")]
        if self.earlier_spending:
            spent = [
                f"({format_exact(spending.epsilon)}, {format_exact(spending.delta)})-DP: "
                f"{own(spending.release)}"
                for spending in self.earlier_spending
            ]
            earlier = [(title, words) for words in spent]
        return (
            ("Responsible person", own(self.responsible)),
            ("Data set", own(self.dataset)),
            ("Number of records", number(self.records)),
            ("Unit of privacy", own(self.unit)),
            ("Records per person, at most", number(self.records_per_person)),
            (CLIPPING_NORM, number(self.max_grad_norm)),
            ("Divisor of the noisy sum", own(self.normalizer)),
            ("Pre-training", own(self.pretraining)),
            ("Preprocessing that read private data", own(self.preprocessing)),
            *earlier,
        )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_TEXT:
        raise InvalidInput(
            f"{name} must be a text of 1 to {_MAX_TEXT} characters, got {checks.one_line(value)}"
        )
    return value


def _sum(values: Sequence[float]) -> float:
    """Sum of the decimal representations, rounded up: 1e-5 and 1e-6 give 1.1e-5."""
    up = decimal.Context(prec=50, rounding=decimal.ROUND_CEILING)
    total = decimal.Decimal(0)
    for value in values:
        total = up.add(total, decimal.Decimal(repr(float(value))))
    rounded = float(total)
    return rounded if decimal.Decimal(repr(rounded)) >= total else math.nextafter(rounded, math.inf)


def _spendings(values: Any) -> tuple[Spending, ...]:
    try:
        spendings = tuple(values)
    except TypeError:
        spendings = (None,)
    if len(spendings) > _MAX_SPENDINGS or not all(
        isinstance(spending, Spending) for spending in spendings
    ):
        raise InvalidInput(
            f"earlier_spending must be a sequence of at most {_MAX_SPENDINGS} Spending(release, "
            f"epsilon, delta), got {checks.one_line(values)}"
        )
    return spendings

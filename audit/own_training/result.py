"""What an audit of a training function comes to: in words, as an exit code, as an exception."""

from collections.abc import Mapping
from dataclasses import dataclass

from audit.lower_bounds import LowerBound
from audit.numerics import format_exact, format_rounded


class PrivacyLeak(AssertionError):
    """An attack shows more than is claimed.

    Example:
        >>> issubclass(PrivacyLeak, AssertionError)  # so a test that meets one fails
        True
    """


@dataclass(frozen=True)
class CheckResult:
    """The outcome of an audit.

    Attributes:
        claim: the epsilon that the training function claims, the largest of all runs; None where
            it claims nothing.
        delta: of the claim and of the bounds.
        confidence: chance, before the games, that `epsilon` does not exceed the truth.
        epsilon: what the attack shows at least, the largest of the bounds.
        shown_by: the statistic that shows it.
        bounds: for every statistic its bounds; their errors add up to 1 - confidence.
        ceiling: the largest epsilon that so many games could have shown.
        needed: so many games could refute the claim; None where it is not known.
        games: how many were played, or how many canaries were in one.
        unit: what `games` counts.

    Example:
        >>> import numpy as np
        >>> from audit import check
        >>> def fair(records, candidate, seed, watch):
        ...     watch.claim(5.0)
        ...     return records.features.sum() + np.random.default_rng(seed).normal()
        >>> result: CheckResult = check(fair, ([[0.0]], [0]), ([1.0], 0), games=100)
        >>> result.leaks, result.exit_code, result.games
        (False, 0, 100)
    """

    claim: float | None
    delta: float
    confidence: float
    epsilon: float
    shown_by: str
    bounds: Mapping[str, LowerBound]
    ceiling: float
    games: int
    unit: str = "games"
    needed: int | None = None

    @property
    def leaks(self) -> bool:
        """Whether the attack shows more than is claimed."""
        return self.claim is not None and self.epsilon > self.claim

    @property
    def words(self) -> str:
        """The verdict in a line."""
        claims = "claims nothing"
        if self.claim is not None:
            claims = f"claims ({format_exact(self.claim)}, {format_exact(self.delta)})"
        confidence = f"with {100 * self.confidence:g} % confidence"
        least = format_rounded(self.epsilon, up=False, digits=4)
        found = f"an attack shows at least {least} {confidence} (by {self.shown_by})"
        if self.leaks or self.claim is None:
            return f"{claims}; {found}"
        most = format_rounded(self.ceiling, up=True, digits=4)
        ceiling = f"so many {self.unit} ({self.games}) could have shown at most {most}"
        if self.ceiling <= self.claim:
            ceiling += ", so no leak could have been found: play more"
            if self.needed is not None:
                ceiling += f", {self.needed:,} {self.unit} could show one"
        if self.epsilon == 0.0:
            return f"{claims}; nothing found; {ceiling}"
        return f"{claims}; no leak found; {found}; {ceiling}"

    @property
    def exit_code(self) -> int:
        """1 where the attack shows more than is claimed, else 0."""
        return int(self.leaks)

    def __bool__(self) -> bool:
        """Whether no leak was found, for `assert audit.check(...)`."""
        return not self.leaks

    def __str__(self) -> str:
        return self.words

    def raise_if_leaking(self) -> "CheckResult":
        """Returns itself, or raises.

        Raises:
            PrivacyLeak: an attack shows more than is claimed.
            ValueError: nothing is claimed.
        """
        if self.claim is None:
            raise ValueError("claim must be given where train has no accountant, got none")
        if self.leaks:
            raise PrivacyLeak(self.words)
        return self

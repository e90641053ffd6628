"""Result of an audit of a training function, as text, exit code or exception."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from audit.errors import InvalidInput, PrivacyLeak
from audit.loop.findings import PremiseReport
from audit.lower_bounds import LowerBound
from audit.numerics import format_exact, format_rounded

ATTACK_ERROR = 9e-5
"""Probability that the attack accuses a function whose claim is exact. With the error of the
premises, `FAMILY_ERROR`, a check accuses a correct function with probability at most 1e-4."""

_NOTHING_TO_COMPARE = (
    "nothing to compare with: the function neither calls watch with its optimizer and accountant "
    "nor claims an epsilon (claim=3.0, or watch.claim(3.0))"
)
# A separation below this share of the one that the claim allows says little about the noise.
_HIDDEN = 0.5
_PROOF = "99.99 % confidence"  # 1 - ATTACK_ERROR, rounded down


@dataclass(frozen=True)
class CheckResult:
    """The outcome of an audit.

    Attributes:
        claim: the epsilon that the training function claims, the largest of all runs; None if it
            claims nothing.
        delta: delta of the claim and of the bounds.
        confidence: lower bound on the probability that `epsilon` is at most the exact cost.
        epsilon: the largest of the lower bounds; of the first 1,000 trials if more were played.
        proven: the largest lower bound that fails with probability at most `ATTACK_ERROR`, over all
            bounds and all numbers of trials; a leak is proven if it exceeds the claim.
        shown_by: the statistic that shows it.
        bounds: for every statistic its bounds; their errors add up to 1 - confidence.
        ceiling: the largest epsilon that this many trials could have proven.
        trials: number of trials played, or of canaries in one run.
        unit: unit of `trials`: "trials" or "canaries".
        planned: number of trials that would have been played if runs had few steps.
        needed: number of trials that could refute the claim, if these cannot; None if unknown.
        premises: the differential test; None if it was not made.
        detectable: the largest noise, as a share of the claimed one, that this many trials detect
            with 80 % probability; None if unknown, or if the attack shows more than is claimed.
        detectable_chance: the smallest probability of an output that occurs only with the record,
            which this many trials detect with 80 % probability; None as for `detectable`.
        unread: the reason why the score, lambda_a and lambda_c are missing; empty if none is.
        attack_skipped: the reason why no trial was played; empty if trials were.
        unfinished: the reason why the check has no verdict; empty if it has one.
        separation: how far the record moves the outputs of a black box, in standard deviations.
        separation_of_claim: how far a Gaussian mechanism with the claimed epsilon lets it.

    Example:
        >>> import numpy as np
        >>> from audit import check
        >>> def fair(records, candidate, seed, watch):
        ...     watch.claim(5.0)
        ...     return records.features.sum() + np.random.default_rng(seed).normal()
        >>> result: CheckResult = check(fair, ([[0.0]], [0]), ([1.0], 0), trials=100)
        >>> result.leaks, result.exit_code, result.trials
        (False, 0, 100)
    """

    claim: float | None
    delta: float
    confidence: float
    epsilon: float = 0.0
    proven: float = 0.0
    shown_by: str = ""
    bounds: Mapping[str, LowerBound] = field(default_factory=dict)
    ceiling: float = 0.0
    trials: int = 0
    unit: str = "trials"
    planned: int = 0
    needed: int | None = None
    premises: PremiseReport | None = None
    detectable: float | None = None
    detectable_chance: float | None = None
    unread: str = ""
    attack_skipped: str = ""
    unfinished: str = ""
    separation: float | None = None
    separation_of_claim: float | None = None

    @property
    def leaks(self) -> bool:
        """Whether the attack proves more than is claimed."""
        return self.claim is not None and self.proven > self.claim

    @property
    def exceeds(self) -> bool:
        """Whether the reported bound exceeds the claim without a proof, perhaps by chance."""
        return self.claim is not None and self.epsilon > self.claim and not self.leaks

    @property
    def broken(self) -> bool:
        """Whether a premise is broken or the attack proves more than is claimed."""
        return self.leaks or (self.premises is not None and self.premises.broken)

    @property
    def has_claim(self) -> bool:
        """Whether there is an epsilon to compare with: a claim, or an accountant's."""
        if self.claim is not None:
            return True
        return self.premises is not None and "accountant" in self.premises.tested

    @property
    def hidden(self) -> bool:
        """Whether a black box shows the record far less than its claim allows.

        The noise may be as claimed or larger. Or other random numbers, such as initial weights,
        hide the record, and the attack proves nothing.
        """
        if self.separation is None or self.separation_of_claim is None:
            return False
        return self.separation < _HIDDEN * self.separation_of_claim

    @property
    def weakness(self) -> str:
        """The reason why an attack on a black box can prove nothing; empty if it can."""
        if self.premises is not None and self.premises.watched:
            return ""
        settled = self.leaks or self.exceeds
        if self.attack_skipped or settled or self.claim is None or self.unit == "canaries":
            return ""
        if self.hidden:
            return (
                "this attack proves nothing about the noise of a black box: the record moves its "
                f"outputs by {self.separation:.2g} standard deviations, where the claim allows "
                f"{self.separation_of_claim:.2g}, so that initial weights or other random numbers "
                "may hide it: call watch(optimizer, model, accountant), or fix the initial weights"
            )
        if self.ceiling <= self.claim:
            return f"this attack can prove nothing: {self.trials} trials are too few for the claim"
        return ""

    @property
    def words(self) -> str:
        """The verdict in a line."""
        if self.unfinished:
            return self.unfinished
        clauses = [self.weakness] if self.weakness else []
        if not self.has_claim and not self.broken:
            clauses.append(_NOTHING_TO_COMPARE)
        if self.premises is not None and (self.premises.broken or self.premises.inconclusive):
            clauses.append(self.premises.summary)
        elif self.premises is not None and self.premises.watched:
            power = f" ({self.premises.power})" if self.premises.power else ""
            clauses.append(f"no broken premise found{power}")
        clauses.append(self._attack_words)
        return "; ".join(clauses)

    @property
    def _attack_words(self) -> str:
        if self.attack_skipped or not self.unread:
            return self.attack_skipped or self._bounds_words
        return f"{self._bounds_words}; some statistics were not computed: {self.unread}"

    @property
    def _bounds_words(self) -> str:
        claims, shown_epsilon, proven = self._rounded
        confidence = f"with {100 * self.confidence:g} % confidence"
        shown = f"an attack shows at least {shown_epsilon} {confidence} (by {self.shown_by})"
        if self.leaks:
            trials = f"{self.trials} {self.unit}"
            return f"{claims}; leak proven: {shown}, and {proven} with {_PROOF} ({trials})"
        if self.claim is None:
            return f"{claims}; {shown}"
        if self.exceeds:
            errors = f"{100 * (1 - self.confidence):.3g} % of the checks of correct functions"
            more = f"play more trials (e.g. {4 * self.trials})"
            if self.unit == "canaries":
                more = (
                    f"choose a smaller delta (e.g. {self.delta / 1e4:g}), or play trials (`check`)"
                )
            return (
                f"{claims}; no leak proven; {shown}, which exceeds the claim, as in up to "
                f"{errors}; a leak is proven if the bound exceeds the claim with {_PROOF}, and "
                f"{self.trials} {self.unit} show {proven}: {more}"
            )
        largest_provable = format_rounded(self.ceiling, up=True, digits=4)
        ceiling = f"{self.trials} {self.unit} can prove at most {largest_provable}"
        if self.trials < self.planned:
            ceiling = f"{ceiling} (not {self.planned}, because each of them has many steps)"
        detectable = []
        if self.detectable is not None:
            share = math.floor(100 * self.detectable) / 100
            hidden = "lambda_a" in self.bounds and "residual" not in self.bounds
            condition = " (if other records do not hide the canary)" if hidden else ""
            detectable.append(f"noise of at most {share:g} times the claimed scale{condition}")
        if self.detectable_chance is not None:
            chance = math.ceil(1000 * self.detectable_chance) / 10
            detectable.append(
                f"an output that clearly reveals the record in at least {chance:g} % of the runs"
            )
        if detectable:
            ceiling += f" and, with 80 % probability, find {' or '.join(detectable)}"
        if self.ceiling <= self.claim:
            ceiling += ", so no leak could have been proven"
            if self.needed is not None:
                ceiling += f": {self.needed:,} {self.unit} could prove one"
        if self.epsilon == 0.0:
            return f"{claims}; nothing found; {ceiling}"
        return f"{claims}; no leak found; {shown}; {ceiling}"

    @property
    def _rounded(self) -> tuple[str, str, str]:
        """The claim in words, the lower bound and the proven one, with digits that show a leak."""
        claims = "claims nothing"
        for digits in range(4, 18):
            shown_epsilon, proven = (
                format_rounded(value, up=False, digits=digits)
                for value in (self.epsilon, self.proven)
            )
            if self.claim is None:
                break
            # A claim is rounded up, which may only make it larger than it is.
            claim = format_rounded(self.claim, up=True, digits=digits)
            claims = f"claims ({claim}, {format_exact(self.delta)})"
            above = proven if self.leaks else shown_epsilon
            if not (self.leaks or self.exceeds) or float(claim) < float(above):
                break
        return claims, shown_epsilon, proven

    @property
    def _short_attack_words(self) -> str:
        """The outcome of the attack; one line where a broken premise is the answer."""
        broken = self.premises is not None and self.premises.broken
        if not broken or self.attack_skipped or self.claim is None or self.unread:
            return self._attack_words
        claims, _, proven = self._rounded
        if self.leaks:
            return f"{claims}; an attack proves {proven} with {_PROOF}"
        return f"{claims}; no leak proven by an attack ({self.trials} {self.unit})"

    @property
    def exit_code(self) -> int:
        """1 for a broken premise or a proven leak, 2 if something was not testable, else 0.

        Not testable are an essential premise, a function without any epsilon to compare with, and
        a check that could not finish.
        """
        if self.unfinished:
            return 2
        if self.broken:
            return 1
        if not self.has_claim:
            return 2
        if self.premises is None or not self.premises.watched:
            # Without an attack, only exact constants were looked for.
            return 2 if self.attack_skipped else 0
        return 2 if self.premises.inconclusive else 0

    def __bool__(self) -> bool:
        """Whether the test was conclusive and found nothing, for `assert audit.check(...)`."""
        return self.exit_code == 0

    @property
    def short(self) -> str:
        """The verdict about premises and attack, and then the cause and fix of one finding."""
        if self.premises is None or self.unfinished:
            return self.words
        premises = self.premises
        lines = [*self._opening, *premises.short_verdict, self._short_attack_words]
        return "\n".join([*lines, *premises.short_findings, *premises.remarks])

    def __str__(self) -> str:
        if self.premises is None or self.unfinished:
            return self.words
        return "\n".join([*self._opening, str(self.premises), self._attack_words])

    @property
    def _opening(self) -> list[str]:
        """The reasons why the verdict says little."""
        opening = [self.weakness] if self.weakness else []
        if not self.has_claim and not self.broken:
            opening.append(_NOTHING_TO_COMPARE)
        return opening

    def to_dict(self) -> dict[str, Any]:
        """The result as plain Python objects."""
        return {
            "exit_code": self.exit_code,
            "verdict": self.words,
            "premises": None if self.premises is None else self.premises.to_dict(),
            "claim": self.claim,
            "delta": self.delta,
            "epsilon": self.epsilon,
            "proven_epsilon": self.proven,
            "confidence": self.confidence,
            "shown_by": self.shown_by,
            "bounds": {name: bound.epsilon for name, bound in self.bounds.items()},
            "max_detectable_epsilon": self.ceiling,
            "detectable_noise_scale": self.detectable,
            "detectable_chance": self.detectable_chance,
            self.unit: self.trials,
        }

    def to_json(self) -> str:
        """The result as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def raise_if_broken(self) -> "CheckResult":
        """Returns itself, or raises.

        Raises:
            PrivacyLeak: a premise is broken, or an attack proves more than is claimed.
            InvalidInput: something could not be tested, there is no epsilon to compare with, or
                the check could not finish.
        """
        if self.broken and not self.unfinished:
            raise PrivacyLeak(self.words)
        if self.exit_code:
            raise InvalidInput(self.words)
        return self

    def raise_if_leaking(self) -> "CheckResult":
        """Returns itself, or raises as `raise_if_broken` does, and also if nothing is claimed.

        Raises:
            PrivacyLeak: a premise is broken, or an attack proves more than is claimed.
            InvalidInput: nothing is claimed, or nothing could be tested.
        """
        if self.claim is None and not self.broken:
            raise InvalidInput("claim must be given where train has no accountant, got none")
        return self.raise_if_broken()

"""Report on a single run of the base mechanism, shown next to the bounds on the tuning."""

import math
from dataclasses import dataclass

import numpy as np

from audit import checks
from audit.accounting import ACCOUNTINGS, DeltaUnreachable, DpSgd, Mechanism, parse_mechanism
from audit.claims import Claim, Kind
from audit.upper_bounds.registry import UpperBound


@dataclass(frozen=True)
class BaseReport:
    """Privacy of a single run of the base mechanism.

    Attributes:
        mu: distance of the two output distributions in standard deviations; None if the base is not
            Gaussian.
        noise_multiplier: sigma; None if the base is not DP-SGD.
        steps: number of iterations; None if the base is not DP-SGD.
        epsilon_rdp: epsilon of one run by Renyi divergences, as in the papers; None if infinite.
        epsilon_exact: epsilon of one run by its privacy profile; None if no epsilon reaches delta.
        accounting: `rdp` or `exact`: the one that is called epsilon_B.
        description: the mechanism and its neighbouring relation in words.
        reason: the reason why there is no exact epsilon; empty if there is one.

    Example:
        >>> from audit.accounting import DpSgd
        >>> from audit.upper_bounds import report_mechanism
        >>> report = report_mechanism(DpSgd(70.0, 300), 1e-5, "rdp")
        >>> round(report.epsilon_exact, 3), round(report.epsilon_rdp, 3)
        (0.916, 1.001)
    """

    mu: float | None
    noise_multiplier: float | None
    steps: int | None
    epsilon_rdp: float | None
    epsilon_exact: float | None
    accounting: str
    description: str = ""
    reason: str = ""

    @property
    def bounds(self) -> tuple[UpperBound, UpperBound]:
        """The rows of a single run, by its privacy profile and by Renyi divergences."""
        profile = "hockey-stick divergence of the dominating pair"
        if self.mu is not None:
            profile = "Balle & Wang 2018, theorem 8"
        return (
            _row("base", self.epsilon_exact, "the exact privacy profile", profile, self.reason),
            _row(
                "base-renyi",
                self.epsilon_rdp,
                "Renyi divergences, the eps_B of the papers",
                "Xiang, Wang & Wang 2024, theorem 6",
            ),
        )


def _row(name: str, epsilon: float | None, how: str, source: str, reason: str = "") -> UpperBound:
    claim = Claim(Kind.ONE_RUN, source, about=(f"a single run, not the tuning; by {how}",))
    if epsilon is None:
        return UpperBound(name, math.inf, claim, reason=reason or f"infinite by {how}")
    return UpperBound(name, epsilon, claim)


def report_mechanism(base: Mechanism, delta: float, method: str) -> BaseReport:
    """The report on one run of any base.

    Args:
        base: the base mechanism.
        delta: in (0, 1).
        method: `rdp` or `exact`: the one that is called epsilon_B.

    Example:
        >>> from audit.accounting import DpSgd
        >>> report_mechanism(DpSgd(70.0, 300), 1e-5, "rdp").description
        'DP-SGD, noise multiplier 70, 300 steps, full batch, add-remove neighbours'
    """
    base = parse_mechanism(base)
    by_renyi = base.renyi_epsilon(delta)
    exact, reason = None, ""
    try:
        exact = base.epsilon(delta)
    except DeltaUnreachable as error:
        reason = str(error)
    return BaseReport(
        mu=base.gaussian_mu,
        noise_multiplier=base.noise_multiplier if isinstance(base, DpSgd) else None,
        steps=base.steps if isinstance(base, DpSgd) else None,
        epsilon_rdp=by_renyi if np.isfinite(by_renyi) else None,
        epsilon_exact=exact,
        accounting=checks.one_of("accounting", method, ACCOUNTINGS),
        description=base.description,
        reason=reason,
    )

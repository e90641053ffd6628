"""Privacy of one run of the base mechanism: Renyi, exact profile, trade-off; and calibration."""

from audit.accounting.calibration import (
    ACCOUNTINGS,
    calibrate_mu,
    gdp_limit_mu,
    mean_inclusion_mu,
    noise_multiplier_for,
)
from audit.accounting.conversion import best_order, renyi_to_epsilon, solve_epsilon
from audit.accounting.mechanisms import (
    DiscreteMechanism,
    DominatingPair,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    PureDp,
)

__all__ = [
    "ACCOUNTINGS",
    "DiscreteMechanism",
    "DominatingPair",
    "DpSgd",
    "GaussianMechanism",
    "Mechanism",
    "PureDp",
    "best_order",
    "calibrate_mu",
    "gdp_limit_mu",
    "mean_inclusion_mu",
    "noise_multiplier_for",
    "renyi_to_epsilon",
    "solve_epsilon",
]

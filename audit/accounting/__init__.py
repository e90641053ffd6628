"""Privacy of one run of the base mechanism: Renyi, exact profile, trade-off; and calibration."""

from audit.accounting.calibration import (
    ACCOUNTINGS,
    calibrate_mu,
    calibrate_noise_multiplier,
    gdp_limit_mu,
    mean_inclusion_mu,
    noise_multiplier_for,
)
from audit.accounting.composition import compose
from audit.accounting.conversion import (
    Unreachable,
    best_order,
    reach,
    renyi_to_epsilon,
    solve_epsilon,
)
from audit.accounting.dpsgd import Composition, DpSgd
from audit.accounting.mechanisms import (
    NEIGHBOURS,
    AnyOf,
    ApproximateDp,
    DiscreteMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PrivacyProfile,
    PureDp,
    RandomisedResponse,
    RenyiCurve,
    ZeroConcentratedDp,
    parse,
    read_curve,
)
from audit.accounting.opacus import from_opacus, tuning_epsilon
from audit.accounting.pairs import DominatingPair, LossPair

__all__ = [
    "ACCOUNTINGS",
    "NEIGHBOURS",
    "AnyOf",
    "ApproximateDp",
    "Composition",
    "DiscreteMechanism",
    "DominatingPair",
    "DpSgd",
    "GaussianMechanism",
    "LaplaceMechanism",
    "LossPair",
    "Mechanism",
    "PrivacyProfile",
    "PureDp",
    "RandomisedResponse",
    "RenyiCurve",
    "Unreachable",
    "ZeroConcentratedDp",
    "best_order",
    "calibrate_mu",
    "calibrate_noise_multiplier",
    "compose",
    "from_opacus",
    "gdp_limit_mu",
    "mean_inclusion_mu",
    "noise_multiplier_for",
    "parse",
    "reach",
    "read_curve",
    "renyi_to_epsilon",
    "solve_epsilon",
    "tuning_epsilon",
]

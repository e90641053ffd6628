"""Privacy accounting of a single run: mechanisms, their costs, and calibration of the noise."""

from audit.accounting.calibration import (
    ACCOUNTINGS,
    calibrate_mu,
    calibrate_noise_multiplier,
    full_batch_noise_multiplier,
    gdp_limit_mu,
    mean_inclusion_mu,
)
from audit.accounting.combinations import (
    Candidates,
    Composition,
    Mixture,
    WorstOf,
    directions,
    group_size,
    relations,
    scale_noise,
)
from audit.accounting.composition import compose
from audit.accounting.conversion import (
    Unresolved,
    largest_epsilon,
    reach,
    renyi_to_epsilon,
    solve_epsilon,
)
from audit.accounting.curves import LossDistribution, PrivacyProfile, RenyiCurve, ZeroConcentratedDp
from audit.accounting.dpsgd import NEIGHBOURS, DpSgd, RandomAllocation
from audit.accounting.formats import (
    from_event,
    from_opacus,
    mechanism_from_dict,
    mechanism_to_dict,
    parse_mechanism,
    read_curve,
)
from audit.accounting.mechanism import (
    ApproximateDp,
    DiscreteMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PureDp,
    RandomisedResponse,
)
from audit.accounting.normaliser import normaliser_delta, normaliser_epsilon
from audit.accounting.pairs import DominatingPair, LossPair
from audit.errors import DeltaUnreachable
from audit.numerics import best_alpha

__all__ = [
    "ACCOUNTINGS",
    "NEIGHBOURS",
    "ApproximateDp",
    "Candidates",
    "Composition",
    "DeltaUnreachable",
    "DiscreteMechanism",
    "DominatingPair",
    "DpSgd",
    "GaussianMechanism",
    "LaplaceMechanism",
    "LossDistribution",
    "LossPair",
    "Mechanism",
    "Mixture",
    "PrivacyProfile",
    "PureDp",
    "RandomAllocation",
    "RandomisedResponse",
    "RenyiCurve",
    "Unresolved",
    "WorstOf",
    "ZeroConcentratedDp",
    "best_alpha",
    "calibrate_mu",
    "calibrate_noise_multiplier",
    "compose",
    "directions",
    "from_event",
    "from_opacus",
    "full_batch_noise_multiplier",
    "gdp_limit_mu",
    "group_size",
    "largest_epsilon",
    "mean_inclusion_mu",
    "mechanism_from_dict",
    "mechanism_to_dict",
    "normaliser_delta",
    "normaliser_epsilon",
    "parse_mechanism",
    "reach",
    "read_curve",
    "relations",
    "renyi_to_epsilon",
    "scale_noise",
    "solve_epsilon",
]

"""The theorems of the papers.

Functions are named after their theorem in the paper, or after what they bound. Registered bounds
are functions of (base, protocol, delta), like the bounds of `audit.upper_bounds`.
"""

from audit.upper_bounds.published.extensions import (
    corollary_6_2,
    hypo,
    hypo_curve,
    hypo_theorem_2,
    koskela_kulkarni,
    noisy_max,
    profile,
    project_density,
    propose_test_release,
    subset_divergences,
)
from audit.upper_bounds.published.papernot_steinke import (
    approximate,
    approximate_to_delta,
    conditional_curve,
    corollary_4,
    corollary_4_curve,
    corollary_21,
    lemma_7,
    lemma_7_curve,
    lemma_22,
    lemma_22_curve,
    liu_talwar,
    proposition_15,
    renyi,
    renyi_curve,
)
from audit.upper_bounds.reduced import (
    ReducedGameRenyi,
    reduced_gdp_limit,
    reduced_mean_inclusion,
    reduced_renyi,
)

__all__ = [
    "ReducedGameRenyi",
    "approximate",
    "approximate_to_delta",
    "conditional_curve",
    "corollary_4",
    "corollary_4_curve",
    "corollary_6_2",
    "corollary_21",
    "hypo",
    "hypo_curve",
    "hypo_theorem_2",
    "koskela_kulkarni",
    "lemma_7",
    "lemma_7_curve",
    "lemma_22",
    "lemma_22_curve",
    "liu_talwar",
    "noisy_max",
    "profile",
    "project_density",
    "propose_test_release",
    "proposition_15",
    "reduced_gdp_limit",
    "reduced_mean_inclusion",
    "reduced_renyi",
    "renyi",
    "renyi_curve",
    "subset_divergences",
]

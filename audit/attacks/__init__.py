"""Attacks on tuning protocols: scores, accepted sets and samplers that leak most, or nearly so.

Each attack states the epsilon that it attains, which shows how far a bound can be from the exact
cost. Audits use `attack_order` and `attack_tails` for the score `worst-order`.
"""

from audit.attacks.adaptive import AdaptiveAttack, LabelAttack, adaptive_attack, label_attack
from audit.attacks.orders import (
    AcceptedTails,
    SubsetAttack,
    TunedOrder,
    attack_order,
    attack_tails,
    subset_attack,
    worst_case_order,
    worst_case_split_order,
)

__all__ = [
    "AcceptedTails",
    "AdaptiveAttack",
    "LabelAttack",
    "SubsetAttack",
    "TunedOrder",
    "adaptive_attack",
    "attack_order",
    "attack_tails",
    "label_attack",
    "subset_attack",
    "worst_case_order",
    "worst_case_split_order",
]

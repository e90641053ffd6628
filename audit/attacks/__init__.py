"""Attacks that attain the upper bounds: the scores, accepted sets and samplers that leak most.

Each attack gives the epsilon that it attains, so it shows how far a bound is from the exact cost.
The audits in `audit.game` play these attacks.
"""

from audit.attacks.adaptive import AdaptiveAttack, adaptive_attack
from audit.attacks.orders import TunedOrder, attack_order, worst_case_order, worst_case_split_order
from audit.attacks.subset import SubsetAttack, subset_attack
from audit.attacks.tails import AcceptedTails, attack_tails

__all__ = [
    "AcceptedTails",
    "AdaptiveAttack",
    "SubsetAttack",
    "TunedOrder",
    "adaptive_attack",
    "attack_order",
    "attack_tails",
    "subset_attack",
    "worst_case_order",
    "worst_case_split_order",
]

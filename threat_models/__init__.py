"""Threat models: the knowledge and the choices of the adversary in an audit."""

from threat_models.base import (
    CANARIES,
    SCORES,
    THREATS,
    ThreatModel,
    build,
    check_names,
    etcv,
    ntcv,
    ntnv,
)
from threat_models.datasets import Records
from threat_models.scores import (
    CanaryLoss,
    FirstCoordinate,
    Observation,
    Score,
    TwoTails,
    UserScore,
    ValidationLoss,
    WorstOrder,
)

__all__ = [
    "CANARIES",
    "SCORES",
    "THREATS",
    "CanaryLoss",
    "FirstCoordinate",
    "Observation",
    "Records",
    "Score",
    "ThreatModel",
    "TwoTails",
    "UserScore",
    "ValidationLoss",
    "WorstOrder",
    "build",
    "check_names",
    "etcv",
    "ntcv",
    "ntnv",
]

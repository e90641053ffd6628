"""DP-SGD, the base mechanism, for many runs at once. Importing this does not import torch."""

from audit.dpsgd.base import Engine, RunBatch, RunOutcomes, SharingEngine
from audit.dpsgd.engines import ENGINES, choose_engine, make_engine
from audit.dpsgd.settings import MODELS, PRECISIONS, Candidate, DpSgdSettings, Precision

__all__ = [
    "ENGINES",
    "MODELS",
    "PRECISIONS",
    "Candidate",
    "DpSgdSettings",
    "Engine",
    "Precision",
    "RunBatch",
    "RunOutcomes",
    "SharingEngine",
    "choose_engine",
    "make_engine",
]

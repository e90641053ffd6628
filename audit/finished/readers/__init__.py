"""Readers of finished tunings: one module per format, each of which registers itself.

A module imports the library of its tracker only when it reads a source that needs it.
"""

from audit.finished.readers import (
    data_frames,
    hydra,
    json_lines,
    keras_tuner,
    mlflow,
    optuna,
    ray_tune,
    scikit_learn,
    tables,
    wandb,
)
from audit.finished.readers.registry import ReadOptions, formats, read, reader

__all__ = [
    "ReadOptions",
    "data_frames",
    "formats",
    "hydra",
    "json_lines",
    "keras_tuner",
    "mlflow",
    "optuna",
    "ray_tune",
    "read",
    "reader",
    "scikit_learn",
    "tables",
    "wandb",
]

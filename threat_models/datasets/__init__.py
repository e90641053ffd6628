"""FASHION, MNIST, CIFAR10, SVHN and DIGITS as arrays.

Files lie under a data root in torchvision's folder layout. Pixels are scaled to [0, 1] by a
constant, so that no statistic of the records enters the training unaccounted.
"""

from threat_models.datasets.catalogue import (
    CLASSES,
    FILES,
    FOREIGN,
    RECORD_SHAPES,
    RemoteFile,
    check_name,
)
from threat_models.datasets.files import require
from threat_models.datasets.loading import canary, foreign_canary, load
from threat_models.datasets.records import Records

__all__ = [
    "CLASSES",
    "FILES",
    "FOREIGN",
    "RECORD_SHAPES",
    "Records",
    "RemoteFile",
    "canary",
    "check_name",
    "foreign_canary",
    "load",
    "require",
]

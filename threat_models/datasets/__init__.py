"""FASHION, MNIST, CIFAR10, SVHN and DIGITS as arrays.

Files are in a data folder with torchvision's layout. Pixels are scaled to [0, 1] by a constant, so
that preprocessing does not depend on the records.
"""

from threat_models.datasets.catalogue import (
    CLASSES,
    FILES,
    FOREIGN,
    RECORD_SHAPES,
    RemoteFile,
    check_name,
    require,
)
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

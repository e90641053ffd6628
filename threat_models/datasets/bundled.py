"""Data that needs no files: scikit-learn's digits and one of its photographs."""

import numpy as np

from threat_models.datasets.catalogue import CLASSES
from threat_models.datasets.records import Bytes, Records


def digits(train: bool) -> tuple[Bytes, Bytes]:
    """scikit-learn's 1,797 digits of 8x8 pixels: the first 1,437 train, the last 360 validate."""
    from sklearn.datasets import load_digits

    content = load_digits()
    rows = slice(None, 1437) if train else slice(1437, None)
    return content.images[rows, None].astype(np.uint8), content.target[rows].astype(np.uint8)


def natural_patches() -> Records:
    """Grey 8x8 thumbnails of the 64x64 tiles of scikit-learn's photograph of a flower.

    Tiles have no classes; tile i gets the label i mod 10.
    """
    from sklearn.datasets import load_sample_image

    grey = load_sample_image("flower.jpg").mean(axis=2) / 255
    rows, columns = (side // 64 for side in grey.shape)
    pixels = grey[: rows * 64, : columns * 64].reshape(rows, 8, 8, columns, 8, 8)
    tiles = pixels.mean(axis=(2, 5)).transpose(0, 2, 1, 3).reshape(-1, 1, 8, 8)
    return Records(tiles.astype(np.float32), np.arange(len(tiles)) % CLASSES, CLASSES, "PATCHES")

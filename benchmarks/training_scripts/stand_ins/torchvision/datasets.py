"""Random images of ten classes in the shapes of MNIST and CIFAR10."""

from typing import Any

import numpy as np
import torch

SIZE = 300


class _Images(torch.utils.data.Dataset[Any]):
    shape: tuple[int, ...] = (28, 28)

    def __init__(
        self, root: Any, train: bool = True, download: bool = False, transform: Any = None
    ) -> None:
        random = np.random.default_rng(int(train))
        self.targets = torch.arange(SIZE) % 10
        images = random.integers(0, 90, (SIZE, *self.shape))
        for i, target in enumerate(self.targets.tolist()):
            images[i, 2 * target : 2 * target + 4] += 140
        self.data, self.transform = torch.from_numpy(images.astype(np.uint8)), transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.data[index].numpy()
        return image if self.transform is None else self.transform(image), int(self.targets[index])


class MNIST(_Images):
    """Grey images."""


class CIFAR10(_Images):
    """Coloured images."""

    shape = (32, 32, 3)

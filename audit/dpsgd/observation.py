"""The observation that scores receive from the batched engine: the final models of R runs."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.dpsgd.parameters import Parameters, to_numpy
from threat_models import Observation
from threat_models.scores import Features


@dataclass(frozen=True, eq=False)
class ModelObservation(Observation):
    """An observation with the final models, and their logits [R, m, classes] of records."""

    theta: Parameters
    logits: Callable[[Tensor], Tensor]
    records_at_once: int

    def parameters(self) -> NDArray[np.float64]:
        return to_numpy(torch.cat([p.flatten(1) for p in self.theta], dim=1))

    @torch.no_grad()
    def loss(self, features: Features, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        like = self.theta[0]
        total = torch.zeros(len(like), dtype=torch.float64, device=like.device)
        for start in range(0, len(labels), self.records_at_once):
            part = slice(start, start + self.records_at_once)
            x = torch.from_numpy(np.array(features[part])).to(like)
            y = torch.from_numpy(np.array(labels[part])).to(like.device)
            logits = self.logits(x).double()
            index = y.expand(logits.shape[:2])[..., None]
            total -= logits.log_softmax(-1).gather(-1, index).sum((1, 2))
        return to_numpy(total)

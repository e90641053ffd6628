"""The reference engine: Opacus, one run at a time."""

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional

from audit.dpsgd import noise, streams
from audit.dpsgd.base import RunBatch, RunOutcomes
from audit.dpsgd.devices import check_device
from audit.dpsgd.products import reproducible_products
from audit.dpsgd.settings import DpSgdSettings
from canaries import DiracCanary, InputCanary
from threat_models import Observation, ThreatModel
from threat_models.scores import Features


@dataclass(frozen=True, eq=False)
class TrainedModule(Observation):
    """An observation of one run that includes its module."""

    module: nn.Module

    def parameters(self) -> NDArray[np.float64]:
        trained = [p.detach().flatten() for p in self.module.parameters() if p.requires_grad]
        return torch.cat(trained).double().cpu().numpy()[None]

    @torch.no_grad()
    def loss(self, features: Features, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        like = next(self.module.parameters())
        x = torch.from_numpy(np.array(features)).to(like)
        y = torch.from_numpy(np.array(labels)).to(like.device)
        total = functional.cross_entropy(self.module(x).double(), y, reduction="sum")
        return np.array([float(total)])


class _Sums:
    """Sums over the steps of a run, from which the proxies follow.

    Attributes:
        total: of the products of the canary's gradient z with the released sum.
        log_ratio: of the log-likelihood ratios for sampled batches.
        known_log_ratio: of those for a known sum of the other records' contributions.
        first_noise: of the noise in the first coordinate.
    """

    def __init__(self, settings: DpSgdSettings, clip: float) -> None:
        self._settings, self._clip = settings, clip
        self.total = self.log_ratio = self.known_log_ratio = self.first_noise = 0.0

    def add(self, z: list[Tensor], released: list[Tensor], training: list[Tensor]) -> None:
        """Adds a step, given what it released and what the other records contribute to it."""
        variance = self._settings.noise_multiplier**2 * self._clip**2
        product = _inner(z, released)
        squared_norm = sum(float(g.square().sum()) for g in z)
        self.total += product
        unknown = [g - known for g, known in zip(released, training, strict=True)]
        self.known_log_ratio += (2 * _inner(z, unknown) - squared_norm) / (2 * variance)
        rate = self._settings.sampling_rate
        if rate < 1:
            gain = (2 * product - squared_norm) / (2 * variance)
            self.log_ratio += float(np.logaddexp(math.log1p(-rate), math.log(rate) + gain))

    def proxies(self) -> tuple[float, float, float]:
        """lambda_a, lambda_c and lambda_known."""
        s = self._settings
        per_step = s.noise_multiplier**2 / s.steps
        lambda_a = self.total / (s.steps * self._clip**2)
        if s.sampling_rate == 1:
            return lambda_a, lambda_a, 0.5 + per_step * self.known_log_ratio
        lambda_c = 0.5 + per_step * self.log_ratio
        return lambda_a, lambda_c, lambda_c


class OpacusEngine:
    """Trains with Opacus's GradSampleModule and DPOptimizer; see `Engine`.

    An input canary is the last record of the batch; the Dirac canary is added to the clipped sum.
    Outcomes have the same distribution as those of the batched engine, and are equal without noise,
    up to Opacus's clipping factor C / (norm + 1e-6). This engine checks the batched engine, with
    which it shares only the code that samples batches and seeds generators.
    """

    name = "opacus"

    def __init__(
        self, threat_model: ThreatModel, settings: DpSgdSettings, model: nn.Module, device: str
    ) -> None:
        self._device = check_device(device)
        self._threat_model = threat_model
        self._settings = settings
        self._template = model.to(self._device)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.parameters = sum(p.numel() for p in trained)
        self._dtype = trained[0].dtype
        empty: Features = np.empty((0, *threat_model.record_shape))
        features, labels = [self._tensor(empty)], [np.empty(0, np.int64)]
        if threat_model.training_set is not None:
            features.append(self._tensor(threat_model.training_set.features))
            labels.append(threat_model.training_set.labels)
        self._training_size = sum(map(len, labels))
        self._is_dirac = isinstance(threat_model.canary, DiracCanary)
        if isinstance(threat_model.canary, InputCanary):
            features.append(self._tensor(threat_model.canary.features[None]))
            labels.append(np.array([threat_model.canary.label]))
        self._x = torch.cat(features)
        self._y = torch.from_numpy(np.concatenate(labels)).to(self._device)

    def _tensor(self, features: Features) -> Tensor:
        return torch.from_numpy(np.array(features)).to(self._device, self._dtype)

    def run(self, batch: RunBatch) -> RunOutcomes:
        outcomes = RunOutcomes.empty(len(batch))
        with reproducible_products(), warnings.catch_warnings():
            # torch warns about Opacus's hooks because the input needs no gradient; harmless here.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            for run in range(len(batch)):
                rows = slice(run, run + 1)
                outcomes.put(rows, self._run(batch.at(rows)))
        return outcomes

    def _run(self, batch: RunBatch) -> RunOutcomes:
        s = self._settings
        rate, clip, momentum = s.candidates[int(batch.candidate[0])]
        model = GradSampleModule(copy.deepcopy(self._template), loss_reduction="sum")
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = DPOptimizer(
            torch.optim.SGD(parameters, lr=rate, momentum=momentum),
            noise_multiplier=s.noise_multiplier,
            max_grad_norm=clip,
            expected_batch_size=None,
            loss_reduction="sum",
            generator=streams.generators(batch.seeds, 0, str(self._device))[0],
        )
        start = [p.detach().clone() for p in parameters]
        first_z: list[Tensor] = []
        sums = _Sums(s, clip)
        for taken, canary_taken in self._sampled_records(batch):
            has_canary = bool(batch.included[0]) and canary_taken
            optimizer.zero_grad()
            z = self._backward(model, parameters, taken, has_canary, clip)
            first_z = first_z or z
            optimizer.clip_and_accumulate()
            in_sum = has_canary and not self._is_dirac
            training = [p.summed_grad - in_sum * g for p, g in zip(parameters, z, strict=True)]
            summed = parameters[0].summed_grad.view(-1)
            known = float(summed[0] - has_canary * z[0].view(-1)[0])
            if self._is_dirac:
                known = float(summed[0])
                summed[0] += has_canary * clip
            optimizer.add_noise()
            sums.first_noise += float(parameters[0].grad.view(-1)[0]) - known
            sums.add(z, [p.grad for p in parameters], training)
            optimizer.original_optimizer.step()
        moved = [before - p.detach() for before, p in zip(start, parameters, strict=True)]
        optimizer.zero_grad()
        everything = torch.ones(len(self._y), dtype=torch.bool, device=self._device)
        last_z = self._backward(model, parameters, everything, True, clip)
        observation = TrainedModule(
            first_displacement=np.array([float(moved[0].flatten()[0])]),
            standardised_sum=np.array(
                [sums.first_noise / (clip * s.noise_multiplier * math.sqrt(s.steps))]
            ),
            module=model,
        )
        weights = observation.parameters()
        unit = rate * s.steps * clip**2
        lambda_a, lambda_c, lambda_known = sums.proxies()
        return RunOutcomes.of_models(
            self._threat_model,
            observation,
            np.asarray(np.isfinite(weights).all(1)),
            lambda_a=np.array([lambda_a]),
            lambda_c=np.array([lambda_c]),
            lambda_known=np.array([lambda_known]),
            lambda_start=np.array([_inner(first_z, moved) / unit]),
            lambda_end=np.array([_inner(last_z, moved) / unit]),
        )

    def _sampled_records(self, batch: RunBatch) -> Iterator[tuple[Tensor, bool]]:
        """Yields, for every step, the records taken, [n] or [n + 1], and whether the canary is."""
        s = self._settings
        everything = torch.ones(len(self._y), dtype=torch.bool, device=self._device)
        size = self._training_size
        members = everything.clone()
        if batch.records is not None:
            members[:size] = torch.from_numpy(batch.records[0]).to(self._device)
        if s.sampling_rate == 1:
            for _ in range(s.steps):
                yield members, True
            return
        for drawn in noise.poisson_steps(
            batch.seeds, s.sampling_rate, s.steps, self._device, size + 1, steps_at_once=1
        ):
            # The proxies need the canary's gradient in every step.
            taken = torch.cat([drawn[0, :size], everything[size:]]) & members
            yield taken, bool(drawn[0, size])

    def _backward(
        self, model: nn.Module, parameters: list[Any], taken: Tensor, has_canary: bool, clip: float
    ) -> list[Tensor]:
        """Stores the batch's gradients in `grad_sample`; returns the canary's clipped gradient."""
        if not taken.any():
            for p in parameters:
                p.grad_sample = p.new_zeros(0, *p.shape)
        else:
            logits = model(self._x[taken])
            loss = functional.cross_entropy(logits, self._y[taken], reduction="sum")
            torch.autograd.backward(loss)
        if self._is_dirac:
            z = [torch.zeros_like(p) for p in parameters]
            z[0].detach().view(-1)[0] = clip
            return z
        of_canary = [p.grad_sample[-1] for p in parameters]
        norm = torch.stack([g.norm() for g in of_canary]).norm()
        factor = (clip / (norm + 1e-6)).clamp(max=1.0)
        if not has_canary:
            for p in parameters:
                p.grad_sample = p.grad_sample[:-1]
        return [g * factor for g in of_canary]


def _inner(a: list[Tensor], b: list[Tensor]) -> float:
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))

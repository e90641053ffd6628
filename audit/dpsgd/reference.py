"""The reference: one run at a time through Opacus."""

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional

from audit.dpsgd import streams
from audit.dpsgd.base import Lanes
from audit.dpsgd.batched import BatchedEngine, Proxies
from audit.dpsgd.layers import Parameters
from audit.dpsgd.settings import DpSgdSettings
from canaries import Canary, DiracCanary, InputCanary
from threat_models import ThreatModel


class OpacusEngine(BatchedEngine):
    """The same game through Opacus's own GradSampleModule and DPOptimizer; see `Engine`.

    An input canary is the last record of the batch, the Dirac canary is added to the clipped sum.
    It agrees with the batched engine in law, and pathwise where there is no noise, up to Opacus's
    clipping by C / (norm + 1e-6).
    """

    def __init__(
        self, threat_model: ThreatModel, settings: DpSgdSettings, model: nn.Module, device: str
    ) -> None:
        super().__init__(threat_model, settings, model, device, name="opacus")
        self._template = model.to(self._device)
        x = [torch.empty(0, *threat_model.record_shape).to(self._initial[0])]
        y = [torch.empty(0, dtype=torch.int64, device=self._device)]
        if threat_model.training_set is not None:
            records = threat_model.training_set
            x[0], y[0] = self._tensors(records.features, records.labels)
        self._is_dirac = isinstance(threat_model.canary, DiracCanary)
        if isinstance(threat_model.canary, InputCanary):
            canary = self._tensors(
                threat_model.canary.features[None], np.array([threat_model.canary.label])
            )
            x.append(canary[0])
            y.append(canary[1])
        self._x, self._y = torch.cat(x), torch.cat(y)

    def lanes_per_pack(self) -> int:
        """One run at a time."""
        return 1

    def _train(
        self, lanes: Lanes, canaries: Sequence[Canary]
    ) -> tuple[Parameters, list[Proxies], Tensor]:
        """See `BatchedEngine._train`; `lanes` holds one, and the canary is the engine's own."""
        assert list(canaries) == [self._threat_model.canary]
        s = self._settings
        rate, clip, momentum = s.candidates[int(lanes.candidate[0])]
        with warnings.catch_warnings():
            # Without a gradient by the input, torch warns of what Opacus's hooks see: harmless.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            model = GradSampleModule(copy.deepcopy(self._template), loss_reduction="sum")
            parameters = [p for p in model.parameters() if p.requires_grad]
            optimizer = DPOptimizer(
                torch.optim.SGD(parameters, lr=rate, momentum=momentum),
                noise_multiplier=s.noise_multiplier,
                max_grad_norm=clip,
                expected_batch_size=None,
                loss_reduction="sum",
                generator=streams.generators(lanes.seeds, 0, str(self._device))[0],
            )
            proxies = Proxies(s, lanes.candidate, self._device)
            residual = torch.zeros(1, dtype=torch.float64, device=self._device)
            for taken, canary_taken in self._batches(lanes):
                hit = bool(lanes.included[0]) and bool(canary_taken[0])
                optimizer.zero_grad()
                z = self._backward(model, parameters, taken, hit, clip)
                optimizer.clip_and_accumulate()
                first = parameters[0].summed_grad.view(-1)
                known = first[0] - hit * z[0].view(-1)[0]
                if self._is_dirac:
                    known = first[0].clone()
                    first[0] += hit * clip
                optimizer.add_noise()
                residual += parameters[0].grad.view(-1)[0] - known
                products = [(p.grad * g).sum() for p, g in zip(parameters, z, strict=True)]
                squares = [g.square().sum() for g in z]
                product, squared_norm = (torch.stack(s).double().sum() for s in (products, squares))
                proxies.add(product[None], squared_norm[None])
                optimizer.original_optimizer.step()
        return [p.detach()[None] for p in parameters], [proxies], residual

    def _backward(
        self,
        model: nn.Module,
        parameters: list[Any],
        taken: Tensor | None,
        hit: bool,
        clip: float,
    ) -> Parameters:
        """Leaves the batch's gradients in `grad_sample`, and returns the canary's, clipped."""
        keep = torch.ones(len(self._y), dtype=torch.bool, device=self._device)
        if taken is not None:
            keep[: self._training_size] = taken[0]
        if not keep.any():
            for p in parameters:
                p.grad_sample = p.new_zeros(0, *p.shape)
        else:
            with torch.enable_grad():
                logits = model(self._x[keep])
                loss = functional.cross_entropy(logits, self._y[keep], reduction="sum")
                torch.autograd.backward(loss)
        if self._is_dirac:
            z = [torch.zeros_like(p) for p in parameters]
            z[0].view(-1)[0] = clip
            return z
        own = [p.grad_sample[-1] for p in parameters]
        norm = torch.stack([g.norm() for g in own]).norm()
        factor = (clip / (norm + 1e-6)).clamp(max=1.0)
        z = [g * factor for g in own]
        if not hit:
            for p in parameters:
                p.grad_sample = p.grad_sample[:-1]
        return z

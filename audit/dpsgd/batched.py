"""The batched engine: trains many runs of DP-SGD at once."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from audit.dpsgd import noise
from audit.dpsgd.base import RunBatch, RunOutcomes
from audit.dpsgd.devices import check_device
from audit.dpsgd.gradients import BookkeepingModel, ClippedSums, clipped_sums, stacked
from audit.dpsgd.linear_steps import LinearSteps
from audit.dpsgd.memory import MemoryPolicy
from audit.dpsgd.parameters import Parameters, flat, shaped, to_numpy
from audit.dpsgd.precision import FLOAT32, Precision
from audit.dpsgd.products import reproducible_products
from audit.dpsgd.proxies import Proxies
from audit.dpsgd.record_gradients import ClippedRecord, DiracGradient
from audit.dpsgd.settings import DpSgdSettings
from canaries import Canary, InputCanary
from threat_models import Observation, ThreatModel
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


class BatchedEngine:
    """DP-SGD on many runs at once; see `Engine`.

    The runs' weights are [R, parameters]; `gradients` computes the clipped sums. The proxies and
    the inputs of the scores accumulate step by step. Up to rounding, a run's outcome depends only
    on its seed, candidate and data set. `model` has the initial weights w_0 in the precision's
    dtype, and `name` differs from "batched" if `engines` made the problem smaller.
    """

    def __init__(
        self,
        threat_model: ThreatModel,
        settings: DpSgdSettings,
        model: nn.Module,
        device: str = "cpu",
        name: str = "batched",
        precision: Precision = FLOAT32,
    ) -> None:
        self.name = name
        self._device = check_device(device)
        self._precision = precision
        self._threat_model = threat_model
        self._settings = settings
        model = model.to(self._device)
        self._initial = [p.detach() for p in model.parameters() if p.requires_grad]
        self.parameters = sum(p.numel() for p in self._initial)
        self.memory = MemoryPolicy(self._device, self._initial[0].element_size())
        self._training = None
        self._training_size = 0
        with reproducible_products():
            self._model = stacked(model, threat_model.record_shape)
            if threat_model.training_set is not None:
                records = threat_model.training_set
                x, y = self._tensors(records.features, records.labels)
                self._training = clipped_sums(self._model, x, y, precision)
                self._training_size = len(records)

    def _gradient(
        self, canary: Canary
    ) -> "Callable[[Parameters, Tensor], ClippedRecord | DiracGradient]":
        """A function from the parameters and every run's C, [R], to the clipped canary gradient."""
        if not isinstance(canary, InputCanary):
            return lambda _, clip: DiracGradient(clip)
        x, y = self._tensors(canary.features[None], np.array([canary.label]))
        return clipped_sums(self._model, x, y, self._precision).single_record

    def _tensors(self, features: Features, labels: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(np.array(features)).to(self._device, self._initial[0].dtype)
        return x, torch.from_numpy(np.array(labels)).to(self._device)

    def runs_per_pack(self) -> int:
        """The number of runs that are trained together."""
        return self.memory.runs_per_pack(
            self.parameters,
            self._settings.steps,
            sampled_records=self._training_size + 1 if self._settings.sampling_rate < 1 else None,
            # The compiled sums process a few records of one run at a time.
            record_floats=(
                self._model.record_floats if isinstance(self._training, ClippedSums) else None
            ),
        )

    def run(self, batch: RunBatch) -> RunOutcomes:
        return self._run_packs(batch, (self._threat_model,))[0]

    def run_shared(
        self, batch: RunBatch, threat_models: Sequence[ThreatModel]
    ) -> list[RunOutcomes]:
        canaries = dict.fromkeys(threat_model.canary for threat_model in threat_models)
        if len(canaries) == 1:
            return self._run_packs(batch, threat_models)
        shared = [RunOutcomes.empty(len(batch)) for _ in threat_models]
        views = list(zip(threat_models, shared, strict=True))
        served = [(~batch.included, views)]
        for canary in canaries:
            served.append((batch.included, [view for view in views if view[0].canary == canary]))
        for rows, sharers in served:
            outcomes = self._run_packs(
                batch.at(rows), [threat_model for threat_model, _ in sharers]
            )
            for (_, all_outcomes), of_rows in zip(sharers, outcomes, strict=True):
                all_outcomes.put(rows, of_rows)
        return shared

    def _run_packs(
        self, batch: RunBatch, threat_models: Sequence[ThreatModel]
    ) -> list[RunOutcomes]:
        """Trains every run once; runs with a canary require that all threat models share it."""
        by_model = [RunOutcomes.empty(len(batch)) for _ in threat_models]

        def run(rows: slice, chunk_floats: int) -> None:
            outcomes = self._run_pack(batch.at(rows), threat_models, chunk_floats)
            for of_model, of_rows in zip(by_model, outcomes, strict=True):
                of_model.put(rows, of_rows)

        with reproducible_products():
            self.memory.run_in_packs(
                len(batch), self.runs_per_pack(), self._model.record_floats, run
            )
        return by_model

    @torch.no_grad()
    def _run_pack(
        self, batch: RunBatch, threat_models: Sequence[ThreatModel], chunk_floats: int
    ) -> list[RunOutcomes]:
        s = self._settings
        canaries = list(dict.fromkeys(threat_model.canary for threat_model in threat_models))
        theta, proxies, residual = self._train(batch, canaries, chunk_floats)
        finite = torch.stack([w.flatten(1).isfinite().all(1) for w in theta]).all(0).cpu().numpy()
        start = self._initial[0].flatten()[0]
        _, clip, _ = s.hyperparameters_of(batch.candidate)
        unit = clip * s.noise_multiplier * math.sqrt(s.steps)
        observation = ModelObservation(
            first_displacement=to_numpy(start - theta[0].flatten(1)[:, 0]),
            standardised_sum=to_numpy(residual) / unit,
            theta=theta,
            logits=lambda x: self._model.logits(theta, self._model.prepare(x)),
            records_at_once=max(1, chunk_floats // (len(batch) * self._model.record_floats)),
        )
        final_weights = [self._final_weights(theta, batch, canary) for canary in canaries]
        outcomes = []
        for threat_model in threat_models:
            place = canaries.index(threat_model.canary)
            lambda_start, lambda_end = final_weights[place]
            outcomes.append(
                RunOutcomes.of_models(
                    threat_model,
                    observation,
                    finite,
                    lambda_a=proxies[place].lambda_a(),
                    lambda_c=proxies[place].lambda_c(),
                    lambda_known=proxies[place].lambda_known(),
                    lambda_start=lambda_start,
                    lambda_end=lambda_end,
                )
            )
        return outcomes

    def _final_weights(
        self, theta: Parameters, batch: RunBatch, canary: Canary
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """lambda_start and lambda_end of a pack, [R] each."""
        s = self._settings
        rate, clip, _ = s.hyperparameters_of(batch.candidate)
        own_clip = torch.from_numpy(clip).to(theta[0])
        gradient = self._gradient(canary)
        start = [p.expand(len(batch), *p.shape).contiguous() for p in self._initial]
        moved = [flat(before - after) for before, after in zip(start, theta, strict=True)]
        unit = rate * s.steps * clip**2
        at_start = to_numpy(gradient(start, own_clip).inner_products(moved)) / unit
        at_end = to_numpy(gradient(theta, own_clip).inner_products(moved)) / unit
        return at_start, at_end

    def _train(
        self, batch: RunBatch, canaries: Sequence[Canary], chunk_floats: int
    ) -> tuple[Parameters, list[Proxies], Tensor]:
        """All steps of a pack. Only the first canary may be in a data set.

        Returns the final parameters; the proxies of every canary; and the sum over steps of the
        first coordinate of p_i without the training records' contribution, [R].
        """
        s = self._settings
        count = len(batch)
        state = [flat(p[None]).repeat(count, 1) for p in self._initial]
        theta = [shaped(w, p.shape) for w, p in zip(state, self._initial, strict=True)]
        rate, clip, momentum = torch.from_numpy(s.hyperparameters_of(batch.candidate)).to(theta[0])
        included = torch.from_numpy(np.array(batch.included)).to(self._device)
        descent, momentum = -rate[:, None], momentum[:, None]
        velocity = [torch.zeros_like(w) for w in state] if momentum.any() else None
        residual = torch.zeros(count, dtype=torch.float64, device=self._device)
        proxies = [Proxies(s, batch.candidate, self._device) for _ in canaries]
        gradients = [self._gradient(canary) for canary in canaries]
        sampled = self._sampled_records(batch)
        # Without training records, each weight is updated as soon as its noise is drawn.
        is_fused = self._training is None and velocity is None and noise.can_descend(theta[0])
        if is_fused and len(canaries) == 1 and isinstance(canaries[0], InputCanary):
            taken_canaries = ((included & taken).to(theta[0].dtype) for _, taken in sampled)
            steps = self._fused_steps(batch, canaries[0], state, theta, taken_canaries)
            for product, first_coordinate, squared_norm in steps:
                residual += first_coordinate
                proxies[0].add(product, product, squared_norm)
            return theta, proxies, residual

        drawn = self._noise(batch, theta[0])
        for released, (taken, canary_taken) in zip(drawn, sampled, strict=True):
            # `released` starts as the noise and becomes p_i. A canary's gradient z is computed
            # before step i.
            canary_weight = (included & canary_taken).to(theta[0].dtype)[:, None]
            canary_gradients = [gradient_of(theta, clip) for gradient_of in gradients]
            canary_gradients[0].add_to(released, canary_weight)
            residual += released[0][:, 0]
            known_products = [z.inner_products(released) for z in canary_gradients]
            if self._training is not None:
                sums = self._training(theta, clip, taken, chunk_floats)
                for p, g in zip(released, sums, strict=True):
                    p.add_(flat(g))
            for proxy, z, known in zip(proxies, canary_gradients, known_products, strict=True):
                product = known if self._training is None else z.inner_products(released)
                proxy.add(product, known, z.squared_norm)
            step = released
            if velocity is not None:
                step = [v.mul_(momentum).add_(p) for v, p in zip(velocity, released, strict=True)]
            for w, v in zip(state, step, strict=True):
                w.addcmul_(v, descent)

        return theta, proxies, residual

    def _fused_steps(
        self,
        batch: RunBatch,
        canary: InputCanary,
        state: Parameters,
        theta: Parameters,
        taken: Iterator[Tensor],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Takes steps without training records; `taken` yields 1 where a batch has the canary.

        Yields <p_i^z, p_i>, the first coordinate of p_i, and |p_i^z|^2, [R] each, for every step.
        """
        rate, clip, _ = torch.from_numpy(self._settings.hyperparameters_of(batch.candidate)).to(
            theta[0]
        )
        descent, scales = -rate, self._noise_scales(batch).astype(np.float32)
        take_steps = None
        with contextlib.suppress(NotImplementedError):
            take_steps = self._linear_steps(canary)
        if take_steps is not None:
            yield from take_steps(state, taken, clip, descent, batch.seeds, scales)
            return
        gradient_of = self._gradient(canary)
        for i, factors in enumerate(taken):
            gradient = gradient_of(theta, clip)
            assert isinstance(gradient, ClippedRecord)
            product, first_coordinate = noise.descend(
                state, gradient.outer_products, factors, descent, batch.seeds, i, scales
            )
            yield product, first_coordinate, gradient.squared_norm

    def _linear_steps(self, canary: InputCanary) -> LinearSteps:
        """Compiled steps; NotImplementedError for other models and precisions."""
        if self._precision.significand_bits is not None:
            raise NotImplementedError("rounded operands in compiled steps")
        if not isinstance(self._model, BookkeepingModel):
            raise NotImplementedError("layers that are not known in compiled steps")
        x, y = self._tensors(canary.features[None], np.array([canary.label]))
        return LinearSteps(self._model.network, self._model.prepare(x), y)

    def _noise(self, batch: RunBatch, like: Tensor) -> Iterator[Parameters]:
        """Yields, for every step, N(0, C^2 sigma^2) noise as one [R, size] per parameter."""
        s = self._settings
        sizes = [p.numel() for p in self._initial]
        for drawn in noise.gaussian_steps(
            batch.seeds,
            self._noise_scales(batch),
            s.steps,
            like,
            self.parameters,
            self.memory.steps_at_once(self.parameters, s.steps),
        ):
            yield list(torch.split(drawn, sizes, dim=1))

    def _noise_scales(self, batch: RunBatch) -> NDArray[np.float64]:
        _, clip, _ = self._settings.hyperparameters_of(batch.candidate)
        return clip * self._settings.noise_multiplier

    def _sampled_records(self, batch: RunBatch) -> Iterator[tuple[Tensor | None, Tensor]]:
        """Yields, for every step, the sampled records, [R, n] (None: all), and canaries, [R]."""
        s = self._settings
        memberships = batch.records
        members = None if memberships is None else torch.from_numpy(memberships).to(self._device)
        if s.sampling_rate == 1:
            everything = torch.ones(len(batch), dtype=torch.bool, device=self._device)
            for _ in range(s.steps):
                yield members, everything
            return
        width = self._training_size + 1
        for taken in noise.poisson_steps(
            batch.seeds,
            s.sampling_rate,
            s.steps,
            self._device,
            width,
            self.memory.steps_at_once(width, s.steps),
        ):
            records = taken[:, :-1] if members is None else taken[:, :-1] & members
            yield records, taken[:, -1]

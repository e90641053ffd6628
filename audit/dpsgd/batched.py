"""The batched engine: trains many runs of DP-SGD at once.

A step on more records than one runs in torch. Steps on at most one record of a network of Linear
layers and ReLU run in `_noise.c`, one run after the other (see `LinearSteps`).
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from audit.dpsgd import noise
from audit.dpsgd.base import RunBatch, RunOutcomes
from audit.dpsgd.devices import MemoryPolicy, check_device
from audit.dpsgd.gradients import BookkeepingModel, ClippedSums, clipped_sums, stacked
from audit.dpsgd.layers import Flatten, Linear, Network, Relu
from audit.dpsgd.parameters import ClippedRecord, DiracGradient, Parameters, flat, shaped, to_numpy
from audit.dpsgd.products import reproducible_products
from audit.dpsgd.settings import FLOAT32, DpSgdSettings, Precision
from canaries import Canary, InputCanary
from threat_models import Observation, ThreatModel
from threat_models.scores import Features

# Normal numbers per call, a fraction of a second: signals are handled between calls.
_NUMBERS_AT_ONCE = 1 << 26
_STEPS_AT_ONCE = 1 << 14  # so that few tensors are in memory


class Proxies:
    """One canary's proxies of runs with candidates [R]; see `RunOutcomes`."""

    def __init__(
        self, settings: DpSgdSettings, candidate: NDArray[np.int64], device: torch.device
    ) -> None:
        self._settings = settings
        _, clip, _ = settings.hyperparameters_of(candidate)
        self._square = torch.from_numpy(clip**2).to(device)
        self._product = torch.zeros_like(self._square)
        self._known_product = torch.zeros_like(self._square)
        self._squared_norms = torch.zeros_like(self._square)
        self._log_ratio = torch.zeros_like(self._square)

    def add(self, product: Tensor, known_product: Tensor, squared_norm: Tensor) -> None:
        """Adds one step, from <p_i^z, p_i> and |p_i^z|^2, [R] each.

        `known_product` is the inner product without the training records' part of p_i.
        """
        s = self._settings
        self._product += product
        self._known_product += known_product
        self._squared_norms += squared_norm
        if s.sampling_rate < 1:
            gain = (2 * product.double() - squared_norm) / self._square
            taken = math.log(s.sampling_rate) + gain / (2 * s.noise_multiplier**2)
            missed = torch.full_like(taken, math.log1p(-s.sampling_rate))
            self._log_ratio += torch.logaddexp(missed, taken)

    def lambda_a(self) -> NDArray[np.float64]:
        """The mean product over C^2, [R]."""
        return to_numpy(self._product / (self._settings.steps * self._square))

    def lambda_c(self) -> NDArray[np.float64]:
        """The proxy for sampled batches, [R]."""
        s = self._settings
        if s.sampling_rate == 1:
            return self.lambda_a()
        return 0.5 + s.noise_multiplier**2 / s.steps * to_numpy(self._log_ratio)

    def lambda_known(self) -> NDArray[np.float64]:
        """The proxy of an adversary with the training records, [R]."""
        s = self._settings
        if s.sampling_rate < 1:
            return self.lambda_c()
        log_ratio = (2 * self._known_product - self._squared_norms) / self._square
        return 0.5 + to_numpy(log_ratio) / (2 * s.steps)


def linear_layers(network: Network) -> list[tuple[Linear, bool]]:
    """The Linear layers of a network, and whether ReLU follows each.

    NotImplementedError if the network has other layers with parameters or functions after its first
    Linear layer, or does not end with a Linear layer.
    """
    layers: list[tuple[Linear, bool]] = []
    for layer in (network.first_layer, *network.after):
        if isinstance(layer, Linear):
            layers.append((layer, False))
        elif isinstance(layer, Relu) and layers:
            layers[-1] = layers[-1][0], True
        elif not isinstance(layer, Flatten):
            raise NotImplementedError(f"{type(layer).__name__} in a network of Linear layers")
    if not layers or layers[-1][1]:
        raise NotImplementedError("a network that does not end with Linear")
    return layers


class LinearSteps:
    """Steps of DP-SGD on at most one record; NotImplementedError for other networks and devices.

    torch needs a call per layer and step, which takes as long as the arithmetic if there is only
    one record. The extension takes one run at a time through all layers and many steps, within the
    cache, and updates each weight as soon as its noise is drawn. Its sums have a fixed order, so
    that every processor computes the same bits, and a run does not depend on the others.

    `x` is the prepared record, [1, inputs], and `label` its class, [1].
    """

    def __init__(self, network: Network, x: Tensor, label: Tensor) -> None:
        self._layers = linear_layers(network)
        if x.dim() != 2 or not noise.can_descend(x):
            raise NotImplementedError("a compiled step for such records, or on such a device")
        # The extension does not check sizes. torch reports those that do not fit.
        inputs = [x.shape[1], *(layer.outputs for layer, _ in self._layers)]
        fits = inputs[:-1] == [layer.inputs for layer, _ in self._layers]
        if not fits or not 0 <= int(label) < inputs[-1]:
            raise NotImplementedError("a record or a layer of another size, or an unknown label")
        self._record = x.contiguous()
        self._label = int(label)

    def __call__(
        self,
        state: Parameters,
        taken: Iterator[Tensor],
        clip: Tensor,
        descent: Tensor,
        seeds: NDArray[np.uint64],
        scales: NDArray[np.float32],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Trains R runs: p = noise + gradient where the record is taken, w += descent * p.

        `state` has the weights w, one contiguous [R, size] per parameter, and `taken` yields, for
        every step, the runs whose batch contains the record, [R] of 0 and 1. `clip` has the
        clipping norms, `descent` the negative learning rates, and `scales` the standard deviations
        of the noise, [R] each. Yields for every step <p, gradient>, the first coordinate of p, and
        |gradient|^2, [R] each.
        """
        table = self._table(state)
        numbers = sum(w.numel() for w in state)
        steps_at_once = min(max(1, _NUMBERS_AT_ONCE // numbers), _STEPS_AT_ONCE)
        # The extension receives addresses only, so these arrays must stay referenced.
        seeds, scales = np.ascontiguousarray(seeds), np.ascontiguousarray(scales)
        clip, descent = clip.contiguous(), descent.contiguous()
        step = 0
        while factors := list(itertools.islice(taken, steps_at_once)):
            weights = torch.stack(factors).to(clip)
            outcomes = torch.empty(3, *weights.shape)
            noise.extension().train(
                (table.ctypes.data, len(table), self._record.data_ptr(), self._label),
                (seeds.ctypes.data, len(seeds), noise.NOISE_STREAM, step, len(weights)),
                (clip.data_ptr(), scales.ctypes.data, descent.data_ptr(), weights.data_ptr()),
                tuple(outcome.data_ptr() for outcome in outcomes),
            )
            yield from zip(*outcomes, strict=True)
            step += len(weights)

    def _table(self, state: Parameters) -> NDArray[np.uint64]:
        """The rows of the struct `linear` in `_noise.c`."""
        addresses = iter(w.data_ptr() for w in state)
        return np.array(
            [
                (next(addresses), next(addresses) if layer.has_bias else 0,
                 layer.inputs, layer.outputs, has_relu)
                for layer, has_relu in self._layers
            ],
            np.uint64,
        )  # fmt: skip


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

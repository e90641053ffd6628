"""Many runs of DP-SGD at once: every parameter of every lane, in every step."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from audit.dpsgd import streams
from audit.dpsgd.base import LaneOutcomes, Lanes
from audit.dpsgd.gradients import ClippedRecord, ClippedSums, StackedModel, clipped_sums, stacked
from audit.dpsgd.layers import Parameters, flat, shaped
from audit.dpsgd.precision import FLOAT32, Precision
from audit.dpsgd.products import allow_tf32
from audit.dpsgd.settings import DpSgdSettings
from canaries import Canary, InputCanary
from threat_models import Observation, ThreatModel
from threat_models.scores import Features

# On a CPU: numbers that the state of a pack, and one chunk of records, may have to stay in cache
# (3 MB and 32 MB of it; larger and smaller ones were both slower).
_CPU_STATE_FLOATS = 800_000
_CPU_CHUNK_FLOATS = 8_000_000
_MAX_LANES = 4096
# A chunk should still hold so many records of every lane.
_RECORDS_PER_LANE = {"cpu": 16, "cuda": 64}
# So many random numbers of a lane are drawn at once: a call per step is slow for small models, and
# on a GPU, where every call is a launch of a kernel, for all.
_NOISE_BLOCK = {"cpu": 1 << 14, "cuda": 1 << 18}


class BatchedEngine:
    """DP-SGD in lanes; see `Engine`.

    The lanes' weights are [R, parameters]; clipped sums come from `gradients`. lambda_a and what
    the scores need accumulate as the steps go. Rounding apart, a lane's outcome depends on its seed
    alone.

    Args:
        threat_model: data, canary and score.
        settings: the base mechanism.
        model: with the initial weights w_0, in the precision's dtype.
        device: a torch device.
        name: of the engine, where `reductions` made the problem smaller.
        precision: to what the operands of products are rounded.

    Raises:
        ValueError: a device that is not there.
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
        allow_tf32(False)
        # cuDNN, which only `gradients.VmapModel` calls, would sum in any order.
        torch.backends.cudnn.deterministic = True
        self._threat_model = threat_model
        self._settings = settings
        model = model.to(self._device)
        self._initial = [p.detach() for p in model.parameters() if p.requires_grad]
        self.parameters = sum(p.numel() for p in self._initial)
        self._model = stacked(model, threat_model.record_shape)
        self._chunk_floats = self._chunk_size()
        self._training = None
        self._training_size = 0
        if threat_model.training_set is not None:
            records = threat_model.training_set
            x, y = self._tensors(records.features, records.labels)
            self._training = clipped_sums(model, self._model, x, y, precision)
            self._training_size = len(records)

    def _gradient(
        self, canary: Canary
    ) -> "Callable[[Parameters, Tensor], ClippedRecord | DiracGradient]":
        """The canary's clipped gradient, from the parameters and every lane's C, [R]."""
        if not isinstance(canary, InputCanary):
            return lambda _, clip: DiracGradient(clip)
        x, y = self._tensors(canary.features[None], np.array([canary.label]))
        return ClippedSums(self._model, x, y, self._precision).only

    def _tensors(self, features: Features, labels: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(np.array(features)).to(self._device, self._initial[0].dtype)
        return x, torch.from_numpy(np.array(labels)).to(self._device)

    def _chunk_size(self) -> int:
        if self._device.type == "cpu":
            return _CPU_CHUNK_FLOATS
        return min(_floor_to_power_of_two(self._gpu_floats()), 2**31)

    def _gpu_floats(self) -> float:
        """Numbers that a quarter of the GPU's memory holds.

        Of all of it, not of what is free: that changes from block to block, and so would the
        rounding of results.
        """
        _, total = torch.cuda.mem_get_info(self._device)
        return total / (4 * self._initial[0].element_size())

    def lanes_per_pack(self) -> int:
        """How many lanes run side by side: from the cache on a CPU, from the memory on a GPU."""
        kind = self._device.type
        if kind == "cpu":
            lanes = _CPU_STATE_FLOATS // self.parameters
        else:
            # Weights, velocity, p_i and the sums of two chunks; noise; batches, in float64.
            per_lane = self.parameters * (6 + self._block(self.parameters))
            if self._settings.sampling_rate < 1:
                width = self._training_size + 1
                per_lane += 2 * width * self._block(width)
            lanes = _floor_to_power_of_two(self._gpu_floats() / per_lane)
        if isinstance(self._training, ClippedSums):
            together = self._chunk_floats // (_RECORDS_PER_LANE[kind] * self._model.record_floats)
            lanes = min(lanes, together if kind == "cpu" else _floor_to_power_of_two(together))
        return min(max(lanes, 4), 1024) if kind == "cpu" else min(lanes, _MAX_LANES)

    def _block(self, width: int) -> int:
        """For how many steps a lane's random numbers are drawn at once, `width` of them a step."""
        numbers = _NOISE_BLOCK[self._device.type]
        return min(self._settings.steps, max(1, numbers // width))

    def run(self, lanes: Lanes) -> LaneOutcomes:
        """See `Engine.run`."""
        return self._run_packs(lanes, (self._threat_model,))[0]

    def run_shared(self, lanes: Lanes, threat_models: Sequence[ThreatModel]) -> list[LaneOutcomes]:
        """See `SharingEngine.run_shared`."""
        canaries = dict.fromkeys(threat_model.canary for threat_model in threat_models)
        if len(canaries) == 1:
            return self._run_packs(lanes, threat_models)
        shared = [LaneOutcomes.empty(len(lanes)) for _ in threat_models]
        views = list(zip(threat_models, shared, strict=True))
        served = [(~lanes.included, views)]
        for canary in canaries:
            served.append((lanes.included, [view for view in views if view[0].canary == canary]))
        for rows, judges in served:
            found = self._run_packs(lanes.at(rows), [threat_model for threat_model, _ in judges])
            for (_, whole), part in zip(judges, found, strict=True):
                whole.put(rows, part)
        return shared

    def _run_packs(self, lanes: Lanes, threat_models: Sequence[ThreatModel]) -> list[LaneOutcomes]:
        """Runs every lane once for all threat models; those of lanes with a canary share it.

        Packs that do not fit the memory are halved and tried again, and their chunks with them;
        the next call begins with whole ones, so that it depends on no other.
        """
        found = [LaneOutcomes.empty(len(lanes)) for _ in threat_models]
        self._chunk_floats = self._chunk_size()
        size, start = self.lanes_per_pack(), 0
        while start < len(lanes):
            pack = lanes.at(slice(start, start + size))
            try:
                outcomes = self._run_pack(pack, threat_models)
            except (MemoryError, RuntimeError) as error:
                smallest = len(pack) == 1 and self._chunk_floats <= self._model.record_floats
                if not _is_out_of_memory(error) or smallest:
                    raise
            else:
                for whole, part in zip(found, outcomes, strict=True):
                    whole.put(slice(start, start + len(pack)), part)
                start += len(pack)
                continue
            # The error is gone by now, and with it the tensors of the pack that it held on to.
            size = max(len(pack) // 2, 1)
            self._chunk_floats = max(self._chunk_floats // 2, self._model.record_floats)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        return found

    @torch.no_grad()
    def _run_pack(self, lanes: Lanes, threat_models: Sequence[ThreatModel]) -> list[LaneOutcomes]:
        """Trains a pack and judges it."""
        s = self._settings
        canaries = list(dict.fromkeys(threat_model.canary for threat_model in threat_models))
        theta, proxies, residual = self._train(lanes, canaries)
        finite = torch.stack([w.flatten(1).isfinite().all(1) for w in theta]).all(0).cpu().numpy()
        start = self._initial[0].flatten()[0]
        _, clip, _ = s.of_lanes(lanes.candidate)
        unit = clip * s.noise_multiplier * math.sqrt(s.steps)
        observation = ModelObservation(
            first_displacement=_to_numpy(start - theta[0].flatten(1)[:, 0]),
            standardised_sum=_to_numpy(residual) / unit,
            model=self._model,
            theta=theta,
            chunk_floats=self._chunk_floats,
        )
        outcomes = []
        for threat_model in threat_models:
            own = proxies[canaries.index(threat_model.canary)]
            lambda_a = own.lambda_a()
            values = np.asarray(threat_model.score(observation), dtype=np.float64)
            if values.shape != (len(lanes),):
                raise ValueError(
                    f"score {threat_model.score.name} must give one number per run, "
                    f"[{len(lanes)}], got shape {list(values.shape)}"
                )
            kept = finite & np.isfinite(lambda_a) & np.isfinite(values)
            outcomes.append(
                LaneOutcomes(
                    lambda_a=np.where(kept, lambda_a, 0.0),
                    lambda_c=np.where(kept, own.lambda_c(), 0.0),
                    scores=np.where(kept, values, -np.inf),
                    finite=kept,
                )
            )
        return outcomes

    def _train(
        self, lanes: Lanes, canaries: Sequence[Canary]
    ) -> tuple[Parameters, "list[Proxies]", Tensor]:
        """All steps of a pack.

        Args:
            lanes: the pack.
            canaries: whose proxies to take; the first is the one that lanes may include.

        Returns:
            The final parameters; the proxies of every canary; and sum_i of the first coordinate of
            p_i less the training records' part, [R].
        """
        s = self._settings
        count = len(lanes)
        state = [flat(p[None]).repeat(count, 1) for p in self._initial]
        theta = [shaped(w, p.shape) for w, p in zip(state, self._initial, strict=True)]
        rate, clip, momentum = torch.from_numpy(s.of_lanes(lanes.candidate)).to(theta[0])
        included = torch.from_numpy(np.array(lanes.included)).to(self._device)
        descent, momentum = -rate[:, None], momentum[:, None]
        velocity = [torch.zeros_like(w) for w in state] if momentum.any() else None
        residual = torch.zeros(count, dtype=torch.float64, device=self._device)
        proxies = [Proxies(s, lanes.candidate, self._device) for _ in canaries]
        gradients = [self._gradient(canary) for canary in canaries]

        noise = self._noise(lanes, theta[0].dtype)
        batches = self._batches(lanes)
        for released, (taken, canary_taken) in zip(noise, batches, strict=True):
            # released grows from the noise to p_i; a canary's gradient z is taken before step i.
            hit = (included & canary_taken).to(theta[0].dtype)[:, None]
            zs = [gradient(theta, clip) for gradient in gradients]
            zs[0].add_to(released, hit)
            residual += released[0][:, 0]
            if self._training is not None:
                sums = self._training(theta, clip, taken, self._chunk_floats)
                for p, g in zip(released, sums, strict=True):
                    p.add_(flat(g))
            for own, z in zip(proxies, zs, strict=True):
                own.add(z.inner(released), z.squared_norm)
            step = released
            if velocity is not None:
                step = [v.mul_(momentum).add_(p) for v, p in zip(velocity, released, strict=True)]
            for w, v in zip(state, step, strict=True):
                w.addcmul_(v, descent)

        return theta, proxies, residual

    def _noise(self, lanes: Lanes, dtype: torch.dtype) -> Iterator[Parameters]:
        """For every step N(0, C^2 sigma^2) noise as one [R, size] per parameter."""
        s = self._settings
        _, clip, _ = s.of_lanes(lanes.candidate)
        scales = (clip * s.noise_multiplier).tolist()
        sizes = [p.numel() for p in self._initial]
        generators = streams.generators(lanes.seeds, 0, str(self._device))
        block = self._block(self.parameters)
        buffer = torch.empty(len(lanes), block, self.parameters, dtype=dtype, device=self._device)
        for start in range(0, s.steps, block):
            rows = min(block, s.steps - start)
            for lane, generator, scale in zip(buffer, generators, scales, strict=True):
                lane[:rows].normal_(0, scale, generator=generator)
            for row in range(rows):
                yield list(torch.split(buffer[:, row], sizes, dim=1))

    def _batches(self, lanes: Lanes) -> Iterator[tuple[Tensor | None, Tensor]]:
        """For every step the records taken, [R, n] (None: all), and whether the canary is."""
        s = self._settings
        if s.sampling_rate == 1:
            everything = torch.ones(len(lanes), dtype=torch.bool, device=self._device)
            for _ in range(s.steps):
                yield None, everything
            return
        width = self._training_size + 1
        generators = streams.generators(lanes.seeds, 1, str(self._device))
        block = self._block(width)
        buffer = torch.empty(len(lanes), block, width, dtype=torch.float64, device=self._device)
        for start in range(0, s.steps, block):
            rows = min(block, s.steps - start)
            for lane, generator in zip(buffer, generators, strict=True):
                lane[:rows].uniform_(generator=generator)
            for row in range(rows):
                taken = buffer[:, row] < s.sampling_rate
                yield taken[:, :-1], taken[:, -1]


class DiracGradient:
    """(C, 0, ..., 0) in R lanes, with what a `ClippedRecord` can do."""

    def __init__(self, clip: Tensor) -> None:
        self._clip = clip
        self.squared_norm = clip.square()

    def add_to(self, vectors: Parameters, weights: Tensor) -> None:
        """See `ClippedRecord.add_to`."""
        vectors[0][:, 0] += self._clip * weights[:, 0]

    def inner(self, vectors: Parameters) -> Tensor:
        """See `ClippedRecord.inner`."""
        return self._clip * vectors[0][:, 0]


class Proxies:
    """One canary's lambda_a and lambda_c in R lanes, as the steps go; see `LaneOutcomes`.

    Args:
        settings: the base mechanism.
        candidate: [R], every lane's candidate.
        device: where the products are.
    """

    def __init__(
        self, settings: DpSgdSettings, candidate: NDArray[np.int64], device: torch.device
    ) -> None:
        self._settings = settings
        _, clip, _ = settings.of_lanes(candidate)
        self._square = torch.from_numpy(clip**2).to(device)
        self._product = torch.zeros_like(self._square)
        self._log_ratio = torch.zeros_like(self._square)

    def add(self, product: Tensor, squared_norm: Tensor) -> None:
        """Adds a step's <p_i^z, p_i> and |p_i^z|^2, [R] each."""
        s = self._settings
        self._product += product
        if s.sampling_rate < 1:
            gain = (2 * product.double() - squared_norm) / self._square
            taken = math.log(s.sampling_rate) + gain / (2 * s.noise_multiplier**2)
            missed = torch.full_like(taken, math.log1p(-s.sampling_rate))
            self._log_ratio += torch.logaddexp(missed, taken)

    def lambda_a(self) -> NDArray[np.float64]:
        """The mean product over C^2, [R]."""
        return _to_numpy(self._product / (self._settings.steps * self._square))

    def lambda_c(self) -> NDArray[np.float64]:
        """The proxy for sampled batches, [R]."""
        s = self._settings
        if s.sampling_rate == 1:
            return self.lambda_a()
        return 0.5 + s.noise_multiplier**2 / s.steps * _to_numpy(self._log_ratio)


@dataclass(frozen=True, eq=False)
class ModelObservation(Observation):
    """An observation with the final models at hand."""

    model: StackedModel
    theta: Parameters
    chunk_floats: int

    def parameters(self) -> NDArray[np.float64]:
        """See `Observation.parameters`."""
        return _to_numpy(torch.cat([p.flatten(1) for p in self.theta], dim=1))

    @torch.no_grad()
    def loss(self, features: Features, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """See `Observation.loss`."""
        like = self.theta[0]
        total = torch.zeros(len(like), dtype=torch.float64, device=like.device)
        chunk = max(1, self.chunk_floats // (len(like) * self.model.record_floats))
        for start in range(0, len(labels), chunk):
            part = slice(start, start + chunk)
            x = torch.from_numpy(np.array(features[part])).to(like)
            y = torch.from_numpy(np.array(labels[part])).to(like.device)
            logits = self.model.logits(self.theta, self.model.prepare(x)).double()
            index = y.expand(logits.shape[:2])[..., None]
            total -= logits.log_softmax(-1).gather(-1, index).sum((1, 2))
        return _to_numpy(total)


def check_device(name: str) -> torch.device:
    """A torch device that is there.

    Raises:
        ValueError: one that is not.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device must be cpu or a CUDA device that is there, got {name}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {name}")
    return device


def _floor_to_power_of_two(number: float) -> int:
    """So that a little more or less memory does not change the rounding of results."""
    return 1 << max(0, int(number).bit_length() - 1)


def _is_out_of_memory(error: Exception) -> bool:
    said = ("DefaultCPUAllocator", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in said
    )


def _to_numpy(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().cpu().numpy()

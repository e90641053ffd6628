"""Coupled runs of a training function: equal randomness, and forced outputs.

Two runs with the same seed draw the same batches and the same noise. If, in addition, the released
gradients of the first run replace those of the second one in each step ("forced outputs"), then
both have the same past at every step. The difference between their released gradients at step t is
then exactly the change that the exchanged record causes: the noise cancels up to rounding. The idea
of equal randomness and frozen outputs is from Re:cord-play (Cebere et al., PETS 2026). Here, a hook
on the optimizer replaces changes to the code of the training.
"""

import contextlib
import copy
import hashlib
import itertools
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from audit.loop.runs.final_gradients import OF_OPACUS, AccessedGradients, Site
from audit.loop.runs.generators import (
    PostProcessingStream,
    digest_of_generators,
    global_states,
    repeated_numbers,
    returned_states,
)
from audit.loop.runs.kept_values import KeptValues
from audit.loop.runs.optimizer_hooks import StepThreshold, hooks_of_steps
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.released_numbers import keys_of, numbers_of
from audit.loop.runs.saved_files import SavedFile, line_of_user, recorded_files
from audit.loop.runs.training_runs import Train, many_runs
from audit.loop.runs.watch import Watch
from audit.loop.runs.work import SHARE_OF_RUN, CouldNotFinish, CpuLimit, work_of
from audit.loop.sources.arrays import Gradient, current_watch, record_gradient
from audit.loop.sources.trees import Tree, as_numbers
from audit.opacus_objects import (
    History,
    divides_as_opacus,
    divisor_of,
    history_of,
    is_of_opacus,
    left_out_of_samples,
)
from audit.user_code import format_error, global_seed, seeded_generators

if TYPE_CHECKING:  # the module imports torch
    from audit.loop.runs.noisy_sums import NoisySums, Place

Vector = NDArray[Any]


class EndOfRun(BaseException):
    """Ends a run from within the user's code."""


class _EnoughSteps(EndOfRun):
    """Ends a run whose later steps are not needed; `except Exception` does not catch it."""


@dataclass(frozen=True)
class Step:
    """One step of the watched optimizer.

    Attributes:
        gradient: [D], the released gradient: everything in p.grad, or the noisy sums.
        clip: C, or None if it is unknown; for per-layer clipping, the norm of all thresholds.
        noise_multiplier: the optimizer's noise multiplier, or None.
        divisor: divisor of the noisy sum in an Opacus optimizer, or None if it is unknown.
        generators: a digest of the states of all known random generators after the noise; this and
            the attributes below are empty in runs without digests.
        weights: a digest of all parameters before the step.
        settings: the optimizer's learning rate and its other numbers, as text.
        weights_after: a digest of all parameters after the step; may be empty for the last one.
        stepped: digests of the released gradient and of p.grad, if noisy sums are the release.
    """

    gradient: Vector
    clip: float | None
    noise_multiplier: float | None
    divisor: float | None
    generators: bytes = b""
    weights: bytes = b""
    settings: str = ""
    weights_after: bytes = b""
    stepped: tuple[bytes, bytes] | None = None


@dataclass(frozen=True)
class DeclaredNoise:
    """The noise of a value that the function declared by `watch.release`.

    Attributes:
        values: [d], its numbers, those of dictionaries by their sorted keys; None where it holds
            something else.
        noise_multiplier: of Gaussian noise, its standard deviation over the sensitivity, or None.
        epsilon: of Laplace noise, the sensitivity over its scale, or None.
        keys: the paths to its numbers, in the order of its keys, if it holds dictionaries.
    """

    values: Vector | None
    noise_multiplier: float | None
    epsilon: float | None
    keys: tuple[str, ...] = ()

    @property
    def is_stated(self) -> bool:
        """Whether the function stated the size of the noise."""
        return self.noise_multiplier is not None or self.epsilon is not None


# Of the random numbers of the first step after its noise; those of later steps have the next ones.
_SEED_OF_POST_PROCESSING = 915_223_071
# Distance of the seeds of two streams: more than a run has steps.
_SEEDS_OF_STREAM = 10_000_019
# Steps in which the operations that add noise are found; they must be the same in later ones.
_STEPS_WITH_PLACES = 8
# Initial weights that are compared with the noise.
_MAX_OWN_WEIGHTS = 50_000


@dataclass(frozen=True)
class Accounted:
    """The accountant's history, step by step."""

    history: History
    expanded: tuple[tuple[float, float], ...]
    recorded: int
    seen: int

    def sigma(self, step: int) -> float:
        """The noise multiplier of a step; where steps cannot be matched, the smallest one."""
        if self.recorded == self.seen:
            return self.expanded[min(step, len(self.expanded) - 1)][0]
        return min(s for s, _ in self.expanded)

    def rate(self, step: int) -> float:
        """The sampling rate of a step; where steps cannot be matched, the largest one."""
        if self.recorded == self.seen:
            return self.expanded[min(step, len(self.expanded) - 1)][1]
        return max(q for _, q in self.expanded)

    def has_further_releases(self, steps: int) -> bool:
        """Whether more was recorded than the optimizer's steps, with other parameters."""
        return self.recorded > steps and len({(s, q) for s, q, _ in self.history}) > 1


@dataclass
class Trace:
    """Record of one run.

    Attributes:
        steps: the steps of the optimizer, in order.
        released: every number that was returned, or is in the watched model at the end, by name.
        names: names of the tensors of parameters.
        sizes: their numbers of coordinates.
        shapes: their shapes.
        initial: the weights and buffers when the function called `watch`, by name.
        initial_digest: digest of these weights before they were set to those of another run.
        history: the accountant's (noise multiplier, sampling rate, steps), or None.
        claimed: the epsilon given to `watch.claim`, or None.
        accountant: the accountant itself.
        watched: whether an optimizer was watched.
        has_equal_steps: whether every step has a gradient of the same parameters.
        complete: whether the function returned.
        error: the error that the function raised, in one line, or None.
        epsilon_of_type: spacing of the parameters' floating-point type.
        clips: with adaptive clipping, the threshold after each step, which coupled runs take over.
        opacus: whether the watched optimizer scales its gradients as Opacus does.
        line: file and line of the user's code that called the first step.
        expected_batch_size: the divisor of the watched optimizer of Opacus, or None.
        moved_generators: libraries whose global generator was drawn from since `watch` was called,
            if the run returned the state of a generator.
        own_initial: [d], the weights that this run drew itself, in coupled runs;
            other runs keep no copy.
        repeats: "noise" or "batches" if they repeat the numbers of another generator, or "".
        by_opacus: whether the watched optimizer is one of Opacus, or of a subclass.
        further: the numbers that the function declared by `watch.release`.
        declared: their values before they were forced, and their noise.
        rows: the values of steps with correlated noise, before they are encoded.
        of_arrays: whether the steps are those of `watch.step`.
        final_sites: the lines of the user's code where p.grad is what the step then releases.
        earlier_line: the line that sets p.grad before it is changed, see `AccessedGradients`.
        record_gradient: the gradient of a record at the weights of the last step, if the function
            stated it.
        number_of_records: of its data, if noisy sums are the release.
        has_random_post_processing: whether a step drew random numbers after its last noisy sum.
        saved: the objects that were written to files, in order, in runs to the end.
        model: the watched model, in runs that are not coupled to another or that keep it.
        parameters: the tensors that the optimizer updates, in the same runs.
    """

    steps: list[Step] = field(default_factory=list)
    released: Mapping[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    initial: dict[str, Any] = field(default_factory=dict)
    initial_digest: bytes = b""
    history: History | None = None
    claimed: float | None = None
    accountant: Any = None
    watched: bool = False
    has_equal_steps: bool = True
    complete: bool = False
    error: str | None = None
    epsilon_of_type: float = 0.0
    clips: list[Any] = field(default_factory=list)
    opacus: bool = False
    by_opacus: bool = False
    line: str = ""
    expected_batch_size: float | None = None
    further: list[Any] = field(default_factory=list)
    declared: list[DeclaredNoise] = field(default_factory=list)
    rows: list[Vector] = field(default_factory=list)
    of_arrays: bool = False
    final_sites: frozenset[Site] = frozenset()
    earlier_line: Site | None = None
    record_gradient: Any = None
    saved: list[SavedFile] = field(default_factory=list)
    model: Any = None
    parameters: list[Any] = field(default_factory=list)
    moved_generators: frozenset[str] = frozenset()
    repeats: str = ""
    number_of_records: int = 0
    has_random_post_processing: bool = False
    own_initial: Vector = field(default_factory=lambda: np.zeros(0))

    @property
    def gradients(self) -> Vector:
        """[T, D], the released gradients."""
        return np.stack([step.gradient for step in self.steps])

    @property
    def slices(self) -> list[slice]:
        """The coordinates of every tensor."""
        ends = itertools.accumulate(self.sizes, initial=0)
        return [slice(a, b) for a, b in itertools.pairwise(ends)]

    @property
    def unrecorded(self) -> int:
        """Number of steps that the accountant did not record, if there is one."""
        return len(self.steps) - sum(n for *_, n in self.history) if self.history else 0

    @property
    def accounted(self) -> Accounted | None:
        """The accountant's history step by step; None where nothing was recorded."""
        history = self.history or ()
        expanded = [(s, q) for s, q, steps in history for _ in range(min(steps, 10**6))]
        recorded = sum(steps for _, _, steps in history)
        return Accounted(history, tuple(expanded), recorded, len(self.steps)) if expanded else None

    def from_step(self, first: int) -> "Trace":
        """The same run without the steps before one."""
        return self if first == 0 else replace(self, steps=self.steps[first:])


@dataclass(frozen=True)
class RunRequest:
    """What a run in another process needs; see `CoupledRuns.run`."""

    records: TrainingSet
    seed: int
    like: Trace | None
    stop_after: int | None
    digests: bool
    to_end: bool
    left_out: int | None = None


class CoupledRuns:
    """Runs of one training function that may be coupled to an earlier one.

    Args:
        train: the function.
        candidate: its hyperparameters.
        cpu: the CPU time that all runs may use; None sets no limit.

    Attributes:
        count: number of runs.
        work: work of all runs, see `work_of`.
        least_recorded: the complete run with the largest number of steps that were not recorded.
        kept: what the function's variables hold before the first run.
        starts_anew: whether every run begins with these values.
        released_at: the line that sets p.grad to the released value, or None for the step itself.
        places_of_noise: the operations whose results are the release, see `NoisySums`; none if it
            is p.grad.
        stream_of_post_processing: number of the stream of random numbers after the last noisy sum.
        is_post_processed: whether p.grad was the same in all runs in which the results of these
            operations, and the numbers of records, were the same.
        has_own_generators: whether the generators among the function's variables are seeded in each
            run, so that their states show how many numbers were drawn.
    """

    def __init__(self, train: Train, candidate: Any, cpu: CpuLimit | None = None) -> None:
        self._train, self._candidate = train, candidate
        self._cpu = cpu or CpuLimit(math.inf)
        self.count, self.work = 0, 0.0
        self.has_own_generators = True
        self.least_recorded: Trace | None = None
        self.kept = KeptValues(train)
        self.starts_anew = False
        self.released_at: Site | None = None
        self.places_of_noise: tuple[Place, ...] = ()
        self.stream_of_post_processing = 0
        self.is_post_processed = True

    def run(
        self,
        records: TrainingSet,
        seed: int,
        like: Trace | None = None,
        stop_after: int | None = None,
        digests: bool = True,
        to_end: bool = False,
        keep_model: bool = False,
        left_out: int | None = None,
    ) -> Trace:
        """Trains once.

        Args:
            records: the data.
            seed: seed of every global generator, also passed to the function.
            like: the run whose initial weights and released gradients are forced.
            stop_after: number of steps after which the run is ended; None completes it.
            digests: whether to keep digests of generators, weights and optimizer.
            to_end: whether to record what is saved; a script then continues after the last tested
                step.
            keep_model: whether to keep the model also in a coupled run.
            left_out: place of the record that Opacus leaves out of every Poisson sample, or None.

        Returns:
            The record of the run, which contains an error that the function raised.
        """
        self._cpu.check()
        self.count += 1
        if self.starts_anew:
            self.kept.restore()
        elsewhere = getattr(self._train, "run_elsewhere", None)
        if elsewhere is not None:  # in a copy of a process
            request = RunRequest(records, seed, like, stop_after, digests, to_end, left_out)
            trace, cpu_seconds = elsewhere(request)
            self._cpu.add(cpu_seconds)
        else:
            with left_out_of_samples(left_out):
                watch = self._run_here(records, seed, like, stop_after, digests, to_end)
            trace = watch.recorded
            if like is None or keep_model:
                watch.keep_model()
        if self.places_of_noise:
            trace.number_of_records = len(records)
            self.is_post_processed &= like is None or _steps_as(like, trace)
        self.work += work_of(len(trace.steps), sum(trace.sizes), len(records))
        record_holder = self.least_recorded
        if trace.complete and (
            record_holder is None or trace.unrecorded > record_holder.unrecorded
        ):
            self.least_recorded = trace
        return trace

    def find_places_of_noise(self, records: TrainingSet, seed: int) -> "tuple[Place, ...]":
        """The operations that add the noise in each step, if p.grad is changed afterwards.

        Args:
            records: the data.
            seed: seed of the run.

        Returns:
            The places; none for scripts, for optimizers of Opacus, which scale what they release,
            for runs with an error, and where p.grad is the release itself.
        """
        if hasattr(self._train, "run_elsewhere"):
            return ()
        from audit.loop.runs.noisy_sums import NoisySums, places_of_noise

        self._cpu.check()
        self.count += 1
        if self.starts_anew:
            self.kept.restore()
        sums = NoisySums(None)
        watch = self._run_here(records, seed, None, _STEPS_WITH_PLACES, False, False, sums)
        trace = watch.recorded
        self.work += work_of(len(trace.steps), sum(trace.sizes), len(records))
        if trace.error is not None or trace.opacus or not trace.steps or trace.of_arrays:
            return ()
        return places_of_noise(sums.steps, [step.gradient for step in trace.steps])

    def _run_here(
        self,
        records: TrainingSet,
        seed: int,
        like: Trace | None,
        stop_after: int | None,
        digests: bool,
        to_end: bool,
        sums: "NoisySums | None" = None,
    ) -> "RecordingWatch":
        if self.places_of_noise:
            from audit.loop.runs.noisy_sums import NoisySums

            sums = NoisySums(self.places_of_noise)
        code = CoupledRuns._run_here.__code__ if self.has_own_generators else None
        watch = RecordingWatch(like, stop_after, digests, code, self.released_at)
        watch.sums, watch.has_noisy_release = sums, bool(self.places_of_noise)
        watch.stream_of_post_processing = self.stream_of_post_processing
        watch.to_end = to_end
        trace = watch.recorded
        recorded: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if to_end and not hasattr(self._train, "records_files"):
            recorded = recorded_files(trace.saved.append)
        with many_runs(), seeded_generators(global_seed(seed)):
            try:
                followed = contextlib.nullcontext() if sums is None else sums
                with self._cpu.enforced(SHARE_OF_RUN), current_watch(watch), recorded, followed:
                    result = self._train(records, self._candidate, seed, watch)
                watch.raise_failure()
                trace.released = watch.released(result)
                trace.complete = not watch.has_more_steps
            except _EnoughSteps:
                pass
            except (KeyboardInterrupt, CouldNotFinish):
                raise
            except BaseException as error:  # of any class, SystemExit too
                trace.error = format_error(error)
            finally:
                watch.close()
        watch.read_accountant()
        return watch


class RecordingWatch(Watch):
    """A watch that records every released gradient and overwrites it in coupled runs."""

    def __init__(
        self,
        like: Trace | None,
        stop_after: int | None,
        digests: bool = True,
        caller: types.CodeType | None = None,
        released_at: Site | None = None,
    ) -> None:
        super().__init__(None, np.zeros(0, np.bool_))
        self._released_at = released_at
        self._like, self._stop_after, self._digests = like, stop_after, digests
        self._caller = caller
        self._params: list[Any] = []
        self._can_stop = True
        self.has_more_steps = self.is_frozen = self.to_end = False
        self._hooks: list[Any] = []
        self._states: dict[str, bytes] = {}
        self._threshold: Any = None
        self._described: list[int] = []
        self._later_steps = 0
        self._accessed: AccessedGradients | None = None
        self._scaling: Any = None
        self.sums: NoisySums | None = None
        self.has_noisy_release = False
        self.stream_of_post_processing = 0
        self.recorded = Trace()

    def _attach(self) -> None:
        optimizer = self._optimizer
        self.read_generators()
        if not self._hooks:
            released = getattr(optimizer, "original_optimizer", optimizer)
            self.recorded.watched = True
            self.recorded.opacus = divides_as_opacus(optimizer)
            self.recorded.by_opacus = is_of_opacus(optimizer)
            self.recorded.expected_batch_size = getattr(optimizer, "expected_batch_size", None)
            self._hooks = hooks_of_steps(released, self._record_and_force, self._after_step)
            self._threshold = StepThreshold(optimizer)
            if not self.recorded.of_arrays:
                sites = None if self._like is None else self._like.final_sites
                sites = frozenset() if self.has_noisy_release else sites
                self._accessed = AccessedGradients(
                    self._parameters, sites, self._forced_gradient, self._released_at
                )
                self._accessed.__enter__()
                self._watch_scaling(optimizer)
            if self.sums is not None:
                self.sums.forced = self._forced_sum
                self._start_step_of_sums()
        self._describe_parameters()
        state = self._new_state()
        if self._like is None:
            self.recorded.initial |= {k: v.detach().clone() for k, v in state.items()}
        self.recorded.initial_digest += _digest(list(state.values()))
        self._keep_own_weights(state)
        self._restore(None if self._like is None else self._like.initial)

    def release(
        self, value: Any, *, noise_multiplier: float | None = None, epsilon: float | None = None
    ) -> Any:
        number = len(self.recorded.further)
        values, keys = _flat_numbers(_by_sorted_keys(value)), tuple(keys_of(value))
        self.recorded.declared.append(DeclaredNoise(values, noise_multiplier, epsilon, keys))
        if self._like is not None and number < len(self._like.further):
            value = self._like.further[number]
        self.recorded.further.append(_copied(value))
        return _copied(value)

    def _keep_params(self, params: Any, gradient: Gradient | None, can_stop: bool) -> None:
        self.recorded.of_arrays = True
        self._can_stop = can_stop
        leaves = () if params is None else Tree.of(params, "params").leaves
        self._params = [leaf.values for leaf in leaves]
        if gradient is not None:
            self.recorded.record_gradient = record_gradient(gradient, params)

    def _force_row(self, number: int, row: Vector) -> Vector:
        self.recorded.rows.append(row)
        if self._like is not None and number < len(self._like.rows):
            return self._like.rows[number]
        return row

    def _initial_weights(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        self.recorded.initial_digest += _digest(list(state.values()))
        self._keep_own_weights(state)
        if self._like is not None:
            return self._like.initial
        self.recorded.initial |= state
        return {}

    def _keep_own_weights(self, state: Mapping[str, Any]) -> None:
        if self._like is None:
            return
        arrays = [as_numbers(value) for value in state.values()]
        flat = [np.float64(a).ravel() for a in arrays if a is not None and a.dtype.kind == "f"]
        own = np.concatenate([self.recorded.own_initial, *flat])
        self.recorded.own_initial = own[:_MAX_OWN_WEIGHTS]

    def _watch_scaling(self, optimizer: Any) -> None:
        """Lets the watch of p.grad see what an optimizer of Opacus leaves there."""
        is_asked = self._like is None or self._released_at == OF_OPACUS
        scale = getattr(optimizer, "scale_grad", None)
        # A user's own attribute of this name is left alone.
        is_method = "scale_grad" not in vars(optimizer)
        if self.recorded.by_opacus and is_asked and scale and is_method and self._accessed:
            optimizer.scale_grad = partial(self._accessed.after_scaling, scale)
            self._scaling = optimizer

    def close(self) -> None:
        """Removes the hooks."""
        if self._scaling is not None:
            vars(self._scaling).pop("scale_grad", None)
        for hook in self._hooks:
            hook.remove()
        if self._accessed is not None:
            self._accessed.__exit__()
            self.recorded.final_sites = self._accessed.final_sites
            self.recorded.earlier_line = self._accessed.earlier_line

    def _forced_gradient(self, place: int) -> Any:
        """What the reference releases in this step of the parameter in some place, or None."""
        import torch

        like, number = self._like, len(self.recorded.steps)
        if like is not None and self.is_frozen and like.steps:
            number = self._later_steps % len(like.steps)
        parameters = self._parameters()
        if like is None or number >= len(like.steps) or place >= len(like.slices):
            return None
        if [id(p) for p in parameters] != self._described:
            return None
        values = torch.from_numpy(like.steps[number].gradient[like.slices[place]])
        return values.view(parameters[place].shape)

    def _start_step_of_sums(self) -> None:
        if self.sums is not None:
            seed = _SEED_OF_POST_PROCESSING + len(self.recorded.steps)
            seed += _SEEDS_OF_STREAM * self.stream_of_post_processing
            self.sums.start_step(PostProcessingStream(seed, self._optimizer, self._caller))

    def _forced_sum(self, index: int) -> Any:
        """What the reference releases in this step as one of its noisy sums, or None."""
        import torch

        like, number = self._like, len(self.recorded.steps)
        if like is None or number >= len(like.steps) or index >= len(like.slices):
            return None
        return torch.from_numpy(like.steps[number].gradient[like.slices[index]])

    def _release_of_sums(
        self, own: Mapping[int, Any], p_grad: Vector
    ) -> tuple[Vector, tuple[bytes, bytes]]:
        """The noisy sums of this step [D], and digests of those that the step used and of p.grad.

        A sum that is missing is zero.
        """
        trace, like = self.recorded, self._like
        places = range(len(self.sums.places) if self.sums is not None else 0)
        if like is not None:
            shapes = like.shapes
        elif not trace.steps:
            shapes = [own[index][0] if index in own else () for index in places]
        else:
            shapes = trace.shapes
        if not trace.steps:
            trace.shapes, trace.sizes = shapes, [math.prod(shape) for shape in shapes]
            parameters = self._parameters()
            if [p.numel() for p in parameters] != trace.sizes:
                trace.names = [f"noisy sum {index + 1}" for index in places]
        parts = [
            own[index][1].cpu().numpy()
            if index in own and own[index][0] == shapes[index]
            else np.zeros(math.prod(shapes[index]))
            for index in places
        ]
        release = np.concatenate(parts)
        number, used = len(trace.steps), release
        if like is not None and number < len(like.steps):
            used = like.steps[number].gradient
        return release, (_digest([used]), _digest([p_grad]))

    def _describe_parameters(self) -> None:
        import torch

        parameters = self._parameters()
        self._described = [id(p) for p in parameters]
        names_by_id = {}
        if self._model is not None:
            names_by_id = {id(p): name for name, p in self._model.named_parameters()}
        leaf_names = getattr(self._optimizer, "leaf_names", None)
        if leaf_names is not None:
            names_by_id = {id(p): name for p, name in zip(parameters, leaf_names, strict=True)}
        self.recorded.names = [
            names_by_id.get(id(p), f"parameter {i}").removeprefix("_module.")
            for i, p in enumerate(parameters)
        ]
        self.recorded.sizes = [p.numel() for p in parameters]
        self.recorded.shapes = [tuple(p.shape) for p in parameters]
        kinds = [p.dtype for p in parameters if p.is_floating_point()]
        self.recorded.epsilon_of_type = max((torch.finfo(k).eps for k in kinds), default=0.0)

    def _after_step(self) -> None:
        if self._accessed is not None:
            self._accessed.start_step()
        self._start_step_of_sums()
        steps = self.recorded.steps
        if steps and self._digests and not (self.has_more_steps or self.is_frozen):
            steps[-1] = replace(steps[-1], weights_after=_digest(self._weights()))

    def _weights(self) -> list[Any]:
        """All parameters, also those that another optimizer updates."""
        tensors = [*self._parameters(), *(() if self._model is None else self._model.parameters())]
        return list({id(tensor): tensor for tensor in tensors}.values())

    def _record_and_force(self) -> None:
        import torch

        optimizer, trace = self._optimizer, self.recorded
        parameters = self._parameters()
        own = {} if self._accessed is None else self._accessed.end_step()
        sums = {} if self.sums is None else self.sums.end_step()
        if self.sums is not None:
            trace.has_random_post_processing = self.sums.has_random_post_processing
        if self.is_frozen:
            self._repeat_forced_step(parameters)
            return
        number = len(trace.steps)
        if self._stop_after is not None and number >= self._stop_after:
            self.has_more_steps = True  # of compiled code, which does not end early
            return
        if number == 0:
            trace.line = line_of_user()
            if self._like is None:
                trace.repeats = repeated_numbers(optimizer, self._caller)
        if [id(p) for p in parameters] != self._described:
            trace.has_equal_steps = number == 0
            self._describe_parameters()
        with torch.no_grad():
            flat_gradients = [
                own[place].reshape(-1).double() if place in own else _flat_gradient(p)
                for place, p in enumerate(parameters)
            ]
            gradient = torch.cat(flat_gradients).cpu().numpy() if flat_gradients else np.zeros(0)
            stepped: tuple[bytes, bytes] | None = None
            if self.has_noisy_release:
                gradient, stepped = self._release_of_sums(sums, gradient)
            adaptive = self._threshold.is_adaptive
            noise = getattr(optimizer, "noise_multiplier", None)
            trace.steps.append(
                Step(
                    gradient,
                    self._threshold.norm,
                    None if noise is None else float(noise),
                    divisor_of(optimizer) if divides_as_opacus(optimizer) else None,
                    *self._state_digests(),
                    stepped=stepped,
                )
            )
            if self._like is not None and number < len(self._like.steps):
                self._force(self._like, number, parameters, are_new_allowed=True)
            trace.clips.append(_copied(optimizer.max_grad_norm) if adaptive else None)
            self._threshold.start_step()
        if self._stop_after is not None and len(trace.steps) >= self._stop_after and self._can_stop:
            raise _EnoughSteps

    def _force(
        self, like: Trace, number: int, parameters: list[Any], are_new_allowed: bool
    ) -> None:
        """Puts what another run released in a step in the place of this run's gradient."""
        import torch

        forced = like.steps[number].gradient
        # A value that was released before the step was forced there.
        is_earlier = self._released_at is not None or self.has_noisy_release
        pairs = () if is_earlier else zip(parameters, like.slices, strict=True)
        for p, columns in pairs:
            values = torch.from_numpy(forced[columns]).view(p.shape)
            if p.grad is not None:
                p.grad.copy_(values)
            elif are_new_allowed and np.any(forced[columns]):
                p.grad = values.to(p.device, p.dtype, copy=True)
        # Adaptive clipping releases its next threshold too.
        if number < len(like.clips) and like.clips[number] is not None:
            self._optimizer.max_grad_norm = _copied(like.clips[number])

    def _repeat_forced_step(self, parameters: list[Any]) -> None:
        """Takes a step after the tested ones with a gradient that is the same in all runs.

        The forced gradients are repeated, so that the weights of later epochs differ: a choice
        among them is then seen in the saved weights. Gradients are zero if that is impossible.
        """
        import torch

        like = self._like
        with torch.no_grad():
            if like is None or not like.steps or [id(p) for p in parameters] != self._described:
                for p in parameters:
                    if p.grad is not None:
                        p.grad.zero_()
                return
            number, self._later_steps = self._later_steps % len(like.steps), self._later_steps + 1
            self._force(like, number, parameters, are_new_allowed=False)

    def _state_digests(self) -> tuple[bytes, bytes, str]:
        if not self._digests:
            return b"", b"", ""
        optimizer = self._optimizer
        generators = digest_of_generators(optimizer, self._caller)
        return generators, _digest([*self._weights(), *self._params]), _settings(optimizer)

    def read_generators(self) -> None:
        """Keeps the states of the global generators, which a run is about to draw from."""
        self._states = global_states()

    def freeze(self, model: Any) -> None:
        """Keeps what was released up to here from a script that continues."""
        self.recorded.released = self.released(model)
        self.read_accountant()
        self.is_frozen = True

    def released(self, result: Any) -> Mapping[str, Any]:
        """Every number that the run released, by name."""
        if self.is_frozen:
            return self.recorded.released
        numbers = dict(numbers_of(result))
        if returned_states(numbers) or self.to_end:
            now = global_states().items()
            self.recorded.moved_generators = frozenset(
                library for library, state in now if state != self._states.get(library)
            )
        if self._model is not None and self._model is not result:
            numbers |= {f"model.{k}": v for k, v in numbers_of(self._model).items()}
        elif self._optimizer is not None and not numbers and not self.recorded.of_arrays:
            named_parameters = zip(self.recorded.names, self._parameters(), strict=True)
            numbers = {name: p.detach().double().cpu().numpy() for name, p in named_parameters}
        return numbers

    def keep_model(self) -> None:
        """Keeps the model, for gradients of further records."""
        if self._optimizer is not None:
            self.recorded.model = self._model
            self.recorded.parameters = self._parameters()

    def read_accountant(self) -> None:
        """Keeps the accountant and its history at the end of the run."""
        if self.is_frozen:
            return
        self.recorded.claimed = self.claimed
        self.recorded.accountant = self.accountant
        self.recorded.history = history_of(self.accountant)


def _steps_as(like: Trace, trace: Trace) -> bool:
    """Whether p.grad of a run is that of the reference, in all steps with the same releases.

    The number of records may be public, so that other tests compare runs on other numbers.
    """
    if like.number_of_records != trace.number_of_records:
        return True
    for usual, step in zip(like.steps, trace.steps, strict=False):
        if usual.stepped is None or step.stepped is None or usual.stepped[0] != step.stepped[0]:
            return True  # another release was put in the place of that of the reference
        if usual.stepped[1] != step.stepped[1]:
            return False
    return True


def _copied(value: Any) -> Any:
    if hasattr(value, "detach"):  # a tensor of torch; arrays of JAX have `clone` as well
        return value.detach().clone()
    if isinstance(value, dict | list | tuple):
        return copy.deepcopy(value)
    return value.copy() if isinstance(value, np.ndarray) else value


def _by_sorted_keys(value: Any) -> Any:
    """The same value with sorted keys, so that the place of a number does not depend on others."""
    if isinstance(value, Mapping):
        return {key: _by_sorted_keys(value[key]) for key in sorted(value, key=str)}
    return value


def _flat_numbers(value: Any) -> Vector | None:
    """[d], all numbers of a declared value; None where it holds something else."""
    try:
        leaves = Tree.of(value, "value").leaves
    except InvalidInput:
        return None
    return np.concatenate([leaf.values.astype(np.float64).ravel() for leaf in leaves])


def _settings(optimizer: Any) -> str:
    groups = optimizer.param_groups
    return repr([{k: v for k, v in group.items() if k != "params"} for group in groups])


def _flat_gradient(parameter: Any) -> Any:
    import torch

    if parameter.grad is None:
        return torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    gradient = parameter.grad.detach()
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    return gradient.reshape(-1).double()


def _digest(tensors: Sequence[Any]) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        values = as_numbers(tensor)
        state.update(b"" if values is None else values.tobytes())
    return state.digest()

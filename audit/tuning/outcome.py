"""A trial, its outcome, and the result of a study."""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.accounting import Composition, DpSgd, Mechanism, from_opacus
from audit.errors import InvalidInput, ProtocolViolation
from audit.opacus_objects import (
    batch_sampler_of,
    divisor_at_rest,
    own_generator_of,
    step_counter_of,
)
from audit.tuning import snapshots
from audit.tuning.checkpoints import Checkpoints
from audit.tuning.secret_draws import Draws
from audit.tuning.space import Candidate

_N_IS_PUBLIC = "state neighbours='zero-out' (the number of records is public)"

# Relative error of a recorded noise or rate that rounding alone may cause.
_ROUNDING = 1e-9


def _same(value: float, compared: float) -> bool:
    return math.isclose(value, compared, rel_tol=_ROUNDING)


@dataclass(frozen=True)
class Outcome:
    """Result of one run, returned by `train`.

    Attributes:
        score: higher is better; a run whose score is not a finite number loses.
        model: an output of the private mechanism, which is released if the run wins.

    Example:
        >>> Outcome(score=0.93).lost, Outcome(score=float("nan")).lost
        (False, True)
    """

    score: float
    model: Any = None

    def __post_init__(self) -> None:
        try:
            number = float(self.score)
        except OverflowError:  # a whole number beyond the largest float loses, as infinity does
            number = math.inf
        except (TypeError, ValueError):
            # The value is an output of a run, so only its type is shown.
            kind = checks.kind_of(self.score)
            raise ProtocolViolation(f"score must be a number, got {kind}") from None
        object.__setattr__(self, "score", number)

    @property
    def lost(self) -> bool:
        """Whether the run cannot win."""
        return not math.isfinite(self.score)


@dataclass(frozen=True)
class Best:
    """Released result of a study: the best run, or the statement that there was none.

    If the protocol has a final run, score and model are those of the final run.

    Attributes:
        candidate: its hyperparameters; None if no run was drawn, or every run lost.
        score: its score; None also if a final run failed.
        model: its model, as `train` returned it.
        runners_up: the other released runs, best first, if the protocol releases several.
        step: index of its step, from 0, if the protocol is a schedule of budgets.

    Example:
        >>> Best({"learning_rate": 0.1}, 0.93).score
        0.93
    """

    candidate: Candidate | None = None
    score: float | None = None
    model: Any = None
    runners_up: tuple["Best", ...] = ()
    step: int | None = None


@dataclass(frozen=True)
class Part:
    """The private records that a run may read, if the tuning reads a random part of them.

    The seed is the same for all runs of a study. A record is in the part with probability `rate`.
    `final` is None for the runs of the tuning; the final run reads the `rest` or `all`.
    """

    seed: int
    rate: float
    final: str | None = None

    def mask(self, count: int) -> NDArray[np.bool_]:
        """Whether each record may be read, [count]."""
        if self.final == "all":
            return np.ones(count, dtype=np.bool_)
        tuned_on: NDArray[np.bool_] = Draws(self.seed).random(count) < self.rate
        return tuned_on if self.final is None else ~tuned_on


class Unwatched:
    """`Trial.watch` in a study: it does nothing."""

    def __init__(self) -> None:
        self.called = False

    def __call__(self, *watched: Any) -> None:
        """Ignores its arguments; `called` shows that the function can be tested."""
        self.called = True

    def release(self, value: Any) -> Any:
        """Returns the value."""
        return value

    def step(self, noisy: Any, params: Any = None, **others: Any) -> Any:
        """Returns the noisy value of a step of a loop of arrays."""
        self.called = True
        return noisy


@dataclass
class Trial:
    """Description of one run, passed to `train`.

    Attributes:
        candidate: the hyperparameters of the run.
        base: the mechanism that the run must be; it may be more private.
        seed: the seed of all random draws of the run. It must stay secret.
        part: the records that the run may read, for `records`; None for all.
        expected_batch_size: the constant divisor of every noisy sum; None if the study states none.
        watch: call `trial.watch(optimizer, model)` before the first step, so that
            `Study.rehearse` can test the training loop (see `audit.loop.Watch`). In the
            study itself, it does nothing.
        device: one of the `devices` of `Study.run`; "cpu" if it was called without devices.
        checked: names of the checks that this run has passed.
        checkpoints: the saved states of this run, for `save_state`, `load_state` and `folder`.

    Example:
        >>> from audit.accounting import DpSgd
        >>> trial = Trial({"learning_rate": 0.1}, DpSgd(noise_multiplier=2.0, steps=100), seed=1)
        >>> trial.noise_multiplier, trial.steps
        (2.0, 100)
    """

    candidate: Candidate
    base: Mechanism
    seed: int
    part: Part | None = None
    expected_batch_size: float | None = None
    watch: Any = field(default_factory=Unwatched, repr=False)
    device: str = "cpu"
    checked: set[str] = field(default_factory=set, init=False)
    checkpoints: Checkpoints = field(default_factory=Checkpoints, init=False, repr=False)

    def __post_init__(self) -> None:
        self.checkpoints.steps = self.base.steps if isinstance(self.base, DpSgd) else None
        self._may_read = np.ones(0, dtype=np.bool_)
        # What `check` was given, by identity: it may be called several times.
        self._accountants: dict[int, Any] = {}
        self._loaders: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}

    @property
    def is_final(self) -> bool:
        """Whether this is the final run, with the candidate that the tuning chose."""
        return self.part is not None and self.part.final is not None

    def records(self, count: int) -> NDArray[np.bool_]:
        """The private records that this run may read; required if it may not read all.

        Args:
            count: number of private records; the records and their order are the same in every run.

        Returns:
            [count] True for the records that the run may read.
        """
        count = checks.integer("count", count, 0)
        self.checked.add("records")
        self._may_read = (
            np.ones(count, dtype=np.bool_) if self.part is None else self.part.mask(count)
        )
        return self._may_read.copy()

    @property
    def folder(self) -> Path:
        """A folder for files of this run, such as the checkpoints of a trainer.

        Only its owner can read it. A run that resumes has the same folder, with the same seed and
        candidate. The folder is deleted when the run loses or the study ends. Its content is not
        released, and no one else may see it. A study in memory, and a worker that does not see the
        folder of the study, have a temporary folder, which is deleted with the run.

        Example:
            >>> from audit.accounting import GaussianMechanism
            >>> trial = Trial({}, GaussianMechanism(0.5), seed=1)
            >>> (trial.folder / "notes.txt").write_text("private")
            7
        """
        return self.checkpoints.files()

    def save_state(self, steps: int, **objects: Any) -> None:
        """Saves the state of the run, from which `load_state` continues it after an interruption.

        The state includes the generators of Python, numpy and torch. A generator of the run's own
        must be among the objects: numpy's `Generator`, torch's `Generator`, a loader with a
        generator, or a key of JAX. With Opacus, pass the model, the optimizer, the loader and the
        engine. The former state remains until the new one is on disk.

        A loader draws a random number when an iteration over it begins. So call this between two
        iterations over a loader, not within one.

        Args:
            steps: number of steps that the run has taken so far, at most those of the base.
            objects: everything that the remaining steps depend on, by name: objects with
                `state_dict` and `load_state_dict`, generators, arrays, trees of JAX, numbers, and
                lists, tuples and dictionaries of them.

        Raises:
            InvalidInput: an object has no state that can be stored, or `steps` is not what an
                accountant among the objects has recorded. The study stops, and can be resumed.

        Example:
            >>> import numpy as np
            >>> from audit.accounting import GaussianMechanism
            >>> trial = Trial({}, GaussianMechanism(0.5), seed=1)
            >>> generator, weights = np.random.default_rng(trial.seed), np.zeros(3)
            >>> trial.save_state(10, generator=generator, weights=weights)
            >>> following = generator.normal()
            >>> trial.load_state(generator=generator)
            {'weights': array([0., 0., 0.]), 'steps': 10}
            >>> generator.normal() == following
            True
        """
        if "steps" in objects:
            raise InvalidInput("objects must not be named 'steps', which is the number of steps")
        self.checkpoints.save(steps, objects, self.device)

    def load_state(self, **objects: Any) -> dict[str, Any] | None:
        """Restores the state that an interrupted attempt at this run saved; None if there is none.

        Call it after everything that draws random numbers at the beginning of a run, and draw none
        between it and the next step.

        A run that would repeat steps with other noise or another rounding draws new noise instead:
        all global generators, those among the objects, and keys of JAX get new states, also if
        there is no state yet. The study counts its steps (`redrawn_steps`).

        Args:
            objects: the objects of `save_state` whose state is restored in place, by the same
                names. Arrays, numbers and collections need not be given. For a tree of JAX with
                nodes of its own, such as the state of optax, pass one of the same structure.

        Returns:
            The saved values that are not restored in place, by name, and `steps`.

        Raises:
            InvalidInput: the objects are not those of `save_state`, a step was taken before, or all
                attempts at the run might take more than `redrawn_steps` of the study in addition to
                its steps. The study stops.

        Example:
            >>> from audit.accounting import GaussianMechanism
            >>> Trial({}, GaussianMechanism(0.5), seed=1).load_state() is None
            True
        """
        return self.checkpoints.load(objects, self.device)

    def _of_dp_sgd(self, name: str) -> Any:
        if not isinstance(self.base, DpSgd):
            raise AttributeError(f"{name} is known only if the base is DP-SGD, got {self.base!r}")
        return getattr(self.base, name)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise of every step, in units of the clipping norm."""
        return float(self._of_dp_sgd("noise_multiplier"))

    @property
    def steps(self) -> int:
        """The number of steps that the run may take."""
        return int(self._of_dp_sgd("steps"))

    @property
    def sampling_rate(self) -> float:
        """Probability that a record is in a batch."""
        return float(self._of_dp_sgd("sampling_rate"))

    def check(self, accountant: Any, data_loader: Any = None, optimizer: Any = None) -> None:
        """Checks that the run is the mechanism that the study accounts for; call it after training.

        The check is repeated when `train` returns, so steps taken later count, and an error that
        `train` catches is raised again.

        With add-remove neighbours the number of records n is private. Then the divisor of the noisy
        sums, the sampling rate, the noise and the number of steps must be constants of the study.
        The certificate lists everything that cannot be compared as on trust.

        Args:
            accountant: the Opacus accountant of the run, or its PrivacyEngine. The steps of several
                accountants in one run add up.
            data_loader: the source of the batches, to check that they were Poisson sampled, which
                an accountant does not record. It must sample like Opacus' `DPDataLoader`.
            optimizer: Opacus' optimizer, to check the divisor of the noisy sums, which is
                int(n * rate) unless `optimizer.expected_batch_size` is set after `make_private`.

        Raises:
            ProtocolViolation: the run has more steps, less noise, a higher sampling rate, or
                batches that were not Poisson sampled; with add-remove neighbours also a divisor or
                a rate that depends on the number of records. The study then aborts. The same is
                raised if the accountant is not that of one run, the base is not DP-SGD, or a
                generator of the noise or of the batches has the seed of torch's global generator.
        """
        inner = getattr(accountant, "accountant", accountant)
        self._accountants[id(inner)] = inner
        if data_loader is not None:
            self._loaders[id(data_loader)] = data_loader
        if optimizer is not None:
            self._optimizers[id(optimizer)] = optimizer
        if reason := snapshots.reason_to_redraw({"engine": accountant, "optimizer": optimizer}):
            self.checkpoints.redraws(reason)
        self.check_again()

    def check_again(self) -> None:
        """Repeats all checks with the present state of the objects that `check` was given.

        Raises:
            ProtocolViolation: a check fails.
        """
        if not self._accountants:
            return
        if not isinstance(self.base, DpSgd):
            raise ProtocolViolation(
                f"base must be DP-SGD to be checked, got {self.base.description}"
            )
        try:
            recorded = [
                from_opacus(accountant, self.base.neighbours)
                for accountant in self._accountants.values()
            ]
        except ValueError as error:
            raise ProtocolViolation(str(error)) from error
        phases = [
            phase
            for mechanism in recorded
            for phase in (mechanism.parts if isinstance(mechanism, Composition) else (mechanism,))
            if isinstance(phase, DpSgd)
        ]
        steps = sum(phase.steps for phase in phases) + self.checkpoints.unrecorded_steps
        noise = min(phase.noise_multiplier for phase in phases)
        rate = max(phase.sampling_rate for phase in phases)
        for name, used, allowed, side in (
            ("steps", steps, self.base.steps, 1.0),
            ("noise_multiplier", noise, self.base.noise_multiplier, -1.0),
            ("sampling_rate", rate, self.base.sampling_rate, 1.0),
        ):
            if side * used > side * allowed * (1.0 + side * _ROUNDING):
                word = "at most" if side > 0 else "at least"
                raise ProtocolViolation(f"{name} must be {word} {allowed!r} in a run, got {used!r}")
        self.checked |= {"steps", "noise_multiplier", "sampling_rate"}
        for source in (*self._optimizers.values(), *self._loaders.values()):
            self._check_generators(source)
        for loader in self._loaders.values():
            self._check_loader(loader, self.base.sampling_rate)
        if self.base.neighbours == "add-remove":
            self._check_rates([phase.sampling_rate for phase in phases], self.base.sampling_rate)
            for optimizer in self._optimizers.values():
                self._check_divisor(optimizer, rate)
            if steps == self.base.steps and all(
                _same(phase.noise_multiplier, self.base.noise_multiplier)
                and _same(phase.sampling_rate, self.base.sampling_rate)
                for phase in phases
            ):
                self.checked.add("constants")

    def _check_generators(self, source: Any) -> None:
        """Refuses a generator with the seed of torch's global one.

        The noise would be a function of the initial weights, which are no secret. The study gives
        the global generator a seed of its own, but the run may have seeded it again.
        """
        torch = sys.modules.get("torch")
        if torch is None:
            return
        for owner in (source, batch_sampler_of(source)):
            generator = own_generator_of(owner)
            if generator is None:
                continue
            # On a processor, torch uses 32 bits of a seed.
            bits = 0xFFFFFFFF if generator.device.type == "cpu" else 0xFFFFFFFFFFFFFFFF
            if (generator.initial_seed() ^ torch.initial_seed()) & bits == 0:
                raise ProtocolViolation(
                    "the generator of the noise or of the batches must not have the seed of "
                    "torch's global generator: it repeats the numbers of the initial weights; use "
                    "torch.Generator().manual_seed(int(torch.randint(2**62, ())))"
                )

    def _check_rates(self, rates: Iterable[float], constant: float) -> None:
        """Refuses a rate of 1 / len(loader): with batches of fixed size, it depends on n."""
        for loader in self._loaders.values():
            batches = len(loader) if hasattr(loader, "__len__") else 0
            for rate in rates:
                if batches and not _same(rate, constant) and _same(rate * batches, 1.0):
                    raise ProtocolViolation(
                        f"sampling_rate must be the study's {constant!r} with add-remove "
                        "neighbours, got 1/len(data_loader), which depends on the number of "
                        f"records; pass trial.sampling_rate to the sampler, or {_N_IS_PUBLIC}"
                    )

    def _check_divisor(self, optimizer: Any, rate: float) -> None:
        """Refuses a divisor of the noisy sums other than the study's constant."""
        accountant = step_counter_of(optimizer).accountant
        if accountant is not None and id(accountant) not in self._accountants:
            raise ProtocolViolation("optimizer must be the one whose steps the accountant counts")
        divisor = divisor_at_rest(optimizer)
        if getattr(optimizer, "loss_reduction", None) == "sum":
            self.checked.add("divisor")
            return
        if divisor is None:
            raise ProtocolViolation(
                f"optimizer must be Opacus's, got {checks.kind_of(optimizer)} without "
                "expected_batch_size"
            )
        constant = self.expected_batch_size
        if constant is not None and _same(divisor, constant):
            self.checked.add("divisor")
            return
        data: list[Any] = [getattr(loader, "dataset", None) for loader in self._loaders.values()]
        counts = [len(dataset) for dataset in data if hasattr(dataset, "__len__")]
        computed = any(_same(divisor, int(count * rate)) for count in counts)
        if constant is None and not computed:
            return
        # The value is not shown, because it may reveal the number of records.
        stated = "int(n * rate), where n is the number of records" if computed else "another value"
        must = "a constant of the study" if constant is None else f"the study's {constant!r}"
        raise ProtocolViolation(
            f"expected_batch_size must be {must} with add-remove neighbours, got {stated}; give "
            "tuning.Study an expected_batch_size and set optimizer.expected_batch_size = "
            f"trial.expected_batch_size after make_private, or {_N_IS_PUBLIC}"
        )

    def _check_loader(self, data_loader: Any, allowed: float) -> None:
        if self.part is not None:
            # The number of records is a secret draw of the study, so it is not shown.
            if len(data_loader.dataset) != int(self._may_read.sum()):
                raise ProtocolViolation(
                    "data_loader must hold the records that trial.records names, and no others"
                )
            self.checked.add("count_of_records")
        if allowed < 1.0:
            sampler = batch_sampler_of(data_loader)
            kind = type(sampler).__name__
            if "UniformWithReplacementSampler" not in kind:
                raise ProtocolViolation(
                    "data_loader must sample batches by Poisson sampling, as Opacus' DPDataLoader "
                    f"does, got {type(data_loader).__name__} with {kind}"
                )
            sampled = getattr(sampler, "sample_rate", math.nan)
            if not sampled <= allowed * (1.0 + _ROUNDING):
                raise ProtocolViolation(
                    f"data_loader must sample at a rate of at most {allowed!r}, got {sampled!r}"
                )
            self.checked.add("poisson_sampling")

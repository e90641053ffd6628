"""What one run is told, what it gives back, and what the whole study releases."""

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.accounting import (
    Composition,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    WorstOf,
    from_opacus,
    group_size,
)
from audit.tuning.secret_draws import Draws
from audit.tuning.space import Candidate

__all__ = ["Best", "Outcome", "Part", "Private", "ProtocolViolation", "StudyAborted", "Trial"]

_N_IS_PUBLIC = "state neighbours='zero-out' (the number of records is public)"

# How far a recorded noise or rate may be off by rounding alone.
_ROUNDING = 1e-9


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_ROUNDING)


def _has_count(data_loader: Any) -> bool:
    return hasattr(getattr(data_loader, "dataset", None), "__len__")


class ProtocolViolation(ValueError):
    """A run was not the mechanism that the study accounts for; the message names what was not.

    Example:
        >>> try:
        ...     Outcome(score="high")
        ... except ProtocolViolation as error:
        ...     print(error)
        score must be a number, got a str
    """


class StudyAborted(RuntimeError):
    """The study is over without a release: something was not as the guarantee needs it.

    Example:
        >>> print(StudyAborted("train returned no Outcome"))
        train returned no Outcome
    """


@dataclass(frozen=True)
class Private:
    """The score reads private records, and noise is added to it.

    `train` returns the statistic without noise; the study adds N(0, noise_std^2) to it, and nothing
    else is known of it. A score without noise on private records has no guarantee at all.

    Attributes:
        noise_std: standard deviation of the noise, > 0, in units of the score.
        sensitivity: how far one record of a neighbouring data set can move the score, > 0.
        disjoint: whether the records scored on are none of those trained on. A record is then in
            one or the other, and a run costs what the worse of the two does; else both compose.

    Example:
        >>> Private(noise_std=0.01, sensitivity=0.002).mechanism
        GaussianMechanism(mu=0.2)
    """

    noise_std: float
    sensitivity: float
    disjoint: bool = True

    def __post_init__(self) -> None:
        try:
            std = checks.interval("noise_std", self.noise_std, 0.0)
        except ValueError as error:
            raise ValueError(
                f"{error}: a score with no noise on private records has no guarantee"
            ) from None
        checks.store_validated(
            self, noise_std=std, sensitivity=checks.interval("sensitivity", self.sensitivity, 0.0)
        )

    @property
    def mechanism(self) -> Mechanism:
        """What one noisy score costs."""
        return GaussianMechanism(self.sensitivity / self.noise_std)

    def with_training(self, training: Mechanism) -> Mechanism:
        """What one run costs, training and noisy score."""
        # Of several records of one person, some may be scored on and others trained on.
        if self.disjoint and group_size(training) == 1:
            return WorstOf((training, self.mechanism))
        return Composition((training, self.mechanism))


@dataclass(frozen=True)
class Outcome:
    """What `train` returns of one run.

    Attributes:
        score: higher is better; a run whose score is not a finite number loses.
        model: what is released if the run wins: any output of the private mechanism.

    Example:
        >>> Outcome(score=0.93).lost, Outcome(score=float("nan")).lost
        (False, True)
    """

    score: float
    model: Any = None

    def __post_init__(self) -> None:
        try:
            number = float(self.score)
        except (TypeError, ValueError):
            # What came is an output of a run: only its type is told.
            came = type(self.score).__name__
            raise ProtocolViolation(f"score must be a number, got a {came}") from None
        object.__setattr__(self, "score", number)

    @property
    def lost(self) -> bool:
        """Whether the run can not win."""
        return not math.isfinite(self.score)


@dataclass(frozen=True)
class Best:
    """What a study releases: the best run, or that there was none.

    Where the protocol has a final run, score and model are those of the final run.

    Attributes:
        candidate: its hyper-parameters; None where no run was drawn, or every run lost.
        score: its score; None also where a final run failed.
        model: what `train` returned with it.

    Example:
        >>> Best({"learning_rate": 0.1}, 0.93).score
        0.93
    """

    candidate: Candidate | None = None
    score: float | None = None
    model: Any = None


@dataclass(frozen=True)
class Part:
    """Which private records a run may read, where the tuning runs read a random part of them.

    Attributes:
        seed: of the coins of all records, the same for all runs of a study.
        rate: chance of a record to be tuned on.
        final: None while tuning; the final run reads the `rest` or `all`.
    """

    seed: int
    rate: float
    final: str | None = None

    def mask(self, count: int) -> NDArray[np.bool_]:
        """Whether each of so many records may be read, [count]."""
        if self.final == "all":
            return np.ones(count, dtype=np.bool_)
        tuned_on: NDArray[np.bool_] = Draws(self.seed).random(count) < self.rate
        return tuned_on if self.final is None else ~tuned_on


@dataclass
class Trial:
    """What `train` is told of one run.

    Attributes:
        candidate: the hyper-parameters drawn.
        base: the private mechanism that the run must be, or be more private than.
        seed: for whatever of the run is to be drawn; secret, as everything is that follows from it.
        part: which records it may read, for `records`; None for all.
        expected_batch_size: what every noisy sum is to be divided by, a constant of the study that
            does not depend on the number of records; None where the study names none.
        checked: what `records` and `check` have seen of this run.

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
    checked: set[str] = field(default_factory=set)
    _may_read: NDArray[np.bool_] = field(
        default_factory=lambda: np.ones(0, dtype=np.bool_), repr=False
    )
    _accountants: dict[int, Any] = field(default_factory=dict, repr=False)
    _loaders: dict[int, Any] = field(default_factory=dict, repr=False)
    _optimizers: dict[int, Any] = field(default_factory=dict, repr=False)

    @property
    def is_final(self) -> bool:
        """Whether this is the final run, with the candidate that the tuning chose."""
        return self.part is not None and self.part.final is not None

    def records(self, count: int) -> NDArray[np.bool_]:
        """Which private records this run may read; it must ask where not all are to be read.

        Args:
            count: how many there are, in every run the same, in the same order.

        Returns:
            [count] True for those that may be read.
        """
        count = checks.integer("count", count, 0)
        self.checked.add("records")
        self._may_read = (
            np.ones(count, dtype=np.bool_) if self.part is None else self.part.mask(count)
        )
        return self._may_read.copy()

    def _of_dp_sgd(self, name: str) -> Any:
        if not isinstance(self.base, DpSgd):
            raise AttributeError(f"{name} is known where the base is DP-SGD, got {self.base!r}")
        return getattr(self.base, name)

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation of every step, in clipping norms."""
        return float(self._of_dp_sgd("noise_multiplier"))

    @property
    def steps(self) -> int:
        """How many steps the run may take."""
        return int(self._of_dp_sgd("steps"))

    @property
    def sampling_rate(self) -> float:
        """Chance of a record to be in a batch."""
        return float(self._of_dp_sgd("sampling_rate"))

    def check(self, accountant: Any, data_loader: Any = None, optimizer: Any = None) -> None:
        """Checks that the run was what the study accounts for; call it after training.

        What it was given is looked at once more when `train` returns: steps taken after it count,
        and an error that `train` catches is raised again.

        With add-remove neighbours the number of records n is private. Then the divisor of the noisy
        sums, the sampling rate, the noise and the number of steps must be constants of the study,
        and are compared with them. What is not passed, or is smaller than the study's own, is taken
        on trust, and the certificate says so.

        Args:
            accountant: the Opacus accountant of the run, or its PrivacyEngine. Of several in one
                run the steps add up.
            data_loader: what the batches came from, to check that they were Poisson sampled; an
                accountant does not know. Only `DPDataLoader` is known to.
            optimizer: Opacus's, to check what it divides noisy sums by: int(n * rate), unless
                `optimizer.expected_batch_size` is set after `make_private`.

        Raises:
            Inadmissible: more steps, less noise, a higher sampling rate, or batches that were not
                Poisson sampled; with add-remove neighbours also a divisor or a rate that depends on
                the number of records. It ends the study without a release.
                The same if what came is no accountant of one run, or the base not DP-SGD.
        """
        own = getattr(accountant, "accountant", accountant)
        self._accountants[id(own)] = own
        if data_loader is not None:
            self._loaders[id(data_loader)] = data_loader
        if optimizer is not None:
            self._optimizers[id(optimizer)] = optimizer
        self.check_again()

    def check_again(self) -> None:
        """Checks all that `check` was given, as it stands now; nothing if it was given nothing.

        Raises:
            Inadmissible: as `check`.
        """
        if not self._accountants:
            return
        if not isinstance(self.base, DpSgd):
            raise ProtocolViolation(
                f"base must be DP-SGD to be checked, got {self.base.description}"
            )
        try:
            recorded = [
                from_opacus(one, self.base.neighbours) for one in self._accountants.values()
            ]
        except ValueError as error:
            raise ProtocolViolation(str(error)) from error
        phases = [
            part
            for one in recorded
            for part in (one.parts if isinstance(one, Composition) else (one,))
            if isinstance(part, DpSgd)
        ]
        steps = sum(phase.steps for phase in phases)
        noise = min(phase.noise_multiplier for phase in phases)
        rate = max(phase.sampling_rate for phase in phases)
        for name, came, allowed, side in (
            ("steps", steps, self.base.steps, 1.0),
            ("noise_multiplier", noise, self.base.noise_multiplier, -1.0),
            ("sampling_rate", rate, self.base.sampling_rate, 1.0),
        ):
            if side * came > side * allowed * (1.0 + side * _ROUNDING):
                word = "at most" if side > 0 else "at least"
                raise ProtocolViolation(f"{name} must be {word} {allowed!r} in a run, got {came!r}")
        self.checked |= {"steps", "noise_multiplier", "sampling_rate"}
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

    def _check_rates(self, rates: Iterable[float], constant: float) -> None:
        """A rate of 1/len(loader), with a loader of fixed batches, depends on n."""
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
        """What noisy sums are divided by must be the study's constant, and not int(n * rate)."""
        counting = getattr(optimizer, "step_hook", None)
        # Opacus's hook is a closure over the accountant that counts its steps.
        inside = inspect.getclosurevars(counting).nonlocals if inspect.isfunction(counting) else {}
        for one in inside.values():
            if hasattr(one, "history") and id(one) not in self._accountants:
                raise ProtocolViolation(
                    "optimizer must be the one whose steps the accountant counts"
                )
        if getattr(optimizer, "loss_reduction", None) == "sum":
            self.checked.add("divisor")
            return
        divisor = getattr(optimizer, "expected_batch_size", None)
        if divisor is None:
            raise ProtocolViolation(
                f"optimizer must be Opacus's, got a {type(optimizer).__name__} without "
                "expected_batch_size"
            )
        # Of several workers, each divides by its share.
        divisor = divisor * getattr(optimizer, "world_size", 1)
        constant = self.expected_batch_size
        if constant is not None and _same(divisor, constant):
            self.checked.add("divisor")
            return
        counts = [len(loader.dataset) for loader in self._loaders.values() if _has_count(loader)]
        computed = any(_same(divisor, int(count * rate)) for count in counts)
        if constant is None and not computed:
            return
        # The value itself is not shown: it may tell the number of records.
        came = "int(n * rate), where n is the number of records" if computed else "another value"
        must = "a constant of the study" if constant is None else f"the study's {constant!r}"
        raise ProtocolViolation(
            f"expected_batch_size must be {must} with add-remove neighbours, got {came}; give "
            "tuning.Study an expected_batch_size and set optimizer.expected_batch_size = "
            f"trial.expected_batch_size after make_private, or {_N_IS_PUBLIC}"
        )

    def _check_loader(self, data_loader: Any, allowed: float) -> None:
        if self.part is not None:
            # How many there are is not told: it is a draw of the study.
            if len(data_loader.dataset) != int(self._may_read.sum()):
                raise ProtocolViolation(
                    "data_loader must hold the records that trial.records names, and no others"
                )
            self.checked.add("count_of_records")
        if allowed < 1.0:
            sampler: Any = getattr(data_loader, "batch_sampler", None)
            if type(sampler).__name__ == "BatchSplittingSampler":  # of Opacus' BatchMemoryManager
                sampler = sampler.sampler
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

"""Private tuning: the user trains; the study draws the candidates and releases the best run."""

import contextlib
import hashlib
import itertools
import json
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audit import checks, protocols
from audit.accounting import NEIGHBOURS, DpSgd, Mechanism, mechanism_to_dict, parse_mechanism
from audit.certificate.certificate import Certificate
from audit.certificate.conditions import Private, StudyFacts, check_score
from audit.certificate.released import model_hash
from audit.errors import InvalidInput, PrivacyLeak, StudyAborted
from audit.numerics import format_exact, format_rounded
from audit.processes import device_names, shared_devices, watch_ray
from audit.protocols import (
    Protocol,
)
from audit.tuning.checkpoints import ResumeRules
from audit.tuning.elapsed_time import CHANCE, elapsed_time, worst_seconds
from audit.tuning.isolation import silent_for_good
from audit.tuning.journal import Journal, Memory
from audit.tuning.outcome import Best, Outcome, Trial
from audit.tuning.plan import Plan, Training
from audit.tuning.play import Played, best_so_far, interruptions, play
from audit.tuning.rehearsal import (
    Rehearsal,
    WithRecords,
    can_test,
    check_loop,
    conditions_tested,
    fingerprint,
    synthetic,
)
from audit.tuning.space import Choice, Space
from audit.tuning.stopping import Stopped, stopped_cost
from audit.upper_bounds import ProtocolLike, UpperBound, costs_of, least_noise, schedule_ex_post
from audit.version import __version__

if TYPE_CHECKING:
    from audit.loop.findings import PremiseReport

_PUBLIC = "public"
# In the text of functions and of objects without a text of their own.
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
# The safe default: most training loops compute the divisor of their noisy sums from n.
_NEIGHBOURS = "zero-out"


class Study:
    """Private tuning: releasing the best run (or the best few) is (epsilon, delta)-DP in total.

    The study draws K, the candidates and all seeds from 256 bits of the operating system's entropy,
    through SHAKE-256. It does not show the number of runs, the losing runs or their scores. They
    are kept on disk, readable by their owner alone, until the study is over, so that an interrupted
    study resumes with the same draws. The run time still reveals K to anyone who can measure it:
    see the page on sharp edges.

    Args:
        space: a list of values, `Uniform`, `LogUniform` or `Integer` for every hyperparameter; or a
            list of complete candidates. Lists named `steps` and `sampling_rate` are budgets of a
            run. A random search then costs the mean over them, a grid the budget of each candidate,
            and a protocol with a final run the largest. More than eight different budgets are
            accounted for in eight groups, each at its largest budget.
        protocol: a distribution of K, which means random search, or another protocol that a study
            can run, as an object or as text. A `Grid` runs the candidates of a finite space.
        epsilon: budget of the whole tuning, > 0; for a schedule, of all steps together. It may be
            omitted if `base` is given.
        delta: delta of the whole tuning, in (0, 1).
        steps: number of steps of one run of DP-SGD.
        sampling_rate: probability that a record is in a batch, in (0, 1]; 1 is full batch.
        neighbours: `zero-out` (the number of records n is public, the default), `add-remove` or
            `replace-one`. The first two have the same numbers. State `add-remove` only if nothing
            in a run depends on n: neither the divisor of the noisy sums nor the sampling rate nor
            the number of steps. `Trial.check` compares them with the constants given here.
        expected_batch_size: the constant divisor of the noisy sums of every run. It must not be
            computed from the number of records. Opacus divides by int(n * rate) unless `train` sets
            `optimizer.expected_batch_size = trial.expected_batch_size` after `make_private`.
        group_size: k, the largest number of records of one person. The guarantee then holds for all
            of them together; the accounting uses their binomial number in each sampled batch.
        redrawn_steps: R. All attempts at one run may take R steps more than the run has, because
            the state of its generator cannot be saved or a step is not reproducible. The cost
            counts them in every run; see `Trial.load_state`.
        checkpoint_every: c. Such a run saves its state at least once in c steps. If the study sees
            the steps of its optimizer (Opacus), an interruption counts as repeating at most c
            steps, otherwise as repeating all steps after the checkpoint.
        base: the mechanism of one run, if it is not DP-SGD whose noise the study computes.
        scored_on: `public`, or `Private` with the noise of the score.
        seed: replaces the entropy, to repeat a study. Anyone who knows it can compute all random
            draws, so the certificate is void.
        folder: folder from which an interrupted study resumes; by default `.tuning-study-` and a
            hash of the settings, in the working directory. None keeps the study in memory only.
        keep: whether the folder remains after the end; running the study again then returns the
            same result.

    Raises:
        InvalidInput: an argument is out of its range, or no noise meets the budget.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> study = Study({"lr": [0.1, 1.0]}, "fixed:5", delta=1e-5, seed=1, folder=None,
        ...               base=GaussianMechanism(0.5))
        >>> best = study.run(lambda trial: Outcome(score=trial.candidate["lr"]))
        >>> best.candidate
        {'lr': 1.0}
        >>> round(study.total_epsilon, 3)
        4.599
    """

    def __init__(
        self,
        space: Space | Mapping[str, Any] | Iterable[Mapping[str, Any]],
        protocol: ProtocolLike = protocols.DEFAULT_REPETITIONS,
        epsilon: float | None = None,
        delta: float = 1e-5,
        *,
        steps: int | None = None,
        sampling_rate: float = 1.0,
        neighbours: str = _NEIGHBOURS,
        expected_batch_size: float | None = None,
        group_size: int = 1,
        redrawn_steps: int = 0,
        checkpoint_every: int | None = None,
        base: str | Mechanism | None = None,
        scored_on: str | Private = _PUBLIC,
        seed: int | None = None,
        folder: str | Path | None = "",
        keep: bool = False,
    ) -> None:
        self.space = Space.parse(space)
        _check_same_everywhere(self.space)
        self.protocol = _supported(protocol, self.space)
        self.delta = checks.interval("delta", delta, 0.0, 1.0)
        self.epsilon = None if epsilon is None else checks.interval("epsilon", epsilon, 0.0)
        self.private = _score_noise(scored_on)
        self.seed = None if seed is None else checks.integer("seed", seed, 0)
        self.keep = checks.flag("keep", keep)
        self.expected_batch_size = (
            None
            if expected_batch_size is None
            else checks.interval("expected_batch_size", expected_batch_size, 0.0)
        )
        self._resume_rules = ResumeRules(redrawn_steps, checkpoint_every)
        self._training = Training(
            None if steps is None else checks.integer("steps", steps, 1),
            checks.interval("sampling_rate", sampling_rate, 0.0, 1.0, closed_high=True),
            checks.one_of("neighbours", neighbours, NEIGHBOURS),
            None if base is None else parse_mechanism(base),
            checks.integer("group_size", group_size, 1),
            self._resume_rules.redrawn_steps,
        )
        self._budgets = self._training.budgets(self.space)
        self._check_training()
        self.noise_multiplier = self._solved_noise()
        self.base = self._mechanism(self.noise_multiplier or 0.0, self.private)
        self._check_cost()
        self._memory = self._memory_in(folder)
        self._played: Played | None = None
        self._stopped: Stopped | None = None
        self._rehearsed = False
        self._run_seconds: float | None = None  # of a run on synthetic or public records
        # The tested conditions, and the function and the kind of records of the test.
        self._tested: dict[str, Any] = {}
        self.premises: PremiseReport | None = None

    def __repr__(self) -> str:
        return f"Study({self.protocol.spec}, {self.base}, delta={format_exact(self.delta)})"

    def _check_training(self) -> None:
        training = self._training
        check_score(self.protocol, self.private)
        if self.protocol.trains_on_subset and training.neighbours == "replace-one":
            raise InvalidInput(
                f"neighbours must be add-remove or zero-out with {self.protocol.spec}, got "
                f"{training.neighbours!r}"
            )
        if training.base is None:
            if self.epsilon is None or (
                training.steps is None and "steps" not in self.space.dimensions
            ):
                raise InvalidInput("epsilon and steps, or base, must be given, got neither")
        elif replace(training, base=None) != Training(None, 1.0, _NEIGHBOURS, None):
            raise InvalidInput(
                "steps, sampling_rate, redrawn_steps, neighbours and group_size must not be given "
                "with base"
            )

    def _solved_noise(self) -> float | None:
        base = self._training.base
        if base is not None:
            return base.noise_multiplier if isinstance(base, DpSgd) else None
        assert self.epsilon is not None
        return least_noise(
            lambda noise: self._mechanism(noise, self.private),
            self.protocol,
            target_epsilon=self.epsilon,
            target_delta=self.delta,
        )

    def _mechanism(self, noise_multiplier: float, score: Private | None) -> Mechanism:
        return self._training.mechanism(noise_multiplier, self._budgets, self.protocol, score)

    def _check_cost(self) -> None:
        """Refuses a study that no bound covers, and a base that exceeds epsilon."""
        # The quick bound shows that the study has a cost; the smallest takes longer.
        costs_of(self.base, self.protocol, self.delta).quick  # noqa: B018
        if self._training.base is None or self.epsilon is None:
            return
        if self.total_epsilon > self.epsilon:
            smallest_epsilon = format_rounded(self.total_epsilon, up=True, digits=7)
            raise InvalidInput(
                f"epsilon must be at least {smallest_epsilon}, the cost of this base with "
                f"{self.protocol.spec}, got {checks.one_line(self.epsilon)}"
            )

    def _memory_in(self, folder: str | Path | None) -> Memory:
        if folder is None:
            return Memory()
        if isinstance(folder, str) and not folder:
            folder = f".tuning-study-{self.settings_hash[:12]}"
        try:
            return Journal(folder)
        except TypeError:
            raise InvalidInput(f"folder must be a path or None, got {folder!r}") from None

    @cached_property
    def cost(self) -> UpperBound:
        """Cost of the whole tuning, the smallest bound that holds for any score."""
        return costs_of(self.base, self.protocol, self.delta).smallest

    @property
    def total_epsilon(self) -> float:
        """Epsilon of the whole tuning, at `delta`."""
        return self.cost.epsilon

    @property
    def ex_post_epsilon(self) -> float:
        """Ex-post epsilon of the accepted step, at `delta`, for a schedule of budgets.

        It is one of the values of `upper_bounds.schedule_ex_post`, which were fixed before the
        first run. It is not an (epsilon, delta)-DP guarantee, unlike `total_epsilon`. The value of
        an early step is smaller than `total_epsilon`; that of the last step may be larger.

        Raises:
            InvalidInput: the protocol is not a schedule, the study has not been run to its end, or
                no run was accepted.
        """
        epsilons = schedule_ex_post(self.base, self.protocol, self.delta)
        if self._played is None or self._played.best.step is None:
            raise InvalidInput("ex_post_epsilon needs an accepted run: call run first")
        return epsilons[self._played.best.step]

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the study, as plain values."""
        base = self._training.base
        return {
            "space": self.space.prior,
            "protocol": self.protocol.spec,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "steps": self._training.steps,
            "sampling_rate": self._training.sampling_rate,
            "neighbours": self._training.neighbours,
            "group_size": self._training.group_size,
            "expected_batch_size": self.expected_batch_size,
            "base": None if base is None else mechanism_to_dict(base),
            "scored_on": _PUBLIC if self.private is None else asdict(self.private),
            "seeded": self.seed is not None,
            # Left out by default, so that studies of earlier versions can be resumed.
            **{
                name: value
                for name, value in asdict(self._resume_rules).items()
                if value != getattr(ResumeRules(), name)
            },
        }

    @property
    def settings_hash(self) -> str:
        """SHA-256 of the settings."""
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def folder(self) -> Path | None:
        """The folder from which the study resumes; None if it is kept in memory only."""
        return self._memory.folder

    def rehearsal(self) -> Trial:
        """A trial that does not belong to the study, for calling `train` by hand.

        `rehearse` does this and checks the outcome.

        Example:
            >>> from audit.accounting import GaussianMechanism
            >>> study = Study({"lr": [0.1]}, base=GaussianMechanism(0.5), folder=None)
            >>> study.rehearsal().candidate
            {'lr': 0.1}
        """
        return Rehearsal(_nothing, self._plan()).trial()

    def rehearse(
        self,
        train: Callable[..., Outcome],
        records: Any = None,
        *,
        accept: Callable[[Outcome], bool] | None = None,
        save: Callable[[Any, Path], None] | None = None,
        load: Callable[[Path], Any] | None = None,
        test: bool = True,
        private: bool = False,
        cpu_seconds: float = 1800.0,
        device: str = "cpu",
        steps: int | None = None,
    ) -> list[Outcome]:
        """Trains twice on synthetic or public records, and tests the training loop.

        In the study itself, a run that raises an exception loses, and the error is not shown. Here,
        every error is shown. A loop that saves its state is trained about two times more, once
        without and once with an interruption.

        If `train` takes records and calls `trial.watch(optimizer, model)`, the differential test
        of `audit.check` examines the loop: the contribution of one record, the noise, the batches,
        and every number in the outcome. Its result is in `premises`. If it finds no mistake, the
        certificate states the corresponding conditions as tested.

        Args:
            train: as for `run`.
            records: synthetic or public records. If None, `train` is called with a trial alone,
                must read such records itself, and is not tested.
            accept: as for `run`.
            save: as for `run`.
            load: as for `run`.
            test: whether to run the differential test.
            private: whether the records are private. The errors and the result of the test are then
                not private and must not be released, so the certificate does not use the result.
            cpu_seconds: CPU time after which the test ends without a result.
            device: the device of the trials.
            steps: number of steps of each run, if runs of the study take too long for a rehearsal.
                The base must then be DP-SGD. None means as many as in the study.

        Returns:
            The outcomes of the first runs.

        Raises:
            PrivacyLeak: the test found a broken premise; notes of the exception list all of them.
            ProtocolViolation: the study would abort: `train` returned something other than an
                `Outcome`, seeded two runs equally, or a check failed.
            Exception: any error of `train`, `accept`, `save` or `load`.

        Example:
            >>> from audit.accounting import GaussianMechanism
            >>> import numpy as np
            >>> study = Study({"lr": [0.1]}, base=GaussianMechanism(0.5), folder=None)
            >>> study.rehearse(lambda trial, records: Outcome(records.sum()), np.ones(3))[0].score
            3.0
        """
        _functions(train, records, accept, save, load)
        self._refuse_unused(accept)
        test, private = checks.flag("test", test), checks.flag("private", private)
        cpu_seconds = checks.interval("cpu_seconds", cpu_seconds, 0.0)
        (name,) = device_names([device])
        plan = self._plan(name)
        if steps is not None:
            plan = plan.shortened(checks.integer("steps", steps, 1))
        rehearsal = Rehearsal(train, plan, records)
        report, watched, run_seconds = rehearsal.run(accept, save, load)
        if not private and steps is None:
            self._run_seconds = run_seconds
        if test and watched and records is not None:
            self._test(rehearsal, "private" if private else "given", cpu_seconds)
        self._rehearsed = True
        return report

    def _test(self, rehearsal: Rehearsal, kind: str, cpu_seconds: float = 1800.0) -> None:
        """Runs the differential test, and keeps the conditions that it supports."""
        self._tested = {}
        self.premises = report = check_loop(rehearsal, cpu_seconds)
        if report.broken:
            error = PrivacyLeak(report.summary)
            error.add_note(str(report))
            raise error
        if kind != "private":
            self._tested = {
                "tested": list(conditions_tested(report, self.private is None)),
                "tested_on": kind,
                "tested_with": __version__,
                "tested_steps": report.steps,
                "function": fingerprint(rehearsal.train),
            }

    @cached_property
    def certificate(self) -> Certificate:
        """The certificate, which may be published with the best run.

        Raises:
            InvalidInput: the study has not been run to its end.
        """
        if self._played is None:
            raise InvalidInput("certificate needs a study that was run to its end: call run first")
        facts = StudyFacts(
            prior=self.space.prior,
            checked=self._checked_conditions(),
            seeded=self.seed is not None,
            key_kept=self.keep and self.folder is not None,
            settings=self.settings_hash,
            expected_batch_size=self.expected_batch_size,
            tested=tuple(self._tested.get("tested", ())),
            **{name: value for name, value in self._tested.items() if name.startswith("tested_")},
        )
        return Certificate.issue(
            self.base,
            self._training_alone,
            self.protocol,
            self.delta,
            self.private,
            facts,
            _hash_of_models(self._played.best, self.protocol),
        )

    def _checked_conditions(self) -> tuple[str, ...]:
        assert self._played is not None
        checked = set(self._played.checked)
        if self._training.redrawn_steps:
            checked.discard("constants")  # the stated number of steps includes repeated ones
        return tuple(checked)

    @property
    def _training_alone(self) -> Mechanism:
        """One run without its score."""
        return self._mechanism(self.noise_multiplier or 0.0, None)

    def _plan(self, device: str = "cpu") -> Plan:
        base_of = partial(self._training.run, self.noise_multiplier or 0.0)
        size = self.expected_batch_size
        rules = self._resume_rules
        return Plan(self.protocol, self.space, base_of, self.private, size, device, rules)

    def worst_seconds(
        self, run_seconds: float, jobs: int = 1, chance: float = CHANCE
    ) -> float | None:
        """Time that the study exceeds with probability at most `chance`, in seconds.

        It depends only on the distribution of K and on the arguments, so it reveals nothing about
        the study. Measure the time of a run on synthetic or public records.

        Args:
            run_seconds: the longest time of one run, > 0.
            jobs: number of runs at a time, >= 1.
            chance: probability, in (0, 1).

        Returns:
            The time, or None if the results of the runs decide how many there are.

        Example:
            >>> from audit.accounting import GaussianMechanism
            >>> base = GaussianMechanism(0.25)
            >>> study = Study({"lr": [0.1]}, "tnb:0,0.02@100", base=base, folder=None)
            >>> study.worst_seconds(3600.0, jobs=8) / 3600  # hours
            13.0
        """
        run_seconds = checks.interval("run_seconds", run_seconds, 0.0)
        jobs = checks.integer("jobs", jobs, 1)
        chance = checks.interval("chance", chance, 0.0, 1.0)
        runs = self.protocol.runs_distribution
        total = worst_seconds(runs, run_seconds, jobs, chance)
        if total is None:
            return None
        return total + run_seconds * self.protocol.trains_on_subset

    def stop(
        self,
        train: Callable[..., Outcome] | None = None,
        *,
        records: Any = None,
        load: Callable[[Path], Any] | None = None,
    ) -> Stopped:
        """Ends an interrupted study before its last run, and releases the best finished run.

        The decision to stop and its time must depend neither on private records nor on results of
        the runs: for example, the money is spent. Anyone who learns of the stop learns the number
        of runs, so the cost is that of a known number, and `total_epsilon` does not hold. `Stopped`
        has the cost. The study cannot be resumed afterwards.

        Args:
            train: as for `run`, to train the winner once more from its seed if no model was saved.
                Without `train` and `load`, only the candidate and the score are released.
            records: as for `run`.
            load: as for `run`, if `run` was called with `save`.

        Raises:
            InvalidInput: the study has not begun, is running, or has a protocol of which nothing
                may be released after a stop.
            StudyAborted: the study was aborted, or the winner could not be reproduced.

        Example:
            >>> from audit.accounting import GaussianMechanism
            >>> study = Study({"lr": [0.1, 1.0]}, "fixed:5", seed=1, folder=None,
            ...               base=GaussianMechanism(0.5))
            >>> trained = []
            >>> def train(trial):
            ...     if len(trained) == 2:
            ...         raise KeyboardInterrupt  # the money is spent
            ...     trained.append(trial)
            ...     return Outcome(score=trial.candidate["lr"])
            >>> try:
            ...     best = study.run(train)
            ... except KeyboardInterrupt:
            ...     stopped = study.stop()
            >>> stopped.runs, round(stopped.epsilon, 3), round(study.total_epsilon, 3)
            (3, 3.609, 4.599)
        """
        if self._played is not None:
            raise InvalidInput("stop must be called before the study has ended")
        if self._stopped is not None:
            return self._stopped
        if train is not None:
            _functions(train, records, None, None, load)
            train = train if records is None else WithRecords(train, records)
        stopped_cost(self.base, self.protocol, 1, self.delta)  # before the study is locked
        with self._memory.locked():
            if self._memory.state() is None:
                raise InvalidInput("stop needs a study that has begun: call run first")
            state = self._initial_draws(train)
            # A run that has begun and not finished counts: its interruption may depend on it.
            runs = max(self._memory.begun(), 1)
            cost = stopped_cost(self.base, self.protocol, runs, self.delta)
            try:
                with silent_for_good():
                    key = int(state["key"], 16)
                    best = best_so_far(self._plan(), key, train, self._memory, load)
            except StudyAborted as error:
                # Prevents retrying until the result is favourable.
                self._memory.begin({**state, "void": str(error)})
                raise
            self._stopped = Stopped(best, runs, cost, self.delta)
            self._memory.end()
        return self._stopped

    def run(
        self,
        train: Callable[..., Outcome],
        *,
        records: Any = None,
        accept: Callable[[Outcome], bool] | None = None,
        jobs: int | None = None,
        devices: Sequence[str] | None = None,
        save: Callable[[Any, Path], None] | None = None,
        load: Callable[[Path], Any] | None = None,
        progress: bool = False,
        rehearse: bool = True,
    ) -> Best:
        """Runs the study, or resumes one that was interrupted, to its end.

        A run that raises an exception, or whose score is not finite, counts and loses. Nothing that
        `train` prints or logs is shown. After its end, the study returns the same result again.

        With `records`, the study first rehearses on synthetic records of the same shape, and shows
        the errors of the rehearsal. If `train` calls `trial.watch`, the rehearsal includes the
        differential test of the training loop, which takes about a minute.

        Args:
            train: trains once, given a `Trial`, or a `Trial` and `records`, and returns an
                `Outcome`. It may use private records only through the mechanism of the trial.
            records: the private records, as arrays, tensors or a collection of them; given to
                `train` as its second argument.
            accept: returns True if an outcome is accepted, else False; for protocols that run until
                a run is accepted.
            jobs: number of runs at a time, in processes of joblib's active backend (by default
                loky, on this machine); -1 means one for each of its workers. The default is the
                number of `devices`, or 1.
            devices: names such as `["cuda:0", "cuda:1"]`. Each run has one of them as
                `trial.device`, and each device has one run at a time. On a cluster, the names are
                those of the worker's machine.
            save: writes a model to a path, so that the best model so far survives an interruption.
                Without it, the winner is then trained a second time, from its own seed.
            load: reads a model from a path.
            progress: whether to show the elapsed time. A count of runs would reveal K.
            rehearse: whether to rehearse before the study begins, unless it was rehearsed before.

        Raises:
            StudyAborted: a run was not the mechanism that the study accounts for, the winner could
                not be reproduced, or every run raised an exception. Nothing is released.
            InvalidInput: the folder belongs to another study, or to one that is running.
            PrivacyLeak: the rehearsal found a broken premise of the training loop.
            Exception: any error of the rehearsal.
        """
        names = device_names(devices)
        jobs = max(len(names), 1) if jobs is None else jobs
        if checks.as_integer(jobs) != -1:
            jobs = checks.integer("jobs", jobs, 1, checks.MAX_JOBS)
        progress, rehearse = checks.flag("progress", progress), checks.flag("rehearse", rehearse)
        _functions(train, records, accept, save, load)
        self._refuse_unused(accept)
        if (save is None) != (load is None):
            raise InvalidInput("save and load must be given together, got one of them")
        if self._stopped is not None:
            raise InvalidInput("run must not be called after stop, which ended the study")
        if self._played is not None:
            return self._played.best
        plan = self._plan(*names[:1])
        with self._memory.locked(), shared_devices(names) as shared:
            if rehearse and not self._rehearsed and self._memory.state() is None:
                self._rehearse_first(train, records, plan, accept, save, load)
            run_all = partial(
                play,
                plan,
                train=train if records is None else WithRecords(train, records),
                memory=self._memory,
                accept=accept,
                jobs=jobs,
                devices=shared,
                save=save,
                load=load,
            )
            with self._progress(progress, jobs):
                self._played = self._played_to_the_end(run_all, self._initial_draws(train))
        if self._played.best.candidate is None:
            warnings.warn(
                "no candidate was chosen: no run was drawn, or every run lost; see Study.rehearse",
                stacklevel=2,
            )
        return self._played.best

    def _played_to_the_end(self, run_all: Callable[..., Played], state: dict[str, Any]) -> Played:
        """Plays from the initial draws, and forgets what must not outlive the study."""
        runs = state["runs"]
        try:
            with (
                watch_ray("run the same study again to resume"),
                interruptions(),
                silent_for_good(),
            ):
                played = run_all(
                    key=int(state["key"], 16), runs=range(runs) if isinstance(runs, int) else runs
                )
        except StudyAborted as error:
            # Prevents retrying until the result is favourable.
            self._memory.begin({**state, "void": str(error)})
            raise
        self._memory.forget_runs()
        if not self.keep:
            self._memory.end()
        return played

    def _progress(self, progress: bool, jobs: int) -> contextlib.AbstractContextManager[None]:
        if not progress:
            return contextlib.nullcontext()
        worst = None
        if self._run_seconds is not None and jobs > 0:
            worst = self.worst_seconds(max(self._run_seconds, 1e-3), jobs)
        return elapsed_time(self.protocol.mean_runs, worst)

    def _refuse_unused(self, accept: object) -> None:
        if accept is not None and not self.protocol.ends_with_accepted:
            raise InvalidInput(
                "accept must be given with protocols that end with an accepted run only (until, "
                f"stopping, schedule), got {self.protocol.spec}"
            )

    def _rehearse_first(
        self, train: Callable[..., Outcome], records: Any, plan: Plan, *others: Any
    ) -> None:
        accept, save, load = others
        if records is not None:
            stand_ins = synthetic(records)
            rehearsal = Rehearsal(train, plan, stand_ins)
            try:
                _, watched, self._run_seconds = rehearsal.run(accept, save, load)
                if watched and can_test(self._training_alone, stand_ins):
                    self._test(rehearsal, "synthetic")
            except Exception as error:
                error.add_note(
                    "Raised in the rehearsal on synthetic records: no private record was read, and "
                    "the study has not begun. To use records of your own instead, call "
                    "study.rehearse(train, records); to skip it, pass rehearse=False."
                )
                raise
        elif accept is not None and self.protocol.may_never_end:
            raise InvalidInput(
                f"train must be rehearsed with {self.protocol.spec}, which may never end if every "
                "run raises an exception: pass records=, call study.rehearse(train, accept=accept) "
                "on synthetic records first, or pass rehearse=False"
            )

    def _initial_draws(self, train: Callable[..., Outcome] | None) -> dict[str, Any]:
        """The draws made before the first run, now or by an earlier process."""
        state = self._memory.state()
        if state is None:
            key = secrets.randbits(256) if self.seed is None else self.seed
            runs = self._plan().runs(key)
            state = {
                "settings": self.settings_hash,
                "key": hex(key),
                "runs": len(runs) if isinstance(runs, range) else runs,
                "noise_multiplier": self.noise_multiplier,
                "test": self._tested,
            }
            self._memory.begin(state)
        if state["settings"] != self.settings_hash:
            raise InvalidInput(f"folder must hold a study of these settings, got {self.folder}")
        if self.seed is not None and state["key"] != hex(self.seed):
            raise InvalidInput(f"seed must be that of the study in {self.folder}")
        if "void" in state:
            raise StudyAborted(
                f"{state['void']} (delete {self.folder} to begin a new study; the privacy cost of "
                "its runs remains)"
            )
        # The result of a test holds only for the function that was tested.
        self._tested = state.get("test", {})
        if train is None or self._tested.get("function") != fingerprint(train):
            self._tested = {}
        return state


def _functions(train: Any, records: Any, accept: Any, save: Any, load: Any) -> None:
    """Refuses what is no function of its arguments, before a run fails because of it."""
    checks.function("train", train, "trial", *(() if records is None else ("records",)))
    for name, function, takes in (
        ("accept", accept, ("outcome",)),
        ("save", save, ("model", "path")),
        ("load", load, ("path",)),
    ):
        if function is not None:
            checks.function(name, function, *takes)


def _hash_of_models(best: Best, protocol: Protocol) -> str | None:
    if not protocol.releases_several or best.candidate is None:
        return model_hash(best.model)
    return model_hash([released.model for released in (best, *best.runners_up)])


def _nothing(trial: Trial) -> Outcome:
    return Outcome(0.0)


def _supported(given: ProtocolLike, space: Space) -> Protocol:
    protocol = protocols.parse_protocol(given)
    if not protocol.can_be_studied():
        names = ", ".join(kind.name for kind in protocols.all_protocols() if kind.can_be_studied())
        raise InvalidInput(
            f"protocol must be one that a study can run ({names}), got {protocol.spec}"
        )
    if protocol.list_length is not None and protocol.list_length != space.size:
        raise InvalidInput(
            f"space must have the {protocol.list_length} candidates of {protocol.spec}, got "
            f"{space.size or 'a continuous one'}"
        )
    return protocol


def _check_same_everywhere(space: Space) -> None:
    """Refuses values whose text differs between processes, because such a study cannot resume."""
    for name, dimension in space.dimensions.items():
        values = dimension.values if isinstance(dimension, Choice) else (dimension,)
        if (reason := _difference_between_processes(values, ())) is not None:
            raise InvalidInput(
                f"space[{checks.one_line(name or 'candidate')}] must hold values with the same "
                "text in every process, such as numbers, text and lists of them, so that an "
                f"interrupted study can resume, got {reason}"
            )


def _difference_between_processes(value: Any, around: tuple[Any, ...]) -> str | None:
    """The part of a value whose text is not the same in every process, and what to do."""
    if any(value is outer for outer in around):
        return "a value that contains itself"
    if isinstance(value, str | bytes | int | float | complex | None):
        return None
    if isinstance(value, set | frozenset):
        return f"{checks.one_line(value)}, whose order is not fixed: use a tuple or a sorted list"
    if isinstance(value, np.ndarray) and "..." in repr(value):
        return f"an array of {value.size} numbers, whose text is shortened: use a list"
    components: Iterable[Any] = ()
    if isinstance(value, Mapping):
        components = itertools.chain(value.keys(), value.values())
    elif isinstance(value, list | tuple):
        components = value
    elif is_dataclass(value) and not isinstance(value, type):
        components = [getattr(value, field.name) for field in fields(value)]
    elif _ADDRESS.search(text := repr(value)):
        return f"{checks.one_line(text)}: name it by a text, and look it up in train"
    for component in components:
        if (reason := _difference_between_processes(component, (*around, value))) is not None:
            return reason
    return None


def _score_noise(scored_on: str | Private) -> Private | None:
    """The noise of the score; None if it reads public records only."""
    if isinstance(scored_on, Private):
        return scored_on
    if not isinstance(scored_on, str) or scored_on != _PUBLIC:
        raise InvalidInput(
            "scored_on must be 'public' or tuning.Private(noise_std=..., sensitivity=...): a "
            f"score with no noise on private records has no guarantee, got "
            f"{checks.one_line(scored_on)}"
        )
    return None

"""Private tuning, live: the user trains, the study draws, counts, chooses and keeps silent."""

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar

from audit import checks, protocols
from audit.accounting import Candidates, DpSgd, Mechanism, Mixture, WorstOf, mechanism_to_dict
from audit.certificate import Certificate
from audit.numerics import format_rounded
from audit.protocols import Grid, Protocol, RandomSearch, RandomStopping, Subset, UntilAccepted
from audit.repetitions import Repetitions
from audit.tuning.calibration import noise_multiplier_for
from audit.tuning.certifying import certify
from audit.tuning.isolation import silent_for_good
from audit.tuning.journal import Journal, Memory
from audit.tuning.outcome import Best, Outcome, Private, StudyAborted, Trial
from audit.tuning.play import LIVE, Plan, Played, play
from audit.tuning.rehearsal import Rehearsal, RehearsalTest, WithRecords, synthetic
from audit.tuning.space import Space
from audit.upper_bounds import UpperBound, tuning_cost
from audit.upper_bounds.registry import find, row

__all__ = ["Study"]

_PUBLIC = "public"
# Of a loop that nobody has looked into: most libraries divide by what they compute from n.
_NEIGHBOURS = "zero-out"
_BUDGET = ("steps", "sampling_rate")
_MAX_BUDGETS = 8


@dataclass(frozen=True)
class _Budget:
    """What a run with a candidate must be, given its noise."""

    steps: int | None
    sampling_rate: float
    neighbours: str

    def __call__(self, noise_multiplier: float, candidate: Mapping[str, Any]) -> DpSgd:
        return DpSgd(
            noise_multiplier,
            candidate.get("steps", self.steps),
            candidate.get("sampling_rate", self.sampling_rate),
            self.neighbours,
        )


@dataclass(frozen=True)
class _BaseOf:
    """The mechanism of a run with a candidate; a class, so that other processes can have it."""

    budget: _Budget
    noise_multiplier: float | None
    given: Mechanism | None

    def __call__(self, candidate: Mapping[str, Any]) -> Mechanism:
        if self.given is not None:
            return self.given
        assert self.noise_multiplier is not None
        return self.budget(self.noise_multiplier, candidate)


class Study:
    """Tunes so that all that is released, the best run, is (epsilon, delta)-DP as a whole.

    K, the candidates and all seeds follow from 256 bits of the operating system's entropy, through
    SHAKE-256. How many runs
    there were, who lost and by what score is neither shown nor logged; on disk it is kept, readable
    by its owner alone, until the study is over, so that a study that was interrupted goes on with
    the same draws. Whoever can measure how long it took learns of K all the same: see the page on
    pitfalls.

    Args:
        space: a list of values, `Uniform`, `LogUniform` or `Whole` for every hyper-parameter; or a
            list of whole candidates. Lists named `steps` and `sampling_rate` are budgets: a run
            then costs the mean over them; of a grid, each candidate its own; where a final run
            takes the candidate that was chosen, the worst. More than eight different budgets are
            accounted for in eight groups, each at its largest budget.
        protocol: a law of K, which means random search, or any protocol that can be run live, as
            object or text. A `Grid` runs the candidates of a finite space.
        epsilon: of the whole tuning, > 0. With `base` it may be left out.
        delta: in (0, 1).
        steps: of one run of DP-SGD.
        sampling_rate: of its batches, in (0, 1]; 1 is full batch.
        neighbours: `zero-out` (the number of records n is public, the default), `add-remove` or
            `replace-one`. The first two have the same numbers. State `add-remove` only if nothing
            in a run depends on n: neither the divisor of the noisy sums nor the sampling rate nor
            the number of steps. `Trial.check` compares them with the constants given here.
        expected_batch_size: a constant that every run divides its noisy sums by. It must not be
            computed from the number of records. Opacus divides by int(n * rate) unless `train` sets
            `optimizer.expected_batch_size = trial.expected_batch_size` after `make_private`.
        base: one run, where it is not DP-SGD whose noise is to be found.
        scored_on: `public`, or `Private` with the noise of the score.
        seed: what all draws follow from instead of entropy, to repeat a study. Whoever knows it
            knows K and all noise drawn from it: the certificate says that it is void.
        folder: where the study is kept for going on; by default `.tuning-study-` and a hash of the
            settings in the working directory. `None` keeps it in this process alone.
        keep: whether it stays there after the end, to be read by its owner; it then gives the same
            answer again.

    Raises:
        ValueError: something is out of its range, or no noise keeps the target.

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
        protocol: str | Repetitions | Protocol = protocols.DEFAULT_REPETITIONS,
        epsilon: float | None = None,
        delta: float = 1e-5,
        *,
        steps: int | None = None,
        sampling_rate: float = 1.0,
        neighbours: str = _NEIGHBOURS,
        expected_batch_size: float | None = None,
        base: Mechanism | None = None,
        scored_on: str | Private = _PUBLIC,
        seed: int | None = None,
        folder: str | Path | None = "",
        keep: bool = False,
    ) -> None:
        self.space = Space.parse(space)
        self.protocol = _live(protocol, self.space)
        self.delta = checks.interval("delta", delta, 0.0, 1.0)
        self.epsilon = None if epsilon is None else checks.interval("epsilon", epsilon, 0.0)
        self.private = scored_on if isinstance(scored_on, Private) else None
        if self.private is None and scored_on != _PUBLIC:
            raise ValueError(
                "scored_on must be 'public' or tuning.Private(noise_std=..., sensitivity=...): a "
                f"score with no noise on private records has no guarantee, got {scored_on!r}"
            )
        self.seed = None if seed is None else checks.integer("seed", seed, 0)
        self.keep = keep
        self.expected_batch_size = (
            None
            if expected_batch_size is None
            else checks.interval("expected_batch_size", expected_batch_size, 0.0)
        )
        self._budget = _Budget(steps, sampling_rate, neighbours)
        self._given = base
        self._chances = self._budgets()
        if isinstance(self.protocol, Subset) and neighbours == "replace-one":
            raise ValueError(
                f"neighbours must be add-remove or zero-out with {self.protocol.spec}, got "
                f"{neighbours!r}"
            )
        self.noise_multiplier: float | None = None
        if base is None:
            if self.epsilon is None or (steps is None and "steps" not in self.space.dimensions):
                raise ValueError("epsilon and steps, or base, must be given, got neither")
            self.noise_multiplier = noise_multiplier_for(
                self._run_of, self.protocol, self.epsilon, self.delta
            )
        elif steps is not None or sampling_rate != 1.0 or neighbours != _NEIGHBOURS:
            raise ValueError("steps, sampling_rate and neighbours must not be given with base")
        elif isinstance(base, DpSgd):
            self.noise_multiplier = base.noise_multiplier
        self.base: Mechanism = self._run_of(self.noise_multiplier or 0.0)
        # A study that nothing bounds ends before it begins; of many bounds one that is fast tells.
        if not isinstance(self.protocol, RandomSearch) or not _by_region(
            self.base, self.protocol, self.delta
        ):
            self.total_epsilon  # noqa: B018
        if base is not None and self.epsilon is not None and self.total_epsilon > self.epsilon:
            least = format_rounded(self.total_epsilon, up=True, digits=7)
            raise ValueError(
                f"epsilon must be at least {least}, what this base costs with "
                f"{self.protocol.spec}, got {self.epsilon!r}"
            )
        if folder == "":
            folder = f".tuning-study-{self.settings_hash[:12]}"
        try:
            self._memory = Memory() if folder is None else Journal(folder)
        except TypeError:
            raise ValueError(f"folder must be a path or None, got {folder!r}") from None
        self._played: Played | None = None
        self._rehearsed = False

    @cached_property
    def cost(self) -> UpperBound:
        """What the whole tuning costs: the smallest bound that holds for any score."""
        return _cost(self.base, self.protocol, self.delta)

    @property
    def total_epsilon(self) -> float:
        """Epsilon of the whole tuning, at `delta`."""
        assert self.cost.epsilon is not None  # cost raises where no bound applies
        return self.cost.epsilon

    def _budgets(self) -> list[tuple[dict[str, Any], float]]:
        """The budgets that the space names, and the chance of each."""
        named = {
            name: self.space.dimensions[name] for name in _BUDGET if name in self.space.dimensions
        }
        if "" in self.space.dimensions:
            points = self.space.points()
            budgets = [
                {name: one[name] for name in _BUDGET if name in one}
                for one in map(self.space.at, points)
            ]
        elif named:
            part = Space(named)
            if part.size is None:
                raise ValueError(f"space must name budgets as lists of values, got {part.prior}")
            budgets = [part.at(point) for point in part.points()]
        else:
            return [({}, 1.0)]
        if self._given is not None and any(budgets):
            raise ValueError(f"space must not name {', '.join(_BUDGET)} where base is given")
        chances: dict[str, tuple[dict[str, Any], float]] = {}
        for budget in budgets:
            before = chances.get(repr(budget), (budget, 0.0))[1]
            chances[repr(budget)] = budget, before + 1.0 / len(budgets)
        return self._grouped(list(chances.values()))

    def _grouped(
        self, chances: list[tuple[dict[str, Any], float]]
    ) -> list[tuple[dict[str, Any], float]]:
        """At most eight budgets, each the largest of its group: each takes seconds to account for.

        More steps or a higher rate never cost less, so the groups' costs are upper bounds.
        """
        if len(chances) <= _MAX_BUDGETS:
            return chances
        for budget, _ in chances:
            self._budget(1.0, budget)  # refuses values that are no budgets
        given = {"steps": self._budget.steps, "sampling_rate": self._budget.sampling_rate}
        full = [({**given, **budget}, chance) for budget, chance in chances]
        full.sort(key=lambda one: float(one[0]["steps"]) * float(one[0]["sampling_rate"]) ** 2)
        groups: dict[int, list[tuple[dict[str, Any], float]]] = {}
        before = 0.0
        for one in full:
            place = min(int(before * _MAX_BUDGETS + 1e-9), _MAX_BUDGETS - 1)
            groups.setdefault(place, []).append(one)
            before += one[1]
        largest: dict[tuple[Any, ...], float] = {}
        for group in groups.values():
            top = tuple(max(one[name] for one, _ in group) for name in given)
            largest[top] = largest.get(top, 0.0) + sum(chance for _, chance in group)
        return [(dict(zip(given, top, strict=True)), chance) for top, chance in largest.items()]

    def _run_of(self, noise_multiplier: float) -> Mechanism:
        """One run with a given noise: training with any candidate, and its score."""
        base_of = _BaseOf(self._budget, noise_multiplier, self._given)
        runs = [base_of(budget) for budget, _ in self._chances]
        self._training = self._any_candidate(runs)
        if self.private is None:
            return self._training
        return self._any_candidate([self.private.with_training(run) for run in runs])

    def _any_candidate(self, runs: list[Mechanism]) -> Mechanism:
        """One run with a candidate as the protocol chooses it, from one mechanism a budget."""
        if len(runs) == 1:
            return runs[0]
        chances = tuple(chance for _, chance in self._chances)
        if isinstance(self.protocol, Grid):
            size = self.protocol.candidates
            several = zip(runs, chances, strict=True)
            return Candidates(
                tuple(run for run, chance in several for _ in range(round(chance * size)))
            )
        if isinstance(self.protocol, Subset):
            return WorstOf(tuple(runs))  # the final run's candidate is chosen, not drawn
        return Mixture(tuple(runs), chances)

    @property
    def settings(self) -> dict[str, Any]:
        """All that was settled before anything ran, as plain values."""
        return {
            "space": self.space.prior,
            "protocol": self.protocol.spec,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "steps": self._budget.steps,
            "sampling_rate": self._budget.sampling_rate,
            "neighbours": self._budget.neighbours,
            "expected_batch_size": self.expected_batch_size,
            "base": None if self._given is None else mechanism_to_dict(self._given),
            "scored_on": _PUBLIC
            if self.private is None
            else {
                "noise_std": self.private.noise_std,
                "sensitivity": self.private.sensitivity,
                "disjoint": self.private.disjoint,
            },
            "seeded": self.seed is not None,
        }

    @property
    def settings_hash(self) -> str:
        """SHA-256 of the settings.

        Raises:
            ValueError: a value in the space is not the same in another process.
        """
        text = json.dumps(self.settings, sort_keys=True)
        if address := re.search(r"<[^<>]* at 0x[0-9a-f]+>", text):
            raise ValueError(
                "space must hold values that read the same in every process, such as numbers and "
                f"texts, got {address.group()}"
            )
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def folder(self) -> Path | None:
        """Where the study is kept for going on; None if in this process alone."""
        return self._memory.folder

    def rehearsal(self) -> Trial:
        """A trial that does not belong to the study, to call `train` with by hand.

        `rehearse` does this, and checks what comes back.

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
        test: RehearsalTest | None = None,
    ) -> list[Outcome]:
        """Trains twice on synthetic or public records, and shows every error.

        In the study itself a run that raises loses, and the error is not shown.

        Args:
            train: as for `run`.
            records: synthetic or public records, never private ones: nothing here is hidden. If
                None, `train` is called with a trial alone, and must read such records itself.
            accept: as for `run`.
            save: as for `run`.
            load: as for `run`.
            test: a further test of `train`, called with the `Rehearsal`; it raises to object.

        Returns:
            The outcomes of the runs.

        Raises:
            Inadmissible: the study would abort: `train` returned something other than an
                `Outcome`, seeded two runs alike, or a check failed.
            Exception: whatever `train`, `accept`, `save`, `load` or `test` raised.

        Example:
            >>> from audit.accounting import GaussianMechanism
            >>> import numpy as np
            >>> study = Study({"lr": [0.1]}, base=GaussianMechanism(0.5), folder=None)
            >>> study.rehearse(lambda trial, records: Outcome(records.sum()), np.ones(3))[0].score
            3.0
        """
        _functions(train=train, accept=accept, save=save, load=load, test=test)
        rehearsal = Rehearsal(train, self._plan(), records)
        found = rehearsal.run(accept, save, load)
        if test is not None:
            test(rehearsal)
        self._rehearsed = True
        return found

    @property
    def certificate(self) -> Certificate:
        """What may be published beside the best run: the claim, and all that it rests on.

        Raises:
            ValueError: the study has not been run to its end.
        """
        if self._played is None:
            raise ValueError("certificate needs a study that was run to its end, got none")
        return self._certificate

    @cached_property
    def _certificate(self) -> Certificate:
        assert self._played is not None
        return certify(
            base=self.base,
            training=self._training,
            protocol=self.protocol,
            delta=self.delta,
            prior=self.space.prior,
            private=self.private,
            expected_batch_size=self.expected_batch_size,
            seeded=self.seed is not None,
            checked=self._played.checked,
            settings_hash=self.settings_hash,
            kept=self.keep and self.folder is not None,
            model=self._played.best.model,
        )

    def _plan(self) -> Plan:
        base_of = _BaseOf(self._budget, self.noise_multiplier, self._given)
        return Plan(self.protocol, self.space, base_of, self.private, self.expected_batch_size)

    def run(
        self,
        train: Callable[..., Outcome],
        *,
        records: Any = None,
        accept: Callable[[Outcome], bool] | None = None,
        jobs: int = 1,
        save: Callable[[Any, Path], None] | None = None,
        load: Callable[[Path], Any] | None = None,
        progress: bool = False,
        rehearse: bool = True,
    ) -> Best:
        """Runs the study, or resumes one that was interrupted, to its end.

        A run that raises, or whose score is not finite, counts and loses. What `train` prints or
        logs is not shown. Once over, the same answer is given again.

        With `records`, the study first rehearses on synthetic records of the same shape, and
        shows the errors of that. Without them it cannot: `train` reads the private records itself.

        Args:
            train: one run, from a `Trial` to an `Outcome`, or from a `Trial` and `records`. All
                that it looks at of private records must go through the mechanism that the trial
                names.
            records: the private records, as arrays, tensors or a collection of them; given to
                `train` as its second argument.
            accept: whether an outcome is good enough, True or False, for protocols that run until
                one is.
            jobs: runs at a time, in processes of joblib's active backend (by default loky, on this
                machine); -1 for as many as it has workers.
            save: writes a model to a path, so that the best so far is not lost when the process
                is. Without it the winner is then trained again from its own seed.
            load: reads it.
            progress: whether to show the time that has gone by: no count, which would tell K.
            rehearse: whether to rehearse before a study begins, if it was not rehearsed yet.

        Raises:
            Void: a run was not what the study accounts for, or can not be trained again as it was,
                or every run raised an exception; the study is over and releases nothing.
            ValueError: the folder belongs to another study, or one that runs.
            Exception: in the rehearsal, whatever `train` raised.
        """
        jobs = jobs if jobs == -1 else checks.integer("jobs", jobs, 1)
        _functions(train=train, accept=accept, save=save, load=load)
        if (save is None) != (load is None):
            raise ValueError("save and load must be given together, got one of them")
        if self._played is not None:
            return self._played.best
        with self._memory.locked(), _progress(progress, self.protocol):
            if rehearse and not self._rehearsed and self._memory.state() is None:
                self._rehearse_first(train, records, accept, save, load)
            state = self._begun()
            plan, key = self._plan(), int(state["key"], 16)
            runs = state["runs"]
            try:
                with silent_for_good():
                    self._played = play(
                        plan,
                        key,
                        range(runs) if isinstance(runs, int) else runs,
                        train if records is None else WithRecords(train, records),
                        self._memory,
                        accept=accept,
                        jobs=jobs,
                        save=save,
                        load=load,
                    )
            except StudyAborted as error:
                # Not to be tried until it pleases: what was drawn is gone, nothing is released.
                self._memory.begin({**state, "void": str(error)})
                raise
            if not self.keep:
                self._memory.end()
        if self._played.best.candidate is None:
            warnings.warn(
                "nothing was chosen: no run was drawn, or every run lost; see Study.rehearsal",
                stacklevel=2,
            )
        return self._played.best

    def _rehearse_first(self, train: Callable[..., Outcome], records: Any, *others: Any) -> None:
        """Rehearses on synthetic records, if the study may make them."""
        accept, save, load = others
        if records is not None:
            stand_ins = synthetic(records)
            try:
                self.rehearse(train, stand_ins, accept=accept, save=save, load=load)
            except Exception as error:
                error.add_note(
                    "Raised in the rehearsal on synthetic records: no private record was read, and "
                    "the study has not begun. To use records of your own instead, call "
                    "study.rehearse(train, records); to skip it, pass rehearse=False."
                )
                raise
        elif accept is not None and isinstance(self.protocol, UntilAccepted | RandomStopping):
            raise ValueError(
                f"train must be rehearsed with {self.protocol.spec}, which may never end if every "
                "run raises an exception: pass records=, call study.rehearse(train, accept=accept) "
                "on synthetic records first, or pass rehearse=False"
            )

    def _begun(self) -> dict[str, Any]:
        """What was drawn at the very beginning, now or by an earlier process."""
        state = self._memory.state()
        if state is None:
            key = secrets.randbits(256) if self.seed is None else self.seed
            runs = self._plan().runs(key)
            state = {
                "settings": self.settings_hash,
                "key": hex(key),
                "runs": len(runs) if isinstance(runs, range) else runs,
                "noise_multiplier": self.noise_multiplier,
            }
            self._memory.begin(state)
        if state["settings"] != self.settings_hash:
            raise ValueError(f"folder must hold a study of these settings, got {self.folder}")
        if self.seed is not None and state["key"] != hex(self.seed):
            raise ValueError(f"seed must be the one that the study in {self.folder} began with")
        if "void" in state:
            raise StudyAborted(
                f"{state['void']} (delete {self.folder}; its runs cost what they cost)"
            )
        return state


def _functions(**given: Any) -> None:
    for name, one in given.items():
        if not (callable(one) or (one is None and name != "train")):
            raise ValueError(f"{name} must be a function, got {one!r}")


def _nothing(trial: Trial) -> Outcome:
    return Outcome(0.0)


_T = TypeVar("_T")


def _remembered(
    function: Callable[[Mechanism, Protocol, float], _T],
) -> Callable[[Mechanism, Protocol, float], _T]:
    """Whoever goes on with a study, or rehearses one, asks again for what takes seconds."""
    remembered = functools.lru_cache(maxsize=32)(function)

    def answer(base: Mechanism, protocol: Protocol, delta: float) -> _T:
        try:
            hash(base)
        except TypeError:  # a mechanism of the user's own, which may change
            return function(base, protocol, delta)
        return remembered(base, protocol, delta)

    return answer


_cost = _remembered(tuning_cost)


@_remembered
def _by_region(base: Mechanism, protocol: Protocol, delta: float) -> bool:
    return row(find("region"), base, protocol, delta).epsilon is not None


def _live(spec: str | Repetitions | Protocol, space: Space) -> Protocol:
    protocol = protocols.parse_protocol(spec)
    if not isinstance(protocol, LIVE):
        names = ", ".join(kind.name for kind in LIVE)
        raise ValueError(
            f"protocol must be one that can be run live ({names}), got {protocol.spec}"
        )
    if isinstance(protocol, Grid) and protocol.candidates != space.size:
        raise ValueError(
            f"space must have the {protocol.candidates} candidates of {protocol.spec}, got "
            f"{space.size or 'a continuous one'}"
        )
    return protocol


class _progress:
    """Shows how much time has gone by: what whoever waits knows anyway, and nothing of the runs."""

    def __init__(self, shown: bool, protocol: Protocol) -> None:
        self._shown, self._over = shown, threading.Event()
        self._stream: IO[str] | None = sys.stderr
        self._own: IO[str] | None = None
        mean = protocol.mean_runs
        self._expected = "" if mean is None else f"; {mean:.4g} runs are expected"

    def __enter__(self) -> None:
        if not self._shown:
            return
        terminal = sys.__stderr__
        if terminal is not None and self._stream is terminal:
            # A way out of its own: while a run is on, nothing that it prints is shown.
            with contextlib.suppress(OSError, ValueError):
                self._stream = self._own = open(os.dup(terminal.fileno()), "w")
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            gone = time.gmtime(time.monotonic() - self._began)
            words = f"tuning for {time.strftime('%H:%M:%S', gone)}{self._expected}"
            print(f"\r{words}", end="", file=self._stream, flush=True)

    def __exit__(self, *_: object) -> None:
        if not self._shown:
            return
        self._over.set()
        self._thread.join()
        print(file=self._stream)
        if self._own is not None:
            self._own.close()

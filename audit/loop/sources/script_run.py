"""One run of an unmodified script, stopped at `make_private` to exchange its records.

The call of `make_private` shows everything that the test needs: the module, the optimizer, the
accountant and the loader. The loader gets other records, the random generators are seeded, and the
run ends after a few steps.
"""

import contextlib
import errno
import inspect
import math
import mmap
import os
import random
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader, IterableDataset

from audit import checks
from audit.errors import InvalidInput
from audit.loop.runs.coupled_runs import EndOfRun
from audit.loop.runs.optimizer_hooks import hooks_of_steps
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.saved_files import CreatedFiles, SavedFile, SavedFiles, Shapes, replaced
from audit.loop.runs.work import CouldNotFinish, CpuLimit
from audit.loop.sources.script_items import ItemForm, StoredRecords, have_equal_numbers
from audit.processes import IDLE_SECONDS
from audit.user_code import format_error, global_seed, output_to, seed_global_generators

_PREAMBLE_SEED = 0
# A script that catches the exception which ends it is ended this many times.
_MAX_ENDS = 50
_BATCHES_PER_EPOCH = 4
# Batches that a script may draw after the last tested step, on the way to its end, and after each
# further call of `make_private`.
_MAX_BATCHES_TO_END = 64
_CPU_SECONDS_TO_END = 20.0
_SECONDS_BETWEEN_LOOKS = 0.2
_PROCESSES = "processes that it starts: run the same loop in one process"
# Words in the errors of a script that was not started by a launcher of distributed processes.
_DISTRIBUTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "init_process_group", "process group")


_WAITS = "it waits (for an answer, a server or a lock)"
_CALLS_ELSEWHERE = "it calls make_private in processes that it starts"


class EndOfScript(BaseException):
    """Ends the script; `except Exception` does not catch it."""


@dataclass
class ScriptFacts:
    """What one run of the script showed.

    Attributes:
        n: number of records of the script.
        batch_size: its batch size, or the expected one of its sampler.
        noise_multiplier: the one that `make_private` received or computed.
        target_epsilon: epsilon of `make_private_with_epsilon`, or None.
        lowest_noise: the smallest noise multiplier of a step.
        poisson: whether Poisson sampling was requested.
        seeds: constant seeds that the script set.
        loaders: numbers of records of other loaders, which are taken as public.
        overridden: settings that were changed for the test.
        unchanged: parts of an item that are never exchanged.
        are_rows_exchanged: whether rows of the data set's arrays are exchanged, too, where saved
            files are compared.
        engines: number of calls of `make_private` that were seen.
        failure: the error that ends the script before all steps are tested; empty if none.
        files: what the script saved, by name.
        end: the reason why the script does not reach its end; empty if it does.
    """

    n: int = 0
    batch_size: int = 0
    noise_multiplier: float = 0.0
    target_epsilon: float | None = None
    lowest_noise: float = float("inf")
    poisson: bool = True
    seeds: list[str] = field(default_factory=list)
    loaders: set[str] = field(default_factory=set)
    overridden: set[str] = field(default_factory=set)
    unchanged: list[str] = field(default_factory=list)
    are_rows_exchanged: bool = True
    engines: int = 0
    failure: str = ""
    files: set[str] = field(default_factory=set)
    end: str = ""

    def merge(self, other: "ScriptFacts") -> None:
        """Adds what a further run showed."""
        self.lowest_noise = min(self.lowest_noise, other.lowest_noise)
        self.loaders |= other.loaders
        self.overridden |= other.overridden
        self.seeds = sorted({*self.seeds, *other.seeds})
        self.engines = max(self.engines, other.engines)


class _Records(torch.utils.data.Dataset[Any]):
    """The items of a run; other attributes are those of the script's data set."""

    def __init__(self, items: list[Any], original: Any) -> None:
        self.items, self.original = items, original

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[int(index)]

    def __getattr__(self, name: str) -> Any:
        # The original's own way to fetch several items would return the original's items.
        if name in ("items", "original") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.original, name)


class ScriptTrain:
    """A script as a training function.

    Args:
        path: the script.
        arguments: its own arguments.
        count: number of its records that are used.
        steps: number of steps after which a run ends.

    Attributes:
        facts: what the first run showed.
    """

    records_files = True
    """Whether it records what it saves itself."""

    def __init__(self, path: Path, arguments: list[str], count: int, steps: int) -> None:
        self.path, self.arguments = path, arguments
        self.count, self.steps = count, steps
        self.facts: ScriptFacts | None = None
        self.form: ItemForm | None = None
        self.places: list[int] = []
        self.on_hook: Callable[[], None] = lambda: None
        self.give_up: Callable[[str], None] = _raise_refusal
        self.idle_seconds = IDLE_SECONDS
        self.max_batches = math.inf
        self.reaches_end, self.is_on_way_to_end, self.why_ended = True, False, ""
        self.are_files_covered, self.calls_elsewhere = True, False
        self._ours = set(sys.modules)

    def learn(self) -> TrainingSet:
        """Runs the script up to its first step, and returns its records.

        Raises:
            InvalidInput: the script cannot be tested, with advice.
        """
        run = _Run(self, None, _PREAMBLE_SEED, None)
        run.steps = 1
        run.execute()
        if run.refusal:
            raise InvalidInput(run.refusal)
        if self.form is None:
            raise InvalidInput(run.reason_without_engine())
        if run.error:
            raise InvalidInput(f"{self.path.name} must run without an exception, got {run.error}")
        if run.taken == 0:
            raise InvalidInput(
                f"{self.path.name} must take a step with the optimizer of make_private, got none"
            )
        self.facts = run.facts
        return self.form.records()

    def limit_steps(self, cpu: CpuLimit) -> None:
        """Runs all steps with the script's own records, and tests only those before an error.

        A loop that calls the wrong optimizer may fail when it computes its epsilon. The run
        continues to the end of the script.

        Args:
            cpu: the limit on CPU time, of which the way to the end may use a share.
        """
        run = _Run(self, None, _PREAMBLE_SEED, None)
        run.to_end = True

        def begin_way_to_end() -> None:
            self.is_on_way_to_end = True
            cpu.set_timer(_CPU_SECONDS_TO_END)

        run.on_last_step = begin_way_to_end
        try:
            run.execute()
        except CouldNotFinish:
            if not (run.is_over or self.why_ended):
                raise
            self.reaches_end = False
            run.facts.end = (
                self.why_ended or f"it continues for more than {_CPU_SECONDS_TO_END:g} CPU seconds"
            )
        finally:
            self.is_on_way_to_end = False
        assert self.facts is not None
        self.facts.merge(run.facts)
        self.facts.files, self.facts.end = run.facts.files, run.facts.end
        self.calls_elsewhere = run.facts.end == _CALLS_ELSEWHERE
        self.reaches_end = self.reaches_end and not self.calls_elsewhere
        if run.error and run.taken:
            self.steps, self.facts.failure = run.taken, run.error
        # Physical batches and accumulated ones have other numbers for other seeds.
        drawn = run.drawn_before_steps
        if len(drawn) > 1 and set(np.diff(drawn)) == {1}:
            self.max_batches = drawn[-1]

    def end_waiting(
        self, refuse: Callable[[], object], why: str = _WAITS, *, has_steps: bool = False
    ) -> None:
        """Ends a run that waits on its way to the end, and refuses a script that waits earlier.

        Args:
            refuse: refuses the script.
            why: why it does not reach its end, in words.
            has_steps: whether this is a run for `limit_steps` whose steps can be tested.
        """
        main_thread = threading.main_thread().ident
        may_end = self.is_on_way_to_end or has_steps
        if not may_end or main_thread is None or not hasattr(signal, "pthread_kill"):
            refuse()
            return
        self.why_ended = why
        # The handler of `CpuLimit.enforced` raises an error in the main thread, which waits.
        signal.pthread_kill(main_thread, signal.SIGVTALRM)

    def __call__(self, records: TrainingSet, candidate: Any, seed: int, watch: Any) -> Any:
        run = _Run(self, records, seed, watch)
        run.execute()
        if run.error:
            raise RuntimeError(run.error)
        assert self.facts is not None
        self.facts.merge(run.facts)
        return run.module

    def forget_modules(self) -> None:
        """Forgets the modules of the script's folder, whose variables belong to one run."""
        folder = str(self.path.parent)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name not in self._ours and file and str(file).startswith(folder + os.sep):
                del sys.modules[name]


class _Run:
    """One run of the script with other records; with None, the script's own."""

    def __init__(
        self, train: ScriptTrain, records: TrainingSet | None, seed: int, watch: Any
    ) -> None:
        self.train, self.records, self.seed, self.watch = train, records, seed, watch
        self.steps = train.steps
        self.facts = ScriptFacts()
        self.module: Any = None
        self.further_modules: list[Any] = []
        self.error = self.refusal = ""
        self.ended_itself = self.started_processes = False
        self.taken = self.ends = self.drawn = 0
        self.drawn_before_steps: list[int] = []
        self.hooked = self.by_hand = self.with_epsilon = False
        self.datasets: list[Any] = []
        self.substitute: _Records | None = None
        self.stored: list[StoredRecords] = []
        self.size = 0
        self._hooks: list[Any] = []
        self._seeding = False
        # Shared with processes that the script starts by copying this one.
        self._process, self._called_elsewhere = os.getpid(), mmap.mmap(-1, 1)
        self._ended = threading.Event()
        # After the last tested step, the script continues to its end if what it saves is compared.
        self.to_end = self.is_over = False
        self.batches_to_end = 0
        self.on_last_step: Callable[[], None] = lambda: None
        self.created = CreatedFiles()
        self._saved = SavedFiles(
            self._keep_file,
            lambda: None if self.module is None else [Shapes.of(m) for m in self._modules()],
            self.created,
        )
        self.wait: Callable[[], tuple[TrainingSet, int, Any]] | None = None
        self.at_end: Callable[[], None] = lambda: None

    # --- running ---

    def execute(self) -> None:
        """Runs the script to its end, or to the last step that is tested."""
        script = str(self.train.path)
        before = sys.argv, list(sys.path), os.getcwd()
        sys.argv = [script, *self.train.arguments]
        sys.path.insert(0, str(self.train.path.parent))
        seed_global_generators(global_seed(_PREAMBLE_SEED))
        try:
            with self._patched(), quiet_output() as output:
                try:
                    runpy.run_path(script, run_name="__main__")
                except EndOfScript:
                    pass
                except (EndOfRun, KeyboardInterrupt, CouldNotFinish):
                    raise
                except SystemExit as error:
                    self.ended_itself = True
                    if error.code not in (None, 0) and self.is_over:
                        self.facts.end = f"it then ends with {_exit_in_words(error.code, '')}"
                    elif error.code not in (None, 0) and not self.taken:
                        self.error = _exit_in_words(error.code, output.last_line())
                except BaseException as error:  # of any class
                    # A `finally` block may raise an error of its own at the end of the run.
                    for cause in _causes(error):
                        if isinstance(cause, EndOfRun | CouldNotFinish):
                            raise cause from None
                    if any(isinstance(cause, EndOfScript) for cause in _causes(error)):
                        pass
                    elif self.is_over:
                        self.facts.end = f"it then raises {_with_advice(error)}"
                    else:
                        self.error = _with_advice(error)
        finally:
            self._ended.set()
            if self._called_elsewhere[0] and self.taken:
                self.facts.end, self.error = _CALLS_ELSEWHERE, ""  # that of a broken pool
            self.clean()
            for stored in reversed(self.stored):
                stored.restore()
            sys.argv, sys.path[:] = before[0], before[1]
            os.chdir(before[2])
            for hook in self._hooks:
                hook.remove()
            self.train.forget_modules()

    def reason_without_engine(self) -> str:
        """Why `make_private` was not seen, and what to do."""
        name = self.train.path.name
        if self.by_hand:
            return (
                f"{name} must call PrivacyEngine.make_private, got a DPOptimizer that is built by "
                "hand: put the loop into a function and pass it to audit.check"
            )
        if self._called_elsewhere[0]:
            return self._reason_elsewhere()
        if self.error:
            return f"{name} must run up to make_private, got {self.error}"
        if self.started_processes:
            return (
                f"{name} must call PrivacyEngine.make_private of Opacus in its first process, got "
                f"none, and {_PROCESSES}"
            )
        early = " before its end by sys.exit" if self.ended_itself else ""
        return (
            f"{name} must call PrivacyEngine.make_private of Opacus, got none{early}: put the loop "
            "into a function and pass it to audit.check"
        )

    def _reason_elsewhere(self) -> str:
        name = self.train.path.name
        return f"{name} must call make_private in its first process, got {_PROCESSES}"

    def _end(self) -> None:
        self.at_end()
        self.ends += 1
        if self.ends > _MAX_ENDS:
            self.train.give_up(
                f"{self.train.path.name} must let exceptions end it, got a script that catches "
                "all of them: write except Exception in place of except (or BaseException), or "
                "take --mode fork"
            )
        raise EndOfScript

    def _refuse(self, message: str) -> NoReturn:
        """Ends a script that cannot be tested."""
        self.refusal = f"{self.train.path.name} must {message}"
        raise InvalidInput(self.refusal)

    def _patched(self) -> contextlib.AbstractContextManager[None]:
        """Replaces the functions by which a script makes loaders, engines, seeds and files."""
        return replaced([*self._patches(), *self._seed_patches(), *self._saved.patches()])

    def _patches(self) -> list[tuple[Any, str, Any]]:
        """The replacements of functions of Opacus and of torch."""
        run = self
        make_private, with_epsilon = (
            PrivacyEngine.make_private,
            PrivacyEngine.make_private_with_epsilon,
        )
        loader_init, loader_iter = DataLoader.__init__, DataLoader.__iter__
        optimizer_init = DPOptimizer.__init__

        def hooked_make_private(engine: Any, /, *args: Any, **kwargs: Any) -> Any:
            return run._on_make_private(make_private, engine, args, kwargs)

        def hooked_with_epsilon(engine: Any, /, *args: Any, **kwargs: Any) -> Any:
            run.facts.target_epsilon = kwargs.get("target_epsilon")
            return with_epsilon(engine, *args, **kwargs)

        def hooked_loader(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            if run._is_substituted(dataset):
                dataset = run.substitute
            if run.hooked:
                kwargs = run._plain_loader(kwargs)
            loader_init(loader, dataset, *args, **kwargs)
            is_ours = isinstance(dataset, _Records)
            if is_ours and loader.batch_size != run.size and _is_empty(loader):
                run._rebuild(loader)  # its only batch would be dropped

        def hooked_iter(loader: Any) -> Any:
            if not run.hooked:
                return loader_iter(loader)
            if not isinstance(loader.dataset, _Records) and run._has_same_records(loader):
                run._rebuild(loader)
            if isinstance(loader.dataset, _Records):
                return run._counted(loader_iter(loader))
            with contextlib.suppress(TypeError):
                run.facts.loaders.add(f"{len(loader.dataset):,} records")
            run._count_to_end()
            return _first_batch(loader_iter(loader))

        def hooked_optimizer(optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
            run.by_hand = run.by_hand or not run.hooked
            optimizer_init(optimizer, *args, **kwargs)

        start_process = BaseProcess.start

        def hooked_start(process: Any) -> None:
            if not run.started_processes and os.getpid() == run._process:
                threading.Thread(target=run._observe_processes, daemon=True).start()
            if run.train.calls_elsewhere and run.hooked:
                run._end_tested_steps()
            run.started_processes = True
            start_process(process)

        def stay_alone(*_: Any) -> None:
            run.facts.overridden.add("number of threads")

        def refuse_processes(*_: Any, **__: Any) -> None:
            run._refuse(f"train in one process, got {_PROCESSES}")

        return [
            (PrivacyEngine, "make_private", hooked_make_private),
            (PrivacyEngine, "make_private_with_epsilon", hooked_with_epsilon),
            (DataLoader, "__init__", hooked_loader),
            (DataLoader, "__iter__", hooked_iter),
            (DPOptimizer, "__init__", hooked_optimizer),
            (BaseProcess, "start", hooked_start),
            # A copy of the process would wait for the threads of OpenMP, which it does not have.
            (torch, "set_num_threads", stay_alone),
            (torch.multiprocessing, "spawn", refuse_processes),
            (torch.multiprocessing, "start_processes", refuse_processes),
        ]

    def _seed_patches(self) -> list[tuple[Any, str, Any]]:
        """A constant seed becomes a function of itself and of the run's seed."""

        def changed(place: Any, name: str, shown: str) -> tuple[Any, str, Any]:
            original = getattr(place, name)

            def seeded(value: Any = None, *args: Any, **kwargs: Any) -> Any:
                if isinstance(value, int | np.integer) and not self._seeding:
                    self.facts.seeds.append(f"{shown}({value})")
                    if self.hooked:
                        value = (int(value) * 0x9E3779B1 + self.seed + 1) % 2**32
                return original(value, *args, **kwargs)

            return place, name, seeded

        return [
            changed(torch, "manual_seed", "torch.manual_seed"),
            changed(np.random, "seed", "numpy.random.seed"),
            changed(random, "seed", "random.seed"),
        ]

    def _observe_processes(self) -> None:
        """Ends a run that waits for processes which called `make_private`, and which have ended."""
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            if self._called_elsewhere[0]:
                self.train.end_waiting(
                    lambda: self.train.give_up(self._reason_elsewhere()),
                    _CALLS_ELSEWHERE,
                    has_steps=self.to_end and self.taken > 0,
                )
                return

    # --- make_private ---

    def _on_make_private(self, original: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        if os.getpid() != self._process:
            self._called_elsewhere[0] = 1
            os._exit(0)
        self.facts.engines += 1
        if self.hooked and not self.taken:
            self._refuse(
                "take a step after each call of make_private, got a second call before the "
                "first step: leave one of them out, or put the loop into a function and pass "
                "it to audit.check"
            )
        inspect.signature(original).bind(engine, *args, **kwargs)  # raises what the call would
        names = ("module", "optimizer", "criterion", "data_loader", "noise_multiplier")
        kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        loader, module = kwargs.get("data_loader"), kwargs.get("module")
        if self.hooked:
            return self._further_engine(original, engine, kwargs)
        self._refuse_unfit(loader, module)
        self._read(loader, kwargs)
        self.train.on_hook()
        if self.wait is not None:
            self.records, self.seed, self.watch = self.wait()
            self._process = os.getpid()  # of the copy
        self.hooked = True
        if self.train.are_files_covered:
            self.created.observe()
        self._substitute(loader)
        self._leave_secure_mode(engine)
        result = original(engine, **kwargs)
        self.module = result[0] if hasattr(result[0], "state_dict") else module
        optimizer = result[1]
        generator = kwargs.get("noise_generator")
        if generator is not None:
            generator.manual_seed(self.seed)
            self.facts.overridden.add("seed of noise_generator")
        if self.watch is not None:
            self.watch(optimizer, self.module, engine)
        self._hooks = hooks_of_steps(
            optimizer.original_optimizer, lambda: self._before_step(optimizer), self._after_step
        )
        # All that the script draws from here follows the seed of the run.
        self._seed_generators()
        if self.watch is not None:
            self.watch.read_generators()
        return result

    def _leave_secure_mode(self, engine: Any) -> None:
        if getattr(engine, "secure_mode", False):
            engine.secure_mode = False
            self.facts.overridden.add("secure_mode")

    def _further_engine(self, original: Any, engine: Any, kwargs: Any) -> Any:
        """A call of `make_private` behind the tested steps, as of a script that tries candidates.

        In coupled runs, its steps release the same numbers, which do not depend on the records. So
        a script that then chooses a model by its records saves another one.
        """
        loader = kwargs.get("data_loader")
        if not self._has_same_records(loader):
            self.facts.end = "it calls make_private again with another data set (or random items)"
            self._end()
        if not self.is_over:
            self._end_tested_steps()
        if not isinstance(loader.dataset, _Records):
            self._substitute(loader)
        self.batches_to_end = 0
        self._leave_secure_mode(engine)
        result = original(engine, **kwargs)
        self.further_modules.append(result[0])
        optimizer, generator = result[1], torch.Generator()
        generator.manual_seed(self.facts.engines)
        if self.watch is not None:
            self._hooks += hooks_of_steps(
                optimizer.original_optimizer, lambda: _force_noise(optimizer, generator)
            )
        return result

    def _has_same_records(self, loader: Any) -> bool:
        """Whether a loader reads the records of the first one, whose rows may be exchanged."""
        dataset: Any = getattr(loader, "dataset", None)
        if isinstance(dataset, _Records) or self._is_substituted(dataset):
            return True
        form, substitute = self.train.form, self.substitute
        if form is None or substitute is None or isinstance(dataset, IterableDataset):
            return False
        with contextlib.suppress(Exception):  # without a length, or with other keys
            if len(dataset) == self.facts.n:
                items = [dataset[place] for place in self.train.places]
                item_lists = form.items, substitute.items
                return any(have_equal_numbers(items, of_run) for of_run in item_lists)
        return False

    def _is_substituted(self, dataset: Any) -> bool:
        """Whether a data set is one of those whose records were replaced by those of the run."""
        return any(dataset is replaced_dataset for replaced_dataset in self.datasets)

    def _modules(self) -> list[Any]:
        return [self.module, *self.further_modules]

    def _refuse_unfit(self, loader: Any, module: Any) -> None:
        reason = ""
        kinds = " ".join(kind.__name__ for kind in type(module).__mro__)
        if any(word in kinds for word in ("DistributedDataParallel", "FSDP", "DPDDP")):
            reason = "a distributed module: run the same loop in one process"
        elif loader is None:
            reason = "make_private without a data_loader: pass the loop to audit.check"
        elif isinstance(loader.dataset, IterableDataset) or not hasattr(
            loader.dataset, "__getitem__"
        ):
            reason = "a data set that cannot be indexed: load a part of it into a list"
        elif len(loader.dataset) < 8:
            reason = f"a data set of {len(loader.dataset)} records: at least 8 are needed"
        if reason:
            self._refuse(f"be a script of one process with a loader, got {reason}")

    def _read(self, loader: Any, kwargs: Any) -> None:
        """Reads the script's own numbers, and the records of its data set."""
        facts, dataset = self.facts, loader.dataset
        facts.n, facts.poisson = len(dataset), bool(kwargs.get("poisson_sampling", True))
        facts.noise_multiplier = float(kwargs["noise_multiplier"])
        batches = max(len(loader), 1)
        facts.batch_size = loader.batch_size or round(facts.n / batches)
        if self.train.form is None:
            count = min(self.train.count, facts.n)
            places = np.unique(np.linspace(0, facts.n - 1, count).round().astype(int))
            self.train.form = ItemForm.of([dataset[int(i)] for i in places])
            self.train.places = [int(i) for i in places]
            rows = StoredRecords(self.train.form, dataset, self.train.places)
            facts.are_rows_exchanged = self.train.are_files_covered and rows.holds_features()
        facts.unchanged = self.train.form.unchanged_parts

    def _substitute(self, loader: Any) -> None:
        """Puts the records of the run into the script's loader."""
        form = self.train.form
        assert form is not None
        items = list(form.items) if self.records is None else form.items_of(self.records)
        self.datasets.append(loader.dataset)
        self.substitute = _Records(items, loader.dataset)
        full = len(loader) <= 1
        # The size is a constant: it does not follow the number of records of the run.
        count = len(form.items)
        self.size = 2 * count if full else max(count // _BATCHES_PER_EPOCH, 1)
        is_to_end = self.watch is not None and self.watch.to_end
        # An array may be a file in memory, which a process that is killed would leave changed.
        if self.records is not None and is_to_end and self.train.are_files_covered:
            # With forced gradients, whatever depends on these rows is released without noise.
            self.stored.append(StoredRecords(form, loader.dataset, self.train.places))
            self.stored[-1].exchange(self.records)
        self._rebuild(loader)

    def _rebuild(self, loader: Any) -> None:
        """Makes a loader read the records of the run, in the same order of draws as before."""
        sampler = type(loader.sampler).__name__
        shuffles = sampler == "RandomSampler"
        if sampler not in ("RandomSampler", "SequentialSampler"):
            self.facts.overridden.add(f"sampler {sampler}")
        assert self.substitute is not None
        new: Any = DataLoader(
            self.substitute,
            batch_size=self.size,
            shuffle=shuffles,
            collate_fn=loader.collate_fn,
            drop_last=loader.drop_last and self.size <= len(self.train.places),
        )
        if loader.num_workers:
            self.facts.overridden.add("num_workers")
        if loader.generator is not None:
            self.facts.overridden.add("generator of the loader")
        vars(loader).clear()
        vars(loader).update(vars(new))

    def _plain_loader(self, kwargs: Any) -> Any:
        if kwargs.get("num_workers"):
            self.facts.overridden.add("num_workers")
        drop = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
        return {key: value for key, value in kwargs.items() if key not in drop}

    def _before_step(self, optimizer: Any) -> None:
        if self.is_over:
            return
        noise = float(getattr(optimizer, "noise_multiplier", float("inf")))
        self.facts.lowest_noise = min(self.facts.lowest_noise, noise)

    def _counted(self, batches: Any) -> Iterator[Any]:
        """The batches, up to the last one whose step is tested.

        A script that skips a batch because of a record then takes fewer steps with this record.
        """
        if self.is_over:
            yield from self._batches_to_end(batches)
            return
        for batch in batches:
            self.drawn += 1
            if self.drawn > self.train.max_batches:
                self._end_tested_steps()
                return
            yield batch
            if self._are_all_steps_taken():
                return

    def _are_all_steps_taken(self) -> bool:
        return self.is_over

    def _batches_to_end(self, batches: Any) -> Iterator[Any]:
        """All batches for an evaluation; one for each epoch of training."""
        is_training = getattr(self._modules()[-1], "training", True)  # the candidate of the moment
        is_evaluation = not (torch.is_grad_enabled() and is_training)
        for batch in batches:
            self._count_to_end()
            yield batch
            if not is_evaluation:
                return

    def _count_to_end(self) -> None:
        self.batches_to_end += self.is_over
        if self.batches_to_end > _MAX_BATCHES_TO_END:
            self.facts.end = f"it draws more than {_MAX_BATCHES_TO_END} further batches"
            self._end()

    def _after_step(self) -> None:
        if self.is_over:
            return
        self.taken += 1
        self.drawn_before_steps.append(self.drawn)
        if self.taken >= self.steps:
            self._end_tested_steps()

    def _end_tested_steps(self) -> None:
        """Ends the script, or lets it go on to its end, where it saves what it releases."""
        watch = self.watch
        to_end = self.to_end if watch is None else watch.to_end and self.train.reaches_end
        if not to_end:
            self._end()
        if watch is not None:
            watch.freeze(self.module)
        self.is_over = True
        # A record may have moved the generators: it is the steps that show this.
        self._seed_generators()
        self.on_last_step()

    def _seed_generators(self) -> None:
        self._seeding = True
        seed_global_generators(global_seed(self.seed))
        self._seeding = False

    def _keep_file(self, file: SavedFile) -> None:
        if not file.error:
            self.facts.files.add(file.name)
        if self.watch is not None:
            self.watch.recorded.saved.append(file)

    def clean(self) -> None:
        """Removes the files that the run created, if they are not the user's."""
        if self.train.are_files_covered:
            self.created.remove()


def execute_copy(
    train: ScriptTrain,
    wait: Callable[[], tuple[TrainingSet, int, Any]],
    send: Callable[[Any, ScriptFacts], None],
) -> None:
    """Runs the script up to `make_private`, where it is copied, and in each copy to its end.

    Args:
        train: the script.
        wait: returns, in a copy, the records, the seed and the watch of the run.
        send: sends the trace and the facts of a run, and ends the copy.
    """
    run = _Run(train, None, _PREAMBLE_SEED, None)
    run.wait = wait

    def finish() -> None:
        watch = run.watch
        trace = watch.recorded
        if run.error:
            trace.error = run.error
        elif not watch.has_more_steps:
            trace.released = watch.released(run.module)
            trace.complete = True
        watch.close()
        watch.read_accountant()
        watch.keep_model()
        run.clean()
        send(trace, run.facts)

    run.at_end = finish
    try:
        run.execute()
    except EndOfRun:
        run.watch.has_more_steps = True
    finish()


def _force_noise(optimizer: Any, generator: Any) -> None:
    """Puts numbers of the size of the optimizer's noise into the place of its gradients."""
    clip = np.max(np.asarray(optimizer.max_grad_norm, dtype=np.float64))
    scale = float(optimizer.noise_multiplier * clip / (optimizer.expected_batch_size or 1))
    for parameter in optimizer.params:
        if parameter.grad is not None:
            drawn = torch.randn(parameter.shape, generator=generator) * scale
            parameter.grad.copy_(drawn)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those during whose handling it was raised."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__context__


def _is_empty(loader: Any) -> bool:
    """Whether a loader yields no batch."""
    with contextlib.suppress(TypeError):  # a sampler of unknown length
        return len(loader) == 0
    return False


def _first_batch(iterator: Any) -> Iterator[Any]:
    for batch in iterator:
        yield batch
        return


def _raise_refusal(message: str) -> NoReturn:
    raise InvalidInput(message)


def _exit_in_words(code: object, last_line: str) -> str:
    """The end of a script by `sys.exit`, which prints a code that is no number."""
    if isinstance(code, int):
        return f"an exit with code {code}: {last_line}"
    return f"an exit with the message {checks.one_line(' '.join(str(code).split()))}"


def _with_advice(error: BaseException) -> str:
    """An error of the script, and what to do about common ones."""
    if isinstance(error, InvalidInput):
        return str(error)
    text = format_error(error)
    advice = ""
    if "NVIDIA" in text or "CUDA" in text:
        advice = "this machine has no CUDA: let the script use the CPU"
    elif any(name in text for name in _DISTRIBUTED):
        advice = "a distributed script: run the same loop in one process"
    elif isinstance(error, socket.gaierror | ConnectionError) or "resolve" in text:
        advice = "the network is cut behind make_private"
    elif isinstance(error, FileNotFoundError):
        advice = f"the script runs in the folder {os.getcwd()}"
    elif isinstance(error, EOFError):
        advice = "input() gets no answer: let the script take it as an argument"
    elif isinstance(error, OSError) and error.errno == errno.EROFS:
        advice = "this folder is protected: let the script write elsewhere"
    return f"{text} ({advice})" if advice else text


class _Output:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def last_line(self) -> str:
        """The last line that the script printed."""
        size = os.fstat(self.descriptor).st_size
        text = os.pread(self.descriptor, 4000, max(size - 4000, 0)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return checks.printable(lines[-1]) if lines else "no output"


def empty_output() -> None:
    """Forgets what was printed, so that the output of many copies does not fill the memory."""
    with contextlib.suppress(OSError):  # of the null device
        os.ftruncate(1, 0)
        os.lseek(1, 0, os.SEEK_SET)


@contextlib.contextmanager
def quiet_output() -> Iterator[_Output]:
    """Sends everything that is printed to a file in memory, also from compiled code."""
    descriptor = os.memfd_create("output") if hasattr(os, "memfd_create") else os.open(
        os.devnull, os.O_RDWR
    )  # fmt: skip
    try:
        with output_to(descriptor):
            yield _Output(descriptor)
    finally:
        os.close(descriptor)

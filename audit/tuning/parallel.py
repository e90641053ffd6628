"""Runs of a study in several processes, through joblib."""

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator

from audit.errors import InvalidInput, require_modules
from audit.processes import end_with_parent, loky_options, worker_deaths
from audit.tuning.one_run import Attempt, Task

_LOKY = "LokyBackend"
"""The backend that never begins a run again by itself. Dask does if a worker is lost."""


HandOver = Callable[[Task], Task]


def attempts(
    tasks: Callable[[], Iterator[Task]], jobs: int, hand_over: HandOver
) -> Iterator[Attempt]:
    """Yields the results of the remaining tasks, in any order, from processes of joblib.

    `hand_over` is called with each task, in any thread, before a worker receives it.
    """
    if jobs == 1:
        yield from (hand_over(task)() for task in tasks())
        return
    require_modules("game", "joblib")
    import joblib
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    if getattr(backend, "supports_sharedmem", False):
        raise InvalidInput(
            "joblib's active backend must run each job in a process (loky, dask or ray), got "
            f"{type(backend).__name__}"
        )
    # A run that waits for a worker has been handed over, so there is at most one for each.
    options = {"n_jobs": jobs, "pre_dispatch": "n_jobs"} | loky_options(_begin_worker)
    may_repeat = type(backend).__name__ != _LOKY
    # Ray returns nothing before the last run of a call is over, so each call has few runs.
    streams = backend.supports_return_generator
    share = None if streams else 4 * joblib.effective_n_jobs(jobs)
    while next(tasks(), None) is not None:
        errors: list[InvalidInput] = []
        sent = _handed_over(itertools.islice(tasks(), share), hand_over, may_repeat, errors)
        calls = (joblib.delayed(_attempt)(task) for task in sent)
        workers = joblib.Parallel(**options, return_as="generator_unordered" if streams else "list")
        died, results = False, None
        try:
            results = workers(calls)
            for result in results:  # noqa: UP028 (closed below, where it may warn)
                yield result
        except worker_deaths():  # their messages would reveal how many runs were left
            died = True
        finally:
            # When it is closed early, joblib's warning would reveal how many runs were left.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if streams and results is not None:
                    results.close()
        if errors:
            raise errors[0]
        if died:
            raise RuntimeError(
                "a worker process died, possibly because memory ran out; run the same study again "
                "(with fewer jobs if necessary), and it resumes with the same draws"
            )


def _handed_over(
    tasks: Iterator[Task], hand_over: HandOver, may_repeat: bool, errors: list[InvalidInput]
) -> Iterator[Task]:
    """Hands over the tasks; ends at the first error, which joblib's thread could not raise."""
    for task in tasks:
        task.trial.checkpoints.is_repeated = may_repeat
        try:
            yield hand_over(task)
        except InvalidInput as error:
            errors.append(error)
            return


def _begin_worker() -> None:
    """Silences a worker for its whole life, and ends it when the study's process ends."""
    end_with_parent()
    nowhere = open(os.devnull, "w")  # noqa: SIM115 (open as long as the worker lives)
    for descriptor in (1, 2):
        os.dup2(nowhere.fileno(), descriptor)
    sys.stdout = sys.stderr = nowhere


def _attempt(task: Task) -> Attempt:
    """Runs a task. It is a function because Dask cannot send a method and displays its name."""
    return task()

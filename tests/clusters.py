"""Local clusters, for tests of runs on joblib's backends."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import joblib
import pytest


@contextlib.contextmanager
def local_backend(name: str, folder: Path) -> Iterator[None]:
    """Makes loky, Dask or Ray joblib's active backend, with two workers on this machine."""
    with contextlib.ExitStack() as stack:
        if name == "dask":
            distributed = pytest.importorskip("distributed")
            local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
            stack.enter_context(distributed.Client(local_directory=str(folder), **local))
        if name == "ray":
            ray = pytest.importorskip("ray")
            from ray.util.joblib import register_ray

            paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            quiet = {"log_to_driver": False, "include_dashboard": False}
            ray.init("local", num_cpus=2, runtime_env={"env_vars": paths}, **quiet)
            stack.callback(ray.shutdown)
            register_ray()
        stack.enter_context(joblib.parallel_config(name))
        yield

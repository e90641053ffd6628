"""Worker processes that end when their parent process ends."""

import multiprocessing
import os
import threading
import time

__all__ = ["end_with_parent"]

_POLL_SECONDS = 0.5


def end_with_parent() -> None:
    """Makes this worker process end within a second of its parent; an initializer for joblib.

    A parent that is killed cannot stop its workers, so each worker watches its parent:
    `joblib.Parallel(n_jobs=jobs, backend="loky", initializer=end_with_parent)`. Dask and Ray
    watch their own workers.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        while os.getppid() == parent.pid:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()

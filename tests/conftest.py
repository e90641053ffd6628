"""One thread per test process, set before torch starts; random examples that stay the same."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("same examples", derandomize=True, deadline=None)
settings.load_profile("same examples")

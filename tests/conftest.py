"""One thread per test process, set before torch starts."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

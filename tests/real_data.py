"""The folder with the files of the data sets, for tests that read them."""

import os
from pathlib import Path

_BESIDE = Path(__file__).parents[2] / "shared" / "data"

DATA_ROOT = Path(os.environ.get("AUDIT_DATA_ROOT") or _BESIDE)
"""The environment variable AUDIT_DATA_ROOT, else a folder next to the checkout; may not exist."""

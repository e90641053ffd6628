"""`python -m audit.bounds`: the cost of a tuning, or the noise or runs that a budget allows."""

import os
import sys

from audit import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()
    # Threads of one process stall each other on a busy machine. Set before numpy is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from audit import console
from audit.commands.bounds import main
from audit.commands.bounds_options import make_parser

__all__ = ["main", "make_parser"]

if __name__ == "__main__":
    sys.exit(console.run(main))

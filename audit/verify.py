"""`python -m audit.verify`: checks a certificate."""

import os
import sys

from audit import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()
    # Threads of one process stall each other on a busy machine. Set before numpy is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from audit import console
from audit.commands.verify import main, make_parser

__all__ = ["main", "make_parser"]

if __name__ == "__main__":
    sys.exit(console.run(main))

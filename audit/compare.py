"""`python -m audit.compare`: finished audits in one figure and one table."""

import sys

from audit import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()

from audit import console
from audit.commands.compare import main, make_parser

__all__ = ["main", "make_parser"]

if __name__ == "__main__":
    sys.exit(console.run(main))

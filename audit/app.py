"""`python -m audit.app`: the calculator in a browser."""

import sys

from audit import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()

from audit import console
from audit.commands.app import main, make_parser

__all__ = ["main", "make_parser"]

if __name__ == "__main__":
    sys.exit(console.run(main))

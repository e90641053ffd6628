"""`python -m audit.run`: plays the distinguishing game."""

import sys

from audit import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()

from audit import console
from audit.commands.run import main, make_parser, parse, run

__all__ = ["main", "make_parser", "parse", "run"]

if __name__ == "__main__":
    sys.exit(console.run(main))

"""`python -m audit.cost SOURCE`: the cost of a finished tuning, from its runs."""

import sys

from audit import console
from audit.commands.cost import main, make_parser

__all__ = ["main", "make_parser"]

if __name__ == "__main__":
    sys.exit(console.run(main))

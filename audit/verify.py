"""`python -m audit.verify`: checks a certificate."""

import sys

from audit import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()

from audit import console
from audit.commands.verify import main, make_parser

__all__ = ["main", "make_parser"]

if __name__ == "__main__":
    sys.exit(console.run(main))

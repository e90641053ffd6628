"""`python -m audit.reproduce`: the papers' figures in `studies/` of a source checkout."""

import sys

from audit import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()

from audit import console

main = console.study_command("papers")

if __name__ == "__main__":
    sys.exit(console.run(main))

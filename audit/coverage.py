"""The former name of `python -m audit.coverage_study`, kept for one version."""

import sys

from audit import console
from audit.coverage_study import main

if __name__ == "__main__":
    sys.exit(console.run(main))

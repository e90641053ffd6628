"""Stores the values of today's code as the frozen ones, and prints each value that moved.

python tests/frozen                       # all families
python tests/frozen costs loops           # some families
python tests/frozen costs --only grid     # the entries whose name contains a word
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Python runs a folder as a script without a package.
sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in the tests

from frozen.entries import read, write
from frozen.families import FAMILIES


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python tests/frozen", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--only", default="", metavar="WORD", help="entries with WORD in the name")
    parser.add_argument("--missing", action="store_true", help="entries without a frozen value")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.families) - FAMILIES.keys())
    if unknown:
        parser.error(f"FAMILY must be one of {', '.join(FAMILIES)}, got {', '.join(unknown)}")
    for family in options.families or FAMILIES:
        freeze(family, options.only, options.missing)
    return 0


def freeze(family: str, only: str = "", missing: bool = False) -> None:
    """Computes and stores entries of one family, and prints each value that moved."""
    frozen = read(family)
    entries = FAMILIES[family]()
    for name in frozen.keys() - entries.keys():
        print(f"{family} | {name}: removed")
    values = {name: frozen[name] for name in entries if name in frozen}
    for name, entry in entries.items():
        if only not in name or (missing and name in values):
            continue
        value = entry.value()
        if name not in values:
            print(f"{family} | {name}: new", flush=True)
        elif moved := entry.differences(name, values[name], value):
            print("\n".join(f"{family} | {line}" for line in moved), flush=True)
        values[name] = value
        write(family, {name: values[name] for name in entries if name in values})
    write(family, {name: values[name] for name in entries if name in values})


if __name__ == "__main__":
    sys.exit(main())

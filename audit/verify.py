"""Is a certificate right? `python -m audit.verify certificate.json` says so in one line."""

import sys
from collections.abc import Sequence

from audit import console
from audit.certificate import verify

WRONG = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Checks a certificate.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        The exit code: 0 if it is right, 1 if it is wrong, 2 if it is no certificate.
    """
    parser = console.Parser(
        prog="python -m audit.verify",
        description="Computes every number of a certificate anew, and checks its hash.",
        examples={"python -m audit.verify certificate.json": "one line says it"},
        notes="exit code: 0 right, 1 wrong, 2 no certificate",
    )
    parser.add_argument("certificate", help="the json file")
    arguments = parser.parse_args(argv)
    try:
        verdict = verify(arguments.certificate)
    except ValueError as error:
        return console.report_error(error)
    print(verdict.line)
    return console.OK if verdict.right else WRONG


if __name__ == "__main__":
    sys.exit(console.run(main))

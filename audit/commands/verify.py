"""`python -m audit.verify certificate.json` recomputes a certificate, and signs it on request."""

import argparse
import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from audit import checks, console
from audit.certificate.certificate import schema
from audit.certificate.signature import check_signature, sign
from audit.certificate.verification import Status, read, verdict_of
from audit.errors import InvalidInput

WRONG, VOID = 1, 3
SECONDS = 20.0

_WRONG_LINE = "wrong: "
_CODES = {Status.CORRECT: console.OK, Status.WRONG: WRONG, Status.VOID: VOID}


def main(argv: Sequence[str] | None = None) -> int:
    """Verifies a certificate.

    The exit code is 0 if it is correct, 1 if it or its signature is wrong, 2 if it cannot be read,
    and 3 if its numbers are correct but the certificate is void.
    """
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.schema:
        parser.refuse_others(arguments, "schema")
        print(json.dumps(schema(), indent=2))
        return console.OK
    if arguments.certificate is None:
        parser.error("certificate must be given")
    if arguments.sign is not None and arguments.check_signature is not None:
        parser.error("--sign must not be given with --check-signature: check it afterwards")
    if arguments.signature is not None and not (arguments.sign or arguments.check_signature):
        parser.error("--signature must be given with --sign or --check-signature")
    try:
        return _verify(arguments)
    except (ValueError, OSError) as error:
        return console.report_error(error)


def make_parser() -> console.Parser:
    """The options of the command."""
    parser = console.Parser(
        prog="python -m audit.verify",
        description="Recomputes every number of a certificate, and every condition it must state.",
        examples={
            "python -m audit.verify certificate.json": "correct, wrong or void",
            "python -m audit.verify certificate.json --sign ~/.ssh/id_ed25519": "sign it",
            "python -m audit.verify certificate.json --check-signature signers": "check the signer",
        },
        notes="exit code: 0 correct, 1 wrong, 2 cannot be read, 3 void",
    )
    parser.add_argument("certificate", nargs="?", help="the json file")
    parser.add_argument(
        "--sign", metavar="KEY", help="sign the verified file with an ssh key; writes FILE.sig"
    )
    parser.add_argument(
        "--check-signature",
        metavar="SIGNERS",
        help="check FILE.sig; SIGNERS lists names and public keys (see man ssh-keygen)",
    )
    parser.add_argument("--signature", metavar="SIG", help="signature file, if not FILE.sig")
    parser.add_argument(
        "--render",
        metavar="PAGE",
        help="write the verified certificate as .html, as .txt, or as .yaml for a registry",
    )
    parser.add_argument("--all", action="store_true", help="also print all that the author states")
    parser.add_imports()
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema, and exit")
    parser.add_argument(
        "--seconds",
        default=SECONDS,
        help=f"limit of the processor time of the verification ({SECONDS:g})",
    )
    return parser


def _verify(arguments: argparse.Namespace) -> int:
    path, page = Path(arguments.certificate), arguments.render
    key, allowed = arguments.sign, arguments.check_signature
    seconds = checks.interval("seconds", arguments.seconds, 0.0, 1e6)
    if page is not None:
        checks.one_of("the ending of --render", Path(page).suffix, (".html", ".txt", ".yaml"))
        if not Path(page).parent.is_dir():
            raise InvalidInput(
                f"--render must be a file in a folder that exists, got {checks.one_line(str(page))}"
            )
    signature_path = Path(arguments.signature or f"{path}.sig")
    if key is not None and signature_path.exists():
        raise InvalidInput(
            f"signature must not exist yet, got {checks.one_line(str(signature_path))}"
        )
    with _limited(seconds):
        # The file is read once, so the signed bytes are the verified ones.
        content = read(path)
        verdict = verdict_of(content)
    signer = None
    if allowed is not None:
        signer = check_signature(content, signature_path, allowed)
    lines = verdict.lines if arguments.all else verdict.short or verdict.lines
    if allowed is not None and signer is None:
        print("wrong: the signature is not that of an allowed signer for this file")
        for line in lines:
            print(console.wrap(f"  apart from the signature: {line}", "    "))
        return WRONG
    for line in lines:
        # What is wrong stays on one line, as errors do, so that programs find it.
        print(line if line.startswith(_WRONG_LINE) else console.wrap(line, "    "))
    if signer is not None:
        print(f"signature: valid, by {signer!a}")
    elif key is None and verdict.status is not Status.WRONG:
        print("signature: not checked; see --check-signature")
    code = _CODES[verdict.status]
    if verdict.certificate is not None and page is not None:
        verdict.certificate.save(page)
        print(f"page: {page!a}")
    if key is not None:
        if code != console.OK:
            print("signature: none, because the certificate is not correct")
            return code
        made = sign(content, key)
        with open(signature_path, "xb") as file:
            file.write(made)
        print(f"signature: {str(signature_path)!a}")
    return code


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Limits the processor time of a block of code, on systems that have such a timer.

    Elapsed time would refuse a correct certificate on a busy machine.
    """
    if not hasattr(signal, "SIGPROF") or threading.current_thread() != threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, stop)
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
    except _TooLong:
        raise InvalidInput(
            f"certificate must be verified within {seconds:g} seconds of processor time, and was "
            "not: --seconds raises the limit"
        ) from None
    finally:
        signal.signal(signal.SIGPROF, before)


class _TooLong(BaseException):
    """The time limit has passed; no handler of errors may catch it."""

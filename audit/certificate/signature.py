"""Detached signatures with ssh keys, by `ssh-keygen -Y` of OpenSSH 8.2 or later."""

import subprocess
import tempfile
from pathlib import Path

from audit import checks
from audit.certificate.certificate import NAMESPACE
from audit.errors import InvalidInput


def sign(content: bytes, key: str | Path) -> bytes:
    """Signature of a certificate by an ssh key.

    Args:
        content: content of the json file.
        key: path of the private key, or of the public key if an agent holds the private one.

    Raises:
        InvalidInput: OpenSSH is missing, or cannot sign with this key.

    Example:
        >>> try:
        ...     sign(b"{}", "no/such/key")
        ... except ValueError as error:
        ...     print(error)
        key must be a file with content, got 'no/such/key'
    """
    process = _ssh_keygen("sign", ["-f", _file("key", key)], content)
    if process.returncode != 0 or not process.stdout:
        raise InvalidInput(
            f"key must be an ssh key that can sign, got {str(key)!r}: {_reason(process.stderr)}"
        )
    return process.stdout


def check_signature(
    content: bytes, signature: str | Path, allowed_signers: str | Path
) -> str | None:
    """The allowed signer who signed a certificate; None if there is none.

    A line of the list may have several names, or patterns such as `*@example.org`. The signature
    belongs to the key and does not say which of them signed, so the result then describes them all.

    Args:
        content: content of the json file.
        signature: path of the signature.
        allowed_signers: path of a list of names and public keys, as `man ssh-keygen` describes:
            lines such as `alice@example.org ssh-ed25519 AAAA...`.

    Raises:
        InvalidInput: OpenSSH or a file is missing.

    Example:
        >>> try:
        ...     check_signature(b"{}", "certificate.json.sig", "signers")
        ... except ValueError as error:
        ...     print(error)
        signature must be a file with content, got 'certificate.json.sig'
    """
    of_signature = ["-s", _file("signature", signature)]
    signers = Path(_file("allowed_signers", allowed_signers))
    if not _principals(of_signature, signers):
        return None
    # OpenSSH reports the first line with this key, even if it is for another purpose, so each line
    # is asked by itself.
    with tempfile.TemporaryDirectory(prefix="dp-tuning-audit-") as folder:
        one_line = Path(folder, "signers")
        for line in signers.read_bytes().splitlines():
            if not line.strip() or line.lstrip().startswith(b"#"):
                continue
            one_line.write_bytes(line + b"\n")
            names = _principals(of_signature, one_line)
            allowed = [name for name in names if not name.startswith("!")]
            for name in allowed:
                options = [*of_signature, "-f", str(one_line), "-I", _matching(name)]
                if _ssh_keygen("verify", options, content).returncode == 0:
                    return _described(allowed, [name[1:] for name in names if name not in allowed])
    return None


def _principals(of_signature: list[str], signers: Path) -> list[str]:
    """The names in the first line of a list that has the key of a signature."""
    process = _ssh_keygen("find-principals", [*of_signature, "-f", str(signers)], b"")
    lines = (
        process.stdout.decode("utf-8", "replace").splitlines() if process.returncode == 0 else []
    )
    return [name for line in lines for name in line.split(",")]


def _matching(pattern: str) -> str:
    """A name that matches a pattern of `man ssh-keygen`: `*` is any text, `?` any character."""
    return pattern.replace("*", "a-name").replace("?", "a")


def _described(allowed: list[str], excluded: list[str]) -> str:
    """The only name of a line, or all names in words."""
    if len(allowed) == 1 and not set("*?") & {*allowed[0]}:
        return allowed[0]
    words = f"a name that matches {' or '.join(allowed)}"
    return f"{words} and not {' or '.join(excluded)}" if excluded else words


def _ssh_keygen(
    action: str, options: list[str], content: bytes
) -> subprocess.CompletedProcess[bytes]:
    command = ["ssh-keygen", "-Y", action, *options]
    if action != "find-principals":
        command += ["-n", NAMESPACE]
    try:
        # No limit of time: signing may need a passphrase, and a busy machine takes its time.
        return subprocess.run(command, input=content, capture_output=True, check=False)
    except FileNotFoundError:
        raise InvalidInput(
            "ssh-keygen must be installed for signatures; it is part of OpenSSH"
        ) from None


def _file(name: str, path: str | Path) -> str:
    if not checks.is_stored_file(path):
        raise InvalidInput(f"{name} must be a file with content, got {checks.one_line(str(path))}")
    return str(Path(path).resolve())


def _reason(stderr: bytes) -> str:
    return " ".join(stderr.decode("utf-8", "replace").split())

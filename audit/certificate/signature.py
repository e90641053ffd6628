"""Detached signatures with ssh keys, by `ssh-keygen -Y` of OpenSSH 8.2 or later."""

import subprocess
from pathlib import Path

from audit import checks
from audit.certificate.content import NAMESPACE
from audit.errors import InvalidInput

_SECONDS = 20.0


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
    done = _ssh_keygen("sign", ["-f", _file("key", key)], content, seconds=None)
    if done.returncode != 0 or not done.stdout:
        raise InvalidInput(
            f"key must be an ssh key that can sign, got {str(key)!r}: {_reason(done.stderr)}"
        )
    return done.stdout


def check_signature(
    content: bytes, signature: str | Path, allowed_signers: str | Path
) -> str | None:
    """Name of the allowed signer who signed a certificate; None if there is none.

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
    files = ["-s", _file("signature", signature), "-f", _file("allowed_signers", allowed_signers)]
    found = _ssh_keygen("find-principals", files, b"")
    names = found.stdout.decode("utf-8", "replace").splitlines()
    if found.returncode != 0 or not names:
        return None
    for name in names[0].split(","):
        if _ssh_keygen("verify", [*files, "-I", name], content).returncode == 0:
            return name
    return None


def _ssh_keygen(
    action: str, options: list[str], content: bytes, seconds: float | None = _SECONDS
) -> subprocess.CompletedProcess[bytes]:
    command = ["ssh-keygen", "-Y", action, *options]
    if action != "find-principals":
        command += ["-n", NAMESPACE]
    try:
        return subprocess.run(
            command, input=content, capture_output=True, check=False, timeout=seconds
        )
    except FileNotFoundError:
        raise InvalidInput(
            "ssh-keygen must be installed for signatures; it is part of OpenSSH"
        ) from None
    except subprocess.TimeoutExpired:
        raise InvalidInput(
            f"ssh-keygen must respond within {seconds:g} seconds, but it did not"
        ) from None


def _file(name: str, path: str | Path) -> str:
    if not checks.is_stored_file(path):
        raise InvalidInput(f"{name} must be a file with content, got {checks.one_line(str(path))}")
    return str(Path(path).resolve())


def _reason(stderr: bytes) -> str:
    return " ".join(stderr.decode("utf-8", "replace").split())

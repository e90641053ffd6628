"""Every error that a user can see.

All are subclasses of `AuditError`. Each is also a subclass of the built-in exception that fits, so
`except ValueError` catches invalid input.
"""

import importlib.util
from collections.abc import Sequence

__all__ = [
    "AuditError",
    "ClusterLost",
    "DamagedShard",
    "DeltaUnreachable",
    "InvalidInput",
    "MissingExtra",
    "NotApplicable",
    "PrivacyLeak",
    "ProtocolViolation",
    "StudyAborted",
    "WorkerDied",
]

_MAX_CHARACTERS = 2000
"""Length of a message."""

PACKAGE_NAMES = {"sklearn": "scikit-learn", "yaml": "pyyaml"}
"""The names under which pip installs modules that have another name."""

MODULES_OF_AUDITS = ("joblib", "matplotlib", "pandas", "seaborn", "torch", "tqdm")
"""The modules of the extra `game` that every audit of a tuning imports."""


class AuditError(Exception):
    """Base class of the errors of this package.

    Example:
        >>> from audit import checks
        >>> try:
        ...     checks.interval("delta", 2.0, 0.0, 1.0)
        ... except AuditError as error:
        ...     print(error)
        delta must be in (0, 1), got 2.0
    """

    def __init__(self, *values: object) -> None:
        # A message quotes user input, which may be long and have several lines.
        super().__init__(
            *(_shortened(value) if isinstance(value, str) else value for value in values)
        )


def _shortened(text: str) -> str:
    text = " ".join(line.strip() for line in text.splitlines())
    length = _MAX_CHARACTERS // 2
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:length]}[...]{text[-length:]}"


class InvalidInput(AuditError, ValueError):
    """A value that the user gave is not allowed, or does not fit the other values."""


class DeltaUnreachable(InvalidInput):
    """No epsilon reaches the requested delta: the mechanism fails with a larger probability.

    Example:
        >>> from audit.accounting import ApproximateDp
        >>> try:
        ...     ApproximateDp(1.0, 1e-3).epsilon(1e-5)
        ... except DeltaUnreachable as error:
        ...     print(error)
        delta must be above 0.001, which no epsilon removes, got 1e-05
    """


class NotApplicable(InvalidInput):
    """The bound does not apply to this base, protocol or delta; the message is the reason.

    Example:
        >>> from audit.accounting import DpSgd
        >>> from audit.upper_bounds.published import corollary_4
        >>> corollary_4(DpSgd(70.0, 300), "fixed:3", 1e-5).reason
        'K must be truncated negative binomial'
    """


class ProtocolViolation(InvalidInput):
    """A run was not the mechanism that the study accounts for; the message names the difference.

    Example:
        >>> from audit.tuning import Outcome
        >>> try:
        ...     Outcome(score="high")
        ... except ProtocolViolation as error:
        ...     print(error)
        score must be a number, got a str
    """


class StudyAborted(AuditError, RuntimeError):
    """The study ended without a release, because a requirement of its guarantee was violated.

    Example:
        >>> print(StudyAborted("train returned no Outcome"))
        train returned no Outcome
    """


class WorkerDied(AuditError, RuntimeError):
    """A worker process ended unexpectedly, and repeating its work did not help."""


class ClusterLost(AuditError, RuntimeError):
    """A Dask or Ray cluster stopped working during an audit."""


class DamagedShard(AuditError):
    """A file of trials cannot be read, was changed, or belongs to another audit."""


class PrivacyLeak(AuditError, AssertionError):
    """A premise of the claim is violated, or an attack shows an epsilon above the claimed one.

    Example:
        >>> issubclass(PrivacyLeak, AssertionError)  # so a test that meets one fails
        True
    """


class MissingExtra(AuditError, ImportError):
    """An optional package is not installed; the message names the extra that installs it."""


def missing_extra(packages: Sequence[str], extra: str) -> MissingExtra:
    """The error about packages that are not installed, in the one form of all such messages.

    Args:
        packages: the packages, by the names under which pip installs them.
        extra: the extra that installs them.

    Example:
        >>> print(missing_extra(["joblib", "torch"], "game"))
        joblib, torch must be installed: pip install 'dp-tuning-audit[game]'
    """
    return MissingExtra(
        f"{', '.join(packages)} must be installed: pip install 'dp-tuning-audit[{extra}]'"
    )


def require_modules(extra: str, *modules: str) -> None:
    """Raises one error that names all of these modules that are not installed.

    Args:
        extra: the extra that installs them.
        modules: the modules that the following work imports.

    Raises:
        MissingExtra: some of them are not installed.

    Example:
        >>> require_modules("game", "numpy")
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise missing_extra([PACKAGE_NAMES.get(name, name) for name in missing], extra)

"""Every error that a user can see.

All are subclasses of `AuditError`. Each is also a subclass of the built-in exception that fits, so
`except ValueError` catches invalid input.
"""

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


class InvalidInput(AuditError, ValueError):
    """A value that the user gave is not allowed, or does not fit the other values."""


class DeltaUnreachable(InvalidInput):
    """No epsilon satisfies the requested delta; a larger delta is needed."""


class NotApplicable(InvalidInput):
    """A theorem does not cover the given base mechanism or protocol."""


class ProtocolViolation(InvalidInput):
    """A user's sampler or search left the limits that its protocol states."""


class StudyAborted(AuditError, RuntimeError):
    """A private study ended without a release, and cannot be resumed."""


class WorkerDied(AuditError, RuntimeError):
    """A worker process ended unexpectedly, and repeating its work did not help."""


class ClusterLost(AuditError, RuntimeError):
    """A Dask or Ray cluster stopped working during an audit."""


class DamagedShard(AuditError):
    """A file of trials cannot be read, was changed, or belongs to another audit."""


class PrivacyLeak(AuditError, AssertionError):
    """A training loop leaked more than its accountant allows."""


class MissingExtra(AuditError, ImportError):
    """An optional package is not installed; the message names the extra that installs it."""

"""Errors that say who must act.

::

    RefoldError                 every error refold raises on purpose; ``exit_code`` is the CLI's exit status
    |-- UsageError        64    the caller asked for something that cannot be: change the call
    |-- InvalidRecord     65    the record's fault: it goes to the rejected topic with ``code``
    |-- NotFound          66    the named session, topic, file or record does not exist
    |-- UnavailableError  69    a broker, owner or store does not answer: retry, or start it
    |-- InvariantViolation 70   refold's own fault: quarantine the session, report a bug
    |-- StorageError      74    disk full, locked or damaged local state
    |-- TransientError    75    retry with back-off; nothing was lost
    |-- FencedError       76    another member owns this now: stop, do not retry
    |-- PermissionDenied  77    the cluster or owner refused the credentials
    `-- ConfigError       78    a setting, topology or schema is wrong: fix it and start again

Numbers follow sysexits(3) where it has one. Exit 1 is reserved for "the check found a difference"
(``verify``, ``session fold``) and 2 for "there is a diff" (``topology plan``).
"""

from __future__ import annotations

from typing import ClassVar


class RefoldError(Exception):
    """Base of all deliberate errors. The text names the likely cause and the way out."""

    exit_code: ClassVar[int] = 70
    #: What was found when somebody looked why (:func:`refold.servers.with_cause`); the end of the text then.
    cause: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.cause is None else f"{text.rstrip(' .')}. Cause: {self.cause}."


class UsageError(RefoldError):
    exit_code: ClassVar[int] = 64


class InvalidRecord(RefoldError):
    """A record that cannot be taken. ``code`` is one of :data:`refold.core.codes.RejectCode`."""

    exit_code: ClassVar[int] = 65

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class NotFound(RefoldError):
    exit_code: ClassVar[int] = 66


class UnavailableError(RefoldError):
    """``retry_after_s`` is a hint in seconds, ``None`` when retrying will not help by itself."""

    exit_code: ClassVar[int] = 69

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        #: The brokers that were asked, where none answered: it can be looked up why.
        self.bootstrap: str | None = None


class InvariantViolation(RefoldError):
    """A rule of the contract does not hold. A real exception: ``assert`` disappears under ``-O``."""

    exit_code: ClassVar[int] = 70


class StorageError(RefoldError):
    exit_code: ClassVar[int] = 74


class TransientError(RefoldError):
    exit_code: ClassVar[int] = 75


class FencedError(RefoldError):
    exit_code: ClassVar[int] = 76


class PermissionDenied(RefoldError):
    exit_code: ClassVar[int] = 77


class ConfigError(RefoldError):
    exit_code: ClassVar[int] = 78

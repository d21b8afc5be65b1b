"""What bodies and steps can say, and what whoever waits for a run is told.

A *step* raises :class:`NonRetryable` when trying again makes no sense; any other exception is tried again, at
most twice, and then a person decides. A *body* raises :class:`RunFailed` to end its run; any other exception
is a fault of the body, and its run waits for a person and another version.

:class:`RunLeft` goes through a body when this process has to leave the run. It is no ``Exception``, so that
``except Exception`` does not hold it up; there is no reason to catch it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from refold.errors import RefoldError

Leave: TypeAlias = Literal["suspended", "draining", "review", "lost", "unavailable"]


class NonRetryable(Exception):
    """Raised by a step: it failed, and trying again makes no sense. The run waits for a person at once."""

    def __init__(self, reason: str, *, code: str = "non_retryable") -> None:
        super().__init__(reason)
        self.code = code


class RunFailed(RefoldError):
    """Raised by a body to end its run as failed; raised to whoever waits for the result of such a run."""

    exit_code = 75

    def __init__(self, reason: str, *, code: str = "failed") -> None:
        super().__init__(reason)
        self.code = code


class RunStopped(RefoldError):
    """Somebody stopped the run that is waited for."""

    exit_code = 75


class RunInReview(RefoldError):
    """The run that is waited for waits for a person: ``refold run show``, ``refold run retry``."""

    exit_code = 75

    def __init__(self, reason: str, *, code: str = "") -> None:
        super().__init__(reason)
        self.code = code


class BodyChanged(RefoldError):
    """A body does not ask for the steps that its run has recorded: another version, or a body whose order
    depends on something else than its input and its steps' outputs."""

    exit_code = 78


class StaleStep(RefoldError):
    """A step with an external effect has to run again because what it read has changed; a person must say
    so."""

    exit_code = 75


class RunLeft(BaseException):
    """This process leaves the run. ``why``: suspended (it waits for approvals), draining, review, lost
    (the lease is over, the run is another process's, or over), unavailable (nothing answers)."""

    def __init__(self, why: Leave, text: str) -> None:
        super().__init__(text)
        self.why = why

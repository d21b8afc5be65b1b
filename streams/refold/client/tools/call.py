"""The call a body is given: its key, its time, and whether it may still act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from refold.client.tools.clocks import lease_clock
from refold.client.tools.outcomes import CallOutcome, NotDone, OutcomeNotKnown
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client.session import Session
    from refold.client.tools.lease import Lease


class ToolCall:
    """A body that takes a parameter annotated with this class gets it.

    ``key``: the idempotency key for the external system, ``operation_id/attempt``: the same in every process
    and after any crash as long as this attempt's outcome is not known to be "not done". ``deadline``: when
    the time-out ends, ``None`` without one, on the clock that :meth:`remaining` reads.
    """

    def __init__(
        self,
        session: Session,
        operation_id: str,
        tool: str,
        arguments: Mapping[str, Any],
        key: str,
        attempt: int,
        lease: Lease | None,
        timeout_s: float | None,
        call_id: str | None = None,
    ) -> None:
        self.session = session
        self.operation_id = operation_id
        self.tool = tool
        self.arguments = arguments
        self.key = key
        self.attempt = attempt
        self.call_id = call_id
        self.deadline = None if timeout_s is None else lease_clock() + timeout_s
        self._lease = lease

    def __repr__(self) -> str:
        return f"ToolCall({self.tool}, {self.key})"

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; ``None`` without one."""
        return None if self.deadline is None else max(0.0, self.deadline - lease_clock())

    def check(self) -> None:
        """Raises :class:`LeaseLost` when another runner may have taken the call over. For bodies of several
        steps: look directly before each effect. Any thread, costs nothing."""
        if self._lease is not None:
            self._lease.check()


class ManualCall(ToolCall):
    """What ``async with session.tool(...) as call`` gives. Say what came of it before the block ends; a block
    that ends without a word is *done* with no result."""

    _said = False

    #: After the block: what stands in the ledger; ``None`` when another runner took the call over.
    outcome: CallOutcome | None = None

    def done(self, result: Any = None, *, is_error: bool = False) -> None:
        """It took effect; ``result`` as a body would return it. ``is_error``: its answer is an error."""
        self._say(("done", result, is_error))

    def failed(self, reason: str, *, code: str | None = None) -> None:
        """It is known that nothing took effect. When that is not known, raise or call :meth:`unknown`."""
        self._say(NotDone(reason, code=code))

    def unknown(self, reason: str) -> None:
        """It is not known: the lookup is asked when the block ends."""
        self._say(OutcomeNotKnown(reason))

    def _say(self, what: Any) -> None:
        if self._said:
            raise UsageError(f"the outcome of {self.operation_id} was said already: it is said once")
        self._said = True
        self.verdict: Any = what

    @property
    def said(self) -> bool:
        return self._said

"""What a tool, a lookup and a call can say. The words of ``docs/guides/tools.md``.

A *body* returns its result or raises one of ``ToolError``, ``NotDone`` and ``OutcomeNotKnown``; any other
exception is judged by the tool's declared effect (:mod:`refold.client.tools.verdicts`). A *lookup* answers
``Done(result)``, ``NOT_DONE`` or ``UNKNOWN``. A *caller* gets a :class:`CallOutcome`, or one of the errors at
the end when there is nothing to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from refold.errors import FencedError, RefoldError
from refold.wire.parts import Part

Effect: TypeAlias = Literal["none", "idempotent", "external"]
EFFECTS: Final[tuple[Effect, ...]] = ("none", "idempotent", "external")

OutcomeState: TypeAlias = Literal["done", "failed", "denied", "unknown", "awaiting_approval", "started"]


@dataclass(frozen=True, slots=True)
class Done:
    """A lookup's answer: the call with this key took effect, and this is what it returned."""

    result: Any = None
    is_error: bool = False


class Lookup(Enum):
    """A lookup's other answers. ``NOT_DONE`` must be authoritative (rule L11): the external system guarantees
    that the key will not take effect any more, not only that it has not yet. Else answer ``UNKNOWN``."""

    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


NOT_DONE: Final = Lookup.NOT_DONE
UNKNOWN: Final = Lookup.UNKNOWN

LookupAnswer: TypeAlias = Done | Lookup


class ToolError(Exception):
    """Raised by a body: it ran to its end, and its answer is an error the model should read."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class NotDone(Exception):
    """Raised by a body: it is *known* that nothing took effect. ``retryable``: another try may succeed."""

    def __init__(self, reason: str, *, code: str | None = None, retryable: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.retryable = retryable


class OutcomeNotKnown(Exception):
    """Raised by a body: it cannot tell whether anything took effect. The lookup is asked; without one, or
    when it cannot tell either, a person decides (``refold review``)."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Where a call stands after it was run, found or reconciled.

    ``content`` are the recorded result's parts; ``text`` the same as the text a model is given; ``value`` the
    result as JSON value where the body returned one, else the text. ``attempt``: the one this is the outcome
    of, 0 when nothing ran.
    """

    operation_id: str
    tool: str
    state: OutcomeState
    text: str = field(repr=False)
    is_error: bool = False
    attempt: int = 0
    value: Any = field(default=None, repr=False)
    content: Sequence[Part] = field(default=(), repr=False)
    reason: str | None = None

    @property
    def settled(self) -> bool:
        """True when no event changes it any more."""
        return self.state in ("done", "failed", "denied")


class AlreadySettled(RefoldError):
    """The operation has its outcome already: nothing is run. ``outcome`` is the first one."""

    exit_code = 75

    def __init__(self, outcome: CallOutcome) -> None:
        super().__init__(
            f"operation {outcome.operation_id} of {outcome.tool} is {outcome.state} already: use its result "
            "(.outcome), or give another operation_id for another operation"
        )
        self.outcome = outcome


class OutcomeUnknown(RefoldError):
    """Nobody can tell whether the operation took effect. It is never run again; a person decides."""

    exit_code = 75

    def __init__(self, outcome: CallOutcome) -> None:
        super().__init__(
            f"the outcome of operation {outcome.operation_id} of {outcome.tool} is not known: it is in the "
            "review queue (`refold review list`) and is not run again"
        )
        self.outcome = outcome


class ApprovalPending(RefoldError):
    """Somebody must approve first (``session.approve`` / ``deny``, ``refold review resolve``); nothing waits
    in a process meanwhile. Do the same call again afterwards, from any process.

    ``pending``: the calls that wait. ``results``: from ``run_tools``, the provider-ready results of the other
    calls in the order asked, ``None`` in the places of those that wait.
    """

    exit_code = 75

    def __init__(self, pending: Sequence[CallOutcome], results: Sequence[Any] = ()) -> None:
        named = ", ".join(f"{call.operation_id} ({call.tool})" for call in pending)
        super().__init__(f"waiting for approval: {named}. Approve or deny, then run the same calls again")
        self.pending = tuple(pending)
        self.results = list(results)


class LeaseLost(FencedError):
    """The call's lease is over or another runner holds it: this one must not start anything any more."""

"""Tool calls with three outcomes: done, not done, and nobody can tell.

Declare a tool once (:func:`tool`), run what a model asked for (``session.run_tools``), look after what a dead
process left behind (``session.reconcile``); ``session.tool`` for one call around your own code. Rules and
guarantees: ``docs/guides/tools.md``.
"""

from __future__ import annotations

from refold.client.tools.call import ManualCall, ToolCall
from refold.client.tools.declare import Tool, tool
from refold.client.tools.outcomes import (
    NOT_DONE,
    UNKNOWN,
    AlreadySettled,
    ApprovalPending,
    CallOutcome,
    Done,
    Effect,
    LeaseLost,
    LookupAnswer,
    NotDone,
    OutcomeNotKnown,
    OutcomeUnknown,
    ToolError,
)

__all__ = [
    "NOT_DONE",
    "UNKNOWN",
    "AlreadySettled",
    "ApprovalPending",
    "CallOutcome",
    "Done",
    "Effect",
    "LeaseLost",
    "LookupAnswer",
    "ManualCall",
    "NotDone",
    "OutcomeNotKnown",
    "OutcomeUnknown",
    "Tool",
    "ToolCall",
    "ToolError",
    "tool",
]

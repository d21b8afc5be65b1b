"""The words refold puts into a context where there is no content to show.

A closed list; all begin with ``[refold``.

A model must be able to tell them from what a person or tool said, and a test from real results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.formats.parts import Part

MARK: Final = "[refold: "

NOT_KNOWN: Final = f"{MARK}unresolved: the outcome of this call is not known]"
STARTS_WITH_ASSISTANT: Final = f"{MARK}the conversation begins with the assistant]"
SUMMARY_BEGIN: Final = f"{MARK}summary of the earlier conversation]"
SUMMARY_END: Final = f"{MARK}end of the summary]"
SYSTEM_BEGIN: Final = f"{MARK}system message]"
SYSTEM_END: Final = f"{MARK}end of the system message]"

_BY_STATE: Final[Mapping[str, str]] = {
    "intended": "not run: the call was asked for and has not started",
    "awaiting_approval": "not run: the call waits for approval",
    "started": "unresolved: the call was started and its outcome is not known yet",
    "unknown": "unresolved: the outcome of this call is not known",
    "denied": "denied: the call was not approved and did not run",
}


def missing_result(row: Mapping[str, Any] | None) -> tuple[str, bool]:
    """(text, is it an error) for a call without a result in the context, by its tool row."""
    if row is None:
        return NOT_KNOWN, True
    state = row["state"]
    if state == "done":
        short = row.get("result_summary")
        if not short:
            return f"{MARK}done: the result is not in the context]", bool(row.get("is_error"))
        return f"{short}\n{MARK}only the beginning of the result is shown]", bool(row.get("is_error"))
    if state == "failed":
        why = (
            row.get("error") or row.get("result_summary") or row.get("error_code") or "no reason was recorded"
        )
        return f"{MARK}failed: the call had no effect] {why}", True
    text = _BY_STATE.get(state)
    return (f"{MARK}{text}]", True) if text else (NOT_KNOWN, True)


def said_by(name: str) -> str:
    """Before another agent's words."""
    return f"{MARK}said by {name}]"


def elided_message(length: int, seq: int) -> str:
    return f"{MARK}{length} bytes of content are not shown; they are in the journal at seq {seq}]"


def outside(part: Part) -> str:
    """For a part whose bytes are in the blob store and were not loaded."""
    size = part.ref.length if part.ref else 0
    return f"{MARK}{part.type} of {size} bytes is kept outside and not shown]"


def not_shown(part: Part, why: str = "") -> str:
    """For a part that the provider's message has no place for."""
    kind = part.fields.get("part_type") if part.type == "sealed" else part.fields.get("kind")
    named = f"{part.type} ({kind})" if kind else part.type
    return f"{MARK}{named} is not shown{f': {why}' if why else ''}]"


def is_marker(text: str) -> bool:
    return MARK in text


def summary(text: str) -> str:
    return f"{SUMMARY_BEGIN}\n{text}\n{SUMMARY_END}"


def system_note(text: str) -> str:
    """A system message that stands where only a user message can."""
    return f"{SYSTEM_BEGIN}\n{text}\n{SYSTEM_END}"

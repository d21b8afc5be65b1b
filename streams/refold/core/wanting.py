"""Whether a session wants a summary: rule Y1, as a function of its state.

Y1  A summary is wanted while the session is open and its window holds more messages than the policy's
    ``summary_messages``, or more bytes than its ``summary_bytes``; or, with ``hold_for_summary``, more than
    the window's own settings. A window that one summary cannot make smaller (one group of calls and
    results) wants none.

What is wanted changes with the window as little as can be, because each change is a record: while messages
are only added, the first one above the limit stays the first one, and ``grown`` counts whole sixteens.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from refold.core.context import find_cut
from refold.core.messagestate import Message
from refold.core.session import Session

#: What is wanted is said again each time the window has grown by so many messages, for whoever tried and
#: failed: at most WINDOW_MESSAGES_MAX / 16 = 6 times.
GROWN_MESSAGES: Final = 16


class SummaryWant(NamedTuple):
    """``since_ms`` and ``seq``: of the first message above the limit. ``reason``: messages, bytes or held."""

    reason: str
    since_ms: int
    seq: int
    grown: int


def summary_want(session: Session) -> SummaryWant | None:
    policy = session.policy
    if session.status != "open" or (policy is None and not session.hold_for_summary):
        return None
    recent = session.recent
    over: Message | None = None
    reason = ""
    if policy is not None and policy.summary_messages:
        over, reason = _over_count(recent, policy.summary_messages), "messages"
    if over is None and policy is not None and policy.summary_bytes:
        over, reason = _over_bytes(session, policy.summary_bytes), "bytes"
    if over is None and session.hold_for_summary:
        over = _over_count(recent, session.window_messages) or _over_bytes(session, session.window_bytes)
        reason = "held"
    if over is None or not find_cut(recent, at_turns=False, bound=session.answering):
        return None
    return SummaryWant(reason, over.time_ms, over.seq, len(recent) // GROWN_MESSAGES)


def _over_count(recent: list[Message], limit: int) -> Message | None:
    return recent[limit] if len(recent) > limit else None


def _over_bytes(session: Session, limit: int) -> Message | None:
    if session.recent_bytes <= limit:
        return None
    size = 0
    for message in session.recent:
        size += message.size
        if size > limit:
            return message
    return None

"""One summary: read the session, choose what it covers, have it written, append it, hear the ruling.

Invariants:

- Nothing is appended but a text with something in it, for a place where the path may be cut, as of the state
  that was read. Whatever fails before leaves the session as it was.
- The event's id names the summary in force and the last message covered: two processes that summarise the
  same at once send one event, and the fold takes the first. A summary that covers less than the one in force
  is refused (``bad_summary``); neither harms.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from refold.client.generations.journalling import ruled
from refold.client.snapshots import SnapshotView
from refold.client.summaries.choosing import choose_cut, is_wanted, words
from refold.client.summaries.limits import (
    RULING_S,
    STATE_S,
    SUMMARIZE_S_MAX,
    TEXT_BYTES_DEFAULT,
    TEXT_BYTES_MAX,
)
from refold.client.summaries.protocol import Said, Summarizer, SummaryFailed, SummaryRequest
from refold.client.summaries.readback import uncovered

if TYPE_CHECKING:
    from refold.client.session import Session

#: made: it is in force. superseded: another one, or another path, was first. nothing: none was wanted any
#: more, or the window cannot be cut. failed: no text.
What: TypeAlias = Literal["made", "superseded", "nothing", "failed"]

#: Someone else was first, the session moved on, or is not there to be summarised.
SUPERSEDED: Final = frozenset({"bad_summary", "conflict", "unknown_message", "no_session", "quarantined"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """``code``: why not. ``messages`` and ``bytes``: covered, and of the text."""

    what: What
    code: str = ""
    seq: int = 0
    messages: int = 0
    bytes: int = 0
    again: bool = False
    """Of failed ones: whether the same may succeed later."""


async def summarize_once(
    session: Session,
    summarizer: Summarizer,
    *,
    min_seq: int = 0,
    wanted: bool = False,
    bytes_max: int = TEXT_BYTES_DEFAULT,
    timeout_s: float = SUMMARIZE_S_MAX,
) -> Outcome:
    """Summarise the beginning of a session's window now, whether its policy asks for it or not
    (``wanted``: only if it does).

    Raises TransientError and UnavailableError where nothing answers: it may be in force all the same.
    """
    view = await session.state(min_seq=min_seq, timeout=STATE_S)
    if view is None or view.status != "open":
        return Outcome("nothing", "no_session" if view is None else view.status)
    if wanted and not is_wanted(view.data):
        return Outcome("nothing", "not_wanted")
    data = await session.completed(view)
    recent = list(data["context"]["recent_messages"])
    older = len(recent) - len(view.data["context"]["recent_messages"])
    cut = choose_cut(data, recent, older)
    if not cut:
        return Outcome("nothing", "no_cut")
    covered = [*await uncovered(session, view), *[words(message) for message in recent[:cut]]]
    try:
        text = await _written(summarizer, view, covered, bytes_max, timeout_s)
    except SummaryFailed as failed:
        return Outcome("failed", failed.code, again=failed.again)
    last = recent[cut - 1]
    ruling = await ruled(
        session,
        "ContextSummarized",
        {"text": text, "through_message_id": last["message_id"], "model": summarizer.name, "usage": None},
        timeout_s=RULING_S,
        event_id=f"summary/{_in_force(view)}/{last['seq']}",
    )
    if not ruling.in_effect:
        code = ruling.code or ""
        return Outcome("superseded" if code in SUPERSEDED else "failed", code)
    size = len(text.encode())
    return Outcome("made", seq=ruling.seq or 0, messages=len(covered), bytes=size)


def _in_force(view: SnapshotView) -> int:
    """Seq of the summary that stands on the active path, 0 without one."""
    context = view.data["context"]
    short = context["summary"]
    return int(short["seq"]) if short is not None and context["summary_active"] else 0


async def _written(
    summarizer: Summarizer, view: SnapshotView, covered: list[Said], bytes_max: int, timeout_s: float
) -> str:
    """Raises SummaryFailed, whatever the summarizer raised."""
    previous = view.data["context"]["summary"]["text"] if _in_force(view) else None
    request = SummaryRequest(view.tenant, view.session, previous, tuple(covered), bytes_max)
    try:
        async with asyncio.timeout(timeout_s):
            text = await summarizer.summarize(request)
    except SummaryFailed:
        raise
    except TimeoutError:
        raise SummaryFailed("timeout", f"no text within {timeout_s:g} s") from None
    except Exception as error:
        # Its text may quote the conversation: the class says enough.
        raise SummaryFailed("raised", type(error).__name__) from None
    if not isinstance(text, str) or not text.strip():
        raise SummaryFailed("empty", "the summarizer wrote nothing")
    return clip_bytes(text.strip(), TEXT_BYTES_MAX)


def clip_bytes(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, whole characters; half of a surrogate pair becomes U+FFFD."""
    raw = text.encode("utf-8", "surrogatepass")
    return raw[:limit].decode("utf-8", "ignore") if len(raw) > limit else raw.decode("utf-8", "replace")

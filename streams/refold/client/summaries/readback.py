"""Messages that left a session's window and stand in no summary, read back from the journal.

There are some where a session went on for long before anybody asked for summaries. A summary that covers the
path through a later message stands for them as well (W5), so it has to have seen them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from refold.client.operations.past import fold_past
from refold.client.snapshots import SnapshotView
from refold.client.summaries.choosing import words
from refold.client.summaries.limits import READ_BACK_BYTES_MAX, READ_BACK_MESSAGES_MAX
from refold.client.summaries.protocol import Said
from refold.wire.codec import decode_body
from refold.wire.events import MESSAGE_SUBJECT

if TYPE_CHECKING:
    from refold.client.events import SessionEvent
    from refold.client.session import Session


async def uncovered(session: Session, view: SnapshotView) -> list[Said]:
    """Oldest first; of more than READ_BACK_MESSAGES_MAX, or READ_BACK_BYTES_MAX, the newest."""
    context = view.data["context"]
    count = min(int(context["uncovered"]), READ_BACK_MESSAGES_MAX)
    if not count or not context["recent_messages"]:
        return []

    def events_of(name: str, after: int, limit: int | None) -> AsyncGenerator[SessionEvent, None]:
        return (session if name == view.session else session.sibling(name)).events(after, limit)

    past = await fold_past(events_of, view.tenant, view.session, view.seq, messages=True)
    found: list[Said] = []
    size = 0
    parent = context["recent_messages"][0]["parent"]
    while (placed := past.placed.get(parent)) is not None and len(found) < count:
        size += len(placed.body)
        if size > READ_BACK_BYTES_MAX:
            break
        body = decode_body(MESSAGE_SUBJECT, placed.body)
        found.append(words({**body, "actor": placed.message.actor}))
        parent = placed.message.parent
    return found[::-1]

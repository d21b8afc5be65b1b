"""Results that wait outside the context for their calls (L6): bounded, given up oldest first.

A message waits with what is remembered of its results. Its content stays in the journal when it is given up;
its id is remembered like that of any message that left the state.
"""

from __future__ import annotations

from refold.core.context import elide, forget_messages
from refold.core.limits import (
    ERROR_CODE_BYTES_MAX,
    ID_BYTES_MAX,
    ORPHAN_INLINE_BYTES_MAX,
    ORPHAN_TEXT_BYTES_MAX,
    ORPHANS_BYTES_MAX,
    ORPHANS_MAX,
)
from refold.core.messagestate import Message
from refold.core.session import Orphan, OrphanResult, Session
from refold.core.texts import clip
from refold.core.tree import add_alias


def orphan_cost(orphan: Orphan) -> int:
    texts = 0
    for result in orphan.results:
        for text in (result.operation_id, result.call_id, result.summary, result.error):
            texts += len(text.encode()) + 4 if text else 2
        # The id of the row it will match is counted from the start: a cost must not change while held.
        texts += ID_BYTES_MAX + ERROR_CODE_BYTES_MAX + 12
    return orphan.message.size + texts


def hold(session: Session, message: Message, results: list[OrphanResult]) -> None:
    """L6: wait outside the context. The oldest orphan makes room; its content stays in the journal."""
    for result in results:
        result.summary = clip(result.summary, ORPHAN_TEXT_BYTES_MAX)
        result.error = clip(result.error, ORPHAN_TEXT_BYTES_MAX)
        result.error_code = clip(result.error_code, ERROR_CODE_BYTES_MAX)
    if message.size > ORPHAN_INLINE_BYTES_MAX:
        elide(message)
    orphan = Orphan(message, results)
    session.orphans.append(orphan)
    session.orphans_bytes += orphan_cost(orphan)
    session.held[message.id] = message
    add_alias(session, message.id, session.head)
    while len(session.orphans) > ORPHANS_MAX or session.orphans_bytes > ORPHANS_BYTES_MAX:
        release_orphan(session, session.orphans[0])
    session.enc_memory = None


def release_orphan(session: Session, orphan: Orphan, *, forget: bool = True) -> None:
    session.orphans.remove(orphan)
    session.orphans_bytes -= orphan_cost(orphan)
    session.enc_memory = None
    if forget:
        forget_messages(session, (orphan.message,))


def expire_orphans(session: Session) -> None:
    """A new turn begins: results known by a bare call id are given up, for the id may be used again (D07)."""
    for orphan in list(session.orphans):
        if any(not r.matched and r.operation_id is None for r in orphan.results):
            release_orphan(session, orphan)


def release_matched(session: Session, operation_id: str) -> None:
    """The row is dropped: what it closed will not find its place any more, and its id may be used again."""
    for orphan in list(session.orphans):
        if any(r.matched == operation_id for r in orphan.results):
            release_orphan(session, orphan)

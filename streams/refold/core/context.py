"""The context window: which messages are raw, which the summary range covers, and where it may be cut.

Labels (docs/concepts/session.md):

W1  Every message of the active path is in exactly one place: pinned in ``system``, in ``recent``, or in the
    range that ends at ``through`` (with ``summary`` standing for the part it covers). ``uncovered`` counts
    those of the range that no active summary covers.
W2  ``recent`` never begins inside a group: no result without the message that asked for it. A result belongs
    to its call's place, so one that comes after its call was trimmed goes straight into the range.
W3  Cuts are at turn borders while there is one; the last turn stays whole and is reported (``overflow``).
    Only a turn above the hard limits loses something: above the bytes its oldest messages lose their content
    (the journal has it), above the count it is cut inside, between groups; where no cut is free because
    calls overlap, the oldest group leaves with its results.
W4  With ``hold_for_summary``, a policy that asks for summaries, or an active summary, messages leave only
    when a summary covers them, up to the hard limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from zlib import crc32

from refold.core.dedup import SEQ_MASK, ring_entry
from refold.core.events import MessageAppended
from refold.core.limits import (
    DEDUP_ENTRY_BYTES,
    DEDUP_MESSAGE_IDS_MAX,
    MESSAGE_INLINE_BYTES_MAX,
    TRAIL_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_MESSAGES_MAX,
)
from refold.core.messagestate import Message
from refold.core.session import Session


def make_message(seq: int, time_ms: int, parent: str, event: MessageAppended, actor: str | None) -> Message:
    """A message value; a body above the inline limit is elided at once."""
    body = event.body
    size = len(body)
    role = event.role
    message = Message(
        event.message_id, seq, time_ms, role, parent, body, size, role == "user" and not event.results, actor
    )
    if size > MESSAGE_INLINE_BYTES_MAX:
        elide(message)
    return message


def elide(message: Message) -> None:
    """Drop the content; length and digest remain."""
    body = message.body
    if body is None:
        return
    message.sha256 = sha256(body).hexdigest()
    message.length = len(body)
    message.size = stub_size(message)
    message.kept = message.enc = None


def stub_size(message: Message) -> int:
    """Bytes of a body without content, exactly: id and role with their lengths, eleven empty fields."""
    id_bytes = len(message.id.encode())
    return (2 if id_bytes > 63 else 1) + id_bytes + 1 + len(message.role.encode()) + 11


def same_content(message: Message, body: bytes) -> bool:
    kept = message.body
    if kept is not None:
        return kept == body
    return message.length == len(body) and message.sha256 == sha256(body).hexdigest()


def content_of(message: Message) -> bytes:
    """The four bytes by which a message that left the state is recognised."""
    body = message.body
    if body is None:
        return bytes.fromhex(message.sha256[:8])
    return crc32(body).to_bytes(4, "little")


def content_candidates(body: bytes) -> tuple[bytes, bytes]:
    """Both forms :func:`content_of` may have used for this body: it depends on whether it was elided."""
    return crc32(body).to_bytes(4, "little"), sha256(body).digest()[:4]


def append_recent(session: Session, message: Message) -> None:
    session.recent.append(message)
    session.recent_bytes += message.size
    session.held[message.id] = message
    session.head = message.id


def trim(session: Session) -> None:
    """Bring ``recent`` within its bounds. Cheap when it is."""
    hold = session.hold_for_summary or session.summary_active or asks_by_policy(session)
    count_max = WINDOW_MESSAGES_MAX if hold else session.window_messages
    bytes_max = WINDOW_BYTES_MAX if hold else session.window_bytes
    recent = session.recent
    while len(recent) > count_max or session.recent_bytes > bytes_max:
        cut = find_cut(recent, at_turns=True, bound=session.answering)
        if not cut:
            break
        drop_prefix(session, cut)
    while len(recent) > WINDOW_MESSAGES_MAX:
        cut = find_cut(recent, at_turns=False, bound=session.answering)
        if cut:
            drop_prefix(session, cut)
        else:
            _drop_group(session)
    while session.recent_bytes > WINDOW_BYTES_MAX:
        _elide_oldest(session)


def asks_by_policy(session: Session) -> bool:
    """Whether its policy asks for summaries at all (Y1)."""
    policy = session.policy
    return policy is not None and (policy.summary_messages > 0 or policy.summary_bytes > 0)


def find_cut(recent: list[Message], *, at_turns: bool, bound: bool) -> int:
    """The first position after the start where the path may be cut; 0 when there is none.

    ``bound``: whether there may be messages that answer others.
    """
    for cut in range(1, len(recent)):
        if at_turns and not recent[cut].turn_start:
            continue
        if not bound or is_legal_cut(recent, cut):
            return cut
    return 0


def is_legal_cut(recent: list[Message], cut: int) -> bool:
    """W2: nothing from ``cut`` on answers a call before it."""
    before: set[int] | None = None
    for message in recent[cut:]:
        if message.answers:
            if before is None:
                before = {m.seq for m in recent[:cut]}
            for seq in message.answers:
                if seq in before:
                    return False
    return True


def drop_prefix(session: Session, cut: int) -> None:
    """The first ``cut`` messages of ``recent`` enter the range."""
    dropped = session.recent[:cut]
    del session.recent[:cut]
    session.through = dropped[-1].seq
    session.trunk_id = dropped[-1].id
    session.uncovered += cut
    extend_trail(session, dropped)
    forget_messages(session, dropped)
    for message in dropped:
        session.recent_bytes -= message.size


def extend_trail(session: Session, trimmed: Iterable[Message]) -> None:
    trail = session.trail + b"".join([(m.seq & SEQ_MASK).to_bytes(4, "little") for m in trimmed])
    session.trail = trail[-4 * TRAIL_MAX :]


def trail_seqs(session: Session) -> list[int]:
    """The low 32 bits of the seqs of the last trimmed messages, in path order."""
    trail = session.trail
    return [int.from_bytes(trail[at : at + 4], "little") for at in range(0, len(trail), 4)]


def forget_messages(session: Session, messages: Iterable[Message]) -> None:
    """They are no longer held; their ids are remembered for a while (U4)."""
    held = session.held
    entries = [session.message_ids]
    for message in messages:
        held.pop(message.id, None)
        entries.append(ring_entry(message.id, content_of(message), message.seq))
    session.message_ids = b"".join(entries)[-DEDUP_MESSAGE_IDS_MAX * DEDUP_ENTRY_BYTES :]


def _drop_group(session: Session) -> None:
    """The first message, what answers it, and what those answers also answer, leave together (W3).

    Only reached when more than WINDOW_MESSAGES_MAX messages hang together by overlapping calls.
    """
    recent = session.recent
    group = {recent[0].seq}
    grew = True
    while grew:
        grew = False
        for message in recent:
            if message.answers and not group.isdisjoint(message.answers):
                for seq in (message.seq, *message.answers):
                    if seq not in group:
                        group.add(seq)
                        grew = True
    dropped = [m for m in recent if m.seq in group]
    kept = [m for m in recent if m.seq not in group]
    _reparent(recent, group)
    first = dropped[0]
    session.recent[:] = kept
    session.through = first.seq
    session.trunk_id = first.id
    if kept:
        kept[0].altered()
        kept[0].parent = first.id
    session.head = kept[-1].id if kept else first.id
    session.uncovered += len(dropped)
    extend_trail(session, (first,))
    forget_messages(session, dropped)
    session.recent_bytes = sum(m.size for m in kept)


def _reparent(recent: list[Message], gone: set[int]) -> None:
    """Messages that stay follow the last one before them that stays."""
    last = ""
    for message in recent:
        if message.seq in gone:
            continue
        if last and message.parent != last:
            message.altered()
            message.parent = last
        last = message.id


def _elide_oldest(session: Session) -> None:
    """One message, the oldest with content to drop, loses it (W3)."""
    for message in session.recent:
        if message.body is not None and message.size > stub_size(message):
            session.recent_bytes -= message.size
            elide(message)
            session.recent_bytes += message.size
            return
    # Not reachable: WINDOW_MESSAGES_MAX stubs of at most 310 bytes are below WINDOW_BYTES_MAX. If the
    # limits are ever set so that it is, leaving is better than an endless loop.
    drop_prefix(session, 1)

"""Which message a generation answers, where a policy lets branches grow while it is under way (rule O4).

A generation that names no message continues the active path as of its end (G9). With ``on_busy: branch`` the
active path may be another one by then: so when a user message begins a branch, the place of each open
generation is noted among the tree's aliases, under an id that no message can have.
"""

from __future__ import annotations

from typing import Final

from refold.core.context import make_message
from refold.core.envelope import Envelope
from refold.core.events import MessageAppended
from refold.core.ledger import bound_calls, make_room, open_part
from refold.core.results import join_orphans
from refold.core.session import Generation, Session
from refold.core.tree import add_alias, bound_branches

#: Producers' ids do not begin with @, and the fold's own are one @ before such an id.
NOTE: Final = "@@"


def answered_by(session: Session, row: Generation) -> str:
    """The message that an open generation answers; "" at the root."""
    if row.reply_to is not None:
        return row.reply_to
    return session.aliases.get(NOTE + row.generation_id, session.head)


def note_places(session: Session, rows: list[Generation]) -> None:
    """The active path is about to be another one: these stay where they are."""
    for row in rows:
        if row.reply_to is None and session.head and NOTE + row.generation_id not in session.aliases:
            add_alias(session, NOTE + row.generation_id, session.head)


def take_note(session: Session, row: Generation) -> str | None:
    """The generation ends: its place, where that has left the active path and is still held."""
    place = session.aliases.pop(NOTE + row.generation_id, None)
    if place is None:
        return None
    session.enc_memory = None
    return place if place in session.branch_messages else None


def apply_aside(
    session: Session, seq: int, time_ms: int, env: Envelope, event: MessageAppended, place: str
) -> None:
    """A generation's message enters off the active path, which stays as it is."""
    make_room(session, len(event.calls))
    message = make_message(seq, time_ms, place, event, None if env.actor is None else env.actor.id)
    session.held[message.id] = message
    # The newest of all: last in the order of their seq.
    session.branch_messages[message.id] = message
    session.branch_bytes += message.size
    session.aliases.pop(message.id, None)
    session.enc_branches = session.enc_rest = session.enc_memory = None
    if event.calls:
        opened = [open_part(session, seq, message.id, index, part) for index, part in enumerate(event.calls)]
        if session.orphans:
            join_orphans(session, opened, seq)
        bound_calls(session)
    bound_branches(session)

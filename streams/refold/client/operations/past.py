"""A session's journal folded again, as far as wanted, and every message it ever placed.

The fold begins with nothing: it asks no worker for a state and trusts no snapshot. Events come in pages
through the history index; kept is the state and, where ``messages`` are wanted, the content of every message.

A fork begins with its source's state (O1). What its messages were before that is in the source's journal,
and is folded too, to the seq of the fork, when messages are wanted; a source that was deleted and begun anew
since is another session under the same id, told by the time it began, and has nothing for the fork.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

from refold.client.events import SessionEvent
from refold.client.folding import fold_event
from refold.core.forks import source_seq_of
from refold.core.messagestate import Message
from refold.core.operationevents import ContextRestored, SessionForked
from refold.core.session import Session, initial
from refold.errors import NotFound
from refold.wire.events import decode_event

#: Events of a session of the tenant: id, after which seq, at most how many.
EventsOf: TypeAlias = Callable[[str, int, int | None], AsyncGenerator[SessionEvent, None]]

#: Forks of forks that are looked through for what came before.
FORKS_MAX: Final = 64


@dataclass(slots=True)
class Placed:
    """A message with its place in the tree. The core moves messages while it holds them, so the object is
    kept and its ``parent`` read at the end."""

    message: Message
    body: bytes


@dataclass(slots=True)
class Past:
    """``placed``: by message id, empty unless asked for."""

    state: Session
    placed: dict[str, Placed]


async def fold_past(
    events_of: EventsOf,
    tenant: str,
    session: str,
    upto: int | None = None,
    *,
    messages: bool = False,
    into: Past | None = None,
    _forks: int = 0,
) -> Past:
    """Fold a session's present life up to seq ``upto``, or all of it; ``state.seq`` is how far it went.

    ``into``: what an earlier call has folded of the same life, with the same ``messages``, to be gone on
    with. Raises NotFound when the journal no longer has the beginning.
    """
    past = Past(initial(tenant, session), {}) if into is None else into
    state = past.state
    after = state.seq
    async with aclosing(events_of(session, after, None if upto is None else upto - after)) as source:
        async for event in source:
            if upto is not None and event.seq > upto:
                break
            if not state.seq and event.seq != 1:
                raise NotFound(
                    f"the journal has session {tenant}/{session} from seq {event.seq} on only: its beginning "
                    "was cut by retention, so a former state cannot be folded; the present one is kept"
                )
            decoded = decode_event(event.envelope)
            fold_event(state, event, decoded)
            if not messages:
                continue
            if isinstance(decoded, SessionForked) and _forks < FORKS_MAX:
                past.placed = await _of_source(events_of, tenant, decoded, _forks)
            if isinstance(decoded, SessionForked | ContextRestored):
                for message in state.held.values():
                    if message.id in past.placed:
                        past.placed[message.id].message = message
            body: bytes | None = getattr(decoded, "body", None)
            if body is not None and (made := _made_by(state.held.values(), event.seq)) is not None:
                past.placed[made.id] = Placed(made, body)
    return past


def _made_by(held: Iterable[Message], seq: int) -> Message | None:
    for found in reversed(list(held)):
        if found.seq == seq:
            return found
    return None


async def _of_source(events_of: EventsOf, tenant: str, fork: SessionForked, forks: int) -> dict[str, Placed]:
    """The source's messages with the seqs they have in the fork; none where its journal is gone."""
    try:
        past = await fold_past(
            events_of, tenant, fork.source, fork.source_seq, messages=True, _forks=forks + 1
        )
    except NotFound:
        past = Past(initial(tenant, fork.source), {})
    same_life = (past.state.seq, past.state.created_ms) == (fork.source_seq, fork.base.created_ms)
    found = past.placed if same_life else {}
    # A fork made at a base that holds what it cannot find in the source's journal has it from the base.
    for message in fork.base.held.values():
        if message.id not in found and message.body is not None:
            found[message.id] = Placed(message, message.body)
    shift = fork.source_seq + 1
    for placed in found.values():
        placed.message.seq -= shift
        placed.message.answers = tuple([seq - shift for seq in placed.message.answers])
    return found


async def origin_of(events_of: EventsOf, source: str, source_seq: int, seq: int) -> tuple[str, int] | None:
    """Session and seq of the event of a message that has ``seq`` (below 0) in a fork of ``source``."""
    for _ in range(FORKS_MAX):
        seq = source_seq_of(seq, source_seq)
        if seq > 0:
            return source, seq
        first: SessionEvent | None = None
        async with aclosing(events_of(source, 0, 1)) as found:
            async for event in found:
                first = event
        record = None if first is None or first.type != "SessionForked" else first.payload
        if record is None:
            return None
        source, source_seq = record["source"], record["source_seq"]
    return None


async def lineage(events_of: EventsOf, session: str) -> list[SessionEvent]:
    """The events of a session, behind those its source had when it was forked, and so on."""
    chain: list[list[SessionEvent]] = []
    upto: int | None = None
    for _ in range(FORKS_MAX):
        async with aclosing(events_of(session, 0, upto)) as source:
            events = [event async for event in source if upto is None or event.seq <= upto]
        chain.append(events)
        record = events[0].payload if events and events[0].type == "SessionForked" else None
        if record is None:
            break
        session, upto = record["source"], record["source_seq"]
    return [event for events in reversed(chain) for event in events]

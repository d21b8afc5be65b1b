"""Parts of reducers over all sessions, and folding one anew from a session's journal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from refold.client import Receipt, Refold, Refused, Session
from refold.client.bulk import batches
from refold.client.folding import fold_event
from refold.client.positions import Position
from refold.core import reducers as pure
from refold.core.events import Opaque
from refold.core.policystate import Reduced
from refold.core.reducerevents import ReducerEvent
from refold.core.reducers import Registry
from refold.core.session import initial
from refold.errors import TransientError, UsageError
from refold.missing import no_session
from refold.wire.events import decode_event
from refold.wire.snapshot import decode_snapshot

#: A release is tried again when events of the part's types came while it was folded. Each try folds the
#: session's whole journal: who is refused this often meets a session that never rests.
TRIES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Part:
    """One part of one session; ``version`` 0 for one that is not there although its reducer is known."""

    tenant: str
    session: str
    name: str
    version: int
    seq: int
    status: str
    error: str | None
    state_bytes: int

    @property
    def stands(self) -> bool:
        return self.status != "ok"


async def all_parts(rf: Refold, known: Registry | None) -> AsyncIterator[Part]:
    """Every part in the state topic; with ``known`` also those that sessions of before a reducer lack."""
    connection = rf.connection
    topic = connection.names.state
    newest: dict[bytes, list[Part]] = {}
    source = batches(connection.reader_config, topic, Position(topic, {}), follow=False)
    async with aclosing(source) as states:
        async for batch in states:
            for _, message in batch:
                key, value = message.key() or b"", message.value()
                newest.pop(key, None)
                if value is not None and (parts := _parts(value, known)):
                    newest[key] = parts
    for parts in newest.values():
        for part in parts:
            yield part


def _parts(value: bytes, known: Registry | None) -> list[Part]:
    shown = decode_snapshot(value)
    tenant, session, rows = shown["tenant"], shown["session_id"], shown["reduced"]
    found = [
        Part(
            tenant,
            session,
            row["name"],
            row["version"],
            row["seq"],
            row["status"],
            row["error"],
            len(row["state"]),
        )
        for row in rows
    ]
    names = {row["name"] for row in rows}
    missing = [] if known is None else [name for name in known.by_name if name not in names]
    return found + [Part(tenant, session, name, 0, 0, "missing", None, 0) for name in missing]


async def fold_part(chat: Session, registry: Registry, name: str) -> tuple[Reduced, int]:
    """The part as the journal gives it with the reducer of this process, and up to which seq.

    What the journal says about the part itself is passed over: that is what is being made anew. Raises
    NotFound for a session that is not there.
    """
    before = pure.active
    pure.install(Registry([registry.by_name[name]], registry.view))
    state = initial(chat.tenant, chat.id)
    try:
        async with aclosing(chat.events()) as source:
            async for found in source:
                event = decode_event(found.envelope)
                fold_event(state, found, Opaque() if isinstance(event, ReducerEvent) else event)
    finally:
        pure.install(before)
    if state.seq == 0:
        raise no_session(chat.tenant, chat.id)
    part = state.reduced.get(name)
    if part is None or part.error == "late":
        raise UsageError(
            f"session {chat.id!r} was forked from one without a part {name}: release that one, fork it again"
        )
    return part, state.seq


async def release_part(
    chat: Session, registry: Registry, name: str, *, by: str | None, reason: str | None
) -> Receipt:
    """Fold the part anew and have it accepted. Raises UsageError where its reducer still stops (then nothing
    was sent) and where the worker has another version, TransientError where the session never rests."""
    version = registry.by_name[name].version
    for _ in range(TRIES_MAX):
        part, seq = await fold_part(chat, registry, name)
        if part.status != "ok":
            raise UsageError(
                f"reducer {name} stops again at seq {part.seq} of session {chat.id!r} ({part.error}): correct"
                " it, start the workers with it, then release"
            )
        payload = {
            "name": name,
            "version": version,
            "at_seq": seq,
            "state": part.state,
            "by": by,
            "reason": reason,
        }
        try:
            return await chat.publish("ReducerReleased", payload, wait="accepted")
        except Refused as refused:
            if refused.ruling.code != "expected_seq":
                raise UsageError(
                    f"the release of {name} was refused, {refused.ruling.code}: {refused.ruling.reason}"
                ) from None
    raise TransientError(
        f"events of {name} come to session {chat.id!r} faster than its journal is folded: run it again"
    )

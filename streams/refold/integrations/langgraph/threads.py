"""Threads as sessions: written by events, read by folding them, as bytes. On the client's event loop.

A read asks the owner for the session's state, for its seq, and folds the events that came since the last
one. What this process writes is folded as its rulings come, so that it is not read again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from refold.client.client import Refold
from refold.client.ordering import EarlierEventFailed
from refold.client.receipts import Receipt, Refused
from refold.client.session import Session
from refold.errors import NotFound
from refold.integrations.langgraph.index import Index, Place, digest_of
from refold.integrations.langgraph.journal import Records, place_of, record_of
from refold.integrations.langgraph.limits import (
    DELETED_PER_EVENT_MAX,
    OWN_KEPT_EVENTS_MAX,
    THREADS_KEPT_MAX,
)
from refold.integrations.langgraph.records import (
    TYPES,
    CheckpointPut,
    CheckpointsDeleted,
    Record,
    WritesPut,
    encode,
    type_of,
)
from refold.integrations.langgraph.values import offloaded
from refold.integrations.langgraph.view import View


@dataclass(slots=True, eq=False)
class _Thread:
    session: Session
    index: Index | None = None
    #: Own events that were accepted, not folded yet; by seq.
    own: dict[int, tuple[Place, str, str, Record]] = field(default_factory=dict)
    #: Held while the index is folded, and while an event is made, so that events are sent in the order of
    #: the calls.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def fold_own(self) -> None:
        index = self.index
        while index is not None and (found := self.own.pop(index.last.seq + 1, None)) is not None:
            # A ruling on an event of a former life may be heard late: its place in the inbox tells.
            if found[0].offset > index.last.offset:
                index.apply(*found)


class Threads:
    def __init__(self, rf: Refold) -> None:
        self.rf = rf
        self.records = Records()
        self._threads: OrderedDict[str, _Thread] = OrderedDict()

    async def view(self, thread: str) -> View | None:
        """As of now, with everything that this client saw accepted; ``None`` where there is no session.

        Costs a request, and a pass over the events that are new to this process. Raises NotFound where
        retention has cut the journal's beginning, InvalidRecord for events of our types that no saver has
        written, and as ``session.state``.
        """
        kept = self._thread(thread)
        async with kept.turn:
            index = await self._fresh(kept)
        return None if index is None else View(kept.session, index, self.records, self.rf.connection.blobs)

    async def put(self, thread: str, record: CheckpointPut) -> None:
        """Returns when it is accepted. Raises as :meth:`Session.publish` with ``wait="accepted"``."""
        kept = self._thread(thread)
        async with kept.turn:
            sent = await self._send(kept, record)
        await self._accepted(kept, sent)

    async def put_writes(self, thread: str, record: WritesPut) -> None:
        """As :meth:`put`."""
        kept = self._thread(thread)
        async with kept.turn:
            if any(slot < 0 for slot, _, _ in record.writes):
                # What is said last counts: whether this was said before, or anew, hangs on what came since.
                await self._fresh(kept)
            sent = await self._send(kept, record)
        await self._accepted(kept, sent)

    async def delete(self, thread: str, checkpoints: Sequence[tuple[str, str]]) -> None:
        """Delete checkpoints (namespace, id) with their writes. Returns when that is accepted."""
        session = self._thread(thread).session
        for first in range(0, len(checkpoints), DELETED_PER_EVENT_MAX):
            some = CheckpointsDeleted(tuple(checkpoints[first : first + DELETED_PER_EVENT_MAX]))
            receipt = await publish(session, type_of(some), encode(some))
            await receipt.accepted()

    async def delete_thread(self, thread: str) -> None:
        """Delete the session. Nothing happens where there is none."""
        kept = self._threads.pop(thread, None) or self._thread(thread)
        if await kept.session.state() is None:
            return
        try:
            receipt = await kept.session.delete()
        except EarlierEventFailed:
            await kept.session.retry()
            receipt = await kept.session.delete()
        await receipt.accepted()

    def session(self, thread: str) -> Session:
        return self._thread(thread).session

    def _thread(self, thread: str) -> _Thread:
        """Raises InvalidRecord (bad_key) for what is no id of a session."""
        kept = self._threads.get(thread)
        if kept is None:
            kept = self._threads[thread] = _Thread(self.rf.session(thread))
            if len(self._threads) > THREADS_KEPT_MAX:
                self._threads.popitem(last=False)
        self._threads.move_to_end(thread)
        return kept

    async def _fresh(self, kept: _Thread) -> Index | None:
        kept.fold_own()
        view = await kept.session.state()
        if view is None:
            kept.index = None
            kept.own.clear()
            return None
        life = int(view.data["created_at_ms"])
        index = kept.index
        if index is None or index.life != life or index.last.seq > view.seq:
            # Not folded yet; or deleted and begun anew since.
            index = Index(life)
            kept.index = None
        after = index.last.seq
        if view.seq > after:
            async with aclosing(kept.session.events(after, view.seq - after)) as source:
                async for event in source:
                    if not index.last.seq and event.seq != 1:
                        raise NotFound(
                            f"the journal has session {event.tenant}/{event.session} from seq {event.seq} on "
                            "only: its beginning was cut by retention, so its checkpoints cannot be found"
                        )
                    self._fold(kept, index, event)
        kept.index = index
        kept.own = {seq: own for seq, own in kept.own.items() if seq > index.last.seq}
        kept.fold_own()
        return index

    def _fold(self, kept: _Thread, index: Index, event: Any) -> None:
        place = place_of(event)
        if event.type not in TYPES:
            index.skip(place)
            return
        record = record_of(event)
        index.apply(place, event.event_id, digest_of(record, event.envelope.payload), record)
        self.records.keep(kept.session.key, place, record)

    async def _send(self, kept: _Thread, record: CheckpointPut | WritesPut) -> _Sent:
        connection = self.rf.connection
        ready = await offloaded(record, connection.blobs, connection.inline_bytes_max)
        payload = encode(ready)
        digest = digest_of(ready, payload)
        event_id = (kept.index or Index(0)).event_id(ready, digest)
        receipt = await publish(kept.session, type_of(ready), payload, event_id=event_id)
        return _Sent(receipt, digest, ready)

    async def _accepted(self, kept: _Thread, sent: _Sent) -> None:
        ruling = await sent.receipt.ruling()
        if not ruling.in_effect:
            raise Refused(sent.receipt.event_id, ruling)
        if not ruling.accepted:
            return
        place = Place(ruling.seq or 0, sent.receipt.offset)
        if place.seq == 1 and kept.index is None:
            # Begun by this very event: nothing is to be read.
            kept.index = Index(sent.receipt.append_time_ms)
        if kept.index is None:
            return
        self.records.keep(kept.session.key, place, sent.record)
        kept.own[place.seq] = (place, sent.receipt.event_id, sent.digest, sent.record)
        if not kept.turn.locked():
            kept.fold_own()
        if len(kept.own) > OWN_KEPT_EVENTS_MAX:
            # Others write too: what came in between is read at the next read, and these with it.
            kept.own.clear()


class _Sent(NamedTuple):
    receipt: Receipt
    digest: str
    record: CheckpointPut | WritesPut


async def publish(session: Session, event_type: str, payload: bytes, **options: Any) -> Receipt:
    """What failed before is sent again first: nothing is lost, and nothing is there twice."""
    try:
        return await session.publish(event_type, payload, **options)
    except EarlierEventFailed:
        await session.retry()
        return await session.publish(event_type, payload, **options)

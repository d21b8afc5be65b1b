"""What concerns more than one thread: all checkpoints of the tenant, and copies.

Nothing but the journal knows which sessions are threads. It is read once, whole, one event after the other:
looking into every session by itself would cost a seek for each of their events.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from hashlib import sha256

from refold.client.client import Refold
from refold.client.receipts import Receipt
from refold.integrations.langgraph.journal import record_of
from refold.integrations.langgraph.limits import COPIED_AT_ONCE_MAX
from refold.integrations.langgraph.records import TYPES, CheckpointPut, CheckpointsDeleted
from refold.integrations.langgraph.threads import Threads, publish
from refold.integrations.langgraph.values import loaded
from refold.integrations.langgraph.view import Typed

#: Thread -> its checkpoints, by namespace and id.
Found = dict[str, set[tuple[str, str]]]


async def survey(rf: Refold, wanted: Callable[[Typed], bool]) -> Found:
    """Checkpoints whose metadata is ``wanted``, of every thread of the client's tenant, as the journal has
    them; one that was deleted by its idle time may be among them. In memory: 200 bytes each."""
    found: Found = {}
    async with aclosing(rf.journal()) as source:
        async for item in source:
            event = item.event
            if event.tenant != rf.tenant:
                continue
            if event.seq == 1 or event.type == "SessionDeleted":
                found.pop(event.session, None)
            if event.type not in TYPES:
                continue
            record = record_of(event)
            held = found.setdefault(event.session, set())
            if isinstance(record, CheckpointPut):
                (metadata,) = await loaded([record.metadata], rf.connection.blobs)
                if wanted(metadata):
                    held.add((record.ns, record.id))
                else:
                    held.discard((record.ns, record.id))
            elif isinstance(record, CheckpointsDeleted):
                held.difference_update(record.checkpoints)
    return {thread: held for thread, held in found.items() if held}


async def copy(threads: Threads, source: str, target: str) -> None:
    """Append all that was written to one thread, deletions included, to another, as it was said. Values in
    the blob store stay where they are. Returns when all is accepted."""
    origin, copied = threads.session(source), threads.session(target)
    view = await origin.state()
    if view is None or source == target:
        return
    before = await copied.state()
    # The same copy tried again is absorbed; another one, after the target was written to, is not.
    about = f"{source} {view.data['created_at_ms']} {0 if before is None else before.seq}"
    receipts: list[Receipt] = []
    async with aclosing(origin.events(0, view.seq)) as events:
        async for event in events:
            if event.type not in TYPES:
                continue
            digest = sha256(f"{about} {event.seq}".encode()).hexdigest()
            event_id = f"langgraph-{digest[:32]}"
            receipts.append(await publish(copied, event.type, event.envelope.payload, event_id=event_id))
            if len(receipts) >= COPIED_AT_ONCE_MAX:
                await _accepted(receipts)
    await _accepted(receipts)


async def _accepted(receipts: list[Receipt]) -> None:
    for receipt in receipts:
        await receipt.accepted()
    receipts.clear()

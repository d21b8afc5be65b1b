"""From a typed payload to a durable event: ids, stamp, offloading, size check, ordered send, receipt.

**Who de-duplicates what.** An event whose id the SDK makes is stamped (producer id, epoch, counter): exact
for ever. An event whose id the *caller* gives is sent without a stamp, so that a retry from another process,
which would bear another stamp, is still recognised by its id, within the session's window of event ids
(``DEDUP_EVENT_IDS_MAX`` unstamped events). Messages are protected beyond it by their message id, tool events
by the call's state. The two events of a release go unstamped too (``UNSTAMPED_TYPES``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

from refold.client.connection import Connection, SessionMemory, now_ms
from refold.client.ids import new_id
from refold.client.limits import RULING_TIMEOUT_S
from refold.client.ordering import Pending
from refold.client.payloads import check_payload, encode_payload, offload
from refold.client.receipts import Receipt
from refold.client.refusal import refuse
from refold.client.sender import Delivery
from refold.core.envelope import Actor, Envelope, SessionLink
from refold.core.types import WORKER_TYPES
from refold.errors import UsageError
from refold.wire.envelope import encode_envelope
from refold.wire.owner import RulingLine

Wait = Literal["durable", "accepted"]

#: Accepted while earlier events of their own producer may still be parked: a stamp would raise the producer's
#: counter above those, and their replay would be taken for repeats. Known by their event id instead.
UNSTAMPED_TYPES: Final = frozenset({"SessionReleased", "SessionReleaseFinished"})


class Publisher:
    """Appends to one session."""

    def __init__(self, connection: Connection, tenant: str, session: str, key: bytes) -> None:
        self._connection = connection
        self._tenant = tenant
        self._session = session
        self._key = key

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def memory(self) -> SessionMemory:
        return self._connection.memory(self._key)

    async def publish(
        self,
        event_type: str,
        payload: Mapping[str, Any] | bytes,
        *,
        event_id: str | None = None,
        event_time_ms: int | None = None,
        actor: Actor | None = None,
        expected_seq: int | None = None,
        subject: str | None = None,
        run: str | None = None,
        step: str | None = None,
        attempt: int | None = None,
        causation_id: str | None = None,
        correlation_id: str | None = None,
        link: SessionLink | None = None,
        headers: Mapping[str, bytes] | None = None,
        message_id: str | None = None,
        wait: Wait = "durable",
        timeout: float = RULING_TIMEOUT_S,
    ) -> Receipt:
        if wait not in ("durable", "accepted"):
            raise UsageError(f"wait={wait!r}: it must be 'durable' or 'accepted'")
        if event_type in WORKER_TYPES:
            raise UsageError(f"{event_type} is written by the worker only")
        record_headers = _headers(event_type, headers)
        check_payload(event_type, payload)
        operation = None if isinstance(payload, bytes) else payload.get("operation_id")
        if message_id is None and event_type == "MessageAppended" and not isinstance(payload, bytes):
            message_id = payload.get("message_id")
        memory = self.memory
        async with memory.order:
            memory.lane.check_open()
            self._connection.check_room()
            given = payload
            if not isinstance(payload, bytes):
                payload = encode_payload(
                    event_type,
                    await offload(payload, self._connection.blobs, self._connection.inline_bytes_max),
                )
            envelope = Envelope(
                event_id=new_id() if event_id is None else event_id,
                tenant=self._tenant,
                session=self._session,
                type=event_type,
                event_time_ms=now_ms() if event_time_ms is None else event_time_ms,
                expected_seq=expected_seq,
                subject=subject,
                actor=actor,
                run=run,
                step=step,
                attempt=attempt,
                causation_id=causation_id,
                correlation_id=correlation_id,
                link=link,
                payload=payload,
            )
            refuse(envelope, given)
            stamped = event_id is None and event_type not in UNSTAMPED_TYPES
            if stamped:
                envelope.producer_id = self._connection.options.producer_id
                envelope.producer_epoch = self._connection.options.producer_epoch
                envelope.producer_counter = next(self._connection.counter)
            value = encode_envelope(envelope)
            header_bytes = sum(len(name) + len(content) for name, content in record_headers)
            await self._connection.check_size(self._key, value, header_bytes, event_type)
            sent_at = time.monotonic()
            pending = memory.lane.submit(
                envelope.event_id, event_type, value, record_headers, message_id, operation
            )
        receipt = await self._receipt(pending, memory, sent_at, stamped)
        if wait == "accepted":
            await receipt.accepted(timeout)
        return receipt

    async def retry(self) -> list[Receipt]:
        """Send failed events again, in order. Raises what the first of them fails with this time."""
        receipts = []
        for _, said in await self._again():
            if isinstance(said, BaseException):
                raise said
            receipts.append(said)
        return receipts

    async def retry_own(self, event_id: str) -> Receipt | None:
        """Send a failed event of the caller's again, with what followed it; its receipt, or what it fails
        with, whatever becomes of the others. ``None``: somebody else has decided about it, and what came of
        it cannot be told any more. Raises EarlierEventFailed while another one is in front of it."""
        memory, lane = self.memory, self.memory.lane
        failed = [pending.event_id for pending in lane.failed]
        if event_id not in failed:
            sending = lane.under_way(event_id)
            if sending is None:
                return None
            # By somebody else's retry.
            await asyncio.wait([sending.done])
            if sending.done.cancelled():
                return None
            return await self._receipt(sending, memory, time.monotonic(), stamped=False)
        if failed[0] != event_id:
            lane.check_open()
        for known, said in await self._again():
            if known == event_id:
                if isinstance(said, BaseException):
                    raise said
                return said
        return None

    async def retry_left(self) -> None:
        """Send failed events again where the first one's writer was cancelled or has given up: nobody else
        would, and no later event of the session could be sent from here. Sending again is always safe."""
        if self.memory.lane.nobodys:
            await self._again()

    def leave(self, event_id: str) -> None:
        """The caller's event, which failed, is anybody's to send again."""
        self.memory.lane.leave(event_id)

    async def _again(self) -> list[tuple[str, Receipt | BaseException]]:
        memory = self.memory
        sent_at = time.monotonic()
        failed = memory.lane.retry()
        # Asked for directly and not expected from the stream: the first try may have been ruled on long ago.
        said = await asyncio.gather(
            *(self._receipt(pending, memory, sent_at, stamped=False) for pending in failed),
            return_exceptions=True,
        )
        return [(pending.event_id, each) for pending, each in zip(failed, said, strict=True)]

    async def _receipt(
        self, pending: Pending, memory: SessionMemory, sent_at: float, stamped: bool
    ) -> Receipt:
        delivery: Delivery = await pending.done
        deletes = pending.type == "SessionDeleted"

        def ruled(line: RulingLine) -> None:
            if line.status == "accepted":
                # After a deletion the session counts from 1 again.
                memory.accepted(delivery.offset, 0 if deletes else line.seq or 0)
                if memory.heard is not None:
                    memory.heard(pending.type, pending.operation_id, line.seq or 0)

        self._connection.rulings.observe(delivery, ruled)
        return Receipt(
            pending.event_id,
            pending.type,
            delivery.partition,
            delivery.offset,
            delivery.append_time_ms,
            pending.message_id,
            self._connection.rulings,
            sent_at,
            stamped,
        )


def _headers(event_type: str, headers: Mapping[str, bytes] | None) -> tuple[tuple[str, bytes], ...]:
    """Everything that librdkafka would refuse is refused here: once queued, it would block the session."""
    own = ("refold-type", event_type.encode("utf-8", "replace"))
    if not headers:
        return (own,)
    for name, content in headers.items():
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise UsageError(f"header {name!r}: names are strings and values bytes")
        if not name or any(0xD800 <= ord(letter) <= 0xDFFF or letter == "\0" for letter in name):
            raise UsageError(f"header {name!r}: a name is not empty and holds no NUL and no half of a pair")
    if reserved := [name for name in headers if name.startswith("refold-")]:
        raise UsageError(f"header {reserved[0]!r}: names beginning with refold- are refold's own")
    return (own, *headers.items())

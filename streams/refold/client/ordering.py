"""Order per session: no later event of a session ever overtakes a failed one.

The fold's dedup keeps the highest counter per session and producer, so an event that arrives after a later
one of the same producer is taken for a repeat. Exactness therefore needs what this module keeps:

- at most one event of a session is in flight; the next is handed to Kafka after the previous one is durable.
  (A pipelined idempotent producer is not enough: a record that times out or is refused as too large leaves a
  gap that the following ones jump. ``enable.gapless.guarantee`` does not cover time-outs, and makes one
  session's refusal fatal for all. The price is one round trip per event *of one session*; sessions are
  independent of each other.)
- when one fails, everything queued behind it fails too, with :class:`EarlierEventFailed`, and so does every
  later ``submit`` until the caller decides: :meth:`Lane.retry` sends the same bytes again in order (same
  counters: absorbed if they had been written after all), :meth:`Lane.abandon` gives them up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from refold.client.limits import SESSION_QUEUE_EVENTS_MAX
from refold.client.sender import Delivery, Header
from refold.errors import RefoldError, TransientError


class EarlierEventFailed(TransientError):
    """An earlier event of the same session is not known to be durable, so this one was not sent.

    ``event_id`` names the first one that failed. Call ``session.retry()`` or ``session.abandon()``. ``own``:
    the id of this one where it waits behind that, to be sent by the same retry; ``None``: it was not taken.
    """

    def __init__(self, event_id: str, cause: str, own: str | None = None) -> None:
        super().__init__(
            f"not sent: the earlier event {event_id} of this session failed ({cause}). "
            "`await session.retry()` sends it and what followed again, in order; "
            "`session.abandon()` gives them up"
        )
        self.event_id = event_id
        self.own = own


class NotAcknowledged(TransientError):
    """The event ``event_id`` is not known to be durable; its session waits for ``session.retry()``."""

    def __init__(self, event_id: str, cause: str) -> None:
        super().__init__(cause)
        self.event_id = event_id


class Transport(Protocol):
    def start(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Sequence[Header],
        partition: int,
        tell: Callable[[Delivery | RefoldError], None],
    ) -> None:
        """Send one record. Raises, or calls ``tell`` once, later, on the event loop."""


@dataclass(slots=True)
class Pending:
    """One encoded event. ``done`` resolves when it is durable."""

    event_id: str
    type: str
    value: bytes
    headers: tuple[Header, ...]
    done: asyncio.Future[Delivery] = field(repr=False)
    #: What the event is about; a receipt says so, also that of a second try.
    message_id: str | None = None
    operation_id: str | None = None
    #: Whoever wrote it has gone, so nobody is going to decide about it.
    left: bool = False


class Lane:
    """The send queue of one session. Use from one event loop.

    There is no task behind it: a delivery report starts the next event.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        key: bytes,
        partition_of: Callable[[bytes], int],
        busy: set[Lane] | None = None,
    ) -> None:
        """``busy`` holds the lane while it has something to send."""
        self._busy: set[Lane] = set() if busy is None else busy
        self._transport = transport
        self._topic = topic
        self._key = key
        self._partition_of = partition_of
        #: Of the key, once known: hashing it costs as much as sending does.
        self._partition: int | None = None
        self._queue: deque[Pending] = deque()
        self._failed: list[Pending] = []
        self._cause = ""
        self._sending = False
        #: Raised when what is in flight is given up, so that its report is not taken for a later event's.
        self._turn = 0
        self._settled: asyncio.Future[None] | None = None

    @property
    def failed(self) -> tuple[Pending, ...]:
        """Events not known to be durable, in order; empty when the lane is open."""
        return tuple(self._failed)

    def under_way(self, event_id: str) -> Pending | None:
        """An event that is being sent, or queued to be."""
        return next((pending for pending in self._queue if pending.event_id == event_id), None)

    @property
    def nobodys(self) -> bool:
        """Whether the first event that failed has nobody who decides about it."""
        return bool(self._failed) and (self._failed[0].left or self._failed[0].done.cancelled())

    def leave(self, event_id: str) -> None:
        """The event's writer goes without having decided."""
        for pending in (*self._failed, *self._queue):
            if pending.event_id == event_id:
                pending.left = True

    @property
    def idle(self) -> bool:
        return not self._sending and not self._failed

    def check_open(self) -> None:
        """Raises :class:`EarlierEventFailed` while failed events wait for the caller's decision."""
        if self._failed:
            raise EarlierEventFailed(self._failed[0].event_id, self._cause)

    def submit(
        self,
        event_id: str,
        type_: str,
        value: bytes,
        headers: tuple[Header, ...],
        message_id: str | None = None,
        operation_id: str | None = None,
    ) -> Pending:
        """Queue an event behind all earlier ones. Raises before queueing, or fails the future later."""
        self.check_open()
        if len(self._queue) >= SESSION_QUEUE_EVENTS_MAX:
            raise TransientError(
                f"{SESSION_QUEUE_EVENTS_MAX} events of this session are waiting to be sent; not sent. "
                "Await the receipts of earlier ones first"
            )
        done = asyncio.get_running_loop().create_future()
        pending = Pending(event_id, type_, value, headers, done, message_id, operation_id)
        self._queue.append(pending)
        if not self._sending:
            self._send_next()
        return pending

    def retry(self) -> list[Pending]:
        """Queue the failed events again, in order, with the same bytes and fresh futures."""
        loop = asyncio.get_running_loop()
        again = [
            replace(failed, done=loop.create_future(), left=failed.left or failed.done.cancelled())
            for failed in self._failed
        ]
        self._failed = []
        # All of them before the first is sent: should it fail at once, the others are behind it.
        self._queue.extend(again)
        if again and not self._sending:
            self._send_next()
        return again

    def abandon(self) -> tuple[str, ...]:
        """Give the failed events up and open the lane; returns their event ids."""
        given_up = tuple(p.event_id for p in self._failed)
        self._failed = []
        return given_up

    async def settle(self) -> None:
        """Wait until nothing is being sent: all durable, or failed."""
        while self._sending:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)

    def close(self) -> None:
        """Stop sending; what is queued fails. For the end of the client."""
        if self._sending:
            self._fail(TransientError("the client was closed before the event was acknowledged"))

    def _send_next(self) -> None:
        head = self._queue[0]
        self._sending = True
        self._busy.add(self)
        try:
            if self._partition is None:
                self._partition = self._partition_of(self._key)
            self._transport.start(
                self._topic,
                self._key,
                head.value,
                head.headers,
                self._partition,
                partial(self._told, self._turn),
            )
        except RefoldError as error:
            self._fail(error)
        except Exception as error:
            # Nothing of ours raises these; whoever awaits a receipt must still hear of it.
            self._fail(TransientError(f"the event could not be handed to Kafka: {error!r}"))

    def _told(self, turn: int, outcome: Delivery | RefoldError) -> None:
        if turn != self._turn:
            return
        if not isinstance(outcome, Delivery):
            self._fail(outcome)
            return
        head = self._queue.popleft()
        if not head.done.done():
            head.done.set_result(outcome)
        if self._queue:
            self._send_next()
        else:
            self._rest()

    def _rest(self) -> None:
        self._sending = False
        self._busy.discard(self)
        if self._settled is not None:
            self._settled.set_result(None)
            self._settled = None

    def _fail(self, error: RefoldError) -> None:
        self._turn += 1
        self._failed = list(self._queue)
        self._queue.clear()
        self._cause = str(error)
        for position, pending in enumerate(self._failed):
            if pending.done.done():
                continue
            if position == 0:
                known = NotAcknowledged(pending.event_id, self._cause)
                pending.done.set_exception(known if isinstance(error, TransientError) else error)
            else:
                first = self._failed[0].event_id
                pending.done.set_exception(EarlierEventFailed(first, self._cause, pending.event_id))
            # A caller that never looks at its receipt must not get asyncio's "never retrieved" on top.
            pending.done.exception()
        self._rest()

"""librdkafka's consumers: the group member the engine polls with, and the reader a restore uses.

The member's background thread is a timer of its process: heartbeats, joins and new generations happen while
the application does something else, and stop when the process is stopped. Rebalance callbacks are served by
``poll`` and ``consume`` only.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, TopicPartition

from .broker import Broker
from .kafka import Membership, Message, error, raised
from .kernel import Kernel, Process
from .log import Stored

#: How often the background thread does something.
BACKGROUND_US: Final = 20_000

#: Records fetched at once: from 1 to one of these, drawn per run, so that batches differ.
FETCH_RECORDS_MAX: Final = (1, 3, 12, 40)
FETCH_ALL: Final = 1_000_000
#: A restore's reader.
READ_RECORDS_MAX: Final = 12

_Callback = Callable[[Any, list[TopicPartition]], None]


def fetched(chance: random.Random, records_max: int) -> int:
    """How many records one fetch returns at most; 0 as the maximum: all there are."""
    return 1 + chance.randrange(records_max) if records_max else FETCH_ALL


class _Fetch:
    __slots__ = ("fetching", "paused", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.paused = False
        #: Only a partition that is being fetched can be sought (measured).
        self.fetching = False


def message_of(topic: str, partition: int, entry: Stored) -> Message:
    return Message(topic, partition, entry.offset, entry.time_ms, entry.key, entry.value, entry.headers)


class GroupConsumer:
    def __init__(
        self,
        kernel: Kernel,
        broker: Broker,
        process: Process,
        instance: str,
        *,
        topic: str,
        session_ms: int,
        fetch_records_max: int,
    ) -> None:
        self._kernel = kernel
        self._fetch_records_max = fetch_records_max
        self._broker = broker
        self._group = broker.group
        self._process = process
        self._instance = instance
        self._topic = topic
        #: Whether a pattern was ever subscribed to, and whether the last call was ``unsubscribe``.
        self._pattern = False
        self._left = False
        #: Last time the background thread ran.
        self._contact_us = kernel.now_us
        self._session_us = session_ms * 1000
        self._member_id = ""
        self._generation = -1
        self._known = -1
        self._joining = False
        self._closed = False
        self._rejoin = True
        self._fatal: KafkaError | None = None
        self._parts: dict[int, _Fetch] = {}
        self._buffer: deque[Message] = deque()
        self._callbacks: deque[tuple[str, list[int]]] = deque()
        self._on: dict[str, _Callback] = {}
        self._to_assign: list[int] = []

    def subscribe(
        self, topics: list[str], on_assign: _Callback, on_revoke: _Callback, on_lost: _Callback
    ) -> None:
        first = not self._on
        self._on = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        pattern = any(topic.startswith("^") for topic in topics)
        if first:
            self._kernel.after(0, self._background, self._process)
        elif self._left or (pattern and not self._pattern):
            # Another list does not make a member join again, but the first one with a pattern does, and so
            # does coming back after unsubscribe (measured).
            self._rejoin = True
        self._pattern = self._pattern or pattern
        self._left = False

    def unsubscribe(self) -> None:
        """Everything is revoked; a static member stays in the group (measured)."""
        self._kernel.alive()
        self._left = True
        self._joining = False
        self._callbacks.clear()
        self._to_assign = []
        if self._parts:
            self._callbacks.append(("revoke", sorted(self._parts)))

    def consumer_group_metadata(self) -> bytes:
        self._kernel.alive()
        return Membership(self._generation, self._member_id, self._instance).encode(self._group.name)

    @property
    def member_id(self) -> str:
        return self._member_id

    @property
    def in_callback(self) -> bool:
        """Whether the application has a rebalance to answer."""
        return bool(self._callbacks)

    def ask_to_join(self) -> None:
        """The background thread's next request is JoinGroup, as after a change of the subscription."""
        self._rejoin = True

    def still_given(self, partition: int) -> bool:
        """Whether the group, at this moment, means this member to own the partition (for checkers)."""
        member = self._group.members.get(self._member_id)
        return member is not None and partition in member.given

    # --- the background thread -----------------------------------------------------------------------

    def _background(self) -> None:
        if self._closed or self._fatal is not None:
            return
        silent_us = self._kernel.now_us - self._contact_us
        if not self._process.cut:
            self._contact_us = self._kernel.now_us
        if silent_us > self._session_us and self._member_id:
            # librdkafka looks at its own clock first: it gives everything up without asking (measured).
            self._lose()
        delay = BACKGROUND_US // 2 + self._kernel.chance.randrange(BACKGROUND_US)
        self._kernel.after(delay, self._background, self._process)
        if self._process.cut:
            return
        if self._joining:
            self._await_round()
        elif self._callbacks:
            # A rebalance waits for the application: heartbeats go on, nothing else does.
            if self._member_id and self._generation >= 0:
                self._heed(
                    self._group.heartbeat(self._member_id, self._instance, self._generation), busy=True
                )
        elif self._rejoin:
            self._join()
        else:
            self._heed(self._group.heartbeat(self._member_id, self._instance, self._generation), busy=False)

    def _join(self) -> None:
        self._rejoin = False
        self._member_id = self._group.join(
            self._member_id, self._instance, frozenset(self._parts), self._session_us
        )
        self._joining = True

    def _heed(self, code: int | None, *, busy: bool) -> None:
        if code is None:
            return
        if code == KafkaError.FENCED_INSTANCE_ID:
            self._fatal = error(code, "another member has this instance id", fatal=True)
        elif code == KafkaError.UNKNOWN_MEMBER_ID:
            self._lose()
        elif not busy:
            self._join()

    def _lose(self) -> None:
        """The group has removed us: membership is gone at once, the application learns it when it polls."""
        self._member_id, self._generation, self._known = "", -1, -1
        self._joining = False
        self._callbacks.clear()
        self._to_assign = []
        if self._parts:
            self._callbacks.append(("lost", sorted(self._parts)))
        else:
            self._rejoin = True

    def _await_round(self) -> None:
        try:
            found = self._group.outcome(self._member_id, self._known)
        except Exception:
            self._lose()
            return
        if found is None:
            return
        self._joining = False
        self._generation, given = found
        self._known = self._generation
        mine = set(self._parts)
        revoked, added = sorted(mine - given), sorted(given - mine)
        if revoked:
            self._callbacks.append(("revoke", revoked))
            self._to_assign = added
        else:
            # Also when nothing is new (measured).
            self._callbacks.append(("assign", added))

    # --- what the application calls ------------------------------------------------------------------

    def poll(self, timeout: float) -> Message | None:
        if self._buffer or self._something():
            self._kernel.pause()
            self._serve()
        if not self._buffer:
            self._kernel.wait(self._something, int(timeout * 1_000_000))
            self._serve()
            self._fetch()
        return self._take()

    def consume(self, count: int, timeout: float) -> list[Message]:
        self._kernel.alive()
        self._serve()
        found: list[Message] = []
        while len(found) < count and (message := self._take()) is not None:
            found.append(message)
        return found

    def _take(self) -> Message | None:
        if self._fatal is not None:
            fatal, self._fatal = self._fatal, self._fatal
            return Message(self._topic, -1, -1, error=fatal)
        return self._buffer.popleft() if self._buffer else None

    def _something(self) -> bool:
        if self._callbacks or self._fatal is not None:
            return True
        for number, part in self._parts.items():
            if part.paused or not self._broker.reaches(self._process, self._topic, number):
                continue
            if self._broker.log(self._topic, number).stable > part.position:
                return True
        return False

    def _serve(self) -> None:
        while self._callbacks and not self._closed:
            kind, numbers = self._callbacks[0]
            self._kernel.trace(self._process.name, f"on_{kind} {numbers}")
            self._on[kind](self, [TopicPartition(self._topic, number) for number in numbers])
            if self._callbacks and self._callbacks[0] == (kind, numbers):
                self._callbacks.popleft()
            if kind == "revoke":
                self._rejoin = True
                if self._to_assign:
                    self._callbacks.append(("assign", self._to_assign))
                    self._to_assign = []
            elif kind == "lost":
                self._rejoin = True

    def _fetch(self) -> None:
        chance = self._kernel.chance
        for number in sorted(self._parts, key=lambda _: chance.random()):
            part = self._parts[number]
            if part.paused or not self._broker.reaches(self._process, self._topic, number):
                continue
            part.fetching = True
            log = self._broker.log(self._topic, number)
            if part.position < log.start or part.position > log.end:
                self._buffer.append(
                    Message(
                        self._topic,
                        number,
                        part.position,
                        error=error(KafkaError._AUTO_OFFSET_RESET, "no such offset"),
                    )
                )
                continue
            found, part.position = log.read(part.position, fetched(chance, self._fetch_records_max))
            self._buffer.extend(message_of(self._topic, number, entry) for entry in found)
            if found and chance.random() < 0.3:
                return

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._kernel.alive()
        for tp in partitions:
            if tp.partition in self._parts:
                raise raised(KafkaError._CONFLICT, "already assigned")
            self._parts[tp.partition] = _Fetch(tp.offset)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        self._kernel.alive()
        for tp in partitions:
            self._parts.pop(tp.partition, None)
            self._purge(tp.partition)

    def get_watermark_offsets(self, where: TopicPartition, timeout: float) -> tuple[int, int]:
        """Asked only to have librdkafka fetch at once, which it does here anyway."""
        self._kernel.alive()
        return 0, 0

    def seek(self, where: TopicPartition) -> None:
        self._kernel.alive()
        part = self._parts.get(where.partition)
        if part is None or not part.fetching:
            raise raised(KafkaError._STATE, "not being fetched")
        part.position = where.offset
        self._purge(where.partition)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            if tp.partition in self._parts:
                self._rewind_to_buffered(tp.partition)
                self._parts[tp.partition].paused = True

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            if tp.partition in self._parts:
                self._parts[tp.partition].paused = False

    def _rewind_to_buffered(self, number: int) -> None:
        """Pausing throws prefetched records away; they are fetched again."""
        first = next(
            (m.offset() for m in self._buffer if m.partition() == number and m.error() is None), None
        )
        if first is not None:
            self._parts[number].position = first
        self._purge(number)

    def _purge(self, number: int) -> None:
        self._buffer = deque(message for message in self._buffer if message.partition() != number)

    def close(self) -> None:
        """A static member does not leave the group when it closes (measured)."""
        self._kernel.pause()
        numbers = sorted(self._parts)
        if numbers and self._on:
            self._on["revoke"](self, [TopicPartition(self._topic, number) for number in numbers])
        self._closed = True


class Reader:
    """A consumer outside of any group, ``read_committed``, with end-of-partition events at the last stable
    offset."""

    def __init__(self, kernel: Kernel, broker: Broker) -> None:
        self._kernel = kernel
        self._broker = broker
        self._process = kernel.caller
        self._at: dict[tuple[str, int], int] = {}
        self._eof: dict[tuple[str, int], int] = {}
        self._buffer: deque[Message] = deque()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._at = {(tp.topic, tp.partition): tp.offset for tp in partitions}
        # What was fetched for the former assignment is thrown away, and the end is told again.
        self._eof.clear()
        self._buffer.clear()

    def unassign(self) -> None:
        self.assign([])

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._kernel.alive()
        for tp in partitions:
            place = (tp.topic, tp.partition)
            if place in self._at:
                raise raised(KafkaError._CONFLICT, "already assigned")
            self._at[place] = tp.offset

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        self._kernel.alive()
        for tp in partitions:
            place = (tp.topic, tp.partition)
            if self._at.pop(place, None) is None:
                raise raised(KafkaError._INVALID_ARG, "not assigned")
            self._eof.pop(place, None)
            self._buffer = deque(m for m in self._buffer if (m.topic(), m.partition()) != place)

    def poll(self, timeout: float) -> Message | None:
        self._kernel.pause()
        if not self._buffer:
            self._kernel.wait(self._something, int(timeout * 1_000_000))
            self._fetch()
        return self._buffer.popleft() if self._buffer else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        self._kernel.alive()
        return [self._buffer.popleft() for _ in range(min(count, len(self._buffer)))]

    def _something(self) -> bool:
        for (topic, partition), position in self._at.items():
            if not self._broker.reaches(self._process, topic, partition):
                continue
            stable = self._broker.log(topic, partition).stable
            if stable > position or self._eof.get((topic, partition)) != stable:
                return True
        return False

    def _fetch(self) -> None:
        for place, position in self._at.items():
            if not self._broker.reaches(self._process, *place):
                continue
            log = self._broker.log(*place)
            if position < log.start:
                self._buffer.append(
                    Message(
                        *place, position, error=error(KafkaError._AUTO_OFFSET_RESET, "the offset is gone")
                    )
                )
                continue
            found, self._at[place] = log.read(position, 1 + self._kernel.chance.randrange(READ_RECORDS_MAX))
            self._buffer.extend(message_of(*place, entry) for entry in found)
            stable = log.stable
            if self._at[place] >= stable and self._eof.get(place) != stable:
                self._eof[place] = stable
                self._buffer.append(Message(*place, stable, error=error(KafkaError._PARTITION_EOF, "end")))

    def close(self) -> None:
        self._at = {}

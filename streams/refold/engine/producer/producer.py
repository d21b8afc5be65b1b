"""``WireProducer``: transactions as :class:`refold.engine.commit.Transactor` calls them.

- One transaction is: offsets, the records (one request per leader, more where a partition has more than a
  batch), the end; before KIP-890's second part (:mod:`.dialect`) also a request to add the group and one to
  add the partitions. Everything waits for its answer, on the calling thread.
- A call has a time; when it is over, it raises a retriable ``_TIMED_OUT`` and may be called again: nothing
  that it sends does harm twice. Records are numbered once per epoch and sent as the same bytes until they are
  in (the broker answers a repeat with the offset it has); the other requests change nothing the second time.
- In the second dialect every end brings a new epoch. In the first an abort is the end and then a new epoch
  (``EndTxn``, ``InitProducerId`` with what we had, KIP-360). With it the coordinator refuses whatever is
  still on its way, and numbering begins anew, so it does not matter what became of records without an answer.
  The end comes first because it compares epochs: who was fenced is told so. ``InitProducerId`` alone would
  abort the open transaction of whoever fenced us, and be refused itself by brokers that keep no last epoch of
  a transaction aborted by it.
- A request whose answer was lost may still be on its way when its repeat is answered. An ``EndTxn`` that
  arrives in the next transaction would commit the half of it. So the transaction after a lost answer begins
  with a new epoch too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from refold.engine.commitmeta import read_group_meta
from refold.protocol import errors, requests
from refold.protocol.batches import Batch, Lane, Told
from refold.protocol.brokers import Address, Brokers
from refold.protocol.connection import Connection, Disconnected
from refold.protocol.dialect import Dialect
from refold.protocol.requests import Api, Identity, Member, Place
from refold.protocol.wire import Reader

#: Between two attempts; doubled each time. The last transaction's markers take 2 to 6 ms.
PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.01
#: While a broker cannot be reached or a partition has no leader: found again within this, for at most ten
#: attempts a second.
AWAY_S_MAX: Final = 0.1

#: A broker waits so long for its replicas before it answers `not enough of them`.
ACKS_MS_MAX: Final = 3_000

#: A new epoch at the beginning of a transaction; after it the call is to be made again.
BEGIN_S_MAX: Final = 5.0

#: Records handed over and not sent: beyond it full batches are sent while the rest is encoded, so that broker
#: and encoder work at the same time.
SEND_AT_BATCHES: Final = 4

#: librdkafka writes a committed offset's metadata with the NUL of its C string, and reads it back as one: of
#: metadata without it, whatever lies behind it in memory becomes a part (measured: every 16th length).
METADATA_END: Final = "\0"


class WireProducer:
    """Blocks; use from one thread at a time. ``batch_bytes``: before compression."""

    def __init__(
        self,
        brokers: Brokers,
        dialect: Dialect,
        transactional_id: str,
        *,
        timeout_ms: int,
        group: str,
        instance: str | None,
        batch_bytes: int,
        message_bytes_max: int,
    ) -> None:
        self._brokers = brokers
        self._dialect = dialect
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._group = group
        self._instance = instance
        self._batch_bytes = batch_bytes
        self._message_bytes_max = message_bytes_max
        self._who = Identity()
        self._lanes: dict[Place, Lane] = {}
        self._full = 0
        #: Requests with records whose answers are still to come, in the order they were sent.
        self._sent: list[tuple[Address, Connection, dict[Place, Batch]]] = []
        #: Partitions that the coordinator knows to be in the open transaction.
        self._added: set[Place] = set()
        #: Whether the coordinator may know of the open transaction.
        self._touched = False
        #: Whether the coordinator has aborted the open transaction, and the new epoch is not there yet.
        self._ended = False
        #: Whether something of this epoch may be on its way that nobody waits for any more.
        self._doubtful = False
        self._away = False
        self._failed: KafkaException | None = None
        self._over: KafkaException | None = None

    # --- the methods of confluent_kafka.Producer -----------------------------------------------------

    def init_transactions(self, timeout: float) -> None:
        """Fence whoever has our id and end what it left open."""
        self._renew(Identity(), "starting transactions", time.monotonic() + timeout)

    def begin_transaction(self) -> None:
        self._usable()
        if self._doubtful:
            self._anew("beginning", time.monotonic() + BEGIN_S_MAX)
        self._added.clear()
        self._touched = False

    def send_offsets_to_transaction(
        self, offsets: Sequence[TopicPartition], metadata: Any, timeout: float
    ) -> None:
        self._usable()
        doing, deadline = "sending offsets", time.monotonic() + timeout
        meta = read_group_meta(metadata)
        member = Member(self._group, meta.generation, meta.member_id, self._instance)
        given = {
            (one.topic, one.partition): (one.offset, (one.metadata or "") + METADATA_END) for one in offsets
        }
        self._touched = True
        if not self._dialect.joins_itself:
            self._coordinated(
                requests.TRANSACTION,
                requests.ADD_OFFSETS,
                requests.add_offsets(self._id, self._who, self._group),
                lambda read: [requests.read_error(read)],
                doing,
                deadline,
            )
        self._coordinated(
            requests.GROUP,
            self._dialect.commit_offsets,
            requests.commit_offsets(self._id, self._who, member, given),
            lambda read: list(requests.read_offset_errors(read).values()),
            doing,
            deadline,
        )

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Told | None = None,
        *,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        if len(value or b"") + len(key or b"") > self._message_bytes_max:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, f"a record for {topic}"))
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[topic, partition] = Lane()
        if lane.add(self._batch_bytes, key, value, headers, on_delivery):
            self._full += 1
            if self._full >= SEND_AT_BATCHES and self._failed is None:
                self._full = 0
                deadline = time.monotonic() + ACKS_MS_MAX / 1000
                # The answers to the last ones have come meanwhile; those to these come while we go on.
                self._collect(deadline)
                self._send(deadline)

    def flush(self, timeout: float) -> int:
        """Records without an acknowledgement when the time was over, or when one has failed."""
        deadline = time.monotonic() + timeout
        for lane in self._lanes.values():
            lane.close()
        self._full = 0
        pause = PAUSE_S_MIN
        while self._failed is None and self._waiting():
            self._away = False
            self._send(deadline)
            if not self._collect(deadline):
                if time.monotonic() + pause >= deadline:
                    break
                time.sleep(pause)
                pause = min(pause * 2, AWAY_S_MAX if self._away else PAUSE_S_MAX)
        return 0 if self._failed is not None else self._waiting()

    def poll(self, timeout: float) -> int:
        """Nothing happens by itself."""
        return 0

    def commit_transaction(self, timeout: float) -> None:
        self._usable()
        doing, deadline = "committing", time.monotonic() + timeout
        if self.flush(timeout):
            raise errors.timed_out(doing, "records are not acknowledged")
        self._usable()
        if self._touched:
            self._end(doing, deadline, commit=True)
        self._touched = False

    def abort_transaction(self, timeout: float) -> None:
        if self._over is not None:
            raise self._over
        if self._touched or any(lane.waiting for lane in self._lanes.values()):
            for where, _, _ in self._sent:
                self._brokers.lost(where)
            self._sent.clear()
            self._anew("aborting", time.monotonic() + timeout)
        self._failed = None
        self._touched = False

    # --- requests ------------------------------------------------------------------------------------

    def _usable(self) -> None:
        for wrong in (self._over, self._failed):
            if wrong is not None:
                raise wrong

    def _anew(self, doing: str, deadline: float) -> None:
        """Whatever is open is aborted, and what follows has a new epoch."""
        if not self._ended and self._end(doing, deadline, commit=False):
            return
        # Not again where the new epoch's answer is lost: under the old one it would be refused.
        self._ended = True
        self._renew(self._who, doing, deadline)
        self._ended = False

    def _end(self, doing: str, deadline: float, *, commit: bool) -> bool:
        """Whether a new epoch came with it."""
        found: list[Identity] = []

        def read(answer: Reader) -> list[int]:
            error, who = self._dialect.read_end(answer)
            if who is not None:
                found.append(who)
            # Nothing is open where nothing has arrived.
            return [0 if error == KafkaError.INVALID_TXN_STATE and not commit else error]

        body = self._dialect.end_transaction(self._id, self._who, commit=commit)
        self._coordinated(requests.TRANSACTION, self._dialect.end, body, read, doing, deadline)
        for who in found:
            self._begin_as(who)
        return bool(found)

    def _renew(self, known: Identity, doing: str, deadline: float) -> None:
        body = requests.init_producer_id(self._id, self._timeout_ms, known)
        found: list[Identity] = []

        def read(answer: Reader) -> list[int]:
            error, who = requests.read_identity(answer)
            found.append(who)
            return [error]

        self._coordinated(requests.TRANSACTION, requests.INIT_PRODUCER_ID, body, read, doing, deadline)
        self._begin_as(found[-1])

    def _begin_as(self, who: Identity) -> None:
        """What is still on its way bears the former epoch, and so changes nothing any more."""
        self._who = who
        self._doubtful = False
        for lane in self._lanes.values():
            lane.forget()
        self._added.clear()

    def _coordinated(
        self,
        kind: int,
        api: Api,
        body: bytes,
        read: Callable[[Reader], list[int]],
        doing: str,
        deadline: float,
    ) -> None:
        """Ask the coordinator until it has said yes or no. ``read``: error codes of an answer."""
        key = self._group if kind == requests.GROUP else self._id
        pause, why = PAUSE_S_MIN, ""
        while True:
            try:
                code, where = self._brokers.coordinator(kind, key, deadline)
                if where is not None:
                    codes = read(self._brokers.ask(where, api, body, deadline))
                    code = errors.worst(codes)
                if not code:
                    return
                why = errors.text_of(code)
                if code in errors.MOVED:
                    self._brokers.forget_coordinator(kind)
                elif code not in errors.LATER:
                    self._refused(code, doing, coordinator=kind == requests.TRANSACTION)
                most = PAUSE_S_MAX
            except Disconnected as gone:
                self._doubtful = True
                why, most = str(gone), AWAY_S_MAX
            if time.monotonic() + pause >= deadline:
                raise errors.timed_out(doing, why)
            time.sleep(pause)
            pause = min(pause * 2, most)

    def _refused(self, code: int, doing: str, *, coordinator: bool) -> None:
        if code in errors.FENCED and coordinator:
            self._over = errors.fatal(code, doing)
            raise self._over
        self._failed = errors.abortable(code, doing)
        raise self._failed

    # --- records -------------------------------------------------------------------------------------

    def _waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes.values())

    def _send(self, deadline: float) -> None:
        """The next batch of every partition that has none under way, each leader's in one request."""
        due = [place for place, lane in self._lanes.items() if lane.ready and lane.flying is None]
        if not due:
            return
        try:
            new = [place for place in due if place not in self._added]
            if new and self._sent:
                # A connection's answers come in turn.
                self._collect(deadline)
            self._touched = True
            if new and not self._dialect.joins_itself:
                self._coordinated(
                    requests.TRANSACTION,
                    requests.ADD_PARTITIONS,
                    requests.add_partitions(self._id, self._who, new),
                    lambda read: list(requests.read_partition_errors(read).values()),
                    "adding partitions",
                    deadline,
                )
            self._added.update(new)
            leaders = self._brokers.leaders(due, deadline)
        except KafkaException:
            # In `_failed` where it is final; else nothing was sent.
            if self._over is not None:
                raise
            return
        except Disconnected:
            self._away = True
            return
        self._away = len(leaders) < len(due)
        by_leader: dict[Address, dict[Place, Batch]] = {}
        for place, where in leaders.items():
            if (batch := self._lanes[place].take(self._who)) is not None:
                by_leader.setdefault(where, {})[place] = batch
        for where, batches in by_leader.items():
            data = {place: batch.data for place, batch in batches.items() if batch.data is not None}
            try:
                connection = self._brokers.connection(where, deadline)
                body = self._dialect.produce(self._id, ACKS_MS_MAX, data)
                connection.send(self._dialect.write, body, deadline)
                self._sent.append((where, connection, batches))
            except Disconnected:
                self._lost(where, batches)

    def _collect(self, deadline: float) -> bool:
        """The answers to everything under way. False when nothing was taken: try again a little later."""
        moved = False
        while self._sent:
            where, connection, batches = self._sent.pop(0)
            try:
                answers = self._dialect.read_produced(connection.receive(self._dialect.write, deadline))
            except Disconnected:
                self._lost(where, batches)
                continue
            for place in batches:
                moved |= self._landed(place, *answers.get(place, (KafkaError.NETWORK_EXCEPTION, -1)))
        return moved

    def _lost(self, where: Address, batches: dict[Place, Batch]) -> None:
        self._away = self._doubtful = True
        self._brokers.lost(where)
        for place in batches:
            self._lanes[place].lost()

    def _landed(self, place: Place, code: int, base_offset: int) -> bool:
        lane = self._lanes[place]
        if not code:
            lane.landed(None, base_offset)
            return True
        if code in errors.AGAIN:
            lane.lost()
            if code in errors.MOVED:
                self._brokers.forget_leader(place)
            return False
        failed = errors.abortable(code, f"writing to {place[0]} [{place[1]}]")
        self._failed = self._failed or failed
        lane.landed(failed.args[0], -1)
        return True

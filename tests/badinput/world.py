"""One application for all cases: topics, a worker, bystander sessions, and a reader that stays at the end.

A case sends its record and then a good event of another session on the same partition. When that one is in
the journal the bad one has been ruled on too (a partition is ruled on in order), so what is there by then is
all that came of it; :func:`engine.check.differences` says at the end that nothing came later either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from engine.cluster import PARTITIONS, Cluster
from engine.traffic import TENANT, Sent, message_event
from refold.core.envelope import Envelope
from refold.core.slots import SlotMap, make_key
from refold.topology import Topology
from refold.wire.envelope import encode_envelope
from refold.wire.events import event_payload
from refold.wire.journal import decode_journal

#: A ruling takes milliseconds; on a machine with other work a commit may wait for seconds.
DEADLINE_S = 120.0

BYSTANDERS = 12

#: Above every limit of the topics, so that the broker decides and not this producer.
PRODUCER_BYTES_MAX = 16_000_000

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Place:
    partition: int
    offset: int


class Tail:
    """Committed records of some topics, read on from where the last look ended."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self.records: dict[str, list[Message]] = {topic: [] for topic in topics}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "badinput-tail",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
                "fetch.message.max.bytes": PRODUCER_BYTES_MAX,
                "receive.message.max.bytes": 4 * PRODUCER_BYTES_MAX,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, number, 0) for topic in topics for number in range(PARTITIONS)]
        )

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Read on until it holds; a deadline fails the test by name."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            message = self._consumer.poll(0.2)
            if message is None:
                assert time.monotonic() < end, f"waited {DEADLINE_S:.0f} s in vain for: {what}"
                continue
            assert message.error() is None, message.error()
            self.records[message.topic()].append(message)

    def close(self) -> None:
        self._consumer.close()


@dataclass(frozen=True, slots=True)
class Mark:
    """How much there was, and the bystanders' states, byte for byte."""

    journal: int
    rejected: int
    states: int
    bystanders: dict[bytes, bytes]


class World:
    def __init__(self, bootstrap: str, prefix: str) -> None:
        Topology.load(prefix, partitions=PARTITIONS).apply(bootstrap)
        self.cluster = Cluster(bootstrap, prefix)
        self.topics = self.cluster.topics
        self.slots = SlotMap(PARTITIONS)
        self.sent = Sent()
        self.tail = Tail(bootstrap, (self.topics.journal, self.topics.state, self.topics.rejected))
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "message.max.bytes": PRODUCER_BYTES_MAX,
                "compression.type": "lz4",
                "linger.ms": 0,
            }
        )
        self.bystanders: list[bytes] = []
        self._number = 0
        self._sessions = 0

    # --- sessions and events -----------------------------------------------------------------------

    def session(self, partition: int, prefix: str = "s") -> str:
        """A session nobody has used yet, at home on ``partition``."""
        while True:
            self._sessions += 1
            name = f"{prefix}{self._sessions}"
            if self.home(name) == partition:
                return name

    def home(self, session: str) -> int:
        return self.slots.partition(make_key(TENANT, session))

    def message(self, session: str, *, text: str = "hello", **changes: object) -> Envelope:
        self._number += 1
        return message_event(self._number, session, text=text, **changes)

    def event(self, session: str, kind: str, payload: dict[str, object], **changes: object) -> Envelope:
        self._number += 1
        values: dict[str, object] = {
            "event_id": f"e{self._number}",
            "tenant": TENANT,
            "session": session,
            "type": kind,
            "event_time_ms": 1_700_000_000_000,
            "payload": event_payload(kind, payload),
        }
        return Envelope(**{**values, **changes})  # type: ignore[arg-type]

    # --- sending -----------------------------------------------------------------------------------

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        *,
        headers: Headers = (),
        timestamp: int = 0,
    ) -> Place | KafkaError:
        """Produce one record; where it landed, or why the broker did not take it."""
        told: list[Place | KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            told.append(error if error is not None else Place(message.partition(), message.offset()))

        self.producer.produce(
            self.topics.inbox,
            value,
            key,
            partition,
            on_delivery=delivered,
            timestamp=timestamp,
            headers=list(headers),
        )
        self.producer.flush(DEADLINE_S)
        [outcome] = told
        return outcome

    def accept(self, env: Envelope, partition: int | None = None, **options: object) -> None:
        """Send an event that must be accepted, and wait until it is in journal and state."""
        where = self.home(env.session) if partition is None else partition
        key = make_key(env.tenant, env.session)
        mark = self.mark()
        assert isinstance(self.send(key, encode_envelope(env), where, **options), Place)  # type: ignore[arg-type]
        self.sent.accepted.add(env.event_id)
        self.wait_journal(env.event_id, mark)
        self.wait_state(key, mark)

    def good(self, partition: int) -> bytes:
        """A good event of a new session on ``partition``, accepted; the session's key."""
        env = self.message(self.session(partition, "good"))
        self.accept(env)
        return make_key(TENANT, env.session)

    # --- looking -----------------------------------------------------------------------------------

    def journal(self, since: int = 0) -> list[Message]:
        return self.tail.records[self.topics.journal][since:]

    def rejected(self, since: int = 0) -> list[Message]:
        return self.tail.records[self.topics.rejected][since:]

    def states(self, since: int = 0) -> list[Message]:
        return self.tail.records[self.topics.state][since:]

    def state(self, key: bytes) -> bytes | None:
        """The newest record of a session, ``None`` when there is none or it is a tombstone."""
        found = [message.value() for message in self.states() if message.key() == key]
        return found[-1] if found else None

    def mark(self) -> Mark:
        return Mark(
            len(self.journal()),
            len(self.rejected()),
            len(self.states()),
            {key: self.state(key) or b"" for key in self.bystanders},
        )

    def wait_journal(self, event_id: str, mark: Mark) -> None:
        self.tail.until(
            f"event {event_id} in the journal",
            lambda: any(
                decode_journal(message.value()).env.event_id == event_id
                for message in self.journal(mark.journal)
            ),
        )

    def wait_state(self, key: bytes, mark: Mark) -> None:
        self.tail.until(
            f"a state record of {key!r}",
            lambda: any(message.key() == key for message in self.states(mark.states)),
        )

    def settle(self, partition: int, mark: Mark, *, rejected: int) -> bytes:
        """The partition goes on: a good event is accepted after the case. Waits for the rejected records."""
        good = self.good(partition)
        self.tail.until(
            f"{rejected} rejected record(s)", lambda: len(self.rejected(mark.rejected)) >= rejected
        )
        for key, before in mark.bystanders.items():
            assert self.state(key) == before, f"bystander {key!r} changed"
        return good

    def populate(self) -> None:
        """Bystanders on every partition: messages, a tool call under way, a fact."""
        for number in range(BYSTANDERS):
            name = self.session(number % PARTITIONS, "bystander")
            self.accept(self.message(name, text="hello"))
            call = {"operation_id": "op", "tool": "pay", "arguments": '{"n": 1}', "call_id": "c"}
            self.accept(self.event(name, "ToolCallIntended", call))
            self.accept(self.event(name, "FactSet", {"name": "plan", "value": '"gold"'}))
            self.bystanders.append(make_key(TENANT, name))

    def close(self) -> None:
        self.tail.close()

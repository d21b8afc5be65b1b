"""What the tests of the producer share: producers, what a reader sees, and a proxy that cuts connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from refold.broker import EmbeddedBroker
from refold.broker.ports import choose
from refold.broker.properties import Door
from refold.engine.producer.producer import WireProducer
from refold.protocol.brokers import Brokers
from refold.protocol.dialect import SECOND, Dialect
from refold.protocol.security import security_of

#: One answer of a broker on a busy machine.
ANSWER_S_MAX = 60.0


def producer(
    bootstrap: str,
    name: str,
    *,
    dialect: Dialect = SECOND,
    group: str = "g",
    instance: str | None = None,
    timeout_ms: int = 60_000,
    batch_bytes: int = 384 * 1024,
    message_bytes_max: int = 1_000_000,
) -> WireProducer:
    made = WireProducer(
        Brokers(bootstrap, security_of({}), "test"),
        dialect,
        name,
        timeout_ms=timeout_ms,
        group=group,
        instance=instance,
        batch_bytes=batch_bytes,
        message_bytes_max=message_bytes_max,
    )
    made.init_transactions(ANSWER_S_MAX)
    return made


def topics(bootstrap: str, *names: str, partitions: int = 2, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = [NewTopic(name, partitions, 1, config=config or {}) for name in names]
    for made in admin.create_topics(new).values():
        made.result(ANSWER_S_MAX)


def unjoined(bootstrap: str, group: str = "g") -> Any:
    """Metadata of a consumer that is in no group: taken from anybody."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def visible(bootstrap: str, topic: str, partition: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of everything a reader of committed records sees, up to where it is stable."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0,
        "auto.offset.reset": "error",
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[tuple[int, bytes | None]] = []
    end = time.monotonic() + ANSWER_S_MAX
    try:
        while time.monotonic() < end:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.name() == "_PARTITION_EOF":
                    return found
                continue
            found.append((message.offset(), message.value()))
        raise AssertionError("the partition has no end")
    finally:
        consumer.close()


def settled(bootstrap: str, topic: str, partition: int, count: int) -> list[tuple[int, bytes | None]]:
    """The same, when all markers of ``count`` records are there: they are written after the answer."""
    end = time.monotonic() + ANSWER_S_MAX
    while len(found := visible(bootstrap, topic, partition)) < count and time.monotonic() < end:
        time.sleep(0.05)
    return found


def committed(bootstrap: str, group: str, place: TopicPartition) -> TopicPartition:
    """The group's offset, when no transaction holds it."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed",
        "log_level": 0,
    })  # fmt: skip
    try:
        return consumer.committed([place], timeout=ANSWER_S_MAX)[0]
    finally:
        consumer.close()


def patiently(call: Callable[..., Any], *arguments: Any) -> Any:
    """As the transactor: what timed out is called again. Other errors are raised."""
    end = time.monotonic() + ANSWER_S_MAX
    while True:
        try:
            return call(*arguments)
        except KafkaException as raised:
            error = raised.args[0]
            if error.fatal() or error.txn_requires_abort() or not error.retriable():
                raise
            assert time.monotonic() < end, error


def noting(told: dict[bytes, int], value: bytes) -> Callable[[Any, Any], None]:
    """A callback that notes where the record is."""

    def on_delivery(error: Any, message: Any) -> None:
        if error is None:
            told[value] = message.offset()

    return on_delivery


def flushed(made: WireProducer, timeout: float) -> None:
    end = time.monotonic() + ANSWER_S_MAX
    while made.flush(timeout):
        assert time.monotonic() < end


#: What the proxy does with a request. ``CUT``: it is lost. ``LOSE``: it is answered, the answer is lost.
#: ``RACE``: the client is cut off while the broker works on it. ``LATE``: the same, and the broker gets it
#: when :meth:`Cutter.deliver` is called.
PASS, CUT, LOSE, RACE, LATE = "pass", "cut", "lose", "race", "late"


class Cutter:
    """A proxy in front of a broker: ``decide`` says for each request's API key what becomes of it."""

    def __init__(self) -> None:
        self.decide: Callable[[int], str] = lambda _: PASS
        self.done: Counter[tuple[int, str]] = Counter()
        self.target = 0
        self._late: list[tuple[socket.socket, bytes]] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def deliver(self) -> int:
        """What was late arrives now, and is answered before this returns."""
        late, self._late = self._late, []
        for there, frame in late:
            with there:
                there.sendall(frame)
                assert _frame(there)
        return len(late)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(here,), daemon=True).start()

    def _serve(self, here: socket.socket) -> None:
        with contextlib.suppress(OSError), here:
            there = socket.create_connection(("127.0.0.1", self.target))
            for one in (here, there):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep = False
            try:
                while frame := _frame(here):
                    (key,) = struct.unpack_from(">h", frame, 4)
                    with self._lock:
                        what = self.decide(key)
                        self.done[key, what] += 1
                    if what == LATE:
                        self._late.append((there, frame))
                        keep = True
                    if what in (CUT, LATE):
                        return
                    there.sendall(frame)
                    if what == RACE:
                        here.close()
                    answer = _frame(there)
                    if not answer or what in (LOSE, RACE):
                        return
                    here.sendall(answer)
            finally:
                if not keep:
                    there.close()


def _frame(one: socket.socket) -> bytes:
    """With its length in front; empty at the end."""
    head = _exactly(one, 4)
    if len(head) < 4:
        return b""
    body = _exactly(one, struct.unpack(">i", head)[0])
    return head + body


def _exactly(one: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (part := one.recv(min(size - len(found), 1 << 20))):
        found += part
    return found


def once(key: int, what: str) -> Callable[[int], str]:
    """The next request of this kind, no other one."""
    left: Iterator[str] = iter([what])
    return lambda asked: next(left, PASS) if asked == key else PASS


class Behind:
    """A broker whose listener is known by the proxy's port: answers lead back to the proxy."""

    def __init__(self, broker: EmbeddedBroker, proxy: Cutter) -> None:
        self.broker = broker
        self.direct = broker.bootstrap
        self.proxy = proxy
        self.bootstrap = f"127.0.0.1:{proxy.port}"


@contextlib.contextmanager
def behind_proxy(directory: Path) -> Iterator[Behind]:
    proxy = Cutter()
    proxy.target = choose(None)
    door = Door(port=proxy.target, advertised=proxy.port)
    with EmbeddedBroker(directory, door=door) as broker:
        yield Behind(broker, proxy)
    proxy.close()

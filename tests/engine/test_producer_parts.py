"""Batches and connections of the producer without a broker."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from aiokafka.record.memory_records import MemoryRecords

from refold.protocol.batches import Lane
from refold.protocol.brokers import _address
from refold.protocol.connection import ANSWER_BYTES_MAX, Connection, Disconnected
from refold.protocol.requests import END_TRANSACTION, INIT_PRODUCER_ID, Identity
from refold.protocol.security import security_of

WHO = Identity(77, 3)

# --- batches ---------------------------------------------------------------------------------------------


def sequence(data: bytes | bytearray | None) -> tuple[int, int, int]:
    """Producer id, epoch and first number, where record batches of format 2 have them."""
    assert data is not None
    found: tuple[int, int, int] = struct.unpack_from(">qhi", data, 43)
    return found


def held(data: bytes | bytearray | None) -> list[bytes | None]:
    assert data is not None
    batch = MemoryRecords(bytes(data)).next_batch()
    assert batch is not None
    assert batch.is_transactional
    return [record.value for record in batch]


def fill(lane: Lane, *values: bytes, batch_bytes: int = 1_000) -> list[bool]:
    return [lane.add(batch_bytes, b"k", value, None, None) for value in values]


def test_batches_are_numbered_one_after_the_other_when_they_are_sent() -> None:
    lane = Lane()
    fill(lane, b"1", b"2", b"3")
    assert lane.take(WHO) is None, "it is still being filled"
    lane.close()
    fill(lane, b"4")
    lane.close()
    assert lane.waiting == 4
    first = lane.take(WHO)
    assert first is not None
    assert (sequence(first.data), held(first.data)) == ((77, 3, 0), [b"1", b"2", b"3"])
    assert lane.take(WHO) is None, "one at a time"
    lane.landed(None, 10)
    second = lane.take(WHO)
    assert second is not None
    assert (sequence(second.data), held(second.data)) == ((77, 3, 3), [b"4"])
    assert lane.waiting == 1
    lane.landed(None, 13)
    assert (lane.waiting, lane.sequence) == (0, 4)


def test_a_full_batch_is_closed_and_one_record_larger_than_it_has_its_own() -> None:
    lane = Lane()
    told = fill(lane, b"a" * 600, b"b" * 600, b"c" * 5_000, b"d")
    lane.close()
    assert told == [False, True, True, True]
    taken = []
    while (batch := lane.take(WHO)) is not None:
        taken.append((sequence(batch.data)[2], [len(value or b"") for value in held(batch.data)]))
        lane.landed(None, 0)
    assert taken == [(0, [600]), (1, [600]), (2, [5_000]), (3, [1])]


def test_numbers_begin_again_after_the_largest() -> None:
    lane = Lane()
    lane.sequence = 2**31 - 2
    for values in ((b"1", b"2", b"3"), (b"4",)):
        fill(lane, *values)
        lane.close()
    batch = lane.take(WHO)
    assert batch is not None
    assert sequence(batch.data)[2] == 2**31 - 2
    lane.landed(None, 0)
    batch = lane.take(WHO)
    assert batch is not None
    assert sequence(batch.data)[2] == 1
    lane.sequence = 0
    lane = Lane()
    lane.sequence = 2**31 - 1
    fill(lane, b"last")
    lane.close()
    lane.take(WHO)
    assert lane.sequence == 0


def test_what_is_lost_is_sent_again_as_the_same_bytes_before_all_others() -> None:
    lane = Lane()
    for value in (b"1", b"2"):
        fill(lane, value)
        lane.close()
    first = lane.take(WHO)
    assert first is not None
    sent = bytes(first.data or b"")
    for _ in range(3):
        lane.lost()
        assert lane.waiting == 2
        again = lane.take(Identity(99, 9))
        assert again is first
        assert bytes(again.data or b"") == sent
    lane.landed(None, 0)
    second = lane.take(WHO)
    assert second is not None
    assert sequence(second.data)[2] == 1


def test_who_asked_is_told_where_and_once() -> None:
    lane = Lane()
    told: list[tuple[object, int]] = []
    for at in range(4):
        wanted = None if at == 2 else lambda error, message: told.append((error, message.offset()))
        lane.add(1_000, b"k", b"v", None, wanted)
    lane.close()
    lane.take(WHO)
    lane.landed(None, 100)
    assert told == [(None, 100), (None, 101), (None, 103)]
    lane.landed(None, 100)
    assert len(told) == 3
    told.clear()
    lane.add(1_000, b"k", b"v", None, lambda error, message: told.append((error, message.offset())))
    lane.close()
    lane.take(WHO)
    lane.landed("refused", -1)
    assert told == [("refused", -1)]


def test_a_new_epoch_forgets_everything() -> None:
    lane = Lane()
    fill(lane, b"1")
    lane.close()
    lane.take(WHO)
    fill(lane, b"2")
    lane.close()
    fill(lane, b"3")
    lane.forget()
    assert (lane.waiting, lane.sequence) == (0, 0)
    lane.lost()
    lane.close()
    assert lane.take(WHO) is None
    fill(lane, b"4")
    lane.close()
    batch = lane.take(Identity(77, 4))
    assert batch is not None
    assert (sequence(batch.data), held(batch.data)) == ((77, 4, 0), [b"4"])


# --- connections -----------------------------------------------------------------------------------------

Answering = Callable[[socket.socket, bytes], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Answering], Connection]]:
    """A connection to a server that answers each request with the given function."""
    opened: list[socket.socket] = []

    def start(answer: Answering) -> Connection:
        listening = socket.create_server(("127.0.0.1", 0))
        opened.append(listening)

        def run() -> None:
            # Closed by either side at any point, also in the middle of a request.
            with contextlib.suppress(OSError, struct.error):
                one, _ = listening.accept()
                opened.append(one)
                while head := one.recv(4, socket.MSG_WAITALL):
                    answer(one, one.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL))

        threading.Thread(target=run, daemon=True).start()
        return Connection(security_of({}), "127.0.0.1", listening.getsockname()[1], "test", 5.0)

    yield start
    for one in opened:
        one.close()


def framed(request: bytes, body: bytes, *, off: int = 0) -> bytes:
    (correlation,) = struct.unpack_from(">i", request, 4)
    return struct.pack(">ii", len(body) + 4, correlation + off) + body


def ask(connection: Connection, seconds: float = 5.0) -> bytes:
    return connection.ask(END_TRANSACTION, b"body", time.monotonic() + seconds).rest()


def test_a_request_has_its_head_and_an_answer_may_come_byte_by_byte(
    serve: Callable[[Answering], Connection],
) -> None:
    seen: list[bytes] = []

    def answer(one: socket.socket, request: bytes) -> None:
        seen.append(request)
        for byte in framed(request, b"\0answer"):
            one.sendall(bytes([byte]))
            time.sleep(0.001)

    connection = serve(answer)
    assert ask(connection) == b"\0answer"
    deadline = time.monotonic() + 5.0
    assert connection.ask(INIT_PRODUCER_ID, b"body", deadline).rest() == b"answer", (
        "tagged fields are skipped"
    )
    assert seen[0] == struct.pack(">hhih", 26, 2, 1, 4) + b"test" + b"body"
    assert seen[1] == struct.pack(">hhih", 22, 4, 2, 4) + b"test\0" + b"body"
    assert connection.open


def test_answers_to_several_requests_come_in_turn(serve: Callable[[Answering], Connection]) -> None:
    connection = serve(lambda one, request: one.sendall(framed(request, request[-1:])))
    deadline = time.monotonic() + 5.0
    for body in (b"1", b"2", b"3"):
        connection.send(END_TRANSACTION, body, deadline)
    assert [connection.receive(END_TRANSACTION, deadline).rest() for _ in range(3)] == [b"1", b"2", b"3"]


def _close(one: socket.socket, _: bytes) -> None:
    one.shutdown(socket.SHUT_RDWR)


def _half(one: socket.socket, request: bytes) -> None:
    one.sendall(framed(request, b"answer")[:9])
    one.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda one, request: one.sendall(framed(request, b"x", off=1)), "another request"),
        (lambda one, _: one.sendall(struct.pack(">i", ANSWER_BYTES_MAX + 1)), "bytes"),
        (lambda one, _: one.sendall(struct.pack(">i", -1)), "bytes"),
        (lambda one, _: one.sendall(struct.pack(">i", 3) + b"abc"), "bytes"),
        (_close, "closed"),
        (_half, "closed"),
        (lambda one, request: None, "timed out"),
        (lambda one, request: one.sendall(framed(request, b"answer")[:9]), "timed out"),
    ],
    ids=["correlation", "too large", "negative", "too small", "closed", "half", "silent", "stuck"],
)
def test_what_is_no_answer_closes_the_connection(
    serve: Callable[[Answering], Connection], answer: Answering, why: str
) -> None:
    connection = serve(answer)
    began = time.monotonic()
    with pytest.raises(Disconnected, match=why):
        ask(connection, 0.3)
    assert time.monotonic() - began < 3.0
    assert not connection.open
    with pytest.raises(Disconnected):
        ask(connection)


def test_an_answer_without_the_tagged_fields_it_must_have_closes_the_connection(
    serve: Callable[[Answering], Connection],
) -> None:
    connection = serve(lambda one, request: one.sendall(framed(request, b"")))
    with pytest.raises(Disconnected):
        connection.ask(INIT_PRODUCER_ID, b"", time.monotonic() + 5.0)
    assert not connection.open


def test_a_deadline_that_is_over_and_a_port_without_a_listener_are_disconnected(
    serve: Callable[[Answering], Connection],
) -> None:
    connection = serve(lambda one, request: one.sendall(framed(request, b"x")))
    with pytest.raises(Disconnected, match="timed out"):
        ask(connection, -1.0)
    assert not connection.open
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Disconnected):
        Connection(security_of({}), "127.0.0.1", port, "test", 1.0)


# --- addresses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:1", ("host", 1)),
        (" host:1 ", ("host", 1)),
        ("host", ("host", 9092)),
        ("PLAINTEXT://host:1", ("host", 1)),
        ("SSL://host", ("host", 9092)),
        ("[::1]:2", ("::1", 2)),
        ("[::1]", ("::1", 9092)),
        ("SASL_SSL://[fe80::1]:3", ("fe80::1", 3)),
    ],
)
def test_a_bootstrap_address_may_have_each_form_of_librdkafkas(text: str, address: tuple[str, int]) -> None:
    assert _address(text) == address

"""What the client must not forget, not share and not leave behind: lanes, waiters, readers, producers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from api.fake_owner import FakeView
from client.fake_group import FakeGroup
from client.test_owners import everywhere, no_topics, owners_of, worker
from refold.client import bulk, connection
from refold.client import sender as sender_module
from refold.client.agents.writer import leased
from refold.client.connection import Connection, Options
from refold.client.generations.journalling import ruled
from refold.client.ordering import EarlierEventFailed
from refold.client.owners import NoOwnerAnswers
from refold.client.positions import Position
from refold.client.publishing import Publisher
from refold.client.reader import ReaderPool, ReadStopped
from refold.client.receipts import Ruling
from refold.client.routing import Routes
from refold.client.rulings import Rulings
from refold.client.sender import Delivery, Outcome, Sender, Tell
from refold.client.session import Session
from refold.client.tools import operation
from refold.errors import InvalidRecord, TransientError, UnavailableError, UsageError
from refold.settings import Settings
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event
from refold.wire.owner import RulingLine

NOWHERE = {"bootstrap.servers": "127.0.0.1:9", "log_level": 2}


class Wire:
    """A transport that takes or refuses every event at once."""

    is_open = False

    def __init__(self) -> None:
        self.up = True
        self.values: list[bytes] = []
        self.held: list[Callable[[], None]] | None = None

    def start(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Sequence[tuple[str, bytes]],
        partition: int,
        tell: Tell,
    ) -> None:
        outcome: Delivery | TransientError = TransientError("timed out: outcome unknown")
        if self.up:
            self.values.append(value)
            outcome = Delivery(partition, len(self.values) - 1, 0)
        if self.held is None:
            asyncio.get_running_loop().call_soon(tell, outcome)
        else:
            self.held.append(lambda: tell(outcome))

    async def close(self, timeout_s: float) -> None:
        return None


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def unconnected(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """A connection whose events go to the wire; nothing else is asked of it."""
    monkeypatch.setattr(connection, "SESSIONS_KEPT_MAX", 2)
    made = Connection(Options(Settings(), "127.0.0.1:9", "t", "p-1", 1))
    made.sender = wire  # type: ignore[assignment]
    return made


def publisher(made: Connection, session: str) -> Publisher:
    return Publisher(made, "t", session, f"t/{session}".encode())


async def say(made: Connection, session: str, name: str) -> None:
    await publisher(made, session).publish("FactSet", {"name": name, "value": "1"})


async def test_a_close_that_is_cancelled_leaves_neither_thread_nor_connections() -> None:
    """Goal: who gives closing less time than a broker that is away takes (a timeout around the client) ends
    without its parts living on."""
    made = Connection(Options(Settings(), "127.0.0.1:9", "t", "p-1", 1))
    await made.owners.__aenter__()
    saying = asyncio.create_task(say(made, "s", "a"))
    await asyncio.sleep(0.1)
    assert [one for one in threading.enumerate() if one.name == "refold-delivery"]
    closing = asyncio.create_task(made.close(60.0))
    await asyncio.sleep(0.1)
    closing.cancel()
    await asyncio.wait({closing, saying}, timeout=30)
    assert closing.cancelled()
    assert isinstance(saying.exception(), TransientError)
    assert not [one for one in threading.enumerate() if one.name == "refold-delivery"]
    assert not made.owners.is_open


async def test_a_failed_event_is_not_forgotten_when_other_sessions_come(
    unconnected: Connection, wire: Wire
) -> None:
    """Goal: nobody holds the session, many others are used: still its next event may not overtake."""
    wire.up = False
    with pytest.raises(TransientError):
        await say(unconnected, "s", "a")
    wire.up = True
    for number in range(20):
        await say(unconnected, f"other-{number}", "x")
    with pytest.raises(EarlierEventFailed):
        await say(unconnected, "s", "b")
    [receipt] = await publisher(unconnected, "s").retry()
    assert receipt.type == "FactSet"
    await say(unconnected, "s", "b")


async def test_the_receipt_of_a_second_try_says_the_same_as_that_of_the_first(
    unconnected: Connection, wire: Wire
) -> None:
    """Goal: whoever sends again goes on with the message's id, as if the first try had gone through."""
    s = Session(unconnected, "t", "s", None)  # type: ignore[arg-type]
    wire.up = False
    with pytest.raises(TransientError):
        await s.append("hi", message_id="m1")
    wire.up = True
    [receipt] = await s.retry()
    assert (receipt.type, receipt.message_id) == ("MessageAppended", "m1")
    assert (await s.append("there")).message_id
    body = {"message_id": "m3", "role": "user", "content": []}
    assert (await s.publish("MessageAppended", body)).message_id == "m3"


async def test_two_writers_of_a_session_get_the_rulings_of_their_own_events(
    unconnected: Connection, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: both sent a lease, both were cut off, and one of the two went through earlier than the other: who
    was refused is not told the other one's grant; and the other one, whose event was queued behind, sends it
    again itself when it has come to the front."""
    s = Session(unconnected, "t", "s", None)  # type: ignore[arg-type]
    cut_off = {"a", "b"}
    real = wire.start

    def run_of(value: bytes) -> str:
        return str(decode_event(decode_envelope(value)).run_id)  # type: ignore[union-attr]

    def start(topic: str, key: bytes, value: bytes, *more: Any) -> None:
        wire.up = run_of(value) not in cut_off
        real(topic, key, value, *more)

    async def wait(delivery: Delivery, *_: Any, **__: Any) -> RulingLine:
        run = run_of(wire.values[delivery.offset])
        if run == "a":
            return RulingLine(
                delivery.partition, delivery.offset, "rejected", None, "lease_held", "another's"
            )
        return RulingLine(delivery.partition, delivery.offset, "accepted", 7, None, None)

    monkeypatch.setattr(wire, "start", start)
    monkeypatch.setattr(unconnected.rulings, "wait", wait)

    async def lease(run: str) -> Ruling:
        payload = leased(run, "me", 1, 1000, "1", ())
        return await ruled(s, "RunLeased", payload, timeout_s=20)

    a, b = asyncio.ensure_future(lease("a")), asyncio.ensure_future(lease("b"))
    await asyncio.sleep(0.05)
    cut_off.discard("a")
    assert (await a).code == "lease_held"
    cut_off.clear()
    assert (await b).seq == 7
    assert [run_of(value) for value in wire.values] == ["a", "b"]


@pytest.mark.parametrize("ends", ["cancelled", "out of time", "a tool call's"])
async def test_an_event_whose_writer_has_gone_does_not_block_its_session(
    unconnected: Connection, wire: Wire, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Goal: the cluster was away for longer than a lease; whoever wrote the renewal has left the run. When it
    is back this process can take the session's runs again, and nobody has to call retry()."""
    s = Session(unconnected, "t", "s", None)  # type: ignore[arg-type]

    async def wait(delivery: Delivery, *_: Any, **__: Any) -> RulingLine:
        return RulingLine(delivery.partition, delivery.offset, "accepted", 7, None, None)

    monkeypatch.setattr(unconnected.rulings, "wait", wait)

    async def lease(run: str, timeout_s: float) -> Ruling:
        return await ruled(s, "RunLeased", leased(run, "me", 1, 1000, "1", ()), timeout_s=timeout_s)

    wire.up = False
    if ends == "cancelled":
        wire.held = []
        writer = asyncio.ensure_future(lease("a", 60))
        for _ in range(20):
            await asyncio.sleep(0)
        writer.cancel()
        await asyncio.wait([writer])
        told, wire.held = wire.held, None
        told[0]()
    elif ends == "a tool call's":
        monkeypatch.setattr(operation, "SEND_PATIENCE_S", -1.0)
        call = operation.Operation(s, "op1", "f", "{}", "external")
        with pytest.raises(TransientError):
            await call.intend(approval_required=False)
    else:
        with pytest.raises(TransientError):
            await lease("a", 0.3)
    with pytest.raises(EarlierEventFailed):
        await say(unconnected, "s", "a user's event waits for the user")
    wire.up = True
    assert (await lease("b", 5)).accepted
    assert len(wire.values) == 2
    await say(unconnected, "s", "b")


async def test_undecided_sessions_are_bounded_and_decided_ones_are_forgotten(
    unconnected: Connection, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNDECIDED_SESSIONS_MAX", 5)
    wire.up = False
    for number in range(7):
        with pytest.raises(TransientError):
            await say(unconnected, f"s-{number}", "a")
    with pytest.raises(TransientError, match="5 sessions have events"):
        await say(unconnected, "s-new", "a")
    wire.up = True
    for number in range(7):
        await publisher(unconnected, f"s-{number}").retry()
    await say(unconnected, "s-new", "a")
    assert len(unconnected._undecided) == 0


async def test_a_cancelled_append_leaves_nothing_stuck(unconnected: Connection, wire: Wire) -> None:
    """Goal: cancelled while in flight, the event goes its way and the session's next one follows it."""
    wire.held = []
    first = asyncio.ensure_future(say(unconnected, "s", "a"))
    await asyncio.sleep(0.01)
    second = asyncio.ensure_future(say(unconnected, "s", "b"))
    await asyncio.sleep(0.01)
    first.cancel()
    [report], wire.held = wire.held, None
    report()
    await second
    names = [decode_envelope(value).producer_counter for value in wire.values]
    assert names == [1, 2]
    assert publisher(unconnected, "s").memory.lane.idle
    assert not unconnected._busy


@pytest.mark.parametrize("event_type", ["SessionReleased", "SessionReleaseFinished"])
async def test_events_of_a_release_bear_no_stamp(
    unconnected: Connection, wire: Wire, event_type: str
) -> None:
    """Goal: the releasing producer may be the one whose events were parked: no counter above theirs."""
    payload = {"by": None, "reason": None}
    if event_type == "SessionReleaseFinished":
        payload = {"accepted": 0, "refused": 0, "parked": 0}  # type: ignore[dict-item]
    await say(unconnected, "s", "a")
    await publisher(unconnected, "s").publish(event_type, payload)
    stamps = [decode_envelope(value).producer_id for value in wire.values]
    assert stamps == ["p-1", None]


async def test_a_cluster_that_does_not_answer_costs_the_deadline_and_no_more() -> None:
    """Goal: a group description that hangs does not make a read with a timeout of 0.3 s take for ever."""

    class Silent(FakeGroup):
        async def look(self) -> Routes:
            await asyncio.Event().wait()
            raise AssertionError

    async with owners_of(Silent()) as owners:
        began = time.monotonic()
        with pytest.raises(NoOwnerAnswers, match="not described"):
            await owners.snapshot(0, "t", "s", min_seq=0, timeout_s=0.3)
        assert time.monotonic() - began < 20
        # Nothing is left behind that somebody would have to wait for.
        await asyncio.wait_for(owners.router.close(), 20)


async def test_a_group_that_may_not_be_described_is_not_called_empty() -> None:
    """Goal: the message names the missing right, not a missing worker."""

    class Denied(FakeGroup):
        async def look(self) -> Routes:
            raise UnavailableError("cannot describe consumer group 'g' (Group authorization failed)")

    async with owners_of(Denied()) as owners:
        with pytest.raises(NoOwnerAnswers, match="authorization"):
            await owners.snapshot(0, "t", "s", min_seq=0, timeout_s=0.3)


async def test_waiters_of_one_ruling_time_out_one_by_one() -> None:
    """Goal: an impatient waiter takes nothing away from a patient one."""
    view = FakeView()
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        rulings = Rulings(owners, "p-1", no_topics)
        patient = asyncio.ensure_future(rulings.wait(Delivery(0, 7, 0), time.monotonic(), 60))
        await asyncio.wait_for(view.subscribed.wait(), 60)
        with pytest.raises(TransientError):
            await rulings.wait(Delivery(0, 7, 0), time.monotonic(), 0.1)
        await view.rule("p-1", RulingLine(0, 7, "accepted", 3))
        assert (await asyncio.wait_for(patient, 60)).seq == 3
        assert not rulings._waiting
        await rulings.close()


async def test_no_producer_without_an_event() -> None:
    """Goal: a reader asks for no producer id, which takes a right that readers do not have."""
    sender = Sender(dict(NOWHERE), delivery_timeout_ms=500)
    before = {thread.name for thread in threading.enumerate()}
    assert not sender.is_open
    await sender.close(1)
    assert "refold-delivery" not in before
    with pytest.raises(UsageError, match="closed"):
        await sender.send("t", b"k", b"v", (), 0)


async def test_what_a_guarantee_hangs_on_cannot_be_configured_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the pass-through table tunes the producer, acks and idempotence stay."""
    made: list[dict[str, Any]] = []
    fake = SimpleNamespace(produce=lambda *_, **__: None, poll=time.sleep, flush=len, purge=lambda: None)
    monkeypatch.setattr(sender_module, "Producer", lambda config: made.append(config) or fake)
    table = {**NOWHERE, "linger.ms": "5", "acks": "1", "enable.idempotence": "false"}
    sender = Sender(table, delivery_timeout_ms=500)
    sender.start("t", b"k", b"v", (), 0, lambda _: None)
    fake.flush = lambda _: 0
    await sender.close(1)
    assert (made[0]["linger.ms"], made[0]["acks"], made[0]["enable.idempotence"]) == ("5", "all", True)


async def test_a_delivery_without_an_offset_is_no_delivery_to_offset_0() -> None:
    """Goal: a broker that only remembers having the record does not make us ask for another one's ruling."""
    sender = Sender(dict(NOWHERE), delivery_timeout_ms=500)
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    unplaced = SimpleNamespace(
        partition=lambda: 0, offset=lambda: None, topic=lambda: "t", timestamp=lambda: (0, -1)
    )
    sender._delivered(future.set_result, None, unplaced)  # type: ignore[arg-type]
    sender._hand_over()
    outcome = await asyncio.wait_for(future, 60)
    assert isinstance(outcome, TransientError)
    assert "same event again is safe" in str(outcome)


async def test_reports_from_two_threads_all_arrive() -> None:
    """Goal: flush() while closing serves callbacks beside the delivery thread; none may fall between them."""
    sender = Sender(dict(NOWHERE), delivery_timeout_ms=500)
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Outcome]] = [loop.create_future() for _ in range(20_000)]
    failed = KafkaError(KafkaError._PURGE_QUEUE)
    done = threading.Event()

    def report() -> None:
        for future in futures:
            sender._delivered(
                future.set_result,
                failed,
                SimpleNamespace(  # type: ignore[arg-type]
                    partition=lambda: 0, offset=lambda: None, topic=lambda: "t"
                ),
            )
        done.set()

    def hand_over() -> None:
        while not done.is_set():
            sender._hand_over()
        sender._hand_over()

    await asyncio.gather(asyncio.to_thread(report), asyncio.to_thread(hand_over))
    outcomes = await asyncio.wait_for(asyncio.gather(*futures), 60)
    assert {type(outcome) for outcome in outcomes} == {TransientError}


async def test_records_above_the_bound_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: librdkafka's queue is never overrun; what waits is sent in order, or told at the close."""
    monkeypatch.setattr(sender_module, "IN_FLIGHT_EVENTS_MAX", 2)
    produced: list[bytes] = []
    reports: list[Callable[..., None]] = []
    fake = SimpleNamespace(
        produce=lambda _, value, on_delivery, **__: (produced.append(value), reports.append(on_delivery)),
        poll=time.sleep,
        flush=lambda _: 0,
        purge=lambda: None,
    )
    monkeypatch.setattr(sender_module, "Producer", lambda _: fake)
    sender = Sender(dict(NOWHERE), delivery_timeout_ms=500, producer="librdkafka")
    sends = [asyncio.ensure_future(sender.send("t", b"k", b"%d" % n, (), 0)) for n in range(5)]
    await asyncio.sleep(0)
    assert produced == [b"0", b"1"]
    placed = SimpleNamespace(partition=lambda: 0, offset=lambda: 7, timestamp=lambda: (1, 1))
    reports[0](None, placed)
    assert (await asyncio.wait_for(sends[0], 60)).offset == 7
    assert produced == [b"0", b"1", b"2"]
    await sender.close(1)
    for waiting in sends[3:]:
        with pytest.raises(TransientError, match="not written"):
            await asyncio.wait_for(waiting, 60)
    assert produced == [b"0", b"1", b"2"]
    for unanswered in sends[1:3]:
        unanswered.cancel()


class SlowReader(bulk.TopicReader):
    """Its read takes until the test says so."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._in_use = threading.Lock()
        self._follow, self._unfinished = True, {}
        self.leave = threading.Event()
        self.reading_at_close: list[bool] = []
        self.inside = False
        self._consumer: Any = SimpleNamespace(close=lambda: self.reading_at_close.append(self.inside))
        SlowReader.made = self

    made: SlowReader
    entered = threading.Event()

    def _read(self) -> bulk.Batch:
        self.inside = True
        self.entered.set()
        self.leave.wait(10)
        self.inside = False
        return bulk.Batch("t", {}, [])


async def test_following_can_be_cancelled_in_the_middle_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the consumer is not freed under the thread that is inside it (librdkafka would crash)."""
    monkeypatch.setattr(bulk, "TopicReader", SlowReader)

    async def follow() -> None:
        async for _ in bulk.batches({}, "t", Position("t", {}), follow=True):
            raise AssertionError("nothing to read")

    following = asyncio.ensure_future(follow())
    assert await asyncio.to_thread(SlowReader.entered.wait, 60)
    following.cancel()
    await asyncio.sleep(0.05)
    assert SlowReader.made.reading_at_close == []
    SlowReader.made.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert SlowReader.made.reading_at_close == [False]


async def test_a_cancelled_scan_ends_at_once() -> None:
    """Goal: a scan whose caller is gone does not go on for READ_STALL_S or a whole partition."""
    pool = ReaderPool(dict(NOWHERE))
    began, ended = threading.Event(), threading.Event()

    def scan(reader: Any) -> None:
        began.set()
        try:
            reader.sweep("t", 0, 0, lambda _: True)
        finally:
            ended.set()

    scanning = asyncio.ensure_future(pool.scan(scan))
    assert await asyncio.to_thread(began.wait, 60)
    scanning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scanning
    assert await asyncio.to_thread(ended.wait, 60)
    began.clear()
    stopped = asyncio.ensure_future(pool.run(scan))
    assert await asyncio.to_thread(began.wait, 60)
    await pool.close()
    with pytest.raises(ReadStopped):
        await asyncio.wait_for(stopped, 60)
    with pytest.raises(ReadStopped):
        await pool.run(scan)


HALF = "a\ud800b"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.append("x", headers={"a": HALF}), UsageError),
        (lambda s: s.append("x", headers={HALF: b"1"}), UsageError),
        (lambda s: s.append("x", headers={"a\0b": b"1"}), UsageError),
        (lambda s: s.append("x", headers={"": b"1"}), UsageError),
        (lambda s: s.append("x", headers={"a": 1}), UsageError),
        (lambda s: s.append("x", headers={"refold-type": b"1"}), UsageError),
        (lambda s: s.append(None), UsageError),
        (lambda s: s.append(5), UsageError),
        (lambda s: s.append(b"bytes"), UsageError),
        (lambda s: s.append([1]), UsageError),
        (lambda s: s.publish("FactSet", 5), UsageError),
        (lambda s: s.publish("FactSet", bytearray(b"x")), UsageError),
        (lambda s: s.publish("MessageAppended", {"content": None}), UsageError),
        (lambda s: s.publish("MessageAppended", {"content": [1]}), UsageError),
        (lambda s: s.publish(HALF, b"x"), InvalidRecord),
        (lambda s: s.append(HALF), InvalidRecord),
        (lambda s: s.append(HALF * 100_000), InvalidRecord),
        (lambda s: s.append("x", event_id=HALF), InvalidRecord),
        (lambda s: s.append("x", run=HALF), InvalidRecord),
        (lambda s: s.set_fact("a", {"x": [HALF]}), InvalidRecord),
        (lambda s: s.tool_intended("op", "tool", {"a": HALF}), InvalidRecord),
        (lambda s: s.append({"role": "user", "content": HALF}), InvalidRecord),
        (lambda s: s.append("x", expected_seq=2**70), UsageError),
    ],
)
async def test_what_cannot_be_sent_is_refused_and_blocks_nothing(
    unconnected: Connection, wire: Wire, call: Any, error: type[Exception]
) -> None:
    """Goal: a mistake of the caller is one error of ours, before the lane: the session goes on."""
    session = Session(unconnected, "t", "s")
    with pytest.raises(error):
        await call(session)
    await say(unconnected, "s", "after")
    assert len(wire.values) == 1

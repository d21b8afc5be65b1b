"""No later event of a session overtakes a failed one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from refold.client import ordering
from refold.client.ordering import EarlierEventFailed, Lane, NotAcknowledged, Pending
from refold.client.sender import Delivery, Tell
from refold.errors import TransientError


class Wire:
    """A transport whose sends finish when the test says so. ``written`` is what a broker would hold."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.waiting: asyncio.Queue[tuple[bytes, Tell]] = asyncio.Queue()
        self.refuses: set[bytes] = set()

    def start(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Sequence[tuple[str, bytes]],
        partition: int,
        tell: Tell,
    ) -> None:
        if value in self.refuses:
            raise TransientError("the queue is full: not written")
        self.waiting.put_nowait((value, tell))

    async def next_is(self, value: bytes) -> Tell:
        sent, tell = await asyncio.wait_for(self.waiting.get(), 60)
        assert sent == value
        return tell

    async def acknowledge(self, value: bytes) -> None:
        tell = await self.next_is(value)
        self.written.append(value)
        tell(Delivery(0, len(self.written) - 1, 0))

    async def fail(self, value: bytes) -> None:
        (await self.next_is(value))(TransientError("timed out: outcome unknown"))


def submit(lane: Lane, name: str) -> Pending:
    return lane.submit(name, "MessageAppended", name.encode(), ())


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def lane(wire: Wire) -> Lane:
    return Lane(wire, "t.inbox", b"t/s", lambda _: 0)


async def test_one_event_is_in_flight_and_the_order_is_the_callers(wire: Wire, lane: Lane) -> None:
    pending = [submit(lane, name) for name in ("a", "b", "c")]
    for name in (b"a", b"b", b"c"):
        await asyncio.sleep(0.01)
        assert wire.waiting.qsize() == 1
        await wire.acknowledge(name)
    assert [(await p.done).offset for p in pending] == [0, 1, 2]
    assert lane.idle


async def test_a_failure_fails_what_is_queued_behind_it_and_what_comes_later(wire: Wire, lane: Lane) -> None:
    """Goal: after a failed event nothing of the session is sent, and the error says what to do."""
    a, b, c = (submit(lane, name) for name in ("a", "b", "c"))
    await wire.acknowledge(b"a")
    await wire.fail(b"b")
    await a.done
    with pytest.raises(TransientError, match="outcome unknown"):
        await b.done
    with pytest.raises(EarlierEventFailed, match="retry"):
        await c.done
    with pytest.raises(EarlierEventFailed) as caught:
        submit(lane, "d")
    assert caught.value.event_id == "b"
    assert [p.event_id for p in lane.failed] == ["b", "c"]
    assert wire.written == [b"a"]
    assert wire.waiting.empty()


async def test_retry_sends_the_same_bytes_in_order(wire: Wire, lane: Lane) -> None:
    submit(lane, "a"), submit(lane, "b")
    await wire.fail(b"a")
    await asyncio.sleep(0.01)
    again = lane.retry()
    later = submit(lane, "c")
    for name in (b"a", b"b", b"c"):
        await wire.acknowledge(name)
    assert [(await p.done).offset for p in [*again, later]] == [0, 1, 2]
    assert wire.written == [b"a", b"b", b"c"]


async def test_a_retry_that_fails_blocks_again(wire: Wire, lane: Lane) -> None:
    submit(lane, "a"), submit(lane, "b")
    await wire.fail(b"a")
    await asyncio.sleep(0.01)
    lane.retry()
    await wire.fail(b"a")
    await asyncio.sleep(0.01)
    assert [p.event_id for p in lane.failed] == ["a", "b"]
    with pytest.raises(EarlierEventFailed):
        submit(lane, "c")


async def test_a_retry_that_is_refused_at_once_sends_nothing_behind_it(wire: Wire, lane: Lane) -> None:
    """Goal: also a failure inside the call that retries keeps what follows behind it."""
    submit(lane, "a"), submit(lane, "b")
    await wire.fail(b"a")
    wire.refuses.add(b"a")
    again = lane.retry()
    assert wire.waiting.empty()
    assert [type(p.done.exception()) for p in again] == [NotAcknowledged, EarlierEventFailed]
    assert [p.event_id for p in lane.failed] == ["a", "b"]


async def test_a_report_after_closing_is_nobodys(wire: Wire, lane: Lane) -> None:
    """Goal: what arrives late for a given-up event is not taken for the delivery of another one."""
    submit(lane, "a")
    late = await wire.next_is(b"a")
    lane.close()
    [again] = lane.retry()
    late(Delivery(0, 99, 0))
    assert not again.done.done()
    await wire.acknowledge(b"a")
    assert (await again.done).offset == 0


async def test_abandon_opens_the_lane_without_the_failed_ones(wire: Wire, lane: Lane) -> None:
    submit(lane, "a"), submit(lane, "b")
    await wire.fail(b"a")
    await asyncio.sleep(0.01)
    assert lane.abandon() == ("a", "b")
    c = submit(lane, "c")
    await wire.acknowledge(b"c")
    await c.done
    assert wire.written == [b"c"]


async def test_a_cancelled_caller_does_not_take_its_event_back(wire: Wire, lane: Lane) -> None:
    """Goal: giving up waiting is not giving up the event: it is sent, in its place."""
    a, b = submit(lane, "a"), submit(lane, "b")
    a.done.cancel()
    await wire.acknowledge(b"a")
    await wire.acknowledge(b"b")
    await b.done
    assert wire.written == [b"a", b"b"]


async def test_the_queue_is_bounded(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "SESSION_QUEUE_EVENTS_MAX", 2)
    submit(lane, "a"), submit(lane, "b")
    with pytest.raises(TransientError, match="not sent"):
        submit(lane, "c")
    lane.close()


async def test_a_lane_can_be_waited_for_and_closed(wire: Wire) -> None:
    """Goal: closing a client waits for what is queued; what is left then fails and nothing hangs."""
    busy: set[Lane] = set()
    lane = Lane(wire, "t.inbox", b"t/s", lambda _: 0, busy)
    a, b = submit(lane, "a"), submit(lane, "b")
    assert busy == {lane}
    settled = asyncio.ensure_future(lane.settle())
    await wire.acknowledge(b"a")
    await a.done
    assert not settled.done()
    lane.close()
    await settled
    with pytest.raises(TransientError, match="closed"):
        await b.done
    assert busy == set()

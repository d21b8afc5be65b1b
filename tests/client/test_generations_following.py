"""Tracks, the hub, SSE, acks, the supervisor's watch and the registry, on fakes: no broker."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException

from client.generation_items import G, batch, begin, end, joined
from refold.client.generations import ears as ears_module
from refold.client.generations import feed as feed_module
from refold.client.generations import hub as hub_module
from refold.client.generations import places
from refold.client.generations import supervisor as supervisor_module
from refold.client.generations import takeover as takeover_module
from refold.client.generations.acks import Acker, Acks
from refold.client.generations.backfill import Backfills
from refold.client.generations.ears import Ears
from refold.client.generations.frames import Cursor, Frame, Item
from refold.client.generations.hub import Hub
from refold.client.generations.journalling import ruled
from refold.client.generations.limits import ACKS_IN_FLIGHT_MAX, PENDING_ITEMS_MAX
from refold.client.generations.registry import Generators
from refold.client.generations.sse import HEARTBEAT, OPENING, sse_frames
from refold.client.generations.supervisor import Supervisor, Watch
from refold.client.generations.terms import make_terms
from refold.client.generations.track import Placed, Ring, Track
from refold.client.ordering import EarlierEventFailed, NotAcknowledged
from refold.client.owners import NoOwnerAnswers
from refold.client.receipts import Ruling
from refold.core.progress import Ack, Batch, Marker
from refold.errors import NotFound, TransientError, UnavailableError, UsageError
from refold.wire.batches import decode_item, encode_item

KEY = b"t/s"


def log(count: int) -> list[Item]:
    return [begin(), *(batch(n, f"{n};") for n in range(1, count - 1)), end()]


def text_of(count: int) -> str:
    return "".join(f"{n};" for n in range(1, count - 1))


# Tracks


class Log:
    """A partition with one generation's items, offsets from 100, three apart (others lie between)."""

    def __init__(self, items: list[Item]) -> None:
        self.placed: list[Placed] = [(item, 100 + 3 * n, 1_000 + n) for n, item in enumerate(items)]
        self.page = 7
        self.reads: list[tuple[int, int]] = []

    async def read(self, first: int, end_: int) -> tuple[list[Placed], int]:
        self.reads.append((first, end_))
        await asyncio.sleep(0)
        found = [one for one in self.placed if first <= one[1] < end_]
        page = found[: self.page]
        return page, (page[-1][1] + 1 if len(page) < len(found) else end_)


@pytest.mark.parametrize("seed", range(20))
async def test_the_beginning_is_joined_to_the_live_feed_without_gap_or_repeat(seed: int) -> None:
    """Goal: wherever live begins, and however reading and feed interleave, all frames come once, in order."""
    rng = random.Random(seed)
    source = Log(log(60))
    live_from = rng.randrange(0, 61)
    live = 100 + 3 * live_from
    track = Track(KEY, G, 0, 100, live, source.read)
    track.bytes_max = lambda: 10**9
    load = asyncio.create_task(track.load())
    for one in source.placed[live_from:]:
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        track.feed(*one)
    await load
    frames = [frame for _, frame in track.ring.since(0, 1_000)]
    assert joined(frames) == text_of(60)
    assert [f.seq for f in frames if f.kind == "delta"] == list(range(1, 59))
    assert track.ended


async def test_too_much_at_once_extends_the_read_instead_of_the_memory() -> None:
    source = Log(log(PENDING_ITEMS_MAX * 2))
    gate = asyncio.Event()

    async def read(first: int, end_: int) -> tuple[list[Placed], int]:
        await gate.wait()
        return await source.read(first, end_)

    source.page = 10**6
    track = Track(KEY, G, 0, 100, 103, read)
    track.bytes_max = lambda: 10**9
    load = asyncio.create_task(track.load())
    for one in source.placed[1:]:
        track.feed(*one)
        assert len(track._pending or ()) <= PENDING_ITEMS_MAX
    gate.set()
    await load
    assert joined([f for _, f in track.ring.since(0, 10**6)]) == text_of(PENDING_ITEMS_MAX * 2)


async def test_a_failed_read_is_told_to_who_waits() -> None:
    async def read(first: int, end_: int) -> tuple[list[Placed], int]:
        raise NotFound("retention")

    track = Track(KEY, G, 0, 0, 10, read)
    waiting = asyncio.create_task(track.changed())
    await asyncio.sleep(0)
    await track.load()
    await waiting
    assert isinstance(track.failure, NotFound)


def test_a_ring_keeps_the_newest_within_its_bytes() -> None:
    ring = Ring(0)
    frame = Frame("delta", G, 1, 1, "x" * 100)
    for offset in range(1_000):
        ring.append(offset, frame, 10 * frame.size)
    assert ring.size <= 10 * frame.size
    assert [offset for offset, _ in ring.since(0, 100)] == list(range(990, 1_000))
    assert ring.complete_from == 990
    assert ring.since(995, 2) == [(995, frame), (996, frame)]


# The hub


class Record:
    def __init__(self, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
        self._all = (partition, offset, key, value)

    def partition(self) -> int:
        return self._all[0]

    def offset(self) -> int:
        return self._all[1]

    def key(self) -> bytes:
        return self._all[2]

    def value(self) -> bytes | None:
        return self._all[3]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000


class FakeFeed:
    """Where the real one has a thread."""

    made: FakeFeed

    def __init__(
        self, config: Any, topic: str, deliver: Any, broken: Any, *, unhurried: bool = False
    ) -> None:
        FakeFeed.made = self
        self.alive = True
        self.deliver = deliver
        self.broken = broken
        self.end = 10
        self.partitions: set[int] = set()

    async def add(self, partition: int) -> int:
        await asyncio.sleep(0)
        self.partitions.add(partition)
        return self.end

    def remove(self, partition: int) -> None:
        self.partitions.discard(partition)

    async def close(self) -> None:
        self.alive = False


class FakeBackfills:
    def __init__(self) -> None:
        self.pages: list[tuple[int, int]] = []

    async def page(
        self, partition: int, key: bytes, generation: str, first: int, end_: int
    ) -> tuple[list[Placed], int]:
        self.pages.append((first, end_))
        return [], end_


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(hub_module, "Feed", FakeFeed)
    monkeypatch.setattr(hub_module, "LINGER_S", 0.0)
    return Hub({}, "batches", FakeBackfills())  # type: ignore[arg-type]


def deliver(*items: tuple[int, Item], key: bytes = KEY) -> None:
    FakeFeed.made.deliver([Record(0, offset, key, encode_item(item)) for offset, item in items])


async def test_one_track_serves_all_and_goes_with_the_last(hub: Hub) -> None:
    async with hub.track(KEY, G, 0, 10) as first, hub.track(KEY, G, 0, 10) as second:
        assert first is second
        deliver((10, begin()), (11, batch(1, "a")))
        deliver((11, batch(1, "a")), (12, batch(2, "b")))
        await asyncio.sleep(0)
        assert joined([f for _, f in first.ring.since(0)]) == "ab"
        assert FakeFeed.made.partitions == {0}
    await asyncio.sleep(0.01)
    assert hub.tracks == 0
    assert FakeFeed.made.partitions == set()
    await hub.close()


async def test_what_is_delivered_before_the_place_is_known_is_read_from_the_topic(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no gap between topic and feed where the feed's thread is ahead of the loop (a busy machine): it
    has told where it begins and delivered what came, before the task that asked is woken."""

    async def add(self: FakeFeed, partition: int) -> int:
        self.partitions.add(partition)
        # Of the assignment before, then of this one.
        deliver((8, batch(8, "old")))
        deliver((10, begin()), (11, batch(1, "a")))
        return self.end

    monkeypatch.setattr(FakeFeed, "add", add)
    source = Log([])
    source.placed = [(begin(), 10, 1_000), (batch(1, "a"), 11, 1_000)]
    hub.backfills.page = lambda *place: source.read(place[3], place[4])  # type: ignore[method-assign, assignment]
    async with hub.track(KEY, G, 0, 10) as track:
        deliver((12, batch(2, "b")))
        while not track.loaded:
            await track.changed()
        assert joined([f for _, f in track.ring.since(0)]) == "ab"
        assert source.reads[0] == (10, 12)
    await hub.close()


async def test_records_of_others_and_broken_ones_are_passed_over(hub: Hub) -> None:
    async with hub.track(KEY, G, 0, 10) as track:
        deliver((10, begin()), key=b"t/other")
        FakeFeed.made.deliver([Record(0, 11, KEY, b"\x00nonsense"), Record(0, 12, KEY, None)])
        deliver((13, begin()), (14, batch(1, "a")))
        await asyncio.sleep(0)
        assert joined([f for _, f in track.ring.since(0)]) == "a"
    await hub.close()


async def test_who_generates_hears_markers_and_does_not_read_its_own_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: what is heard before somebody listens is not lost; batches are not decoded for an ear alone."""
    decoded: list[Item] = []

    def counting(value: bytes) -> Item:
        decoded.append(decode_item(value))
        return decoded[-1]

    monkeypatch.setattr(ears_module, "Feed", FakeFeed)
    monkeypatch.setattr(ears_module, "decode_item", counting)
    ears = Ears({}, "batches")
    ear = await ears.listen(KEY, G, 0)
    told: list[str] = []
    deliver((10, begin()), (11, batch(1, "a")), (12, Marker(G, "stop", 1)))
    deliver((13, Marker("g-2", "stop", 1)))
    ear.attach(lambda marker: told.append(marker.kind))
    assert told == ["begin", "stop"]
    before = len(decoded)
    deliver(*((offset, batch(offset, "a")) for offset in range(14, 30)), (30, end()))
    assert told == ["begin", "stop", "end"]
    assert len(decoded) == before + 1
    FakeFeed.made.broken(0, NotFound("offset out of range"))
    await asyncio.sleep(0.01)
    assert FakeFeed.made.partitions == {0}
    other = await ears.listen(b"t/other", "g-2", 0)
    ears.unlisten(ear)
    assert FakeFeed.made.partitions == {0}
    ears.unlisten(other)
    assert FakeFeed.made.partitions == set()
    await ears.close()
    with pytest.raises(TransientError):
        await ears.listen(KEY, G, 0)


async def test_an_ear_whose_partition_cannot_be_read_is_refused_and_the_next_one_tries_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ears_module, "Feed", FakeFeed)
    ears = Ears({}, "batches")
    with monkeypatch.context() as broken:
        failing = AsyncMock(side_effect=TransientError("no broker"))
        broken.setattr(FakeFeed, "add", failing)
        with pytest.raises(TransientError):
            await ears.listen(KEY, G, 0)
    ear = await ears.listen(KEY, G, 0)
    assert FakeFeed.made.partitions == {0}
    ears.unlisten(ear)
    await ears.close()


async def test_a_feed_that_breaks_off_is_begun_anew(hub: Hub) -> None:
    async with hub.track(KEY, G, 0, 10) as track:
        FakeFeed.made.broken(0, NotFound("offset out of range"))
        assert isinstance(track.failure, TransientError)
        async with hub.track(KEY, G, 0, 10) as again:
            assert again is not track
            assert FakeFeed.made.partitions == {0}
    await hub.close()


async def test_a_watch_hears_every_partition_it_asked_for(hub: Hub) -> None:
    heard: list[tuple[int, int]] = []

    def sink(partition: int, offset: int, append_ms: int, key: bytes, item: Item) -> None:
        heard.append((partition, offset))

    regained: list[tuple[int, int]] = []
    live = await hub.watch(frozenset({0, 1}), sink, lambda *place: regained.append(place))
    assert live == {0: 10, 1: 10}
    deliver((10, begin()), key=b"t/anybody")
    # A foreign record without a key is nobody's.
    FakeFeed.made.deliver([Record(0, 11, None, encode_item(begin()))])  # type: ignore[arg-type]
    assert heard == [(0, 10)]
    assert regained == []
    hub.unwatch(sink)
    assert FakeFeed.made.partitions == set()
    await hub.close()


async def test_a_watched_partition_that_breaks_off_is_begun_anew_and_its_watcher_told(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: who supervises does not go deaf on a partition for good, and learns what it has not heard."""
    monkeypatch.setattr(hub_module, "AGAIN_S", 0.0)
    heard: list[int] = []
    regained: list[tuple[int, int]] = []
    told = asyncio.Event()

    def again(partition: int, offset: int) -> None:
        regained.append((partition, offset))
        told.set()

    def sink(partition: int, offset: int, *_: Any) -> None:
        heard.append(offset)

    await hub.watch(frozenset({0, 1}), sink, again)
    FakeFeed.made.end = 20
    with monkeypatch.context() as away:
        away.setattr(FakeFeed, "add", AsyncMock(side_effect=TransientError("no broker")))
        FakeFeed.made.broken(0, NotFound("offset out of range"))
        FakeFeed.made.broken(0, NotFound("offset out of range"))
        await asyncio.sleep(0.01)
        assert not told.is_set()
    await asyncio.wait_for(told.wait(), 10)
    deliver((20, begin()))
    assert (heard, regained) == ([20], [(0, 20)])
    hub.unwatch(sink)
    assert FakeFeed.made.partitions == set()
    await hub.close()


class HalfAway:
    """A consumer of two partitions, the second of which has no leader."""

    def __init__(self, config: Any) -> None:
        self.offset = 4

    def get_watermark_offsets(self, place: Any, *, timeout: float, cached: bool) -> tuple[int, int]:
        if place.partition == 1:
            time.sleep(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 0, 5

    def incremental_assign(self, places: Any) -> None:
        assert [place.partition for place in places] == [0]

    def poll(self, timeout: float) -> Any:
        time.sleep(0.01)
        self.offset += 1
        return Mock(**{"error.return_value": None, "offset.return_value": self.offset})

    def consume(self, count: int, timeout: float) -> list[Any]:
        return []

    def close(self) -> None:
        return None


async def test_a_partition_without_a_leader_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "Consumer", HalfAway)
    monkeypatch.setattr(feed_module, "END_TIMEOUT_S", 5.0)
    heard: list[int] = []
    feed = feed_module.Feed({}, "batches", lambda records: heard.extend(r.offset() for r in records), Mock())
    assert await feed.add(0) == 5
    adding = asyncio.ensure_future(feed.add(1))
    async with asyncio.timeout(30):
        while len(heard) <= 10:  # noqa: ASYNC110 - what another thread does
            await asyncio.sleep(0.05)
    assert not adding.done()
    with pytest.raises(UnavailableError):
        await adding
    late = asyncio.ensure_future(feed.add(1))
    await asyncio.sleep(0.05)
    await feed.close()
    with pytest.raises(TransientError, match="ended"):
        await asyncio.wait_for(late, 10)


async def test_a_consumer_that_is_not_connected_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: within the short time of a turn librdkafka says that no broker is there, and means not yet."""
    asked: list[int] = []

    class NotYet(HalfAway):
        def get_watermark_offsets(self, place: Any, *, timeout: float, cached: bool) -> tuple[int, int]:
            asked.append(place.partition)
            if len(asked) == 1:
                raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
            return 0, 5

    monkeypatch.setattr(feed_module, "Consumer", NotYet)
    feed = feed_module.Feed({}, "batches", lambda _: None, Mock())
    assert await asyncio.wait_for(feed.add(0), 10) == 5
    assert asked == [0, 0]
    await feed.close()


async def test_a_feed_that_has_ended_answers_who_comes_late() -> None:
    feed = feed_module.Feed({"bootstrap.servers": "127.0.0.1:1"}, "batches", lambda _: None, lambda *_: None)
    await feed.close()
    with pytest.raises(TransientError, match="ended"):
        await asyncio.wait_for(feed.add(0), 10)


async def test_the_text_of_a_generation_that_ended_comes_without_all_that_came_after() -> None:
    """Goal: a day's traffic behind the end is not read before the first word is shown."""
    log_ = [begin(), batch(1, "a"), end()]
    records = [Record(0, at, KEY, encode_item(item)) for at, item in enumerate(log_)]
    records += [Record(0, at, b"t/other", encode_item(batch(at, "x"))) for at in range(3, 1_000)]
    visited = 0

    class Topic:
        def sweep(self, topic: str, partition: int, first: int, visit: Any, *, last: int) -> None:
            nonlocal visited
            for record in records[first : last + 1]:
                visited += 1
                if not visit(record):
                    return

    class Readers:
        async def run(self, work: Any) -> None:
            work(Topic())

    placed, after = await Backfills(Readers(), "batches").page(0, KEY, G, 0, 1_000)  # type: ignore[arg-type]
    assert [type(item) for item, _, _ in placed] == [Marker, Batch, Marker]
    assert (after, visited) == (3, 3)


async def test_without_owner_and_record_a_place_is_asked_for_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: an empty group is said at once: who waits for it does not read the topic over and over."""
    monkeypatch.setattr(places, "LOOKUP_S_MAX", 0.5)
    connection, session = AsyncMock(), AsyncMock(key=KEY, partition=0)
    connection.owners.generation.side_effect = NoOwnerAnswers("nobody")
    connection.request_timeout_s = 1.0
    with pytest.raises(NoOwnerAnswers):
        await places.place_of(connection, session, G)
    assert 2 <= connection.readers.scan.await_count <= 4


async def test_waiting_followers_are_told_when_the_client_closes(hub: Hub) -> None:
    async with hub.track(KEY, G, 0, 10) as track:
        waiting = asyncio.create_task(track.changed())
        await asyncio.sleep(0)
        await hub.close()
        await waiting
        assert isinstance(track.failure, TransientError)


def test_the_real_feed_is_what_hub_and_ears_use() -> None:
    """Goal: the fake above replaces the same name."""
    assert hub_module.Feed is ears_module.Feed is feed_module.Feed


# SSE


class Sent:
    """A sender that keeps acks."""

    def __init__(self) -> None:
        self.acks: list[Ack] = []
        self.tells: list[Callable[[Any], None]] = []

    def start(self, topic: str, key: bytes, value: bytes, headers: Any, partition: int, tell: Any) -> None:
        item = decode_item(value)
        assert isinstance(item, Ack)
        self.acks.append(item)
        self.tells.append(tell)

    @property
    def seqs(self) -> list[int]:
        return [ack.seq for ack in self.acks]


async def events_of(
    *events: Frame | None, error: Exception | None = None
) -> AsyncGenerator[Frame | None, None]:
    for event in events:
        yield event
    if error is not None:
        raise error


def delta(seq: int, text: str = "a") -> Frame:
    return Frame("delta", G, 1, seq, text)


async def test_events_are_sse_with_ids_and_heartbeats() -> None:
    last = Frame("end", G, 1, 1, state="finished", message_id="m-1", journal_seq=4)
    source = events_of(delta(1, 'two\nlines "é"'), None, last)
    body = [event async for event in sse_frames(source, lambda: Cursor(1, 0), None)]
    assert body[0] == OPENING
    assert body[2] == HEARTBEAT
    lines = body[1].decode().split("\n")
    assert lines[:2] == [f"id: {G}:1:1", "event: delta"]
    assert orjson.loads(lines[2].removeprefix("data: ")) == {"seq": 1, "text": 'two\nlines "é"'}
    assert lines[3:] == ["", ""]
    assert orjson.loads(body[3].split(b"data: ")[1])["message_id"] == "m-1"


async def test_a_frame_is_acked_when_the_next_is_asked_for() -> None:
    """Goal: never before: the framework may still fail to send it. "Connected" comes first, the end at
    once."""
    sent = Sent()
    acker = Acker(Acks(sent, "batches"), KEY, 0, G, "tab")  # type: ignore[arg-type]
    source = events_of(delta(1), delta(2), Frame("end", G, 1, 2, state="finished"))
    body = sse_frames(source, lambda: Cursor(1, 0), acker)
    assert await anext(body) == OPENING
    assert b"delta" in await anext(body)
    assert sent.seqs == [0]
    assert b"delta" in await anext(body)
    assert b"end" in await anext(body)
    assert max(sent.seqs) <= 2
    assert [event async for event in body] == []
    assert sent.seqs[-1] == 2
    assert {(ack.client, ack.attempt) for ack in sent.acks} == {("tab", 1)}


async def test_a_reconnect_acks_what_the_client_says_it_has() -> None:
    sent = Sent()
    acker = Acker(Acks(sent, "batches"), KEY, 0, G, "tab")  # type: ignore[arg-type]
    body = sse_frames(events_of(delta(8)), lambda: Cursor(1, 7), acker)
    await anext(body)
    await anext(body)
    assert sent.seqs == [7]
    await body.aclose()


async def test_acks_are_throttled_and_the_newest_gets_out() -> None:
    sent = Sent()
    acker = Acker(Acks(sent, "batches"), KEY, 0, G, "tab")  # type: ignore[arg-type]
    for seq in range(1, 50):
        acker.handed_over(delta(seq))
    assert sent.seqs == [1]
    acker.flush()
    assert sent.seqs == [1, 49]


async def test_acks_do_not_pile_up_while_kafka_is_away() -> None:
    sent = Sent()
    acks = Acks(sent, "batches")  # type: ignore[arg-type]
    for seq in range(2 * ACKS_IN_FLIGHT_MAX):
        acks.tell(KEY, 0, Ack(G, 1, "c", seq))
    assert len(sent.acks) == ACKS_IN_FLIGHT_MAX
    sent.tells[0](TransientError("gone"))
    acks.tell(KEY, 0, Ack(G, 1, "c", 9))
    assert len(sent.acks) == ACKS_IN_FLIGHT_MAX + 1


async def test_a_stream_nobody_can_serve_ends_and_an_unknown_one_says_so() -> None:
    gone = events_of(delta(1), error=TransientError("closed"))
    assert len([event async for event in sse_frames(gone, lambda: Cursor(1, 1), None)]) == 2
    unknown = events_of(error=NotFound("none"))
    body = [event async for event in sse_frames(unknown, lambda: Cursor(0, 0), None)]
    assert b'"state":"unknown"' in body[-1]


# The supervisor's watch


def watched(*ours: str) -> Watch:
    return Watch(lambda name: name in (ours or ("reply",)))


def test_a_silent_generation_is_due_after_its_lease_and_told_once() -> None:
    watch = watched()
    watch.hear(KEY, begin(), 0.0)
    watch.hear(KEY, batch(1, "a"), 3.0)
    assert watch.due(7.9) == []
    assert watch.due(8.0) == [(KEY, G)]
    assert watch.due(100.0) == []
    watch.again((KEY, G), 20.0)
    assert watch.due(19.9) == []
    assert watch.due(20.0) == [(KEY, G)]


def test_heartbeats_keep_it_and_acks_do_not() -> None:
    watch = watched()
    watch.hear(KEY, begin(), 0.0)
    for at in range(1, 20):
        watch.hear(KEY, batch(0), float(at))
    assert watch.due(23.9) == []
    watch.hear(KEY, Ack(G, 1, "c", 1), 23.0)
    assert watch.due(24.0) == [(KEY, G)]


def test_fenced_batches_do_not_keep_it() -> None:
    """Goal: a process that lost its lease and still writes does not hide that the new one died."""
    watch = watched()
    watch.hear(KEY, begin(), 0.0)
    watch.hear(KEY, begin(2, "continue"), 6.0)
    watch.hear(KEY, batch(5, "z", attempt=1), 10.5)
    assert watch.due(11.0) == [(KEY, G)]


def test_what_ended_or_is_anothers_is_never_due() -> None:
    watch = watched("other")
    watch.hear(KEY, begin(), 0.0)
    assert watch.due(100.0) == []
    ours = watched()
    ours.hear(KEY, begin(), 0.0)
    ours.hear(KEY, end(), 1.0)
    assert ours.due(100.0) == []
    assert len(ours) == 0


def test_what_began_before_the_watch_is_noticed_by_its_batches() -> None:
    watch = watched()
    watch.hear(KEY, batch(7, "x"), 0.0)
    assert watch.due(4.9) == []
    assert watch.due(5.0) == [(KEY, G)]
    watch.foreign((KEY, G))
    watch.hear(KEY, batch(8, "x"), 6.0)
    watch.again((KEY, G), 0.0)
    assert watch.due(100.0) == []


def test_the_past_fills_in_what_the_present_has_not_seen() -> None:
    watch, past = watched(), watched()
    past.hear(KEY, begin(), -100.0)
    past.hear(b"t/live", Marker("g-2", "begin", 1, lease_ms=1_000, generator="reply"), -3.0)
    watch.hear(b"t/live", Marker("g-2", "stop", 1), 0.0)
    watch.join(past)
    assert watch.due(0.0) == [(KEY, G), (b"t/live", "g-2")]


class Service:
    """What a supervisor needs of a client: a broker that is away at first, and no past."""

    def __init__(self) -> None:
        self.hub = self.backfills = self.connection = self.slots = self.generators = self
        self.partitions = 1
        self.closed = False
        self.away = 2
        self.running: set[Any] = set()
        self.sink: Any = None

    async def watch(self, partitions: frozenset[int], sink: Any, regained: Any) -> dict[int, int]:
        self.away -= 1
        if self.away >= 0:
            raise TransientError("no broker")
        self.sink = sink
        return {0: 0}

    def unwatch(self, sink: Any) -> None:
        self.sink = None

    async def since(self, partition: int, time_ms: int, visit: Any, end_: int) -> None:
        assert visit(Record(0, 0, None, encode_item(begin())))  # type: ignore[arg-type]
        assert visit(Record(0, 1, b"no session", encode_item(begin())))

    def get(self, name: str) -> str:
        return name

    def runs(self, *identity: Any) -> bool:
        return identity in self.running


async def test_a_supervisor_waits_for_a_broker_and_no_answer_holds_up_the_next_takeover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: many generations of a process that died go on at once, however long each runs here; only so many
    are asked for at a time. What is nobody's, and what goes wrong, end nothing."""
    monkeypatch.setattr(supervisor_module, "CLAIM_PAUSE_S", 0.0)
    monkeypatch.setattr(supervisor_module, "SUPERVISE_TICK_S", 0.0)
    service, asking, most, stopped = Service(), 0, 0, asyncio.Event()
    broken = {"g-7"}

    async def claimed(_: Any, session: bytes, generation: str, due: float) -> str:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        await asyncio.sleep(0.001)
        asking -= 1
        if generation in broken:
            broken.discard(generation)
            raise ValueError("a fault of ours")
        service.running.add((KEY, generation))
        await stopped.wait()
        return "ran"

    monkeypatch.setattr(supervisor_module, "claim", claimed)
    monkeypatch.setattr(supervisor_module, "CLAIM_PAUSE_S_MAX", 0.0)
    made = Supervisor(AsyncMock(session=lambda *_, **__: KEY), service, frozenset(), 900.0)  # type: ignore[arg-type]
    run = asyncio.create_task(made.run())
    count = 3 * supervisor_module.TAKEOVERS_MAX
    async with asyncio.timeout(10):
        while service.sink is None:  # noqa: ASYNC110 - what the supervisor does
            await asyncio.sleep(0.001)
        for n in range(count):
            dead = Marker(f"g-{n}", "begin", 1, lease_ms=1, generator="reply")
            service.sink(0, n, 0, KEY, dead)
        while len(service.running) < count:
            assert not run.done()
            await asyncio.sleep(0.001)
    assert most == supervisor_module.TAKEOVERS_MAX
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert service.sink is None


async def test_a_lease_that_is_held_on_and_on_is_given_up_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a generation whose process renews and says nothing keeps no place among the take-overs."""
    monkeypatch.setattr(takeover_module, "CLAIM_PAUSE_S", 0.01)
    monkeypatch.setattr(takeover_module, "CLAIM_PAUSE_S_MAX", 0.04)
    row = {"state": "started", "attempt": 1, "generator": "reply"}
    monkeypatch.setattr(takeover_module, "place_of", AsyncMock(return_value=Mock(ended="", row=row)))
    monkeypatch.setattr(takeover_module, "_terms", AsyncMock(return_value=Mock(lease_s=0.1)))
    monkeypatch.setattr(takeover_module, "_attempt", AsyncMock(return_value=None))
    service = Mock(claiming=set(), runs=lambda *_: False)
    async with asyncio.timeout(10):
        assert await takeover_module.claim(service, Mock(key=KEY), G, 0.0) == "elsewhere"
    assert not service.claiming


def test_a_watch_is_bounded() -> None:
    watch = Watch(lambda name: True, entries_max=10)
    for n in range(100):
        watch.hear(KEY, Marker(f"g-{n}", "begin", 1, lease_ms=1_000, generator="reply"), float(n))
    assert len(watch) == 10
    assert [identity[1] for identity in watch.due(1_000.0)] == [f"g-{n}" for n in range(90, 100)]


# Names and terms


async def answer(g: Any) -> None:
    """A generator known by its qualified name."""


async def test_generators_are_found_by_name_in_any_process() -> None:
    generators = Generators()
    assert generators.of(answer).name == f"{__name__}.answer"
    assert generators.get(f"{__name__}.answer") is generators.of(answer)
    generators.register("reply", mode="restart")(answer)
    assert generators.of("reply").mode == "restart"
    with pytest.raises(UsageError, match="no generator"):
        generators.of("nobody")
    with pytest.raises(UsageError, match="twice"):
        generators.register("reply")(lambda g: answer(g))
    with pytest.raises(UsageError, match="mode"):
        generators.register("x", mode="sideways")  # type: ignore[arg-type]
    assert generators.resume("reply", mode="continue", overlap=False).overlap is False


async def test_a_closure_made_anew_replaces_its_former_self() -> None:
    generators = Generators()

    def make() -> Any:
        async def closure(g: Any) -> None:
            await answer(g)

        return closure

    names = {generators.of(make()).name for _ in range(3)}
    assert len(names) == 1
    assert len(generators.names) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"lease": 0.1}, {"durability": "maybe"}, {"key": ""}, {"message_id": ""}, {"params": "x" * 40_000}],
)
def test_terms_the_fold_would_refuse_are_refused_here(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "reply_to": None,
        "key": "k",
        "params": None,
        "lease": 5.0,
        "durability": "strict",
        "message_id": None,
    }
    assert make_terms(KEY, "reply", **given).key == "k"
    with pytest.raises(UsageError):
        make_terms(KEY, "reply", **{**given, **wrong})


# Journal events


class FakeSession:
    """Publishes as told: an exception, or a ruling."""

    def __init__(self, *outcomes: Any, blocked_by: str | None = None) -> None:
        self.outcomes = list(outcomes)
        self.publisher = self
        self.published = 0
        self.retried = 0
        self.blocked_by = blocked_by

    async def publish(self, event_type: str, payload: Any, **options: Any) -> Any:
        if self.blocked_by is not None:
            self.blocked_by = None
            raise EarlierEventFailed("e-1", "not acknowledged")
        self.published += 1
        return self._next()

    async def retry_left(self) -> None:
        pass

    def leave(self, event_id: str) -> None:
        assert event_id == "e-ours"

    async def retry_own(self, event_id: str) -> Any:
        assert event_id == "e-ours"
        self.retried += 1
        return self._next()

    def _next(self) -> Any:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise NotAcknowledged("e-ours", str(outcome))
        return type("Receipt", (), {"ruling": staticmethod(lambda timeout: _as_result(outcome))})()


async def _as_result(value: Any) -> Any:
    return value


async def test_an_event_that_failed_is_sent_again_byte_for_byte() -> None:
    """Goal: through the session's own retry, which keeps id and stamp, not as a new event."""
    session = FakeSession(TransientError("lost"), TransientError("lost"), Ruling("accepted", 5))
    ruling = await ruled(session, "GenerationFinished", {}, timeout_s=10)  # type: ignore[arg-type]
    assert ruling.accepted
    assert (session.published, session.retried) == (1, 2)


async def test_anothers_failed_event_is_anothers_to_decide() -> None:
    session = FakeSession(Ruling("accepted", 5), blocked_by="user")
    assert (await ruled(session, "GenerationFinished", {}, timeout_s=10)).accepted  # type: ignore[arg-type]
    assert session.retried == 0


async def test_time_runs_out_with_what_was_the_matter() -> None:
    session = FakeSession(*(TransientError("lost") for _ in range(100)))
    with pytest.raises(TransientError, match="lost"):
        await ruled(session, "GenerationFinished", {}, timeout_s=0.3)  # type: ignore[arg-type]

"""Cadence, commit metadata, cache, rulings, sabotage, rows, history: pure parts of the engine."""

from __future__ import annotations

import asyncio
import gc

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st

from refold.core.rulings import Duplicate, Rejected
from refold.core.session import initial
from refold.engine import history, rows
from refold.engine.cache import DECODED_PER_ENCODED, ENTRY_BYTES, Entry, SessionCache
from refold.engine.cadence import MARKERS_MS, SATURATED_MS, WORTH_WAITING_S, Cadence
from refold.engine.collector import (
    FULL_AT_LEAST_S,
    FULL_EVERY_S,
    MIDDLE_AT_LEAST_S,
    MIDDLE_EVERY_S,
    Collector,
)
from refold.engine.commitmeta import CommitMeta, read_group_meta
from refold.engine.overlay import PartitionOverlay
from refold.engine.quarantine import QuarantineLimit
from refold.engine.rulings import RULINGS_MAX, RulingBook
from refold.engine.sabotage import SABOTAGES, Sabotage
from refold.errors import ConfigError, InvariantViolation, StorageError
from refold.wire.owner import RulingLine

# --- cadence ---------------------------------------------------------------------------------------------

CADENCE = Cadence(10)


def delay(**changes: float | bool) -> float:
    values: dict[str, object] = {
        "last_start": 100.0,
        "last_end": 99.9,
        "first_event": 100.004,
        "previous_event": 100.003,
        "saturated": False,
        "workers": 1,
        "partitions": 4,
        **changes,
    }
    return CADENCE.delay_s(100.005, **values)  # type: ignore[arg-type]


def test_an_event_after_idle_commits_at_once() -> None:
    assert delay(previous_event=99.99) == 0.0


def test_under_load_commits_are_spaced_from_start_to_start() -> None:
    assert delay() == pytest.approx(0.005)
    assert delay(last_start=99.0) == 0.0


def test_more_workers_and_more_partitions_space_them_further() -> None:
    assert CADENCE.interval_ms(workers=40, partitions=4) == 40
    assert CADENCE.interval_ms(workers=1, partitions=17) == 20
    assert delay(workers=30) == pytest.approx(0.025)


def test_a_backlog_makes_larger_commits() -> None:
    assert delay(saturated=True) == pytest.approx(SATURATED_MS / 1000 - 0.005)


def test_no_commit_begins_while_the_markers_of_the_last_one_are_written() -> None:
    """To ask for the next one meanwhile costs a refused request; a moment later it does not."""
    for changes in ({"last_start": 99.0}, {"previous_event": 99.99}, {"last_start": 99.0, "saturated": True}):
        assert delay(**changes, last_end=100.0049) == pytest.approx(MARKERS_MS / 1000 - 0.0001)
        assert delay(**changes, last_end=100.005 - MARKERS_MS / 1000 + WORTH_WAITING_S - 1e-6) == 0.0
    assert delay(last_end=100.0049) == pytest.approx(0.005)


# --- commit metadata (rule M) ----------------------------------------------------------------------------


def test_m_commit_metadata_reads_back() -> None:
    meta = CommitMeta("p-a", 12, 3, 5, 1)
    assert CommitMeta.parse(meta.encode()) == meta
    assert len(meta.encode()) < 4096  # Kafka's offset.metadata.max.bytes


@pytest.mark.parametrize("text", [None, "", "x", "[]", '{"v":2}', '{"v":1,"txid":"a"}', '{"v":1,"cl":3}'])
def test_m_foreign_metadata_counts_as_none(text: str | None) -> None:
    assert CommitMeta.parse(text) is None


def test_f_the_library_still_hands_out_metadata_we_can_look_into() -> None:
    """Contract: an unjoined member must be recognisable, because the broker accepts its offsets
    (measured)."""
    consumer = Consumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "group.instance.id": "i", "log_level": 0}
    )
    meta = read_group_meta(consumer.consumer_group_metadata())
    consumer.close()
    assert (meta.generation, meta.member_id, meta.joined) == (-1, "", False)
    assert read_group_meta(b"CGMDv2:" + (7).to_bytes(4, "little") + b"g\0member-1\0\0i\0").joined
    with pytest.raises(InvariantViolation, match="lock file"):
        read_group_meta(b"something else")


# --- cache -----------------------------------------------------------------------------------------------


def entry(number: int, size: int = 1_000) -> Entry:
    return Entry(b"t/%d" % number, 0, initial("t", str(number)), history.EMPTY, size)


def test_the_least_recently_used_goes_first_and_unconfirmed_ones_stay() -> None:
    cache = SessionCache((ENTRY_BYTES + 1_000 * DECODED_PER_ENCODED) * 8)
    kept = entry(0)
    kept.unconfirmed = 1
    cache.put(kept)
    for number in range(1, 20):
        cache.put(entry(number))
    assert cache.get(b"t/0") is kept
    assert cache.get(b"t/1") is None
    assert cache.get(b"t/19") is not None
    assert cache.bytes <= (ENTRY_BYTES + 1_000 * DECODED_PER_ENCODED) * 8


def test_while_all_is_unconfirmed_the_sessions_are_not_walked_for_each_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: many sessions touched by one overlay cost a look each, not a walk over all of them each."""
    cache, walks = SessionCache(ENTRY_BYTES * 40), 0
    real = cache._evict

    def counted() -> None:
        nonlocal walks
        walks += 1
        real()

    monkeypatch.setattr(cache, "_evict", counted)
    entries = [Entry(b"t/%d" % at, 0, None, None, 0) for at in range(200)]  # type: ignore[arg-type]
    for entry in entries:
        entry.unconfirmed = 1
        cache.put(entry)
    assert (len(cache), walks) == (200, 27)
    for entry in entries:
        entry.unconfirmed = 0
    cache.confirmed()
    assert cache.bytes <= ENTRY_BYTES * 35


def test_sizes_follow_what_was_encoded_and_discarding_gives_the_bytes_back() -> None:
    cache = SessionCache(1_000_000)
    one, two = entry(1), entry(2)
    cache.put(one)
    cache.put(two)
    cache.resize(one, 5_000)
    assert cache.bytes == 2 * ENTRY_BYTES + (5_000 + 1_000) * DECODED_PER_ENCODED
    cache.discard([one.key])
    cache.resize(one, 9_000)
    assert cache.bytes == two.size
    two.partition = 3
    cache.discard_partition(3)
    assert (cache.bytes, len(cache)) == (0, 0)


# --- history ---------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(1, 500), max_size=90), max_size=12),
)
def test_the_index_lists_every_event_whatever_the_commits(commits: list[list[int]]) -> None:
    """Goal: blocks + tail = all offsets. Method: random commits of random gaps, encoded and read back each
    time."""
    tail, blocks, offset = history.EMPTY, {}, -1
    expected: list[int] = []
    for gaps in commits:
        offsets = []
        for gap in gaps:
            offset += gap
            offsets.append(offset)
        expected += offsets
        tail, full = history.extend(tail, offsets)
        for number, value in full:
            assert number not in blocks
            blocks[number] = list(history.decode_block(value))
        assert history.decode_tail(history.encode_tail(tail)) == tail
    listed = [place for number in sorted(blocks) for place in blocks[number]]
    assert [*listed, *tail.offsets] == expected
    assert tail.last_seq == len(expected)
    assert len(blocks) == tail.blocks == len(expected) // history.BLOCK_EVENTS


def test_a_damaged_tail_is_said_to_be_damaged() -> None:
    tail, _ = history.extend(history.EMPTY, [5, 9])
    good = history.encode_tail(tail)
    for bad in (good[:-1], good + b"\x02", b"\x02\x00\xff", b"\xff"):
        with pytest.raises(StorageError, match="refold-history"):
            history.decode_tail(bad)


def test_rows_read_back() -> None:
    row = rows.pack(7, b"tail", b"snapshot")
    assert (rows.seq_of(row), rows.tail_of(row), rows.snapshot_of(row)) == (7, b"tail", b"snapshot")
    frontier = rows.Frontier("a", "b", "c", 1, 2, 3, 4, 5, 6)
    assert rows.Frontier.decode(frontier.encode()) == frontier
    with pytest.raises(StorageError):
        rows.Frontier.decode(b"{}")
    with pytest.raises(StorageError, match="state topic"):
        rows.snapshot_seq(b"abc")


# --- rulings ---------------------------------------------------------------------------------------------


def ruled(partition: int, first: int, count: int, producer: str | None = None) -> PartitionOverlay:
    part = PartitionOverlay(partition, 1, first)
    for offset in range(first, first + count):
        part.rulings[offset] = (offset + 1, producer)
    part.next_offset = first + count
    return part


async def test_rulings_are_published_waited_for_and_forgotten() -> None:
    book = RulingBook()
    book.open(0, 10)
    waiting = asyncio.create_task(book.wait(0, 11, 5.0))
    too_old = asyncio.create_task(book.wait(0, 3, 5.0))
    await asyncio.sleep(0)
    part = ruled(0, 10, 1)
    part.rulings[11] = (Rejected("bad_frame", "because"), None)
    part.rulings[12] = (Duplicate(4), None)
    part.next_offset = 13
    book.publish(part)
    assert await waiting == RulingLine(0, 11, "rejected", None, "bad_frame", "because")
    assert await too_old is None
    assert book.get(0, 12) == RulingLine(0, 12, "duplicate", 4)
    assert book.frontier(0) == 13
    assert await book.wait(0, 99, 0.01) is None
    gone = asyncio.create_task(book.wait(0, 50, 5.0))
    await asyncio.sleep(0)
    book.close(0)
    assert await gone is None


async def test_the_ring_is_bounded() -> None:
    book = RulingBook()
    book.open(0, 0)
    for first in range(0, RULINGS_MAX + 5_000, 5_000):
        book.publish(ruled(0, first, 5_000))
    assert book.get(0, 0) is None
    assert book.get(0, RULINGS_MAX) is not None
    assert len(book._rings[0]) <= RULINGS_MAX


async def test_subscribers_get_the_lines_of_their_producer() -> None:
    book = RulingBook()
    book.open(0, 0)
    lines: list[bytes] = []
    stop = book.subscribe("p1", lines.append)
    book.publish(ruled(0, 0, 2, "p1"))
    book.publish(ruled(0, 2, 2, "p2"))
    stop()
    book.publish(ruled(0, 4, 2, "p1"))
    assert [RulingLine.from_bytes(line).offset for line in b"".join(lines).splitlines()] == [0, 1]


# --- limits and switches ---------------------------------------------------------------------------------


def test_too_many_quarantines_in_a_minute_stop_the_worker() -> None:
    limit = QuarantineLimit(3)
    for second in (0, 25, 50, 75, 100, 125):
        limit.add(second)
    with pytest.raises(InvariantViolation, match="within a minute"):
        limit.add(126)


def test_every_sabotage_has_its_switch_and_prod_refuses_it() -> None:
    for name in SABOTAGES:
        assert Sabotage.parse(name, environment="dev").name == name
        with pytest.raises(ConfigError, match="prod"):
            Sabotage.parse(name, environment="prod")
    assert Sabotage.parse(None, environment="prod").name is None
    with pytest.raises(ConfigError, match="skip-dedup"):
        Sabotage.parse("nothing", environment="dev")


def test_full_collections_wait_for_idleness_but_not_for_ever() -> None:
    thresholds = gc.get_threshold()
    collector = Collector()
    try:
        collector.start(1_000.0)
        assert not collector.due(1_000.0 + FULL_EVERY_S, 1_000.0 + FULL_EVERY_S - 1)
        assert collector.due(1_000.0 + FULL_EVERY_S, 1_001.0)
        assert not collector.due(1_000.0 + FULL_EVERY_S, 900.0)  # nothing was done since
        assert collector.due(1_000.0 + FULL_AT_LEAST_S, 1_000.0 + FULL_AT_LEAST_S)
        busy = 1_000.0 + MIDDLE_EVERY_S
        assert not collector.middle_due(busy, busy - 1)
        assert collector.middle_due(busy, 1_001.0)
        assert collector.middle_due(1_000.0 + MIDDLE_AT_LEAST_S, 1_000.0 + MIDDLE_AT_LEAST_S)
        collector.beat(busy, 1_001.0)
        assert not collector.middle_due(busy + 1.0, busy + 1.0)
        assert collector.due(1_000.0 + FULL_EVERY_S, 1_001.0)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()

"""De-duplication: the rules U1 to U4."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core import Accepted
from refold.core.limits import DEDUP_EVENT_IDS_MAX, PRODUCERS_MAX
from refold.core.rulings import Ruling

from .build import Inbox, duplicate, event, message, rejected


def stamped(inbox: Inbox, producer: str, counter: int, epoch: int = 1, **fields: object) -> Ruling:
    body = message(f"{producer}/{epoch}/{counter}")
    return inbox.send(body, producer_id=producer, producer_epoch=epoch, producer_counter=counter, **fields)


def test_u1_lower_or_equal_counters_are_duplicates_for_ever() -> None:
    inbox = Inbox()
    for counter in (1, 2, 5):
        assert isinstance(stamped(inbox, "p", counter), Accepted)
    assert duplicate(stamped(inbox, "p", 5), 3)
    assert duplicate(stamped(inbox, "p", 2), 0)
    # A gap below the highest counter is not filled later: the SDK never lets an event overtake another.
    assert duplicate(stamped(inbox, "p", 3))
    assert isinstance(stamped(inbox, "q", 3), Accepted)


def test_u1_a_newer_epoch_takes_over_and_the_older_one_is_stale() -> None:
    inbox = Inbox()
    stamped(inbox, "p", 7, epoch=1)
    assert isinstance(stamped(inbox, "p", 1, epoch=2), Accepted)
    assert rejected(stamped(inbox, "p", 8, epoch=1), "stale_producer")
    assert duplicate(stamped(inbox, "p", 1, epoch=2), 2)


def test_u2_a_forgotten_producers_repeat_is_never_applied() -> None:
    """More producers than are remembered: every repeat is a duplicate or refused, new ones go through."""
    inbox = Inbox()
    values = []
    for i in range(PRODUCERS_MAX * 2):
        assert isinstance(stamped(inbox, f"p{i}", 1), Accepted)
        values.append(inbox.records[-1])
    assert len(inbox.session.producers) == PRODUCERS_MAX
    rulings = [inbox.put(*value) for value in values]
    assert all(rejected(r, "too_old_to_judge") for r in rulings[:PRODUCERS_MAX])
    assert all(duplicate(r) for r in rulings[PRODUCERS_MAX:])
    assert isinstance(stamped(inbox, "newcomer", 1), Accepted)
    # The forgotten one itself goes on with its next event.
    assert isinstance(stamped(inbox, "p0", 2), Accepted)


def test_u2_the_least_recently_used_producer_is_forgotten() -> None:
    inbox = Inbox()
    for i in range(PRODUCERS_MAX):
        stamped(inbox, f"p{i}", 1)
    stamped(inbox, "p0", 2)
    stamped(inbox, "new", 1)
    assert "p0" in inbox.session.producers
    assert "p1" not in inbox.session.producers


def test_u2_a_clock_in_2100_does_not_shut_others_out() -> None:
    """Its producer is not forgotten while it is ahead of the session's time, so the floor stays sensible."""
    inbox = Inbox()
    stamped(inbox, "future", 1, event_time_ms=4_102_444_800_000)
    for i in range(PRODUCERS_MAX + 5):
        assert isinstance(stamped(inbox, f"p{i}", 1), Accepted)
    assert "future" in inbox.session.producers
    assert inbox.session.dedup_floor_ms is not None
    assert inbox.session.dedup_floor_ms <= inbox.session.time_ms


def test_u2_if_all_are_ahead_the_new_one_is_refused() -> None:
    inbox = Inbox()
    for i in range(PRODUCERS_MAX):
        stamped(inbox, f"p{i}", 1, event_time_ms=4_102_444_800_000)
    assert rejected(stamped(inbox, "late", 1), "too_many_producers")
    assert duplicate(stamped(inbox, "p3", 1, event_time_ms=4_102_444_800_000))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_u2_no_history_of_producers_applies_a_repeat(data: st.DataObject) -> None:
    """U2: random producers, clocks and repeats: a (producer, epoch, counter) is accepted at most once."""
    inbox = Inbox()
    inbox.check = False
    accepted: set[tuple[str, int]] = set()
    counters: dict[str, int] = {}
    for _ in range(160):
        producer = f"p{data.draw(st.integers(0, PRODUCERS_MAX + 10))}"
        if inbox.records and data.draw(st.integers(0, 2)) == 0:
            value, _ = data.draw(st.sampled_from(inbox.records))
            ruling = inbox.put(value)
            assert not isinstance(ruling, Accepted)
            continue
        counters[producer] = counters.get(producer, 0) + 1
        skew = data.draw(st.sampled_from([0, 0, 0, -3_600_000, 3_600_000, 10**11]))
        ruling = stamped(inbox, producer, counters[producer], event_time_ms=inbox.clock + skew)
        if isinstance(ruling, Accepted):
            key = (producer, counters[producer])
            assert key not in accepted
            accepted.add(key)
        else:
            # A refused event was never applied: repeating it may not count as a repeat.
            inbox.records.pop()
            inbox.offset += 1


def test_u3_plain_producers_have_a_window_of_event_ids() -> None:
    inbox = Inbox().ok(event("FactSet", name="a", value="1"))
    value = inbox.records[0]
    for i in range(DEDUP_EVENT_IDS_MAX - 1):
        assert duplicate(inbox.put(*value), 1)
        inbox.ok(event("FactSet", name="a", value=str(i)))
    assert duplicate(inbox.put(*value), 1)
    assert rejected(inbox.send(event("FactSet", name="b", value="2"), event_id="e0"), "conflict")
    inbox.ok(event("FactSet", name="z", value="9"))
    # Out of the window: not recognised any more, and applied (the stated limit for plain producers).
    assert isinstance(inbox.put(*value), Accepted)


def test_u3_the_ring_finds_entries_at_their_own_place_only() -> None:
    """A hash that happens to occur across two entries is no hit."""
    from refold.core.dedup import ring_add, ring_find

    ring = b""
    for i in range(40):
        ring = ring_add(ring, f"id{i}", b"abcd", i, 64)
    shifted = ring[3:] + b"xyz"
    for i in range(40):
        assert ring_find(ring, f"id{i}") == 16 * i
        assert ring_find(shifted, f"id{i}") == -1


def test_u3_seqs_beyond_32_bits_are_told_right() -> None:
    from refold.core.dedup import ring_add, ring_find, ring_seq

    seq = (1 << 32) + 5
    ring = ring_add(b"", "x", b"abcd", seq, 8)
    assert ring_seq(ring, ring_find(ring, "x"), seq + 100) == seq


def test_u4_a_message_id_is_recognised_from_another_producer() -> None:
    """A caller that retries from a new process, with its own message id: once."""
    inbox = Inbox()
    body = message("mine")
    inbox.send(body, producer_id="p1", producer_epoch=1, producer_counter=1)
    assert duplicate(inbox.send(body, producer_id="p2", producer_epoch=1, producer_counter=1), 1)


def test_expected_seq() -> None:
    inbox = Inbox()
    assert isinstance(inbox.send(message("a"), expected_seq=0), Accepted)
    assert rejected(inbox.send(message("b"), expected_seq=0), "expected_seq")
    assert isinstance(inbox.send(message("b"), expected_seq=1), Accepted)
    # The retry of the accepted one is a duplicate, not a conflict.
    assert duplicate(inbox.put(*inbox.records[0]), 1)


@pytest.mark.parametrize("bad", ["", "x" * 257, "é" * 129, "@mine"])
def test_bad_ids_are_refused_everywhere(bad: str) -> None:
    inbox = Inbox().ok(message("u"))
    assert rejected(inbox.send(message("m"), event_id=bad), "bad_id")
    assert rejected(inbox.send(message(bad)), "bad_id")
    assert rejected(inbox.send(event("FactSet", name=bad, value="1")), "bad_id")
    for name in ("ToolCallCompleted", "ToolCallFailed"):
        if bad:
            code = "unknown_call" if bad[0] == "@" else "bad_id"
            assert rejected(inbox.send(event(name, operation_id=bad)), code)
    fields = {"operation_id": bad, "tool": "t", "arguments": "{}"}
    assert rejected(inbox.send(event("ToolCallIntended", **fields)), "bad_id")
    if bad and bad[0] != "@":
        stamp = {"producer_id": bad, "producer_epoch": 1, "producer_counter": 1}
        assert rejected(inbox.send(message("m"), **stamp), "bad_id")
    assert inbox.session.seq == 1


def test_an_outcome_without_any_id_is_refused() -> None:
    assert rejected(Inbox().send(event("ToolCallCompleted")), "bad_id")

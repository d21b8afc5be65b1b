"""The oracle and the judge: each kind of record has its outcome, and each planted difference is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.envelope import Envelope
from refold.core.slots import SlotMap, slots_for
from refold.ops.verify.aborted import aborted_transactions
from refold.ops.verify.judge import judge
from refold.ops.verify.oracle import World, home, predict
from refold.ops.verify.readback import Record
from refold.wire.codec import encode
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.journal import journal_value

PARTITIONS = 4
KEY = b"t/s"
HOME = home(KEY, PARTITIONS)
Topic = dict[int, list[Record]]


def event(event_id: str, text: str = "hello", **fields: object) -> bytes:
    payload = encode(
        "refold.event.MessageAppended",
        {"message_id": f"m-{event_id}", "role": "user", "content": [{"type": "text", "text": text}]},
    )
    values = {
        "event_id": event_id,
        "tenant": "t",
        "session": "s",
        "type": "MessageAppended",
        "payload": payload,
    }
    return encode_envelope(Envelope(**{**values, **fields}))  # type: ignore[arg-type]


def topic(*values: bytes, key: bytes | None = KEY, partition: int = HOME) -> Topic:
    out: Topic = {p: [] for p in range(PARTITIONS)}
    out[partition] = [Record(partition, n, key, value, (), 0) for n, value in enumerate(values)]
    return out


def accepted(world: World) -> list[int]:
    return [place[1] for place, _, _ in world.sessions[KEY].accepted]


def test_home_is_javas_partition() -> None:
    """Goal: two implementations agree. Method: the oracle's own against core's, over many keys and counts."""
    for partitions in (1, 4, 7, 12):
        slots = SlotMap(partitions)
        assert slots.slots == slots_for(partitions)
        for n in range(500):
            key = f"tenant-{n % 7}/session-{n}".encode()
            assert home(key, partitions) == slots.partition(key)


def test_repeats_are_duplicates_by_id_or_by_counter() -> None:
    stamped = {"producer_id": "p", "producer_epoch": 1}
    world = predict(
        topic(
            event("a"),
            event("a"),
            event("b", **stamped, producer_counter=1),
            event("c", **stamped, producer_counter=2),
            event("b", **stamped, producer_counter=1),
        )
    )
    assert accepted(world) == [0, 2, 3]
    assert world.duplicates == 2
    assert world.rejected == {}


def test_conflicts_and_unreadable_records_are_rejected() -> None:
    world = predict(
        topic(
            event("a"),
            event("a", "other"),
            event("b", expected_seq=7),
            event("c", expected_seq=1),
            b"\x07x",
            b"",
        )
    )
    assert accepted(world) == [0, 3]
    assert world.rejected == {
        (HOME, 1): "conflict",
        (HOME, 2): "expected_seq",
        (HOME, 4): "bytes",
        (HOME, 5): "bytes",
    }


def test_a_record_on_a_wrong_partition_counts_where_its_copy_arrives() -> None:
    inbox = topic(event("a"), partition=(HOME + 1) % PARTITIONS)
    copy = ("refold-origin", f"x.inbox/{(HOME + 1) % PARTITIONS}/0".encode())
    inbox[HOME] = [Record(HOME, 5, KEY, event("a"), (copy,), 0)]
    world = predict(inbox)
    assert accepted(world) == [5]
    assert world.forwards == {((HOME + 1) % PARTITIONS, 0): [(HOME, 5)]}
    assert world.misrouted == set(world.forwards)


def test_keys_must_name_the_session() -> None:
    assert predict(topic(event("a", session="other"))).rejected == {(HOME, 0): "key"}
    assert predict(topic(event("a"), key=None)).rejected == {(HOME, 0): "key"}
    assert predict(topic(event("a"), key=b"no-slash")).rejected == {(HOME, 0): "key"}


# -- the judge ----------------------------------------------------------------------------------------


def journal_of(*values: bytes, seqs: tuple[int, ...] = (), offsets: tuple[int, ...] = ()) -> Topic:
    return topic(
        *(
            journal_value(
                seqs[n] if seqs else n + 1, 0, HOME, offsets[n] if offsets else n, decode_envelope(value)
            )
            for n, value in enumerate(values)
        )
    )


def snapshot(seq: int, texts: list[tuple[int, str]], **changes: object) -> bytes:
    messages = [
        {
            "seq": at,
            "time_ms": 0,
            "parent": "",
            "size": 1,
            "message_id": f"m{at}",
            "role": "user",
            "content": [{"type": "text", "text": text}],
        }
        for at, text in texts
    ]
    record = {
        "tenant": "t",
        "session_id": "s",
        "seq": seq,
        "version": 1,
        "created_at_ms": 0,
        "updated_at_ms": 0,
        "status": "open",
        "frontier": [{"topic": "x.inbox", "partition": HOME, "next_offset": seq}],
        "context": {
            "system": [],
            "summary": None,
            "summary_active": False,
            "through": 0,
            "complete": True,
            "recent_messages": messages,
        },
        "facts": [],
        "config": None,
        "tools": [],
        "branches": [],
        "link": None,
        "limits": {"max_messages": 40, "max_bytes": 65536, "overflow": False},
        "engine": b"",
        **changes,
    }
    return encode("refold.SessionSnapshot", record)


VALUES = (event("a", "one"), event("b", "two"))
TEXTS = [(1, "one"), (2, "two")]
NONE: Topic = topic()


def test_equal_topics_give_a_clean_verdict() -> None:
    inbox = topic(*VALUES)
    verdict = judge(predict(inbox), inbox, journal_of(*VALUES), topic(snapshot(2, TEXTS)), NONE)
    assert verdict.differences == []
    assert verdict.clean


@pytest.mark.parametrize(
    ("name", "journal", "state"),
    [
        ("lost", journal_of(VALUES[0]), topic(snapshot(2, TEXTS))),
        ("doubled", journal_of(*VALUES, VALUES[1], offsets=(0, 1, 1)), topic(snapshot(2, TEXTS))),
        ("out of order", journal_of(*reversed(VALUES), offsets=(1, 0)), topic(snapshot(2, TEXTS))),
        ("gap", journal_of(*VALUES, seqs=(1, 3)), topic(snapshot(2, TEXTS))),
        ("seq", journal_of(*VALUES), topic(snapshot(3, TEXTS))),
        ("texts", journal_of(*VALUES), topic(snapshot(2, [(1, "one"), (2, "other")]))),
        ("message in neither", journal_of(*VALUES), topic(snapshot(2, TEXTS[1:]))),
        (
            "facts",
            journal_of(*VALUES),
            topic(snapshot(2, TEXTS, facts=[{"name": "f", "value": "1", "seq": 1}])),
        ),
        ("no state", journal_of(*VALUES), NONE),
        (
            "going back",
            journal_of(*VALUES),
            topic(snapshot(2, TEXTS), snapshot(1, TEXTS[:1]), snapshot(2, TEXTS)),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_planted_difference_is_found(name: str, journal: Topic, state: Topic) -> None:
    """Goal: the harness can fail. Method: plant one difference at a time."""
    inbox = topic(*VALUES)
    verdict = judge(predict(inbox), inbox, journal, state, NONE)
    assert not verdict.clean, name
    if name in {"gap", "going back"}:
        assert verdict.regressions
    if name == "lost":
        assert verdict.rpo_events == 1


def rejected_record(place: tuple[int, int], code: str, value: bytes, copies: int = 1) -> Topic:
    headers = (("refold-code", code.encode()), ("refold-origin", f"x.inbox/{place[0]}/{place[1]}".encode()))
    return {**NONE, 0: [Record(0, n, KEY, value, headers, 0) for n in range(copies)]}


@pytest.mark.parametrize(
    ("rejected", "clean"),
    [
        (rejected_record((HOME, 0), "bad_frame", b"\x07x"), True),
        (rejected_record((HOME, 0), "bad_frame", b"\x07x", copies=2), False),
        (rejected_record((HOME, 0), "conflict", b"\x07x"), False),
        (rejected_record((HOME, 0), "bad_frame", b"\x07y"), False),
        (rejected_record((HOME, 1), "bad_frame", b"\x07x"), False),
        (NONE, False),
    ],
)
def test_a_rejected_record_is_there_once_with_its_bytes_and_code(rejected: Topic, clean: bool) -> None:
    inbox = topic(b"\x07x")
    assert judge(predict(inbox), inbox, NONE, NONE, rejected).clean is clean


def test_a_forward_that_is_missing_or_doubled_is_found() -> None:
    wrong = (HOME + 1) % PARTITIONS
    inbox = topic(VALUES[0], partition=wrong)
    assert not judge(predict(inbox), inbox, NONE, NONE, NONE).clean
    copy = Record(HOME, 0, KEY, VALUES[0], (("refold-origin", f"x.inbox/{wrong}/0".encode()),), 0)
    once = {**inbox, HOME: [copy]}
    state, journal = topic(snapshot(1, TEXTS[:1])), journal_of(VALUES[0])
    assert judge(predict(once), once, journal, state, NONE).clean
    twice = {**inbox, HOME: [copy, replace(copy, offset=1)]}
    assert not judge(predict(twice), twice, journal, state, NONE).clean


def test_aborted_transactions_are_counted_by_what_stays_invisible() -> None:
    def record(offset: int, time_ms: int, partition: int = 0) -> Record:
        return Record(partition, offset, KEY, b"", (), time_ms)

    everything = {
        0: [record(0, 0), record(1, 0), record(3, 900), record(4, 901), record(6, 950)],
        1: [record(2, 905, 1)],
    }
    committed = {0: [record(0, 0), record(1, 0), record(6, 950)], 1: []}
    assert aborted_transactions(everything, committed) == 1
    assert aborted_transactions(everything, {0: [], 1: []}) == 3 - 1
    assert aborted_transactions(committed, committed) == 0

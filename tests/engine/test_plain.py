"""The fast lane: what goes through it has the effects it has through ``step`` and ``apply``, to the byte."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from core.build import TENANT, Inbox, call, event, message, outcome, result, text
from core.histories import histories
from core.runhistories import ACTS, RUNS, STEPS, act
from refold.client.publishing import _headers
from refold.core import Envelope
from refold.core.envelope import Actor, SessionLink
from refold.core.events import MessageAppended
from refold.core.plain import append_plain
from refold.core.session import initial
from refold.core.slots import make_key
from refold.engine import history
from refold.engine import plain as plain_module
from refold.engine.assignment import Assignment
from refold.engine.cache import Entry, SessionCache
from refold.engine.chunks import Record, record_of
from refold.engine.overlay import Overlay, PartitionOverlay, apply
from refold.engine.plain import fold_plain
from refold.engine.sabotage import Sabotage
from refold.engine.step import Limits, step
from refold.engine.usage import Usages
from refold.errors import InvalidRecord
from refold.topology.names import TopicNames
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event, event_payload
from refold.wire.plain import frames, names_of, read_plain_record
from refold.wire.snapshot import decode_session, encode_snapshot

SESSIONS = ("s1", "s2")
#: What :mod:`refold.client.publishing` puts on a message.
SDK_HEADERS = [("refold-type", b"MessageAppended")]
#: Those that leave the session open, so that most messages are plain.
RUN_ACTS = [name for name in ACTS if name not in ("redeliver", "close", "delete", "quarantine")]
#: The fold does not look at the slot of a session that is in memory: one partition is enough.
PARTITION = 3


class View:
    """Sessions in a cache, nothing on disk; ``rebuild`` gives the state kept in ``stored``."""

    def __init__(self, journal_bytes_max: int = 1_179_648) -> None:
        self.topics = TopicNames("t")
        self.limits = Limits(journal_bytes_max, 1_179_648, 1_114_112, 1_048_576, 1_114_112, 1_048_576)
        self.sabotage = Sabotage()
        self.usages = Usages(Assignment())
        self.cache = SessionCache(1 << 30)
        self.cached = self.cache.get
        self.stored: dict[bytes, bytes] = {}

    def partition_of(self, key: bytes) -> int:
        return PARTITION

    def progress(self, key: bytes, partition: int, generation_id: str) -> None:
        return None

    def caught_up(self, record: Record) -> bool:
        return True

    def load(self, key: bytes, partition: int, tenant: str, session: str) -> Entry:
        entry = Entry(key, partition, initial(tenant, session), history.EMPTY, 0)
        self.cache.put(entry)
        return entry

    def rebuild(self, entry: Entry) -> Entry:
        entry.session = decode_session(self.stored[entry.key])
        return entry


class Polled:
    """A record as the consumer hands it out."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def partition(self) -> int:
        return self._record.partition

    def offset(self) -> int:
        return self._record.offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._record.append_ms

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> Any:
        return self._record.headers


class Lane:
    """Folds records with or without the fast lane; ``fast`` counts what went through it."""

    def __init__(self, view: View, *, use: bool) -> None:
        self.view = view
        self.use = use
        self.fast = 0
        self.quarantined: list[BaseException] = []
        self.new_overlay()

    def new_overlay(self) -> None:
        self.overlay = Overlay()
        self.part: PartitionOverlay = self.overlay.part(PARTITION, 1, 0)

    def fold(self, records: Sequence[Record]) -> None:
        messages: list[Any] = [Polled(record) for record in records]
        at = 0
        while at < len(messages):
            if self.use:
                begin = at
                at = fold_plain(self.view, self.overlay, self.part, messages, at, len(messages))
                self.fast += at - begin
                if at == len(messages):
                    return
            record = record_of(messages[at])
            effects = step(self.view, record)
            apply(self.overlay, self.part, record, effects)
            if effects.quarantined is not None:
                self.quarantined.append(effects.quarantined)
            at += 1

    def outcome(self) -> dict[str, Any]:
        """Everything that is written, served or counted because of what was folded."""
        overlay, part = self.overlay, self.part
        return {
            "journal": part.journal,
            "outputs": part.outputs,
            "touched": {k: (t.events, t.deleted, t.entry.unconfirmed) for k, t in part.touched.items()},
            "rulings": part.rulings,
            "next": part.next_offset,
            "counts": {name: getattr(overlay, name) for name in Overlay.__slots__ if name != "parts"},
            "sessions": {
                session: encode_snapshot(entry.session) if entry.session.exists else b""
                for session in SESSIONS
                if (entry := self.view.cache.peek(make_key(TENANT, session))) is not None
            },
        }


def both(records: Sequence[Record], batch: int, journal_bytes_max: int = 1_179_648) -> int:
    """Fold ``records`` both ways, compare after every batch; how many went through the fast lane."""
    slow = Lane(View(journal_bytes_max), use=False)
    quick = Lane(View(journal_bytes_max), use=True)
    for at in range(0, len(records), batch):
        for lane in (slow, quick):
            lane.fold(records[at : at + batch])
        assert quick.outcome() == slow.outcome()
        for lane in (slow, quick):
            for touched in lane.overlay.touched():
                touched.entry.unconfirmed -= 1
            lane.new_overlay()
    return quick.fast


def inbox_record(offset: int, value: bytes | None, at_ms: int, session: str = "s1", **changes: Any) -> Record:
    values = {
        "partition": PARTITION,
        "offset": offset,
        "append_ms": at_ms,
        "key": make_key(TENANT, session),
        "value": value,
        "headers": None,
        **changes,
    }
    return Record(**values)


@settings(max_examples=150, deadline=None)
@given(histories())
def test_random_histories_have_the_same_effects_both_ways(inbox: Inbox) -> None:
    """Goal: tools, branches, settings, repeats, conflicts, deletions: the lane never rules otherwise."""
    both([inbox_record(n, value, at_ms) for n, (value, at_ms) in enumerate(inbox.records)], 7)


def test_messages_among_runs_have_the_same_effects_both_ways() -> None:
    """Goal: a session with open runs, an armed deadline and steps under way keeps the fast lane for its plain
    messages, and the state, the work topic and the rulings are the same."""
    chance = random.Random(11)
    fast = 0
    for _ in range(40):
        inbox = Inbox()
        inbox.check = False
        for number in range(50):
            if chance.randrange(2):
                stamp = {"producer_id": "p", "producer_epoch": 1, "producer_counter": number}
                inbox.send(message(f"p{number}", chance.choice(["user", "assistant"])), **stamp)
                continue
            run, row = chance.choice(RUNS), chance.choice(STEPS)
            inbox.send(act(inbox, chance.choice(RUN_ACTS), run, row, chance.randrange(2, 12)))
        records = [inbox_record(n, value, at_ms) for n, (value, at_ms) in enumerate(inbox.records)]
        fast += both(records, chance.choice([1, 9, 50]))
    assert fast > 300, fast


def test_traffic_that_is_mostly_plain_has_the_same_effects_both_ways() -> None:
    """Goal: as above, with records that differ from a plain one in one thing, and most go the fast way."""
    chance = random.Random(7)
    plain = total = 0
    for round_ in range(100):
        records: list[Record] = []
        at_ms = 1_760_000_000_000
        counters: Counter[tuple[str, str]] = Counter()
        for offset in range(120):
            at_ms += chance.choice([0, 0, 1, 40, -30])
            if records and chance.randrange(20) == 0:
                again = chance.choice(records)
                records.append(again._replace(offset=offset, append_ms=at_ms))
                continue
            session = chance.choice(SESSIONS)
            value: bytes | None = _value(chance, offset, session, at_ms, counters)
            odd = chance.randrange(60)
            # As the SDK sends it, or as a plain producer does.
            changes: dict[str, Any] = {"headers": chance.choice([None, SDK_HEADERS])}
            if odd == 0:
                changes = {"headers": [*SDK_HEADERS, ("traceparent", b"00")]}
            elif odd == 1:
                changes = {"key": make_key(TENANT, "s2" if session == "s1" else "s1")}
            elif odd == 2:
                changes = {"key": None}
            elif odd == 3 and value:
                value = value[: chance.randrange(len(value))] + chance.randbytes(2)
            elif odd == 4:
                value = None if chance.randrange(4) == 0 else value
            records.append(inbox_record(offset, value, at_ms, session, **changes))
        plain += both(records, chance.choice([1, 16, 50]), 5_000 if round_ % 4 == 0 else 1_179_648)
        total += len(records)
    assert plain > total // 2


def test_what_the_sdk_sends_goes_through_the_lane() -> None:
    """Goal: the lane is for users' traffic, which names its type in a header."""
    value = encode_envelope(
        Envelope(
            "e",
            TENANT,
            "s1",
            "MessageAppended",
            producer_id="p",
            producer_epoch=1,
            payload=event_payload(*message("m")),
        )
    )
    lane = Lane(View(), use=True)
    lane.fold([inbox_record(0, value, 5)])
    for number in range(1, 4):
        env = decode_envelope(value)
        env.event_id, env.producer_counter, env.raw = f"e{number}", number, b""
        env.payload = event_payload(*message(f"m{number}"))
        headers = _headers("MessageAppended", None if number < 3 else {"traceparent": b"00"})
        lane.fold([inbox_record(number, encode_envelope(env), 5 + number, headers=list(headers))])
    assert lane.fast == 2
    assert lane.part.next_offset == 4
    assert lane.part.journal[1].headers == [("refold-type", b"MessageAppended")]


def _value(
    chance: random.Random, number: int, session: str, at_ms: int, counters: Counter[tuple[str, str]]
) -> bytes:
    """Mostly the next plain message of one of a few producers; now and then something else about it."""
    producer = chance.choice(["p0", "p0", "p0", "p1"])
    counters[session, producer] += 1
    what = message(f"m{number}", chance.choice(["user", "assistant"]), "x" * chance.choice([3, 60, 300]))
    fields: dict[str, Any] = {
        "producer_id": producer,
        "producer_epoch": 1,
        "producer_counter": counters[session, producer],
        "event_time_ms": at_ms,
        "actor": chance.choice([None, Actor("user"), Actor("agent", "a1"), Actor("tool", "", "named")]),
    }
    odd = chance.randrange(280)
    if odd < 12:
        fields |= (
            {"event_id": "@mine"},
            {"event_id": ""},
            {"event_id": "é" * 40},
            {"event_id": "e" * 300},
            {"producer_epoch": 2},
            {"producer_id": None},
            {"expected_seq": 3},
            {"actor": Actor("user", "a" * 300)},
            {"actor": Actor("user", "é" * 31), "run": "r"},
            {"link": SessionLink("child", "other")},
            {"event_time_ms": -5},
            {"producer_counter": 0},
        )[odd]
    elif odd < 28:
        what = (
            message(f"m{chance.randrange(number + 1)}", "user", "again"),
            message("@m", "user"),
            message("", "user"),
            message("i" * 257, "user"),
            message(f"m{number}", "assistant", "y" * 40_000),
            message(f"m{number}", "assistant", "y" * 4_000),
            message(f"m{number}", "system", "be brief"),
            message(f"m{number}", "", "no role"),
            message(f"m{number}", "user", parent_id=f"m{chance.randrange(number + 1)}"),
            message(f"m{number}", "user", replaces=f"m{chance.randrange(number + 1)}"),
            message(f"m{number}", "assistant", [text("calls"), call(f"c{number}")]),
            message(f"m{number}", "tool", [result(f"c{chance.randrange(number + 1)}")]),
            event(
                "SessionConfigured",
                window_messages=chance.choice([1, 3, 20]),
                window_bytes=2_000,
                hold_for_summary=chance.choice([False, False, True]),
                policy={"summary_messages": chance.choice([0, 0, 5])},
            ),
            event("SessionClosed"),
            event("SessionReopened"),
            outcome(None, f"c{number}"),
        )[odd - 12]
    fields.setdefault("event_id", f"e{number}")
    return encode_envelope(
        Envelope(tenant=TENANT, session=session, type=what[0], payload=event_payload(*what), **fields)
    )


def test_whatever_the_lane_reads_the_general_readers_read_alike() -> None:
    """Goal: damaged bytes are left alone, or read as the strict readers do."""
    chance = random.Random(3)
    names = names_of(TENANT, "s1")
    taken = 0
    for number in range(300):
        whole = _value(chance, number, "s1", chance.choice([0, 5, 1_760_000_000_000, 2**62]), Counter())
        for _ in range(40):
            at = chance.randrange(len(whole))
            value = whole[:at] + chance.randbytes(chance.randrange(3)) + whole[at + chance.randrange(3) :]
            got = read_plain_record(value, frames(), names)
            if got is None:
                continue
            taken += 1
            try:
                env = decode_envelope(value)
                item = decode_event(env)
            except InvalidRecord as bad:
                pytest.fail(f"read by the lane, and yet {bad.code}")
            assert isinstance(item, MessageAppended)
            actor = None if env.actor is None else env.actor.id
            stamp = (env.producer_id, env.producer_epoch, env.producer_counter, env.event_time_ms)
            assert got == (*stamp, actor, item.message_id, item.role, item.body)
            assert (env.tenant, env.session, env.raw) == (TENANT, "s1", value[5:])
            unset = (env.expected_seq, env.run, env.step, env.attempt, env.origin, env.link)
            assert unset == (None,) * 6
            assert (item.parent_id, item.replaces, item.calls, item.results) == (None, None, (), ())
    assert taken > 1_000


def test_a_record_the_lane_fails_at_is_folded_by_the_step_on_a_session_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a fault in the lane, half-way through a change, neither loses an event nor keeps the half."""
    values = [
        encode_envelope(
            Envelope(
                f"e{n}",
                TENANT,
                "s1",
                "MessageAppended",
                producer_id="p",
                producer_epoch=1,
                producer_counter=n + 1,
                payload=event_payload(*message(f"m{n}")),
            )
        )
        for n in range(3)
    ]
    records = [inbox_record(n, value, 1_760_000_000_000 + n) for n, value in enumerate(values)]
    slow, quick = Lane(View(), use=False), Lane(View(), use=True)
    slow.fold(records)
    quick.fold(records[:2])
    quick.view.stored[records[0].key or b""] = quick.outcome()["sessions"]["s1"]
    real = append_plain

    def broken(*arguments: Any) -> Any:
        real(*arguments)
        raise RuntimeError("planted")

    monkeypatch.setattr(plain_module, "append_plain", broken)
    quick.fold(records[2:])
    assert quick.outcome() == slow.outcome()
    assert not quick.quarantined

"""Usage rows beside the sessions (W3, W4): folded with their events, taken back with them, gone in time.

A real store, the real step, overlay and seal; commits are done by hand. What is stored is compared with
:mod:`refold.ops.usage.recount` over the journal that was committed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.test_step import SLOTS, record
from refold.core.envelope import Envelope
from refold.core.rulings import Accepted, Duplicate, Rejected
from refold.core.slots import make_key
from refold.core.usage import ANY_MODEL, ROW_MS_MAX
from refold.engine import rows, seal
from refold.engine.assignment import Assignment
from refold.engine.cache import SessionCache
from refold.engine.lifecycle import State
from refold.engine.overlay import Overlay, apply
from refold.engine.plan import Plan, Written
from refold.engine.sabotage import Sabotage
from refold.engine.seal import Sealer
from refold.engine.sessions import Sessions
from refold.engine.sides import Sides
from refold.engine.step import Effects, Limits, step
from refold.engine.store import Memory, Store, UnreadableStore
from refold.engine.usage import SWEEP_MARGIN_MS, Usages, read_usage, usage_key, usage_range
from refold.engine.usagesweep import UsageSweep
from refold.errors import InvariantViolation
from refold.ops.usage.recount import Recount, differences, facts_of
from refold.topology.names import TopicNames
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.usage import decode_usage

TENANT = "acme"
T0 = 1_800_000_000_000
PARTITION = SLOTS.partition(make_key(TENANT, "s0"))
#: All on one partition.
SESSIONS = [name for n in range(60) if SLOTS.partition(make_key(TENANT, name := f"s{n}")) == PARTITION][:6]
MODELS = ("m", "gpt#5/%x")


def value(
    number: int, session: str, kind: str = "UsageRecorded", subject: str = "ada", **payload: Any
) -> bytes:
    fields = {"model": "m", **payload}
    return encode_envelope(
        Envelope(
            event_id=f"e{number}",
            tenant=TENANT,
            session=session,
            type=kind,
            event_time_ms=T0 + number,
            subject=subject,
            payload=encode(f"refold.event.{kind}", fields),
        )
    )


class Bench:
    """One partition: fold, seal, write, abort. ``committed`` is its journal."""

    def __init__(self, store: Store, cache_bytes_max: int = 1 << 20) -> None:
        self.store = store
        self.assignment = assignment = Assignment()
        assignment.add(PARTITION, 1).written = Written(store, "ts", "th", "tg", 0, 0, 0)
        names = TopicNames("t")
        self.sides = Sides(names, assignment)
        self.usages = self.sides.usages = Usages(assignment, cache_bytes_max)
        self.cache = SessionCache(1 << 20)
        self.current = Overlay()
        self.sealer = Sealer(
            sessions := Sessions(
                names,
                Limits(1_179_648, 1_179_648, 1_114_112, 1_048_576, 1_114_112, 1_048_576),
                SLOTS,
                assignment,
                self.cache,
                lambda: [self.current],
                Sabotage(),
                self.sides.generations.progress,
                self.usages,
            ),
            self.sides.timers,
        )
        self.sessions = sessions
        self.offset = 0
        self.committed: list[Any] = []

    def fold(self, session: str, value: bytes, append_ms: int) -> Effects:
        key = make_key(TENANT, session)
        one = record(value, self.offset, partition=PARTITION, key=key, append_ms=append_ms)
        effects = step(self.sessions, one)
        apply(self.current, self.current.part(PARTITION, 1, self.offset), one, effects)
        self.offset += 1
        return effects

    async def commit(self) -> list[bytes]:
        """Keys of side rows written."""
        overlay = self.current
        await self.sealer.seal(overlay)
        self.current = Overlay()
        part = overlay.parts.get(PARTITION)
        if part is None:
            return []
        plan = Plan(part, 0, 0, 0)
        for key, touched in part.touched.items():
            plan.rows[key] = None if touched.encoded is None else rows.pack(touched.seq, b"", touched.encoded)
        self.store.write(plan.batch(Written(self.store, "ts", "th", "tg", 0, 0, 0), 1))
        for touched in part.touched.values():
            touched.entry.unconfirmed -= 1
        for side in part.side.values():
            side.confirm()
        self.committed += [decode_journal(item.value) for item in part.journal]
        return list(part.side)

    def abort(self) -> None:
        overlay, self.current = self.current, Overlay()
        self.cache.discard(overlay.keys())
        for _, side in overlay.side_rows():
            side.discard()

    def check(self, now_ms: int) -> int:
        """Every row that the journal knows, and no other."""
        counted: dict[bytes, Recount] = {}
        for entry in self.committed:
            event: Any = decode_event(entry.env)
            if entry.env.type.startswith("Usage"):
                key = usage_key(entry.env.tenant, event.subject, event.model)
                counted.setdefault(key, Recount()).add(entry.env.session, event, entry.time_ms)
        stored = dict(self.store.side_range(b"usage#", b"usage$", 10_000))
        assert set(stored) == set(counted)
        for key, recount in counted.items():
            row = decode_usage(stored[key])
            assert differences(facts_of(row, now_ms), recount.facts(now_ms)) == []
        return len(counted)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "p0", Memory())
    yield opened
    opened.close()


async def test_w3_rows_are_the_fold_of_the_committed_journal(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random events on six sessions, two subjects and models, duplicates among them; commits, aborts,
    sessions that cannot be encoded (their events are taken back), a cache that holds two rows: what is stored
    is what a naive count of the committed journal gives."""
    rng = random.Random(11)
    bench = Bench(store, cache_bytes_max=5_000)
    real = seal.encode_snapshot
    bad: set[tuple[str, int]] = set()
    monkeypatch.setattr(
        seal,
        "encode_snapshot",
        lambda session: _refuse() if (session.session, session.seq) in bad else real(session),
    )
    sent: list[tuple[str, bytes, int]] = []
    now, taken_back, aborted = T0, 0, 0
    for _ in range(150):
        since = len(sent)
        for _ in range(rng.randrange(1, 12)):
            now += rng.choice((0, 3, 2_000, 90_000))
            session = rng.choice(SESSIONS)
            names = {"model": rng.choice(MODELS), "subject": rng.choice(("bob", "ada"))}
            kind = rng.choice(("UsageRecorded",) * 6 + ("UsageAdmitted", "UsageReleased"))
            fields: dict[str, Any] = {"lease_id": rng.choice("xy")}
            if kind == "UsageRecorded":
                at = rng.choice((None, now - 70_000, now - 10**7, now + 10**6))
                fields = {"input": rng.randrange(99), "at_ms": at}
            elif kind == "UsageAdmitted":
                fields["lease_ms"] = rng.choice((5_000, 10**6))
            sent.append((session, value(len(sent), session, kind, **names, **fields), now))
            if rng.random() < 0.2 and len(sent) > 20:
                sent.append((*rng.choice(sent[-20:])[:2], now))
        for one in sent[since:]:
            bench.fold(*one)
        if rng.random() < 0.15:
            aborted += 1
            bench.abort()
            for one in sent[since:]:
                bench.fold(*one)
        if rng.random() < 0.1:
            touched = list(bench.current.parts[PARTITION].touched.values())
            session_bad = touched[rng.randrange(len(touched))].entry.session
            if session_bad.status == "open":
                taken_back += 1
                bad.add((session_bad.session, session_bad.seq))
        await bench.commit()
        if taken_back == len(SESSIONS) - 1:
            bad.clear()
    assert taken_back >= 3
    assert aborted >= 10
    assert len({entry.env.type for entry in bench.committed}) == 5
    assert bench.check(now) == 4
    # The same from the disk alone, as after a restart.
    again = Bench(store)
    again.committed, again.offset = bench.committed, bench.offset
    again.fold(SESSIONS[0], value(10**6, SESSIONS[0], subject="bob"), now)
    again.abort()
    assert again.check(now) == 4
    assert bench.usages.bytes <= 20_000


def _refuse() -> bytes:
    raise InvariantViolation("too large, or whatever")


async def test_w3_what_is_taken_back_is_written_as_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session's events are taken back, also those that had pushed old hops out; another's stay."""
    bench = Bench(store)
    good, evil = SESSIONS[:2]
    bench.fold(good, value(1, good, input=5), T0)
    await bench.commit()
    before = store.side(usage_key(TENANT, "ada", "m"))
    real = seal.encode_snapshot
    monkeypatch.setattr(
        seal,
        "encode_snapshot",
        lambda session: _refuse() if session.session == evil and session.status == "open" else real(session),
    )
    bench.fold(evil, value(2, evil, input=7), T0 + 10 * ROW_MS_MAX)
    assert await bench.commit() == [usage_key(TENANT, "ada", "m")]
    assert store.side(usage_key(TENANT, "ada", "m")) == before
    bench.fold(good, value(3, good, input=11), T0 + 1)
    await bench.commit()
    row = decode_usage(store.side(usage_key(TENANT, "ada", "m")))
    assert (row.records, row.totals[1]) == (2, 16)
    assert bench.check(T0 + 1) == 1


async def test_a_duplicate_and_a_refused_event_count_nothing(store: Store) -> None:
    bench = Bench(store)
    session = SESSIONS[0]
    assert isinstance(bench.fold(session, value(1, session), T0).ruling, Accepted)
    assert isinstance(bench.fold(session, value(1, session), T0).ruling, Duplicate)
    refused = bench.fold(session, value(2, session, input=-1), T0).ruling
    assert isinstance(refused, Rejected)
    assert refused.code == "bad_value"
    nobody = bench.fold(session, value(3, session, subject=""), T0).ruling
    assert isinstance(nobody, Rejected)
    assert nobody.code == "bad_id"
    await bench.commit()
    assert decode_usage(store.side(usage_key(TENANT, "ada", "m"))).records == 1
    assert bench.usages.take_counts() == {"UsageRecorded": 1, "late": 0, "future": 0}


async def test_w4_rows_that_are_over_are_removed_and_others_stay(store: Store) -> None:
    """What the next event would begin anew goes, by the inbox's own clock; what has been folded since stays;
    the next event then makes the row it would have made anyway."""
    bench = Bench(store)
    session = SESSIONS[0]
    for number, (model, at) in enumerate([("old", T0), ("again", T0), ("kept", T0 + ROW_MS_MAX)]):
        bench.fold(session, value(number, session, model=model), at)
    await bench.commit()
    now = T0 + ROW_MS_MAX + 1
    over, after = Usages.over(store, b"", now)
    assert {row.model for row in over} == {"old", "again"}
    assert after == b""
    bench.fold(session, value(7, session, model="again"), now)
    part = bench.current.part(PARTITION, 1, bench.offset)
    gone = [row.model for row in over if bench.usages.expire(bench.current, part, row, now)]
    assert gone == ["old"]
    await bench.commit()
    assert store.side(usage_key(TENANT, "ada", "old")) is None
    assert decode_usage(store.side(usage_key(TENANT, "ada", "again"))).records == 1
    bench.fold(session, value(8, session, model="old"), now + SWEEP_MARGIN_MS)
    await bench.commit()
    assert decode_usage(store.side(usage_key(TENANT, "ada", "old"))).records == 1


class Sweeping(UsageSweep):
    """The sweep's surroundings, by hand: a bench instead of an engine."""

    def __init__(self, bench: Bench, ruled_ms: int) -> None:
        self.sides = bench.sides
        self.assignment = bench.assignment
        self.stopping = False
        self.owner = next(iter(bench.assignment))
        self.owner.ruled_ms = ruled_ms
        self.owner.position, self.owner.batches_position = bench.offset, 0
        self.owner.state = State.LIVE
        self.bench = bench
        self._go, self._dirty = asyncio.Event(), asyncio.Event()
        self._go.set()

    @property
    def current(self) -> Overlay:  # type: ignore[override]
        return self.bench.current

    async def on_disk(self, work: Callable[[], Any]) -> Any:
        return work()

    def _arrives(self, now: float) -> None: ...

    async def _fold_from(self, chunk: Any, at: int) -> int:
        raise AssertionError

    async def _serve(self, owner: Any, restored: Any, warmer: Any) -> None:
        raise AssertionError

    def _let_go(self) -> None:
        raise AssertionError


async def test_w4_a_sweep_removes_by_the_inbox_clock_in_a_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: tombstones go with a commit; an hour's margin for what is forwarded late; several goes; nothing
    while nothing was ruled on, or the partition is given up."""
    monkeypatch.setattr("refold.engine.usage.SWEEP_ROWS", 3)
    bench = Bench(store)
    session = SESSIONS[0]
    for number in range(10):
        bench.fold(session, value(number, session, model=f"m{number}"), T0 + number)
    await bench.commit()
    over = T0 + ROW_MS_MAX + SWEEP_MARGIN_MS
    for ruled_ms, state, removed in (
        (0, State.LIVE, 0),
        (over + 5, State.REVOKED, 0),
        (over + 5, State.LIVE, 5),
    ):
        sweep = Sweeping(bench, ruled_ms)
        sweep.owner.state = state
        assert await sweep.sweep_usage(sweep.owner) == removed
        assert sweep._dirty.is_set() == bool(removed)
    assert len(await bench.commit()) == 5
    left = [decode_usage(record).model for _, record in store.side_range(b"usage#", b"usage$", 99)]
    assert left == [f"m{number}" for number in range(5, 10)]
    assert await sweep.sweep_usage(sweep.owner) == 0


async def test_a_subjects_models_are_one_range(store: Store) -> None:
    """Names may hold what separates keys."""
    bench = Bench(store)
    session = SESSIONS[0]
    for number, (subject, model) in enumerate(
        [("a", "m"), ("a", "x/y"), ("a#m", "z"), ("a$", "m"), ("b", "m"), ("a", "#")]
    ):
        bench.fold(session, value(number, session, subject=subject, model=model), T0)
    await bench.commit()
    first, end = usage_range(TENANT, "a")
    assert {decode_usage(record).model for _, record in store.side_range(first, end, 10)} == {"m", "x/y", "#"}


@pytest.mark.parametrize("model", ["m", ANY_MODEL])
async def test_rows_that_readers_cannot_be_given_have_their_partition_restored(
    store: Store, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Goal: a bad block that only a reader's walk over usage meets is told as any other is, instead of
    failing every such request until the fold comes by."""
    told: list[UnreadableStore] = []
    store.on_unreadable = told.append

    def fails(*_: Any) -> Any:
        raise UnreadableStore("planted", store.path)

    monkeypatch.setattr(store, "side_range", fails)
    monkeypatch.setattr(store, "_db", SimpleNamespace(get=fails, close=store._db.close))
    with pytest.raises(UnreadableStore) as raised:
        read_usage(TENANT, "a", model, [(PARTITION, store)])
    assert told == [raised.value]

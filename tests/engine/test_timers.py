"""Timers (rules K): rows that follow the sessions, bounds that never miss one, proposals that are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.test_holding import Nothing, until
from engine.test_store import KEY, PARTITION, TENANT, Bench, event
from refold.core.session import Session
from refold.engine import seal, ticks, timers
from refold.engine.assignment import Assignment, Partition
from refold.engine.cache import Entry, SessionCache
from refold.engine.config import EngineConfig
from refold.engine.history import EMPTY
from refold.engine.lifecycle import Reopened, State
from refold.engine.overlay import Overlay, PartitionOverlay
from refold.engine.plan import Written
from refold.engine.sides import Sides
from refold.engine.store import Batch, Memory, Store, UnreadableStore
from refold.engine.ticks import STALE_AFTER, TimerTicks
from refold.engine.timers import (
    AGAIN_S,
    DEADLINE_MS_MAX,
    DOUBLINGS_MAX,
    NEVER_MS,
    TICK_S,
    Timers,
    look,
    proposal,
    timer_key,
)
from refold.errors import InvariantViolation
from refold.topology.names import TopicNames
from refold.wire.envelope import decode_envelope
from refold.wire.timers import Armed, decode_timer, encode_timer

T0 = 1_800_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "p0", Memory())
    yield opened
    opened.close()


# --- rows follow sessions ----------------------------------------------------------------------------------


class Armable(Bench):
    """``arm`` stands for an event that sets the deadline."""

    def session(self) -> Session:
        entry = self.sessions.cached(KEY)
        assert entry is not None
        session: Session = entry.session
        return session

    def arm(self, deadline_ms: int) -> None:
        self.fold(event(self.offset + 1))
        self.session().timer_ms = deadline_ms
        self.session().enc_tail = None

    async def commit(self) -> dict[bytes, bytes | None]:
        """Its timer rows."""
        await self.begin_commit()
        self.write()
        assert self.inflight is not None
        part = self.inflight.parts[PARTITION]
        batch, written = Batch(), {}
        for key, row in part.side.items():
            written[key] = row.encoded
            if row.encoded is None:
                batch.delete_side(key)
            else:
                batch.put_side(key, row.encoded)
        self.store.write(batch)
        for row in part.side.values():
            row.confirm()
        for touched in part.touched.values():
            touched.entry.unconfirmed -= 1
        self.inflight = None
        return written

    def rows(self) -> dict[bytes, Armed]:
        return {k: decode_timer(v) for k, v in self.store.side_range(b"timer#", b"timer$", 100)}


def armed(deadline_ms: int) -> dict[bytes, Armed]:
    return {timer_key(deadline_ms, KEY): Armed(TENANT, "s1", deadline_ms)}


async def test_a_row_is_there_while_the_deadline_is(store: Store) -> None:
    """Goal: rule K2, and that a session whose deadline stays costs nothing. Method: arm, go on, put it off,
    put it off and back within one commit, disarm."""
    bench = Armable(store)
    bench.fold(event(1))
    assert await bench.commit() == {}
    bench.arm(T0 + 5)
    assert await bench.commit() == {timer_key(T0 + 5, KEY): encode_timer(Armed(TENANT, "s1", T0 + 5))}
    assert bench.rows() == armed(T0 + 5)
    bench.fold(event(20))
    assert await bench.commit() == {}
    bench.arm(T0 + 7)
    assert list(await bench.commit()) == [timer_key(T0 + 5, KEY), timer_key(T0 + 7, KEY)]
    assert bench.rows() == armed(T0 + 7)
    bench.arm(T0 + 9)
    bench.arm(T0 + 7)
    assert await bench.commit() == {}
    bench.arm(0)
    assert await bench.commit() == {timer_key(T0 + 7, KEY): None}
    assert bench.rows() == {}


async def test_a_row_is_known_after_a_restart(store: Store) -> None:
    """Goal: who loads a session knows for what its row was written."""
    first = Armable(store)
    first.arm(T0)
    await first.commit()
    second = Armable(store)
    second.offset = first.offset
    second.fold(event(40))
    assert await second.commit() == {}
    second.arm(T0 + 1)
    assert list((await second.commit()).values()).count(None) == 1
    assert second.rows() == armed(T0 + 1)


async def test_an_abort_forgets_what_was_written_for(store: Store) -> None:
    """Goal: rule A. Method: seal, discard as after an abort, fold again: the rows are written again."""
    bench = Armable(store)
    bench.arm(T0)
    await bench.begin_commit()
    assert bench.inflight is not None
    bench.sessions.cache.discard(bench.inflight.keys())
    for _, row in bench.inflight.side_rows():
        row.discard()
    bench.inflight, bench.offset = None, 0
    bench.arm(T0)
    assert list(await bench.commit()) == [timer_key(T0, KEY)]


async def test_a_deletion_takes_the_row(store: Store) -> None:
    bench = Armable(store)
    bench.arm(T0)
    await bench.commit()
    bench.fold(None)
    assert await bench.commit() == {timer_key(T0, KEY): None}


async def test_a_quarantine_at_the_seal_takes_the_deadline_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the row is that of the session as it is committed. Method: the event that armed is taken back;
    what is quarantined has no deadline."""
    bench = Armable(store)
    bench.arm(T0)
    await bench.commit()
    real = seal.encode_snapshot

    def broken(session: Session) -> bytes:
        if session.status == "open":
            raise InvariantViolation("too large, or whatever")
        return real(session)

    monkeypatch.setattr(seal, "encode_snapshot", broken)
    bench.arm(T0 + 1)
    assert await bench.commit() == {timer_key(T0, KEY): None}
    assert bench.session().timer_ms == 0
    assert bench.rows() == {}


# --- bounds ------------------------------------------------------------------------------------------------


def part() -> PartitionOverlay:
    return PartitionOverlay(PARTITION, 1, 0)


def write(store: Store, *deadlines: int, key: bytes = KEY) -> None:
    batch = Batch()
    tenant, session = key.decode().split("/")
    for deadline in deadlines:
        batch.put_side(timer_key(deadline, key), encode_timer(Armed(tenant, session, deadline)))
    store.write(batch)


def test_rows_are_looked_through_in_the_order_of_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a bound is never later than a row; at most so many are taken at once."""
    assert look(store, 0, T0) == ({}, NEVER_MS)
    write(store, T0 + 3, T0 + 2, T0 + 1, 7)
    rows, bound = look(store, 0, T0 + 2)
    assert [row.deadline_ms for row in rows.values()] == [7, T0 + 1, T0 + 2]
    assert bound == 7
    assert look(store, 0, 6) == ({}, 7)
    rows, bound = look(store, 8, T0 + 2)
    assert [row.deadline_ms for row in rows.values()] == [T0 + 1, T0 + 2]
    monkeypatch.setattr(timers, "DUE_MAX", 2)
    rows, bound = look(store, 0, T0 + 9)
    assert [row.deadline_ms for row in rows.values()] == [7, T0 + 1]
    write(store, DEADLINE_MS_MAX + 100, key=b"t/later")
    assert look(store, T0 + 4, T0 + 5) == ({}, DEADLINE_MS_MAX)


async def test_what_is_armed_while_the_disk_is_read_is_not_missed() -> None:
    made = Timers()
    made.unknown(0)
    assert made.wanted.is_set()
    assert made.due(5) == [(0, 0)]
    made.look_begins(0)
    made.armed(0, T0 + 5)
    made.look_ends(0, T0 + 50)
    assert made.due(T0 + 4) == []
    assert made.due(T0 + 5) == [(0, T0 + 5)]
    made.look_begins(0)
    made.look_ends(0, NEVER_MS)
    assert not made.wanted.is_set()
    made.armed(0, T0)
    made.armed(0, T0 + 1)
    assert made.due(T0) == [(0, T0)]
    made.discard_partition(0)
    assert (made.due(NEVER_MS), made.wanted.is_set()) == ([], False)


async def test_nobody_waits_longer_than_a_tick_or_the_deadline() -> None:
    made = Timers()
    made.armed(0, T0 + 300)
    assert made.pause_s(T0) == pytest.approx(0.3)
    assert made.pause_s(T0 - 60_000) == TICK_S
    assert made.pause_s(T0 + 300) == TICK_S


async def test_a_proposal_is_made_again_ever_later() -> None:
    """Goal: rule K4: at most one proposal of a row is on its way, but for those that were in vain."""
    made, key = Timers(), timer_key(T0, KEY)
    assert list(made.to_ask(0, [key], 100.0)) == [(key, 0)]
    assert list(made.to_ask(0, [key], 100.0 + AGAIN_S - 0.1)) == []
    now, waits = 100.0, []
    for times in range(1, 12):
        step = next(s for s in range(1, 2_000) if made._asked[0][key].again <= now + s)
        now += step
        waits.append(step)
        assert list(made.to_ask(0, [key], now)) == [(key, times)]
    assert waits == [AGAIN_S * 2 ** min(n, DOUBLINGS_MAX) for n in range(11)]
    made.gone(0, key)
    assert list(made.to_ask(0, [key], now)) == [(key, 0)]
    assert list(made.to_ask(0, [], now)) == []
    assert made._asked[0] == {}


def test_every_proposal_of_a_deadline_is_the_same_event() -> None:
    one = proposal(KEY, Armed(TENANT, "s1", T0))
    assert one == proposal(KEY, Armed(TENANT, "s1", T0))
    env = decode_envelope(one)
    assert (env.type, env.event_time_ms, env.tenant, env.session) == ("TimerFired", T0, TENANT, "s1")
    other = decode_envelope(proposal(b"acme/s2", Armed(TENANT, "s2", T0)))
    assert other.event_id != env.event_id


# --- proposals ---------------------------------------------------------------------------------------------


class Counted(Nothing):
    def __init__(self) -> None:
        self.proposed = 0

    def count(self, _name: str, amount: float = 1, **_: str) -> None:
        self.proposed += int(amount)


class Ticking(TimerTicks):
    """The ticking part of an engine, on a store; no time passes but ``now``."""

    def __init__(self, store: Store, tmp_path: Path) -> None:
        self.config = EngineConfig(kafka={}, prefix="t", instance="a", data_dir=tmp_path)
        self.assignment = Assignment()
        self.sides = Sides(TopicNames("t"), self.assignment)
        self.cache = SessionCache(100_000)
        self.current = Overlay()
        self.stopping = False
        self.now = T0
        self.lost: list[Reopened] = []
        self._log = Nothing()
        self._metrics = self.counted = Counted()  # type: ignore[assignment]
        self._dirty = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._disk_pool = ThreadPoolExecutor(1)
        self._restorer = self  # type: ignore[assignment]
        self.owner = self.assignment.add(PARTITION, 1)
        self.owner.written = Written(store, "ts", "th", "tg", 0, 0, 0)
        self.owner.position = 17
        self.owner.state = State.LIVE
        self.sides.timers.unknown(PARTITION)

    def now_ms(self) -> int:
        return self.now

    def distrust(self, owner: Partition, written: Written, error: Any, why: Reopened) -> None:
        assert owner.written is written
        self.lost.append(why)

    async def _serve(self, *_: Any) -> None: ...
    async def _fold_from(self, *_: Any) -> int:
        return 0

    def _arrives(self, now: float) -> None: ...
    def _let_go(self) -> None: ...

    async def tick(self) -> list[tuple[str, int, bytes | None]]:
        """What one look proposes."""
        for number, bound in self.sides.timers.due(self.now):
            owner = self.assignment.get(number)
            assert owner is not None
            if owner.written is not None and self._proposes(owner, owner.written):
                await self._look_through(owner, owner.written, bound, self.now)
        parts = self.current.parts.values()
        return [(out.topic, out.partition, out.key) for part in parts for out in part.outputs]


@pytest.fixture
async def ticking(store: Store, tmp_path: Path) -> Ticking:
    return Ticking(store, tmp_path)


async def test_what_is_due_is_proposed_with_the_offset_of_its_partition(
    ticking: Ticking, store: Store
) -> None:
    """Goal: rules K3 and F."""
    write(store, T0 - 5)
    write(store, T0 + 5, key=b"acme/s2")
    assert await ticking.tick() == [("t.inbox", PARTITION, KEY)]
    assert ticking.current.parts[PARTITION].offset == 17
    assert ticking._dirty.is_set()
    ticking.current = Overlay()
    assert await ticking.tick() == []
    assert not ticking.current.parts, "no commit for nothing"
    ticking.now = T0 + 5
    assert await ticking.tick() == [("t.inbox", PARTITION, b"acme/s2")]
    assert ticking.counted.proposed == 2


@pytest.mark.parametrize("state", [s for s in State if s is not State.LIVE])
async def test_only_what_is_live_is_looked_through(ticking: Ticking, store: Store, state: State) -> None:
    """Goal: what restores, also where it is served meanwhile, has not all that was committed; and what is
    given up is another's."""
    write(store, T0 - 5)
    ticking.owner.state = state
    assert await ticking.tick() == []


@pytest.mark.parametrize("what", ["given up", "opened anew", "revoked", "stopping"])
async def test_nothing_is_proposed_for_what_is_lost_while_the_disk_is_read(
    ticking: Ticking, store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    write(store, T0 - 5)
    owner = ticking.owner
    done: dict[str, Callable[[], Any]] = {
        "given up": lambda: ticking.assignment.forget(owner),
        "opened anew": lambda: setattr(owner, "written", Written(store, "ts", "th", "tg", 0, 0, 0)),
        "revoked": lambda: owner.move(State.REVOKED),
        "stopping": lambda: setattr(ticking, "stopping", True),
    }
    real = ticks.look

    def looking(*given: Any) -> Any:
        found = real(*given)
        ticking._loop.call_soon_threadsafe(done[what])
        return found

    monkeypatch.setattr(ticks, "look", looking)
    assert await ticking.tick() == []


@pytest.mark.parametrize("noticed", [True, False], ids=["as it is", "control"])
async def test_a_deadline_that_is_written_while_another_partition_is_looked_through_is_not_missed(
    ticking: Ticking, store: Store, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    """Goal: rule K4 while much is due: a deadline that has come already is armed in front of the bound with
    which its partition waits for its look. Method: arm it at the end of the look before; and begin where the
    round began, as a control."""
    other = ticking.assignment.add(PARTITION + 1, 2)
    other.written, other.state, other.position = ticking.owner.written, State.LIVE, 0
    timers_of = ticking.sides.timers
    timers_of.armed(other.number, T0 - 5)
    write(store, T0 - 5)
    real = ticks.look

    def confirmed() -> None:
        write(store, T0 - 9, key=b"acme/s2")
        timers_of.armed(other.number, T0 - 9)

    def looking(*given: Any) -> Any:
        found = real(*given)
        if not ticking.current.parts:
            ticking._loop.call_soon_threadsafe(confirmed)
        return found

    monkeypatch.setattr(ticks, "look", looking)
    if not noticed:
        monkeypatch.setattr(timers_of, "look_begins", lambda _number: NEVER_MS)
    proposed = [key for _, number, key in await ticking.tick() if number == other.number]
    assert (b"acme/s2" in proposed) == noticed
    assert ((other.number, T0 - 9) in timers_of.due(ticking.now)) == noticed


async def test_a_store_that_cannot_be_read_is_told_on_the_loop(
    ticking: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looking(*_: Any) -> Any:
        raise UnreadableStore("the disk", Path("p"))

    monkeypatch.setattr(ticks, "look", looking)
    assert await ticking.tick() == []
    assert ticking.lost == [Reopened.READ]


async def test_a_row_of_a_session_that_has_no_such_deadline_goes(ticking: Ticking, store: Store) -> None:
    """Goal: rows that an earlier build has left behind are not proposed for ever; a session that is about to
    be committed is not judged."""
    write(store, T0 - 5)
    key, made = timer_key(T0 - 5, KEY), ticking.sides.timers
    entry = Entry(KEY, PARTITION, Session(TENANT, "s1"), EMPTY, 0)
    entry.unconfirmed = 1
    ticking.cache.put(entry)
    for _ in range(STALE_AFTER + 1):
        ticking.current = Overlay()
        assert len(await ticking.tick()) == 1
        made._asked[PARTITION][key].again = 0.0
    entry.unconfirmed = 0
    ticking.current = Overlay()
    assert await ticking.tick() == []
    assert {k: row.encoded for k, row in ticking.current.parts[PARTITION].side.items()} == {key: None}
    entry.session.timer_ms = T0 - 5
    made._asked[PARTITION][key].again = 0.0
    ticking.current = Overlay()
    assert len(await ticking.tick()) == 1
    ticking.cache.discard([KEY])
    made._asked[PARTITION][key].again = 0.0
    ticking.current = Overlay()
    assert await ticking.tick() == [], "the store has no such session"


async def test_a_session_that_cannot_be_read_ends_the_look(
    ticking: Ticking, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the read itself has its partition restored; the task that proposes goes on."""
    write(store, T0 - 5)
    for _ in range(STALE_AFTER):
        assert len(await ticking.tick()) == 1
        ticking.current = Overlay()
        ticking.sides.timers._asked[PARTITION][timer_key(T0 - 5, KEY)].again = 0.0

    def row(_key: bytes) -> bytes:
        raise UnreadableStore("the disk", Path("p"))

    ticking.owner.written = Written(SimpleNamespace(row=row), "ts", "th", "tg", 0, 0, 0)  # type: ignore[arg-type]
    monkeypatch.setattr(ticks, "look", lambda *given: timers.look(store, *given[1:]))
    assert await ticking.tick() == []


async def test_who_has_no_timers_has_no_ticks(ticking: Ticking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: after one look at an empty partition the task sleeps until something is armed."""
    looks = 0
    real = ticks.look

    def looking(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        return real(*given)

    monkeypatch.setattr(ticks, "look", looking)
    monkeypatch.setattr(timers, "TICK_S", 0.001)
    task = asyncio.ensure_future(ticking._tick())
    await until(lambda: looks > 0 and not ticking.sides.timers.wanted.is_set(), "the first look")
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert looks == 1
    ticking.sides.timers.armed(PARTITION, T0)
    await until(lambda: looks > 1, "the second look")
    task.cancel()

"""What the simulator found in the engine when it was built, each as a scenario of its own.

Each test shows first that the scenario still finds the mistake when the remedy is taken away (or that it was
really met), so that a change of the engine cannot make it vacuous.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from length import cases
from refold.engine import poll, seal
from refold.engine.cache import Entry, SessionCache
from refold.engine.commitmeta import GroupMeta, read_group_meta
from refold.engine.engine import Engine
from refold.engine.lifecycle import Reopened, State
from refold.engine.overlay import Overlay
from refold.engine.poll import Poller
from refold.errors import StorageError

from .faults import only
from .parameters import Parameters, Result
from .placements import make_inbox
from .worker import Worker
from .world import World

#: Restart within the session timeout: the static member comes back before the group has missed it.
AT_ONCE = (20_000, 60_000)


def first_at(point: str, action: str, nth: int = 1) -> Any:
    reached = 0

    def scenario(worker: Worker, name: str, when: str) -> str | None:
        nonlocal reached
        reached += name == point
        return action if name == point and reached == nth else None

    return scenario


def revoke_death(seed: int) -> Result:
    parameters = Parameters(seed=seed, ticks=0, workers=2, partitions=4, events=0, restart_us=AT_ONCE)
    inbox = make_inbox(5, 20, partitions=4, sessions=4)
    return World(parameters, scenario=first_at("on_revoke", "kill"), inbox=inbox).run()


def test_partitions_given_up_by_a_member_that_died_find_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a static member that dies inside of on_revoke and is back before its session ends leaves no
    partition without an owner. Method: kill it there; liveness; and once without the second join, as a
    control."""
    results = [revoke_death(seed) for seed in range(1, 9)]
    assert [r.failures for r in results] == [[]] * 8
    died = [r for r in results if r.happened["kill at on_revoke"]]
    assert len(died) >= 4
    monkeypatch.setattr(Poller, "_ask_for_round", lambda self: None)
    controls = (revoke_death(r.parameters.seed) for r in died)
    assert any(f.startswith("liveness: ") for r in controls for f in r.failures[:1])


def evicted_while_stopped(seed: int) -> Result:
    """A worker is removed from the group while it stands still for less than its session timeout; others take
    its partitions; it wakes and the first thing it asks for is to join."""
    parameters = Parameters(seed=seed, ticks=0, workers=2, partitions=2, events=0)
    inbox = make_inbox(6, 40, partitions=2, sessions=4)
    begun: dict[str, int] = {}

    def scenario(worker: Worker, name: str, when: str) -> str | None:
        if name != "after_begin" or worker.instance != "w0":
            return None
        begun["w0"] = begun.get("w0", 0) + 1
        consumer = worker.consumer
        if begun["w0"] != 3 or consumer is None or len(world.broker.group.members) < 2 or not worker.owned():
            return None
        world.happened["evicted while stopped"] += 1
        world.broker.group.remove(consumer.member_id, "evicted")
        consumer.ask_to_join()
        return "stop"

    world = World(parameters, scenario=scenario, inbox=inbox)
    return world.run()


def test_a_membership_that_changed_in_silence_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a removed static member whose next request is JoinGroup gets a new membership without on_lost; it
    must not commit for what it still believes to own. Method: see ``evicted_while_stopped``; and without the
    guard, as a control."""
    results = [evicted_while_stopped(seed) for seed in range(1, 31)]
    assert [r.failures for r in results] == [[]] * 30
    met = [r for r in results if r.happened["evicted while stopped"] and r.happened["woken after takeover"]]
    assert len(met) >= 5
    assert any(r.happened["exit FencedError"] for r in met)
    real = read_group_meta
    monkeypatch.setattr(
        poll,
        "read_group_meta",
        lambda opaque: GroupMeta(real(opaque).generation, real(opaque).member_id and "same"),
    )
    controls = [evicted_while_stopped(r.parameters.seed) for r in met]
    assert any(r.failures for r in controls)
    assert all(
        r.failures[0].startswith(("offsets: ", "once: ", "fold: ", "restore: "))
        for r in controls
        if r.failures
    )


def shuffled(seed: int) -> Result:
    plan = only("shuffle_per_s", factor=3.0)
    return World(Parameters(seed=seed, ticks=2_500, events=120, plan=plan, plan_name="shuffle")).run()


def test_a_revoke_and_the_commit_it_waits_for_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the commit in flight gets group metadata while the polling thread stands in on_revoke. Method:
    partitions move while commits are under way; and with a polling thread that is deaf in callbacks, as a
    control."""
    results = [shuffled(seed) for seed in range(1, 13)]
    assert [r.failures for r in results] == [[]] * 12
    assert sum(r.happened["refold_commit_aborts_total{reason=resent}"] for r in results) >= 5
    hearing = Poller.serve_metadata

    def deaf(self: Poller) -> None:
        if not self._consumer.in_callback:
            hearing(self)

    monkeypatch.setattr(Poller, "serve_metadata", deaf)
    assert any(shuffled(seed).failures for seed in range(1, 13))


def pressed(seed: int) -> Result:
    world = World(Parameters(seed=seed, ticks=1_500, sessions=10, events=150, pause_us=2_000))
    world.cache_bytes_max = 6_000
    return world.run()


def test_a_full_cache_never_evicts_the_session_being_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: where all the cache holds is unconfirmed, a session just read keeps what is folded into it.

    Method: a cache for two sessions; and with the old order of insertion and eviction, as a control.
    """
    results = [pressed(seed) for seed in range(1, 9)]
    assert [r.failures for r in results] == [[]] * 8

    def put(self: SessionCache, entry: Entry) -> None:
        self.discard([entry.key])
        self._entries[entry.key] = entry
        self.bytes += entry.size
        self.confirmed()

    monkeypatch.setattr(SessionCache, "put", put)
    assert any(f.startswith("fold: ") for seed in range(1, 9) for f in pressed(seed).failures[:1])


def failing_write(number: int, seed: int) -> Result:
    """The ``number``-th batch of the whole run cannot be written."""
    parameters = Parameters(
        seed=seed, ticks=1_500, events=60, plan=only("shuffle_per_s", factor=3.0), plan_name="shuffle"
    )
    world = World(parameters)
    writes = 0

    def fails() -> bool:
        nonlocal writes
        writes += 1
        if writes != number:
            return False
        world.struck["write_failure"] += 1
        return True

    for worker in world.workers:
        worker.disk.fails = fails

    return world.run()


def test_any_single_disk_write_may_fail() -> None:
    """Goal: a RocksDB write that fails closes and restores its partition, also when it is the write of a
    claim or of a commit that a revoke waits for; nothing else ends. Method: fail every write of a short run,
    one run each; of two such runs, every second one of each."""
    reopened, hit = 0, 0
    for seed in (1, 2):
        for number in range(seed, 26, cases(2, 1)):
            result = failing_write(number, seed)
            assert result.failures == [], (seed, number)
            hit += result.faults["write_failure"]
            reopened += result.happened["store_write_failed"]
    assert hit >= cases(20, 40)
    assert reopened >= cases(10, 20)


class _BadDisk:
    """Before every second seal is over, the store of a partition that is not in it is found bad: a flush on a
    full disk, a block that a reader meets."""

    def __init__(self) -> None:
        self.found = self.sealed = 0

    def installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Another task's turn after every session.
        monkeypatch.setattr(seal, "SLICE_S", -1.0)
        real, disk = Engine._seal, self

        async def sealing(engine: Engine, overlay: Overlay) -> None:
            disk.sealed += 1
            if disk.sealed % 2:
                engine._spawn(disk.fail(engine, overlay))
            await real(engine, overlay)

        monkeypatch.setattr(Engine, "_seal", sealing)

    async def fail(self, engine: Engine, overlay: Overlay) -> None:
        await asyncio.sleep(0)
        if engine.inflight is not overlay or engine._go.is_set():
            return
        for owner in engine.assignment:
            written = owner.written
            if owner.state is State.LIVE and written is not None and owner.number not in overlay.parts:
                self.found += 1
                engine.distrust(owner, written, StorageError("planted"), Reopened.WRITE)
                return


def bad_disk(seed: int) -> Result:
    return World(Parameters(seed=seed, workers=1, sessions=40, events=600, pause_us=1_000)).run()


def test_nothing_is_folded_while_an_overlay_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a store that is found bad in the middle of a seal makes room for the fold, and yet nothing goes
    on before the seal is over: what is folded then would be in a state record and not in its commit's
    journal.

    Method: see ``_BadDisk``; and with a seal that is not noticed, as a control.
    """
    disk = _BadDisk()
    disk.installed(monkeypatch)
    assert [bad_disk(seed).failures for seed in range(1, 5)] == [[]] * 4
    assert disk.found >= 20

    def let_go(self: Engine) -> None:
        if not self._is_full(self.current):
            self._go.set()

    monkeypatch.setattr(Engine, "_let_go", let_go)
    assert any(f.startswith("fold: ") for seed in range(1, 9) for f in bad_disk(seed).failures[:1])

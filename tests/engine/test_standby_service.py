"""What is copied where and when: placement by the group's description, hand-over to restores and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from engine.standby_world import World, snapshot
from refold.engine.metrics import NoMetrics
from refold.engine.points import Points
from refold.engine.standby import roster, service
from refold.engine.standby.placement import Roster, kept_by
from refold.engine.standby.service import Standbys
from refold.engine.store import Store
from refold.errors import UnavailableError

PARTITIONS = 6


class Counted(NoMetrics):
    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[name + labels.get("partition", "")] = value

    def forget(self, name: str, **labels: str) -> None:
        self.gauges.pop(name + labels.get("partition", ""), None)


class Group:
    """What the group's description says; ``None``: it rebalances."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.metrics = Counted()
        self.said: Roster | None = None
        self.fails = False
        self.looks = 0
        monkeypatch.setattr(roster, "look", self._look)
        monkeypatch.setattr(
            roster, "stable_ends", lambda _admin, _topics, numbers: {n: world.log.stable(n) for n in numbers}
        )
        monkeypatch.setattr(service, "LOOK_S", 0.02)
        monkeypatch.setattr(service, "MEMBERS_S", 0.02)
        #: As of :class:`refold.engine.takeover.Cluster`.
        self.marks = world.log.marks

    def _look(self, *_arguments: Any) -> Roster | None:
        self.looks += 1
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return self.said

    async def looked(self) -> None:
        """Until what the description says by now was looked at and followed."""
        before = self.looks
        await until("two looks", lambda: self.looks > before + 1)

    def owned(self, **owners: list[int]) -> None:
        self.said = Roster(frozenset(owners), {n: name for name, numbers in owners.items() for n in numbers})

    @asynccontextmanager
    async def standbys(self, k: int = 1) -> AsyncIterator[Standbys]:
        config = self.world.config
        object.__setattr__(config, "standby_replicas", k)
        made = Standbys(
            config,
            None,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.world.restorer,
            PARTITIONS,
            Points(),
            self.metrics,
            self.world.said,
        )
        running = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            made.stop()
            await running
            await made.stopped(20)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    world = World(tmp_path, monkeypatch)
    world.end()
    for number in range(PARTITIONS):
        world.log.state(number, "s", number + 1)
    return Group(world, monkeypatch)


async def until(what: str, holds: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 - other threads make it true
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


def copied(standbys: Standbys) -> set[int]:
    return {row.partition for row in standbys.partitions()}


async def test_copies_follow_the_groups_description(group: Group) -> None:
    """S1: made where the placement says, ended where it says no more; while the group rebalances, cannot be
    asked or does not know us, what is there stays."""
    group.owned(a=[0, 1], b=[2, 3], c=[4, 5])
    async with group.standbys() as standbys:
        assert group.said is not None
        wanted = kept_by("a", group.said, PARTITIONS, 1)
        assert wanted
        await until("the copies", lambda: copied(standbys) == wanted)
        for change in ("rebalances", "fails", "not a member"):
            group.fails = change == "fails"
            group.said = Roster(frozenset({"b"}), {}) if change == "not a member" else None
            await group.looked()
            assert copied(standbys) == wanted
        group.fails = False
        group.owned(a=[0, 1], b=[2, 3, 4, 5])
        await until("all that a does not own", lambda: copied(standbys) == {2, 3, 4, 5})
        await until(
            "the reports", lambda: group.metrics.gauges.get("refold_standby_age_seconds5") is not None
        )
        await until("the count", lambda: group.metrics.gauges["refold_standby_partitions"] == 4)
        group.owned(b=[0, 1, 2, 3, 4, 5], a=[])
        await until("all", lambda: copied(standbys) == set(range(PARTITIONS)))
        group.owned(a=[0, 1, 2, 3, 4, 5])
        await until("none", lambda: not copied(standbys))
        await until("the reports", lambda: "refold_standby_age_seconds5" not in group.metrics.gauges)
    said = group.world.said.of("standbys_unknown")
    assert len(said) <= 1


async def test_s3_what_is_assigned_is_not_copied_whatever_the_group_says(group: Group) -> None:
    """Goal: the description may be seconds old. From the assignment to the end of ownership the directory is
    the restore's and the engine's; before and after it is the copy's."""
    group.owned(a=[], b=list(range(PARTITIONS)))
    path = group.world.restorer.path
    async with group.standbys() as standbys:
        await until("the copies", lambda: copied(standbys) == set(range(PARTITIONS)))
        standbys.withhold([1, 2])
        await asyncio.gather(standbys.closed(1), standbys.closed(2))
        owned = [Store(path(number), group.world.memory) for number in (1, 2)]
        for _ in range(3):
            await group.looked()
        assert copied(standbys) == {0, 3, 4, 5}
        assert group.world.lost == []
        for number, store in zip((1, 2), owned, strict=True):
            store.close()
            standbys.permit(number)
        await until("the copies again", lambda: copied(standbys) == set(range(PARTITIONS)))
        # Nothing is open any more: as fast for one that was never copied.
        standbys.withhold([0])
        standbys.withhold([0])
        await standbys.closed(0)
        await standbys.closed(0)
        Store(path(0), group.world.memory).close()
    assert group.world.said.of("standby_lost") == []


async def test_a_hand_over_that_meets_the_opening_of_the_copy(group: Group) -> None:
    """Goal: withheld while the order to open it is on its way: closed before the restore goes on."""
    group.owned(a=[], b=list(range(PARTITIONS)))
    for _ in range(5):
        async with group.standbys() as standbys:
            await until("an order", lambda: bool(standbys._open))
            standbys.withhold(range(PARTITIONS))
            for number in range(PARTITIONS):
                await standbys.closed(number)
                Store(group.world.restorer.path(number), group.world.memory).close()
            assert copied(standbys) == set()


async def test_answers_are_as_old_as_they_say(group: Group) -> None:
    group.owned(a=[0], b=[1, 2, 3, 4, 5])
    async with group.standbys() as standbys:
        await until("an answer", lambda: standbys.answer(3, b"t/s") is not None)
        found = standbys.answer(3, b"t/s")
        assert found is not None
        assert (found.seq, found.snapshot, found.position) == (4, snapshot("s", 4), 1)
        absent = standbys.answer(3, b"t/none")
        assert absent is not None
        assert (absent.seq, absent.snapshot) == (0, None)
        assert standbys.answer(0, b"t/s") is None
        group.world.log.state(3, "s", 9)
        await until("the new record", lambda: (standbys.answer(3, b"t/s") or found).seq == 9)
        await until("a look at it", lambda: (standbys.answer(3, b"t/s") or found).behind == 0)
        row = next(row for row in standbys.partitions() if row.partition == 3)
        assert (row.state, row.progress, row.behind, row.lag, row.committed) == ("standby", 1.0, 0, None, -1)


async def test_a_copy_that_failed_is_begun_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: at once where the log or the clock was the reason, after a pause where it was the disk."""
    group.owned(a=[], b=list(range(PARTITIONS)))
    async with group.standbys() as standbys:
        await until("the copies", lambda: len(copied(standbys)) == PARTITIONS)
        before = len(group.world.said.of("standby_opened"))
        standbys._tail.close(2).result(20)
        standbys._lost(2, "too_old", None)
        await until("it to be opened again", lambda: len(group.world.said.of("standby_opened")) == before + 1)
        standbys._tail.close(2).result(20)
        standbys._lost(2, "disk", "no space left")
        await until("the pause", lambda: 2 in standbys._not_before)
        for _ in range(3):
            await group.looked()
        assert 2 not in copied(standbys)
        monkeypatch.setitem(standbys._not_before, 2, 0.0)
        await until("it to be tried again", lambda: 2 in copied(standbys))
    assert [fields["reason"] for fields in group.world.said.of("standby_lost")] == ["too_old", "disk"]


async def test_with_no_replicas_nothing_is_kept(group: Group) -> None:
    group.owned(a=[], b=list(range(PARTITIONS)))
    async with group.standbys(0) as standbys:
        await group.looked()
        assert standbys._roster is not None
        assert copied(standbys) == set()


async def test_a_partition_that_has_no_leader_stands_for_itself(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: its copy cannot be begun; the others are, and know their age. Before, the first of them kept all
    that come after it from being copied, and all from hearing of the ends: after a day that is rule Z."""
    group.owned(a=[], b=[0, 1, 2, 3, 4, 5])
    marks, leaderless = group.marks, 0

    def asked(number: int) -> Any:
        if number == leaderless:
            raise UnavailableError("no leader")
        return marks(number)

    group.marks = asked
    async with group.standbys() as standbys:
        await until("the others", lambda: copied(standbys) == set(range(1, PARTITIONS)))
        await until("their ages", lambda: all(row.age_s is not None for row in standbys.partitions()))
        group.marks = marks
        monkeypatch.setattr(service, "AGAIN_S", 0.0)
        standbys._not_before.clear()
        await until("all of them", lambda: copied(standbys) == set(range(PARTITIONS)))

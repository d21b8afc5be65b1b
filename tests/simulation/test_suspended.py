"""Goal: a machine that is suspended in the middle of a restore, for longer than deletions are kept, does not
bring a deleted session back.

Found by thinking about what the simulator's stops and compactions do to rule Z, and shown here: the copy was
young enough when it was judged; the process stood still while it read; the tombstone went; the rest was read
without it, and the frontier then said that the copy was of now. Its next restore trusted it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refold.core.envelope import Envelope
from refold.engine import rows
from refold.engine.commit import Transactor
from refold.engine.plan import Plan
from refold.engine.restore import Restorer
from refold.engine.warming.warmer import Warmer
from refold.errors import StorageError
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope

from . import seams
from .broker import DELETE_RETENTION_MS
from .parameters import Parameters
from .worker import Worker
from .workload import TENANT
from .world import QUIESCE_US_MAX, World

#: Beyond the first run of a restore, and so beyond the point at which it is stopped.
OTHERS = 20


def key(session: str) -> bytes:
    return f"{TENANT}/{session}".encode()


def message(number: int, session: str) -> bytes:
    row = {"message_id": f"m{number}", "role": "user", "content": [{"type": "text", "text": "x" * 900}]}
    payload = encode("refold.event.MessageAppended", row)
    env = Envelope(
        event_id=f"e{number}",
        tenant=TENANT,
        session=session,
        type="MessageAppended",
        event_time_ms=1,
        payload=payload,
    )
    return encode_envelope(env)


class Suspended(World):
    """w0 has a copy with session ``a``; w1 goes on and deletes it; w0 takes over and is suspended."""

    #: Whether w0 restores hot first.
    hot_first = False

    def __init__(self, seed: int) -> None:
        parameters = Parameters(
            seed=seed, ticks=0, workers=2, partitions=1, events=0, hot_first=self.hot_first
        )
        super().__init__(parameters, scenario=self._decide, inbox=())
        self.cache_bytes_max = self.overlay_bytes_max = 1_000_000
        self._armed = self.was_suspended = False

    def _decide(self, worker: Worker, name: str, when: str) -> str | None:
        if self._armed and name == "run_built" and worker is self.workers[0] and not self.was_suspended:
            self.was_suspended = True
            return "stop"
        return None

    def stop(self, worker: Worker) -> None:
        """Until told otherwise."""
        self.kernel.stop(worker.process)

    def _plan_restart(self, worker: Worker) -> None:
        """Told by the script."""

    def _until(self, condition: Callable[[], bool]) -> None:
        end = self.kernel.now_us + QUIESCE_US_MAX
        while not condition():
            assert self._step(), self.report.failures
            assert self.kernel.now_us < end

    def _put(self, session: str, value: bytes | None) -> None:
        self.broker.append(self.topics.inbox, 0, key(session), value, None)

    def play(self) -> list[str]:
        with seams.installed(self.kernel, self.broker, self.trouble, self.happened):
            try:
                self._play()
                return self.report.failures
            finally:
                self.kernel.shutdown()

    def _play(self) -> None:
        first, second = self.workers
        self._faults_on = False
        first.start()
        for number, session in enumerate("abc"):
            self._put(session, message(number, session))
        self._until(self._quiet)
        first.stop_gracefully()
        self._until(lambda: first.process.dead)
        self._group_forgets()
        second.start()
        self._go_on()
        self._until(self._quiet)
        self.kernel.stop(second.process)
        self._group_forgets()
        self._armed = True
        first.start()
        self._until(lambda: self.was_suspended)
        self._deletions_go()
        self._resume(first)

    def _deletions_go(self) -> None:
        self.kernel.wait(None, (DELETE_RETENTION_MS + 1_000) * 1_000)
        log = self.broker.log(self.topics.state, 0)
        self.broker.compact(self.topics.state, 0, log.end)
        assert key("a") not in {entry.key for entry in log.committed()}

    def _resume(self, worker: Worker) -> None:
        self.kernel.resume(worker.process)
        # Its restore may be through before it learns that the group has removed it.
        end = self.kernel.now_us + QUIESCE_US_MAX
        while not self._quiet() and self.kernel.now_us < end:
            if not self._step():
                return
        if not self._quiet():
            self.report.fail("liveness", "not quiet")

    def _go_on(self) -> None:
        for number in range(OTHERS):
            self._put(f"s{number}", message(100 + number, f"s{number}"))
        self._put("a", None)

    def _group_forgets(self) -> None:
        for member in sorted(self.broker.group.members):
            self.broker.group.remove(member, "gone")


class SuspendedAtTheEnd(Suspended):
    """Suspended when it had read everything and had not yet said so; another owner makes the deletion
    meanwhile, and is gone when the first one goes on."""

    hot_first = True

    def _decide(self, worker: Worker, name: str, when: str) -> str | None:
        if not self._armed or worker is not self.workers[0] or self.was_suspended or not self._here(name):
            return None
        self.was_suspended = True
        return "stop"

    def _here(self, name: str) -> bool:
        if name != "after_range":
            return False
        (database,) = self.workers[0].disk.databases.values()
        hole = rows.Frontier.decode(database.live[rows.FRONTIER_KEY]).hole
        return hole is not None and hole.low >= hole.high

    def _play(self) -> None:
        first, second = self.workers
        self._faults_on = False
        self._a_life(first, [("a", message(1, "a"))])
        self._a_life(
            second, [(f"s{number}", message(100 + number, f"s{number}")) for number in range(OTHERS)]
        )
        self._armed = True
        first.start()
        self._until_suspended()
        self._a_life(second, [("a", None)])
        self._deletions_go()
        self._resume(first)

    def _until_suspended(self) -> None:
        self._until(lambda: self.was_suspended)

    def _a_life(self, worker: Worker, inbox: list[tuple[str, bytes | None]]) -> None:
        self._group_forgets()
        worker.start()
        for session, value in inbox:
            self._put(session, value)
        self._until(self._quiet)
        worker.stop_gracefully()
        self._until(lambda: worker.process.dead)
        self._group_forgets()


class SlowServing(SuspendedAtTheEnd):
    """Deletions are kept no longer than the restore of a partition that is served has taken so far: it stays
    with its owner, which only finds that the clock is that much later."""

    def _decide(self, worker: Worker, name: str, when: str) -> str | None:
        served = self.happened["partition_served"]
        if self._armed and served and name == "after_range" and not self.was_suspended:
            self.was_suspended = True
            worker.skew_ms += DELETE_RETENTION_MS + 1_000
        return None

    def _play(self) -> None:
        first, second = self.workers
        self._faults_on = False
        self._a_life(first, [("a", message(1, "a"))])
        others = [f"s{number}" for number in range(OTHERS)]
        self._a_life(
            second, [("a", None), *((name, message(100 + at, name)) for at, name in enumerate(others))]
        )
        self._armed = True
        first.start()
        self._until(lambda: self.happened["store_too_old"] > 0)
        self._until(self._quiet)


class SuspendedInACommit(SuspendedAtTheEnd):
    """The same between the end of a transaction and the disk's part of the commit."""

    hot_first = False

    def _here(self, name: str) -> bool:
        return name == "after_commit" and self.workers[0].events > 0

    def _until_suspended(self) -> None:
        self._put("b", message(2, "b"))
        super()._until_suspended()

    def _resume(self, worker: Worker) -> None:
        # It must learn that it lost the partition, and take it over again.
        self._put("c", message(3, "c"))
        super()._resume(worker)


def test_a_machine_suspended_in_a_restore_does_not_bring_a_deletion_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: see ``Suspended``, under some schedules; and with a reading that may last for ever, as a
    control."""
    worlds = [Suspended(seed) for seed in range(1, 13)]
    assert [world.play() for world in worlds] == [[]] * 12
    assert all(world.was_suspended for world in worlds)
    assert any(world.happened["local_store_set_aside"] for world in worlds)
    monkeypatch.setattr(Restorer, "copy_lifetime_ms", property(lambda self: 10**12))
    found = [failure for seed in range(1, 13) for failure in Suspended(seed).play()]
    assert found
    assert all(failure.startswith("restore: ") and "acme/a" in failure for failure in found)


def test_what_was_whole_before_a_suspension_is_not_taken_for_whole_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a copy is as old as the log it was made of, whenever its frontier is written. Method: see
    ``SuspendedAtTheEnd``; as a control, an age taken when everything was read."""
    assert [SuspendedAtTheEnd(seed).play() for seed in range(1, 7)] == [[]] * 6
    finish = Warmer._finish

    def late(warmer: Warmer) -> None:
        warmer.unread.asked_ms = warmer._now_ms()
        finish(warmer)

    monkeypatch.setattr(Warmer, "_finish", late)
    monkeypatch.setattr(Restorer, "reading_ms_max", property(lambda self: 10**12))
    found = [failure for seed in range(1, 7) for failure in SuspendedAtTheEnd(seed).play()]
    assert found
    assert all(failure.startswith("restore: ") and "acme/a" in failure for failure in found)


def test_a_commit_that_is_written_late_is_as_old_as_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the same of commits. Method: see ``SuspendedInACommit``; as a control, an age taken when the disk
    is written."""
    assert [SuspendedInACommit(seed).play() for seed in range(1, 7)] == [[]] * 6
    write = Transactor._write_stores

    def late(transactor: Transactor, plans: list[Plan]) -> dict[int, StorageError]:
        transactor._begun_ms = transactor._now_ms()
        return write(transactor, plans)

    monkeypatch.setattr(Transactor, "_write_stores", late)
    found = [failure for seed in range(1, 7) for failure in SuspendedInACommit(seed).play()]
    assert found
    assert all(failure.startswith("restore: ") and "acme/a" in failure for failure in found)


def test_a_partition_that_is_served_begins_anew_when_deletions_may_be_gone() -> None:
    """Goal: what could not be restored in time is not served on, and its copy not used. Method: see
    ``SlowServing``, under some schedules."""
    for seed in range(1, 7):
        world = SlowServing(seed)
        assert world.play() == []
        assert world.happened["store_too_old"] == 1
        assert world.happened["refold_store_dead_opens_total{reason=too_old}"] == 1

"""The part of the engine that proposes ``TimerFired`` (:mod:`refold.engine.timers`): once a second at most,
for partitions that are live and have a row that is due."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from refold.engine import recordheaders, rows
from refold.engine.assignment import Partition
from refold.engine.batchfold import BatchFold
from refold.engine.lifecycle import Reopened, State
from refold.engine.overlay import Output, PartitionOverlay
from refold.engine.plan import Written
from refold.engine.restore import Restored
from refold.engine.store import Store, UnreadableStore
from refold.engine.timers import FIRED, look, proposal, session_key_of
from refold.wire.snapshot import decode_session
from refold.wire.timers import Armed

#: A proposal that was in vain so often may be of a row that should not be there.
STALE_AFTER: Final = 3


class TimerTicks(BatchFold):
    """On the event loop; rows are read on the disk thread, where stores are closed."""

    def _live(self, owner: Partition, restored: Restored) -> None:
        super()._live(owner, restored)
        self.sides.timers.unknown(owner.number)

    async def _tick(self) -> None:
        """For ever. Only what is live is looked through: what restores, or is served while it does, has not
        all that was committed yet."""
        timers = self.sides.timers
        while True:
            await timers.wanted.wait()
            now_ms = self._restorer.now_ms()
            for number, bound_ms in timers.due(now_ms):
                owner = self.assignment.get(number)
                if owner is not None and owner.written is not None and self._proposes(owner, owner.written):
                    await self._look_through(owner, owner.written, bound_ms, now_ms)
            await asyncio.sleep(timers.pause_s(self._restorer.now_ms()))

    def _proposes(self, owner: Partition, written: Written) -> bool:
        return (
            not self.stopping
            and owner.state is State.LIVE
            and self.assignment.get(owner.number) is owner
            and owner.written is written
        )

    async def _look_through(self, owner: Partition, written: Written, bound_ms: int, now_ms: int) -> None:
        timers = self.sides.timers
        bound_ms = min(bound_ms, timers.look_begins(owner.number))
        try:
            due, bound = await self.on_disk(lambda: look(written.store, bound_ms, now_ms))
        except UnreadableStore as error:
            self.distrust(owner, written, error, Reopened.READ)
            return
        if not self._proposes(owner, written):
            return
        timers.look_ends(owner.number, bound)
        part, count = None, 0
        for key, times in timers.to_ask(owner.number, due, time.monotonic()):
            if part is None:
                self._arrives(time.monotonic())
                part = self.part_of(self.current, owner)
            armed = due[key]
            try:
                stale = times >= STALE_AFTER and self._is_stale(written.store, armed)
            except UnreadableStore:
                # The partition is being restored already, and what is in the overlay for it is dropped.
                return
            if stale:
                timers.drop(part, key)
                self._log.warning("timer_row_stale", partition=owner.number, deadline_ms=armed.deadline_ms)
                continue
            self._propose(part, armed)
            count += 1
        if part is not None:
            self._metrics.count("refold_timers_proposed_total", count)
            self._dirty.set()

    def _propose(self, part: PartitionOverlay, armed: Armed) -> None:
        key = session_key_of(armed)
        value = proposal(key, armed)
        topic = self.config.topics.inbox
        part.outputs.append(Output(topic, part.partition, key, value, recordheaders.journal(None, FIRED)))
        self.current.bytes += len(value)

    def _is_stale(self, store: Store, armed: Armed) -> bool:
        """Whether the session as committed has another deadline, or none: a build that knows no timers has
        written it. False where that is about to change."""
        key = session_key_of(armed)
        entry = self.cache.peek(key)
        if entry is not None:
            return entry.unconfirmed == 0 and entry.session.timer_ms != armed.deadline_ms
        row = store.row(key)
        return row is None or decode_session(rows.snapshot_of(row)).timer_ms != armed.deadline_ms

"""Folding a partition of which not every session is known (rules H3 to H5).

Only where a partition has a :class:`Parking`: it is served while it is restored, or was taken over with
records handled beyond its committed offset. Everything else goes the usual way (``engine.Engine._slice``).

A record of an unknown session is parked. So is one that has to wait for batches (rule G10), instead of
holding its partition: others' records go on, and what waits is the session alone. A task folds parked records
as soon as their session is known, or batches are there; it runs between two slices and, like every fold,
never while an overlay is sealed.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from refold.core.slots import SlotMap, split_key
from refold.engine.assignment import Partition
from refold.engine.chunks import Chunk, Record, record_of
from refold.engine.overlay import Overlay, PartitionOverlay, apply
from refold.engine.plain import fold_plain
from refold.engine.seal import SLICE_S
from refold.engine.step import BatchesBehind, step
from refold.engine.store import UnreadableStore
from refold.engine.warming.parking import Parking
from refold.engine.warming.serving import Serving
from refold.errors import InvalidRecord

#: How often a fold looks at the clock, as in ``engine``.
CLOCK_EVERY: Final = 16


class WarmFold(Serving):
    """Everything runs on the event loop."""

    slots: SlotMap

    @abstractmethod
    def _quarantine(self, partition: int, error: BaseException) -> None:
        """A session was put into quarantine because of ``error``."""

    def _bound(self, overlay: Overlay) -> None:
        """An overlay is taken for a commit: what its offsets are, with records that wait (rule H5)."""
        for part in overlay.parts.values():
            owner = self.assignment.get(part.partition)
            if owner is not None and owner.epoch == part.epoch and owner.parking is not None:
                part.beyond = owner.parking.beyond(part.next_offset)

    # --- records as they come --------------------------------------------------------------------------

    def _warm_slice(self, owner: Partition, messages: Sequence[Any], at: int, count: int) -> int:
        """The place reached; -1: the record there cannot be parked, and the source is stopped."""
        parking = owner.parking
        if parking is None or owner.full == owner.fetch_epoch:
            return -1
        overlay = self.current
        self._arrives(time.monotonic())
        part = self.part_of(overlay, owner)
        until = time.perf_counter() + SLICE_S
        full = False
        try:
            while at < count and not full:
                stop = min(at + CLOCK_EVERY, count)
                while at < stop:
                    reached = self._plain_run(owner, parking, messages, at, stop)
                    if reached > at:
                        at = fold_plain(self.sessions, overlay, part, messages, at, reached)
                        if at == reached:
                            continue
                    if not self._take(owner, parking, overlay, part, record_of(messages[at])):
                        full = True
                        break
                    at += 1
                if time.perf_counter() > until or self._is_full(overlay):
                    break
        except UnreadableStore:
            # The partition is being restored already: what was folded of it is dropped.
            return -1
        owner.position = part.next_offset
        if at:
            owner.ruled_ms = messages[at - 1].timestamp()[1]
        self._fills(overlay)
        self._dirty.set()
        if full:
            self._stop_source(owner)
            return -1
        self._settle_parking(owner, parking)
        return at

    @staticmethod
    def _plain_run(owner: Partition, parking: Parking, messages: Sequence[Any], at: int, stop: int) -> int:
        """The end of the run that waits for nothing: nothing of it is parked or to be skipped. What of it is
        in memory is known."""
        while at < stop:
            message = messages[at]
            if message.key() in parking or parking.skips(message.offset()):
                break
            at += 1
        return at

    def _take(
        self, owner: Partition, parking: Parking, overlay: Overlay, part: PartitionOverlay, record: Record
    ) -> bool:
        """Fold one record, skip it, or park it; False: it has to be parked and there is no room."""
        offset = record.offset
        if not parking.skips(offset):
            key = record.key
            if key is not None and self._waits(owner, parking, key, record.partition):
                if parking.full:
                    return False
                parking.add(key, record)
            elif not self._fold_one(parking, overlay, part, record):
                if parking.full:
                    return False
                parking.add(key or b"", record)
                parking.behind.add(key or b"")
                self._look_for_batches(owner, parking)
        part.next_offset = offset + 1
        return True

    def _waits(self, owner: Partition, parking: Parking, key: bytes, partition: int) -> bool:
        """Whether a record has to wait for its session: that is not known, or earlier ones of it wait. A
        record of another partition, or of no session, waits for none."""
        if key in parking:
            return True
        if owner.warming is None or key in self.cache:
            return False
        if self.slots.partition(key) != partition:
            return False
        try:
            split_key(key)
        except InvalidRecord:
            return False
        return not owner.knows(key)

    def _fold_one(self, parking: Parking, overlay: Overlay, part: PartitionOverlay, record: Record) -> bool:
        """False: it has to wait for batches, and nothing was changed. The partition's frontier stays."""
        before = part.next_offset
        try:
            effects = step(self.sessions, record)
        except BatchesBehind:
            return False
        apply(overlay, part, record, effects)
        part.next_offset = before
        if effects.quarantined is not None:
            self._quarantine(record.partition, effects.quarantined)
        return True

    def _settle_parking(self, owner: Partition, parking: Parking) -> None:
        if owner.warming is None and owner.parking is parking and parking.ended(owner.position):
            owner.parking = None

    # --- the bound -------------------------------------------------------------------------------------

    def _stop_source(self, owner: Partition) -> None:
        """What was polled since is dropped, and read again when there is room."""
        owner.full = owner.fetch_epoch
        self.poller.park(owner.number, owner.epoch, owner.fetch_epoch)
        self._metrics.count("refold_parking_full_total")
        self._log.info("parking_full", partition=owner.number, offset=owner.position)

    def _resume_source(self, owner: Partition, parking: Parking) -> None:
        if owner.full != owner.fetch_epoch or not (parking.roomy or not len(parking)):
            return
        caught_up = owner.caught_up
        self._rewind(owner, owner.position, owner.batches_position)
        # Nothing that is folded was taken back.
        owner.caught_up = caught_up
        self._log.info("parking_roomy", partition=owner.number, offset=owner.position)

    # --- records that waited ---------------------------------------------------------------------------

    def _known_more(self, owner: Partition) -> None:
        parking = owner.parking
        if parking is None:
            return
        parking.again = True
        if parking.task is None:
            parking.task = self._spawn(self._fold_parked(owner, parking))

    def _still(self, owner: Partition, parking: Parking) -> bool:
        return owner.parking is parking and owner.fed and not self.stopping

    async def _fold_parked(self, owner: Partition, parking: Parking) -> None:
        """What was parked of sessions that are known now, in order; each session's from its oldest on."""
        try:
            while parking.again and self._still(owner, parking):
                parking.again = False
                for key in parking.sessions():
                    await self._fold_session(owner, parking, key)
                if self._still(owner, parking):
                    self._resume_source(owner, parking)
                    self._settle_parking(owner, parking)
        finally:
            parking.task = None

    async def _fold_session(self, owner: Partition, parking: Parking, key: bytes) -> None:
        until = time.perf_counter() + SLICE_S
        while (record := parking.oldest(key)) is not None:
            if not self._go.is_set():
                await self._go.wait()
                continue
            if time.perf_counter() > until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE_S
                continue
            if not self._still(owner, parking):
                return
            try:
                known = key in self.cache or owner.knows(key)
                if not known or (key in parking.behind and not self._looked(owner, parking, key)):
                    return
                if not self._fold_waiting(owner, parking, key, record):
                    return
            except UnreadableStore:
                # The partition is being restored already.
                return

    def _looked(self, owner: Partition, parking: Parking, key: bytes) -> bool:
        """Whether batches were read to their end since the session's oldest record came."""
        record = parking.oldest(key)
        return record is not None and record.offset < owner.caught_up

    def _fold_waiting(self, owner: Partition, parking: Parking, key: bytes, record: Record) -> bool:
        """False: it waits for batches now."""
        self._arrives(time.monotonic())
        overlay = self.current
        part = self.part_of(overlay, owner)
        done = self._fold_one(parking, overlay, part, record)
        if done:
            parking.handled(key)
        else:
            parking.behind.add(key)
            self._look_for_batches(owner, parking)
        self._fills(overlay)
        self._dirty.set()
        return done

    # --- records that wait for batches (rule G10) --------------------------------------------------------

    def _look_for_batches(self, owner: Partition, parking: Parking) -> None:
        if not parking.looking:
            parking.looking = True
            self._spawn(self._look(owner, parking))

    async def _look(self, owner: Partition, parking: Parking) -> None:
        """Until batches have been folded to their end as of now: what they say then stands for every record
        that was here."""
        try:
            while parking.behind and self._still(owner, parking):
                until = owner.position
                token = Chunk(
                    self.config.topics.inbox, owner.number, owner.epoch, owner.fetch_epoch, until, (), 0
                )
                await self._wait_for_batches(owner, token)
                if not self._still(owner, parking) or not self._waits_on(owner, token):
                    continue
                owner.caught_up = max(owner.caught_up, until)
                self._known_more(owner)
                if parking.task is not None:
                    await parking.task
        finally:
            parking.looking = False

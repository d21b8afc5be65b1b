"""A partition that is served while it is restored: from its first range until it is LIVE (rule H2).

On the event loop; each range is read on a restore thread, in a turn of its own, after all restores that serve
nothing yet.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from dataclasses import replace
from typing import Final

from refold.engine.admission import background
from refold.engine.assignment import Partition
from refold.engine.batchfold import BatchFold
from refold.engine.changelogs import StoodStill
from refold.engine.lifecycle import Reopened, State
from refold.engine.ownership import RESTORE_AGAIN_S
from refold.engine.restore import Restored
from refold.engine.store import UnreadableStore
from refold.engine.takeover import Cancelled
from refold.engine.warming.arriving import Arrived
from refold.engine.warming.warmer import Warmer
from refold.errors import StorageError, TransientError, UnavailableError

#: Between two looks at a checkpoint that is waited for (rule H10).
WAIT_S: Final = 0.1


class Serving(BatchFold):
    """Everything runs on the event loop."""

    @abstractmethod
    def _known_more(self, owner: Partition) -> None:
        """More sessions of the partition are known: fold what waits for them."""

    async def _serve(self, owner: Partition, restored: Restored, warmer: Warmer) -> None:
        """RESTORING, fed, and read on in the background until it is LIVE (rule H2)."""
        ticket = owner.ticket
        try:
            if restored.claim:
                await self._claim_until_done(owner)
            if self._gone(owner, restored):
                return
            owner.warming = warmer.unread
            owner.begin(restored.offset, restored.beyond)
            restored.written.store.on_unreadable = lambda error: self._unreadable(
                owner, restored.written, error
            )
            self.book.open(owner.number, restored.offset)
            seconds = time.monotonic() - owner.restoring_since
            self._metrics.observe("refold_restore_served_seconds", seconds)
            self._log.info(
                "partition_served",
                partition=owner.number,
                offset=restored.offset,
                unread=warmer.unread.high - warmer.unread.low,
                seconds=round(seconds, 3),
            )
            self._feed(owner, restored)
            await self._warm(owner, restored, warmer)
        except Cancelled:
            return
        except Arrived:
            # Taken over again at once: who was served already waits for no jitter.
            ticket = replace(ticket, draw=0.0)
            if self._gone(owner, restored) and warmer.arriving is not None:
                # By somebody else, who looks for one of its own.
                warmer.arriving.arrived = False
            there = StorageError("what is left to read is in a checkpoint, which is here")
            self.distrust(owner, restored.written, there, Reopened.ARRIVED)
            return
        finally:
            owner.ticket = ticket
            # Not on a restore thread: others' restores may have all of them, for minutes.
            await self._loop.run_in_executor(None, warmer.close)
        if self._gone(owner, restored):
            return
        self._metrics.count("refold_restore_records_total", warmer.records - restored.records)
        owner.warming = None
        self._live(owner, restored)
        self._known_more(owner)

    @staticmethod
    def _gone(owner: Partition, restored: Restored) -> bool:
        """Taken away meanwhile, or a commit's disk write failed and another task restores it again."""
        return (
            owner.cancelled.is_set()
            or owner.written is not restored.written
            or owner.state is not State.RESTORING
        )

    async def _warm(self, owner: Partition, restored: Restored, warmer: Warmer) -> None:
        """Range after range, each in a turn of its own and after all restores that serve nothing yet.

        Raises :class:`Cancelled`, :class:`Arrived`, and what the restore of a partition raises.
        """
        owner.ticket = replace(owner.ticket, rank=background(owner.ticket.rank))
        limit_s = self.config.takeover_stall_ms_max / 1000
        until = time.monotonic() + limit_s
        while True:
            if self._gone(owner, restored):
                raise Cancelled
            if warmer.waits:
                until = time.monotonic() + limit_s
                # Its key filter may have come.
                self._known_more(owner)
                await asyncio.sleep(WAIT_S)
                continue
            await self._turns.take(owner.ticket.rank)
            with self._turns.held():
                if self._gone(owner, restored):
                    raise Cancelled
                if owner.parking is not None:
                    warmer.unread.wanted = frozenset(owner.parking.sessions())
                try:
                    done = await self._loop.run_in_executor(self._restore_pool, warmer.step)
                except (TransientError, UnavailableError) as error:
                    self._metrics.count("refold_restores_total", outcome="failed")
                    if time.monotonic() > until:
                        raise
                    self._log.warning("restore_again", partition=owner.number, error=str(error))
                    done = None
                except UnreadableStore as error:
                    self.distrust(owner, restored.written, error, Reopened.READ)
                    raise Cancelled from None
                except StoodStill:
                    slow = StorageError("it took longer to restore than deletions are kept; it begins anew")
                    self.distrust(owner, restored.written, slow, Reopened.OLD)
                    raise Cancelled from None
            if done is None:
                await asyncio.sleep(RESTORE_AGAIN_S)
                continue
            if done:
                return
            until = time.monotonic() + limit_s
            owner.progress = warmer.progress
            self._known_more(owner)

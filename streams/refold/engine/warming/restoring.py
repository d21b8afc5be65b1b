"""Whether a restore is hot first, and what it needs for that: a part of ``restore.Restorer``.

Runs on a restore thread; blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from refold.engine import rows
from refold.engine.admission import Pace
from refold.engine.checkpoints.source import CheckpointSource
from refold.engine.config import EngineConfig
from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.store import Store
from refold.engine.takeover import Committed, Marks, Stall
from refold.engine.warming import hot, opening
from refold.engine.warming.arriving import Arriving
from refold.engine.warming.keyset import Allowance
from refold.engine.warming.reader import RangeReader
from refold.engine.warming.unread import KeyFilter
from refold.engine.warming.warmer import Warmer

if TYPE_CHECKING:
    from refold.engine.restore import TopicFacts


class HotRestorer(ABC):
    _config: EngineConfig
    _facts: TopicFacts
    _points: Points
    _now_ms: Callable[[], int]
    _key_filter: Callable[[int], KeyFilter | None] | None
    _allowance: Allowance
    pace: Pace

    @property
    @abstractmethod
    def reading_ms_max(self) -> int:
        """For how long a restore may read before tombstones may be gone (rule Z)."""

    @abstractmethod
    def _check(self, partition: int, committed: Committed, marks: Marks, reading: opening.Reached) -> None:
        """Offset and changelogs belong together (rule T 4), or ConfigError."""

    @abstractmethod
    def _start(self, partition: int, committed: Committed, marks: Marks) -> int:
        """The inbox offset to go on from."""

    @abstractmethod
    def _start_batches(self, partition: int, committed: Committed, marks: Marks) -> int:
        """The same of batches."""

    @abstractmethod
    def _distrust(self, local: rows.Frontier, committed: Committed, marks: Marks) -> str | None:
        """Why a copy must not be used."""

    @abstractmethod
    def _identity(self, partition: int) -> bytes:
        """Whose copy it is."""

    def _starts(self, partition: int, committed: Committed, marks: Marks) -> tuple[int, int]:
        return self._start(partition, committed, marks), self._start_batches(partition, committed, marks)

    def _sign(self, partition: int, store: Store) -> None:
        """Whose copy it is, noted in it."""
        if store.note(rows.PARTITION_KEY) is None:
            store.put_note(rows.PARTITION_KEY, self._identity(partition))

    def _serves(self, frontier: rows.Frontier, committed: Committed, marks: Marks) -> bool:
        """Whether a restore from there is hot first: else it is not worth it, or not to be done."""
        return (
            self._config.hot_first
            and not self._config.sabotage.restore_to_eof
            and committed.offset >= 0
            and committed.meta is not None
            and opening.unread_offsets(frontier, marks) >= opening.HOT_OFFSETS_MIN
        )

    def _hot(
        self,
        partition: int,
        store: Store,
        frontier: rows.Frontier,
        committed: Committed,
        marks: Marks,
        stall: Stall,
        cancelled: Callable[[], bool],
        checkpoints: CheckpointSource | None,
    ) -> Warmer | None:
        """What reads the rest while the partition is served (rule H2), with the newest of it read; ``None``:
        see :meth:`_serves`. Leaves the store open."""
        if not self._serves(frontier, committed, marks):
            if checkpoints is not None:
                # Not wanted, where the checkpoint itself has come.
                checkpoints.proof(partition)
            return None
        self._check(partition, committed, marks, opening.reached(marks))
        facts = self._facts
        start = self._starts(partition, committed, marks)
        ends = (marks.state_end, marks.history_end, marks.generations_end)
        written = Written(store, facts.state_id, facts.history_id, facts.generations_id, *ends)
        reader = RangeReader(self._config, partition, cancelled=cancelled, stall=stall, pace=self.pace)
        fetch = None if checkpoints is None else checkpoints.under_way(partition)
        warmer = hot.begin(
            self._config.topics,
            written,
            frontier,
            marks,
            reader,
            start=start,
            proof=self._proof(partition, checkpoints),
            points=self._points,
            now_ms=self._now_ms,
            reading_ms_max=self.reading_ms_max,
            allowance=self._allowance,
        )
        if checkpoints is not None and fetch is not None:
            warmer.arriving = Arriving(
                fetch,
                warmer.unread,
                marks.state_end,
                paced=reader.paced,
                forget=partial(checkpoints.forget, partition),
            )
        try:
            self._sign(partition, store)
        except BaseException:
            warmer.close()
            raise
        return warmer

    def _proof(self, partition: int, checkpoints: CheckpointSource | None) -> KeyFilter | None:
        """Of a checkpoint that was not taken, or could not be fetched: who is not in it (rule H3). One that
        is still on its way comes with that."""
        if self._key_filter is not None:
            return self._key_filter(partition)
        return None if checkpoints is None else checkpoints.proof(partition)

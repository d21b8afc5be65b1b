"""The port between the HTTP server and the engine: what an owner can be asked.

The engine implements it (``engine/view.py``); tests implement it with a fake. Invariants:

- Only committed state leaves through it: a snapshot, a history answer or a ruling is handed out after the
  transaction that made it has committed, never before.
- Every method without ``async`` returns at once (memory or a local RocksDB read), because it runs on the
  event loop of the fold.
- Everything is called on the worker's event loop, and sinks are called there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from refold.wire.owner import GenerationAnswer, HistoryAnswer, RulingLine

__all__ = [
    "GenerationAnswer",
    "HistoryAnswer",
    "OwnerView",
    "PartitionRow",
    "PartitionStatus",
    "RulingLine",
    "StandbyAnswer",
    "WorkerHealth",
]

#: ``absent``: this worker does not own the partition. ``waiting``/``restoring``: it does, but cannot answer
#: yet. ``live``: it answers.
PartitionStatus = Literal["absent", "waiting", "restoring", "live"]


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The three probes. ``detail`` is shown to whoever asks, so it holds names and counts, never content.

    ``startup``: the process has joined the group once. ``ready``: every owned partition is live and the last
    commit is recent. ``live``: the loop turns; never false because Kafka is down.
    """

    startup: bool
    ready: bool
    live: bool
    detail: dict[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One owned partition, or one that is copied here, for whoever watches. ``state``: a word of the
    lifecycle or ``standby``, and for how many seconds it has been that; ``progress``: of the restore, 0 … 1;
    ``position`` and ``committed``: next inbox offset to be folded, and as committed, -1 before they are
    known; ``lag``: inbox records not ruled on, as last looked for, ``None`` before.

    Of a standby alone, ``None`` otherwise: ``behind``, offsets of its changelogs that it has not read;
    ``age_s``, everything committed so many seconds ago is in it (``None`` while it is being made).

    ``served``: records are folded and sessions answered: live, or restored hot first (rule H2)."""

    partition: int
    state: str
    seconds: float
    progress: float
    position: int
    committed: int
    lag: int | None
    behind: int | None = None
    age_s: float | None = None
    served: bool = False


@dataclass(frozen=True, slots=True)
class StandbyAnswer:
    """A session as a standby's copy has it. ``snapshot``: framed, ``None`` for a session that does not exist
    there; ``seq`` is 0 then. ``position``: next offset of the state topic; ``behind``, ``age_s``: as in
    :class:`PartitionRow`."""

    seq: int
    snapshot: bytes | None
    position: int
    behind: int
    age_s: float


class OwnerView(Protocol):
    """Committed state of the partitions this worker owns."""

    def partition_of(self, key: bytes) -> int:
        """The partition a record key maps to under the live slot map."""

    def status(self, partition: int) -> PartitionStatus:
        """``live``: also of one that is still restored and serves the sessions it knows."""

    def session_status(self, key: bytes) -> PartitionStatus:
        """Of its partition; ``restoring`` as well while a live one does not know the session yet."""

    def retry_after_s(self, partition: int) -> float:
        """Estimate, in seconds, until a waiting or restoring partition is live; at least 0.05."""

    def frontier(self, partition: int) -> int:
        """Next inbox offset to be ruled on: every inbox record before it has its ruling committed."""

    def snapshot(self, key: bytes) -> bytes | None:
        """The framed snapshot as committed, ``None`` for a session that does not exist. Does not block."""

    def seq_of(self, key: bytes) -> int:
        """The committed seq of a session, 0 when it does not exist. Does not block; cheaper than a decode."""

    def standby(self, key: bytes) -> StandbyAnswer | None:
        """The session from a copy of a partition that another worker owns; ``None`` where there is none, or
        it was never whole. Does not block."""

    def history(self, key: bytes, after: int, limit: int) -> HistoryAnswer:
        """Journal positions of the events with ``seq > after``, ascending, at most ``limit``."""

    async def wait_seq(self, key: bytes, min_seq: int, timeout_s: float) -> bool:
        """Wait until the session's committed seq is at least ``min_seq``; ``False`` when time ran out."""

    def generation(self, key: bytes, generation_id: str) -> GenerationAnswer | None:
        """What is committed of the session's generation; ``None`` when there is neither row nor progress.
        Decodes a snapshot."""

    async def wait_generation(self, key: bytes, generation_id: str, timeout_s: float) -> bool:
        """Wait until the generation's begin is folded and committed; ``False`` when time ran out."""

    async def usage(
        self, tenant: str, subject: str, model: str
    ) -> tuple[Mapping[int, Sequence[bytes]], Sequence[int]]:
        """Framed usage rows of the model (``*``: of all) by live partition, none where there are none; and
        the partitions that are owned and not live yet."""

    def ruling(self, partition: int, offset: int) -> RulingLine | None:
        """A recent ruling, ``None`` when not ruled yet or no longer remembered (see :meth:`frontier`)."""

    async def wait_ruling(self, partition: int, offset: int, timeout_s: float) -> RulingLine | None:
        """Wait for a ruling; ``None`` when time ran out or when it is no longer remembered."""

    def subscribe_rulings(self, producer_id: str, sink: Callable[[bytes], None]) -> Callable[[], None]:
        """Call ``sink`` with each NDJSON line (line end included, possibly several lines in one call) for
        committed rulings on records stamped by ``producer_id``. Returns the way to unsubscribe."""

    def health(self) -> WorkerHealth: ...

    def partitions(self) -> list[PartitionRow]:
        """Every owned partition, by number, then every copy. Does not block."""

"""Timers (rules K): a session's armed deadline as a side row, and who proposes that it has come.

The row ``timer#<deadline, 13 digits>#<session key>`` is a function of the session: it is there while the
session's ``timer_ms`` is that deadline. It is written when the overlay is sealed, by comparing what the
session says now with what was written for it last (``Entry.armed``); so it is right after a quarantine, a
deletion or an event of the worker's own, and costs a session without a timer one comparison per commit.

The worker only *proposes*: for a row that is due it appends ``TimerFired`` to the inbox, as an output of the
partition's overlay, so in a transaction with the partition's offsets (rule F). A worker that was stopped and
has lost the partition is refused there. State changes when the proposal is read back and accepted; by then
the session's time has reached the deadline, or it is a duplicate.

Nothing is kept in memory but a lower bound of each live partition's deadlines and what was proposed lately.
Who has no timers has no ticks.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Container, Iterable, Iterator
from typing import Final

from refold.core.envelope import Envelope
from refold.engine.cache import Entry
from refold.engine.made import WORKER
from refold.engine.overlay import PartitionOverlay
from refold.engine.side import SEPARATOR, TIMER, side_key
from refold.engine.store import Store
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope
from refold.wire.timers import Armed, decode_timer, encode_timer

#: A partition is looked through at most so often, and who waits looks again after so long at the latest
#: (the wall clock may have been set).
TICK_S: Final = 1.0

#: Rows looked at in one tick of a partition, and so what may be proposed and unanswered: 512 x 300 bytes are
#: 150 KB of one commit. A hundred thousand deadlines at once on 24 partitions are through in 9 s.
DUE_MAX: Final = 512

#: A proposal that was not heard of is made again after 5 s, then 10, 20 and so on up to 320 s: its
#: transaction was aborted, or this machine's clock is ahead of the brokers', or the inbox is that far behind.
AGAIN_S: Final = 5.0
DOUBLINGS_MAX: Final = 6

#: Deadlines have 13 digits: up to the year 2286. Later ones are all in one place, in front of which nothing
#: is ever due.
DEADLINE_MS_MAX: Final = 9_999_999_999_999

#: Of the session key's SHA-256, in a proposal's event id.
_HASH_DIGITS: Final = 16

#: No bound: no rows.
NEVER_MS: Final = DEADLINE_MS_MAX + 1

FIRED: Final = "TimerFired"

_END: Final = TIMER + bytes((SEPARATOR[0] + 1,))


def timer_key(deadline_ms: int, session_key: bytes) -> bytes:
    return side_key(TIMER, b"%013d" % min(deadline_ms, DEADLINE_MS_MAX), session_key)


def _from(deadline_ms: int) -> bytes:
    """Every row of that deadline or a later one is at or behind this key."""
    return side_key(TIMER, b"%013d" % min(deadline_ms, DEADLINE_MS_MAX))


def proposal(session_key: bytes, armed: Armed) -> bytes:
    """The framed envelope. The same bytes whoever proposes it, and however often."""
    digest = hashlib.sha256(session_key).hexdigest()[:_HASH_DIGITS]
    payload = encode(f"refold.event.{FIRED}", {"deadline_ms": armed.deadline_ms})
    return encode_envelope(
        Envelope(
            event_id=f"timer/{armed.deadline_ms}/{digest}",
            tenant=armed.tenant,
            session=armed.session,
            type=FIRED,
            event_time_ms=armed.deadline_ms,
            actor=WORKER,
            payload=payload,
        )
    )


class TimerRow:
    """A :class:`refold.engine.side.SideRow`, made when the sessions of its partition are sealed."""

    __slots__ = ("_deadline_ms", "_key", "_partition", "_timers", "encoded")

    def __init__(
        self, timers: Timers, partition: int, deadline_ms: int, key: bytes, encoded: bytes | None
    ) -> None:
        self._timers = timers
        self._partition = partition
        self._deadline_ms = min(deadline_ms, DEADLINE_MS_MAX)
        self._key = key
        self.encoded = encoded

    def take_back(self, offsets: Container[int]) -> None:
        """Made of what the session is after that."""

    def seal(self) -> None:
        """Made whole."""

    def confirm(self) -> None:
        if self.encoded is None:
            self._timers.gone(self._partition, self._key)
        else:
            self._timers.armed(self._partition, self._deadline_ms)

    def discard(self) -> None:
        """Nothing in memory was changed by it; ``Entry.armed`` goes with its entry."""


class Asked:
    """A proposal that was made and not answered: how often, and when it is made again (monotonic)."""

    __slots__ = ("again", "times")

    def __init__(self) -> None:
        self.times = 0
        self.again = 0.0

    def made(self, now: float) -> None:
        self.again = now + AGAIN_S * (1 << min(self.times, DOUBLINGS_MAX))
        self.times += 1


class Timers:
    """A :class:`refold.engine.side.SideCache`: the bounds, and what was proposed. On the event loop."""

    def __init__(self) -> None:
        #: Partition -> no row of it has an earlier deadline. Partitions that are live and have rows, or are
        #: to be looked through.
        self._bounds: dict[int, int] = {}
        #: Partition that is being looked through -> the earliest deadline that was written meanwhile.
        self._fresh: dict[int, int] = {}
        self._asked: dict[int, dict[bytes, Asked]] = {}
        #: There is something to wait for.
        self.wanted = asyncio.Event()

    # --- rows --------------------------------------------------------------------------------------

    def changed(self, part: PartitionOverlay, entry: Entry) -> None:
        """The session's ``timer_ms`` is another than what its row was written for: both rows go with this
        overlay. When nothing of the session can be taken back any more."""
        session = entry.session
        if entry.armed:
            self.drop(part, timer_key(entry.armed, entry.key))
        entry.armed = session.timer_ms
        if entry.armed:
            key = timer_key(entry.armed, entry.key)
            record = encode_timer(Armed(session.tenant, session.session, entry.armed))
            part.side[key] = TimerRow(self, part.partition, entry.armed, key, record)

    def drop(self, part: PartitionOverlay, key: bytes) -> None:
        part.side[key] = TimerRow(self, part.partition, 0, key, None)

    def armed(self, partition: int, deadline_ms: int) -> None:
        """A row is on the disk."""
        if partition in self._fresh:
            self._fresh[partition] = min(self._fresh[partition], deadline_ms)
        self._bounds[partition] = min(deadline_ms, self._bounds.get(partition, deadline_ms))
        self.wanted.set()

    def gone(self, partition: int, key: bytes) -> None:
        """A row is no more."""
        asked = self._asked.get(partition)
        if asked is not None:
            asked.pop(key, None)

    # --- bounds ------------------------------------------------------------------------------------

    def unknown(self, partition: int) -> None:
        """Which rows it has is to be looked for."""
        self._bounds[partition] = 0
        self.wanted.set()

    def discard_partition(self, partition: int) -> None:
        """Nothing of it is proposed until it is live again."""
        for known in (self._bounds, self._fresh, self._asked):
            known.pop(partition, None)
        if not self._bounds:
            self.wanted.clear()

    def due(self, now_ms: int) -> list[tuple[int, int]]:
        """Partitions to be looked through, with the deadline to begin at."""
        return [(number, bound) for number, bound in self._bounds.items() if bound <= now_ms]

    def pause_s(self, now_ms: int) -> float:
        """Until one is due; a tick at most."""
        soonest = min(self._bounds.values(), default=now_ms)
        return TICK_S if soonest <= now_ms else min(TICK_S, (soonest - now_ms) / 1000)

    def look_begins(self, partition: int) -> int:
        """The bound as it is now: while another partition was looked through, an earlier deadline may have
        been written than the one for which this one was found to be due."""
        self._fresh[partition] = NEVER_MS
        return self._bounds.get(partition, 0)

    def look_ends(self, partition: int, bound_ms: int) -> None:
        """``bound_ms``: as found on the disk. What was written meanwhile may have been too late for that."""
        bound = min(bound_ms, self._fresh.pop(partition, NEVER_MS))
        if bound == NEVER_MS:
            self.discard_partition(partition)
        else:
            self._bounds[partition] = bound

    # --- proposals ---------------------------------------------------------------------------------

    def to_ask(self, partition: int, keys: Iterable[bytes], now: float) -> Iterator[tuple[bytes, int]]:
        """Those of the due rows that are to be proposed now, and how often they were. Whatever else was
        proposed is not due any more."""
        before = self._asked.get(partition, {})
        asked = self._asked[partition] = {key: before.get(key) or Asked() for key in keys}
        for key, known in asked.items():
            if known.again <= now:
                yield key, known.times
                known.made(now)


def look(store: Store, bound_ms: int, now_ms: int) -> tuple[dict[bytes, Armed], int]:
    """Due rows from the bound on by their keys, earliest first, at most :data:`DUE_MAX`; and the new bound.
    Disk thread.

    Raises :class:`refold.engine.store.UnreadableStore`.
    """
    due = store.side_range(_from(bound_ms), _from(now_ms + 1), DUE_MAX)
    if due:
        return {key: decode_timer(value) for key, value in due}, decode_timer(due[0][1]).deadline_ms
    later = store.side_range(_from(now_ms + 1), _END, 1)
    return {}, min(decode_timer(later[0][1]).deadline_ms, DEADLINE_MS_MAX) if later else NEVER_MS


def session_key_of(armed: Armed) -> bytes:
    return f"{armed.tenant}/{armed.session}".encode()

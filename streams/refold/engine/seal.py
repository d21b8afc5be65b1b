"""Between fold and commit: encode every touched session once, in slices, so that the event loop stays
responsive.

The fold waits meanwhile (it would only compete for the same core). A session that cannot be encoded is
quarantined here: what it accepted in this overlay, since its last deletion in it, is taken back and parked;
nothing else is affected. That is exact because the previous overlay is committed and on disk when the next
one is sealed. (What came before the deletion stands: it is not in the record that cannot be encoded, and a
deletion is taken in quarantine too, so that what came after it would open the same session again.)
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from refold.core.invariants import well_formed
from refold.core.work import work_items
from refold.engine import made, recordheaders
from refold.engine.chunks import Record
from refold.engine.history import HEADER
from refold.engine.overlay import Journal, Output, Overlay, PartitionOverlay, Touched, apply, touch
from refold.engine.sessions import Sessions
from refold.engine.step import made_event, step
from refold.engine.timers import Timers
from refold.engine.work import work_outputs
from refold.errors import InvariantViolation
from refold.wire.envelope import encode_envelope
from refold.wire.journal import decode_journal
from refold.wire.snapshot import encode_snapshot

#: Longest time the loop is kept, by fold and seal alike: `context()` is served on the same loop.
SLICE_S: Final = 0.004

#: One in so many encoded sessions has its invariants checked first. All of them would cost as much as the
#: fold.
CHECK_EVERY: Final = 64

#: Types of the worker's own notes about a quarantine, as in the ``refold-type`` header.
_NOTES: Final = (b"SessionQuarantined", b"SessionEventParked")

#: Room for key, headers and framing of a state record within the topic's limit.
STATE_HEADROOM_BYTES: Final = 2_048


class Sealer:
    """``count`` of sealed sessions decides which one is checked: deterministic, no randomness in the path."""

    def __init__(self, sessions: Sessions, timers: Timers) -> None:
        self._sessions = sessions
        self._timers = timers
        self._count = 0
        self.state_bytes = 0

    def take_bytes(self) -> int:
        """Bytes of state records since the last call."""
        taken, self.state_bytes = self.state_bytes, 0
        return taken

    async def seal(self, overlay: Overlay) -> list[tuple[bytes, BaseException]]:
        """Set ``encoded`` and ``seq`` of everything touched. Returns the sessions quarantined on the way."""
        bad: list[tuple[bytes, BaseException]] = []
        until = time.perf_counter() + SLICE_S
        for part in overlay.parts.values():
            for key, touched in list(part.touched.items()):
                try:
                    self._encode(touched)
                except Exception as error:
                    bad.append((key, error))
                    self._quarantine(overlay, part, key, touched, error)
                    self._encode(part.touched[key])
                entry = touched.entry
                if entry.session.timer_ms != entry.armed:
                    self._timers.changed(part, entry)
                if time.perf_counter() > until:
                    await asyncio.sleep(0)
                    until = time.perf_counter() + SLICE_S
            for side in part.side.values():
                side.seal()
                if time.perf_counter() > until:
                    await asyncio.sleep(0)
                    until = time.perf_counter() + SLICE_S
        return bad

    def _encode(self, touched: Touched) -> None:
        session = touched.entry.session
        if session.seq == 0:
            touched.encoded = None
            return
        self._count += 1
        if self._count % CHECK_EVERY == 0:
            well_formed(session)
        encoded = encode_snapshot(session)
        limit = self._sessions.limits.state_bytes_max - STATE_HEADROOM_BYTES
        if len(encoded) > limit:
            raise InvariantViolation(
                f"a state record of {len(encoded)} bytes exceeds what the topic takes ({limit})"
            )
        touched.encoded = encoded
        touched.seq = session.seq
        self.state_bytes += len(encoded)

    def _quarantine(
        self, overlay: Overlay, part: PartitionOverlay, key: bytes, touched: Touched, error: Exception
    ) -> None:
        """Take back what this overlay accepted for the session, quarantine it, park each event again."""
        entry = touched.entry
        mine = [part.journal[at] for at in touched.events]
        if any(item.headers[0][1] in _NOTES for item in mine):
            # Quarantined by the fold already, and what that left cannot be encoded either: not one bad event.
            raise InvariantViolation("a quarantined session cannot be encoded") from error
        # A reducer's part is none of them: its note goes with the event it followed, which is parked.
        records = [_record(part, item) for item in mine if item.headers[0][1] != b"ReducerQuarantined"]
        self._take_out(part, key, set(touched.events))
        offsets = {record.offset for record in records}
        for side in part.side.values():
            side.take_back(offsets)
        session = self._sessions.rebuild(entry).session
        del part.touched[key]
        entry.unconfirmed -= 1
        note = touch(part, entry)
        note.deleted = touched.deleted
        note.outputs = note.settled = touched.settled
        first = records[0]
        note.events.append(len(part.journal))
        wanted = work_items(session)
        part.journal.append(
            made_event(first, entry, *made.quarantine(first, session.tenant, session.session, None, error))
        )
        # What there is to do as it stands on the topic, or among the outputs kept: nobody may do it now.
        withdrawn = work_outputs(self._sessions.topics, part.partition, key, wanted, session)
        part.outputs += withdrawn
        note.outputs += len(withdrawn)
        next_offset = part.next_offset
        for record in records:
            apply(overlay, part, record, step(self._sessions, record))
        part.next_offset = next_offset
        overlay.records -= len(records)

    @staticmethod
    def _take_out(part: PartitionOverlay, key: bytes, events: set[int]) -> None:
        """The events at these places of the journal, and what they had to say to others."""
        moved: dict[int, int] = {}
        kept: list[Journal] = []
        for at, item in enumerate(part.journal):
            if at not in events:
                moved[at] = len(kept)
                kept.append(item)
        part.journal = kept
        for other, touched in part.touched.items():
            if other != key:
                touched.events = [moved[at] for at in touched.events]
        left = part.touched[key].settled
        outputs: list[Output] = []
        for out in part.outputs:
            if out.session == key:
                if left == 0:
                    continue
                left -= 1
            outputs.append(out)
        part.outputs = outputs


def _record(part: PartitionOverlay, item: Journal) -> Record:
    """The inbox record behind a journal entry, as far as it is needed to reject it: bytes, headers, place."""
    entry = decode_journal(item.value)
    env = entry.env
    headers = [(n, v) for n, v in item.headers if n not in (recordheaders.TYPE, HEADER)]
    null = made.is_deletion_by_null(env, entry.partition, entry.offset)
    value = None if null else encode_envelope(env)
    return Record(part.partition, entry.offset, entry.time_ms, item.key, value, headers or None)

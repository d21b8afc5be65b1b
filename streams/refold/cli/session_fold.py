"""``refold session fold``: stored state = fold(journal), checked byte for byte with the worker's own core.

Exact while traffic flows: a state record says up to which inbox offset it is folded (its frontier), so of
every session the journal is folded exactly that far, and no further.

Memory is bounded: sessions not being folded lie encoded in a temporary SQLite file; being encoded and
decoded again on the way is part of what is checked.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Message

from refold.client import Refold
from refold.client.bulk import Batch, batches
from refold.client.folding import fold_event
from refold.client.positions import Position
from refold.core.evolve import evolve
from refold.core.reduced import comparable
from refold.core.session import Session, initial
from refold.core.slots import split_key
from refold.errors import InvalidRecord, InvariantViolation
from refold.formats.jsonio import first_difference
from refold.missing import no_session
from refold.wire.events import decode_event
from refold.wire.framing import ID_FRAME_BYTES
from refold.wire.journal import JournalEntry, decode_journal
from refold.wire.owner import json_ready
from refold.wire.snapshot import decode_session, decode_snapshot, encode_snapshot

#: Sessions decoded at once: about 20 KB each, 80 MB.
LIVE_SESSIONS_MAX: Final = 4_096

#: Differences kept for the report; all are counted.
DIFFERENCES_MAX: Final = 100

#: A progress line per so many events.
PROGRESS_EVENTS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Difference:
    key: str
    what: str


@dataclass(slots=True)
class Report:
    """``equal`` of ``sessions`` sessions are stored as the journal folds. ``left_out``: in how many the part
    of a reducer was not compared, because this process cannot fold it as the workers do."""

    sessions: int = 0
    equal: int = 0
    events: int = 0
    differences: list[Difference] = field(default_factory=list)
    more_differences: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, key: str, difference: str | None) -> None:
        self.sessions += 1
        if difference is None:
            self.equal += 1
        elif len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(Difference(key, difference))
        else:
            self.more_differences += 1

    def as_json(self) -> dict[str, Any]:
        return {
            "sessions": self.sessions,
            "equal": self.equal,
            "different": self.sessions - self.equal,
            "events": self.events,
            "differences": [{"session": d.key, "difference": d.what} for d in self.differences],
            "parts_not_compared": dict(sorted(self.left_out.items())),
        }


def compare(stored: bytes | None, folded: Session | None, left_out: Counter[str] | None = None) -> str | None:
    """``None`` when equal byte for byte, else the first difference in words (field and place, no content).

    A record that an older version wrote, of a session nothing happened to since, is compared as this version
    would write it. Parts of reducers that this process cannot fold as the workers do are counted in
    ``left_out``, by name.
    """
    made = None if folded is None or not folded.exists else encode_snapshot(folded)
    if stored is not None and made is not None and stored[:ID_FRAME_BYTES] != made[:ID_FRAME_BYTES]:
        stored = encode_snapshot(decode_session(stored))
    if stored is not None and made is not None and stored != made:
        there, here = decode_session(stored), decode_session(made)
        if there.reduced or here.reduced:
            names = comparable(there, here)
            stored, made = encode_snapshot(there), encode_snapshot(here)
            if left_out is not None:
                left_out.update(names)
    if stored == made:
        return None
    if stored is None:
        return f"the journal folds to seq {folded.seq if folded else 0}, but no state is stored"
    if made is None:
        return "a state is stored, but the journal folds to none"
    shown, made_anew = json_ready(decode_snapshot(stored)), json_ready(decode_snapshot(made))
    if shown["seq"] != made_anew["seq"]:
        return f"$.seq: stored {shown['seq']}, folded {made_anew['seq']}"
    place = first_difference(shown, made_anew)
    if place is not None:
        return f"{place.split(':')[0]} differs at seq {made_anew['seq']}"
    at = next((i for i, (a, b) in enumerate(zip(stored, made, strict=False)) if a != b), len(made))
    return f"equal values, but the bytes differ from byte {at} on ({len(stored)} stored, {len(made)} folded)"


def apply(session: Session, entry: JournalEntry) -> None:
    evolve(
        session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decode_event(entry.env)
    )


async def fold_one(rf: Refold, session: str) -> Report:
    """One session, its events read through the history index."""
    chat = rf.session(session)
    view = await chat.state(min_seq=0)
    if view is None:
        raise no_session(chat.tenant, chat.id)
    report = Report()
    state = initial(chat.tenant, chat.id)
    problem: str | None = None
    async with aclosing(chat.events()) as source:
        async for event in source:
            if event.seq > view.seq:
                break
            report.events += 1
            try:
                fold_event(state, event)
            except Exception as error:
                problem = _fault(event.seq, error)
                break
    report.add(f"{chat.tenant}/{chat.id}", problem or compare(view.raw, state, report.left_out))
    return report


async def fold_all(rf: Refold, progress: Callable[[str], None]) -> Report:
    """Every session of the application: the whole state topic, then the whole journal."""
    connection = rf.connection
    names, config = connection.names, connection.reader_config
    partitions = connection.slots.partitions
    # Taken first: what was committed to the journal before these is in the state read after them.
    ends = [
        (await connection.readers.run(lambda reader, p=p: reader.end(names.journal, p)))[1]  # type: ignore[misc]
        for p in range(partitions)
    ]
    report = Report()
    with _shelf() as shelf:
        async with aclosing(batches(config, names.state, Position(names.state, {}), follow=False)) as states:
            async for batch in states:
                shelf.store(batch)
        progress(f"{shelf.stored} sessions stored; folding the journal")
        folding = _Folding(shelf, ends)
        start = Position(names.journal, {})
        async with aclosing(batches(config, names.journal, start, follow=False)) as journal:
            async for batch in journal:
                for _, message in batch:
                    folding.take(message)
                    if folding.events % PROGRESS_EVENTS == 0 and folding.events:
                        progress(f"{folding.events} events folded")
        folding.finish(report)
    return report


class _Folding:
    """Folds journal records of many sessions, each up to its stored frontier."""

    def __init__(self, shelf: _Shelf, ends: list[int]) -> None:
        self._shelf = shelf
        self._ends = ends
        self._live: OrderedDict[bytes, Session] = OrderedDict()
        self.events = 0

    def take(self, message: Message) -> None:
        key = message.key() or b""
        partition, offset = message.partition() or 0, message.offset() or 0
        try:
            entry = decode_journal(message.value())
        except InvalidRecord as error:
            self._shelf.fail(key, f"journal[{partition}] offset {offset} cannot be read: {error}")
            return
        cut = self._shelf.cut(key)
        if cut is not None and entry.offset >= cut:
            return
        if self._shelf.failed(key):
            return
        session = self._session(key)
        try:
            apply(session, entry)
        except Exception as error:
            self._shelf.fail(key, _fault(entry.seq, error))
            return
        self.events += 1
        if cut is None and offset >= self._ends[partition]:
            # No state is stored, and this came after the state was read: it may be stored by now.
            self._shelf.forgive(key)

    def _session(self, key: bytes) -> Session:
        session = self._live.get(key)
        if session is None:
            encoded = self._shelf.folded(key)
            session = initial(*split_key(key)) if encoded is None else decode_session(encoded)
            self._live[key] = session
            if len(self._live) > LIVE_SESSIONS_MAX:
                self._put_away(*self._live.popitem(last=False))
        else:
            self._live.move_to_end(key)
        return session

    def _put_away(self, key: bytes, session: Session) -> None:
        self._shelf.put(key, encode_snapshot(session) if session.exists else None)

    def finish(self, report: Report) -> None:
        while self._live:
            self._put_away(*self._live.popitem())
        report.events = self.events
        for key, stored, folded, fault in self._shelf.pairs():
            text = key.decode("utf-8", "replace")
            session = None if folded is None else decode_session(folded)
            report.add(text, fault or compare(stored, session, report.left_out))


def _fault(seq: int, error: Exception) -> str:
    if isinstance(error, InvariantViolation) and "gapless" in str(error):
        return f"the journal is not gapless at seq {seq}: {error}"
    return f"the fold raised {type(error).__name__} at seq {seq}"


class _Shelf:
    """Stored and folded bytes per key, on disk."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute(
            "CREATE TABLE shelf (key BLOB PRIMARY KEY, stored BLOB, cut INTEGER, folded BLOB, fault TEXT, "
            "forgiven INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID"
        )

    @property
    def stored(self) -> int:
        (count,) = self._db.execute("SELECT count(*) FROM shelf WHERE stored IS NOT NULL").fetchone()
        return int(count)

    def store(self, batch: Batch) -> None:
        self._db.execute("BEGIN")
        for _, message in batch:
            key, value = message.key() or b"", message.value()
            cut = (
                None
                if value is None
                else max(entry["next_offset"] for entry in decode_snapshot(value)["frontier"])
            )
            self._db.execute(
                "INSERT INTO shelf (key, stored, cut) VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET stored = excluded.stored, cut = excluded.cut",
                (key, value, cut),
            )
        self._db.execute("COMMIT")

    def cut(self, key: bytes) -> int | None:
        row = self._db.execute("SELECT cut FROM shelf WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def folded(self, key: bytes) -> bytes | None:
        row = self._db.execute("SELECT folded FROM shelf WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def failed(self, key: bytes) -> bool:
        row = self._db.execute("SELECT fault FROM shelf WHERE key = ?", (key,)).fetchone()
        return row is not None and row[0] is not None

    def put(self, key: bytes, folded: bytes | None) -> None:
        self._set(key, "folded", folded)

    def fail(self, key: bytes, fault: str) -> None:
        self._set(key, "fault", fault)

    def forgive(self, key: bytes) -> None:
        self._set(key, "forgiven", 1)

    def _set(self, key: bytes, column: str, value: object) -> None:
        self._db.execute(
            f"INSERT INTO shelf (key, {column}) VALUES (?, ?) "  # noqa: S608 -- one of three names above
            f"ON CONFLICT (key) DO UPDATE SET {column} = excluded.{column}",
            (key, value),
        )

    def pairs(self) -> Iterator[tuple[bytes, bytes | None, bytes | None, str | None]]:
        """Sessions to compare: not those that only came into being, or ended, while we were reading."""
        yield from self._db.execute(
            "SELECT key, stored, folded, fault FROM shelf "
            "WHERE NOT (stored IS NULL AND (forgiven OR (folded IS NULL AND fault IS NULL))) ORDER BY key"
        )

    def close(self) -> None:
        self._db.close()


@contextmanager
def _shelf() -> Iterator[_Shelf]:
    with tempfile.TemporaryDirectory(prefix="refold-fold-") as directory:
        shelf = _Shelf(Path(directory) / "shelf.sqlite")
        try:
            yield shelf
        finally:
            shelf.close()

"""Invariant observers, each an object of its own. They watch the broker and the disks, never the engine's
insides.

A checker reports through ``Report.fail`` and never raises: it runs inside of the engine's calls, where an
exception would be taken for the engine's.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from refold.core.evolve import evolve
from refold.core.session import Session, initial
from refold.core.slots import split_key
from refold.engine import history, rows
from refold.engine.commitmeta import CommitMeta
from refold.engine.warming.beyond import Beyond
from refold.topology.names import TopicNames
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.snapshot import encode_snapshot

from . import disk, versions
from .broker import Broker
from .group import Slot, slot_of
from .oracle import Expected, Place, Ruled
from .transactions import Decision


class Report:
    """The first difference ends a run; ``compared`` counts what was looked at, so that nothing passes
    vacuously.

    ``outcomes_only``: be deaf to the checkers that watch how a rule is kept (``EARLY``), so that only its
    consequences count: for tests of the harness itself.
    """

    def __init__(self, *, outcomes_only: bool = False) -> None:
        self.failures: list[str] = []
        self.compared: Counter[str] = Counter()
        self._outcomes_only = outcomes_only

    def fail(self, checker: str, what: str) -> None:
        if not (self._outcomes_only and checker in EARLY):
            self.failures.append(f"{checker}: {what}")


#: Checkers that see a broken rule before it has done harm.
EARLY: Final = frozenset({"rule F", "store", "offsets", "restore"})


class FoldChecker:
    """After every commit: the state records are the fold of the journal, byte for byte; the journal has no
    gap.

    Keeps a session of its own per key, fed from the journal alone.
    """

    def __init__(self, report: Report, topics: TopicNames) -> None:
        self._report = report
        self._topics = topics
        self.sessions: dict[bytes, Session] = {}
        self.partition_of: dict[bytes, int] = {}
        #: Journal offsets of a session's events since its last deletion.
        self.places: dict[bytes, list[int]] = {}
        self.events = 0

    def on_decided(self, decision: Decision) -> None:
        report, touched = self._report, dict[bytes, Session]()
        for topic, partition, entry in decision.records:
            if topic != self._topics.journal:
                continue
            key = entry.key or b""
            found = decode_journal(entry.value)
            session = self.sessions.get(key)
            if session is None:
                session = self.sessions[key] = initial(*split_key(key))
            if found.partition != partition or self.partition_of.setdefault(key, partition) != partition:
                report.fail("fold", f"{key!r} was journalled on partition {partition}, it lives elsewhere")
                return
            try:
                evolve(
                    session,
                    found.seq,
                    found.time_ms,
                    found.partition,
                    found.offset,
                    found.env,
                    decode_event(found.env),
                )
            except Exception as error:
                report.fail("fold", f"journal {partition}/{entry.offset}: {error}")
                return
            self.events += 1
            touched[key] = session
            places = self.places.setdefault(key, [])
            if session.seq == 0:
                places.clear()
            else:
                places.append(entry.offset)
        written: dict[bytes, tuple[bytes | None, bytes]] = {}
        for topic, _, entry in decision.records:
            if topic == self._topics.state:
                header = dict(entry.headers or ()).get(history.HEADER, b"")
                written[entry.key or b""] = (entry.value, header)
        if written.keys() != touched.keys():
            odd = sorted(written.keys() ^ touched.keys())
            report.fail(
                "fold", f"{decision.txid} #{decision.number}: state and journal are of other sessions: {odd}"
            )
            return
        for key, (value, header) in written.items():
            session = touched[key]
            wanted = encode_snapshot(session) if session.seq else None
            if versions.newest(value) != wanted:
                report.fail(
                    "fold", f"{decision.txid} #{decision.number}: state of {key!r} is not fold(journal)"
                )
                return
            tail = history.decode_tail(header)
            if value is not None and list(tail.offsets) != self.places[key][tail.first_seq - 1 :]:
                report.fail(
                    "history", f"{key!r}: the open block names {tail}, the journal has {self.places[key]}"
                )
                return
            report.compared["state = fold(journal)"] += 1


class OnceChecker:
    """Rule F and exactly once: every output of an inbox record in one transaction, together with its offset.

    - a transaction sends an offset for every partition it writes for, and offsets never go back;
    - each output comes from a record between the old and the new offset: two owners never both commit a
      record.
    """

    def __init__(self, report: Report, topics: TopicNames) -> None:
        self._report = report
        self._topics = topics
        self.decided: dict[Slot, int] = {}
        #: What the committed metadata says was handled beyond that (rule H5).
        self.beyond: dict[Slot, Beyond] = {}
        self.rejected: Counter[Place] = Counter()
        self.forwarded: Counter[Place] = Counter()
        #: The same for records of batches.
        self.batches_rejected: Counter[Place] = Counter()
        self.batches_forwarded: Counter[Place] = Counter()

    def on_decided(self, decision: Decision) -> None:
        report = self._report
        for topic, partition, entry in decision.records:
            if topic == self._topics.journal:
                found = decode_journal(entry.value)
                self._covered(decision, (found.partition, found.offset), "journal", found.partition)
            elif topic == self._topics.inbox and "refold-origin" not in dict(entry.headers or ()):
                # A proposal: of no record (``runs.RunChecker``).
                continue
            elif topic in (self._topics.rejected, self._topics.inbox) or (
                topic == self._topics.batches and entry.headers
            ):
                origin = dict(entry.headers or ()).get("refold-origin", b"").decode()
                source, number, offset = origin.rsplit("/", 2)
                place = (int(number), int(offset))
                if source not in (self._topics.inbox, self._topics.batches):
                    report.fail("once", f"{topic}/{partition}/{entry.offset} has origin {origin}")
                self._covered(decision, place, topic, slot_of(source, place[0]))
                if source == self._topics.inbox:
                    seen = self.rejected if topic == self._topics.rejected else self.forwarded
                else:
                    refused = topic == self._topics.rejected
                    seen = self.batches_rejected if refused else self.batches_forwarded
                seen[place] += 1
                if seen[place] > 1:
                    report.fail("once", f"record {place} is on {topic} twice")
            elif (
                topic in (self._topics.state, self._topics.history, self._topics.batches)
                and partition not in decision.offsets
            ):
                report.fail(
                    "rule F", f"{decision.txid} #{decision.number} writes for {partition} without its offset"
                )
        for partition, (sent, _) in decision.offsets.items():
            before = self.decided.get(partition, 0)
            if sent < before:
                report.fail(
                    "offsets", f"{decision.txid}: partition {partition} went back from {before} to {sent}"
                )
            self._follows(decision, partition)
            self.decided[partition] = sent
            self.beyond[partition] = after(decision, partition)
        report.compared["transactions"] += 1

    def set_back(self, slot: Slot, offset: int) -> None:
        """By an operator: records from there on are handled once more."""
        self.decided[slot] = offset
        self.beyond[slot] = Beyond(offset)

    def handled(self, slot: Slot, offset: int) -> bool:
        """As far as is committed."""
        known = self.beyond.get(slot)
        return known is not None and handled(known, offset)

    def _follows(self, decision: Decision, slot: Slot) -> None:
        """What was handled stays so: it is neither read again nor forgotten."""
        before, now = self.beyond.get(slot), after(decision, slot)
        if now.parked:
            self._report.compared["offsets with records beyond"] += 1
        for offset in range(now.low, 0 if before is None else before.position):
            if self.handled(slot, offset) and not handled(now, offset):
                self._report.fail("once", f"{decision.txid}: record {slot}/{offset} is to be handled again")

    def _covered(self, decision: Decision, place: Place, topic: str, slot: Slot) -> None:
        partition, offset = place
        sent = decision.offsets.get(slot)
        if sent is None:
            self._report.fail(
                "rule F", f"{decision.txid} #{decision.number} writes {topic} for {partition} without offset"
            )
        elif self.handled(slot, offset) or not handled(after(decision, slot), offset):
            self._report.fail(
                "once",
                f"{decision.txid} #{decision.number}: {topic} of record {place}, but it commits"
                f" {self.decided.get(slot, 0)} to {sent}",
            )


def after(decision: Decision, slot: Slot) -> Beyond:
    """What is handled once the transaction is committed."""
    sent, text = decision.offsets[slot]
    meta = CommitMeta.parse(text, sent)
    return Beyond(sent) if meta is None or meta.beyond is None else meta.beyond


def handled(known: Beyond, offset: int) -> bool:
    return offset < known.position and offset not in known.parked


class StoreChecker:
    """The disk is never ahead of what is committed, and a restored partition equals the fold of the
    journal."""

    def __init__(
        self, report: Report, topics: TopicNames, broker: Broker, fold: FoldChecker, once: OnceChecker
    ) -> None:
        self._report = report
        self._topics = topics
        self._broker = broker
        self._fold = fold
        self._once = once

    def on_write(self, path: str, batch: disk.Batch) -> None:
        mark = batch.mark
        if mark is None:
            self._report.fail("store", f"{path}: a batch without its frontier")
            return
        partition = int(path.rpartition("p")[2])
        decided = self._once.decided.get(partition, 0)
        if mark.inbox_next > decided:
            self._report.fail(
                "store", f"{path} says {mark.inbox_next}, but only {decided} is committed: ahead of the log"
            )
        batches = self._once.decided.get((self._topics.batches, partition), 0)
        if mark.batches_next > batches:
            self._report.fail(
                "store", f"{path} says {mark.batches_next} of batches, only {batches} is committed"
            )
        if mark.state_next > self._broker.log(self._topics.state, partition).end:
            self._report.fail("store", f"{path} is ahead of the state topic")
        self._report.compared["store writes"] += 1

    def on_live(self, machine: str, partition: int, offset: int, database: disk.Database) -> None:
        if self._at(machine, partition, offset):
            self._compare(machine, partition, database, None, frozenset())
            self._compare_blocks(machine, partition, database, frozenset())

    def on_served(self, machine: str, partition: int, offset: int, database: disk.Database) -> None:
        """A partition with a hole begins to be served: what it takes for known is."""
        if not self._at(machine, partition, offset):
            return
        mark = rows.Frontier.decode(database.live[rows.FRONTIER_KEY])
        if mark.hole is None:
            self._report.fail("restore", f"{machine}: {partition} is served with no hole noted")
            return
        marked = {key[1:] for key in database.live if key.startswith(rows.KNOWN)}
        if not mark.hole.marked:
            marked |= {key[1:] for key in database.live if key.startswith(rows.STATE)}
        self._compare(machine, partition, database, marked, frozenset())
        self._report.compared["served partitions"] += 1

    def on_filled(
        self, machine: str, partition: int, database: disk.Database, in_flight: frozenset[bytes]
    ) -> None:
        """One that was served goes live: commits went on, one of them may not be on the disk yet."""
        self._compare(machine, partition, database, None, in_flight)
        self._compare_blocks(machine, partition, database, in_flight)
        odd = [key for key in database.live if key.startswith((rows.KNOWN, rows.KNOWN_BLOCK))]
        if odd or rows.Frontier.decode(database.live[rows.FRONTIER_KEY]).hole is not None:
            self._report.fail("restore", f"{machine}: {partition} is live and holds {odd or 'a hole'}")
        self._report.compared["filled partitions"] += 1

    def _compare_blocks(
        self, machine: str, partition: int, database: disk.Database, besides: frozenset[bytes]
    ) -> None:
        wanted = {
            key: places
            for key, places in block_places(self._fold).items()
            if self._fold.partition_of[key.rpartition(b"#")[0]] == partition
        }
        held = {key[1:]: row for key, row in database.live.items() if key.startswith(rows.BLOCK)}
        odd = sorted(
            key
            for key in held.keys() | wanted.keys()
            if key.rpartition(b"#")[0] not in besides
            and (key not in held or list(history.decode_block(held[key])) != wanted.get(key))
        )
        if odd:
            self._report.fail("restore", f"{machine}: restored {partition} has other history blocks: {odd}")
        self._report.compared["restored history blocks"] += len(wanted)

    def _at(self, machine: str, partition: int, offset: int) -> bool:
        wanted_offset = self._once.decided.get(partition, 0)
        if offset != wanted_offset:
            self._report.fail(
                "restore", f"{machine}: {partition} goes live at {offset}, committed is {wanted_offset}"
            )
        return offset == wanted_offset

    def _compare(
        self,
        machine: str,
        partition: int,
        database: disk.Database,
        only: set[bytes] | None,
        besides: frozenset[bytes],
    ) -> None:
        held = {
            key[1:]: versions.newest(rows.snapshot_of(row))
            for key, row in database.live.items()
            if key.startswith(rows.STATE)
        }
        wanted = {
            key: encode_snapshot(session)
            for key, session in self._fold.sessions.items()
            if session.seq and self._fold.partition_of[key] == partition
        }
        odd = sorted(
            key
            for key in held.keys() | wanted.keys()
            if held.get(key) != wanted.get(key) and (only is None or key in only) and key not in besides
        )
        if odd:
            self._report.fail(
                "restore", f"{machine}: restored {partition} differs from fold(journal) in {odd}"
            )
        self._report.compared["restored partitions"] += 1


def compare_end(
    report: Report,
    broker: Broker,
    topics: TopicNames,
    expected: Expected,
    fold: FoldChecker,
    once: OnceChecker,
    *,
    hot_first: bool = False,
) -> None:
    """When all is quiet: journal, state, history, rejected and forwards are what the oracle says.

    ``hot_first``: records may have waited for their session (rule H4), so that only each session's events are
    in the order of the inbox."""
    states: dict[bytes, bytes] = {}
    for number in range(broker.partitions):
        journal = [(e.key or b"", e.value or b"") for e in broker.log(topics.journal, number).committed()]
        wanted = expected.journal.get(number, [])
        if hot_first:
            # Stable: within a session the order is kept.
            journal.sort(key=lambda item: item[0])
            wanted = sorted(wanted, key=lambda item: item[0])
        if journal != wanted:
            at = next(
                (i for i, (a, b) in enumerate(zip(journal, wanted, strict=False)) if a != b),
                min(len(journal), len(wanted)),
            )
            report.fail(
                "oracle",
                f"journal {number} differs at entry {at} ({len(journal)} entries, expected {len(wanted)})",
            )
        report.compared["journal entries"] += len(journal)
        for entry in broker.log(topics.state, number).committed():
            if entry.value is None:
                states.pop(entry.key or b"", None)
            else:
                states[entry.key or b""] = versions.newest(entry.value) or b""
    if states != expected.states():
        wanted_states = expected.states()
        odd = sorted(k for k in states.keys() | wanted_states.keys() if states.get(k) != wanted_states.get(k))
        report.fail("oracle", f"state differs for {odd}")
    report.compared["states"] += len(states)
    if dict(once.rejected) != dict.fromkeys(expected.rejected, 1):
        odd_places = sorted(once.rejected.keys() ^ expected.rejected.keys())
        report.fail("oracle", f"rejected differ: {odd_places}")
    report.compared["rejected"] += len(expected.rejected)
    if dict(once.forwarded) != dict.fromkeys(expected.forwarded, 1):
        odd_places = sorted(once.forwarded.keys() ^ expected.forwarded.keys())
        report.fail("oracle", f"forwards differ: {odd_places}")
    report.compared["forwards"] += len(expected.forwarded)
    _compare_history(report, broker, topics, fold)


def block_places(fold: FoldChecker) -> dict[bytes, list[int]]:
    """The journal offsets that the full history blocks are to name, by the blocks' keys."""
    wanted: dict[bytes, list[int]] = {}
    for key, session in fold.sessions.items():
        places = fold.places[key]
        for block in range(len(places) // history.BLOCK_EVENTS if session.seq else 0):
            first = block * history.BLOCK_EVENTS
            wanted[history.block_key(key, block)] = places[first : first + history.BLOCK_EVENTS]
    return wanted


def _compare_history(report: Report, broker: Broker, topics: TopicNames, fold: FoldChecker) -> None:
    blocks: dict[bytes, bytes] = {}
    for number in range(broker.partitions):
        for entry in broker.log(topics.history, number).committed():
            if entry.value is None:
                blocks.pop(entry.key or b"", None)
            else:
                blocks[entry.key or b""] = entry.value
    wanted = block_places(fold)
    found = {key: list(history.decode_block(value)) for key, value in blocks.items()}
    if found != wanted:
        odd = sorted(k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k))
        report.fail("history", f"blocks differ: {odd}")
    report.compared["history blocks"] += len(wanted)


def compare_ruling(report: Report, place: Place, found: Ruled, expected: Expected) -> None:
    """What a worker answers to ``GET /v1/rulings``."""
    if expected.rulings.get(place) != found:
        report.fail("rulings", f"{place}: served {found}, expected {expected.rulings.get(place)}")
    report.compared["rulings"] += 1

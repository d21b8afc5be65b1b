"""Generations in the simulation: what producers send, what must come of it, and the checker that looks at
every commit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from refold.core.envelope import Envelope
from refold.core.events import GenerationEvent
from refold.core.progress import Ack, Batch, Delta, Marker, Progress, Refused, advance, next_chain
from refold.core.slots import SlotMap, split_key
from refold.engine import rows
from refold.engine.side import kind_of
from refold.errors import InvalidRecord
from refold.topology.names import TopicNames
from refold.wire.batches import decode_item, encode_item, encode_progress, generation_key
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal

from . import disk
from .broker import Broker
from .log import PartitionLog, Stored
from .oracle import Place
from .transactions import Decision
from .workload import TENANT, Sent

#: Batches that are never sent: what a bad GenerationFinished names lies this far ahead.
NEVER: Final = 1_000

#: Sessions of their own, so that the workload's deletions and quarantines do not end every generation at
#: once.
SESSIONS: Final = ("g0", "g1", "g2")

#: A session takes 8 open ones.
OPEN_MAX: Final = 4

_MARKS: Final = {
    "GenerationStarted": "begin",
    "GenerationAttempted": "begin",
    "GenerationStopped": "stop",
    "GenerationFinished": "end",
    "GenerationFailed": "end",
}


@dataclass
class Generation:
    session: str
    generation: str
    attempt: int = 1
    seq: int = 0
    text: bytes = b""
    chain: bytes = b""
    begun: bool = False

    @property
    def key(self) -> bytes:
        return f"{TENANT}/{self.session}".encode()

    def batch(self, text: bytes) -> Batch:
        deltas = (Delta("text", 0, text),)
        self.seq += 1
        self.text += text
        self.chain = next_chain(self.chain, deltas)
        return Batch(self.generation, self.attempt, self.seq, deltas)

    def restart(self) -> None:
        self.seq, self.text, self.chain = 0, b"", b""


class Writer:
    """Makes records; numbers event ids."""

    def __init__(self, chance: random.Random, partitions: int, prefix: str = "g") -> None:
        self.chance = chance
        self.slots = SlotMap(partitions)
        self._prefix = prefix
        self._number = 0

    def record(self, key: bytes, value: bytes | None) -> Sent:
        return Sent(self.slots.partition(key), key, value, None)

    def event(self, generation: Generation, kind: str, **fields: Any) -> Sent:
        self._number += 1
        payload = encode(f"refold.event.{kind}", {"generation_id": generation.generation, **fields})
        env = Envelope(
            event_id=f"{self._prefix}-{self._number}",
            tenant=TENANT,
            session=generation.session,
            type=kind,
            event_time_ms=1_700_000_000_000 + self._number,
            payload=payload,
        )
        return self.record(generation.key, encode_envelope(env))

    def started(self, generation: Generation) -> Sent:
        return self.event(
            generation,
            "GenerationStarted",
            message_id=f"m-{generation.generation}",
            reply_to=None,
            holder="sim",
            lease_ms=60_000,
            generator="sim",
        )

    def attempted(self, generation: Generation, mode: str) -> Sent:
        generation.attempt += 1
        if mode == "restart":
            generation.restart()
        attempt = generation.attempt
        return self.event(
            generation, "GenerationAttempted", attempt=attempt, mode=mode, holder="sim", lease_ms=60_000
        )

    def finished(self, generation: Generation, *, ahead: int = 0, stopped: bool = False) -> Sent:
        text = generation.text.decode()
        message = encode(
            "refold.event.MessageAppended",
            {
                "message_id": f"m-{generation.generation}",
                "role": "assistant",
                "content": [{"type": "text", "text": text}],
            },
        )
        return self.event(
            generation,
            "GenerationFinished",
            attempt=generation.attempt,
            last_seq=generation.seq + ahead,
            length=len(generation.text),
            sha256=sha256(generation.text).hexdigest(),
            chain=generation.chain,
            stopped=stopped,
            message=message,
        )

    def failed(self, generation: Generation) -> Sent:
        return self.event(generation, "GenerationFailed", attempt=generation.attempt, code="provider_error")

    def stopped(self, generation: Generation) -> Sent:
        return self.event(generation, "GenerationStopped")

    def put(self, generation: Generation, item: Batch | Ack | Marker) -> Sent:
        return self.record(generation.key, encode_item(item))

    def noise(self, generation: Generation) -> Sent | None:
        """What is not the next batch: repeats, gaps, other attempts, acks, garbage, unknown generations."""
        name, attempt, seq = generation.generation, generation.attempt, generation.seq
        chance = self.chance.random()
        if chance < 0.06 and seq:
            return self.put(generation, Batch(name, attempt, seq, (Delta("text", 0, b"again"),)))
        if chance < 0.10:
            return self.put(generation, Batch(name, attempt, seq + 5))
        if chance < 0.14:
            return self.record(generation.key, b"\x00\x7f\xff\xff\xfe")
        if chance < 0.17:
            return self.put(generation, Batch("nobody", 1, 1))
        if chance < 0.21 and attempt > 1:
            return self.put(generation, Batch(name, attempt - 1, 1))
        if chance < 0.24:
            return self.put(generation, Batch(name, attempt, 0))
        if chance < 0.34:
            client = f"c{self.chance.randrange(3)}"
            return self.put(generation, Ack(name, attempt, client, self.chance.randrange(12)))
        return None


class GenerationWorkload:
    """Producers that write batches only after they have seen their begin on the topic.

    ``life``: in the names of generations and events, where another workload wrote to these topics before: its
    begins are not this one's."""

    def __init__(self, chance: random.Random, broker: Broker, topics: TopicNames, *, life: str = "") -> None:
        self._chance = chance
        self._broker = broker
        self._topics = topics
        self._life = life
        self._writer = Writer(chance, broker.partitions, f"g{life}")
        self._open: list[Generation] = []
        self._count = 0
        self.sent: Counter[str] = Counter()

    def step(self) -> None:
        """A burst: perhaps a new generation, some batches, perhaps an end."""
        chance = self._chance
        self._see_begins()
        if len(self._open) < OPEN_MAX * len(SESSIONS) and chance.random() < 0.4:
            session = chance.choice(SESSIONS)
            if sum(one.session == session for one in self._open) < OPEN_MAX:
                self._count += 1
                generation = Generation(session, f"n{self._life}{self._count}")
                self._open.append(generation)
                self._to_inbox(self._writer.started(generation))
        begun = [one for one in self._open if one.begun]
        if not begun:
            return
        for _ in range(chance.randrange(1, 6)):
            self._batch(chance.choice(begun))
        if chance.random() < 0.35:
            self._settle(chance.choice(begun))
        if chance.random() < 0.02:
            session = chance.choice(SESSIONS)
            self._to_inbox(self._writer.record(f"{TENANT}/{session}".encode(), None))
            self._open = [one for one in self._open if one.session != session]

    def _see_begins(self) -> None:
        waiting = [one for one in self._open if not one.begun]
        if not waiting:
            return
        seen: dict[str, int] = {}
        for number in range(self._broker.partitions):
            for entry in self._broker.log(self._topics.batches, number).committed():
                item = _item(entry)
                if isinstance(item, Marker) and item.kind == "begin":
                    seen[item.generation] = max(seen.get(item.generation, 0), item.attempt)
        for one in waiting:
            one.begun = seen.get(one.generation, 0) >= one.attempt

    def _batch(self, generation: Generation) -> None:
        noise = self._writer.noise(generation)
        if noise is None:
            text = "größer" if generation.seq % 2 else f" token {generation.seq}"
            noise = self._writer.put(generation, generation.batch(text.encode()))
        elif self._chance.random() < 0.1 and isinstance(decode_or_none(noise.value), Ack):
            partition = self._chance.randrange(self._broker.partitions)
            self.sent["misrouted"] += partition != noise.partition
            noise = noise._replace(partition=partition)
        self.sent["batches"] += 1
        self._append(self._topics.batches, noise)

    def _settle(self, generation: Generation) -> None:
        chance, writer = self._chance.random(), self._writer
        if chance < 0.15:
            self._to_inbox(writer.finished(generation, ahead=NEVER))
            return
        if chance < 0.35:
            self._to_inbox(writer.attempted(generation, self._chance.choice(("restart", "continue"))))
            generation.begun = False
            return
        if chance < 0.45:
            self._to_inbox(writer.failed(generation))
        elif chance < 0.55:
            self._to_inbox(writer.stopped(generation))
            self._to_inbox(writer.finished(generation, stopped=True))
        else:
            self._to_inbox(writer.finished(generation))
        self._open.remove(generation)

    def _to_inbox(self, record: Sent) -> None:
        self.sent["events"] += 1
        self._append(self._topics.inbox, record)

    def _append(self, topic: str, record: Sent) -> None:
        self._broker.append(topic, record.partition, record.key, record.value, record.headers)


@lru_cache(maxsize=4_096)
def decode_or_none(value: bytes | None) -> Any:
    """Every checker looks at every record again, and items are values that nobody changes."""
    try:
        return decode_item(value)
    except InvalidRecord:
        return None


def _item(entry: Stored) -> Any:
    return decode_or_none(entry.value)


class Tracks:
    """What the logs of `batches` hold, by generation; a snapshot of the moment it is made."""

    def __init__(self, logs: Sequence[PartitionLog]) -> None:
        self._entries: dict[tuple[int, bytes, str], list[tuple[Stored, Any]]] = {}
        for number, log in enumerate(logs):
            for entry in log.committed():
                item = _item(entry)
                if item is not None:
                    place = (number, entry.key or b"", item.generation)
                    self._entries.setdefault(place, []).append((entry, item))

    def progress(self, partition: int, key: bytes, generation: str, attempt: int) -> Progress | None:
        """What `batches` say of an attempt before the journal ended it or granted another: what rule G10
        compares with, if everything the producer wrote of the attempt was written before its
        GenerationFinished."""
        progress: Progress | None = None
        for entry, item in self._entries.get((partition, key, generation), ()):
            if isinstance(item, Marker) and (item.kind != "begin" or item.attempt > attempt):
                if item.kind == "stop":
                    continue
                break
            progress, _ = advance(progress, item, entry.offset, entry.time_ms)
        return progress


@dataclass
class Fold:
    """The pure rule over one partition of batches."""

    next_offset: int = 0
    progress: dict[bytes, Progress] = field(default_factory=dict)


class GenerationChecker:
    """After every commit: generation records are the pure rule's fold of exactly the batches whose offsets
    went with it; refused ones are in the rejected topic once; every event has its marker once."""

    def __init__(self, report: Any, topics: TopicNames, broker: Broker) -> None:
        self._report = report
        self._topics = topics
        self._broker = broker
        self._slots = SlotMap(broker.partitions)
        self.folds: dict[int, Fold] = {}
        self.refused: Counter[Place] = Counter()
        self._misrouted: set[Place] = set()
        self._markers: Counter[tuple[bytes, str, str, int]] = Counter()
        self._expected: Counter[tuple[bytes, str, str, int]] = Counter()
        #: Key of the session -> its open generations, as the journal says.
        self._running: dict[bytes, set[str]] = {}

    def on_decided(self, decision: Decision) -> None:
        written: dict[int, dict[bytes, bytes | None]] = {}
        for topic, partition, entry in decision.records:
            if topic == self._topics.generations and kind_of(entry.key or b"") == "generation":
                written.setdefault(partition, {})[entry.key or b""] = entry.value
            elif topic == self._topics.batches and not entry.headers:
                item = _item(entry)
                if item.kind != "forget":
                    self._markers[entry.key or b"", item.generation, item.kind, item.journal_seq] += 1
            elif topic == self._topics.journal:
                self._journalled(entry)
        for place, (sent, _) in decision.offsets.items():
            if isinstance(place, tuple):
                self._advance(decision, place[1], sent, written.pop(place[1], {}))
        if written:
            self._report.fail(
                "rule F", f"{decision.txid} #{decision.number} writes generations without their offset"
            )

    def _journalled(self, entry: Stored) -> None:
        found = decode_journal(entry.value or b"")
        key, kind = entry.key or b"", _MARKS.get(found.env.type)
        running = self._running.setdefault(key, set())
        if found.env.type == "SessionDeleted":
            for generation in running:
                self._expected[key, generation, "end", found.seq] += 1
            running.clear()
        elif kind is not None:
            event = decode_event(found.env)
            assert isinstance(event, GenerationEvent)
            self._expected[key, event.generation_id, kind, found.seq] += 1
            if kind == "begin":
                running.add(event.generation_id)
            elif kind == "end":
                running.discard(event.generation_id)

    def _advance(
        self, decision: Decision, partition: int, sent: int, written: dict[bytes, bytes | None]
    ) -> None:
        fold = self.folds.setdefault(partition, Fold())
        log = self._broker.log(self._topics.batches, partition)
        touched: set[bytes] = set()
        for entry in log.since(fold.next_offset):
            if entry.offset >= sent or entry.control is not None or log.is_aborted(entry):
                continue
            key = entry.key or b""
            try:
                split_key(entry.key)
                if self._slots.partition(key) != partition:
                    self._misrouted.add((partition, entry.offset))
                    continue
            except InvalidRecord:
                self.refused[partition, entry.offset] += 1
                continue
            item = _item(entry)
            if item is None:
                self.refused[partition, entry.offset] += 1
                continue
            full = generation_key(key, item.generation)
            before = fold.progress.get(full)
            progress, verdict = advance(before, item, entry.offset, entry.time_ms)
            if isinstance(verdict, Refused):
                if not isinstance(item, Marker):
                    self.refused[partition, entry.offset] += 1
                continue
            if progress is not None:
                fold.progress[full] = progress
            else:
                fold.progress.pop(full, None)
            if progress is not None or before is not None:
                touched.add(full)
        fold.next_offset = max(fold.next_offset, sent)
        wanted = {key: self.encoded(fold, key) for key in touched}
        if written != wanted:
            odd = sorted(k for k in wanted.keys() | written.keys() if wanted.get(k) != written.get(k))
            self._report.fail(
                "generations", f"{decision.txid} #{decision.number}: records are not fold(batches): {odd}"
            )
        self._report.compared["generation = fold(batches)"] += len(wanted)

    @staticmethod
    def encoded(fold: Fold, key: bytes) -> bytes | None:
        progress = fold.progress.get(key)
        return None if progress is None else encode_progress(key.rpartition(b"#")[2].decode(), progress)

    def on_live(self, machine: str, partition: int, database: disk.Database) -> None:
        fold = self.folds.setdefault(partition, Fold())
        held = {
            key[1:]: row
            for key, row in database.live.items()
            if key.startswith(rows.SIDE) and kind_of(key[1:]) == "generation"
        }
        wanted = {key: self.encoded(fold, key) for key in fold.progress}
        if held != wanted:
            odd = sorted(k for k in wanted.keys() | held.keys() if wanted.get(k) != held.get(k))
            self._report.fail("restore", f"{machine}: restored {partition} has other generations: {odd}")

    def compare_end(self, rejected: Counter[Place], forwarded: Counter[Place]) -> None:
        """Places of batches in the rejected topic, and of those forwarded."""
        report = self._report
        if self._markers != self._expected:
            odd = sorted(
                k
                for k in self._markers.keys() | self._expected.keys()
                if self._markers[k] != self._expected[k]
            )
            report.fail("markers", f"not once per event: {odd}")
        report.compared["markers"] += len(self._expected)
        if rejected != self.refused:
            odd_places = sorted(
                k for k in rejected.keys() | self.refused.keys() if rejected[k] != self.refused[k]
            )
            report.fail("oracle", f"refused batches differ: {odd_places}")
        report.compared["refused batches"] += len(self.refused)
        if dict(forwarded) != dict.fromkeys(self._misrouted, 1):
            report.fail("oracle", f"forwarded batches differ: {sorted(forwarded.keys() ^ self._misrouted)}")
        report.compared["forwarded batches"] += len(self._misrouted)
        stored: dict[bytes, bytes] = {}
        for number in range(self._broker.partitions):
            for entry in self._broker.log(self._topics.generations, number).committed():
                if kind_of(entry.key or b"") != "generation":
                    continue
                if entry.value is None:
                    stored.pop(entry.key or b"", None)
                else:
                    stored[entry.key or b""] = entry.value
        wanted = {key: self.encoded(fold, key) for fold in self.folds.values() for key in fold.progress}
        if stored != wanted:
            odd_keys = sorted(k for k in stored.keys() | wanted.keys() if stored.get(k) != wanted.get(k))
            report.fail("oracle", f"generation records differ: {odd_keys}")

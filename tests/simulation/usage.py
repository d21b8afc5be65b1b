"""Usage in the simulation: what is recorded, with clocks that are wrong, and the checker that looks at every
commit and every restore. Only in runs that ask for it (``Parameters.usage``).

One session is the workload's, which closes, deletes and quarantines it meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

from refold.core.envelope import Envelope
from refold.core.slots import SlotMap
from refold.engine import rows
from refold.engine.side import kind_of
from refold.engine.usage import usage_key
from refold.ops.usage.recount import Recount, differences, facts_of
from refold.topology.names import TopicNames
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.usage import decode_usage

from . import disk
from .broker import Broker
from .transactions import Decision
from .workload import TENANT

SESSIONS: Final = ("u0", "u1", "s0")
SUBJECTS: Final = ("ada", "b#/%")
MODELS: Final = ("m", "n")
#: Of ``at_ms`` against the broker's clock: on time; late for one window, for all; ahead a little, or years.
SHIFTS_MS: Final = (None, None, None, -70_000, -4_000_000, -(10**8), 200_000, 400_000, 10**12)
LEASES_MS: Final = (50, 2_000, 60_000)

REPEATED: Final = 0.2
MISROUTED: Final = 0.1


class UsageWorkload:
    def __init__(self, chance: random.Random, broker: Broker, topics: TopicNames) -> None:
        self._chance = chance
        self._broker = broker
        self._topics = topics
        self._slots = SlotMap(broker.partitions)
        self._number = 0
        self._last: tuple[bytes, bytes] | None = None

    def step(self) -> None:
        """A record on the inbox."""
        chance = self._chance
        if self._last is None or chance.random() >= REPEATED:
            self._last = self._next()
        key, value = self._last
        partition = self._slots.partition(key)
        if chance.random() < MISROUTED:
            partition = chance.randrange(self._broker.partitions)
        self._broker.append(self._topics.inbox, partition, key, value, None)

    def _next(self) -> tuple[bytes, bytes]:
        chance, now = self._chance, self._broker.kernel.now_ms
        self._number += 1
        session = chance.choice(SESSIONS)
        kind = chance.choice(("UsageRecorded",) * 5 + ("UsageAdmitted", "UsageReleased"))
        fields: dict[str, Any] = {"model": chance.choice(MODELS)}
        if kind == "UsageRecorded":
            shift = chance.choice(SHIFTS_MS)
            fields.update(input=chance.randrange(100), output=chance.randrange(10))
            fields["at_ms"] = None if shift is None else now + shift
        else:
            fields["lease_id"] = f"l{chance.randrange(6)}"
        if kind == "UsageAdmitted":
            fields["lease_ms"] = chance.choice(LEASES_MS)
        env = Envelope(
            event_id=f"usage-{self._number}",
            tenant=TENANT,
            session=session,
            type=kind,
            event_time_ms=now,
            subject=chance.choice(SUBJECTS),
            payload=encode(f"refold.event.{kind}", fields),
        )
        return f"{TENANT}/{session}".encode(), encode_envelope(env)


class UsageChecker:
    """After every commit: each row is what :mod:`refold.ops.usage.recount` counts from the journal so far; a
    row is written exactly where an event was accepted. After every restore: the rows are the committed
    ones."""

    def __init__(self, report: Any, topics: TopicNames, happened: Counter[str]) -> None:
        self._report = report
        self._topics = topics
        self._happened = happened
        self._counted: dict[tuple[int, bytes], Recount] = {}
        #: Partition -> side key -> framed record.
        self.rows: dict[int, dict[bytes, bytes]] = {}

    def on_decided(self, decision: Decision) -> None:
        touched: set[tuple[int, bytes]] = set()
        written: set[tuple[int, bytes]] = set()
        for topic, partition, entry in decision.records:
            if topic == self._topics.journal:
                found = decode_journal(entry.value)
                if found.env.type.startswith("Usage"):
                    event: Any = decode_event(found.env)
                    place = (partition, usage_key(found.env.tenant, event.subject, event.model))
                    self._counted.setdefault(place, Recount()).add(found.env.session, event, found.time_ms)
                    touched.add(place)
                    self._happened[found.env.type] += 1
        for topic, partition, entry in decision.records:
            key = entry.key or b""
            if topic == self._topics.generations and kind_of(key) == "usage":
                written.add((partition, key))
                self._compare(decision, partition, key, entry.value)
        # What was taken back is written as it was.
        if not touched <= written:
            self._fail(decision, f"no row was written for {sorted(touched - written)}")

    def _compare(self, decision: Decision, partition: int, key: bytes, value: bytes | None) -> None:
        kept = self.rows.setdefault(partition, {})
        recount = self._counted.get((partition, key))
        if value is None:
            if recount is not None and recount.used:
                self._fail(decision, f"a tombstone of {key!r}, which has {len(recount.used)} events")
            kept.pop(key, None)
            return
        kept[key] = value
        if recount is None:
            self._fail(decision, f"{key!r} on partition {partition} has a row and no events")
            return
        row = decode_usage(value)
        for now_ms in (recount.newest, recount.newest + 40_000):
            found = differences(facts_of(row, now_ms), recount.facts(now_ms))
            if found:
                self._fail(decision, f"{key!r} on partition {partition}: {'; '.join(found)}")
        self._happened["usage late"] += bool(row.late[0])
        self._happened["usage future"] += bool(row.future)
        self._report.compared["usage rows = f(journal)"] += 1

    def _fail(self, decision: Decision, what: str) -> None:
        self._report.fail("usage", f"{decision.txid} #{decision.number}: {what}")

    def on_live(self, machine: str, partition: int, database: disk.Database) -> None:
        held = {
            key[1:]: row
            for key, row in database.live.items()
            if key.startswith(rows.SIDE) and kind_of(key[1:]) == "usage"
        }
        if held != self.rows.get(partition, {}):
            self._report.fail("restore", f"{machine}: restored {partition} has other usage: {sorted(held)}")
        self._report.compared["restored usage rows"] += len(held)

"""What the topics hold against what was sent: the journal event by event, the rows against a recount.

A partition at a time, so that a million events fit: the journal of one is read, counted again
(:mod:`recount`) and compared with the rows of that partition, as the changelog and the owners have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from refold.ops.usage.recount import COUNTS, Recount, differences, facts_of
from refold.ops.usage.traffic import TENANT, Name, Sums
from refold.ops.verify.readback import Record, scan_topic
from refold.topology.names import TopicNames
from refold.wire.codec import decode
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.usage import SUBJECT, row_of

#: Differences that are told; all are counted.
TOLD_MAX: Final = 40

#: (partition, subject, model) -> the decoded record.
Rows = dict[tuple[int, str, str], dict[str, Any]]


@dataclass(slots=True)
class Findings:
    """``mismatches`` counts everything that differs; ``told`` has the first of them in words."""

    mismatches: int = 0
    told: list[str] = field(default_factory=list)
    #: UsageRecorded events in the journal, and of those the verdicts.
    recorded: int = 0
    late: int = 0
    future: int = 0
    rows: int = 0

    def differ(self, text: str, count: int = 1) -> None:
        self.mismatches += count
        if len(self.told) < TOLD_MAX:
            self.told.append(text)

    @property
    def clean(self) -> bool:
        return self.mismatches == 0


def changelog_rows(kafka: Mapping[str, Any], names: TopicNames, partitions: int) -> Rows:
    """The newest record of each usage row in the changelog. Blocks."""
    rows: Rows = {}

    def take(record: Record) -> None:
        if record.key is None or not record.key.startswith(b"usage#"):
            return
        if record.value is None:
            found = [key for key in rows if key[0] == record.partition and _key(key) == record.key]
            for key in found:
                del rows[key]
            return
        row = decode(record.value, expect=SUBJECT).record
        rows[record.partition, row["subject"], row["model"]] = row

    scan_topic(kafka, names.generations, range(partitions), take)
    return rows


def _key(key: tuple[int, str, str]) -> bytes:
    return f"usage#{TENANT}#{key[1]}#{key[2]}".encode()


def compare_journal(
    kafka: Mapping[str, Any],
    names: TopicNames,
    partitions: int,
    rows: Rows,
    sums: Mapping[Name, Sums],
    findings: Findings,
) -> None:
    """Every event that was sent is in the journal once; each row is the recount of its partition's journal;
    the rows of a subject and model add up to what was sent of them. Blocks."""
    seen: Counter[str] = Counter()
    total: dict[Name, Sums] = {}
    for partition in range(partitions):
        _partition(kafka, names, partition, rows, seen, total, findings)
    again = sum(count - 1 for count in seen.values())
    if again:
        worst = next(event_id for event_id, count in seen.items() if count > 1)
        findings.differ(f"{again} events are journalled more than once, {worst} for one", again)
    for name in sorted(sums.keys() | total.keys()):
        sent, kept = sums.get(name, Sums()), total.get(name, Sums())
        if (sent.records, sent.counts) != (kept.records, kept.counts):
            findings.differ(
                f"{'/'.join(name)}: {kept.records} records, {kept.counts} in all rows;"
                f" {sent.records} records, {sent.counts} were sent"
            )


def _partition(
    kafka: Mapping[str, Any],
    names: TopicNames,
    partition: int,
    rows: Rows,
    seen: Counter[str],
    total: dict[Name, Sums],
    findings: Findings,
) -> None:
    counted: dict[Name, Recount] = {}

    def take(record: Record) -> None:
        entry = decode_journal(record.value)
        if not entry.env.type.startswith("Usage"):
            return
        event: Any = decode_event(entry.env)
        recount = counted.get((event.subject, event.model))
        if recount is None:
            recount = counted[event.subject, event.model] = Recount()
        recount.add(entry.env.session, event, entry.time_ms)
        seen[entry.env.event_id] += 1

    scan_topic(kafka, names.journal, (partition,), take)
    for subject, model in sorted(counted.keys() | {key[1:] for key in rows if key[0] == partition}):
        place = f"partition {partition}, {subject}/{model}"
        record, recount = rows.get((partition, subject, model)), counted.get((subject, model))
        if record is None or recount is None:
            findings.differ(f"{place}: {'no row' if record is None else 'a row without events'}")
            continue
        if record["partition"] != partition:
            findings.differ(f"{place}: the row says partition {record['partition']}")
        row = row_of(record)
        # As of now, and as of later, when half of it has left the windows.
        for later_ms in (0, 30_000, 1_800_000, 43_200_000):
            now_ms = recount.newest + later_ms
            for text in differences(facts_of(row, now_ms), recount.facts(now_ms)):
                findings.differ(f"{place}, {later_ms // 1000} s on: {text}")
        findings.rows += 1
        findings.recorded += len(recount.used)
        findings.late += recount.late("minute")
        findings.future += recount.future()
        kept = total.setdefault((subject, model), Sums())
        kept.records += row.records
        for at in range(len(COUNTS)):
            kept.counts[at] += row.totals[at]


def compare_rows(what: str, rows: Rows, wanted: Rows, findings: Findings) -> None:
    """The same rows with the same content, every field."""
    for key in sorted(rows.keys() | wanted.keys()):
        got, should = rows.get(key), wanted.get(key)
        if got == should:
            continue
        if got is None or should is None:
            findings.differ(f"{what}: {key} {'is missing' if got is None else 'should not be there'}")
            continue
        fields = [name for name in should if got.get(name) != should[name]]
        findings.differ(f"{what}: {key} differs in {', '.join(fields)}")

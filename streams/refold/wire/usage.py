"""Records of usage rows: bytes <-> :class:`refold.core.usage.UsageRow`, and their keys among the side rows.

Hops are written in the order of their index, leases in the order they were admitted: equal rows are equal
bytes, however they came about.
"""

from __future__ import annotations

from typing import Any, Final

from refold.core.usage import Tally, UsageRow
from refold.wire.codec import decode, encode

SUBJECT: Final = "refold.UsageRecord"

_COUNTS: Final = ("requests", "input", "output", "cached", "reasoning")


def encode_usage(row: UsageRow, partition: int) -> bytes:
    """The framed record."""
    minute, hour, day = row.hops
    late_minute, late_hour, late_day = row.late
    return encode(
        SUBJECT,
        {
            "tenant": row.tenant,
            "subject": row.subject,
            "model": row.model,
            "partition": partition,
            "updated_ms": row.time_ms,
            "minute": _hops(minute),
            "hour": _hops(hour),
            "day": _hops(day),
            "totals": dict(zip(_COUNTS, row.totals, strict=True)),
            "records": row.records,
            "future": row.future,
            "late_minute": late_minute,
            "late_hour": late_hour,
            "late_day": late_day,
            "leases": [
                {"lease_id": lease_id, "session": session, "until_ms": until}
                for (session, lease_id), until in row.leases.items()
            ],
            "dropped": row.dropped,
        },
    )


def _hops(hops: dict[int, Tally]) -> list[dict[str, int]]:
    found = []
    for index in sorted(hops):
        requests, given, output, cached, reasoning = hops[index]
        found.append({
            "index": index,
            "requests": requests,
            "input": given,
            "output": output,
            "cached": cached,
            "reasoning": reasoning,
        })  # fmt: skip
    return found


def decode_usage(value: bytes | None) -> UsageRow:
    """The inverse of :func:`encode_usage`. Raises InvalidRecord."""
    return row_of(decode(value, expect=SUBJECT).record)


def row_of(record: dict[str, Any]) -> UsageRow:
    """From the decoded record; its partition is left to the caller."""
    row = UsageRow(record["tenant"], record["subject"], record["model"])
    row.time_ms = record["updated_ms"]
    row.hops = (_tallies(record["minute"]), _tallies(record["hour"]), _tallies(record["day"]))
    row.totals = [record["totals"][name] for name in _COUNTS]
    row.records = record["records"]
    row.future = record["future"]
    row.late = [record["late_minute"], record["late_hour"], record["late_day"]]
    row.leases = {(one["session"], one["lease_id"]): one["until_ms"] for one in record["leases"]}
    row.dropped = record["dropped"]
    return row


def _tallies(hops: list[dict[str, int]]) -> dict[int, Tally]:
    return {hop["index"]: [hop[name] for name in _COUNTS] for hop in hops}

"""What an owner says of a subject's usage (``GET /v1/usage/...``): its partitions' rows, and their sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from refold.core.usage import WINDOWS, Counts, UsageRow, leases_at, total, window_sum
from refold.errors import UnavailableError
from refold.wire.codec import decode
from refold.wire.usage import SUBJECT, row_of

#: Said by who asks.
_NAMES = ("tenant", "subject", "partition")


@dataclass(frozen=True, slots=True)
class UsageAnswer:
    """``rows``: by partition, of the model asked for or of all; empty where there is none. Partitions that
    are not live yet are in ``restoring``; those of other workers are in neither. ``now_ms``: wall clock of
    the owner."""

    now_ms: int
    rows: Mapping[int, tuple[UsageRow, ...]]
    restoring: tuple[int, ...] = ()

    @classmethod
    def from_bytes(cls, body: bytes) -> UsageAnswer:
        try:
            found = orjson.loads(body)
            return cls(
                int(found["now_ms"]),
                {
                    int(partition): tuple(row_of({"tenant": "", "subject": "", **row}) for row in rows)
                    for partition, rows in found["partitions"].items()
                },
                tuple(int(partition) for partition in found["restoring"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnavailableError(
                f"the owner sent a usage answer this client cannot read ({error}); "
                "compare the versions of worker and client"
            ) from None


def usage_json(
    now_ms: int, records: Mapping[int, Iterable[bytes]], restoring: Iterable[int], windows: Iterable[str]
) -> bytes:
    """The answer's body, from the framed rows. ``windows``: whose sums are given besides. Raises
    InvalidRecord."""
    decoded = {
        partition: [decode(record, expect=SUBJECT).record for record in framed]
        for partition, framed in records.items()
    }
    rows = [row_of(record) for found in decoded.values() for record in found]
    return orjson.dumps(
        {
            "now_ms": now_ms,
            **summary(rows, now_ms, windows),
            "partitions": {
                str(partition): [{k: v for k, v in record.items() if k not in _NAMES} for record in found]
                for partition, found in decoded.items()
            },
            "restoring": sorted(restoring),
        }
    )


def summary(rows: Iterable[UsageRow], now_ms: int, windows: Iterable[str] = WINDOWS) -> dict[str, Any]:
    """Sums for people and programs: windows, requests under way, totals and verdicts."""
    rows = list(rows)
    return {
        "windows": {name: total(window_sum(row, name, now_ms) for row in rows)._asdict() for name in windows},
        "active": sum(1 for row in rows for _ in leases_at(row, now_ms)),
        "totals": total(Counts(*row.totals) for row in rows)._asdict(),
        "records": sum(row.records for row in rows),
        "future": sum(row.future for row in rows),
        "late": {name: sum(row.late[at] for row in rows) for at, name in enumerate(WINDOWS)},
    }

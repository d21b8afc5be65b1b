"""One rejected record, which of them a command means, and which can succeed on a replay. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from refold.core.codes import way_out
from refold.core.slots import SlotMap
from refold.topology.names import TopicNames

HEADER_CODE: Final = "refold-code"
HEADER_REASON: Final = "refold-reason"
HEADER_ORIGIN: Final = "refold-origin"
HEADER_APPEND_MS: Final = "refold-append-ms"
#: Written by workers on the way here; a replayed record starts without them.
_OURS: Final = frozenset({HEADER_CODE, HEADER_REASON, HEADER_ORIGIN, HEADER_APPEND_MS, "refold-hops"})

#: Judged on the bytes, or on something that only moves forward: the same record can only be rejected again.
HOPELESS: Final = frozenset(
    {
        "bad_key",
        "key_mismatch",
        "empty_value",
        "bad_frame",
        "bad_magic",
        "unknown_subject",
        "undecodable",
        "bad_text",
        "lone_surrogate",
        "too_large",
        "bad_id",
        "bad_value",
        "conflict",
        "stale_producer",
        "too_old_to_judge",
        "expected_seq",
        "reserved_type",
        "bad_summary",
        "already_final",
        # `refold session release` replays parked events in order; a replay from here would overtake them.
        "quarantined",
        "not_quarantined",
        "release_behind",
    }
)


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """``time_ms`` is when it was rejected, ``append_ms`` when it arrived in the inbox."""

    partition: int
    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @property
    def reference(self) -> str:
        return f"{self.partition}/{self.offset}"

    @property
    def code(self) -> str:
        return self._text(HEADER_CODE) or "(none)"

    @property
    def reason(self) -> str:
        return self._text(HEADER_REASON)

    @property
    def origin(self) -> str:
        """``topic/partition/offset`` of the record in the inbox or in batches."""
        return self._text(HEADER_ORIGIN)

    @property
    def append_ms(self) -> int | None:
        text = self._text(HEADER_APPEND_MS)
        return int(text) if text.isdecimal() else None

    @property
    def original_headers(self) -> list[tuple[str, bytes]]:
        return [(name, value) for name, value in self.headers if name not in _OURS]

    def as_json(self) -> dict[str, Any]:
        """Everything but the payload."""
        return {
            "record": self.reference,
            "partition": self.partition,
            "offset": self.offset,
            "code": self.code,
            "reason": self.reason,
            "origin": self.origin,
            "time_ms": self.time_ms,
            "append_ms": self.append_ms,
            "key": readable(self.key),
            "bytes": None if self.value is None else len(self.value),
            "way_out": way_out(self.code),
            "replayable": self.code not in HOPELESS,
        }

    def _text(self, name: str) -> str:
        # The last one: a forwarded record may carry an older refold-origin of its own.
        found = [value for key, value in self.headers if key == name]
        return readable(found[-1]) or "" if found else ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are meant; an empty field selects all. Times in milliseconds, ``since`` included."""

    codes: frozenset[str] = frozenset()
    origin: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    references: frozenset[str] = frozenset()

    def takes(self, record: RejectedRecord) -> bool:
        if self.references and record.reference not in self.references:
            return False
        if self.codes and record.code not in self.codes:
            return False
        if self.origin is not None and not (record.origin + "/").startswith(self.origin.rstrip("/") + "/"):
            return False
        when = record.time_ms
        if self.since_ms is not None and (when is None or when < self.since_ms):
            return False
        return not (self.until_ms is not None and (when is None or when >= self.until_ms))


def readable(data: bytes | None) -> str | None:
    """Text where it is UTF-8, escapes where not; never fails."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def source_topic(record: RejectedRecord, names: TopicNames) -> str:
    """Where it is replayed to: the source it came from, the inbox where that cannot be told."""
    came_from = record.origin.rsplit("/", 2)[0]
    return names.batches if came_from == names.batches else names.inbox


def target_partition(record: RejectedRecord, slots: SlotMap) -> int:
    """The partition of the key; without a key the one it came from."""
    if record.key is not None:
        return slots.partition(record.key)
    parts = record.origin.rsplit("/", 2)
    came_from = int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else record.partition
    return came_from % slots.partitions

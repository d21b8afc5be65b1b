"""Where a bulk reader is: next offset per partition of one topic, as a string one can store.

A position is *after* the item it came with: starting from it yields the next item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import orjson

from refold.errors import UsageError

POSITION_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Position:
    """Next offset per partition; a partition that is not named starts at its beginning."""

    topic: str
    offsets: Mapping[int, int]

    def to_json(self) -> str:
        """One line of JSON, stable: partitions in numeric order."""
        offsets = {str(partition): self.offsets[partition] for partition in sorted(self.offsets)}
        return orjson.dumps({"v": POSITION_VERSION, "topic": self.topic, "offsets": offsets}).decode()

    __str__ = to_json

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises :class:`UsageError` for anything :meth:`to_json` has not made."""
        try:
            row = orjson.loads(text)
            if row["v"] != POSITION_VERSION:
                raise ValueError(f"version {row['v']}")
            offsets = {int(partition): int(offset) for partition, offset in row["offsets"].items()}
            if any(partition < 0 or offset < 0 for partition, offset in offsets.items()):
                raise ValueError("a negative number")
            return cls(str(row["topic"]), offsets)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"this is not a position of refold ({error}): {text[:80]!r}") from None

    @classmethod
    def of(cls, since: Position | str | None, topic: str) -> Position:
        """What a caller gave as ``since``, checked against the topic that is going to be read."""
        position = cls.from_json(since) if isinstance(since, str) else since
        if position is None:
            return cls(topic, {})
        if position.topic != topic:
            raise UsageError(
                f"the position is of topic {position.topic!r}, but {topic!r} is to be read: "
                "states() and journal() have positions of their own"
            )
        return position

"""What was read of a range, or of history, as rows: a sorted file or a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from confluent_kafka import Message

from refold.engine import rows
from refold.engine.bulk import row_of
from refold.engine.store import Batch


class Piece:
    """The last record of each key of one kind (``rows.STATE`` …). ``marked``: as in ``rows.Hole``."""

    __slots__ = ("_kind", "_last", "_marked")

    def __init__(self, kind: bytes, last: Mapping[bytes, Message], *, marked: bool = False) -> None:
        self._kind = kind
        self._last = last
        self._marked = marked

    def __len__(self) -> int:
        return len(self._last)

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Rows by full key, ascending (``None`` deletes), those of rule H3 included. Raises
        :class:`StorageError` for a record of the state topic that is no snapshot."""
        keys, kind, last = sorted(self._last), self._kind, self._last
        if kind == rows.STATE:
            for key in keys:
                if self._marked or last[key].value() is None:
                    yield rows.KNOWN + key, b""
        for key in keys:
            full_key = kind + key
            yield full_key, row_of(full_key, last[key])

    def fill(self, batch: Batch) -> None:
        """The same, into ``batch``."""
        for full_key, row in self.changes():
            if row is None:
                batch.delete(full_key)
            else:
                batch.put(full_key, row)

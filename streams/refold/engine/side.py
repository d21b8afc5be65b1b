"""Side rows: what a partition remembers beside its sessions. They share a kind of RocksDB rows
(``rows.SIDE``), a changelog (`generations`) and the commit; what is in them is their owners' business.

===========================================  =======================================  ====================
key                                          is a function of                         owner
===========================================  =======================================  ====================
``tenant/session#<generation id>``           its records on `batches`                 ``generations.py``
``usage#<tenant>#<subject>#<model>``         the partition's accepted events          ``usage.py``
``timer#<deadline>#<session key>``           the session's ``timer_ms``               ``timers.py``
===========================================  =======================================  ====================

Invariants:

- A key without ``/`` is never a generation's: a session key has one, and in a side key each part is encoded
  (:func:`side_key`).
- An overlay has one :class:`SideRow` for each row that it changes; its ``encoded`` is written in the
  overlay's transaction and put into RocksDB after it. So a side row moves with sessions, journal and offsets,
  or not at all (rule F).
- What follows from accepted events is taken back with them when their session cannot be encoded
  (:meth:`SideRow.take_back`), before the row is sealed: sessions of a partition are sealed first.
- Restores, copies, checkpoints and validation know side rows as bytes under a key, and nothing more.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Final, Protocol

from refold.errors import InvalidRecord

if TYPE_CHECKING:
    from refold.engine.overlay import Overlay, PartitionOverlay

#: What a kind's keys begin with, :func:`side_key` adds the separator.
USAGE: Final = b"usage"
TIMER: Final = b"timer"

SEPARATOR: Final = b"#"

#: Bytes that stand for themselves in a part of a side key: printable ASCII but what separates and escapes.
_PLAIN: Final = frozenset(range(0x21, 0x7F)) - frozenset(b"/#%")

_HEX_BYTES: Final = 2


class SideRow(Protocol):
    """What one overlay makes of one side row."""

    @property
    def encoded(self) -> bytes | None:
        """As set by :meth:`seal`: the framed record, or ``None`` for a tombstone."""

    def take_back(self, offsets: Container[int]) -> None:
        """Before the seal: the events of the inbox records at these offsets have not been accepted after all.
        The row is written nevertheless, as it was if nothing else changed it."""

    def seal(self) -> None:
        """Encode what the commit will write; nothing more is folded into it."""

    def confirm(self) -> None:
        """Committed and on disk."""

    def discard(self) -> None:
        """The overlay is forgotten (rule A): so is everything in memory that its fold has changed."""


class SideChange(Protocol):
    """What one accepted event does to a side row (``Effects.side``)."""

    def into(self, overlay: Overlay, part: PartitionOverlay, offset: int) -> None:
        """Fold it into the overlay's row of ``part.side``, made if it is not there. ``offset``: of the inbox
        record behind the event, by which it may be taken back. Adds to ``overlay.bytes`` what the row adds to
        the commit."""


class SideCache(Protocol):
    """An owner of side rows that remembers some of them between commits."""

    def discard_partition(self, partition: int) -> None:
        """The partition is given up, or restored anew: nothing of it is known any more."""


def side_key(kind: bytes, *parts: bytes) -> bytes:
    """``kind#part#…``, parts encoded. Order of the keys is the order of the parts' encoded bytes."""
    return SEPARATOR.join((kind, *map(_encode, parts)))


def split_side_key(key: bytes) -> tuple[bytes, list[bytes]]:
    """Kind and parts; ``InvalidRecord`` (bad_key) for a generation's key and whatever :func:`side_key` does
    not make."""
    kind, *parts = key.split(SEPARATOR)
    if b"/" in key or not kind or not parts:
        raise InvalidRecord("bad_key", "not the key of a side row")
    return kind, [_decode(part) for part in parts]


def kind_of(key: bytes) -> str:
    """``generation``, ``usage``, ``timer``: for metrics."""
    return "generation" if b"/" in key else key.partition(SEPARATOR)[0].decode("ascii", "replace")


def _encode(part: bytes) -> bytes:
    if _PLAIN.issuperset(part):
        return part
    return b"".join(b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in part)


def _decode(part: bytes) -> bytes:
    first, *escaped = part.split(b"%")
    found = [first]
    for piece in escaped:
        try:
            found.append(bytes.fromhex(piece[:_HEX_BYTES].decode("ascii")) + piece[_HEX_BYTES:])
        except ValueError:
            raise InvalidRecord("bad_key", "a part of a side key is not percent-encoded") from None
    decoded = b"".join(found)
    if _encode(decoded) != part:
        raise InvalidRecord("bad_key", "a part of a side key is encoded otherwise than a worker does")
    return decoded

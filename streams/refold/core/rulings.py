"""What the fold says of one event. Plain slotted classes: one is made per event, so they must be cheap.

The engine writes an accepted event to the journal, counts a duplicate, and sends a rejected one to the
rejected topic with its ``code``. Duplicates and rejections change no state at all.
"""

from __future__ import annotations

from typing import TypeAlias

from refold.core.codes import RejectCode


class Accepted:
    """The event becomes number ``seq`` of its session, at session time ``time_ms``."""

    __slots__ = ("seq", "time_ms")

    def __init__(self, seq: int, time_ms: int) -> None:
        self.seq = seq
        self.time_ms = time_ms

    def __repr__(self) -> str:
        return f"Accepted(seq={self.seq}, time_ms={self.time_ms})"

    def __eq__(self, other: object) -> bool:
        return type(other) is Accepted and (self.seq, self.time_ms) == (other.seq, other.time_ms)

    def __hash__(self) -> int:
        return hash((self.seq, self.time_ms))


class Duplicate:
    """The event says what is already so. ``of_seq``: the seq it repeats, 0 when it cannot be told."""

    __slots__ = ("of_seq",)

    def __init__(self, of_seq: int = 0) -> None:
        self.of_seq = of_seq

    def __repr__(self) -> str:
        return f"Duplicate(of_seq={self.of_seq})"

    def __eq__(self, other: object) -> bool:
        return type(other) is Duplicate and self.of_seq == other.of_seq

    def __hash__(self) -> int:
        return hash(self.of_seq)


class Rejected:
    """The event is refused. ``code`` is one of :mod:`refold.core.codes`; ``reason`` holds no payload text."""

    __slots__ = ("code", "reason")

    def __init__(self, code: RejectCode, reason: str) -> None:
        self.code: RejectCode = code
        self.reason = reason

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code}: {self.reason})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Rejected) and self.code == other.code

    def __hash__(self) -> int:
        return hash(self.code)


class Parked(Rejected):
    """Rejected with ``quarantined``, and to be replayed later: beside the rejected record the engine journals
    a ``SessionEventParked`` event, so that a release can tell whether it has replayed everything."""

    __slots__ = ()


Ruling: TypeAlias = Accepted | Duplicate | Rejected

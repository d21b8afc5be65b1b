"""Small Avro pieces for the hand-written snapshot codec: numbers and texts, and a cursor to read them.

Encoded times and offsets are five to seven bytes long and two of them are written per snapshot, so they are
written without a loop.
"""

from __future__ import annotations

from typing import Final

from refold.wire.varint import LENGTHS, read_length, read_more, zlong

NULL: Final = b"\x00"
SOME: Final = b"\x02"
TRUE: Final = b"\x01"
FALSE: Final = b"\x00"
END: Final = b"\x00"


def number(value: int) -> bytes:
    """A long, fast for what snapshots hold: small counts, and times and offsets below 2^48."""
    if 0 <= value < 1024:
        return LENGTHS[value]
    if 0 < value < 0x2000000:
        return zlong(value)
    z = value << 1
    if 1 << 35 <= z < 1 << 42:
        return bytes(
            (
                z & 127 | 128,
                z >> 7 & 127 | 128,
                z >> 14 & 127 | 128,
                z >> 21 & 127 | 128,
                z >> 28 & 127 | 128,
                z >> 35,
            )
        )
    if 1 << 42 <= z < 1 << 49:
        return bytes(
            (
                z & 127 | 128,
                z >> 7 & 127 | 128,
                z >> 14 & 127 | 128,
                z >> 21 & 127 | 128,
                z >> 28 & 127 | 128,
                z >> 35 & 127 | 128,
                z >> 42,
            )
        )
    return zlong(value)


def text(value: str) -> bytes:
    data = value.encode()
    length = len(data)
    return (LENGTHS[length] if length < 1024 else zlong(length)) + data


def blob(value: bytes) -> bytes:
    return number(len(value)) + value


def optional_text(value: str | None) -> bytes:
    return NULL if value is None else SOME + text(value)


def optional_number(value: int | None) -> bytes:
    return NULL if value is None else SOME + number(value)


def boolean(value: bool) -> bytes:
    return TRUE if value else FALSE


def array(items: list[bytes]) -> bytes:
    """One block, or none when empty."""
    return END if not items else number(len(items)) + b"".join(items) + END


class Cursor:
    """Reads pieces in order. Raises ValueError or IndexError where the bytes are not such pieces."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def number(self) -> int:
        n = self.data[self.at]
        self.at += 1
        if n > 127:
            n, self.at = read_more(self.data, self.at, n)
        return (n >> 1) ^ -(n & 1)

    def length(self) -> int:
        n = self.data[self.at]
        self.at += 1
        if n & 129:
            n, self.at = read_length(self.data, self.at, n)
            return n
        return n >> 1

    def blob(self) -> bytes:
        n = self.data[self.at]
        at = self.at + 1
        if n & 129:
            n, at = read_length(self.data, at, n)
        else:
            n >>= 1
        self.at = at + n
        if self.at > len(self.data):
            raise IndexError("ends early")
        return self.data[at : self.at]

    def text(self) -> str:
        return self.blob().decode()

    def some(self) -> bool:
        n = self.data[self.at]
        self.at += 1
        if n not in (0, 2):
            raise ValueError("no such branch")
        return n == 2

    def optional_text(self) -> str | None:
        return self.text() if self.some() else None

    def optional_number(self) -> int | None:
        return self.number() if self.some() else None

    def boolean(self) -> bool:
        n = self.data[self.at]
        self.at += 1
        if n > 1:
            raise ValueError("no boolean")
        return n == 1

    def count(self) -> int:
        """Items of the array that begins here, in the one block we write; 0 for an empty one."""
        return self.length()

    def end(self, count: int) -> None:
        """The end of an array of ``count`` items; an empty one had its end where its count is."""
        if count:
            if self.data[self.at] != 0:
                raise ValueError("more than one block")
            self.at += 1

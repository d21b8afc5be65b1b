"""Kafka's primitive types: what requests are written with and answers are read with.

Both encodings: the first, and the "compact" one of KIP-482 (lengths as unsigned varints of length + 1, tagged
fields at the end of each structure, of which we write none).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

Made = TypeVar("Made")

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")


class Writer:
    __slots__ = ("out",)

    def __init__(self) -> None:
        self.out = bytearray()

    def i8(self, value: int) -> Writer:
        self.out += value.to_bytes(1, "big", signed=True)
        return self

    def i16(self, value: int) -> Writer:
        self.out += _I16.pack(value)
        return self

    def i32(self, value: int) -> Writer:
        self.out += _I32.pack(value)
        return self

    def i64(self, value: int) -> Writer:
        self.out += _I64.pack(value)
        return self

    def string(self, value: str | None) -> Writer:
        if value is None:
            return self.i16(-1)
        data = value.encode()
        self.i16(len(data))
        self.out += data
        return self

    def blob(self, value: bytes | bytearray | memoryview) -> Writer:
        self.i32(len(value))
        self.out += value
        return self

    def compact_blob(self, value: bytes | bytearray | memoryview) -> Writer:
        self.uvarint(len(value) + 1)
        self.out += value
        return self

    def uvarint(self, value: int) -> Writer:
        while value > 0x7F:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)
        return self

    def compact(self, value: str | None) -> Writer:
        if value is None:
            return self.uvarint(0)
        data = value.encode()
        self.uvarint(len(data) + 1)
        self.out += data
        return self

    def tags(self) -> Writer:
        """No tagged fields."""
        self.out.append(0)
        return self


class Reader:
    """Raises IndexError or struct.error at the end of the answer."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def i8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def i16(self) -> int:
        value: int = _I16.unpack_from(self._data, self._at)[0]
        self._at += 2
        return value

    def i32(self) -> int:
        value: int = _I32.unpack_from(self._data, self._at)[0]
        self._at += 4
        return value

    def i64(self) -> int:
        value: int = _I64.unpack_from(self._data, self._at)[0]
        self._at += 8
        return value

    def string(self) -> str | None:
        length = self.i16()
        return None if length < 0 else self._take(length).decode()

    def array(self, one: Callable[[Reader], Made]) -> list[Made]:
        return [one(self) for _ in range(max(self.i32(), 0))]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def compact(self) -> str | None:
        length = self.uvarint()
        return None if length == 0 else self._take(length - 1).decode()

    def compact_array(self, one: Callable[[Reader], Made]) -> list[Made]:
        return [one(self) for _ in range(max(self.uvarint() - 1, 0))]

    def tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self._take(self.uvarint())

    def tagged(self) -> dict[int, bytes]:
        """The tagged fields by number."""
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(self.uvarint())}

    def rest(self) -> bytes:
        return self._data[self._at :]

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise IndexError("the answer ends early")
        taken = self._data[self._at : end]
        self._at = end
        return taken

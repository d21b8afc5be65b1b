"""Avro's variable-length zig-zag numbers, written and read strictly.

Reading refuses what no encoder writes (more bytes than needed, more than 64 bits): one value has one
encoding, so bytes that were accepted can be spliced into other records and compared as bytes.
"""

from __future__ import annotations

from typing import Final

INT_MIN: Final = -(1 << 31)
INT_MAX: Final = (1 << 31) - 1
LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1

#: An unsigned 64-bit number in groups of 7 bits: ceil(64 / 7).
VARINT_MAX_BYTES: Final = 10


def zlong(value: int) -> bytes:
    """The Avro encoding of a long (or int). Raises OverflowError outside 64 bits."""
    if not LONG_MIN <= value <= LONG_MAX:
        raise OverflowError(f"{value} does not fit a 64-bit long")
    rest = (value << 1) ^ (value >> 63)
    if rest < 128:
        return ONE_BYTE[rest]
    # Fourteen bits at a time: counters and offsets take one round, instants three.
    out = b""
    while rest >= 16_384:
        out += _GOES_ON[rest & 16_383]
        rest >>= 14
    return out + (ONE_BYTE[rest] if rest < 128 else _TWO_BYTES[rest])


#: The encodings of one byte, by the zig-zag number.
ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))
#: Two bytes that end a number, and two that more bytes follow: 16 384 entries each, 1.2 MB together.
_TWO_BYTES: Final = tuple(bytes((n & 127 | 128, n >> 7)) for n in range(16_384))
_GOES_ON: Final = tuple(bytes((n & 127 | 128, n >> 7 | 128)) for n in range(16_384))

#: Encoded lengths of short strings: 0 … 1023 covers ids, names and most messages.
LENGTHS: Final = tuple(zlong(n) for n in range(1024))


def read_more(data: bytes, at: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte (``first`` > 127) is read: (zig-zag number, next position).

    Raises ValueError for an encoding no writer makes, IndexError where the bytes end early.
    """
    byte = data[at]
    at += 1
    value = first & 127 | (byte & 127) << 7
    shift = 14
    while byte > 127:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if shift > 70:
            raise ValueError("a number of more than 64 bits")
    if byte == 0:
        raise ValueError("a number with needless bytes")
    if value >> 64:
        raise ValueError("a number of more than 64 bits")
    return value, at


def read_zlong(data: bytes, at: int) -> tuple[int, int]:
    """(value, next position). Raises ValueError or IndexError as :func:`read_more` does."""
    number = data[at]
    at += 1
    if number > 127:
        number, at = read_more(data, at, number)
    return (number >> 1) ^ -(number & 1), at


def read_length(data: bytes, at: int, first: int) -> tuple[int, int]:
    """A length whose first byte is odd or > 127: as :func:`read_more`, and ValueError when negative."""
    number = first
    if number > 127:
        number, at = read_more(data, at, number)
    if number & 1:
        raise ValueError("a negative length")
    return number >> 1, at

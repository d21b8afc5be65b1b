"""AWS event stream frames (``application/vnd.amazon.eventstream``), as Bedrock sends them, cut anywhere.

A frame: total length, length of the headers, CRC-32 of those 8 bytes, headers, payload, CRC-32 of all before.
Integers are big-endian. A Bedrock event's payload is the value of a converse event, its name is the header
``:event-type``; together they are the object that boto3 gives: ``{"contentBlockDelta": {...}}``.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, Final

from refold.errors import InvalidRecord

_PRELUDE: Final = struct.Struct(">III")
_CRC_BYTES: Final = 4
#: Of the protocol: a frame is at most 24 MiB.
FRAME_BYTES_MAX: Final = 24 * 1024 * 1024
#: Type of a header whose value is a string with a 2-byte length, the only one Bedrock uses.
_STRING: Final = 7


class Frames:
    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The events that are whole now. Raises InvalidRecord (``bad_frame``, ``bad_json``)."""
        self._pending += data
        made: list[dict[str, Any]] = []
        while len(self._pending) >= _PRELUDE.size:
            total, headers, crc = _PRELUDE.unpack_from(self._pending)
            if zlib.crc32(self._pending[:8]) != crc or not _PRELUDE.size + headers < total <= FRAME_BYTES_MAX:
                raise InvalidRecord("bad_frame", "this is no AWS event stream: a frame's prelude is broken")
            if len(self._pending) < total:
                break
            frame, self._pending = self._pending[:total], self._pending[total:]
            if zlib.crc32(frame[:-_CRC_BYTES]) != int.from_bytes(frame[-_CRC_BYTES:], "big"):
                raise InvalidRecord("bad_frame", "a frame of the AWS event stream fails its checksum")
            start = _PRELUDE.size + headers
            made.append(_event(_headers(frame[_PRELUDE.size : start]), frame[start:-_CRC_BYTES]))
        return made


def is_frames(data: bytes) -> bool:
    """Whether ``data`` begins like such a stream: lengths are small, so their first byte is 0."""
    return data[:1] == b"\0"


def _headers(data: bytes) -> dict[str, str]:
    made: dict[str, str] = {}
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        if end + 3 > len(data) or data[end] != _STRING:
            raise InvalidRecord("bad_frame", "a header of the AWS event stream is no string")
        size = int.from_bytes(data[end + 1 : end + 3], "big")
        name, value = data[at + 1 : end], data[end + 3 : end + 3 + size]
        made[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        at = end + 3 + size
    return made


def _event(headers: dict[str, str], payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload.decode("utf-8")) if payload else {}
    except ValueError:
        raise InvalidRecord("bad_json", "an event of the AWS event stream is no JSON") from None
    if headers.get(":message-type") == "error":
        error = {"code": headers.get(":error-code", ""), "message": headers.get(":error-message", "")}
        return {"internalServerException": error}
    name = headers.get(":event-type") or headers.get(":exception-type") or ""
    if isinstance(value, dict):
        value.pop("p", None)  # Padding of random length, against guessing texts by their size.
    return {name: value}

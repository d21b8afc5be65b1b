"""Server-sent events and JSON lines, cut anywhere -> the JSON objects in them.

Only the data matters: every provider names the event inside its JSON, so ``event:``, ``id:``, ``retry:`` and
comments are passed over, and so is ``[DONE]`` (:attr:`Lines.done`). A line ends with CR, LF or CRLF. A data
line that is a whole JSON object needs no end: so the lines of ``iter_lines`` (which takes ends off) and the
last line of a body are read. A line that is a JSON object itself is data, with or without ``data:``.

Reading is lenient where the strict reader of files is not (NaN, a key twice): a broken log probability must
not end an answer. What of it would be kept is refused when the message is written.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from refold.errors import InvalidRecord

#: One event. The largest recorded one has 64 KiB (a search's results). A ``response.completed`` repeats a
#: whole answer: 128 Ki tokens x 8 bytes are 1 MiB, and its tool results and encrypted reasoning stay below
#: 15 more.
EVENT_BYTES_MAX: Final = 16 * 1024 * 1024

_END: Final = re.compile(rb"\r\n|\n|\r")
_FIELD: Final = re.compile(rb"(?:data|event|id|retry)?:")
_DONE: Final = b"[DONE]"


class Lines:
    """Feed it bytes in any cuts. ``done`` is whether ``[DONE]`` came, ``fresh`` whether nothing came yet."""

    __slots__ = ("_event", "_tail", "done", "fresh")

    def __init__(self) -> None:
        self.fresh = True
        self._tail = bytearray()
        self._event: list[bytes] = []
        self.done = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The objects that are whole now.

        Raises InvalidRecord: ``bad_json``, ``bad_utf8``, ``too_large``. Does not block.
        """
        self.fresh = self.fresh and not data
        if _says_nothing(self._tail) and (not data or _FIELD.match(data)):
            self._tail.clear()  # A line of iter_lines.
        lines: list[bytes] = []
        if b"\n" in data or b"\r" in data:
            *lines, data = _END.split(bytes(self._tail) + data)
            self._tail.clear()
        self._tail += data
        if len(self._tail) + sum(map(len, self._event)) > EVENT_BYTES_MAX:
            raise InvalidRecord(
                "too_large",
                f"one event of the stream is larger than {EVENT_BYTES_MAX} bytes: is it an event stream?",
            )
        made = [found for line in lines for found in self._line(line)]
        if self._tail[-16:].rstrip().endswith((b"}", _DONE)):
            said = _data(bytes(self._tail))
            if said == _DONE or (said and not self._event and _object(said) is not None):
                self._tail.clear()
                made += self._data(said)
        return made

    def _line(self, line: bytes) -> list[dict[str, Any]]:
        said = _data(line)
        if said is not None:
            return self._data(said)
        if not line.strip() and self._event:
            self._event.clear()
            raise InvalidRecord("bad_json", "an event of the stream is no JSON object")
        return []

    def _data(self, said: bytes) -> list[dict[str, Any]]:
        if said == _DONE:
            self.done = True
            return []
        if not said and not self._event:
            return []
        self._event.append(said)
        found = _object(b"\n".join(self._event))
        if found is None:
            return []  # An object over several data lines. The empty line after an event settles it.
        self._event.clear()
        return [found]


def _says_nothing(line: bytearray) -> bool:
    return _FIELD.match(line) is not None and not line.startswith(b"data:")


def _data(line: bytes) -> bytes | None:
    line = line.removeprefix(b"\xef\xbb\xbf")
    if line.startswith(b"data:"):
        return line[5:].strip()
    line = line.strip()
    return line if line.startswith(b"{") else None


def _object(said: bytes) -> dict[str, Any] | None:
    if not (said.startswith(b"{") and said.endswith(b"}")):
        return None
    try:
        value = json.loads(said.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRecord(
            "bad_utf8", f"an event of the stream is not UTF-8 (byte {error.start}): {error.reason}"
        ) from None
    except RecursionError:
        raise InvalidRecord("bad_json", "an event of the stream is nested too deeply to be read") from None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None

"""Plain text: every chunk is text. Bytes are UTF-8, cut anywhere."""

from __future__ import annotations

import codecs
from typing import Any, Final

from refold.errors import InvalidRecord, UsageError
from refold.formats.body import Body, mark_format, message_body
from refold.formats.parts import Part, text
from refold.formats.streams.base import Parser
from refold.formats.streams.delta import TEXT, Delta

FORMAT: Final = "text"


class TextParser(Parser):
    """Nothing marks the end: the stream is complete when it ends, which must not be inside a character."""

    format = FORMAT

    def __init__(self) -> None:
        super().__init__()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._words = self._piece(TEXT)

    @property
    def complete(self) -> bool:
        return self._closed

    def feed(self, chunk: Any) -> list[Delta]:
        """The text of a chunk. Raises UsageError for a chunk that is none."""
        if self._closed:
            raise UsageError("the stream was finished; a new stream needs a new parser")
        if isinstance(chunk, str):
            self._say(self._words, chunk)
        elif isinstance(chunk, bytes | bytearray | memoryview):
            self._say(self._words, self._decoded(bytes(chunk)))
        else:
            raise UsageError(
                f"a chunk of type {type(chunk).__name__} is no text: format 'text' takes str and bytes"
            )
        made, self._deltas = self._deltas, []
        return made

    def _decoded(self, data: bytes) -> str:
        try:
            return self._decoder.decode(data)
        except UnicodeDecodeError as error:
            raise InvalidRecord("bad_utf8", f"a chunk of the stream is not UTF-8: {error.reason}") from None

    def _body(self, message_id: str, fields: dict[str, Any]) -> Body:
        if self._decoder.getstate()[0]:
            raise InvalidRecord("bad_utf8", "the stream ends inside a character")
        said = self._words.text
        content: list[Part] = [text(said)] if said else []
        return mark_format(message_body(message_id, "assistant", content, extra=None, **fields), FORMAT)

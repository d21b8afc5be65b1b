"""Which format a stream has, from its first payload; and the parser that decides so.

The rule of ``auto``, in this order:

1. A string is plain text, unless its first line reads like an event stream (``data: {``, ``data: [DONE]``,
   ``event: name``, ``: comment``) or is one whole JSON object of a known shape.
2. Bytes are an event stream, JSON lines or an AWS event stream; never plain text.
3. Objects (of an SDK, dicts, or those in the stream) are told apart by :func:`format_of`.

What is none of these is refused with its shape. A stream without any chunk is an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from refold.core.progress import TokenUsage
from refold.errors import UsageError
from refold.formats.body import Body
from refold.formats.streams import bedrock, cohere
from refold.formats.streams.anthropic import AnthropicParser
from refold.formats.streams.base import Parser, StreamParser, UsageMode
from refold.formats.streams.bedrock import BedrockParser
from refold.formats.streams.chunks import Chunks, plain
from refold.formats.streams.cohere import CohereParser
from refold.formats.streams.delta import Delta, StreamError
from refold.formats.streams.google import GoogleParser
from refold.formats.streams.interactions import InteractionsParser
from refold.formats.streams.openai import OpenAIParser
from refold.formats.streams.responses import ResponsesParser
from refold.formats.streams.shape import shape
from refold.formats.streams.sse import Lines
from refold.formats.streams.text import TextParser

AUTO: Final = "auto"
PARSERS: Final[Mapping[str, Callable[[], Parser]]] = {
    parser.format: parser
    for parser in (
        OpenAIParser,
        ResponsesParser,
        AnthropicParser,
        TextParser,
        BedrockParser,
        GoogleParser,
        InteractionsParser,
        CohereParser,
    )
}
FORMATS: Final = (*PARSERS, AUTO)

_ANTHROPIC: Final = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
     "message_stop", "ping", "message"}
)  # fmt: skip
_EVENT_LINE: Final = re.compile(
    r"\ufeff?(?:data: ?(?:\{|\[DONE\])|event: ?[\w.\-]+\s*(?:[\r\n]|$)|:(?: |[\r\n]|$))"
)


def format_of(payload: Mapping[str, Any]) -> str | None:
    """The format of a payload, by its keys and types alone; ``None`` for an unknown shape."""
    kind = payload.get("type")
    kind = kind if isinstance(kind, str) else ""
    event = payload.get("event_type")
    said_object = payload.get("object")
    if isinstance(payload.get("choices"), list) or str(said_object).startswith("chat.completion"):
        return OpenAIParser.format
    if kind == "chunk" and isinstance(payload.get("chunk"), Mapping):
        return OpenAIParser.format
    if kind.startswith("response.") or said_object == "response":
        return ResponsesParser.format
    if kind == "error":
        return ResponsesParser.format if "sequence_number" in payload else AnthropicParser.format
    if kind in _ANTHROPIC:
        return AnthropicParser.format
    if kind in cohere.EVENTS:
        return CohereParser.format
    if isinstance(event, str) and event.startswith(("interaction.", "step.")):
        return InteractionsParser.format
    if isinstance(payload.get("candidates"), list) or {"usageMetadata", "promptFeedback"} & payload.keys():
        return GoogleParser.format
    if bedrock.EVENTS & payload.keys() or (len(payload) == 1 and next(iter(payload)).endswith("Exception")):
        return BedrockParser.format
    return OpenAIParser.format if isinstance(payload.get("error"), Mapping) else None


def _is_text(chunk: str) -> bool:
    if _EVENT_LINE.match(chunk):
        return False
    if chunk.lstrip().startswith("{") and chunk.rstrip().endswith("}"):
        try:
            found = Lines().feed(chunk.encode("utf-8") + b"\n")
        except (UnicodeEncodeError, ValueError):
            return True
        return not (found and format_of(found[0]))
    return True


def parser_for(format: str = AUTO, first_chunk: Any = None) -> StreamParser:  # noqa: A002 - the SDK's word
    """A parser of ``format``; of ``auto``, one that decides by the first chunk (not consumed here: feed it).

    Raises UsageError for an unknown format, and for a ``first_chunk`` of an unknown shape.
    """
    if format == AUTO:
        made = AutoParser()
        if first_chunk is not None:
            made.decide(first_chunk)
        return made
    if format not in PARSERS:
        raise UsageError(f"there is no stream format {format!r}; choose {', '.join(FORMATS)}")
    return PARSERS[format]()


class AutoParser:
    """Decides by the first payload and then does what that format's parser does."""

    def __init__(self) -> None:
        self._chunks = Chunks()
        self._inner: Parser | None = None

    @property
    def format(self) -> str:
        """The format decided on; ``auto`` until then."""
        return AUTO if self._inner is None else self._inner.format

    def decide(self, chunk: Any) -> None:
        """Settle the format by a chunk, where it can be told from this one."""
        if self._inner is not None:
            return
        if isinstance(chunk, str) and chunk and self._chunks.fresh and _is_text(chunk):
            self._inner = TextParser()
        elif isinstance(chunk, Mapping):
            self._inner = _parser_of(chunk)
        elif hasattr(chunk, "model_dump"):
            self._inner = _parser_of(plain(chunk))

    def feed(self, chunk: Any) -> list[Delta]:
        """The deltas of a chunk, as of :class:`StreamParser`."""
        self.decide(chunk)
        if isinstance(self._inner, TextParser):
            return self._inner.feed(chunk)
        made: list[Delta] = []
        for payload in self._chunks.read(chunk):
            if self._inner is None:
                self._inner = _parser_of(payload)
            made += self._inner.feed(payload)
        return made

    def finish(self, *, message_id: str = "", **fields: Any) -> Body:
        """The message, as of :class:`StreamParser`."""
        if self._inner is None:
            self._inner = TextParser()
        return self._inner.finish(message_id=message_id, **fields)

    @property
    def finish_reason(self) -> str | None:
        return self._inner.finish_reason if self._inner else None

    @property
    def usage(self) -> TokenUsage | None:
        return self._inner.usage if self._inner else None

    @property
    def usage_mode(self) -> UsageMode:
        return self._inner.usage_mode if self._inner else "total"

    @property
    def provider_response_id(self) -> str | None:
        return self._inner.provider_response_id if self._inner else None

    @property
    def model(self) -> str | None:
        return self._inner.model if self._inner else None

    @property
    def error(self) -> StreamError | None:
        return self._inner.error if self._inner else None

    @property
    def restarts(self) -> int:
        return self._inner.restarts if self._inner else 0

    @property
    def complete(self) -> bool:
        return self._chunks.done or (self._inner is not None and self._inner.complete)


def _parser_of(payload: Mapping[str, Any]) -> Parser:
    found = format_of(payload)
    if found is None:
        raise UsageError(
            f"the stream begins with {shape(payload)}, which is no known format. Name one of "
            f"{', '.join(PARSERS)}, or turn the chunks into plain text"
        )
    return PARSERS[found]()

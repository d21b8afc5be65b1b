"""What every parser of a provider's stream does, and what its user sees of it.

Invariants:

P1  The ``text`` deltas, joined, are the provider's text byte for byte; each byte is handed out once.
P2  Arguments of tools are raw text, handed on as they came, never completed or repaired.
P3  Whatever the provider may add (event types, keys) does not end a stream: events nobody knows are counted
    by name under ``$refold.stream`` of the message's extra. A stream of which nothing is understood is
    refused.
P4  The first finish reason stays. Markers after it, and content after it, are counted, and the content kept.
P5  Usage is a running total in every format here (``usage_mode``); that is declared, not guessed from values.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol

from refold.core.progress import TokenUsage
from refold.errors import InvalidRecord, UsageError
from refold.formats.body import Body
from refold.formats.extra import pack, unpack
from refold.formats.streams.chunks import Chunks, Payload
from refold.formats.streams.delta import OTHER, Delta, StreamError, error_of
from refold.formats.streams.pieces import Piece
from refold.formats.streams.shape import shape

UsageMode = Literal["total", "delta"]

#: Text, arguments and reasoning of one stream. The largest outputs are 128 Ki tokens, at 8 bytes a token 1
#: MiB; 64 MiB is far beyond any of them and far below what would endanger the process.
STREAM_BYTES_MAX: Final = 64 * 1024 * 1024
#: Blocks, items, calls. Recorded answers have at most 30.
PIECES_MAX: Final = 10_000
#: Names of unknown events that are counted one by one; the others are counted together.
UNKNOWN_NAMES_MAX: Final = 32
UNKNOWN_NAME_CHARS_MAX: Final = 64


class StreamParser(Protocol):
    """One stream. Not thread-safe; never blocks."""

    @property
    def format(self) -> str:
        """As in ``parser_for``; of ``auto``, the one decided on."""

    @property
    def finish_reason(self) -> str | None:
        """The provider's own word, from the first marker; ``None`` until there was one."""

    @property
    def usage(self) -> TokenUsage | None:
        """Tokens as far as said by now."""

    @property
    def usage_mode(self) -> UsageMode: ...

    @property
    def provider_response_id(self) -> str | None: ...

    @property
    def model(self) -> str | None: ...

    @property
    def error(self) -> StreamError | None:
        """The provider's error event. What came before it is kept."""

    @property
    def complete(self) -> bool:
        """Whether the provider said that this was all."""

    @property
    def restarts(self) -> int:
        """How often the answer began anew within the stream; what came before is not in the message."""

    def feed(self, chunk: Any) -> list[Delta]:
        """The deltas of one chunk, in order; often none.

        Raises InvalidRecord for what cannot be kept (``lone_surrogate``, ``bad_json``, ``too_large``),
        UsageError for a chunk of another shape or several choices.
        """

    def finish(self, *, message_id: str = "", **fields: Any) -> Body:
        """The assistant's message as far as it came, as a ``MessageBody``.

        ``fields`` are further keys of the body. May be called again; feeding afterwards is a UsageError.
        Raises InvalidRecord as ``feed``, UsageError when no chunk was of the format.
        """


class Parser:
    """The common part. A format implements ``_take`` (one payload) and ``_body``."""

    #: As in ``parser_for``.
    format: str = ""
    usage_mode: UsageMode = "total"

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.usage: TokenUsage | None = None
        self._usage_before = TokenUsage()
        self.provider_response_id: str | None = None
        self.model: str | None = None
        self.error: StreamError | None = None
        self.restarts = 0
        self.finishes = 0
        self.after_finish = 0
        self._chunks = Chunks()
        self._ended = False
        self._closed = False
        self._deltas: list[Delta] = []
        self._pieces: list[Piece] = []
        self._bytes = 0
        self._understood = 0
        self._unknown: dict[str, int] = {}
        self._first_unknown = ""

    @property
    def complete(self) -> bool:
        return self._ended or self._chunks.done or self.finish_reason is not None

    def feed(self, chunk: Any) -> list[Delta]:
        if self._closed:
            raise UsageError("the stream was finished; a new stream needs a new parser")
        for payload in self._chunks.read(chunk):
            self._understood += 1
            self._take(payload)
        made, self._deltas = self._deltas, []
        return made

    def finish(self, *, message_id: str = "", **fields: Any) -> Body:
        if self._unknown and not self._understood and self.error is None:
            raise UsageError(
                f"no chunk of the stream is of format {self.format!r}; the first was {self._first_unknown}. "
                "Choose another format, or 'auto'"
            )
        self._closed = True
        for piece in self._pieces:
            piece.close(cut=not self.complete)
        usage = None if self.usage is None else self.usage._asdict()
        named = {"model": self.model, "finish_reason": self.finish_reason, "usage": usage}
        # Calls without an id are named after the message; two messages without a name must not share theirs.
        known = {key: value for key, value in named.items() if value is not None}
        body = self._body(message_id or self.provider_response_id or "", {**known, **fields})
        return self._marked({**body, "message_id": message_id})

    # ---- for the formats -------------------------------------------------------------------------------

    def _take(self, payload: Payload) -> None:
        raise NotImplementedError

    def _body(self, message_id: str, fields: dict[str, Any]) -> Body:
        raise NotImplementedError

    def _response(self) -> dict[str, Any]:
        """What the provider said about the answer beside the message: kept as ``$refold.response``."""
        return {}

    def _superseded(self) -> list[Any]:
        """Messages the provider broke off and began anew (:attr:`restarts`), in its own shape."""
        return []

    def _piece(self, kind: str, call_id: Any = None, name: Any = None) -> Piece:
        """A new piece; an id or name that is no text, or empty, says nothing."""
        if len(self._pieces) >= PIECES_MAX:
            raise InvalidRecord("too_large", f"one stream has more than {PIECES_MAX} blocks")
        made = Piece(kind, len(self._pieces), word(call_id), word(name))
        self._pieces.append(made)
        return made

    def _say(self, piece: Piece, text: Any) -> None:
        """Hand on ``text``; other values than text say nothing."""
        if not isinstance(text, str):
            return
        for delta in piece.add(text):
            self._keep(len(delta.data))
            if self.finish_reason is not None and delta.data:
                self.after_finish += 1
            self._deltas.append(delta)

    def _keep(self, size: int) -> None:
        """Count content that is kept, in bytes or characters."""
        self._bytes += size
        if self._bytes > STREAM_BYTES_MAX:
            raise InvalidRecord("too_large", f"one stream has more than {STREAM_BYTES_MAX} bytes of content")

    def _say_rest(self, piece: Piece, whole: Any) -> None:
        """Hand on what a closing event has beyond the deltas; a text that contradicts them is counted."""
        if isinstance(whole, str):
            rest = piece.rest(whole)
            if rest is None:
                self._not_known("(contradicts its deltas)", understood=True)
            elif rest:
                self._say(piece, rest)

    def _announce(self, name: Any, call_id: Any = None, text: str = "") -> Piece:
        piece = self._piece(OTHER, call_id, name)
        self._say(piece, text)
        return piece

    def _finish_marker(self, reason: Any) -> None:
        if not isinstance(reason, str) or not reason:
            return
        self.finishes += 1
        if self.finish_reason is None:
            self.finish_reason = reason

    def _used(self, usage: TokenUsage) -> None:
        """The newest total of the message that is open, on top of those before it; bounded as in batches."""
        self.usage = self._usage_before.plus(usage)

    def _failed(self, value: Any) -> None:
        if self.error is None:
            self.error = error_of(value)

    def _not_known(self, name: Any, payload: Payload | None = None, *, understood: bool = False) -> None:
        """Count an event nobody knows."""
        if not understood:
            self._understood -= 1
            self._first_unknown = self._first_unknown or shape(payload or {})
        named = name[:UNKNOWN_NAME_CHARS_MAX] if isinstance(name, str) and name else "(unnamed)"
        if named not in self._unknown and len(self._unknown) >= UNKNOWN_NAMES_MAX:
            named = "(others)"
        self._unknown[named] = self._unknown.get(named, 0) + 1

    def _marked(self, body: Body) -> Body:
        """The body with the hints ``response`` and ``stream``, which no mapper writes into a message."""
        stream = _said(
            unknown=self._unknown,
            finishes=self.finishes if self.finishes > 1 else 0,
            after_finish=self.after_finish,
            superseded=self._superseded(),
        )
        hints = _said(response=self._response(), stream=stream)
        if hints:
            rest, known = unpack(body["extra"])
            body["extra"] = pack(rest, {**known, **hints})
            body["extra_format"] = body["extra_format"] or self.format
        return body


def _said(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def size_of(value: Any) -> int:
    """Characters of the texts in a value, keys included: what keeping it costs, roughly."""
    size, pending = 0, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            pending += item
    return size


def word(value: Any) -> str | None:
    """A text that is not empty, in UTF-8's reach; anything else says nothing."""
    return value if isinstance(value, str) and value else None


def index_of(value: Any) -> int:
    """A position as providers number them; anything else is 0."""
    return value if type(value) is int else 0
